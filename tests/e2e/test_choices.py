#!/usr/bin/env python3
"""Several answers to one prompt (n), through nginx: each is what it would be alone, and the prompt costs once."""
from harness import Site, default_model, main, stories, together, wait_for

TEXT, CHAT = '/v1/completions', '/v1/chat/completions'


def body(n, **more):
    return {'prompt': [1] + [3 + (i * 7919 + i * i) % 500 for i in range(150)], 'max_tokens': 40, 'temperature': 1, 'seed': 11, 'ignore_eos': True, 'n': n, **more}


def parts(stream):
    """By index: text, finish reasons, the hash in the finishing chunk."""
    found = {}
    for event in stream.objects:
        for choice in event['choices']:
            part = found.setdefault(choice['index'], {'text': '', 'finish': [], 'hash': None})
            part['text'] += choice.get('text') or (choice.get('delta') or {}).get('content') or ''
            if choice['finish_reason']:
                part['finish'].append(choice['finish_reason'])
                part['hash'] = event['timings'].get('logits_hash')
    return found


def test_choices_are_the_same_in_every_company():
    with Site(stories(), trace_logits=True, prefill_chunk=64) as site:
        one = site.post(TEXT, body(1)).json
        before = site.stat()
        four = site.post(TEXT, body(4)).json
        after = site.stat()
        assert [c['index'] for c in four['choices']] == [0, 1, 2, 3], four
        assert four['choices'][0]['text'] == one['choices'][0]['text']
        assert four['choices'][0]['logits_hash'] == one['timings']['logits_hash']
        assert len({c['text'] for c in four['choices']}) == 4 and {c['finish_reason'] for c in four['choices']} == {'length'}
        assert four['usage']['prompt_tokens'] == 151 and four['usage']['completion_tokens'] == 160 and four['usage']['total_tokens'] == 311
        assert four['usage']['prompt_tokens_details']['cached_tokens'] == 128, four['usage']
        assert after['prefilled_tokens_total'] - before['prefilled_tokens_total'] == 23  # what one whole cached prompt leaves
        assert after['prompt_tokens_total'] - before['prompt_tokens_total'] == 151
        assert after['completion_tokens_total'] - before['completion_tokens_total'] == 160
        want = [(c['text'], c['logits_hash']) for c in four['choices']]

        def whole(n):
            return [(c['text'], c['logits_hash']) for c in site.post(TEXT, body(n)).json['choices']]

        def streamed(n):
            stream = site.stream(TEXT, body(n, stream_options={'include_usage': True})).read_all()
            found = parts(stream)
            assert stream.done and sorted(found) == list(range(n)) and all(p['finish'] == ['length'] for p in found.values()), stream.finish
            usage = stream.objects[-1]['usage']
            assert (usage['prompt_tokens'], usage['completion_tokens']) == (151, 40 * n), usage
            order = [c['index'] for e in stream.objects for c in e['choices']]
            assert order != sorted(order), 'the choices come one after the other'
            return [(found[k]['text'], found[k]['hash']) for k in range(n)]

        got = together([lambda: whole(2), lambda: streamed(4), lambda: whole(4), lambda: streamed(3)])
        for found in got:
            assert found == want[:len(found)]


def test_greedy_chat():
    with Site(default_model(), trace_logits=True) as site:
        ask = {'messages': [{'role': 'user', 'content': 'Name a colour.'}], 'max_tokens': 12, 'temperature': 0, 'logprobs': True, 'top_logprobs': 2}
        one = site.post(CHAT, ask).json['choices'][0]
        many = site.post(CHAT, {**ask, 'n': 3}).json
        assert len(many['choices']) == 3
        for k, choice in enumerate(many['choices']):
            assert choice['index'] == k and choice['message'] == one['message'] and choice['logprobs'] == one['logprobs']
        stream = site.stream(CHAT, {**ask, 'n': 3}).read_all()
        roles = [c['index'] for e in stream.objects for c in e['choices'] if c['delta'].get('role')]
        assert sorted(roles) == [0, 1, 2] and stream.done
        assert all(p['text'] == one['message']['content'] for p in parts(stream).values())


def test_each_choice_has_its_own_end():
    """A stop string that some choices hit; the others go on."""
    with Site(stories()) as site:
        ask = body(6, max_tokens=100, prompt='Once upon a time')
        full = [c['text'] for c in site.post(TEXT, ask).json['choices']]
        word = next(w for w in (text[20:24] for text in full) if 0 < sum(w in text for text in full) < 6)
        want = [(t[:t.index(word)], 'stop') if word in t else (t, 'length') for t in full]
        got = site.post(TEXT, {**ask, 'stop': word}).json
        assert [(c['text'], c['finish_reason']) for c in got['choices']] == want, (word, want)
        assert got['usage']['completion_tokens'] < 600
        stream = site.stream(TEXT, {**ask, 'stop': word}).read_all()
        found = parts(stream)
        assert [(found[k]['text'], *found[k]['finish']) for k in range(6)] == want and stream.done
        wait_for('all are gone', lambda: site.stat()['requests_running'] == 0 and site.stat()['kv_pages_used'] == 0)


def test_limits():
    with Site(stories(), max_choices=4) as site:
        reply = site.post(TEXT, body(5))
        assert reply.status == 400 and reply.json['error']['param'] == 'n' and '4' in reply.json['error']['message'], reply.body
        assert site.post(TEXT, body(4, best_of=4, max_tokens=2)).status == 200
        reply = site.post(TEXT, body(2, best_of=4))
        assert reply.status == 400 and reply.json['error']['param'] == 'best_of', reply.body
        nothing = site.post(TEXT, body(3, max_tokens=0)).json
        assert [(c['index'], c['text'], c['finish_reason']) for c in nothing['choices']] == [(k, '', 'length') for k in range(3)]
        nothing = site.stream(TEXT, body(3, max_tokens=0)).read_all()
        assert nothing.finish == ['length'] * 3 and nothing.done


def test_a_client_that_leaves_takes_all_choices_with_it():
    with Site(stories(), max_running=8) as site:
        for _ in range(20):
            stream = site.stream(TEXT, body(8, max_tokens=300))
            stream.read_all(lambda s: len(s.events) > 10)
            stream.close()
        wait_for('all are gone', lambda: site.stat()['requests_running'] == 0 and site.stat()['kv_pages_used'] == 0)
        assert site.stat()['requests_cancelled'] == 20
        assert site.post(TEXT, body(8)).status == 200


if __name__ == '__main__':
    main()
