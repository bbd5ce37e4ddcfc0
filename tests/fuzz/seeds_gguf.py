#!/usr/bin/env python3
"""seeds_gguf.py FOLDER: small whole GGUF files: keys of every type, tensors, and a vocabulary of each kind."""
import pathlib, struct, sys


def string(text):
    return struct.pack('<Q', len(text)) + text


def array(kind, items):
    return struct.pack('<IIQ', 9, kind, len(items)) + b''.join(items)


def whole(keys, tensors=(), data=b''):
    out = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(keys))
    out += b''.join(string(key) + value for key, value in keys)
    for name, kind, dims, offset in tensors:
        out += string(name) + struct.pack('<I', len(dims)) + b''.join(struct.pack('<Q', dim) for dim in dims) + struct.pack('<IQ', kind, offset)
    return out + (b'\0' * (-len(out) % 32) + data if tensors else b'')


def scalar(kind, code, value):
    return struct.pack('<I' + code, kind, value)


words = [b'a', b'b', b'c', b'ab', b'abc', b'<|im_start|>', b'<|im_end|>', b'<tool>', b'[PAD]', 'Ġ'.encode(), 'Ġa'.encode()]
kinds = [1, 1, 1, 1, 1, 3, 3, 4, 5, 1, 1]
u32 = lambda value: scalar(4, 'I', value)
text = lambda value: struct.pack('<I', 8) + string(value)
files = {
    'types': whole([(b'general.architecture', text(b'llama')), (b'general.alignment', u32(32)), (b'u8', scalar(0, 'B', 1)),
                    (b'i8', scalar(1, 'b', -1)), (b'u16', scalar(2, 'H', 1)), (b'i16', scalar(3, 'h', -1)), (b'i32', scalar(5, 'i', -1)),
                    (b'f32', scalar(6, 'f', 1.5)), (b'bool', scalar(7, 'B', 1)), (b'u64', scalar(10, 'Q', 1)), (b'i64', scalar(11, 'q', -1)),
                    (b'f64', scalar(12, 'd', 1.5)), (b'words', array(8, [string(b'x'), string(b'')])),
                    (b'heads', array(5, [struct.pack('<i', n) for n in (8, 8)])), (b'floats', array(6, [struct.pack('<f', 2)]))],
                   [(b'a', 0, (3, 2), 0), (b'b', 2, (32, 2), 32), (b'c', 1, (2, 1, 2, 2), 96)], bytes(112)),
    'bpe': whole([(b'tokenizer.ggml.model', text(b'gpt2')), (b'tokenizer.ggml.pre', text(b'gpt-2')),
                  (b'tokenizer.ggml.tokens', array(8, [string(word) for word in words])),
                  (b'tokenizer.ggml.token_type', array(5, [struct.pack('<i', kind) for kind in kinds])),
                  (b'tokenizer.ggml.merges', array(8, [string(b'a b'), string(b'ab c'), string('Ġ a'.encode()), string(b'x y')])),
                  (b'tokenizer.ggml.bos_token_id', u32(5)), (b'tokenizer.ggml.eos_token_id', u32(6)),
                  (b'tokenizer.ggml.add_bos_token', scalar(7, 'B', 1)), (b'tokenizer.chat_template', text(b'{{ bos_token }}'))]),
    'spm': whole([(b'tokenizer.ggml.model', text(b'llama')),
                  (b'tokenizer.ggml.tokens', array(8, [string(word) for word in (b'<unk>', b'<s>', b'</s>', b'<0x0A>', '▁'.encode(), b'H')])),
                  (b'tokenizer.ggml.scores', array(6, [struct.pack('<f', -n) for n in range(6)])),
                  (b'tokenizer.ggml.token_type', array(5, [struct.pack('<i', kind) for kind in (2, 3, 3, 6, 1, 1)])),
                  (b'tokenizer.ggml.add_space_prefix', scalar(7, 'B', 0))]),
    'two-tensors-one-name': whole([], [(b'a', 0, (1,), 0), (b'a', 0, (1,), 32)], bytes(64)),
    'overlap': whole([], [(b'a', 0, (16,), 0), (b'b', 0, (1,), 32)], bytes(64)),
    'two-keys-one-name': whole([(b'a', u32(1)), (b'a', u32(1))]),
    'nested': whole([(b'a', array(9, [struct.pack('<IQ', 4, 0)]))]),
    'version': b'GGUF' + struct.pack('>I', 3) + bytes(16),
}
for name, data in files.items():
    pathlib.Path(sys.argv[1], name).write_bytes(data)
