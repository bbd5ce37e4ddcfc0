/* tokenring bench serve: loads a server and times its streams. */
#include "tools/bench_serve.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/buffer.h"
#include "tools/bench_load.h"
#include "tools/numbers.h"

static const char help[] =
    "usage: tokenring bench serve URL [OPTION]...\n"
    "\n"
    "Sends streaming requests to an OpenAI endpoint and times the events: http://HOST[:PORT], if "
    "need be with the path that\n"
    "stands before /v1. Closed loop: -c clients, each asks again when it has its answer. Open loop "
    "(--rate): requests\n"
    "arrive at random moments, R a second on average, and their time counts from then.\n"
    "\n"
    "  -c, --clients N        clients; with --rate the most requests at once (1; with --rate no "
    "limit)\n"
    "  -n, --requests N       requests altogether (8)\n"
    "      --rate R           open loop, R requests a second\n"
    "      --prompts FILE     a prompt a line: text, a JSON string, a list of token ids, or an "
    "object with prompt or\n"
    "                         messages and any other member of the body; in turn, from the start "
    "again at the end\n"
    "      --words N          made prompts of N words (100)\n"
    "      --shared N         N words in front of every prompt that all have in common (0)\n"
    "      --max-tokens N     tokens to ask for (64)\n"
    "      --chat             chat completions instead of completions\n"
    "      --model NAME       the model to name; without it none is\n"
    "      --extra JSON       an object of further members of the body; null takes one away\n"
    "                         (sent: stream, max_tokens, temperature 0, ignore_eos, "
    "stream_options)\n"
    "      --header LINE      a further header, 'Authorization: Bearer x'; may be given several "
    "times\n"
    "      --close            a connection for each request; without it they are kept, as "
    "clients' libraries do\n"
    "      --seed N           of made prompts and arrivals (1)\n"
    "      --timeout S        a request without an end by then has failed (600)\n"
    "      --json             one flat object\n"
    "\n"
    "Tokens are the server's count (usage), else the events with text; an event can carry several "
    "tokens. itl is the time\n"
    "between two events with text. Refused: status 429 or 503. fairness: most by fewest pieces of "
    "text among the clients of\n"
    "a closed loop, up to the moment when the first of them had nothing more to ask.\n"
    "exit status: 0; 1 a request failed (refusals are no failures); 2 wrong usage.\n";

struct options {
    struct load load;
    struct buffer headers, path;
    char host[256], port[8];
    bool json;
};

static bool ends_with(const char *text, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

/* http://host[:port][/path]; an IPv6 address in brackets. */
static bool parse_url(struct options *o, const char *url)
{
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    url += 7;
    size_t n = *url == '[' ? strcspn(++url, "]") : strcspn(url, ":/");
    if (n == 0 || n >= sizeof(o->host))
        return false;
    memcpy(o->host, url, n);
    url += n + (url[n] == ']');
    strcpy(o->port, "80");
    if (*url == ':') {
        n = strspn(++url, "0123456789");
        if (n == 0 || n >= sizeof(o->port))
            return false;
        memcpy(o->port, url, n);
        o->port[n] = '\0';
        url += n;
    }
    if ((*url != '\0' && *url != '/') || strpbrk(url, " \r\n") != NULL)
        return false;
    n = strlen(url);
    while (n > 0 && url[n - 1] == '/')
        n--;
    buffer_add(&o->path, url, n);
    if (!ends_with(url, n, "/completions")) {
        if (!ends_with(url, n, "/v1"))
            buffer_add_text(&o->path, "/v1");
        buffer_add_text(&o->path, o->load.prompts.chat ? "/chat/completions" : "/completions");
    } else if (ends_with(url, n, "/chat/completions")) {
        o->load.prompts.chat = true;
    }
    return true;
}

static bool add_header(struct options *o, const char *line)
{
    if (strchr(line, ':') == NULL || strpbrk(line, "\r\n") != NULL)
        return false;
    buffer_printf(&o->headers, "%s\r\n", line);
    return true;
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option long_options[] = {{"clients", required_argument, NULL, 'c'},
                                                 {"requests", required_argument, NULL, 'n'},
                                                 {"rate", required_argument, NULL, 'R'},
                                                 {"prompts", required_argument, NULL, 'p'},
                                                 {"words", required_argument, NULL, 'w'},
                                                 {"shared", required_argument, NULL, 's'},
                                                 {"max-tokens", required_argument, NULL, 'm'},
                                                 {"chat", no_argument, NULL, 'C'},
                                                 {"model", required_argument, NULL, 'M'},
                                                 {"extra", required_argument, NULL, 'x'},
                                                 {"header", required_argument, NULL, 'H'},
                                                 {"close", no_argument, NULL, 'k'},
                                                 {"seed", required_argument, NULL, 'S'},
                                                 {"timeout", required_argument, NULL, 't'},
                                                 {"json", no_argument, NULL, 'j'},
                                                 {"help", no_argument, NULL, 'h'},
                                                 {NULL, 0, NULL, 0}};
    struct load *l = &o->load;
    int c, index = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, "c:n:h", long_options, &index)) != -1) {
        bool ok = true;
        switch (c) {
        case 'c':
            ok = whole32(optarg, 1, 65536, &l->clients);
            break;
        case 'n':
            ok = whole(optarg, 1, 1000000000, &l->requests);
            break;
        case 'R':
            ok = positive(optarg, 1e9, &l->rate);
            break;
        case 'p':
            l->prompts.file = optarg;
            break;
        case 'w':
            ok = whole32(optarg, 0, 10000000, &l->prompts.words);
            break;
        case 's':
            ok = whole32(optarg, 0, 10000000, &l->prompts.shared);
            break;
        case 'm':
            ok = whole32(optarg, 1, UINT32_MAX, &l->prompts.max_tokens);
            break;
        case 'C':
            l->prompts.chat = true;
            break;
        case 'M':
            l->prompts.model = optarg;
            break;
        case 'x':
            l->prompts.extra = optarg;
            break;
        case 'H':
            ok = add_header(o, optarg);
            break;
        case 'S':
            ok = whole(optarg, 0, UINT64_MAX, &l->prompts.seed);
            break;
        case 't':
            ok = positive(optarg, 1e9, &l->timeout);
            break;
        case 'k':
            l->keepalive = false;
            break;
        case 'j':
            o->json = true;
            break;
        case 'h':
            fputs(help, stdout);
            return -1;
        default:
            fputs(help, stderr);
            return 2;
        }
        if (!ok) {
            fprintf(stderr, "tokenring bench serve: '%s' cannot be what that option wants\n",
                    optarg);
            return 2;
        }
    }
    if (argc - optind != 1) {
        fputs(help, stderr);
        return 2;
    }
    if (!parse_url(o, argv[optind])) {
        fprintf(stderr,
                "tokenring bench serve: '%s' is no URL of the form http://HOST[:PORT][/PATH]\n",
                argv[optind]);
        return 2;
    }
    if (l->clients == 0 && l->rate == 0)
        l->clients = 1;
    return 0;
}

/* ---- the report ----------------------------------------------------------------------------------------- */

struct figure {
    const char *key, *format;
    double value;
};

static double ms(struct samples *s, double q)
{
    return 1e3 * samples_quantile(s, q);
}

static unsigned figures(struct load *l, struct figure *f)
{
    unsigned n = 0;
    double wall = l->wall > 0 ? l->wall : 1e-9;
#define FIGURE(k, fmt, v) f[n++] = (struct figure){k, fmt, (double)(v)}
    FIGURE("clients", "%.0f", l->clients);
    FIGURE("rate", "%.3f", l->rate);
    FIGURE("ok", "%.0f", l->ok);
    FIGURE("refused", "%.0f", l->refused);
    FIGURE("failed", "%.0f", l->failed);
    FIGURE("no_done", "%.0f", l->no_done);
    FIGURE("finish_stop", "%.0f", l->stops);
    FIGURE("finish_length", "%.0f", l->lengths);
    FIGURE("wall_s", "%.3f", l->wall);
    FIGURE("requests_s", "%.3f", (double)l->ok / wall);
    FIGURE("out_tokens", "%.0f", l->tokens);
    FIGURE("out_tok_s", "%.2f", (double)l->tokens / wall);
    FIGURE("request_tok_s_p50", "%.2f", samples_quantile(&l->request_rate, 0.5));
    FIGURE("prompt_tokens_p50", "%.0f", samples_quantile(&l->prompt_tokens, 0.5));
    FIGURE("cached_tokens", "%.0f", l->cached_tokens);
    FIGURE("ttft_p50_ms", "%.2f", ms(&l->ttft, 0.5));
    FIGURE("ttft_p90_ms", "%.2f", ms(&l->ttft, 0.9));
    FIGURE("ttft_p99_ms", "%.2f", ms(&l->ttft, 0.99));
    FIGURE("ttft_max_ms", "%.2f", ms(&l->ttft, 1));
    FIGURE("itl_p50_ms", "%.3f", ms(&l->gaps, 0.5));
    FIGURE("itl_p90_ms", "%.3f", ms(&l->gaps, 0.9));
    FIGURE("itl_p99_ms", "%.3f", ms(&l->gaps, 0.99));
    FIGURE("itl_max_ms", "%.3f", ms(&l->gaps, 1));
    FIGURE("e2e_p50_ms", "%.2f", ms(&l->whole, 0.5));
    FIGURE("e2e_p99_ms", "%.2f", ms(&l->whole, 0.99));
    FIGURE("refusal_p50_ms", "%.2f", ms(&l->refusal, 0.5));
    FIGURE("refusal_max_ms", "%.2f", ms(&l->refusal, 1));
    FIGURE("client_tokens_max", "%.0f", l->fair_max);
    FIGURE("client_tokens_min", "%.0f", l->fair_min);
    FIGURE("fairness", "%.3f", l->fair_min > 0 ? (double)l->fair_max / (double)l->fair_min : 0);
#undef FIGURE
    return n;
}

/* What was not seen is null: no answer, no time. */
static bool is_known(struct load *l, const char *key)
{
    const struct samples *s = strncmp(key, "ttft", 4) == 0           ? &l->ttft
                              : strncmp(key, "itl", 3) == 0          ? &l->gaps
                              : strncmp(key, "e2e", 3) == 0          ? &l->whole
                              : strncmp(key, "refusal", 7) == 0      ? &l->refusal
                              : strncmp(key, "request_tok", 11) == 0 ? &l->request_rate
                              : strncmp(key, "prompt", 6) == 0       ? &l->prompt_tokens
                                                                     : NULL;
    if (strncmp(key, "client_", 7) == 0)
        return l->rate == 0;
    if (strcmp(key, "fairness") == 0)
        return l->rate == 0 && l->fair_min > 0;
    return s == NULL || s->n > 0;
}

static void report(struct options *o)
{
    struct figure f[40];
    unsigned n = figures(&o->load, f);
    if (o->json)
        fputs("{", stdout);
    for (unsigned i = 0; i < n; i++) {
        bool known = is_known(&o->load, f[i].key);
        if (!o->json && !known)
            continue;
        printf(o->json ? "%s\"%s\": " : "%s%-20s ", o->json && i > 0 ? ", " : "", f[i].key);
        if (known)
            printf(f[i].format, f[i].value);
        else
            fputs("null", stdout);
        if (!o->json)
            putchar('\n');
    }
    if (o->json)
        puts("}");
    if (o->load.failed > 0)
        fprintf(stderr, "tokenring bench serve: %llu failed; the first: %s\n",
                (unsigned long long)o->load.failed, o->load.failure);
}

int bench_serve(int argc, char **argv)
{
    struct options o = {.load = {.requests = 8,
                                 .timeout = 600,
                                 .keepalive = true,
                                 .prompts = {.words = 100, .seed = 1, .max_tokens = 64}}};
    struct error err = {0};
    int code = parse(argc, argv, &o);
    if (code == 0) {
        o.load.host = o.host;
        o.load.port = o.port;
        o.load.path = o.path.ptr;
        o.load.headers = o.headers.ptr != NULL ? o.headers.ptr : "";
        enum status status = prompts_load(&o.load.prompts, &err);
        if (status == STATUS_OK)
            status = load_run(&o.load, &err);
        if (status == STATUS_OK)
            report(&o);
        else
            fprintf(stderr, "tokenring bench serve: %s\n", err.text);
        code = status != STATUS_OK || o.load.failed > 0 || fflush(stdout) != 0 ? 1 : 0;
    }
    load_release(&o.load);
    buffer_release(&o.path);
    buffer_release(&o.headers);
    return code < 0 ? 0 : code;
}
