/* select.c: detection of tiers, filling of the table, and the small helpers of kernels.h. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "core/base/check.h"
#include "core/kernels/kernels_priv.h"
#include "core/kernels/kv_q4.h"
#include "core/kernels/select.h"

/* Bits of our own set of features. */
enum {
    HAS_AVX2 = 1,
    HAS_FMA = 2,
    HAS_F16C = 4,
    HAS_YMM = 8,     /* the system keeps ymm */
    HAS_AVX512 = 16, /* F, BW, DQ, VL */
    HAS_VNNI = 32,
    HAS_ZMM = 64,         /* the system keeps zmm and masks */
    HAS_AMX = 128,        /* TILE and INT8, eight tiles of 16 rows of 64 bytes */
    HAS_TILES = 256,      /* the system keeps tiles */
    HAS_PERMISSION = 512, /* and lets this process use them; asked for last */
    HAS_AVX_VNNI = 1024,
};

static const struct {
    unsigned bit;
    const char *name;
} features[] = {
    {HAS_AVX2, "AVX2"},
    {HAS_FMA, "FMA"},
    {HAS_F16C, "F16C"},
    {HAS_YMM, "ymm state enabled by the system"},
    {HAS_AVX_VNNI, "AVX-VNNI"},
    {HAS_AVX512, "AVX-512 F, BW, DQ and VL"},
    {HAS_VNNI, "AVX-512 VNNI"},
    {HAS_ZMM, "zmm state enabled by the system"},
    {HAS_AMX, "AMX TILE and INT8"},
    {HAS_TILES, "tile state enabled by the system"},
    {HAS_PERMISSION,
     "the system's permission to use tiles (refused if a signal stack is too small)"},
};

static unsigned detect(void);

static void fill_scalar(struct kernels *k)
{
    const unsigned needs = HAS_FMA | HAS_YMM;
    if ((detect() & needs) == needs)
        kernels_fill_scalar_fma(k);
    else
        kernels_fill_scalar(k);
}

static const struct {
    const char *name;
    unsigned needs;
    void (*fill)(struct kernels *k);
} tiers[] = {
    {"scalar", 0, fill_scalar},
    {"avx2", HAS_AVX2 | HAS_FMA | HAS_F16C | HAS_YMM, kernels_fill_avx2},
    {"avxvnni", HAS_AVX2 | HAS_FMA | HAS_F16C | HAS_YMM | HAS_AVX_VNNI, kernels_fill_avxvnni},
    {"avx512", HAS_AVX2 | HAS_FMA | HAS_F16C | HAS_YMM | HAS_AVX512 | HAS_VNNI | HAS_ZMM,
     kernels_fill_avx512},
    {"amx",
     HAS_AVX2 | HAS_FMA | HAS_F16C | HAS_YMM | HAS_AVX512 | HAS_VNNI | HAS_ZMM | HAS_AMX |
         HAS_TILES | HAS_PERMISSION,
     kernels_fill_amx},
};

#define TIER_COUNT (sizeof(tiers) / sizeof(tiers[0]))

static unsigned detect(void)
{
    unsigned a, b, c, d, found = 0, state = 0, state_high;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    if (c & bit_FMA)
        found |= HAS_FMA;
    if (c & bit_F16C)
        found |= HAS_F16C;
    if (c & bit_OSXSAVE)
        __asm__ volatile("xgetbv" : "=a"(state), "=d"(state_high) : "c"(0));
    if ((state & 0x6) == 0x6)
        found |= HAS_YMM;
    if ((state & 0xe6) == 0xe6)
        found |= HAS_ZMM;
    if ((state & 0x60000) == 0x60000)
        found |= HAS_TILES;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
        if (b & bit_AVX2)
            found |= HAS_AVX2;
        if ((b & avx512) == avx512)
            found |= HAS_AVX512;
        if (c & bit_AVX512VNNI)
            found |= HAS_VNNI;
        const unsigned most = a, amx = 1u << 24 | 1u << 25; /* TILE, INT8 */
        if ((d & amx) == amx && __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) &&
            b == (8u << 16 | 64) && (c & 0xffff) == 16)
            found |= HAS_AMX;
        if (most >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4))
            found |= HAS_AVX_VNNI;
    }
    return found;
}

/* Asks for the use of tiles: for the whole process, its threads to come and its children. From then
 * on signal frames are 8 KiB larger; the system refuses while a thread has a signal stack too small
 * for them. Asking again is harmless. */
static bool tiles_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
}

/* What the tier needs and isn't there. Permission is asked for only if nothing else is missing. */
static unsigned missing(size_t tier)
{
    const unsigned bits = tiers[tier].needs & ~detect();
    return bits == HAS_PERMISSION && tiles_permitted() ? 0 : bits;
}

const char *kernels_tier_name(size_t i)
{
    return i < TIER_COUNT ? tiers[i].name : NULL;
}

static size_t find_tier(const char *name)
{
    size_t t = 0;
    while (t < TIER_COUNT && strcmp(tiers[t].name, name) != 0)
        t++;
    return t;
}

bool kernels_tier_present(const char *tier)
{
    size_t t = find_tier(tier);
    return t < TIER_COUNT && missing(t) == 0;
}

enum status kernels_select(const char *tier, struct kernels *k, struct error *err)
{
    size_t chosen;

    if (tier == NULL || strcmp(tier, "auto") == 0) {
        chosen = TIER_COUNT - 1;
        while (missing(chosen))
            chosen--;
    } else {
        chosen = find_tier(tier);
        if (chosen == TIER_COUNT)
            return error_set(
                err, STATUS_UNSUPPORTED,
                "there is no kernel tier '%s' (auto, scalar, avx2, avxvnni, avx512, amx)", tier);
        const unsigned lacks = missing(chosen);
        for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
            if (lacks & features[i].bit)
                return error_set(err, STATUS_UNSUPPORTED,
                                 "this CPU cannot run the kernel tier '%s': it lacks %s", tier,
                                 features[i].name);
    }
    for (size_t t = 0; t <= chosen; t++)
        if (missing(t) == 0)
            tiers[t].fill(k);
    for (unsigned t = 0; t < WEIGHT_TYPES; t++)
        for (unsigned i = 0; i < 2; i++)
            if (k->streamed[i][t] == NULL)
                k->streamed[i][t] = k->product[t];
    k->tier = tiers[chosen].name;
    return STATUS_OK;
}

void kernels_enter_thread(void)
{
    _mm_setcsr(0x9fc0); /* FTZ, all exceptions masked, nearest, DAZ */
}

size_t acts_stride(enum acts_kind kind, uint32_t cols)
{
    if (kind == ACTS_F32)
        return ((size_t)cols + 15) / 16 * 64;
    if (kind == ACTS_Q8_256)
        return ((size_t)cols + 255) / 256 * 8 * sizeof(struct act_block256);
    size_t bytes = ((size_t)cols + 63) / 64 * 2 * sizeof(struct act_block);
    return (bytes + 63) / 64 * 64;
}

size_t kv_tile_bytes(enum kv_type type, uint32_t dim)
{
    if (type == KV_Q8_0)
        return kv_q8_scale_at(dim, kv_q8_blocks(dim), 0);
    if (type == KV_Q4)
        return kv_q4_scale_at(dim, kv_q8_blocks(dim), 0);
    size_t bytes = (size_t)dim * KV_TILE_POSITIONS * (type == KV_F32 ? 4 : 2);
    return (bytes + 63) / 64 * 64;
}

static const char *const kv_names[KV_TYPES] = {
    [KV_F32] = "f32", [KV_F16] = "f16", [KV_Q8_0] = "q8_0", [KV_Q4] = "q4"};

bool kv_type_parse(const char *text, enum kv_type *type)
{
    for (unsigned t = 0; t < KV_TYPES; t++)
        if (strcmp(text, kv_names[t]) == 0) {
            *type = (enum kv_type)t;
            return true;
        }
    return false;
}

const char *kv_type_name(enum kv_type type)
{
    check((unsigned)type < KV_TYPES);
    return kv_names[type];
}
