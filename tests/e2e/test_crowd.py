#!/usr/bin/env python3
"""Many users at once, in short: more than the KV pages hold, far more than can be served, common prefixes, memory that
falls back. Counts, bytes and hashes decide, no times; tests/long has the long forms."""
import json, random, signal, subprocess, threading, time

from harness import Site, attempts, build, main, patience, stories, together, wait_for

TEXT = '/v1/completions'


def ids(n, seed):
    choose = random.Random(seed)
    return [1] + [choose.randrange(3, 500) for _ in range(n - 1)]


def body(i, **more):
    """Request i: prompts and answers of many lengths, greedy and sampled; two of three without max_tokens."""
    request = {'prompt': ids(5 + i * 37 % 200, i), 'temperature': 0.8 if i % 2 else 0, 'seed': i, 'ignore_eos': True, **more}
    return request if i % 3 else {**request, 'max_tokens': 40 + i * 53 % 200}


def outcome(reply):
    """(finish reason, tokens, hash) of a whole answer; it must be one."""
    assert reply.status == 200, (reply.status, reply.body)
    answer = reply.json
    return answer['choices'][0]['finish_reason'], answer['usage']['completion_tokens'], answer['timings']['logits_hash']


def streamed(site, request):
    stream = site.stream(TEXT, {**request, 'stream_options': {'include_usage': True}}).read_all()
    assert stream.status == 200 and len(stream.finish) == 1 and stream.done, (stream.status, stream.finish, stream.events[-2:])
    usage = [o for o in stream.objects if o.get('usage')][-1]
    return stream.finish[0], usage['usage']['completion_tokens'], usage['timings']['logits_hash']


def test_more_than_the_pages_hold():
    """Everybody is served to the end, and with the bits of a run alone, though some are put back in mid-answer."""
    n = 30
    with Site(stories(), trace_logits=True, kv_type='f32', prefix_cache='off') as site:
        want = [outcome(site.post(TEXT, body(i))) for i in range(n)]
    with Site(stories(), trace_logits=True, kv_type='f32', kv_memory='8m', reserve_tokens=16, max_running=24) as site:
        pages = site.stat()['kv_pages_total']
        assert pages * 32 < sum(5 + i * 37 % 200 for i in range(n)) + sum(w[1] for w in want)
        got = together([lambda i=i: streamed(site, body(i)) if i % 2 else outcome(site.post(TEXT, body(i))) for i in range(n)])
        assert got == want, [(i, g, w) for i, (g, w) in enumerate(zip(got, want)) if g != w]
        figures = site.stat()
        assert figures['preemptions_total'] > 0 and figures['requests_failed'] == 0, figures
        wait_for('all pages are back', lambda: site.stat()['kv_pages_used'] == 0)


def test_far_more_than_can_be_served():
    """Who finds no room is refused at once with Retry-After, everybody else is served whole, and nothing is left behind."""
    with Site(stories(), trace_logits=True, max_running=4, max_queue=4) as site:
        want = {i: outcome(site.post(TEXT, body(i, max_tokens=100))) for i in (1, 2, 4, 5)}
        before = site.stat()
        replies = []

        def client(k):
            for i in range(10):
                replies.append(((1, 2, 4, 5)[i % 4], site.post(TEXT, body((1, 2, 4, 5)[i % 4], max_tokens=100))))
        together([lambda k=k: client(k) for k in range(24)])
        served = [(i, r) for i, r in replies if r.status == 200]
        refused = [r for _, r in replies if r.status != 200]
        assert len(replies) == 240 and served and refused, (len(served), len(refused))
        for i, r in served:
            assert outcome(r) == want[i], (i, outcome(r), want[i])
        for r in refused:
            assert r.status == 503 and r.json['error']['code'] == 'queue_full' and int(r.headers['retry-after']) > 0, (r.status, r.body)
        wait_for('all is over', lambda: (lambda s: s['requests_running'] == s['requests_waiting'] == s['kv_pages_used'] == 0)(site.stat()))
        # what nginx refused by itself is counted with the next heartbeat
        wait_for('all refusals are counted', lambda: site.stat()['requests_refused'] - before['requests_refused'] == len(refused))
        after = site.stat()
        assert after['requests_total'] - before['requests_total'] == len(served)
        assert 0 < after['requests_refused_at_gate'] <= len(refused), after['requests_refused_at_gate']
        assert 'nginx refused' in site.log()  # one line for many of them
        lines = site.log().count('queue_full')
        assert lines == len(refused) - after['requests_refused_at_gate'], (lines, len(refused))
        assert after['requests_failed'] == 0, after


def test_a_common_prefix_is_held_once():
    """While eight answers run on from one prefix its pages count once."""
    prefix = ids(256, 'prefix')
    with Site(stories(), max_running=8) as site:
        streams = [site.stream(TEXT, {'prompt': prefix + ids(9, i)[1:], 'max_tokens': 200, 'temperature': 0, 'ignore_eos': True}) for i in range(8)]
        used = []
        reader = threading.Thread(target=lambda: together([s.read_all for s in streams]))
        reader.start()
        while reader.is_alive():
            used.append(site.stat()['kv_pages_used'])
        reader.join()
        figures = site.stat()
        # 8 pages in common, and of each its own: 8 + 200 positions at most
        assert max(used) <= 8 + 8 * 7, used
        assert figures['prefilled_tokens_total'] == 256 + 8 * 8 and figures['cached_tokens_total'] == 7 * 256, figures


def test_memory_falls_back():
    """From 64 streams to none: what is mapped for KV pages falls to its floor within the idle time."""
    with Site(stories(), cache_idle=1, stats_interval=50, kv_memory='64m') as site:
        wait_for('the first slab', lambda: site.stat()['kv_arena_slabs'] == 1)
        floor = site.stat()['kv_arena_mapped']
        most = [0]
        site.worker.send_signal(signal.SIGSTOP)  # or the first have ended before a slow client has sent the last
        streams = [site.stream(TEXT, {'prompt': ids(300, i), 'max_tokens': 150, 'temperature': 0, 'ignore_eos': True}) for i in range(64)]
        time.sleep(0.3)
        site.worker.send_signal(signal.SIGCONT)
        reader = threading.Thread(target=lambda: together([s.read_all for s in streams]))
        reader.start()
        while reader.is_alive():
            most.append(site.stat()['kv_arena_mapped'])
            time.sleep(0.05)
        reader.join()
        assert all(s.finish == ['length'] and s.done for s in streams)
        assert max(most) >= floor * 2, (floor, max(most))  # 3 where all 64 are there at once: not on a slow machine
        wait_for('what is mapped is back', lambda: site.stat()['kv_arena_mapped'] <= floor, 20)
        figures = site.stat()
        assert figures['kv_pages_used'] == figures['kv_pages_cached'] == 0, figures


def test_equal_clients_get_equal_shares():
    """1.2 on a quiet machine; a client's process that had to wait for a CPU can spoil a try."""
    with Site(stories()) as site:
        argv = [build / 'tokenring', 'bench', 'serve', f'http://127.0.0.1:{site.port}', '--json', '-c', '8', '-n', '80', '--max-tokens', '64', '--words', '20']

        def look():
            done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60 * patience())
            figures = json.loads(done.stdout)
            assert done.returncode == 0 and figures['ok'] == 80 and figures['fairness'] < 1.5, figures
        attempts(3, look)


if __name__ == '__main__':
    main()
