/* test_weights.c: block formats by hand-made blocks, repacking's refusals, f16, and the choice of a tier. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "core/kernels/half.h"
#include "core/kernels/kernels.h"
#include "core/kernels/select.h"
#include "expect.h"
#include "tests/check_main.h"

static void put_half(uint8_t *p, float v)
{
    const uint16_t half = f32_to_f16(v);
    memcpy(p, &half, sizeof(half));
}

static float values[256];

static void expect_value(enum weight_type type, const uint8_t *block, uint32_t i, float want)
{
    dequantise_row(type, block, weight_info(type)->block_cols, values);
    ck_assert_msg(values[i] == want, "%s[%u] = %g, want %g", weight_info(type)->name, i,
                  (double)values[i], (double)want);
}

START_TEST(floats)
{
    const float f = -1.25f;
    const uint16_t half = 0x0001, brain = 0xbfa0;
    float v;
    dequantise_row(WEIGHT_F32, &f, 1, &v);
    ck_assert(v == -1.25f);
    dequantise_row(WEIGHT_F16, &half, 1, &v);
    ck_assert(v == 0x1p-24f);
    dequantise_row(WEIGHT_BF16, &brain, 1, &v);
    ck_assert(v == -1.25f);
}
END_TEST

START_TEST(blocks_of_32)
{
    uint8_t b[34] = {0};
    put_half(b, 0.5f);
    b[2] = 0x80; /* Q8_0: −128; Q4_0: low 0, high 8 */
    b[17] = 0x3f;
    expect_value(WEIGHT_Q8_0, b, 0, -64.0f);
    expect_value(WEIGHT_Q8_0, b, 15, 31.5f);
    expect_value(WEIGHT_Q4_0, b, 0, -4.0f);
    expect_value(WEIGHT_Q4_0, b, 16, 0.0f);
    expect_value(WEIGHT_Q4_0, b, 15, 3.5f);
    expect_value(WEIGHT_Q4_0, b, 31, -2.5f);
    memset(b, 0, sizeof(b));
    put_half(b, 0.5f);
    put_half(b + 2, -1.0f);
    b[4] = 0x92;
    expect_value(WEIGHT_Q4_1, b, 0, 0.0f);
    expect_value(WEIGHT_Q4_1, b, 16, 3.5f);
    expect_value(WEIGHT_Q4_1, b, 1, -1.0f);
    memset(b, 0, sizeof(b));
    put_half(b, 2.0f);
    b[2] = 0x02; /* fifth bit of column 1 */
    b[5] = 0x80; /* of column 31 */
    b[7] = 0x05;
    b[21] = 0xf0;
    expect_value(WEIGHT_Q5_0, b, 0, -32.0f);
    expect_value(WEIGHT_Q5_0, b, 1, 10.0f);
    expect_value(WEIGHT_Q5_0, b, 31, 30.0f);
    memset(b, 0, sizeof(b));
    put_half(b, 2.0f);
    put_half(b + 2, 0.25f);
    b[4] = 0x02;
    b[9] = 0x05;
    expect_value(WEIGHT_Q5_1, b, 1, 42.25f);
    expect_value(WEIGHT_Q5_1, b, 0, 0.25f);
}
END_TEST

START_TEST(k_quants)
{
    uint8_t b[210] = {0};
    put_half(b, 1.0f);
    put_half(b + 2, 0.5f);
    /* Sub-block 1: scale 5, minimum 3; sub-block 6: scale 0x2b, minimum 0x1d in split form. */
    b[4 + 1] = 5;
    b[4 + 5] = 3;
    b[4 + 10] = 0x0b | 0x0d << 4;
    b[4 + 2] = 2 << 6;
    b[4 + 6] = 1 << 6;
    b[16 + 7] = 0x90;       /* sub-block 1, column 7: 9 */
    b[16 + 96 + 31] = 0x0c; /* sub-block 6, column 31: 12 */
    expect_value(WEIGHT_Q4_K, b, 32 + 7, 43.5f);
    expect_value(WEIGHT_Q4_K, b, 32, -1.5f);
    expect_value(WEIGHT_Q4_K, b, 192 + 31, 43 * 12 - 14.5f);
    memmove(b + 48, b + 16, 128);
    memset(b + 16, 0, 32);
    b[16 + 7] = 1 << 1;
    b[16 + 31] = 1 << 6;
    expect_value(WEIGHT_Q5_K, b, 32 + 7, 5 * 25 - 1.5f);
    expect_value(WEIGHT_Q5_K, b, 192 + 31, 43 * 28 - 14.5f);
    memset(b, 0, sizeof(b));
    put_half(b + 208, 0.25f);
    b[192 + 8 + 4 + 1] = (uint8_t)-3; /* second half, columns 64 … 79 + 16 */
    b[64 + 20] = 0xd0;                /* low bits of quarter 2, column 20: 13 */
    b[128 + 32 + 20] = 2 << 4;        /* high bits of quarter 2 */
    expect_value(WEIGHT_Q6_K, b, 128 + 64 + 20, 0.25f * -3 * (45 - 32));
    expect_value(WEIGHT_Q6_K, b, 128 + 64 + 21, 0.25f * -3 * -32);
    expect_value(WEIGHT_Q6_K, b, 0, 0.0f);
}
END_TEST

START_TEST(tables)
{
    uint8_t b[136] = {0};
    put_half(b, 0.5f);
    b[2] = 0xf0; /* column 0: entry 0, column 16: entry 15 */
    b[17] = 0x87;
    expect_value(WEIGHT_IQ4_NL, b, 0, -63.5f);
    expect_value(WEIGHT_IQ4_NL, b, 16, 56.5f);
    expect_value(WEIGHT_IQ4_NL, b, 15, -5.0f);
    expect_value(WEIGHT_IQ4_NL, b, 31, 0.5f);
    memset(b, 0, sizeof(b));
    put_half(b, 0.5f);
    b[3] = 3 << 2;    /* sub-block 5: high bits of the scale */
    b[4 + 2] = 0x70;  /* low bits: 7, so 55 − 32 */
    b[8 + 80] = 0x0f; /* columns 0 and 16 of it */
    expect_value(WEIGHT_IQ4_XS, b, 160, 0.5f * 23 * 113);
    expect_value(WEIGHT_IQ4_XS, b, 176, 0.5f * 23 * -127);
    expect_value(WEIGHT_IQ4_XS, b, 0, 0.5f * -32 * -127);
    memset(b, 0, sizeof(b));
    b[0] = 127; /* one half */
    b[1] = 0xf7;
    b[16] = 0x91;
    expect_value(WEIGHT_MXFP4, b, 0, 6.0f);
    expect_value(WEIGHT_MXFP4, b, 16, -6.0f);
    expect_value(WEIGHT_MXFP4, b, 15, 0.5f);
    expect_value(WEIGHT_MXFP4, b, 31, -0.5f);
    b[0] = 1; /* 2^-127 */
    expect_value(WEIGHT_MXFP4, b, 0, 0x1.8p-124f);
    b[0] = 0;
    expect_value(WEIGHT_MXFP4, b, 15, 0x1p-128f);
}
END_TEST

START_TEST(short_k_quants)
{
    uint8_t b[110] = {0};
    put_half(b + 80, 0.5f);
    put_half(b + 82, 0.25f);
    b[13] = 0x3a;             /* second half, columns 80 … 95: scale 10, minimum 3 */
    b[16 + 32 + 19] = 2 << 4; /* shift 4: columns 64 …; column 19 of them */
    expect_value(WEIGHT_Q2_K, b, 128 + 64 + 19, 0.5f * 10 * 2 - 0.75f);
    expect_value(WEIGHT_Q2_K, b, 128 + 64 + 18, -0.75f);
    expect_value(WEIGHT_Q2_K, b, 0, 0.0f);
    memset(b, 0, sizeof(b));
    put_half(b + 108, 0.5f);
    b[96 + 5] = 0x90;         /* scale 13: low bits 9 */
    b[96 + 8 + 1] = 3 << 6;   /* and high bits 3: 57 − 32 */
    b[32 + 32 + 19] = 2 << 4; /* column 128 + 64 + 19 */
    expect_value(WEIGHT_Q3_K, b, 128 + 64 + 19, 0.5f * 25 * (2 - 4));
    b[19] = 1 << 6;
    expect_value(WEIGHT_Q3_K, b, 128 + 64 + 19, 0.5f * 25 * 2);
    expect_value(WEIGHT_Q3_K, b, 0, 0.5f * -32 * -4);
}
END_TEST

START_TEST(half_round_trip)
{
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = f16_to_f32((uint16_t)h);
        if (isnan(f))
            expect_msg((h & 0x7fff) > 0x7c00, "%04x is no NaN", h);
        else
            expect_msg(f32_to_f16(f) == h, "%04x", h);
    }
    /* Halfway between neighbours goes to the even one, anything more up; as a double can tell. */
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float low = f16_to_f32((uint16_t)h), high = f16_to_f32((uint16_t)(h + 1));
        const float middle = low + (high - low) / 2;
        expect_msg(f32_to_f16(middle) == h + (h & 1), "above %04x", h);
        expect_msg(f32_to_f16(nextafterf(middle, high)) == h + 1, "above %04x", h);
        expect_msg(f32_to_f16(nextafterf(middle, low)) == h, "above %04x", h);
    }
    ck_assert_uint_eq(f32_to_f16(65519.0f), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(-INFINITY), 0xfc00);
}
END_TEST

/* A scale, minimum or float weight that isn't finite is refused with its row; every type. */
START_TEST(not_finite)
{
    const enum weight_type type = (enum weight_type)_i;
    const struct weight_info *info = weight_info(type);
    const uint32_t rows = 19, cols = info->block_cols == 1 ? 20 : info->block_cols * 2;
    const size_t row_bytes = weight_row_bytes(type, cols);
    uint8_t *source = xcalloc(rows, row_bytes), *data = xaligned(matrix_bytes(type, rows, cols));
    struct matrix m;
    struct error err = {0};
    const size_t offset = type == WEIGHT_Q6_K   ? 208
                          : type == WEIGHT_Q3_K ? 108
                          : type == WEIGHT_Q2_K ? 80
                                                : 0;
    const bool has_min = type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1 || type == WEIGHT_Q4_K ||
                         type == WEIGHT_Q5_K || type == WEIGHT_Q2_K;

    ck_assert(matrix_init(&m, type, rows, cols, data, &err) == STATUS_OK);
    ck_assert(matrix_repack(&m, source, 0, m.panels, &err) == STATUS_OK);
    for (uint32_t row = 0; row < rows; row++) /* 16 of a whole panel, 3 of another */
        for (size_t number = 0; number <= has_min; number++) {
            size_t at = row * row_bytes + row_bytes - info->block_bytes + offset + 2 * number;
            char text[20];
            if (type == WEIGHT_F32)
                at += 2; /* the upper half of the number */
            source[at + 1] = 0x7f;
            source[at] = type == WEIGHT_MXFP4 ? 0xff : 0x80; /* NaN in each of the formats */
            err = (struct error){0};
            ck_assert(matrix_repack(&m, source, 0, m.panels, &err) == STATUS_CORRUPT);
            snprintf(text, sizeof text, "row %u has", row);
            ck_assert_msg(strstr(err.text, text) != NULL, "%s", err.text);
            ck_assert(matrix_repack(&m, source, 0, 1, &err) == STATUS_OK || row < 16);
            source[at] = source[at + 1] = 0;
        }
    ck_assert(matrix_repack(&m, source, 0, m.panels, &err) == STATUS_OK);
    free(source);
    free(data);
}
END_TEST

/* Whole panels, 16 rows at once, are the bytes that the rows one by one give; every type. A
 * panel of 15 rows is packed by rows; the sixteenth is zero in both. */
START_TEST(whole_panels)
{
    const enum weight_type type = (enum weight_type)_i;
    const struct weight_info *info = weight_info(type);
    const uint32_t cols = info->block_cols == 1 ? 20 : info->block_cols * 3;
    const size_t row_bytes = weight_row_bytes(type, cols), bytes = matrix_bytes(type, 16, cols);
    uint8_t *source = xcalloc(16, row_bytes), *all = xmalloc(bytes), *parts = xmalloc(bytes);
    struct matrix m;
    uint32_t random = 3;
    for (size_t i = 0; i < 15 * row_bytes; i++) {
        random = random * 1664525 + 1013904223;
        source[i] = (uint8_t)(random >> 24 & 0xbf);
    }
    memset(all, 0xa5, bytes);
    memset(parts, 0x5a, bytes);
    ck_assert(matrix_init(&m, type, 16, cols, all, NULL) == STATUS_OK);
    ck_assert(matrix_repack(&m, source, 0, 1, NULL) == STATUS_OK);
    ck_assert(matrix_init(&m, type, 15, cols, parts, NULL) == STATUS_OK);
    ck_assert(matrix_repack(&m, source, 0, 1, NULL) == STATUS_OK);
    /* a row of zeros has scales of −32 in these types, one that is not there of 0 */
    const bool signs = type == WEIGHT_IQ4_XS || type == WEIGHT_Q3_K;
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg(all[i] == parts[i] || (signs && all[i] == (uint8_t)-32 && parts[i] == 0),
                      "%s: byte %zu is %u, by rows %u", info->name, i, all[i], parts[i]);
    free(source);
    free(all);
    free(parts);
}
END_TEST

/* Rows of a repacked matrix are the file's rows, bit for bit, of every type; repacked in two parts. */
START_TEST(rows)
{
    const enum weight_type type = (enum weight_type)_i;
    const struct weight_info *info = weight_info(type);
    const uint32_t rows = 35, cols = info->block_cols == 1 ? 20 : info->block_cols * 3;
    const size_t row_bytes = weight_row_bytes(type, cols);
    uint8_t *source = xmalloc(rows * row_bytes), *data = xaligned(matrix_bytes(type, rows, cols));
    float *want = xmalloc(cols * sizeof(*want)), *have = xmalloc(cols * sizeof(*have));
    struct matrix m;
    uint32_t random = 7;
    for (size_t i = 0; i < rows * row_bytes; i++) {
        random = random * 1664525 + 1013904223;
        source[i] = (uint8_t)(random >> 24 & 0xbf); /* no f16, f32 or exponent of ones */
    }
    if (type == WEIGHT_MXFP4) /* scales that are no denormals */
        for (size_t i = 0; i < rows * row_bytes; i += info->block_bytes)
            source[i] |= 2;
    ck_assert(matrix_init(&m, type, rows, cols, data, NULL) == STATUS_OK);
    ck_assert(matrix_repack(&m, source, 0, 2, NULL) == STATUS_OK);
    ck_assert(matrix_repack(&m, source + 32 * row_bytes, 2, 3, NULL) == STATUS_OK);
    for (uint32_t r = 0; r < rows; r++) {
        dequantise_row(type, source + r * row_bytes, cols, want);
        matrix_row(&m, r, have);
        for (uint32_t i = 0; i < cols; i++)
            ck_assert_msg(memcmp(&want[i], &have[i], sizeof(float)) == 0,
                          "%s row %u column %u: %g, want %g", info->name, r, i, (double)have[i],
                          (double)want[i]);
    }
    free(source);
    free(data);
    free(want);
    free(have);
}
END_TEST

START_TEST(shapes)
{
    struct matrix m;
    struct error err = {0};
    enum weight_type type;
    ck_assert(matrix_init(&m, WEIGHT_Q4_K, 16, 128, NULL, &err) == STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "128"));
    ck_assert(matrix_init(&m, WEIGHT_F32, 0, 8, NULL, &err) == STATUS_UNSUPPORTED);
    ck_assert(matrix_init(&m, WEIGHT_Q8_0, 17, 96, NULL, &err) == STATUS_OK);
    ck_assert(m.panels == 2 && m.units == 2 && m.panel_bytes == 2 * 1088);
    ck_assert_uint_eq(matrix_bytes(WEIGHT_Q8_0, 17, 96), 2 * m.panel_bytes);
    ck_assert(weight_type_from_gguf(30, &type) && type == WEIGHT_BF16);
    ck_assert(!weight_type_from_gguf(40, &type));
    for (unsigned t = 0; t < WEIGHT_TYPES; t++) {
        ck_assert(weight_type_from_gguf(weight_info((enum weight_type)t)->gguf_id, &type));
        ck_assert_uint_eq(type, t);
        ck_assert_uint_eq(weight_info(type)->unit_bytes % 64, 0);
    }
    ck_assert_uint_eq(acts_stride(ACTS_Q8, 33), 128);
    ck_assert_uint_eq(acts_stride(ACTS_F32, 17), 128);
    ck_assert_uint_eq(sizeof(struct act_block), 48);
}
END_TEST

START_TEST(tiers)
{
    struct kernels k, best;
    struct error err = {0};
    ck_assert(kernels_select("scalar", &k, &err) == STATUS_OK);
    ck_assert_str_eq(k.tier, "scalar");
    ck_assert(kernels_select(NULL, &best, &err) == STATUS_OK);
    ck_assert(kernels_select("auto", &k, &err) == STATUS_OK);
    ck_assert_mem_eq(&k, &best, sizeof(k));
    ck_assert(kernels_tier_present(best.tier));
    ck_assert(kernels_select("sse9", &k, &err) == STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "sse9"));
    for (size_t i = 0; kernels_tier_name(i); i++) {
        const char *tier = kernels_tier_name(i);
        enum status status = kernels_select(tier, &k, &err);
        ck_assert(kernels_tier_present(tier) == (status == STATUS_OK));
        if (status != STATUS_OK)
            ck_assert_ptr_nonnull(strstr(err.text, tier));
        else
            ck_assert_str_eq(k.tier, tier);
        /* No slot is empty. */
        for (size_t at = offsetof(struct kernels, pack); at < sizeof(k); at += sizeof(void *)) {
            void *slot;
            memcpy(&slot, (char *)&k + at, sizeof(slot));
            ck_assert_ptr_nonnull(slot);
        }
    }
    enum kv_type type;
    ck_assert(kv_type_parse("f16", &type) && type == KV_F16 && !kv_type_parse("q3", &type));
    ck_assert_str_eq(kv_type_name(KV_F32), "f32");
    ck_assert_uint_eq(kv_tile_bytes(KV_F16, 64), 4096);
    ck_assert_uint_eq(kv_tile_bytes(KV_Q8_0, 64), 2048 + 128);
    ck_assert_uint_eq(kv_tile_bytes(KV_Q8_0, 35), 36 * 32 + 128);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("weights");
    TCase *tc = tcase_create("weights");
    tcase_add_test(tc, floats);
    tcase_add_test(tc, blocks_of_32);
    tcase_add_test(tc, k_quants);
    tcase_add_test(tc, tables);
    tcase_add_test(tc, short_k_quants);
    tcase_add_test(tc, half_round_trip);
    tcase_add_loop_test(tc, not_finite, 0, WEIGHT_TYPES);
    tcase_add_loop_test(tc, whole_panels, 0, WEIGHT_TYPES);
    tcase_add_loop_test(tc, rows, 0, WEIGHT_TYPES);
    tcase_add_test(tc, shapes);
    tcase_add_test(tc, tiers);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
