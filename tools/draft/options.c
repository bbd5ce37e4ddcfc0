#define _GNU_SOURCE
#include "tools/draft/options.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/numbers.h"

static void usage(FILE *out)
{
    fputs(
        "usage: tokenring draft -m MODEL.gguf -o MODEL.draft.gguf [OPTION]...\n"
        "Makes a draft for a model of the llama architecture: the model writes texts, then a few of its own\n"
        "layers learn to guess what it writes. Nothing but the model's file is needed.\n\n"
        "  -m, --model FILE        the model (the draft's target)\n"
        "  -o, --output FILE       the draft; FILE.corpus and FILE.state stand beside it meanwhile\n"
        "      --minutes N         time for all of it (120); a third of it at most for the texts\n"
        "      --tokens N          tokens of text (2000000)\n"
        "      --steps N           steps of training of 1280 tokens each (as many as the minutes give)\n"
        "      --layers A,B,...    the target's layers to begin with (the first and the last)\n"
        "      --from DRAFT        begin with this draft of as many layers, made before, instead\n"
        "      --head-tokens N     most frequent tokens that the draft can propose (8192)\n"
        "      --rate X            highest learning rate (0.004)\n"
        "      --slots N           texts that grow at once (32)\n"
        "      --seed N            of all choices (1)\n"
        "  -t, --threads N         compute threads (the CPUs of this process)\n"
        "      --tier T            scalar, avx2, avxvnni, avx512, amx (the best)\n"
        "      --resume            go on with what an interrupted run has left\n"
        "      --keep              keep texts and state at the end\n"
        "      --requantise TYPE   no training: the model itself in q4_0 or q5_0, for models in F16 or Q8_0\n"
        "      --measure FILE      no training: how much of the answers in FILE the draft -o guesses; a JSON object\n"
        "                          a line with prompt_tokens and target_tokens (greedy), class if you like\n"
        "SIGINT or SIGTERM end it at the next step, with the state written.\n",
        out);
}

/* "0,29": ascending. */
static bool layer_list(const char *text, struct draft_options *o)
{
    char *copy = strdupa(text), *rest = NULL;
    o->n_layers = 0;
    for (char *part = strtok_r(copy, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        uint32_t layer;
        if (o->n_layers == TRAINER_LAYERS || !whole32(part, 0, 1u << 20, &layer) ||
            (o->n_layers > 0 && layer <= o->layers[o->n_layers - 1]))
            return false;
        o->layers[o->n_layers++] = layer;
    }
    return o->n_layers > 0;
}

static uint32_t cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > 256 ? 256 : (uint32_t)n;
}

enum {
    MINUTES = 256,
    TOKENS,
    STEPS,
    LAYERS,
    FROM,
    HEAD,
    RATE,
    SLOTS,
    SEED,
    TIER,
    RESUME,
    KEEP,
    REQUANTISE,
    MEASURE
};

static const struct option long_options[] = {{"model", required_argument, NULL, 'm'},
                                             {"output", required_argument, NULL, 'o'},
                                             {"threads", required_argument, NULL, 't'},
                                             {"minutes", required_argument, NULL, MINUTES},
                                             {"tokens", required_argument, NULL, TOKENS},
                                             {"steps", required_argument, NULL, STEPS},
                                             {"layers", required_argument, NULL, LAYERS},
                                             {"from", required_argument, NULL, FROM},
                                             {"head-tokens", required_argument, NULL, HEAD},
                                             {"rate", required_argument, NULL, RATE},
                                             {"slots", required_argument, NULL, SLOTS},
                                             {"seed", required_argument, NULL, SEED},
                                             {"tier", required_argument, NULL, TIER},
                                             {"resume", no_argument, NULL, RESUME},
                                             {"keep", no_argument, NULL, KEEP},
                                             {"requantise", required_argument, NULL, REQUANTISE},
                                             {"measure", required_argument, NULL, MEASURE},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

/* False if the value is none for this option. */
static bool take(int option, const char *value, struct draft_options *o)
{
    switch (option) {
    case 'm':
        o->model = value;
        return true;
    case 'o':
        o->output = value;
        return true;
    case 't':
        return whole32(value, 1, 256, &o->threads);
    case MINUTES:
        return positive(value, 1e6, &o->minutes);
    case TOKENS:
        return whole(value, 1, 1000000000000u, &o->tokens);
    case STEPS:
        return whole(value, 1, 1000000000u, &o->steps);
    case LAYERS:
        return layer_list(value, o);
    case FROM:
        o->from = value;
        return true;
    case HEAD:
        return whole32(value, 1, 1u << 24, &o->head_tokens);
    case RATE:
        return positive(value, 1, &o->rate);
    case SLOTS:
        return whole32(value, 1, 128, &o->slots);
    case SEED:
        return whole(value, 0, UINT64_MAX, &o->seed);
    case TIER:
        o->tier = value;
        return true;
    case RESUME:
        return o->resume = true;
    case KEEP:
        return o->keep = true;
    case REQUANTISE:
        o->requantise = strcasecmp(value, "q4_0") == 0 ? 4 : strcasecmp(value, "q5_0") == 0 ? 5 : 0;
        return o->requantise > 0;
    case MEASURE:
        o->measure = value;
        return true;
    default:
        return false;
    }
}

int draft_options_parse(int argc, char **argv, struct draft_options *o)
{
    *o = (struct draft_options){.minutes = 120,
                                .tokens = 2000000,
                                .head_tokens = 8192,
                                .rate = 0.004,
                                .slots = 32,
                                .seed = 1,
                                .threads = cpus()};
    int option;
    while ((option = getopt_long(argc, argv, "m:o:t:h", long_options, NULL)) != -1) {
        if (option == 'h' || option == '?') {
            usage(option == 'h' ? stdout : stderr);
            return option == 'h' ? 1 : 3;
        }
        if (!take(option, optarg, o)) {
            fprintf(stderr, "tokenring draft: '%s' is no possible value here\n", optarg);
            return 3;
        }
    }
    if (o->model == NULL || o->output == NULL || optind < argc) {
        usage(stderr);
        return 3;
    }
    if (o->requantise > 0 && o->measure != NULL) {
        fputs("tokenring draft: --requantise and --measure are two different things\n", stderr);
        return 3;
    }
    return 0;
}
