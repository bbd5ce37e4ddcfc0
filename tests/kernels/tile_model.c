#include "tile_model.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILES 8u
#define MAX_ROWS 16u
#define MAX_BYTES 64u

static _Thread_local struct {
    bool configured;
    uint8_t rows[TILES];
    uint16_t row_bytes[TILES];
    uint8_t data[TILES][MAX_ROWS][MAX_BYTES];
    uint64_t products;
} unit;

static _Atomic uint64_t ticks, cost = 10;

static void insist(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "tile model: %s\n", what);
    abort();
}

static void spend(void)
{
    atomic_fetch_add(&ticks, atomic_load(&cost));
}

void tile_model_configure(const struct tile_config *config)
{
    static const uint8_t zeros[16];
    insist(!unit.configured, "configured twice without a release");
    insist(config->palette == 1, "palette is not 1");
    insist(config->start_row == 0, "start row is not 0");
    insist(memcmp(config->reserved, zeros, sizeof(config->reserved)) == 0 &&
               memcmp(config->reserved_bytes, zeros, sizeof(config->reserved_bytes)) == 0 &&
               memcmp(config->reserved_rows, zeros, sizeof(config->reserved_rows)) == 0,
           "a reserved byte of the configuration is not zero");
    for (unsigned t = 0; t < TILES; t++) {
        insist(config->rows[t] <= MAX_ROWS && config->row_bytes[t] <= MAX_BYTES,
               "more than 16 rows or 64 bytes");
        insist((config->rows[t] == 0) == (config->row_bytes[t] == 0),
               "rows without bytes or bytes without rows");
        insist(config->row_bytes[t] % 4 == 0, "row bytes are no multiple of 4");
    }
    memset(&unit.data, 0, sizeof(unit.data));
    memcpy(unit.rows, config->rows, sizeof(unit.rows));
    memcpy(unit.row_bytes, config->row_bytes, sizeof(unit.row_bytes));
    unit.configured = true;
}

void tile_model_release(void)
{
    unit.configured = false;
}

static void insist_tile(unsigned tile)
{
    insist(unit.configured, "tile used without a configuration");
    insist(tile < TILES && unit.rows[tile] > 0, "tile is not configured");
}

void tile_model_zero(unsigned tile)
{
    insist_tile(tile);
    memset(unit.data[tile], 0, sizeof(unit.data[tile]));
}

void tile_model_load(unsigned tile, const void *base, size_t stride)
{
    insist_tile(tile);
    spend();
    memset(unit.data[tile], 0, sizeof(unit.data[tile]));
    for (unsigned r = 0; r < unit.rows[tile]; r++)
        memcpy(unit.data[tile][r], (const uint8_t *)base + r * stride, unit.row_bytes[tile]);
}

void tile_model_store(unsigned tile, void *base, size_t stride)
{
    insist_tile(tile);
    for (unsigned r = 0; r < unit.rows[tile]; r++)
        memcpy((uint8_t *)base + r * stride, unit.data[tile][r], unit.row_bytes[tile]);
}

/* The rows of c grow by those of a times b. Not instrumented, as it takes nine tenths of the time then: it touches the
 * model's own tiles alone, whose shapes were checked. */
__attribute__((no_sanitize("address", "undefined"))) static void
multiply(unsigned c, unsigned a, unsigned b, bool a_signed, bool b_signed)
{
    for (unsigned m = 0; m < unit.rows[c]; m++)
        for (unsigned n = 0; n < unit.row_bytes[c] / 4u; n++) {
            uint32_t sum;
            memcpy(&sum, &unit.data[c][m][4 * n], sizeof(sum));
            for (unsigned k = 0; k < unit.row_bytes[a]; k++) {
                const uint8_t x = unit.data[a][m][k], w = unit.data[b][k / 4][4 * n + k % 4];
                sum += (uint32_t)((a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)w : w));
            }
            memcpy(&unit.data[c][m][4 * n], &sum, sizeof(sum));
        }
}

void tile_model_product(unsigned c, unsigned a, unsigned b, bool a_signed, bool b_signed)
{
    insist_tile(c);
    insist_tile(a);
    insist_tile(b);
    insist(c != a && c != b && a != b, "one tile is two operands");
    insist(unit.rows[c] == unit.rows[a] && unit.row_bytes[c] == unit.row_bytes[b] &&
               unit.row_bytes[a] == 4 * unit.rows[b],
           "operands' shapes do not fit");
    spend();
    unit.products++;
    multiply(c, a, b, a_signed, b_signed);
}

void tile_model_dpbssd(unsigned c, unsigned a, unsigned b)
{
    tile_model_product(c, a, b, true, true);
}

uint64_t tile_model_ticks(void)
{
    return atomic_load(&ticks);
}

void tile_model_set_cost(uint64_t value)
{
    atomic_store(&cost, value);
}

void tile_model_jump(uint64_t by)
{
    atomic_fetch_add(&ticks, by);
}

bool tile_model_configured(void)
{
    return unit.configured;
}

uint64_t tile_model_products(void)
{
    return unit.products;
}
