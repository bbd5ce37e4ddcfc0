/* select.h: which tier this CPU runs.
 *
 * Tiers climb: each starts from the table of the tier below it and replaces the slots that it does
 * better.
 *
 *     scalar ──▶ avx2 (AVX2, FMA, F16C) ──▶ avxvnni (AVX-VNNI) ──▶ avx512 (F, BW, DQ, VL, VNNI) ──▶ amx (TILE, INT8)
 *
 * avxvnni is for the CPUs that have AVX-VNNI and no AVX-512 (Alder Lake to Arrow Lake, Sierra Forest); where it is
 * missing, avx512 climbs from avx2 and replaces the same slots.
 *
 * A tier counts as present if CPUID has its instructions and XGETBV says that the system keeps its
 * registers. For amx the system must also permit this process the use of tiles, which is asked for
 * when amx is chosen or asked about: at start, before any thread sets up a signal stack (it must be
 * of 16 KiB or more then, or the system refuses). */
#ifndef KERNELS_SELECT_H
#define KERNELS_SELECT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/status.h"
#include "core/kernels/kernels.h"

/* All tiers that this program knows, lowest first; NULL from their number on. */
const char *kernels_tier_name(size_t i);
/* Whether this CPU can run the tier of that name; false for an unknown name. */
bool kernels_tier_present(const char *tier);
/* Fills the table with the named tier, or with the highest present one (NULL or "auto"). Fails with
 * UNSUPPORTED if the name is unknown or this CPU lacks the tier (the text says which and what is
 * missing). */
enum status kernels_select(const char *tier, struct kernels *k, struct error *err);

#endif
