#!/usr/bin/env python3
"""A request's logits are the same bits alone, in a crowd, at any prefill chunk, with any number of threads, in any tier's products."""
import json, subprocess

from harness import Site, build, main, stories, tier, together

TEXT = '/v1/completions'
PROMPT = 'Once upon a time, there was a little dog. He liked to run in the park with his friend, a small cat. '


def body(i, tokens=40):
    return {'prompt': PROMPT[:20 + 13 * i % 70], 'max_tokens': tokens, 'temperature': 0.8 if i % 2 else 0, 'seed': i, 'ignore_eos': True}


def outcome(reply):
    answer = reply.json
    assert reply.status == 200, answer
    return answer['choices'][0]['text'], answer['timings']['logits_hash']


def solo(kv_type, **options):
    with Site(stories(), kv_type=kv_type, trace_logits=True, **options) as site:
        return [outcome(site.post(TEXT, body(i))) for i in range(6)]


def check(kv_type):
    want = solo(kv_type, threads=1)
    for options in ({'threads': 2}, {'prefill_chunk': 1}, {'prefill_chunk': 7}, {'prefill_chunk': 64}):
        assert solo(kv_type, **options) == want, options
    with Site(stories(), kv_type=kv_type, trace_logits=True, draft='ngram') as site:
        crowd = together([lambda i=i: outcome(site.post(TEXT, body(i))) for i in range(17)])
        assert crowd[:6] == want
        assert site.stat()['last_logits_hash']


def test_f32_cache():
    check('f32')


def test_f16_cache():
    check('f16')


def test_q8_0_cache():
    check('q8_0')


def test_q4_cache():
    check('q4')


def test_weight_streams():
    """One, two and four streams of weights, and the number that is measured."""
    want = solo('q8_0', weight_streams=1)
    for streams in (2, 4, 'auto'):
        assert solo('q8_0', weight_streams=streams) == want, streams
    with Site(stories(), weight_streams=4) as site:
        assert site.stat()['weight_streams'] == 4
    with Site(stories()) as site:
        assert site.stat()['weight_streams'] in (1, 2, 4)
        assert tier() == 'scalar' or 'stream(s) a thread: 1, 2 and 4 took' in site.log(), site.log()
    done = subprocess.run([build / 'tokenringd', '-t', '--model', stories(), '--weight-streams', '3'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0 and "auto, 1, 2 or 4, not '3'" in done.stdout, done.stdout


def test_every_tier_serves():
    """Each tier that this CPU has answers the golden; a missing one is said."""
    golden = json.loads((stories().parent / 'golden/once-f64.json').read_text())
    for each in ('scalar', 'avx2', 'avxvnni', 'avx512', 'amx'):
        probe = subprocess.run([build / 'tokenringd', '-t', '--model', stories(), '--tier', each], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if probe.returncode != 0 and 'CPU' in probe.stdout:
            print(f'SKIP: tier {each}: not on this CPU')
            continue
        with Site(stories(), kv_type='f32', tier=each) as site:
            reply = site.post(TEXT, {'prompt': golden['prompt'], 'max_tokens': 64, 'temperature': 0, 'ignore_eos': True})
            assert reply.json['choices'][0]['text'] == golden['text'], (each, reply.body)


if __name__ == '__main__':
    main()
