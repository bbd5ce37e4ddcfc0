#!/usr/bin/env python3
"""test_schemas.py BODIES: every body that core/api can write, against OpenAI's published schemas.

BODIES is the program that writes them into a folder. Beside the schemas: streams end in one finish reason and
[DONE], the deltas joined are the text of the body, and the log-probability entries agree with each other."""
import json
import os
import subprocess
import sys
import tempfile

shared = os.environ.get('TOKENRING_SHARED', '')
if not os.path.isdir(shared):
    print('SKIP: api_schemas: no shared data folder')
    sys.exit(77)
try:
    import jsonschema
except ImportError:
    print('SKIP: api_schemas: python3-jsonschema is not installed')
    sys.exit(77)

TEXT = '" the\u20aca\n\u00e9'
TOKENS = ['"', ' the', 'bytes:\\xe2\\x82', 'bytes:\\xac', 'a', '\n', '\u00e9']
defs = json.load(open(os.path.join(shared, 'data/openai/schemas.json')))['$defs']
# A completion's chunk before the last has finish_reason null, as OpenAI's own service sends it; the schema
# describes the whole body only.
reason = defs['CreateCompletionResponse']['properties']['choices']['items']['properties']['finish_reason']
chunk_defs = json.loads(json.dumps(defs))
chunk_defs['CreateCompletionResponse']['properties']['choices']['items']['properties']['finish_reason'] = {
    'anyOf': [reason, {'type': 'null'}]}
bad = 0


def complain(name, what):
    global bad
    bad += 1
    print('%s: %s' % (name, what))


def expect(name, what, got, wanted):
    if got != wanted:
        complain(name, '%s is %r, not %r' % (what, got, wanted))


def events(name, raw):
    """The documents of a stream; checks its framing."""
    docs = []
    parts = raw.split('\n\n')
    expect(name, 'the end', parts[-2:], ['data: [DONE]', ''])
    for part in parts[:-2]:
        if not part.startswith('data: ') or '\n' in part:
            complain(name, 'not one data line: %r' % part)
        else:
            docs.append(json.loads(part[6:]))
    return docs


def entries(chat, logprobs):
    """(token, logprob, alternatives) of a choice's logprobs."""
    if logprobs is None:
        return []
    if chat:
        return [(e['token'], e['logprob'], e['top_logprobs']) for e in logprobs['content']]
    columns = [logprobs[key] for key in ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset')]
    assert len({len(column) for column in columns}) == 1, columns
    return list(zip(*columns[:3]))


counts = {}


def judge_reply(name, docs):
    chat = 'Chat' in name
    last, found = docs[-1], []
    indices = {choice['index'] for doc in docs for choice in doc['choices']}
    counts[len(indices)] = counts.get(len(indices), 0) + 1
    expect(name, 'the indices', indices, set(range(len(indices))))
    for index in indices:
        text, reasons, found = '', [], []
        for choice in (choice for doc in docs for choice in doc['choices'] if choice['index'] == index):
            part = choice.get('delta', choice.get('message')) if chat else choice
            text += part.get('content' if chat else 'text') or ''
            reasons += [choice['finish_reason']] if choice['finish_reason'] else []
            found += entries(chat, choice['logprobs'])
        expect(name, 'the text', text, TEXT)
        expect(name, 'the number of reasons', len(reasons), 1)
        if found:
            expect(name, 'the tokens', [entry[0] for entry in found], TOKENS)
            for token, logprob, top in found:
                if not chat and token not in top:
                    complain(name, '%r is not among its alternatives %r' % (token, top))
    if 'timings' in last:
        expect(name, 'timings', last['timings']['predicted_n'], 7)
    usages = [doc['usage'] for doc in docs if doc.get('usage')]
    for usage in usages:
        expect(name, 'total_tokens', usage['total_tokens'], usage['prompt_tokens'] + usage['completion_tokens'])
    return bool(found), bool(usages)


seen = set()
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], folder], check=True)
    files = sorted(os.listdir(folder))
    for name in files:
        schema, _, ending = name.split('.')
        raw = open(os.path.join(folder, name), encoding='utf-8').read()
        docs = events(name, raw) if ending == 'sse' else [json.loads(raw)]
        bundle = chunk_defs if ending == 'sse' else defs
        validator = jsonschema.Draft202012Validator({'$ref': '#/$defs/' + schema, '$defs': bundle})
        for doc in docs:
            for error in validator.iter_errors(doc):
                complain(name, '%s: %s' % ('/'.join(map(str, error.absolute_path)), error.message[:200]))
        if schema.startswith('Create'):
            seen.add((schema, ending) + judge_reply(name, docs))
expect('all', 'the number of files', len(files) > 60, True)
expect('all', 'kinds of reply', len(seen), 2 * (2 + 4))
expect('all', 'numbers of choices', sorted(counts), [1, 3])
print('%d files, %d wrong' % (len(files), bad))
sys.exit(bad > 0)
