/* tile_model.h: the tile unit in software.
 *
 * Twice useful: core/kernels/amx.c compiled with AMX_TILE_MODEL calls it, on any CPU; and
 * tile_trap_install() makes it the unit of a CPU that has none: there the tile instructions of the
 * real build raise SIGILL, and a handler decodes and executes them, so that their encoding,
 * operands and order are tested as well, at a microsecond each.
 *
 * The state is per thread, as the unit's. Misuse aborts with a sentence on stderr: no
 * configuration, a palette other than 1, more than 16 rows or 64 bytes, row bytes that are no
 * multiple of 4, reserved bytes that are not zero, a tile that is not configured, shapes that don't
 * fit, a tile twice in a product, and, stricter than the unit, a configuration that replaces
 * another without a release. */
#ifndef TESTS_KERNELS_TILE_MODEL_H
#define TESTS_KERNELS_TILE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kernels/amx_tile.h"

void tile_model_configure(const struct tile_config *config);
void tile_model_release(void);
void tile_model_zero(unsigned tile);
void tile_model_load(unsigned tile, const void *base, size_t stride);
void tile_model_store(unsigned tile, void *base, size_t stride);
/* c += a · b; which operands' bytes are signed makes TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD. */
void tile_model_product(unsigned c, unsigned a, unsigned b, bool a_signed, bool b_signed);
void tile_model_dpbssd(unsigned c, unsigned a, unsigned b);
/* The model's clock, process-wide: advances by tile_model_cost per load and product, and by jumps. */
uint64_t tile_model_ticks(void);
void tile_model_set_cost(uint64_t cost);
void tile_model_jump(uint64_t ticks);

/* Whether this thread holds a configuration; products that it made so far. */
bool tile_model_configured(void);
uint64_t tile_model_products(void);

/* From now on SIGILL of a tile instruction executes it in the model. */
void tile_trap_install(void);

/* The tier compiled against the model: overwrites slots as kernels_fill_amx does. */
struct kernels;
void kernels_fill_amx_model(struct kernels *k);

#endif
