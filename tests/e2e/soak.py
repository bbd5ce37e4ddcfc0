#!/usr/bin/env python3
"""soak.py [SECONDS]: mixed load for a long time, more than the KV pages and the queue hold; nothing fails in mid-stream, answers
keep their bits, memory stays flat and everything returns to its baseline. For `make test-long`; in short for `make test`."""
import random, sys, threading, time

from harness import Site, process_figures, stories, wait_for

TEXT = '/v1/completions'
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
KINDS = ['stream', 'stream', 'whole', 'abort', 'bad', 'slow', 'open', 'prefix', 'choices', 'known']


def ids(n, seed):
    choose = random.Random(seed)
    return [1] + [choose.randrange(3, 500) for _ in range(n - 1)]


def known(i):
    """One of a few requests whose bits are known from a run alone."""
    return {'prompt': ids(20 + 41 * i, f'known {i}'), 'max_tokens': 30 + 25 * i, 'temperature': i % 2, 'seed': i, 'ignore_eos': True}


def hash_of(reply):
    assert reply.status in (200, 503), (reply.status, reply.body)
    return reply.json['timings']['logits_hash'] if reply.status == 200 else None


def one(site, choose, kind, want):
    body = {'prompt': ids(choose.choice([1, 30, 200]), choose.random()), 'max_tokens': choose.randrange(1, 120),
            'temperature': choose.choice([0, 1]), 'seed': choose.randrange(1000), 'ignore_eos': True}
    headers = {'X-User': choose.choice(['', 'anne', 'bert'])}
    if kind == 'open':
        del body['max_tokens']
    elif kind == 'prefix':
        body['prompt'] = ids(192, choose.randrange(4)) + body['prompt'][1:]
    if kind == 'whole':
        hash_of(site.post(TEXT, body, headers=headers))
    elif kind == 'choices':
        reply = site.post(TEXT, {**body, 'n': 3}, headers=headers)
        assert reply.status == 503 or len(reply.json['choices']) == 3, (reply.status, reply.body)
    elif kind == 'known':
        i = choose.randrange(len(want))
        got = hash_of(site.post(TEXT, known(i), headers=headers))
        assert got in (None, want[i]), (i, got, want[i])
    elif kind == 'bad':
        reply = site.post(TEXT, {**body, 'temperature': 'hot'}, headers=headers)
        assert reply.status in (400, 503), (reply.status, reply.body)  # a full queue refuses before it reads
    else:
        stream = site.stream(TEXT, body, headers, receive_buffer=4096 if kind == 'slow' else None)
        if kind == 'abort':
            time.sleep(choose.random() * 0.05)
            stream.close()
            return
        if kind == 'slow':
            time.sleep(choose.random() * 0.5)
        stream.read_all()
        if stream.status == 200:
            assert stream.finish == ['length'] and stream.done, (stream.finish, stream.events[-2:])
        else:
            assert stream.status == 503, (stream.status, stream.body)


def client(site, seed, until, count, faults, want):
    choose = random.Random(seed)
    while time.time() < until and not faults:
        kind = choose.choice(KINDS)
        try:
            one(site, choose, kind, want)
            count[kind] = count.get(kind, 0) + 1
        except Exception as fault:
            faults.append(f'{kind}: {fault!r}')


def idle(site):
    s = site.stat()
    return s['requests_running'] == s['requests_waiting'] == s['kv_pages_used'] == 0


def flat(values, slack):
    """Whether the later half is no higher than the time from 20 % on."""
    early, late = max(values[len(values) // 5:len(values) // 2]), max(values[len(values) // 2:])
    return late <= early * 1.05 + slack


def run(site):
    want = [hash_of(site.post(TEXT, known(i))) for i in range(4)]
    pids = [site.worker.pid, *site.nginx_children()]
    base = {pid: process_figures(pid) for pid in pids}
    until, count, faults, samples = time.time() + seconds, {}, [], {pid: [] for pid in pids}
    threads = [threading.Thread(target=client, args=(site, i, until, count, faults, want)) for i in range(24)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        time.sleep(min(10, seconds / 10))
        for pid in pids:
            samples[pid].append(process_figures(pid)['rss'])
    for t in threads:
        t.join()
    figures = site.stat()
    print(f"    {dict(sorted(count.items()))}, {figures['preemptions_total']} put back, {figures['requests_refused']} refused")
    for pid in pids:
        v = samples[pid]
        print(f"    {'worker' if pid == pids[0] else 'nginx'}: resident {v[0] >> 10} … {v[len(v) // 2] >> 10} … {v[-1] >> 10} KiB, most {max(v) >> 10}")
    assert not faults, faults[:5]
    wait_for('everything is idle', lambda: idle(site))
    assert all(flat(samples[pid], 4 << 20) for pid in pids), samples
    for pid in pids:
        wait_for('descriptors are back', lambda: process_figures(pid)['fds'] <= base[pid]['fds'], 10)
    assert figures['requests_failed'] == 0 and '[alert]' not in site.error_log()


with Site(stories(), nginx_workers=2, max_queue=16, max_running=16, kv_type='f32', kv_memory='8m', reserve_tokens=16, cache_idle=5,
          trace_logits=True, location='tokenring_tenant $http_x_user;') as site:
    try:
        run(site)
        print(f'ok soak of {seconds:.0f} s')
    except AssertionError as fault:
        print(f'not ok soak: {fault}')
        sys.exit(1)
