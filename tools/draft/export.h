/* export.h: the two kinds of draft files.
 *
 *     layers only    general.architecture "llama", the target's llama.* keys with block_count = the
 *                    draft's layers; blk.0 … in Q4_0, norms in F32, output_norm; no embedding, no
 *                    head, no tokenizer: these are the target's. tokenring.draft.token_map (i32):
 *                    ids of the tokens whose rows of the target's head the draft uses
 *     whole          every tensor of the target, matrices in Q4_0 or Q5_0, all keys
 *
 * Both name their target: tokenring.draft.target (file), tokenring.draft.target_sha256. */
#ifndef TOOLS_DRAFT_EXPORT_H
#define TOOLS_DRAFT_EXPORT_H

#include "tools/draft/student.h"

/* recipe: a sentence that says how the draft was made. Widths that Q4_0 can't hold (no multiples of
 * 32) are kept as F32. */
enum status export_student(const struct student *s, const char *path, const uint32_t *layers,
                           const char *recipe, struct error *err);
/* UNSUPPORTED if that saves less than a quarter of the bytes. */
enum status export_requantised(const struct target *t, const char *path, uint32_t bits,
                               struct error *err);

#endif
