/* fuzz_gguf.c: any bytes as a model file: opened, every key read by every getter, every tensor touched, the vocabulary
 * loaded and used.
 *
 * sources: core/gguf/gguf.c core/gguf/gguf_get.c core/base/buffer.c core/base/check.c core/base/huge.c core/base/readahead.c core/base/status.c core/base/xalloc.c core/text/bpe.c core/text/byte_map.c core/text/chat.c core/text/merge_heap.c core/text/normalize.c core/text/pretokenizer.c core/text/special.c core/text/spm.c core/text/text_table.c core/text/tokenizer.c core/text/utf8.c core/text/vocab.c
 * covers: core/gguf/gguf.c core/gguf/gguf_get.c core/text/vocab.c
 * libs: -lpcre2-8 -lutf8proc
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/check.h"
#include "core/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned char sink;

static void touch(const void *ptr, uint64_t len)
{
    const unsigned char *bytes = ptr;
    if (len != 0)
        sink = (unsigned char)(bytes[0] ^ bytes[len - 1]);
}

static void read_array(const struct gguf_array *a)
{
    size_t at = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        if (a->type == GGUF_STRING) {
            struct slice s = gguf_array_string(a, &at);
            touch(s.ptr, s.len);
        } else if (a->type == GGUF_F32 || a->type == GGUF_F64) {
            sink = gguf_array_f32(a, i) > 0;
        } else {
            sink = (unsigned char)gguf_array_u64(a, i);
        }
    }
}

static void read_keys(const struct gguf *g)
{
    for (uint64_t i = 0; i < gguf_key_count(g); i++) {
        enum gguf_type type;
        struct slice name = gguf_key_name(g, i, &type);
        char text[256];
        struct gguf_array array;
        struct error err[8] = {0};
        if (name.len >= sizeof(text) || memchr(name.ptr, '\0', name.len) != NULL)
            continue;
        snprintf(text, sizeof(text), "%.*s", (int)name.len, name.ptr);
        check(gguf_has(g, text));
        gguf_u32(g, text, 0, &err[0]);
        gguf_u64(g, text, 0, &err[1]);
        gguf_f32(g, text, 0, &err[2]);
        gguf_bool(g, text, false, &err[3]);
        struct slice s = gguf_str(g, text, slice_of(""), &err[4]);
        touch(s.ptr, s.len);
        if (gguf_array(g, text, &array, &err[5]))
            read_array(&array);
        gguf_u32_at(g, text, 1, 0, &err[6]);
        gguf_need_u32(g, text, &err[7]);
        check((err[5].status == STATUS_OK) == (type == GGUF_ARRAY));
    }
}

static void use_vocabulary(const struct gguf *g)
{
    struct tokenizer *tok;
    struct token_list ids = {0};
    struct buffer text = {0};
    struct error err = {0};
    if (tokenizer_load(g, &tok, &err) != STATUS_OK) {
        check(tok == NULL && err.text[0] != '\0');
        return;
    }
    struct slice sample = slice_of("Hello, \xc3\xa9t\xc3\xa9 12 <|im_end|> \xff\n");
    check(tokenizer_encode(tok, sample, ENCODE_PARSE_SPECIAL | ENCODE_ADD_BOS, &ids, &err) ==
          STATUS_OK);
    for (size_t i = 0; i < ids.count; i++)
        check(ids.ids[i] < tokenizer_n_vocab(tok));
    tokenizer_decode(tok, ids.ids, ids.count, DECODE_START, &text);
    for (uint32_t id = 0; id < tokenizer_n_vocab(tok); id++) {
        struct slice piece = tokenizer_piece(tok, id);
        touch(piece.ptr, piece.len);
        sink = tokenizer_is_eog(tok, id);
    }
    token_list_release(&ids);
    buffer_release(&text);
    tokenizer_free(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct error err = {0};
    uint64_t n;
    enum status status = gguf_open_memory(data, size, "input", &g, &err);
    check((status == STATUS_OK) == (g != NULL) && (status == STATUS_OK || err.text[0] != '\0'));
    if (g == NULL)
        return 0;
    read_keys(g);
    const struct gguf_tensor *tensors = gguf_tensors(g, &n);
    for (uint64_t i = 0; i < n; i++) {
        check(tensors[i].bytes == tensor_row_bytes(tensors[i].type, tensors[i].dims[0]) *
                                      tensors[i].dims[1] * tensors[i].dims[2] * tensors[i].dims[3]);
        touch(tensors[i].data, tensors[i].bytes);
    }
    check(gguf_tensor(g, "no such tensor") == NULL);
    use_vocabulary(g);
    gguf_free(g);
    return 0;
}
