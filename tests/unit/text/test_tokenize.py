#!/usr/bin/env python3
"""`tokenring tokenize` with a made-up vocabulary: text and JSON lines there and back, and what it refuses."""
import json, os, pathlib, struct, subprocess, sys, tempfile

tool = pathlib.Path(os.environ['TOKENRING_BUILD']) / 'tokenring'
bad = 0


def string(text):
    return struct.pack('<Q', len(text)) + text


def array(kind, items):
    return struct.pack('<IIQ', 9, kind, len(items)) + b''.join(items)


def vocabulary():
    """Bytes 0..255, "he" 256, "hell" 257 (never formed: its parts are no merge), <|end|> 258, as a GGUF file."""
    codes = list(range(0x21, 0x7f)) + list(range(0xa1, 0xad)) + list(range(0xae, 0x100))
    extra = iter(range(0x100, 0x200))
    texts = [chr(byte if byte in codes else next(extra)).encode() for byte in range(256)] + [b'he', b'hell', b'<|end|>']
    keys = {
        b'tokenizer.ggml.model': struct.pack('<I', 8) + string(b'gpt2'),
        b'tokenizer.ggml.pre': struct.pack('<I', 8) + string(b'gpt-2'),
        b'tokenizer.ggml.tokens': array(8, [string(text) for text in texts]),
        b'tokenizer.ggml.token_type': array(5, [struct.pack('<i', 1)] * 258 + [struct.pack('<i', 3)]),
        b'tokenizer.ggml.merges': array(8, [string(b'h e')]),
        b'tokenizer.ggml.bos_token_id': struct.pack('<II', 4, 258),
        b'tokenizer.ggml.add_bos_token': struct.pack('<IB', 7, 1),
    }
    return b'GGUF' + struct.pack('<IQQ', 3, 0, len(keys)) + b''.join(string(key) + value for key, value in keys.items())


def check(what, args, text, out=None, error=None, status=0):
    """Runs the tool; compares stdout, or a part of stderr, and the exit status."""
    global bad
    done = subprocess.run([tool, 'tokenize', *args], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ok = done.returncode == status and (out is None or done.stdout == out) and (error is None or error in done.stderr)
    print(('ok ' if ok else 'not ok ') + what)
    if not ok:
        bad += 1
        print(f'    exit status {done.returncode}, stdout {done.stdout!r}, stderr {done.stderr!r}')


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'vocab.gguf')
    pathlib.Path(path).write_bytes(vocabulary())
    model = ['-m', path]
    check('text', model, b'hehello', b'256 256 108 108 111\n')
    check('nothing', model, b'', b'\n')
    check('any bytes', model, b'\x00\xff\n', b'0 255 10\n')
    check('special', [*model, '--special'], b'a<|end|>', b'97 258\n')
    check('special by default', model, b'<|end|>', b'258\n')
    check('no special', [*model, '--no-special'], b'<|end|>', b'60 124 101 110 100 124 62\n')
    check('bos', [*model, '--bos'], b'a', b'258 97\n')
    check('bos once', [*model, '--bos'], b'<|end|>a', b'258 97\n')
    lines = ['hehe', '', 'caf\u00e9\0', '<|end|>']
    ids = [[256, 256], [], [99, 97, 102, 195, 169, 0], [258]]
    text = ''.join(json.dumps(line) + '\n' for line in lines).encode()
    check('jsonl', [*model, '--jsonl'], text, ''.join(json.dumps(row) + '\n' for row in ids).encode())
    check('jsonl without the last newline', [*model, '--jsonl'], b'"a"', b'[97]\n')
    for name, line, word in (('no JSON', b'"a', b'line 2: is not valid JSON'), ('two values', b'"a" 1', b'line 2: is not valid'),
                             ('a number', b'1', b'line 2: is no JSON string'), ('an empty line', b'', b'line 2: is not valid'),
                             ('half a surrogate pair', b'"\\ud800"', b'line 2: is not valid'),
                             ('invalid UTF-8', b'"\xff"', b'line 2: is not valid')):
        check(f'jsonl: {name}', [*model, '--jsonl'], b'"a"\n' + line + b'\n"b"\n', b'[97]\n', word, 1)
    check('detokenize', [*model, '--detokenize'], b'256 257,[258]\n255\n', b'hehell\xff')
    check('detokenize nothing', [*model, '--detokenize'], b'', b'')
    check('detokenize special', [*model, '--detokenize', '--special'], b'256 258', b'he<|end|>')
    check('detokenize jsonl', [*model, '--detokenize', '--jsonl'], b'[256, 258]\n[]\n[195, 169, 195]\n[34, 0]\n',
          b'"he"\n""\n"\xc3\xa9\xef\xbf\xbd"\n"\\"\\u0000"\n')
    for name, line in (('text', b'x'), ('an id too large', b'259'), ('a negative id', b'-1'), ('a fraction', b'1.5'), ('NUL', b'1\x002')):
        check(f'detokenize: {name}', [*model, '--detokenize'], b'1\n' + line, b'', b'line 2: has something that is no token id', 1)
    for name, line in (('a string', b'"x"'), ('an id too large', b'[1, 259]'), ('a fraction', b'[1.5]'), ('a negative id', b'[-1]')):
        check(f'detokenize jsonl: {name}', [*model, '--detokenize', '--jsonl'], b'[97]\n' + line + b'\n', b'"a"\n', b'line 2: ', 1)
    pathlib.Path(path).write_bytes(vocabulary()[:-1])
    check('a damaged file', model, b'a', b'', b"vocab.gguf: the file ends inside the value of key 'tokenizer.ggml.add_bos_token'", 1)
    check('no file', ['-m', path + 'x'], b'a', b'', b'cannot be opened', 1)
    check('no model', [], b'', b'', b'the model is missing', 2)
    check('an argument', [*model, 'x'], b'', b'', b"'x' is no option", 2)
    check('an unknown option', [*model, '--x'], b'', b'', b'usage:', 2)
    check('both ways', [*model, '--special', '--no-special'], b'', b'', b'exclude each other', 2)
    check('help', ['--help'], b'', None, None, 0)
    pathlib.Path(path).write_bytes(vocabulary())
    with open('/dev/full', 'wb') as full:
        done = subprocess.run([tool, 'tokenize', *model], input=b'a', stdout=full, stderr=subprocess.PIPE)
    ok = done.returncode == 1 and b'stdout cannot be written' in done.stderr
    print(('ok' if ok else 'not ok') + ' a full disk')
    bad += not ok
sys.exit(bad != 0)
