/* The scheduler's parts by themselves: queue of events, mailbox, doorbell, order of sequences, pace. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/sched/batch.h"
#include "core/sched/doorbell.h"
#include "core/sched/mailbox.h"
#include "core/sched/queue.h"
#include "core/sched/spsc.h"

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

/* Steps of a machine where a decode step takes 8 ms and a prompt token 0.5 ms more. */
static void learn(struct pace *p, uint32_t n_decodes, uint32_t n_prefill, double slower)
{
    struct batch b = {.n_decodes = n_decodes, .n_prefill = n_prefill};
    double ms = (n_decodes > 0 ? 8 : 0) + 0.5 * n_prefill;
    pace_learn(p, &b, (uint64_t)(ms * slower * 1e6));
}

START_TEST(prompts_leave_time_for_decodes)
{
    struct pace p = {.target = 3};
    ck_assert_uint_eq(pace_budget(&p, 512, 0), 512); /* nobody decodes: all of it */
    ck_assert_uint_eq(pace_budget(&p, 512, 1), PACE_CHUNK_FIRST);
    ck_assert_uint_eq(pace_budget(&p, 7, 1), 7);
    for (int i = 0; i < 100; i++) {
        learn(&p, 4, 0, 1);
        learn(&p, 4, 16, 1);
        learn(&p, 0, 512, 1);
    }
    /* 2.5 steps of 8 ms: 12 ms for the prompt, 24 tokens. */
    ck_assert_uint_eq(pace_budget(&p, 512, 1), 24);
    ck_assert_uint_eq(pace_budget(&p, 512, 0), 512);
    ck_assert_uint_eq(pace_budget(&p, 7, 1), 7);
    p.target = 5;
    ck_assert_uint_eq(pace_budget(&p, 512, 1), 48); /* 25.3 ms */
    p.target = 1;
    ck_assert_uint_eq(pace_budget(&p, 512, 1), PACE_CHUNK_MIN);
    p.target = 3;
    /* More decodes take longer: 80 ms, measured apart. */
    for (int i = 0; i < 100; i++)
        learn(&p, 60, 0, 10);
    ck_assert_uint_eq(pace_budget(&p, 512, 4), 24);
    ck_assert_uint_eq(pace_budget(&p, 512, 64), 240);
    ck_assert_uint_eq(pace_budget(&p, 512, 50), 240);
    /* One step that took a hundred times as long (the CPU was away) changes little. */
    learn(&p, 4, 16, 100);
    ck_assert_uint_ge(pace_budget(&p, 512, 1), 16);
    /* A slow prompt still gets something. */
    for (int i = 0; i < 100; i++)
        learn(&p, 4, 16, 100);
    ck_assert_uint_eq(pace_budget(&p, 512, 1), PACE_CHUNK_MIN);
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
    tcase_add_test(tc, prompts_leave_time_for_decodes);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
