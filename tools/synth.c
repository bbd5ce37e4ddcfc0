/* synth.c: `tokenring synth` writes a GGUF file of the llama architecture with random weights, of any
 * shape and type, for benchmarks and for tests of sizes that no small trained model has. The vocabulary is made up:
 * SentencePiece style with all bytes, so every text can be tokenized. The same options and seed give the same file. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/xalloc.h"
#include "core/gguf/gguf.h"
#include "tools/gguf_write.h"
#include "tools/numbers.h"
#include "tools/tool.h"

struct shape {
    uint32_t layers, dim, ffn, heads, kv_heads, vocab, context;
    enum tensor_type type, embedding_type, head_type;
    bool tied;
    uint64_t seed;
};

struct tensor {
    char name[64];
    enum tensor_type type;
    uint64_t cols, rows;
};

struct writer {
    struct gguf_writer out;
    struct tensor *tensors;
    uint64_t n_tensors, rng;
};

static uint64_t next_random(struct writer *w)
{
    /* splitmix64 */
    uint64_t z = w->rng += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Roughly normal with deviation 1: the sum of four uniforms. */
static float normal(struct writer *w)
{
    uint64_t r = next_random(w);
    int sum =
        (int)(r & 0xFFFF) + (int)(r >> 16 & 0xFFFF) + (int)(r >> 32 & 0xFFFF) + (int)(r >> 48);
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

static void add_tensor(struct writer *w, enum tensor_type type, uint64_t cols, uint64_t rows,
                       const char *format, ...)
{
    struct tensor *t = &w->tensors[w->n_tensors++];
    va_list args;
    va_start(args, format);
    vsnprintf(t->name, sizeof(t->name), format, args);
    va_end(args);
    t->type = type;
    t->cols = cols;
    t->rows = rows;
}

/* Half of a float in the range of weight scales: truncation is good enough for random numbers. */
static uint16_t half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    int exponent = (int)(bits >> 23 & 255) - 127 + 15;
    if (exponent < -10)
        return (uint16_t)(bits >> 16 & 0x8000);
    if (exponent <= 0) /* a denormal, in units of 2^-24 */
        return (uint16_t)((bits >> 16 & 0x8000) |
                          ((bits & 0x7FFFFF) | 0x800000) >> (14 - exponent));
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3FF));
}

/* Fills one block: random quants, and scales such that the values have about the deviation `sigma`. */
static void fill_block(struct writer *w, enum tensor_type type, uint8_t *block, float sigma)
{
    uint32_t bytes = tensor_type_bytes(type);
    float jitter = 0.75f + (float)(next_random(w) >> 40) * (0.5f / 16777216.0f);
    if (type == TENSOR_F32) {
        float v = normal(w) * sigma;
        memcpy(block, &v, sizeof(v));
        return;
    }
    if (type == TENSOR_F16 || type == TENSOR_BF16) {
        float v = normal(w) * sigma;
        uint32_t bits;
        memcpy(&bits, &v, sizeof(bits));
        uint16_t h = type == TENSOR_F16 ? half(v) : (uint16_t)(bits >> 16);
        memcpy(block, &h, sizeof(h));
        return;
    }
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t r = next_random(w);
        memcpy(block + i, &r, bytes - i < 8 ? bytes - i : 8);
    }
    uint16_t d, m;
    switch (type) {
    case TENSOR_Q4_0: /* quants -8..7: deviation 4.6 */
        d = half(sigma / 4.6f * jitter);
        memcpy(block, &d, 2);
        break;
    case TENSOR_Q5_0:
        d = half(sigma / 9.2f * jitter);
        memcpy(block, &d, 2);
        break;
    case TENSOR_Q8_0:
        d = half(sigma / 74.0f * jitter);
        memcpy(block, &d, 2);
        break;
    case TENSOR_Q4_1:
    case TENSOR_Q5_1: {
        float step = sigma / (type == TENSOR_Q4_1 ? 4.6f : 9.2f) * jitter;
        d = half(step);
        m = half(-step * (type == TENSOR_Q4_1 ? 7.5f : 15.5f));
        memcpy(block, &d, 2);
        memcpy(block + 2, &m, 2);
        break;
    }
    case TENSOR_Q4_K: /* scales and minima 0..63, about 32 on average */
    case TENSOR_Q5_K: {
        float step = sigma / (type == TENSOR_Q4_K ? 4.6f : 9.2f) * jitter / 32.0f;
        d = half(step);
        m = half(step * (type == TENSOR_Q4_K ? 7.5f : 15.5f));
        memcpy(block, &d, 2);
        memcpy(block + 2, &m, 2);
        break;
    }
    case TENSOR_Q6_K: /* quants -32..31, signed scales of deviation 74 */
        d = half(sigma / 18.5f / 74.0f * jitter);
        memcpy(block + 208, &d, 2);
        break;
    case TENSOR_IQ4_NL: /* the table's values: deviation 67 */
        d = half(sigma / 67.4f * jitter);
        memcpy(block, &d, 2);
        break;
    case TENSOR_IQ4_XS: /* and scales -32..31 */
        d = half(sigma / 67.4f / 18.5f * jitter);
        memcpy(block, &d, 2);
        break;
    case TENSOR_MXFP4: /* the table's values: deviation 5.9; the scale is a power of two */
        block[0] = (uint8_t)(128 + (int)lrintf(log2f(sigma / 5.85f * jitter)));
        break;
    case TENSOR_Q2_K: /* quants 0..3, scales and minima 0..15 */
        d = half(sigma / 13.9f * jitter);
        m = half(sigma / 13.9f * jitter * 1.5f);
        memcpy(block + 80, &d, 2);
        memcpy(block + 82, &m, 2);
        break;
    case TENSOR_Q3_K: /* quants -4..3, scales -32..31 */
        d = half(sigma / 2.35f / 18.5f * jitter);
        memcpy(block + 108, &d, 2);
        break;
    default:
        break;
    }
}

static bool type_works(enum tensor_type type)
{
    static const enum tensor_type types[] = {
        TENSOR_F32,  TENSOR_F16,    TENSOR_BF16,   TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q4_1,
        TENSOR_Q5_0, TENSOR_Q5_1,   TENSOR_Q4_K,   TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_Q2_K,
        TENSOR_Q3_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (types[i] == type)
            return true;
    return false;
}

static bool parse_type(const char *text, enum tensor_type *type)
{
    for (uint32_t id = 0; id < TENSOR_TYPE_END; id++) {
        const char *name = tensor_type_name(id);
        if (name != NULL && strcasecmp(name, text) == 0) {
            *type = (enum tensor_type)id;
            return type_works(*type);
        }
    }
    return false;
}

static void write_keys(struct writer *w, const struct shape *s)
{
    gguf_write_text(&w->out, "general.architecture", "llama");
    gguf_write_text(&w->out, "general.name", "random");
    gguf_write_u32(&w->out, "llama.block_count", s->layers);
    gguf_write_u32(&w->out, "llama.context_length", s->context);
    gguf_write_u32(&w->out, "llama.embedding_length", s->dim);
    gguf_write_u32(&w->out, "llama.feed_forward_length", s->ffn);
    gguf_write_u32(&w->out, "llama.attention.head_count", s->heads);
    gguf_write_u32(&w->out, "llama.attention.head_count_kv", s->kv_heads);
    gguf_write_f32(&w->out, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_write_f32(&w->out, "llama.rope.freq_base", 10000.0f);
    gguf_write_text(&w->out, "tokenizer.ggml.model", "llama");
    gguf_write_u32(&w->out, "tokenizer.ggml.bos_token_id", 1);
    gguf_write_u32(&w->out, "tokenizer.ggml.eos_token_id", 2);
    gguf_write_u32(&w->out, "tokenizer.ggml.unknown_token_id", 0);

    gguf_write_array(&w->out, "tokenizer.ggml.tokens", GGUF_STRING, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++) {
        char token[32];
        if (i < 3)
            snprintf(token, sizeof(token), "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i < 259)
            snprintf(token, sizeof(token), "<0x%02X>", i - 3);
        else
            snprintf(token, sizeof(token), "\xE2\x96\x81t%u", i);
        gguf_write_element(&w->out, token);
    }
    gguf_write_array(&w->out, "tokenizer.ggml.scores", GGUF_F32, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++) {
        float score = i < 259 ? 0.0f : -(float)i;
        buffer_add(&w->out.keys, &score, sizeof(score));
    }
    gguf_write_array(&w->out, "tokenizer.ggml.token_type", GGUF_I32, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++) {
        uint32_t kind = i == 0    ? 2
                        : i < 3   ? 3
                        : i < 259 ? 6
                                  : 1; /* unknown, control, byte, normal */
        buffer_add(&w->out.keys, &kind, sizeof(kind));
    }
}

static void list_tensors(struct writer *w, const struct shape *s)
{
    uint64_t head = s->dim / s->heads, kv = head * s->kv_heads;
    w->tensors = xcalloc(3 + 9 * (size_t)s->layers, sizeof(*w->tensors));
    add_tensor(w, s->embedding_type, s->dim, s->vocab, "token_embd.weight");
    for (uint32_t l = 0; l < s->layers; l++) {
        add_tensor(w, TENSOR_F32, s->dim, 1, "blk.%u.attn_norm.weight", l);
        add_tensor(w, s->type, s->dim, s->dim, "blk.%u.attn_q.weight", l);
        add_tensor(w, s->type, s->dim, kv, "blk.%u.attn_k.weight", l);
        add_tensor(w, s->type, s->dim, kv, "blk.%u.attn_v.weight", l);
        add_tensor(w, s->type, s->dim, s->dim, "blk.%u.attn_output.weight", l);
        add_tensor(w, TENSOR_F32, s->dim, 1, "blk.%u.ffn_norm.weight", l);
        add_tensor(w, s->type, s->dim, s->ffn, "blk.%u.ffn_gate.weight", l);
        add_tensor(w, s->type, s->dim, s->ffn, "blk.%u.ffn_up.weight", l);
        add_tensor(w, s->type, s->ffn, s->dim, "blk.%u.ffn_down.weight", l);
    }
    add_tensor(w, TENSOR_F32, s->dim, 1, "output_norm.weight");
    if (!s->tied)
        add_tensor(w, s->head_type, s->dim, s->vocab, "output.weight");
}

static void write_data(struct writer *w)
{
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        uint64_t row = tensor_row_bytes(t->type, t->cols);
        uint32_t block_bytes = tensor_type_bytes(t->type);
        uint8_t *buffer = xmalloc(row);
        float sigma = 1.0f / sqrtf((float)t->cols);
        for (uint64_t r = 0; r < t->rows; r++) {
            for (uint64_t at = 0; at < row; at += block_bytes) {
                if (t->rows == 1) { /* a norm: ones */
                    float one = 1.0f;
                    memcpy(buffer + at, &one, sizeof(one));
                } else {
                    fill_block(w, t->type, buffer + at, sigma);
                }
            }
            gguf_writer_data(&w->out, buffer, row, r + 1 == t->rows);
        }
        free(buffer);
    }
}

static enum status write_file(struct writer *w, const struct shape *s, const char *path,
                              struct error *err)
{
    write_keys(w, s);
    list_tensors(w, s);
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        gguf_write_tensor(&w->out, t->name, t->type, t->rows == 1 ? 1 : 2,
                          (uint64_t[]){t->cols, t->rows});
    }
    enum status status = gguf_writer_begin(&w->out, path, err);
    if (status == STATUS_OK)
        write_data(w);
    return gguf_writer_finish(&w->out, status, err);
}

static void usage(FILE *out)
{
    fputs(
        "usage: tokenring synth -o FILE [OPTION]...\n"
        "Writes a llama model with random weights. Defaults: TinyLlama's shape (1.1B).\n\n"
        "  -o, --output FILE       the file to write\n"
        "      --layers N          22\n"
        "      --dim N             2048\n"
        "      --ffn N             5632\n"
        "      --heads N           32\n"
        "      --kv-heads N        4\n"
        "      --vocab N           32000\n"
        "      --context N         2048\n"
        "      --type T            of the matrices: q4_0 (also f32 f16 bf16 q8_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k\n"
        "                          iq4_nl iq4_xs mxfp4)\n"
        "      --embedding-type T  of token_embd (default: --type)\n"
        "      --head-type T       of output (default: --type)\n"
        "      --tied              no output matrix: the embedding serves\n"
        "      --seed N            1\n",
        out);
}

static const struct option options[] = {
    {"output", required_argument, NULL, 'o'},
    {"layers", required_argument, NULL, 'l'},
    {"dim", required_argument, NULL, 'd'},
    {"ffn", required_argument, NULL, 'f'},
    {"heads", required_argument, NULL, 'n'},
    {"kv-heads", required_argument, NULL, 'k'},
    {"vocab", required_argument, NULL, 'v'},
    {"context", required_argument, NULL, 'c'},
    {"type", required_argument, NULL, 't'},
    {"embedding-type", required_argument, NULL, 'e'},
    {"head-type", required_argument, NULL, 'H'},
    {"tied", no_argument, NULL, 'T'},
    {"seed", required_argument, NULL, 's'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Reads the options; returns 0 to go on, otherwise the exit status plus 1. */
static int parse(int argc, char **argv, struct shape *s, const char **path)
{
    bool embedding = false, head = false;
    int c;
    while ((c = getopt_long(argc, argv, "o:h", options, NULL)) != -1) {
        uint32_t *number = c == 'l'   ? &s->layers
                           : c == 'd' ? &s->dim
                           : c == 'f' ? &s->ffn
                           : c == 'n' ? &s->heads
                           : c == 'k' ? &s->kv_heads
                           : c == 'v' ? &s->vocab
                           : c == 'c' ? &s->context
                                      : NULL;
        enum tensor_type *type = c == 't'   ? &s->type
                                 : c == 'e' ? &s->embedding_type
                                 : c == 'H' ? &s->head_type
                                            : NULL;
        if (number != NULL) {
            if (!whole32(optarg, 1, 1000000, number)) {
                fprintf(stderr, "tokenring synth: '%s' must be a number from 1 to 1000000\n",
                        optarg);
                return 3;
            }
        } else if (type != NULL) {
            if (!parse_type(optarg, type)) {
                fprintf(stderr, "tokenring synth: no weights can be made of type '%s'\n", optarg);
                return 3;
            }
            embedding |= c == 'e';
            head |= c == 'H';
        } else if (c == 'o') {
            *path = optarg;
        } else if (c == 'T') {
            s->tied = true;
        } else if (c == 's') {
            if (!whole(optarg, 0, UINT64_MAX, &s->seed)) {
                fprintf(stderr, "tokenring synth: '%s' is no seed\n", optarg);
                return 3;
            }
        } else {
            usage(c == 'h' ? stdout : stderr);
            return c == 'h' ? 1 : 3;
        }
    }
    s->embedding_type = embedding ? s->embedding_type : s->type;
    s->head_type = head ? s->head_type : s->type;
    return 0;
}

int cmd_synth(int argc, char **argv)
{
    struct shape s = {22,   2048,        5632,        32,          4,     32000,
                      2048, TENSOR_Q4_0, TENSOR_Q4_0, TENSOR_Q4_0, false, 1};
    const char *path = NULL;
    int stop = parse(argc, argv, &s, &path);
    if (stop != 0)
        return stop - 1;
    if (path == NULL || optind != argc) {
        usage(stderr);
        return 2;
    }
    uint32_t block = tensor_type_block(s.type);
    if (s.dim % s.heads != 0 || s.heads % s.kv_heads != 0 || s.dim % block != 0 ||
        s.ffn % block != 0 || s.dim % tensor_type_block(s.embedding_type) != 0 ||
        s.dim % tensor_type_block(s.head_type) != 0 || s.vocab < 259) {
        fprintf(
            stderr,
            "tokenring synth: the shape does not work out: dim must be a multiple of heads, heads of kv-heads, "
            "dim and ffn of the types' blocks (%u), vocab at least 259\n",
            block);
        return 2;
    }
    struct writer w = {.rng = s.seed};
    struct error err = {0};
    enum status status = write_file(&w, &s, path, &err);
    free(w.tensors);
    if (status != STATUS_OK)
        fprintf(stderr, "tokenring synth: %s\n", err.text);
    return status != STATUS_OK;
}
