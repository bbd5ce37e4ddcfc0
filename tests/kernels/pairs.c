#include "pairs.h"

#include <string.h>

#include "core/base/check.h"
#include "core/kernels/kernels_priv.h"

static const struct op *const families[] = {product_ops, attention_ops, vector_ops};

const struct op *op_at(size_t i)
{
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++)
        for (const struct op *op = families[f]; op->name; op++)
            if (i-- == 0)
                return op;
    return NULL;
}

static bool same_slot(const struct kernels *a, const struct kernels *b, const struct op *op)
{
    return memcmp((const char *)a + op->slot, (const char *)b + op->slot, sizeof(void (*)(void))) ==
           0;
}

size_t pairs_between(const struct kernels *low, const struct kernels *high, struct pair *out)
{
    struct kernels scalar;
    size_t n = 0;
    const struct op *op;

    kernels_fill_scalar(&scalar); /* for every CPU; tier "scalar" may be the build for FMA */
    scalar.tier = "scalar";
    for (size_t i = 0; (op = op_at(i)) != NULL; i++)
        if (low == NULL || !same_slot(low, high, op)) {
            check(n < MAX_PAIRS);
            out[n++] = (struct pair){op, scalar, *high};
        }
    return n;
}

size_t pairs_collect(const char *tier, const char *below, struct pair *out)
{
    struct kernels low, high;

    check(kernels_select(below, &low, NULL) == STATUS_OK);
    check(kernels_select(tier, &high, NULL) == STATUS_OK);
    return pairs_between(strcmp(tier, below) == 0 ? NULL : &low, &high, out);
}

size_t pairs_streamed(const struct kernels *k, uint32_t streams, const char *name, struct pair *out)
{
    struct kernels streamed = *k;
    streamed.tier = name;
    for (unsigned t = 0; t < WEIGHT_TYPES; t++)
        streamed.product[t] = k->streamed[streams == 4][t];
    return pairs_between(k, &streamed, out);
}

void evex_fill_products(struct kernels *k);

bool evex_fill(struct kernels *k)
{
    if (!kernels_tier_present("avx512"))
        return false;
    check(kernels_select("avx2", k, NULL) == STATUS_OK);
    evex_fill_products(k);
    k->tier = EVEX_TIER;
    return true;
}
