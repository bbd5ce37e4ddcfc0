/* gguf.h: the checked reader of model files (GGUF version 2 and 3, little endian).
 *
 *     "GGUF" | u32 version | u64 tensors | u64 keys
 *     keys:     string name | u32 type | value          string = u64 length + bytes, no NUL
 *     tensors:  string name | u32 n_dims | u64 dims[] | u32 type | u64 offset      dims[0] = fastest
 *     padding to general.alignment (32 when the key is absent)
 *     tensor data, each tensor at its offset from here
 *
 * What stands before the tensors' data is read into memory and checked once, whole, by gguf_open:
 * every count, length and offset is compared with the bytes that exist before it is used, so nothing
 * is ever allocated for bytes that are not there, and what the functions below hand out always lies
 * inside that memory. A file that fails is refused with the fault, the key or tensor and the byte
 * offset named. Slices and pointers stay valid until gguf_free. Values in the file are not aligned:
 * read arrays through the functions below; tensor data is aligned to general.alignment.
 *
 * Tensor data is read by gguf_read. Nothing is mapped, so a file that becomes shorter meanwhile is an
 * error with a sentence, not the SIGBUS that kills who touches a page behind a mapped file's end; and
 * once the data is read, the file may change as it likes. Programs that work on files which nobody
 * else writes may gguf_map them.
 *
 * Read-only after gguf_open, so any number of threads may use one struct gguf. */
#ifndef GGUF_GGUF_H
#define GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"
#include "core/base/status.h"

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
    GGUF_TYPE_COUNT
};

/* TENSOR_F32, TENSOR_Q4_0, …: the file's own numbers; every type of the format is known by name and
 * size, also those for which there is no kernel, so that they can be refused by name. */
enum tensor_type {
#define TENSOR_TYPE(name, id, block, bytes) TENSOR_##name = id,
#include "core/gguf/tensor_types.def"
#undef TENSOR_TYPE
    TENSOR_TYPE_END
};

struct gguf_tensor {
    struct slice name;
    enum tensor_type type;
    uint32_t n_dims;  /* 1..4 */
    uint64_t dims[4]; /* elements, dims[0] = row length; unused ones are 1 */
    const void *data; /* aligned to general.alignment; NULL on disk and not mapped */
    uint64_t bytes;   /* all of it: rows × tensor_row_bytes */
    uint64_t offset;  /* of data, from the start of the file */
};

/* An array value: count elements of type, packed, unaligned. Read elements by gguf_array_u64, _f32,
 * _string. */
struct gguf_array {
    enum gguf_type type;
    uint64_t count;
    const void *data;
};

struct gguf;

/* Opens and checks the file. On failure *g is NULL and err names path, fault and place (STATUS_IO,
 * _CORRUPT, _VERSION). */
enum status gguf_open(const char *path, struct gguf **g, struct error *err);
/* The same for bytes in memory, which are borrowed until gguf_free; `name` stands for the path in
 * messages. */
enum status gguf_open_memory(const void *bytes, size_t len, const char *name, struct gguf **g,
                             struct error *err);
/* Closes. NULL is allowed. */
void gguf_free(struct gguf *g);

const char *gguf_path(const struct gguf *g);
uint32_t gguf_version(const struct gguf *g);
uint64_t gguf_file_size(const struct gguf *g);

/* ---- keys ----
 * One getter a type. An absent key gives the fallback. A value of another type (any integer type is
 * fine for an integer that fits; f64 is fine for f32) gives the fallback and fills err, naming the
 * key. err is sticky: once err->status is set, getters return the fallback and leave it; so read
 * many keys, then look at err->status once. */
bool gguf_has(const struct gguf *g, const char *key);
uint32_t gguf_u32(const struct gguf *g, const char *key, uint32_t fallback, struct error *err);
uint64_t gguf_u64(const struct gguf *g, const char *key, uint64_t fallback, struct error *err);
float gguf_f32(const struct gguf *g, const char *key, float fallback, struct error *err);
bool gguf_bool(const struct gguf *g, const char *key, bool fallback, struct error *err);
struct slice gguf_str(const struct gguf *g, const char *key, struct slice fallback,
                      struct error *err);
/* As gguf_u32 and gguf_f32, but an absent key is an error too ("… has no key X"). Returns 0 then.
 */
uint32_t gguf_need_u32(const struct gguf *g, const char *key, struct error *err);
float gguf_need_f32(const struct gguf *g, const char *key, struct error *err);
/* A number that may be one for all layers or an array with one a layer; an array shorter than index
 * + 1 is an error. */
uint32_t gguf_u32_at(const struct gguf *g, const char *key, uint64_t index, uint32_t fallback,
                     struct error *err);

/* The array under key; false if the key is absent, or (err filled) if it is no array. */
bool gguf_array(const struct gguf *g, const char *key, struct gguf_array *array, struct error *err);
/* Element i < count of an array of integers or bools (negative ones as two's complement). */
uint64_t gguf_array_u64(const struct gguf_array *array, uint64_t i);
/* Element i < count of an array of f32 or f64. */
float gguf_array_f32(const struct gguf_array *array, uint64_t i);
/* Walks an array of strings: start with *at = 0, call exactly count times. */
struct slice gguf_array_string(const struct gguf_array *array, size_t *at);

/* Keys in file order, for dumps: the name of key i < gguf_key_count, its type. */
uint64_t gguf_key_count(const struct gguf *g);
struct slice gguf_key_name(const struct gguf *g, uint64_t i, enum gguf_type *type);
/* The bytes of its value as they stand in the file behind the key's type, for copies into another
 * file. */
struct slice gguf_key_bytes(const struct gguf *g, uint64_t i);

/* ---- tensors ---- */
/* By name; NULL if there is none. */
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);
/* All of them, in file order. */
const struct gguf_tensor *gguf_tensors(const struct gguf *g, uint64_t *count);

/* "Q4_0"; NULL for a number that names no type. */
const char *tensor_type_name(uint32_t type);
/* Elements and bytes of a block (32 and 18 for Q4_0, 1 and 4 for F32); 0 for no type. */
uint32_t tensor_type_block(uint32_t type);
uint32_t tensor_type_bytes(uint32_t type);
/* Bytes of a row of n elements; n must be a multiple of the block. */
uint64_t tensor_row_bytes(enum tensor_type type, uint64_t n);

/* ---- data of tensors ---- */
/* Copies bytes [from, from + len) of the file to dst. A file that has become shorter than that is
 * refused with both places named (CORRUPT), others' faults by the system's word (IO). */
enum status gguf_read(const struct gguf *g, uint64_t from, void *dst, size_t len,
                      struct error *err);
/* Has the system read bytes [from, to) into its cache, for a reader from front to back (readahead.h); nothing for a file
 * in memory. Waits for the disk; one thread at a time. */
void gguf_fetch(const struct gguf *g, uint64_t from, uint64_t to);
/* Maps the file, so that all tensors have data; see above for what that risks. Nothing for a file in
 * memory. */
enum status gguf_map(struct gguf *g, struct error *err);
/* Drops the pages of a mapped file among bytes [from, to): they leave RSS and come back from the file,
 * or from the system's cache of it, if they are touched again. */
void gguf_forget(const struct gguf *g, uint64_t from, uint64_t to);

#endif
