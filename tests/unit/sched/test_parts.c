/* The scheduler's parts by themselves: queue of events, mailbox, doorbell, order of sequences. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/sched/doorbell.h"
#include "core/sched/mailbox.h"
#include "core/sched/queue.h"
#include "core/sched/spsc.h"
#include "tests/check_main.h"

#define NUMBERS 300000u
#define SENDERS 3
#define LETTERS 20000

static struct spsc numbers;
static struct doorbell bell;

/* Puts the numbers in batches of changing size and rings once a batch. */
static void *produce(void *data)
{
    uint32_t next = 0;
    (void)data;
    while (next < NUMBERS) {
        uint32_t n = next % 7 + 1;
        while (spsc_room(&numbers) < n)
            sched_yield();
        for (uint32_t i = 0; i < n && next < NUMBERS; i++)
            *(uint32_t *)spsc_put(&numbers) = next++;
        if (spsc_publish(&numbers))
            doorbell_ring(&bell);
    }
    return NULL;
}

/* The consumer sleeps whenever it finds nothing: a lost ring would leave it asleep (and fail by time). */
START_TEST(no_element_and_no_ring_is_lost)
{
    pthread_t thread;
    spsc_init(&numbers, 100, sizeof(uint32_t));
    ck_assert_uint_eq(numbers.cap, 128);
    ck_assert(doorbell_init(&bell));
    pthread_create(&thread, NULL, produce, NULL);
    uint32_t expected = 0;
    while (expected < NUMBERS) {
        uint32_t *n = spsc_peek(&numbers);
        if (n == NULL) {
            doorbell_arm(&bell);
            n = spsc_peek(&numbers);
            if (n == NULL) {
                doorbell_wait(&bell, -1);
                continue;
            }
            doorbell_disarm(&bell);
        }
        if (*n != expected)
            ck_abort_msg("%u came, %u expected", *n, expected);
        expected++;
        spsc_drop(&numbers);
    }
    pthread_join(thread, NULL);
    ck_assert_ptr_null(spsc_peek(&numbers));
    spsc_release(&numbers);
    doorbell_release(&bell);
}
END_TEST

START_TEST(a_full_queue_says_so)
{
    struct spsc q;
    spsc_init(&q, 4, sizeof(int));
    ck_assert(!spsc_publish(&q));
    for (int i = 0; i < 4; i++)
        *(int *)spsc_put(&q) = i;
    ck_assert_uint_eq(spsc_room(&q), 0);
    ck_assert_ptr_null(spsc_peek(&q)); /* not published yet */
    ck_assert(spsc_publish(&q));
    ck_assert_int_eq(*(int *)spsc_peek(&q), 0);
    spsc_drop(&q);
    ck_assert_uint_eq(spsc_room(&q), 1);
    spsc_release(&q);
}
END_TEST

struct note {
    struct letter letter;
    int sender, number;
};

static struct mailbox box;

static void *send_letters(void *data)
{
    for (int i = 0; i < LETTERS; i++) {
        struct note *note = malloc(sizeof(*note));
        note->sender = (int)(intptr_t)data;
        note->number = i;
        mailbox_send(&box, &note->letter);
    }
    return NULL;
}

START_TEST(letters_of_a_sender_come_in_order)
{
    pthread_t threads[SENDERS];
    int next[SENDERS] = {0};
    for (intptr_t i = 0; i < SENDERS; i++)
        pthread_create(&threads[i], NULL, send_letters, (void *)i);
    for (int came = 0; came < SENDERS * LETTERS;) {
        for (struct letter *l = mailbox_take(&box), *after; l != NULL; l = after) {
            struct note *note = (struct note *)l;
            after = l->next;
            if (note->number != next[note->sender]++)
                ck_abort_msg("a letter came out of order");
            free(note);
            came++;
        }
        sched_yield();
    }
    for (int i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_ptr_null(mailbox_take(&box));
}
END_TEST

START_TEST(a_sequence_put_back_keeps_its_turn)
{
    struct queue q;
    struct sequence s[4] = {{.serial = 0}, {.serial = 1}, {.serial = 2}, {.serial = 3}};
    queue_init(&q);
    ck_assert_ptr_null(queue_first(&q));
    queue_add(&q, &s[0]);
    queue_add(&q, &s[3]);
    queue_add(&q, &s[1]);
    queue_add(&q, &s[2]);
    uint64_t serial = 0;
    queue_each(it, tmp, &q) ck_assert_uint_eq(queue_entry(it)->serial, serial++);
    ck_assert_uint_eq(serial, 4);
    ck_assert_ptr_eq(queue_last(&q), &s[3]);
    queue_remove(&q, &s[0]);
    ck_assert_ptr_eq(queue_first(&q), &s[1]);
    ck_assert_uint_eq(q.count, 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sched parts");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, no_element_and_no_ring_is_lost);
    tcase_add_test(tc, a_full_queue_says_so);
    tcase_add_test(tc, letters_of_a_sender_come_in_order);
    tcase_add_test(tc, a_sequence_put_back_keeps_its_turn);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
