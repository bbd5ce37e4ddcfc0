#!/usr/bin/env python3
"""The prefix cache through nginx: what is computed, what is said of it, and that the answers stay the same bits."""
import time

from harness import Elsewhere, Site, default_model, main, stories, tier, together, wait_for

TEXT, CHAT = '/v1/completions', '/v1/chat/completions'
STORY = 'Once upon a time, there was a little girl who lived in a big house with her mom and dad. She liked to play in the garden with her dog. '


def usage(reply):
    assert reply.status == 200, reply.body
    answer = reply.json
    figures = answer['usage']
    return figures['prompt_tokens'], figures['prompt_tokens_details']['cached_tokens'], answer['timings'].get('logits_hash'), answer['choices'][0]


def ids(n, seed=1):
    return [1] + [3 + (seed * 7919 + i * 104729 + i * i) % 500 for i in range(n - 1)]


def body(prompt, tokens=24, **more):
    return {'prompt': prompt, 'max_tokens': tokens, 'temperature': 0.7, 'seed': 5, 'ignore_eos': True, **more}


def test_cold_and_warm_are_the_same_bits():
    """With the cache off, cold, warm, and with more or less of the prompt cached: one hash."""
    prompts = [ids(n) for n in (20, 33, 64, 65, 200, 333)]
    for kv_type in ('f32', 'f16'):
        with Site(stories(), kv_type=kv_type, trace_logits=True, prefix_cache='off') as site:
            want = [usage(site.post(TEXT, body(p))) for p in prompts]
            assert all(cached == 0 for _, cached, _, _ in want)
            assert site.stat()['kv_pages_cached'] == 0
        with Site(stories(), kv_type=kv_type, trace_logits=True, prefill_chunk=50) as site:
            for turn in range(2):
                for prompt, (n, _, hashed, choice) in zip(prompts, want):
                    got = usage(site.post(TEXT, body(prompt)))
                    assert (got[0], got[2], got[3]) == (n, hashed, choice), (kv_type, turn, n)
                    if turn:
                        assert got[1] == (n - 1) // 32 * 32, got
            figures = site.stat()
            assert figures['kv_pages_used'] == 0 and figures['kv_pages_cached'] > 0, figures


def test_a_common_prefix_is_computed_once():
    with Site(stories(), trace_logits=True, max_running=16, prefix_cache='off') as site:
        want = [usage(site.post(TEXT, body(ids(320) + [7 + i] * (5 + i)))) for i in range(8)]
    with Site(stories(), trace_logits=True, max_running=16, prefill_chunk=32) as site:
        got = together([lambda i=i: usage(site.post(TEXT, body(ids(320) + [7 + i] * (5 + i)))) for i in range(8)])
        assert [g[2:] for g in got] == [w[2:] for w in want]
        figures = site.stat()
        assert figures['prefilled_tokens_total'] == 320 + sum(5 + i for i in range(8)), figures
        assert figures['cached_tokens_total'] == 7 * 320
        assert sorted(g[1] for g in got) == [0] + [320] * 7
        assert figures['cache_miss_new'] == 1 and figures['cache_whole'] == 7


def test_alternating_conversations():
    """Two chats with the default model, turn by turn: each turn computes what is new."""
    with Site(default_model(), trace_logits=True) as site:
        chats = [[{'role': 'user', 'content': 'Tell me something about ' + what + '. ' + STORY}] for what in ('boats', 'trees')]
        sizes = [0, 0]
        for turn in range(3):
            for i, chat in enumerate(chats):
                n, cached, _, choice = usage(site.post(CHAT, {'messages': chat, 'max_tokens': 40, 'temperature': 0}))
                # the last token of an answer is never computed, and the template puts its own tokens behind it
                assert cached >= (sizes[i] - 1) // 32 * 32 if turn else True, (turn, cached, sizes)
                chat += [{'role': 'assistant', 'content': choice['message']['content']}, {'role': 'user', 'content': 'Go on, please.'}]
                sizes[i] = n
        figures = site.stat()
        assert figures['prefilled_tokens_total'] + figures['cached_tokens_total'] == figures['prompt_tokens_total'], figures


def test_variables_say_why():
    form = "log_format cache '$tokenring_cache $tokenring_cached_tokens';"
    with Site(stories(), http=form, location='access_log cache.log cache;') as site:
        for prompt in (ids(10), ids(100), ids(100), ids(64) + [9] * 40):
            site.post(TEXT, body(prompt, 2))
        site.stream(TEXT, body(ids(100), 2)).read_all()
        log = lambda: [line for line in (site.dir / 'cache.log').read_text().splitlines() if line != '- -']  # /health
        wait_for('the log', lambda: len(log()) == 5)
        assert log() == ['short 0', 'new 0', 'whole 96', 'diverged 64', 'whole 96'], log()


def test_idle_pages_give_their_memory_back():
    if tier() == 'scalar':
        raise Elsewhere('the first pages would expire before the last are computed')
    with Site(stories(), cache_idle=3) as site:
        together([lambda i=i: site.post(TEXT, body(ids(500, i), 4)) for i in range(16)])
        figures = site.stat()
        assert figures['kv_pages_used'] == 0 and figures['kv_pages_cached'] == 16 * 15, figures
        wait_for('the slabs are counted', lambda: site.stat()['kv_arena_slabs'] > 1, 3)  # the loop tells once a while
        wait_for('the cached pages are gone', lambda: site.stat()['kv_pages_cached'] == 0, 15)
        wait_for('the slabs are back', lambda: site.stat()['kv_arena_slabs'] == 1, 20)
        assert site.stat()['kv_pages_evicted_total'] == 16 * 15


if __name__ == '__main__':
    main()
