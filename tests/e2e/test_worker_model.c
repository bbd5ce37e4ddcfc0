/* tokenringd with a model, over the ring, without nginx: every phase of a generation and every way to end it. The
 * model has random weights (`tokenring synth`); what it says is compared with itself, and with the golden text where
 * the shared test data is there. */
#include <check.h>
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/ring_client.h"
#include "tests/shared.h"
#include "tests/check_main.h"

#define TEXT "/v1/completions"
static char folder[64], small[96], big[96];
static const struct slice nothing;
static struct daemon d;
static struct client c;

static void start_with(const char *model, const char *const *more)
{
    const char *arguments[20] = {"--model", model, "--threads", "2", "--kv-memory", "64m"};
    for (unsigned n = 6; n < 19 && *more != NULL; n++)
        arguments[n] = *more++;
    daemon_start(&d, arguments);
    ck_assert_msg(client_open(&c, d.socket), "%s", c.error);
    for (int i = 0; i < 5000 && strcmp(daemon_health(&d), "ok") != 0; i++)
        usleep(5000);
    ck_assert_str_eq(daemon_health(&d), "ok");
}

static void start(const char *const *more)
{
    start_with(small, more);
}

static void finish(void)
{
    client_close(&c);
    if (d.pid > 0)
        ck_assert_int_eq(daemon_stop(&d, SIGINT), 0);
    daemon_clean(&d);
}

static void setup(void)
{
    start((const char *const[]){NULL});
}

static void send(struct call *a, const char *body)
{
    ck_assert_msg(client_send(&c, a, "POST", TEXT, NULL, slice_of(body), false), "%s", c.error);
}

static void ask(struct call *a, const char *body)
{
    send(a, body);
    ck_assert_msg(client_wait(&c, a, 20000), "no end: %s", c.error);
}

/* Everything that a stream of n prompt tokens needs in memory is given back. */
static void expect_empty(void)
{
    daemon_expect(&d, "streams", 0);
    daemon_expect(&d, "requests_running", 0);
    daemon_expect(&d, "requests_waiting", 0);
    daemon_expect(&d, "requests_parsing", 0);
    daemon_expect(&d, "kv_pages_used", 0);
}

/* A body whose prompt is n tokens (ids), with further members of the object. */
static const char *long_prompt(unsigned n, const char *more)
{
    static struct buffer body;
    buffer_clear(&body);
    buffer_add_text(&body, "{\"prompt\":[1");
    for (unsigned i = 1; i < n; i++)
        buffer_printf(&body, ",%u", 10 + i * 7 % 400);
    buffer_printf(&body, "]%s}", more);
    return body.ptr;
}

START_TEST(whole_and_streamed_agree)
{
    struct call whole, stream;
    const char *text = "\"text\":\"";
    ask(&whole, "{\"prompt\":\"abc\",\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true}");
    ck_assert_uint_eq(whole.status, 200);
    ck_assert_str_eq(call_header(&whole, "x-tokenring-completion-tokens"), "20");
    ck_assert_str_eq(call_header(&whole, "x-tokenring-finish"), "length");
    ck_assert_ptr_nonnull(strstr(whole.answer.ptr, "\"completion_tokens\":20"));
    ask(&stream, "{\"prompt\":\"abc\",\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true,"
                 "\"stream\":true}");
    ck_assert_str_eq(call_header(&stream, "content-type"), "text/event-stream");
    ck_assert_str_eq(call_header(&stream, "x-tokenring-completion-tokens"),
                     "20"); /* in the trailer */
    ck_assert_uint_eq(call_count(&stream, "data: [DONE]"), 1);
    ck_assert_uint_eq(call_count(&stream, "\"finish_reason\":\"length\""), 1);
    ck_assert_uint_eq(stream.cut_frames, 0);
    struct buffer joined = {0};
    for (const char *p = stream.answer.ptr; (p = strstr(p, text)) != NULL;) {
        p += strlen(text);
        const char *end = p;
        while (*end != '"')
            end += *end == '\\' ? 2 : 1;
        buffer_add(&joined, p, (size_t)(end - p));
    }
    const char *at = strstr(whole.answer.ptr, text);
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_gt(joined.len, 0);
    ck_assert_int_eq(strncmp(at + strlen(text), joined.ptr, joined.len), 0);
    buffer_release(&joined);
    call_release(&whole);
    call_release(&stream);
    expect_empty();
    ck_assert_uint_eq(daemon_stat(&d, "requests_done_length"), 2);
    ck_assert_uint_eq(daemon_stat(&d, "completion_tokens_total"), 40);
    ck_assert_uint_eq(daemon_stat(&d, "ttft"), 2);
    ck_assert_uint_eq(daemon_stat(&d, "itl"), 38);
}
END_TEST

START_TEST(bad_requests)
{
    static const struct {
        const char *body;
        unsigned status;
        const char *word;
    } cases[] = {
        {"", 400, "JSON"},
        {"{\"prompt\":", 400, "invalid_json"},
        {"{\"prompt\":5}", 400, "prompt"},
        {"{\"prompt\":[1,99999]}", 400, "99999"},
        {"{\"prompt\":\"a\",\"temperature\":3}", 400, "temperature"},
        {"{\"prompt\":\"a\",\"max_tokens\":-1}", 400, "max_tokens"},
        {"{\"prompt\":\"\xff\"}", 400, "UTF-8"},
        {"{\"prompt\":\"a\",\"max_tokens\":100000}", 400, "context_length_exceeded"},
        {"{\"prompt\":\"a\",\"model\":\"other\"}", 404, "other"},
        {"{\"prompt\":\"a\",\"stream\":true,\"top_p\":7}", 400, "top_p"},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct call a;
        ask(&a, cases[i].body);
        ck_assert_msg(a.status == cases[i].status, "%s: %u %s", cases[i].body, a.status,
                      a.answer.ptr);
        ck_assert_msg(strstr(a.answer.ptr, cases[i].word) != NULL, "%s: %s", cases[i].body,
                      a.answer.ptr);
        ck_assert_str_eq(call_header(&a, "content-type"), "application/json");
        call_release(&a);
    }
    ck_assert_uint_eq(daemon_stat(&d, "requests_invalid"), sizeof(cases) / sizeof(*cases));
    expect_empty();
}
END_TEST

START_TEST(stop_strings)
{
    struct call a, b;
    char body[300], word[3] = {0};
    ask(&a, "{\"prompt\":\"abc\",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true}");
    const char *text = strstr(a.answer.ptr, "\"text\":\"") + 8;
    for (const char *p = text + 20; word[0] == 0;
         p++) /* two letters or digits of the middle of the answer */
        if (isalnum((unsigned char)p[0]) && isalnum((unsigned char)p[1]) && p[-1] != '\\')
            memcpy(word, p, 2);
    snprintf(body, sizeof(body),
             "{\"prompt\":\"abc\",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true,\"stop\":"
             "[\"%s\"]}",
             word);
    ask(&b, body);
    ck_assert_ptr_nonnull(strstr(b.answer.ptr, "\"finish_reason\":\"stop\""));
    const char *cut = strstr(b.answer.ptr, "\"text\":\"") + 8;
    size_t same = 0;
    while (text[same] == cut[same] && cut[same] != '"')
        same++;
    ck_assert_int_eq(cut[same], '"'); /* the answer ends where the stop string began */
    ck_assert_int_eq(strncmp(text + same, word, 2), 0);
    ck_assert_ptr_null(strstr(b.answer.ptr, "\"completion_tokens\":60"));
    call_release(&a);
    call_release(&b);
    expect_empty();
    ck_assert_uint_eq(daemon_stat(&d, "requests_done_stop"), 1);
}
END_TEST

START_TEST(cancel_at_every_phase)
{
    const char *decoding =
        "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}";
    const char *silent = "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}";
    struct call a, b;
    finish();
    start((const char *const[]){"--max-running", "1", NULL});
    /* decoding, streaming: at the first token and later */
    for (unsigned tokens = 1; tokens < 6; tokens += 4) {
        send(&a, decoding);
        while (call_count(&a, "data:") < tokens)
            ck_assert(client_turn(&c, 10));
        client_cancel(&c, &a);
        call_release(&a);
        expect_empty();
    }
    /* decoding, not streaming; and another one that waits in the queue */
    uint64_t steps = daemon_stat(&d, "steps_total");
    send(&a, silent);
    while (daemon_stat(&d, "steps_total") < steps + 3)
        ck_assert(client_turn(&c, 1));
    send(&b, silent);
    client_turn(&c, 1);
    daemon_expect(&d, "requests_waiting", 1);
    client_cancel(&c, &b);
    daemon_expect(&d, "requests_waiting", 0);
    daemon_expect(&d, "requests_running", 1);
    client_cancel(&c, &a);
    call_release(&a);
    call_release(&b);
    expect_empty();
    /* prefilling: most of the prompt is never read */
    steps = daemon_stat(&d, "steps_total");
    uint64_t prefilled = daemon_stat(&d, "prefilled_tokens_total");
    send(&a, long_prompt(4000, ",\"max_tokens\":5"));
    while (daemon_stat(&d, "steps_total") == steps)
        ck_assert(client_turn(&c, 1));
    client_cancel(&c, &a);
    expect_empty();
    ck_assert_uint_lt(daemon_stat(&d, "prefilled_tokens_total") - prefilled, 4000);
    call_release(&a);
    /* in the front pool: a long text to tokenize, and others queued behind it */
    struct buffer text = {0};
    buffer_add_text(&text, "{\"prompt\":\"");
    for (int i = 0; i < 400000; i++)
        buffer_add_text(&text, "word ");
    buffer_add_text(&text, "\"}");
    struct call many[8];
    for (int i = 0; i < 8; i++)
        send(&many[i], text.ptr);
    while (daemon_stat(&d, "requests_parsing") == 0)
        ck_assert(client_turn(&c, 1));
    for (int i = 0; i < 8; i++) {
        client_cancel(&c, &many[i]);
        call_release(&many[i]);
    }
    buffer_release(&text);
    expect_empty();
    /* Some of the many may have had their answer (too long) before their cancel came. */
    uint64_t aborts = daemon_stat(&d, "stream_aborts");
    ck_assert(aborts >= 2 + 2 + 1 && aborts <= 2 + 2 + 1 + 8);
}
END_TEST

START_TEST(full_queue)
{
    struct call running, waiting[2], refused;
    const char *long_one = "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}";
    finish();
    start((const char *const[]){"--max-running", "1", "--max-queue", "2", NULL});
    send(&running, long_one);
    client_turn(&c, 1);
    daemon_expect(&d, "requests_running", 1);
    for (int i = 0; i < 2; i++)
        send(&waiting[i], long_one);
    client_turn(&c, 1);
    daemon_expect(&d, "requests_waiting", 2);
    ask(&refused, long_one);
    ck_assert_uint_eq(refused.status, 503);
    ck_assert_ptr_nonnull(call_header(&refused, "retry-after"));
    ck_assert_ptr_nonnull(strstr(refused.answer.ptr, "queue_full"));
    call_release(&refused);
    client_cancel(&c, &running);
    for (int i = 0; i < 2; i++) {
        client_cancel(&c, &waiting[i]);
        call_release(&waiting[i]);
    }
    call_release(&running);
    expect_empty();
}
END_TEST

START_TEST(keepalives)
{
    struct call running, waiting;
    finish();
    start((const char *const[]){"--max-running", "1", "--keepalive-interval", "20", NULL});
    send(&running, "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}");
    client_turn(&c, 1);
    daemon_expect(&d, "requests_running", 1);
    send(&waiting, "{\"prompt\":\"a\",\"max_tokens\":3,\"ignore_eos\":true,\"stream\":true}");
    while (call_count(&waiting, ": keepalive") < 3)
        ck_assert(client_turn(&c, 10));
    ck_assert_uint_eq(waiting.status, 200);
    ck_assert_uint_eq(running.status, 0); /* nothing goes before a whole answer */
    client_cancel(&c, &running);
    ck_assert(client_wait(&c, &waiting, 10000));
    ck_assert_uint_eq(call_count(&waiting, "data: [DONE]"), 1);
    call_release(&running);
    call_release(&waiting);
    expect_empty();
}
END_TEST

START_TEST(slow_reader_pauses_its_sequence)
{
    struct call slow, other;
    c.stingy = true;
    send(&slow, "{\"prompt\":\"a\",\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true,"
                "\"stream\":true,\"logprobs\":5}");
    while (daemon_stat(&d, "credit_waits") == 0) {
        ck_assert_ptr_nonnull(slow.stream); /* its events fill more than a window */
        ck_assert(client_turn(&c, 10));
    }
    uint64_t before, now = 0;
    do { /* a step that was under way may still end */
        before = now;
        for (int i = 0; i < 10; i++)
            ck_assert(client_turn(&c, 10));
        now = daemon_stat(&d, "completion_tokens_total");
    } while (now != before);
    ck_assert_uint_lt(now, 400);
    ck_assert_uint_eq(daemon_stat(&d, "requests_running"), 1);
    c.stingy = false;
    ask(&other, "{\"prompt\":\"a\",\"max_tokens\":10,\"ignore_eos\":true}");
    ck_assert_uint_eq(other.status, 200);
    call_release(&other);
    client_feed(&c, &slow);
    ck_assert(client_wait(&c, &slow, 20000));
    ck_assert_uint_eq(call_count(&slow, "data: [DONE]"), 1);
    ck_assert_ptr_nonnull(strstr(slow.headers.ptr, "x-tokenring-completion-tokens: 400"));
    call_release(&slow);
    expect_empty();
}
END_TEST

START_TEST(slow_reader_gives_its_pages_back)
{
    struct call fast, slow;
    const char *body = "{\"prompt\":\"a\",\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true,"
                       "\"stream\":true,\"logprobs\":5}";
    char hash[40];
    finish();
    start((const char *const[]){"--pause-limit", "1", "--trace-logits", NULL});
    ask(&fast, body);
    snprintf(hash, sizeof(hash), "%s", call_header(&fast, "x-tokenring-logits-hash"));
    ck_assert_uint_eq(strlen(hash), 16);
    call_release(&fast);
    c.stingy = true;
    send(&slow, body);
    uint64_t end = clock_ns() + 20000000000u;
    while (daemon_stat(&d, "preemptions_total") == 0 && clock_ns() < end)
        ck_assert(client_turn(&c, 10));
    ck_assert_uint_eq(daemon_stat(&d, "preemptions_total"), 1);
    daemon_expect(&d, "kv_pages_used", 0);
    daemon_expect(&d, "requests_waiting", 1);
    c.stingy = false;
    client_feed(&c, &slow);
    ck_assert(client_wait(&c, &slow, 20000));
    ck_assert_str_eq(call_header(&slow, "x-tokenring-completion-tokens"), "400");
    ck_assert_str_eq(call_header(&slow, "x-tokenring-logits-hash"), hash);
    call_release(&slow);
    expect_empty();
}
END_TEST

START_TEST(batches_do_not_change_answers)
{
    enum { N = 16 };
    struct call alone, calls[N];
    char body[200];
    finish();
    start((const char *const[]){"--trace-logits", "--prefill-chunk", "7", NULL});
    const char *own = "{\"prompt\":\"the "
                      "one\",\"max_tokens\":40,\"temperature\":0.8,\"seed\":5,\"ignore_eos\":true}";
    ask(&alone, own);
    char hash[40];
    snprintf(hash, sizeof(hash), "%s", call_header(&alone, "x-tokenring-logits-hash"));
    ck_assert_uint_eq(strlen(hash), 16);
    for (int i = 0; i < N; i++) {
        snprintf(body, sizeof(body),
                 "{\"prompt\":\"other %d\",\"max_tokens\":%d,\"ignore_eos\":true,\"seed\":%d}", i,
                 20 + i, i);
        send(&calls[i], i == 7 ? own : body);
    }
    for (int i = 0; i < N; i++) {
        ck_assert(client_wait(&c, &calls[i], 20000));
        if (i == 7)
            ck_assert_str_eq(call_header(&calls[i], "x-tokenring-logits-hash"), hash);
        call_release(&calls[i]);
    }
    call_release(&alone);
    ck_assert_uint_lt(daemon_stat(&d, "steps_total") - 40, 15 * 28);
    expect_empty();
}
END_TEST

START_TEST(random_aborts)
{
    enum { PARALLEL = 16, TOTAL = 200 };
    struct call calls[PARALLEL], a;
    bool used[PARALLEL] = {false};
    unsigned begun = 0, live = 0;
    uint32_t seed = 99;
    char body[200];
    ask(&a, "{\"prompt\":\"a\",\"max_tokens\":3}");
    call_release(&a);
    usleep(50000);
    unsigned fds = daemon_fds(&d), threads = daemon_threads(&d);
    while (begun < TOTAL || live > 0) {
        unsigned i = (seed = seed * 1664525 + 1013904223) >> 28, choice = (seed >> 16) % 5;
        if (!used[i] && begun < TOTAL) {
            snprintf(body, sizeof(body),
                     ",\"max_tokens\":%u,\"stream\":%s,\"ignore_eos\":true,\"stop\":[\"q%c\"]",
                     1 + (seed >> 10) % 60, choice & 1 ? "true" : "false",
                     'a' + (int)(seed >> 20) % 26);
            send(&calls[i], long_prompt(1 + (seed >> 8) % 300, body));
            used[i] = true;
            begun++;
            live++;
        } else if (used[i] && (choice == 0 || calls[i].stream == NULL)) {
            if (calls[i].stream == NULL)
                ck_assert_uint_eq(calls[i].status, 200);
            client_cancel(&c, &calls[i]);
            call_release(&calls[i]);
            used[i] = false;
            live--;
        }
        ck_assert_msg(client_turn(&c, choice == 0), "%s", c.error);
    }
    expect_empty();
    ck_assert_uint_eq(daemon_stat(&d, "timer_found_work"), 0);
    /* every generation that was admitted has ended in one way */
    ck_assert_uint_eq(daemon_stat(&d, "requests_failed"), 0);
    ck_assert_uint_eq(daemon_stat(&d, "requests_invalid"), 0);
    ck_assert_uint_ge(daemon_stat(&d, "requests_done_length") +
                          daemon_stat(&d, "requests_done_stop") +
                          daemon_stat(&d, "requests_cancelled"),
                      daemon_stat(&d, "requests_total"));
    for (int i = 0; i < 100 && daemon_fds(&d) != fds; i++)
        usleep(20000);
    ck_assert_uint_eq(daemon_fds(&d), fds);
    ck_assert_uint_eq(daemon_threads(&d), threads);
    ck_assert_str_eq(daemon_health(&d), "ok");
}
END_TEST

START_TEST(drain_lets_generations_finish)
{
    struct call a, late;
    send(&a, "{\"prompt\":\"a\",\"max_tokens\":2000,\"ignore_eos\":true,\"stream\":true}");
    while (a.frames == 0)
        ck_assert(client_turn(&c, 10));
    kill(d.pid, SIGTERM);
    do
        ask(&late, "{\"prompt\":\"a\",\"max_tokens\":1}");
    while (late.status == 200 && (call_release(&late), true));
    ck_assert_uint_eq(late.status, 503);
    call_release(&late);
    ck_assert(client_wait(&c, &a, 20000));
    ck_assert_uint_eq(call_count(&a, "\"finish_reason\":\"length\""), 1);
    ck_assert_uint_eq(call_count(&a, "data: [DONE]"), 1);
    call_release(&a);
    ck_assert_int_eq(daemon_wait(&d), 0);
}
END_TEST

START_TEST(int_ends_generations)
{
    struct call stream, whole, prefill;
    send(&stream, "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}");
    send(&whole, "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}");
    while (stream.frames == 0)
        ck_assert(client_turn(&c, 10));
    send(&prefill, long_prompt(4000, ",\"max_tokens\":5,\"stream\":true"));
    client_turn(&c, 1);
    kill(d.pid, SIGINT);
    while (client_turn(&c, 50))
        ;
    ck_assert(stream.complete && whole.complete && prefill.complete);
    ck_assert_uint_eq(call_count(&stream, "\"draining\""), 1);
    ck_assert_str_eq(stream.answer.ptr + stream.answer.len - 14, "data: [DONE]\n\n");
    ck_assert_uint_eq(call_count(&stream, "data: [DONE]"), 1);
    ck_assert_uint_eq(whole.status, 503);
    ck_assert_uint_eq(prefill.status, 503);
    call_release(&stream);
    call_release(&whole);
    call_release(&prefill);
    ck_assert_int_eq(daemon_wait(&d), 0);
}
END_TEST

START_TEST(loading)
{
    struct call a;
    finish();
    daemon_start(&d,
                 (const char *const[]){"--model", big, "--alias", "nick", "--threads", "1", NULL});
    ck_assert_msg(client_open(&c, d.socket), "%s", c.error);
    ck_assert(client_send(&c, &a, "GET", "/health", NULL, nothing, false));
    ck_assert(client_wait(&c, &a, 5000));
    ck_assert_uint_eq(a.status, 503);
    ck_assert_ptr_nonnull(strstr(a.answer.ptr, "\"loading\""));
    ck_assert_ptr_nonnull(strstr(a.answer.ptr, "\"nick\""));
    ck_assert_ptr_nonnull(call_header(&a, "retry-after"));
    call_release(&a);
    ask(&a, "{\"prompt\":\"a\"}");
    ck_assert_uint_eq(a.status, 503);
    ck_assert_ptr_nonnull(strstr(a.answer.ptr, "model_loading"));
    ck_assert_ptr_nonnull(call_header(&a, "retry-after"));
    call_release(&a);
    for (int i = 0; i < 2000 && strcmp(daemon_health(&d), "ok") != 0; i++)
        usleep(10000);
    for (int i = 0; i < 2; i++) { /* both names are served */
        char body[100];
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"max_tokens\":1,\"model\":\"%s\"}",
                 i == 0 ? "nick" : "big");
        ask(&a, body);
        ck_assert_uint_eq(a.status, 200);
        call_release(&a);
    }
}
END_TEST

START_TEST(term_while_loading)
{
    finish();
    daemon_start(&d, (const char *const[]){"--model", big, "--threads", "1", NULL});
    uint64_t start = clock_ns();
    ck_assert_int_eq(daemon_stop(&d, SIGTERM), 0);
    ck_assert_uint_lt(clock_ns() - start, 3000000000u);
    c.fd = -1;
}
END_TEST

/* Runs tokenringd to its end; returns its exit status and its last line on stderr. */
static int run(const char *arguments, char last[512])
{
    char command[700], path[100];
    snprintf(path, sizeof(path), "%s/err", folder);
    snprintf(command, sizeof(command), "%s/tokenringd --listen unix:%s/s --stats-dir %s %s 2>%s",
             getenv("TOKENRING_BUILD"), folder, folder, arguments, path);
    int status = system(command);
    FILE *f = fopen(path, "r");
    last[0] = '\0';
    while (f != NULL && fgets(last, 512, f) != NULL)
        ;
    if (f != NULL)
        fclose(f);
    return status;
}

START_TEST(models_that_cannot_be_served)
{
    char arguments[300], last[512], path[200];
    snprintf(path, sizeof(path), "%s/broken.gguf", folder);
    FILE *f = fopen(path, "w");
    fputs("GGUF, but no model", f);
    fclose(f);
    static const struct {
        const char *format, *word;
    } cases[] = {
        {"--model %s/broken.gguf", "broken.gguf"},
        {"--model %s/none.gguf", "none.gguf"},
        {"--model %s/small.gguf --kv-memory 900t", "900.0 TiB"},
        {"--model %s/small.gguf --kv-type q7", "q7"},
        {"--model %s/small.gguf --tier tpu", "tpu"},
        {"--model %s/small.gguf --context 5000", "5000"},
        {"-t --model %s/broken.gguf", "broken.gguf"},
        {"-t --model %s/small.gguf --context 5000", "5000"},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        snprintf(arguments, sizeof(arguments), cases[i].format, folder);
        ck_assert_msg(run(arguments, last) == 1 << 8, "%s", arguments);
        ck_assert_msg(strstr(last, cases[i].word) != NULL, "%s: %s", arguments, last);
    }
    snprintf(arguments, sizeof(arguments), "-t --model %s", small);
    ck_assert_int_eq(run(arguments, last), 0);
    c.fd = -1;
}
END_TEST

START_TEST(golden_text)
{
    const char *shared = getenv("TOKENRING_SHARED");
    struct call a;
    finish();
    start_with(shared_path(shared, "data/models/stories260K/stories260K-f32.gguf"),
               (const char *const[]){"--kv-type", "f32", NULL});
    ask(&a, "{\"prompt\":\"Once upon a time\",\"max_tokens\":64,\"temperature\":0}");
    ck_assert_ptr_nonnull(
        strstr(a.answer.ptr, "\"text\":\", there was a little girl named Lily. She loved to play "
                             "outside in the park. One day, she saw a big, red ball. She wanted to "
                             "play with it, but it was too high.\\nLily's mom said\""));
    call_release(&a);
}
END_TEST

static void make_model(const char *path, const char *shape)
{
    char command[500];
    snprintf(command, sizeof(command), "%s/tokenring synth -o %s %s", getenv("TOKENRING_BUILD"),
             path, shape);
    if (system(command) != 0)
        exit(1);
}

int main(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tokenring-models.XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(small, sizeof(small), "%s/small.gguf", folder);
    snprintf(big, sizeof(big), "%s/big.gguf", folder);
    make_model(small, "--layers 4 --dim 256 --ffn 512 --heads 4 --kv-heads 2 --vocab 512 --context "
                      "4096 --type q8_0");
    make_model(big, "--layers 12 --dim 1024 --ffn 2048 --heads 8 --kv-heads 4 --vocab 8000 "
                    "--context 4096 --type q8_0");
    Suite *suite = suite_create("e2e/worker model");
    TCase *tc = tcase_create("model");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, finish);
    tcase_add_test(tc, whole_and_streamed_agree);
    tcase_add_test(tc, bad_requests);
    tcase_add_test(tc, stop_strings);
    tcase_add_test(tc, cancel_at_every_phase);
    tcase_add_test(tc, full_queue);
    tcase_add_test(tc, keepalives);
    tcase_add_test(tc, slow_reader_pauses_its_sequence);
    tcase_add_test(tc, slow_reader_gives_its_pages_back);
    tcase_add_test(tc, batches_do_not_change_answers);
    tcase_add_test(tc, random_aborts);
    tcase_add_test(tc, drain_lets_generations_finish);
    tcase_add_test(tc, int_ends_generations);
    tcase_add_test(tc, loading);
    tcase_add_test(tc, term_while_loading);
    tcase_add_test(tc, models_that_cannot_be_served);
    if (shared_folder("e2e worker model golden") != NULL)
        tcase_add_test(tc, golden_text);
    suite_add_tcase(suite, tc);
    int failed = check_run(suite);
    char command[100];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command) != 0 || failed != 0;
}
