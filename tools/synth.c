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

#include "core/base/buffer.h"
#include "core/gguf/gguf.h"
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
    FILE *file;
    struct buffer header;
    struct tensor *tensors;
    uint64_t n_tensors, n_keys, rng;
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
    int sum = (int)(r & 0xFFFF) + (int)(r >> 16 & 0xFFFF) + (int)(r >> 32 & 0xFFFF) + (int)(r >> 48);
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

static void put(struct buffer *b, const void *bytes, size_t n)
{
    buffer_add(b, bytes, n);
}

static void put_u32(struct buffer *b, uint32_t v)
{
    put(b, &v, sizeof(v));
}

static void put_u64(struct buffer *b, uint64_t v)
{
    put(b, &v, sizeof(v));
}

static void put_text(struct buffer *b, const char *text)
{
    put_u64(b, strlen(text));
    buffer_add_text(b, text);
}

static void key(struct writer *w, const char *name, enum gguf_type type)
{
    put_text(&w->header, name);
    put_u32(&w->header, (uint32_t)type);
    w->n_keys++;
}

static void key_u32(struct writer *w, const char *name, uint32_t v)
{
    key(w, name, GGUF_U32);
    put_u32(&w->header, v);
}

static void key_f32(struct writer *w, const char *name, float v)
{
    key(w, name, GGUF_F32);
    put(&w->header, &v, sizeof(v));
}

static void key_text(struct writer *w, const char *name, const char *text)
{
    key(w, name, GGUF_STRING);
    put_text(&w->header, text);
}

static void add_tensor(struct writer *w, enum tensor_type type, uint64_t cols, uint64_t rows, const char *format, ...)
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
        return (uint16_t)((bits >> 16 & 0x8000) | ((bits & 0x7FFFFF) | 0x800000) >> (14 - exponent));
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
    static const enum tensor_type types[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q4_1,
                                             TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_Q2_K,
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
    key_text(w, "general.architecture", "llama");
    key_text(w, "general.name", "random");
    key_u32(w, "llama.block_count", s->layers);
    key_u32(w, "llama.context_length", s->context);
    key_u32(w, "llama.embedding_length", s->dim);
    key_u32(w, "llama.feed_forward_length", s->ffn);
    key_u32(w, "llama.attention.head_count", s->heads);
    key_u32(w, "llama.attention.head_count_kv", s->kv_heads);
    key_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(w, "llama.rope.freq_base", 10000.0f);
    key_text(w, "tokenizer.ggml.model", "llama");
    key_u32(w, "tokenizer.ggml.bos_token_id", 1);
    key_u32(w, "tokenizer.ggml.eos_token_id", 2);
    key_u32(w, "tokenizer.ggml.unknown_token_id", 0);

    key(w, "tokenizer.ggml.tokens", GGUF_ARRAY);
    put_u32(&w->header, GGUF_STRING);
    put_u64(&w->header, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++) {
        char token[32];
        if (i < 3)
            snprintf(token, sizeof(token), "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i < 259)
            snprintf(token, sizeof(token), "<0x%02X>", i - 3);
        else
            snprintf(token, sizeof(token), "\xE2\x96\x81t%u", i);
        put_text(&w->header, token);
    }
    key(w, "tokenizer.ggml.scores", GGUF_ARRAY);
    put_u32(&w->header, GGUF_F32);
    put_u64(&w->header, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++) {
        float score = i < 259 ? 0.0f : -(float)i;
        put(&w->header, &score, sizeof(score));
    }
    key(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
    put_u32(&w->header, GGUF_I32);
    put_u64(&w->header, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++)
        put_u32(&w->header, i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1); /* unknown, control, byte, normal */
}

static void list_tensors(struct writer *w, const struct shape *s)
{
    uint64_t head = s->dim / s->heads, kv = head * s->kv_heads;
    w->tensors = calloc(3 + 9 * (size_t)s->layers, sizeof(*w->tensors));
    if (w->tensors == NULL)
        return;
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

static uint64_t tensor_bytes(const struct tensor *t)
{
    return tensor_row_bytes(t->type, t->cols) * t->rows;
}

static bool write_data(struct writer *w)
{
    static const char zeros[32];
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        uint64_t bytes = tensor_bytes(t), row = tensor_row_bytes(t->type, t->cols);
        uint32_t block_bytes = tensor_type_bytes(t->type);
        uint8_t *buffer = malloc(row);
        if (buffer == NULL)
            return false;
        float sigma = 1.0f / sqrtf((float)t->cols);
        bool ok = true;
        for (uint64_t r = 0; r < t->rows && ok; r++) {
            for (uint64_t at = 0; at < row; at += block_bytes) {
                if (t->rows == 1) { /* a norm: ones */
                    float one = 1.0f;
                    memcpy(buffer + at, &one, sizeof(one));
                } else {
                    fill_block(w, t->type, buffer + at, sigma);
                }
            }
            ok = fwrite(buffer, 1, row, w->file) == row;
        }
        free(buffer);
        size_t pad = (size_t)(-bytes & 31);
        if (!ok || fwrite(zeros, 1, pad, w->file) != pad)
            return false;
    }
    return true;
}

static bool write_file(struct writer *w, const struct shape *s)
{
    write_keys(w, s);
    list_tensors(w, s);
    if (w->tensors == NULL)
        return false;
    uint64_t offset = 0;
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        put_text(&w->header, t->name);
        put_u32(&w->header, t->rows == 1 ? 1 : 2);
        put_u64(&w->header, t->cols);
        if (t->rows != 1)
            put_u64(&w->header, t->rows);
        put_u32(&w->header, (uint32_t)t->type);
        put_u64(&w->header, offset);
        offset += (tensor_bytes(t) + 31) & ~(uint64_t)31;
    }
    struct buffer start = {0};
    buffer_add_text(&start, "GGUF");
    put_u32(&start, 3);
    put_u64(&start, w->n_tensors);
    put_u64(&start, w->n_keys);
    while ((start.len + w->header.len) % 32 != 0)
        buffer_add_byte(&w->header, 0);
    bool ok = fwrite(start.ptr, 1, start.len, w->file) == start.len &&
              fwrite(w->header.ptr, 1, w->header.len, w->file) == w->header.len && write_data(w);
    buffer_release(&start);
    return ok;
}

static void usage(FILE *out)
{
    fputs("usage: tokenring synth -o FILE [OPTION]...\n"
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
    {"output", required_argument, NULL, 'o'},  {"layers", required_argument, NULL, 'l'},
    {"dim", required_argument, NULL, 'd'},     {"ffn", required_argument, NULL, 'f'},
    {"heads", required_argument, NULL, 'n'},   {"kv-heads", required_argument, NULL, 'k'},
    {"vocab", required_argument, NULL, 'v'},   {"context", required_argument, NULL, 'c'},
    {"type", required_argument, NULL, 't'},    {"embedding-type", required_argument, NULL, 'e'},
    {"head-type", required_argument, NULL, 'H'}, {"tied", no_argument, NULL, 'T'},
    {"seed", required_argument, NULL, 's'},    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Reads the options; returns 0 to go on, otherwise the exit status plus 1. */
static int parse(int argc, char **argv, struct shape *s, const char **path)
{
    bool embedding = false, head = false;
    int c;
    while ((c = getopt_long(argc, argv, "o:h", options, NULL)) != -1) {
        uint32_t *number = c == 'l' ? &s->layers : c == 'd' ? &s->dim : c == 'f' ? &s->ffn : c == 'n' ? &s->heads
                           : c == 'k' ? &s->kv_heads : c == 'v' ? &s->vocab : c == 'c' ? &s->context : NULL;
        enum tensor_type *type = c == 't' ? &s->type : c == 'e' ? &s->embedding_type : c == 'H' ? &s->head_type : NULL;
        if (number != NULL) {
            char *end;
            unsigned long v = strtoul(optarg, &end, 10);
            if (*end != '\0' || v == 0 || v > 1000000) {
                fprintf(stderr, "tokenring synth: '%s' must be a number from 1 to 1000000\n", optarg);
                return 3;
            }
            *number = (uint32_t)v;
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
            s->seed = strtoull(optarg, NULL, 10);
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
    struct shape s = {22, 2048, 5632, 32, 4, 32000, 2048, TENSOR_Q4_0, TENSOR_Q4_0, TENSOR_Q4_0, false, 1};
    const char *path = NULL;
    int stop = parse(argc, argv, &s, &path);
    if (stop != 0)
        return stop - 1;
    if (path == NULL || optind != argc) {
        usage(stderr);
        return 2;
    }
    uint32_t block = tensor_type_block(s.type);
    if (s.dim % s.heads != 0 || s.heads % s.kv_heads != 0 || s.dim % block != 0 || s.ffn % block != 0 ||
        s.dim % tensor_type_block(s.embedding_type) != 0 || s.dim % tensor_type_block(s.head_type) != 0 || s.vocab < 259) {
        fprintf(stderr, "tokenring synth: the shape does not work out: dim must be a multiple of heads, heads of kv-heads, "
                        "dim and ffn of the types' blocks (%u), vocab at least 259\n", block);
        return 2;
    }
    struct writer w = {.file = fopen(path, "wb"), .rng = s.seed};
    if (w.file == NULL) {
        fprintf(stderr, "tokenring synth: %s cannot be written\n", path);
        return 1;
    }
    bool ok = write_file(&w, &s);
    ok = fclose(w.file) == 0 && ok;
    buffer_release(&w.header);
    free(w.tensors);
    if (!ok) {
        fprintf(stderr, "tokenring synth: writing %s failed\n", path);
        remove(path);
        return 1;
    }
    return 0;
}
