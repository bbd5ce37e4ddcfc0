#!/usr/bin/env python3
"""Streams through the stock nginx with the default model: pacing, many at once, aborts, crashes, reloads."""
import json, os, random, signal, statistics, subprocess, time

from harness import Site, attempts, cpu_seconds, default_model, fewer, main, patience, process_figures, together, wait_for

TEXT = '/v1/completions'


def prompt(i, words=40):
    choose = random.Random(i)
    vocabulary = 'time river house garden music window letter mountain people story water morning street paper'.split()
    return ' '.join(choose.choice(vocabulary) for _ in range(words))


def generation(i, tokens, words=40, **more):
    return {'prompt': prompt(i, words), 'max_tokens': tokens, 'temperature': 0, 'ignore_eos': True,
            'stream': True, 'stream_options': {'include_usage': True}, **more}


def good(stream, tokens=None):
    assert stream.status == 200, (stream.status, stream.body)
    assert len(stream.finish) == 1 and stream.finish[0] in ('length', 'stop'), stream.finish
    assert stream.done, stream.events[-3:]
    if tokens is not None:
        usage = [e['usage'] for e in stream.objects if e.get('usage')][-1]
        assert usage['completion_tokens'] == tokens, usage


def test_each_token_arrives_when_it_is_made():
    """HTTP/1.1: one read a token, at the pace of the steps."""
    n = fewer(200, 50)
    with Site(default_model()) as site:
        def look():
            before = site.stat()
            stream = site.stream(TEXT, generation(1, n)).read_all()
            good(stream, n)
            steps = wait_for('the figures are there', lambda: (lambda s: s['completion_tokens_total'] - before['completion_tokens_total'] >= n and s)(site.stat()))['steps_total'] - before['steps_total']
            assert n - 1 <= steps <= n + 5, steps
            assert len(stream.reads) >= 0.9 * n, len(stream.reads)
            gaps = [b[0] - a[0] for a, b in zip(stream.reads[2:], stream.reads[3:])]
            step = (stream.events[-3][0] - stream.events[0][0]) / (n - 1)
            assert abs(statistics.median(gaps) - step) <= 0.3 * step, (statistics.median(gaps), step)
            print(f'    {1 / step:.0f} tokens/s at the client, {len(stream.reads)} reads')
        attempts(5, look)


def test_http2_streams_too():
    with Site(default_model()) as site:
        config = (site.dir / 'nginx.conf').read_text().replace(f'listen 127.0.0.1:{site.port};', f'listen 127.0.0.1:{site.port} http2;')
        (site.dir / 'nginx.conf').write_text(config)
        site.nginx.send_signal(signal.SIGHUP)
        wait_for('nginx speaks HTTP/2', lambda: subprocess.run(['curl', '-s', '-o', '/dev/null', '--http2-prior-knowledge', f'http://127.0.0.1:{site.port}/health']).returncode == 0)
        body = json.dumps(generation(2, 100))
        argv = ['curl', '-sN', '--http2-prior-knowledge', '-H', 'Content-Type: application/json', '-d', body, f'http://127.0.0.1:{site.port}{TEXT}']

        def look():
            curl = subprocess.Popen(argv, stdout=subprocess.PIPE)
            reads, data = 0, b''
            while piece := os.read(curl.stdout.fileno(), 65536):
                reads += 1
                data += piece
            assert curl.wait() == 0
            assert data.endswith(b'data: [DONE]\n\n'), data[-100:]
            assert reads >= 0.9 * 100, reads
        attempts(5, look)


def test_many_streams_all_end_once():
    with Site(default_model()) as site:
        tokens = fewer(24, 8)
        start = time.time()
        streams = together([lambda i=i: site.stream(TEXT, generation(i, tokens, words=10 + i)).read_all() for i in range(32)])
        for stream in streams:
            good(stream, tokens)
        print(f'    {32 * tokens / (time.time() - start):.0f} tokens/s over 32 streams')


def test_batching_is_real():
    """Eight equal streams share each pass over the weights, and that pays."""
    with Site(default_model()) as site:
        def rate(n, tokens=fewer(96, 32)):
            before = site.stat()
            start = time.time()
            streams = together([lambda i=i: site.stream(TEXT, generation(i, tokens, words=8)).read_all() for i in range(n)])
            seconds = max(s.events[-1][0] for s in streams) - min(s.events[0][0] for s in streams)
            after = site.stat()
            return n * tokens / seconds, (after['completion_tokens_total'] - before['completion_tokens_total']) / (after['steps_total'] - before['steps_total'])
        rate(1, 16)

        def look():
            one, _ = rate(1)
            eight, per_pass = rate(8)
            print(f'    {one:.0f} tokens/s alone, {eight:.0f} for eight: {eight / one:.2f} times; {per_pass:.1f} tokens a pass')
            assert per_pass >= 5, per_pass
        attempts(3, look)


def test_aborts_leave_nothing_behind():
    """200 clients (20 in the scalar tier) that go away at random moments: everything is back at its baseline afterwards."""
    words = 400 // patience()
    with Site(default_model(), max_queue=64, cache_idle=2) as site:
        together([lambda i=i: site.stream(TEXT, generation(i, 16, words=words)).read_all() for i in range(16)])
        idle = lambda: (lambda s: s['requests_running'] == 0 and s['requests_waiting'] == 0 and s['kv_pages_used'] == 0)(site.stat())
        wait_for('the site is idle', idle)
        base = {pid: process_figures(pid) for pid in (site.worker.pid, *site.nginx_children())}
        choose = random.Random(7)

        def abort(i):
            stream = site.stream(TEXT, generation(i, 200, words=choose.choice([5, 40, words])))
            kind = i % 4
            if kind == 0:
                time.sleep(choose.random() * 0.02)
            elif kind == 1:
                time.sleep(choose.random() * 0.3)
            else:
                stream.sock.settimeout(20)
                n = choose.randint(1, 20)
                try:
                    stream.read_all(lambda s: len(s.events) >= n)
                except (TimeoutError, AssertionError):
                    pass
            stream.close()
        for round in range(20 // patience()):
            together([lambda i=i: abort(round * 10 + i) for i in range(10)])
        wait_for('the aborted requests are gone', idle)
        for pid, figures in base.items():
            wait_for('fds are back', lambda: process_figures(pid)['fds'] <= figures['fds'], 5)
            assert process_figures(pid)['threads'] == figures['threads'], (figures, process_figures(pid))
            wait_for(f'memory is back at {figures}', lambda: process_figures(pid)['rss'] <= figures['rss'] * 1.1 + (8 << 20), 60)
        good(site.stream(TEXT, generation(3, 16)).read_all(), 16)


def test_abort_in_prefill_stops_the_work():
    with Site(default_model(), prefill_chunk=64) as site:
        stream = site.stream(TEXT, generation(5, 16, words=1500))
        wait_for('the prefill runs', lambda: site.stat()['prefilled_tokens_total'] > 0)
        stream.close()
        wait_for('the request is gone', lambda: site.stat()['requests_running'] == 0, 2)
        used = cpu_seconds(site.worker.pid)
        prefilled = site.stat()['prefilled_tokens_total']
        time.sleep(0.5)
        assert cpu_seconds(site.worker.pid) - used < 0.2, 'the worker still computes'
        assert site.stat()['prefilled_tokens_total'] == prefilled < 1500


def test_reload_under_load():
    with Site(default_model(), nginx_workers=2) as site:
        tokens = fewer(120, 40)
        streams = [site.stream(TEXT, generation(i, tokens)) for i in range(8)]
        for _ in range(3):
            time.sleep(0.2)
            site.nginx.send_signal(signal.SIGHUP)
        for stream in together([s.read_all for s in streams]):
            good(stream, tokens)
        after = site.post(TEXT, generation(9, 4))
        assert after.status == 200, (after.status, after.body)
        assert '[alert]' not in site.error_log(), site.error_log()


def test_worker_killed_in_mid_stream():
    """The stream ends with an error event and [DONE]; service resumes without touching nginx."""
    with Site(default_model()) as site:
        streams = [site.stream(TEXT, generation(i, 400)) for i in range(4)]
        together([lambda s=s: s.read_all(lambda s: len(s.events) >= 5) for s in streams])
        site.worker.kill()
        site.worker.wait()
        for stream in together([s.read_all for s in streams]):
            assert len(stream.finish) == 1 and stream.finish[0].startswith('error:'), stream.finish
            assert stream.done and stream.complete
        assert site.post(TEXT, generation(1, 4)).status == 502
        site.start_worker()
        wait_for('the new worker serves', lambda: site.get('/health').status == 200, 60)
        good(site.stream(TEXT, generation(1, 8)).read_all(), 8)
        assert '[alert]' not in site.error_log(), site.error_log()


def test_two_nginx_workers_share_one_worker():
    with Site(default_model(), nginx_workers=2) as site:
        for stream in together([lambda i=i: site.stream(TEXT, generation(i, 16)).read_all() for i in range(12)]):
            good(stream, 16)


def test_drain_on_term():
    """TERM lets running streams finish and refuses new ones; then the worker ends with status 0."""
    with Site(default_model()) as site:
        stream = site.stream(TEXT, generation(1, 150)).read_all(lambda s: len(s.events) >= 3)
        site.worker.send_signal(signal.SIGTERM)
        wait_for('the worker drains', lambda: site.get('/health').status == 503)
        refused = site.post(TEXT, generation(2, 4))
        assert refused.status == 503 and refused.json['error']['code'] == 'draining', refused.body
        good(stream.read_all(), 150)
        assert site.worker.wait(10 * patience()) == 0


def test_second_term_stops_at_once():
    with Site(default_model()) as site:
        stream = site.stream(TEXT, generation(1, 2000)).read_all(lambda s: len(s.events) >= 3)
        site.worker.send_signal(signal.SIGTERM)
        wait_for('the worker drains', lambda: site.get('/health').status == 503)
        site.worker.send_signal(signal.SIGTERM)
        stream.read_all()
        assert len(stream.finish) == 1 and stream.finish[0].startswith('error:'), stream.finish
        assert stream.done
        assert site.worker.wait(5 * patience()) == 0


def test_same_bytes_alone_and_among_others():
    with Site(default_model(), trace_logits=True) as site:
        body = generation(1, 24)
        alone = site.stream(TEXT, body).read_all()
        hash_of = lambda s: [e['timings']['logits_hash'] for e in s.objects if e.get('timings')][-1]
        crowd = together([lambda i=i: site.stream(TEXT, generation(i, 24, words=5 + 7 * i)).read_all() for i in range(2, 10)] + [lambda: site.stream(TEXT, body).read_all()])
        assert crowd[-1].text == alone.text
        assert hash_of(crowd[-1]) == hash_of(alone)
        seeded = {**body, 'temperature': 1.0, 'seed': 5}
        assert site.stream(TEXT, seeded).read_all().text == site.stream(TEXT, seeded).read_all().text


if __name__ == '__main__':
    main()
