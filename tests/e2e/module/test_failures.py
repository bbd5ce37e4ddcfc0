#!/usr/bin/env python3
"""Lost workers, slow workers, hostile workers, and clients that go away."""
import random, re, signal, socket, struct, subprocess, time

from rig import ERROR_EVENT, Rig, children, events, main, parse, process_figures, read_all, together, wait_for

POOL = 'upstream pool { server unix:%(w0)s max_fails=0; server unix:%(w1)s max_fails=0 backup; }'


def test_missing_worker_is_502_and_comes_back():
    with Rig(expect=r'connect\(\)') as rig:
        assert rig.get('/health')[0] == 200
        rig.workers[0].kill()
        assert rig.get('/health')[0] == 502
        rig.workers[0].socket.unlink()
        assert rig.get('/health')[0] == 502
        assert re.search(r'\[crit\].*connect\(\) to unix:\S+ failed \(2: No such file', rig.errors())
        rig.workers[0].start()
        assert rig.get('/health')[0] == 200


def test_next_upstream_before_the_first_byte():
    with Rig('location / { tokenring_pass pool; }', POOL, workers=2, expect=r'connect\(\)') as rig:
        body = b'x' * 100000
        assert rig.post('/die?head=0&n=0', body)[0] in (502, 0)  # the second dies too
        for w in rig.workers:
            w.kill()
            w.start()
        rig.workers[0].kill()
        status, headers, answer = rig.post('/echo', body)
        assert status == 200 and answer == body, status
        assert re.search(r'/echo 200 502, 200', rig.logged('/echo'))


def test_death_while_a_request_waits_goes_to_the_next():
    with Rig('location / { tokenring_pass pool; }', POOL, workers=2) as rig:
        with rig.send('/sse?n=3&gap=1&delay=300', 'POST', b'{}' * 20000) as s:
            rig.workers[0].said('REQUEST POST /sse')
            rig.workers[0].kill()
            status, headers, body = parse(read_all(s))
        assert status == 200 and len(events(body)) == 4, (status, body)
        rig.logged(r'/sse\S* 200 502, 200')


def test_next_upstream_off_and_non_idempotent():
    server = '''location / { tokenring_next_upstream error timeout; tokenring_pass pool; }
                location /off/ { tokenring_next_upstream off; tokenring_pass pool/; }'''
    with Rig(server, POOL, workers=2) as rig:
        with rig.send('/sse?n=3&delay=5000', 'POST', b'{}') as s:
            rig.workers[0].said('REQUEST POST /sse')
            rig.workers[0].kill()
            assert parse(read_all(s))[0] == 502


def test_next_upstream_by_status_and_reset():
    with Rig('location / { tokenring_next_upstream error http_503; tokenring_pass pool; }', POOL.replace(' backup', ''), workers=2) as rig:
        assert rig.get('/status?code=503')[0] == 503
        rig.logged(r'code=503 503 503, 503')
        assert rig.get('/reset?n=0&code=2')[0] in (200, 502)
        assert rig.get('/health')[0] in (200, 502)


def broken(body):
    """The events of a stream that ended with the error event; raises if it did not."""
    got = events(body)
    assert body.endswith(b'\n\n') and got[-1] == '[DONE]' and ERROR_EVENT in got[-2], body
    assert body.count(b'[DONE]') == 1 and body.count(b'worker_lost') == 1, body
    return got[:-2]


def test_death_in_mid_stream_ends_with_error_event_and_done():
    for half in (0, 1):
        with Rig() as rig:
            status, headers, body = rig.get(f'/die?n=3&half={half}')
            assert status == 200 and len(broken(body)) == 3 and b'half' not in body, body
            rig.workers[0].start()
            code, out = rig.curl(f'/die?n=2&half={half}', h2=True)
            assert code == 0 and len(broken(out)) == 2 and b'half' not in out, (code, out)
            assert 'the event stream ends with an error event' in rig.errors()


def test_death_in_mid_stream_with_buffering():
    with Rig('tokenring_buffering on; location / { tokenring_pass unix:%(w0)s; }') as rig:
        status, headers, body = rig.get('/die?n=3&half=1')
        assert status == 200 and len(broken(body)) == 3, body


def test_reset_in_mid_stream_ends_the_same_way():
    with Rig() as rig:
        for half in (0, 1):
            status, headers, body = rig.get(f'/reset?n=4&half={half}')
            assert len(broken(body)) == 4 and b'half' not in body, body
        assert rig.get('/reset?n=0&delay=0')[0] in (200, 502)
        assert rig.get('/health')[0] == 200
        assert rig.workers[0].log.count('CHANNEL') == 1


def test_plain_body_that_breaks_off_is_seen_to_be_cut():
    with Rig() as rig:
        assert rig.get('/blobdie?n=100000')[2] is None
        rig.workers[0].start()
        code, out = rig.curl('/blobdie?n=100000', h2=True)
        assert code in (92, 18, 56), code
        rig.workers[0].start()
        assert rig.get('/blobdie?n=100000&len=0', headers={'Connection': 'keep-alive'})[2] is None


def test_an_event_too_long_to_hold_back_is_cut_visibly():
    with Rig() as rig, rig.send('/event?size=30000000', receive_buffer=4096) as s:
        start = b''
        while len(start) < 400000:
            start += s.recv(65536)
        time.sleep(0.3)
        rss = process_figures(children(rig.nginx.pid)[0])['rss']
        assert rss < 30 << 20, rss  # and is not collected for a slow client
        rig.workers[0].kill()
        data = start + read_all(s)
        assert data.startswith(b'HTTP/1.1 200') and len(data) > 300000, len(data)
        assert b'worker_lost' not in data and parse(data)[2] is None


def test_read_timeout_before_and_in_mid_stream():
    server = 'tokenring_read_timeout 1s; location / { tokenring_pass unix:%(w0)s; } location /p/ { tokenring_pass pool/; }'
    with Rig(server, POOL, workers=2) as rig:
        start = time.time()
        assert rig.get('/hang')[0] == 504
        assert 0.9 < time.time() - start < 3
        rig.workers[0].said('CANCEL /hang')
        status, headers, body = rig.get('/stall?n=3')
        assert status == 200 and len(broken(body)) == 3, body
        rig.workers[0].said('CANCEL /stall')
        assert rig.get('/p/hang')[0] == 504
        rig.logged(r'/p/hang 504 504, 504')
        status, headers, body = rig.get('/sse?n=3&gap=600')  # each event re-arms it
        assert len(events(body)) == 4, body


def test_connect_timeout_and_stopped_worker():
    server = 'tokenring_connect_timeout 400ms; tokenring_read_timeout 500ms; location / { tokenring_pass unix:%(w0)s; }'
    with Rig(server, options=['-q']) as rig:
        start = time.time()
        assert rig.get('/health')[0] == 504
        assert 0.35 < time.time() - start < 5
    with Rig(server) as rig:
        assert rig.get('/health')[0] == 200
        rig.workers[0].process.send_signal(signal.SIGSTOP)
        assert rig.get('/health')[0] == 504
        rig.workers[0].process.send_signal(signal.SIGCONT)
        assert rig.get('/health')[0] == 200


def test_other_version_is_refused_with_both_named():
    with Rig(options=['-v', '77']) as rig:
        assert rig.get('/health')[0] == 502
        assert re.search(r'no channel to unix:\S+: .*version 1 .*version 77', rig.errors()), rig.errors()


def gone(s):
    """The client goes away the hard way."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    s.close()


def test_client_abort_sends_cancel_at_once():
    with Rig() as rig:
        worker = rig.workers[0]
        for path, method, body, after in (('/hang', 'GET', b'', None), ('/hang', 'POST', b'x' * 100000, None), ('/sse?n=100&gap=20', 'GET', b'', b'"i":3'), ('/blob?n=100000000', 'GET', b'', b'xxx')):
            for how in (gone, socket.socket.close):
                cancels = worker.log.count('CANCEL')
                s = rig.send(path, method, body)
                if after:
                    seen = b''
                    while after not in seen:
                        seen += s.recv(4096)
                else:
                    wait_for('the request', lambda: worker.log.count('REQUEST') > worker.log.count('CANCEL') + worker.log.count('END'))
                start = time.time()
                how(s)
                wait_for('CANCEL', lambda: worker.log.count('CANCEL') > cancels, 5, 0.002)
                assert time.time() - start < 3, time.time() - start
        assert len([l for l in rig.access() if re.search(r' 499 | 200 ', l)]) >= 6


def test_client_abort_over_h2():
    with Rig() as rig:
        for path in ('/hang', '/sse?n=100&gap=20'):
            log = lambda word: rig.workers[0].log.count(word)
            requests, cancels = log('REQUEST'), log('CANCEL')
            curl = subprocess.Popen(['curl', '-sSN', '--http2-prior-knowledge', f'http://127.0.0.1:{rig.port2}{path}'], stdout=subprocess.DEVNULL)
            wait_for('the request', lambda: log('REQUEST') > requests)
            curl.kill()
            curl.wait()
            wait_for('CANCEL', lambda: log('CANCEL') > cancels, 2)


def test_ignored_client_abort():
    with Rig('tokenring_ignore_client_abort on; location / { tokenring_pass unix:%(w0)s; }') as rig:
        with rig.send('/sse?n=100&gap=20&delay=200') as s:
            rig.workers[0].said('REQUEST')
        time.sleep(0.15)
        assert 'CANCEL' not in rig.workers[0].log  # until a write fails, as with proxy_pass
        rig.workers[0].said('CANCEL')


def test_slots_run_out_and_come_back():
    with Rig(options=['-S', '4']) as rig:
        busy = [rig.send('/hang') for _ in range(4)]
        wait_for('four requests', lambda: rig.workers[0].log.count('REQUEST') == 4)
        assert rig.get('/health')[0] == 502
        assert re.search(r'all 4 streams of the channel to unix:\S+ are in use', rig.errors())
        for s in busy:
            s.close()
        wait_for('four cancels', lambda: rig.workers[0].log.count('CANCEL') == 4)
        for _ in range(50):
            assert rig.get('/health')[0] == 200


def test_hostile_worker_loses_its_channel_and_nothing_else():
    server = 'location / { tokenring_pass unix:%(w0)s; } location /good/ { tokenring_pass unix:%(w1)s:/; }'
    with Rig(server, workers=2, expect=r'\[alert\].*tokenring: the channel to \S+ is dropped: ') as rig:
        with rig.send('/good/sse?n=40&gap=50') as s:
            for kind in range(10):
                status, headers, body = rig.get(f'/garbage?kind={kind}')
                assert status == 502, (kind, status)
                assert rig.get('/good/health')[0] == 200
                assert rig.get('/health')[0] == 200, kind
            status, headers, body = parse(read_all(s))
            assert len(events(body)) == 41, body
        alerts = re.findall(r'\[alert\].*is dropped: (.*)', rig.errors())
        assert len(alerts) == 8, alerts  # kinds 7 and 8 are one request's fault: a bad head
        assert rig.errors().count('upstream sent invalid header') == 2


def test_noise_in_the_ring_never_hurts_nginx():
    with Rig(expect=r'\[alert\].*tokenring: the channel to \S+ is dropped: ') as rig:
        pid = wait_for('the nginx worker', lambda: children(rig.nginx.pid))
        for seed in range(10, 90):
            with rig.send('/sse?n=5&gap=10') as s:  # a bystander on the same channel
                assert rig.get(f'/garbage?kind={seed}')[0] in (0, 200, 502, 504), seed
                read_all(s)
        assert rig.get('/health')[0] == 200
        assert children(rig.nginx.pid) == pid, 'the nginx worker was replaced'
        assert rig.errors().count('is dropped') > 40


def test_random_aborts_leave_nothing_behind():
    with Rig(processes=2, options=['-S', '64']) as rig:
        rng = random.Random(7)

        def one(i):
            path = rng.choice(['/sse?n=20&gap=5', '/blob?n=500000', '/hang', '/echo'])
            try:
                with rig.send(path, 'POST', b'y' * rng.randrange(200000)) as s:
                    s.settimeout(rng.random() * 0.1 + 0.01)
                    while s.recv(65536):
                        pass
            except (TimeoutError, ConnectionError, BrokenPipeError):
                pass
        for _ in range(6):
            together([lambda i=i: one(i) for i in range(32)])
        log = lambda: rig.workers[0].log
        wait_for(f'every request ends: {log()[-300:]}', lambda: log().count('REQUEST') == log().count('CANCEL') + log().count('END'), 10)
        for _ in range(20):
            assert rig.get('/health')[0] == 200


if __name__ == '__main__':
    main()
