#!/usr/bin/env python3
"""soak.py [SECONDS]: mixed load for a long time; nothing fails in mid-stream and memory stays flat. For `make test-long`."""
import random, sys, threading, time

from harness import Site, process_figures, stories, wait_for

TEXT = '/v1/completions'
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0


def client(site, seed, until, count, faults):
    choose = random.Random(seed)
    while time.time() < until and not faults:
        kind = choose.choice(['stream', 'stream', 'whole', 'abort', 'bad', 'slow'])
        body = {'prompt': [choose.randrange(3, 500) for _ in range(choose.choice([1, 30, 200]))], 'max_tokens': choose.randrange(1, 120),
                'temperature': choose.choice([0, 1]), 'seed': seed, 'ignore_eos': True}
        try:
            if kind == 'whole':
                reply = site.post(TEXT, body)
                assert reply.status in (200, 503), (reply.status, reply.body)
            elif kind == 'bad':
                reply = site.post(TEXT, {**body, 'temperature': 'hot'})
                assert reply.status == 400, (reply.status, reply.body)
            else:
                stream = site.stream(TEXT, body, receive_buffer=4096 if kind == 'slow' else None)
                if kind == 'abort':
                    time.sleep(choose.random() * 0.05)
                    stream.close()
                else:
                    if kind == 'slow':
                        time.sleep(choose.random() * 0.5)
                    stream.read_all()
                    if stream.status == 200:
                        assert stream.finish == ['length'] and stream.done, (stream.finish, stream.events[-2:])
                    else:
                        assert stream.status == 503, (stream.status, stream.body)
            count[kind] = count.get(kind, 0) + 1
        except Exception as fault:
            faults.append(f'{kind}: {fault!r}')


def run(site):
    start = time.time()
    until, count, faults, samples = start + seconds, {}, [], []
    threads = [threading.Thread(target=client, args=(site, i, until, count, faults)) for i in range(24)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        time.sleep(min(10, seconds / 10))
        samples.append(process_figures(site.worker.pid)['rss'])
    for t in threads:
        t.join()
    print(f'    {count}, resident {samples[0] >> 20} … {samples[-1] >> 20} MiB')
    assert not faults, faults[:5]
    idle = lambda: (lambda s: s['requests_running'] == s['requests_waiting'] == s['kv_pages_used'] == 0)(site.stat())
    wait_for('everything is idle', idle)
    early, late = max(samples[len(samples) // 5:len(samples) // 2]), max(samples[len(samples) // 2:])
    assert late <= early * 1.05 + (4 << 20), (early, late)
    assert '[alert]' not in site.error_log()


with Site(stories(), nginx_workers=2, max_queue=16) as site:
    try:
        run(site)
        print(f'ok soak of {seconds:.0f} s')
    except AssertionError as fault:
        print(f'not ok soak: {fault}')
        sys.exit(1)
