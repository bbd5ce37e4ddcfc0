#!/usr/bin/env python3
"""Refusals by the module itself while the worker says that its queue is full."""
import http.client, json, time

from rig import Rig, children, main, parse, read_all, together, wait_for

BODY = json.dumps({'prompt': 'x', 'stream': True}).encode()


def closed(retry=7, waiting=32):
    return 1 | retry << 8 | waiting << 32


def asked(rig, worker=0):
    """What came to the worker, /gate aside."""
    return [line for line in rig.workers[worker].log.splitlines() if line.startswith('REQUEST') and ' /gate' not in line]


def gate(rig, word, prefix=''):
    """Sets the word; returns how many were turned away since the last time."""
    status, headers, body = rig.get(f'{prefix}/gate?word={word}')
    assert status == 200, (status, body)
    return int(body)


def test_a_closed_gate_answers_as_the_worker_would():
    with Rig('location / { tokenring_pass unix:%(w0)s; tokenring_request_buffering off; } location /b/ { tokenring_pass unix:%(w0)s:/; }') as rig:
        assert rig.post('/v1/completions', BODY)[0] == 404  # the fake worker knows no such thing: it was asked
        gate(rig, closed())
        for path in ('/v1/completions', '/v1/chat/completions', '/completions/?a=/x', '/b/v1/completions'):
            status, headers, body = rig.post(path, BODY, headers={'X-Request-Id': 'id-9'})
            assert status == 503 and headers['retry-after'] == '7' and headers['x-request-id'] == 'id-9', (status, headers)
            assert headers['content-type'] == 'application/json' and int(headers['content-length']) == len(body)
            assert json.loads(body) == {'error': {'message': 'the queue is full: 32 requests are waiting', 'type': 'server_error', 'param': None, 'code': 'queue_full'}}
        assert len(asked(rig)) == 1, asked(rig)
        rig.logged(r'/v1/completions 503 503 unix:')
        for path in ('/health', '/v1/completions', '/pairs?x=/completions'):
            rig.get(path)
        rig.post('/health', BODY)
        for path in ('/v1/completionsx', '/v1/embeddings', '/', '/foo/completions', '/v1/foo/completions', '/v1/chat/foo/completions',
                     '/v1/v1/completions', '/v1//completions', '/v2/completions', '/v1/chatcompletions', '/chat/v1/completions', '/completions/x'):
            assert rig.post(path, BODY)[0] == 404, path
        for method in ('PUT', 'DELETE', 'OPTIONS'):
            rig.request('/v1/completions', method)
        assert len(asked(rig)) == 1 + 3 + 13 + 3, asked(rig)  # all of these are the worker's own to answer
        assert gate(rig, 0) == 4
        assert rig.post('/v1/completions', BODY)[0] == 404
        assert gate(rig, 0) == 0


def test_connections_are_kept():
    with Rig() as rig:
        gate(rig, closed())
        connection = http.client.HTTPConnection('127.0.0.1', rig.port, timeout=10)
        connection.connect()
        socket = connection.sock
        for size in (0, 10, 5000, 3 << 20, 100):
            connection.request('POST', '/v1/completions', b'x' * size)
            answer = connection.getresponse()
            assert answer.status == 503 and json.loads(answer.read())['error']['code'] == 'queue_full'
            assert connection.sock is socket, size
        connection.close()
        assert asked(rig) == []


def test_a_body_that_comes_slowly_need_not_end():
    with Rig('location / { tokenring_pass unix:%(w0)s; tokenring_request_buffering off; }') as rig:
        gate(rig, closed())
        with rig.connect() as s:
            s.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: rig\r\nContent-Length: 1000000\r\n\r\n' + b'x' * 1000)
            head = b''
            while b'queue_full' not in head:
                more = s.recv(65536)
                assert more, head
                head += more
            assert head.startswith(b'HTTP/1.1 503 ') and b'Connection: close' in head, head
        assert gate(rig, 0) == 1 and asked(rig) == []
        assert rig.get('/health')[0] == 200


def test_over_h2():
    with Rig() as rig:
        gate(rig, closed(3))
        code, out = rig.curl('/v1/completions', '-i', '-d', '{}', h2=True)
        assert code == 0 and out.startswith(b'HTTP/2 503') and b'retry-after: 3' in out.lower() and b'queue_full' in out, out


def test_the_next_upstream_may_have_it():
    http_ = 'upstream pool { server unix:%(w0)s max_fails=0; server unix:%(w1)s max_fails=0 backup; }'
    server = """location / { tokenring_pass pool; tokenring_next_upstream http_503 non_idempotent; }
                location /only/ { tokenring_pass pool/; }
                location /w1/ { tokenring_pass unix:%(w1)s:/; }
                location /page/ { tokenring_pass pool/; tokenring_intercept_errors on; error_page 503 =200 /said; }
                location = /said { return 200 "try later"; }"""
    with Rig(server, http_, workers=2) as rig:
        gate(rig, closed())
        assert rig.post('/v1/completions', BODY)[0] == 404  # the second one's word
        assert asked(rig) == [] and len(asked(rig, 1)) == 1
        rig.logged(r'/v1/completions 404 503, 404 ')
        assert rig.post('/only/v1/completions', BODY)[0] == 503
        assert rig.post('/page/v1/completions', BODY)[2] == b'try later'
        gate(rig, closed(), '/w1')
        status, headers, body = rig.post('/v1/completions', BODY)
        assert status == 503 and len(asked(rig, 1)) == 1, (status, asked(rig, 1)[-3:])


def test_a_worker_without_a_gate_is_asked():
    with Rig(options=['-g']) as rig:
        gate(rig, closed())
        assert rig.post('/v1/completions', BODY)[0] == 404 and len(asked(rig)) == 1


def test_a_worker_that_goes_takes_its_word_along():
    with Rig() as rig:
        gate(rig, closed())
        assert rig.post('/v1/completions', BODY)[0] == 503
        rig.workers[0].kill()
        assert rig.post('/v1/completions', BODY)[0] == 502
        rig.workers[0].start()
        assert rig.post('/v1/completions', BODY)[0] == 404


def test_whatever_the_word_says_nginx_lives():
    with Rig() as rig:
        pid = wait_for('the nginx worker', lambda: children(rig.nginx.pid))
        x = 88172645463325252
        for i in range(200):
            x ^= x << 13 & (1 << 64) - 1
            x ^= x >> 7
            x ^= x << 17 & (1 << 64) - 1
            word = (x & ~0xff | i % 3) & (1 << 63) - 1
            gate(rig, word)
            status, headers, body = rig.post('/v1/completions', BODY)
            assert status == (503 if i % 3 == 1 else 404), (word, status)
            assert status == 404 or 1 <= int(headers['retry-after']) <= 3600, headers
        assert children(rig.nginx.pid) == pid and rig.get('/health')[0] == 200


def test_many_at_once():
    with Rig(processes=2) as rig:
        for _ in range(20):  # both processes have a channel now
            gate(rig, closed())

        def client(k):
            connection = http.client.HTTPConnection('127.0.0.1', rig.port, timeout=20)
            for i in range(50):
                connection.request('POST', '/v1/completions', BODY)
                answer = connection.getresponse()
                answer.read()
                assert answer.status in (404, 503), answer.status
        together([lambda k=k: client(k) for k in range(8)])
        assert rig.get('/health')[0] == 200


if __name__ == '__main__':
    main()
