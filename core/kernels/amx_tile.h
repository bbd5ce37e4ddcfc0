/* amx_tile.h: the tile instructions, as asm of our own or as calls into a software model.
 *
 * Eight tile registers hold up to 16 rows of up to 64 bytes each, as configured (palette 1):
 *
 *     C (tiles 0-3)  16 rows x 64 B: C[m][n], int32: column m of activations, row n of weights
 *     A (tiles 4, 5) 16 rows x 32 B: A[m][k], 32 activations of a column
 *     B (tiles 6, 7)  8 rows x 64 B: B[k/4][4n + k%4], 32 weights of 16 rows: a panel's block as it is
 *
 *     C[m][n] += Σ_k A[m][k] · B[k/4][4n + k%4]     exact in int32
 *
 * Compilers' intrinsics are avoided: gcc 12 doesn't tell its optimiser that they read and write
 * memory, so it moves or drops the stores in front of them. Each asm here clobbers memory instead.
 * The compiler doesn't know of tile registers and keeps nothing in them: whoever configures them
 * owns them until the release.
 *
 * With AMX_TILE_MODEL the same names call a model of the unit that aborts on every misuse that the
 * unit would fault on (tests/kernels/tile_model.h): kernels written on this header are tested on
 * any CPU. */
#ifndef KERNELS_AMX_TILE_H
#define KERNELS_AMX_TILE_H

#include <stddef.h>
#include <stdint.h>

/* The operand of LDTILECFG. Reserved bytes must be zero. */
struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[8];
    uint8_t reserved_bytes[16];
    uint8_t rows[8];
    uint8_t reserved_rows[8];
};

_Static_assert(sizeof(struct tile_config) == 64, "LDTILECFG reads 64 bytes");

#ifdef AMX_TILE_MODEL

void tile_model_configure(const struct tile_config *config);
void tile_model_release(void);
void tile_model_zero(unsigned tile);
void tile_model_load(unsigned tile, const void *base, size_t stride);
void tile_model_store(unsigned tile, void *base, size_t stride);
void tile_model_dpbssd(unsigned c, unsigned a, unsigned b);
uint64_t tile_model_ticks(void);

#define tile_configure(config) tile_model_configure(config)
#define tile_release() tile_model_release()
#define tile_zero(tile) tile_model_zero(tile)
#define tile_load(tile, base, stride) tile_model_load(tile, base, stride)
#define tile_store(tile, base, stride) tile_model_store(tile, base, stride)
#define tile_dpbssd(c, a, b) tile_model_dpbssd(c, a, b)
#define tile_ticks() tile_model_ticks()

#else

/* About 80 ns: once per product and thread. */
static inline void tile_configure(const struct tile_config *config)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*config) : "memory");
}

/* Leaves the unit in its initial state, so that switches of context save nothing. */
static inline void tile_release(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

/* Tile numbers are part of the instructions: they must be literal digits. Row r is at
 * base + r · stride. */
#define tile_zero(tile) __asm__ volatile("tilezero %%tmm" #tile : : : "memory")
#define tile_load(tile, base, stride)                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                            \
                     :                                                                             \
                     : "r"((const void *)(base)), "r"((size_t)(stride))                            \
                     : "memory")
#define tile_store(tile, base, stride)                                                             \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     :                                                                             \
                     : "r"((void *)(base)), "r"((size_t)(stride))                                  \
                     : "memory")
/* c += a · b, signed bytes. (AT&T order: last is the destination.) */
#define tile_dpbssd(c, a, b)                                                                       \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory")

/* The time stamp counter, read when everything before has finished and before anything after starts. */
static inline uint64_t tile_ticks(void)
{
    uint32_t low, high;
    __asm__ volatile("lfence\n\trdtsc\n\tlfence" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

#endif
#endif
