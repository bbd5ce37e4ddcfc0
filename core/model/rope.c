#include "core/model/rope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/kernels/weights.h"
#include "core/model/math64.h"

#define TAU 6.283185307179586

struct scaling {
    enum { ROPE_NONE, ROPE_LINEAR, ROPE_YARN } kind;
    double factor;
    double original_context, beta_fast, beta_slow, attn_factor;
};

static const char *key(char *text, size_t size, const char *arch, const char *name)
{
    snprintf(text, size, "%s.rope.%s", arch, name);
    return text;
}

static bool usable(double x)
{
    return isfinite(x) && x > 0;
}

static enum status read_scaling(struct scaling *s, const struct gguf *g, const char *arch,
                                uint32_t context, struct error *err)
{
    char k[128];
    struct error found = {0};
    double factor = (double)gguf_f32(g, key(k, sizeof k, arch, "scaling.factor"), 0, &found);
    if (!gguf_has(g, k)) /* the key of files from before 2023-10 */
        factor = (double)gguf_f32(g, key(k, sizeof k, arch, "scale_linear"), 0, &found);
    struct slice kind = gguf_str(g, key(k, sizeof k, arch, "scaling.type"),
                                 slice_of(factor > 0 ? "linear" : "none"), &found);
    if (found.status != STATUS_OK) {
        *err = found;
        return found.status;
    }
    if (slice_is(kind, "none"))
        s->kind = ROPE_NONE;
    else if (slice_is(kind, "linear"))
        s->kind = ROPE_LINEAR;
    else if (slice_is(kind, "yarn"))
        s->kind = ROPE_YARN;
    else
        return error_set(err, STATUS_UNSUPPORTED, "%s '%.*s' is not supported", k,
                         (int)(kind.len < 40 ? kind.len : 40), kind.ptr);
    s->factor = factor == 0 ? 1 : factor;
    s->original_context =
        gguf_u32(g, key(k, sizeof k, arch, "scaling.original_context_length"), context, &found);
    s->beta_fast =
        (double)gguf_f32(g, key(k, sizeof k, arch, "scaling.yarn_beta_fast"), 32, &found);
    s->beta_slow = (double)gguf_f32(g, key(k, sizeof k, arch, "scaling.yarn_beta_slow"), 1, &found);
    s->attn_factor = (double)gguf_f32(g, key(k, sizeof k, arch, "scaling.attn_factor"), 1, &found);
    if (found.status != STATUS_OK) {
        *err = found;
        return found.status;
    }
    if (!usable(s->factor) || !usable(s->original_context) || !usable(s->beta_fast) ||
        !usable(s->beta_slow) || !usable(s->attn_factor))
        return error_set(err, STATUS_CORRUPT,
                         "%s.rope.scaling.*: factor %g, original context %g, betas %g and %g, "
                         "attn_factor %g are not all positive numbers",
                         arch, s->factor, s->original_context, s->beta_fast, s->beta_slow,
                         s->attn_factor);
    return STATUS_OK;
}

/* The pair (as a real number) that turns `turns` times in the original context. */
static double yarn_pair(double turns, uint32_t dims, double base, double original_context)
{
    return dims * math64_ln(original_context / (turns * TAU)) / (2 * math64_ln(base));
}

static void apply_yarn(struct rope *rope, const struct scaling *s, uint32_t dims, double base)
{
    double low = floor(yarn_pair(s->beta_fast, dims, base, s->original_context));
    double high = ceil(yarn_pair(s->beta_slow, dims, base, s->original_context));
    low = low > 0 ? low : 0;
    high = high < dims - 1 ? high : dims - 1;
    double width = high - low > 0.001 ? high - low : 0.001;
    for (uint32_t i = 0; i < rope->pairs; i++) {
        double ramp = (i - low) / width;
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        double kept = 1 - ramp; /* how much of the original frequency stays */
        rope->frequencies[i] =
            rope->frequencies[i] / s->factor * ramp + rope->frequencies[i] * kept;
    }
    rope->scale = s->attn_factor * (0.1 * math64_ln(s->factor) + 1);
}

static enum status apply_factors(struct rope *rope, const struct gguf *g, struct error *err)
{
    const struct gguf_tensor *t = gguf_tensor(g, "rope_freqs.weight");
    if (t == NULL)
        return STATUS_OK;
    enum weight_type type;
    if (t->n_dims != 1 || t->dims[0] != rope->pairs)
        return error_set(err, STATUS_CORRUPT,
                         "tensor rope_freqs.weight has %llu numbers, expected %u",
                         (unsigned long long)t->dims[0], rope->pairs);
    if (!weight_type_from_gguf(t->type, &type) || type != WEIGHT_F32)
        return error_set(err, STATUS_UNSUPPORTED,
                         "tensor rope_freqs.weight of type %s is not supported",
                         tensor_type_name(t->type));
    float *factors = xreallocarray(NULL, rope->pairs, sizeof *factors);
    enum status status = gguf_read(g, t->offset, factors, rope->pairs * sizeof *factors, err);
    for (uint32_t i = 0; i < rope->pairs && status == STATUS_OK; i++) {
        if (!usable((double)factors[i]))
            status = error_set(err, STATUS_CORRUPT, "tensor rope_freqs.weight: number %u is %g", i,
                               (double)factors[i]);
        rope->frequencies[i] /= (double)factors[i];
    }
    free(factors);
    return status;
}

enum status rope_init(struct rope *rope, const struct gguf *g, const char *arch, uint32_t dims,
                      uint32_t context, struct error *err)
{
    char k[128];
    struct error found = {0};
    struct scaling scaling = {0};
    *rope = (struct rope){.pairs = dims / 2, .scale = 1};
    if (dims == 0 || dims % 2 != 0)
        return error_set(err, STATUS_CORRUPT, "%s.rope.dimension_count %u is not an even number",
                         arch, dims);
    double base = (double)gguf_f32(g, key(k, sizeof k, arch, "freq_base"), 10000, &found);
    if (found.status != STATUS_OK) {
        *err = found;
        return found.status;
    }
    if (!isfinite(base) || base <= 1)
        return error_set(err, STATUS_CORRUPT, "%s %g is not above 1", k, base);
    enum status status = read_scaling(&scaling, g, arch, context, err);
    if (status != STATUS_OK)
        return status;

    rope->frequencies = xreallocarray(NULL, rope->pairs, sizeof *rope->frequencies);
    for (uint32_t i = 0; i < rope->pairs; i++)
        rope->frequencies[i] = math64_exp(-2.0 * i / dims * math64_ln(base));
    status = apply_factors(rope, g, err);
    if (status != STATUS_OK) {
        rope_release(rope);
        return status;
    }
    if (scaling.kind == ROPE_LINEAR)
        for (uint32_t i = 0; i < rope->pairs; i++)
            rope->frequencies[i] /= scaling.factor;
    if (scaling.kind == ROPE_YARN)
        apply_yarn(rope, &scaling, dims, base);
    return STATUS_OK;
}

void rope_release(struct rope *rope)
{
    free(rope->frequencies);
    *rope = (struct rope){0};
}

void rope_table(const struct rope *rope, uint32_t position, float *cos, float *sin)
{
    for (uint32_t i = 0; i < rope->pairs; i++) {
        double s, c;
        math64_sincos(position * rope->frequencies[i], &s, &c);
        cos[i] = (float)(c * rope->scale);
        sin[i] = (float)(s * rope->scale);
    }
}
