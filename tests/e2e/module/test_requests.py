#!/usr/bin/env python3
"""What goes to the worker and what comes back, on HTTP/1.1 and h2c."""
import os, re, subprocess, time

from rig import Rig, children, events, main, parse, read_all, together, wait_for

URI = '''
    location / { tokenring_pass unix:%(w0)s; }
    location /ai/ { tokenring_pass unix:%(w0)s:/v1/; }
    location /bare/ { tokenring_pass unix:%(w0)s:/; }
    location /exact { tokenring_pass unix:%(w0)s:/pairs; }
    location /block/ { tokenring_pass pool/pairs/; }
    location ~ ^/re/ { tokenring_pass unix:%(w0)s; }
    location /var/ { set $sock %(w0)s; tokenring_pass unix:$sock; }
    location /varuri/ { set $sock %(w0)s; tokenring_pass unix:$sock:/pairs?from=$arg_a; }
    location /varname/ { set $name pool; tokenring_pass $name; }
    location /varbad/ { set $name nosuch; tokenring_pass $name; }
    location /rewrite/ { rewrite ^/rewrite/(.*) /pairs/$1 break; tokenring_pass unix:%(w0)s; }
    location /if/ { if ($arg_go) { tokenring_pass unix:%(w0)s; } root /nonexistent; }
'''
POOL = 'upstream pool { server unix:%(w0)s; keepalive 4; }'


def line(answer):
    """The request line that /pairs shows."""
    status, headers, body = answer
    assert status in (200, 404), answer
    return re.search(rb'(GET|POST) [^\n"]*|no [^" ]* here', body).group(0).decode()


def test_uri_part_works_as_in_proxy_pass():
    with Rig(URI, POOL) as rig:
        said = lambda path: (rig.get(path), re.findall(r'REQUEST (.*)', rig.workers[0].log)[-1])[1]
        assert said('/pairs?a=1&b=%20') == 'GET /pairs?a=1&b=%20'
        assert said('/a%2Fb//c') == 'GET /a%2Fb//c'  # the client's own spelling
        assert said('/ai/chat?x=1') == 'GET /v1/chat?x=1'
        assert said('/ai/a%20b') == 'GET /v1/a%20b'
        assert said('/bare/health') == 'GET /health'
        assert said('/exact') == 'GET /pairs'
        assert said('/exact/more') == 'GET /pairs/more'
        assert said('/block/x') == 'GET /pairs/x'
        assert said('/re/x') == 'GET /re/x'
        assert said('/var/x?y') == 'GET /var/x?y'
        assert said('/varuri/x?a=7') == 'GET /pairs?from=7'
        assert said('/varname/q') == 'GET /varname/q'
        assert said('/rewrite/z?k=1') == 'GET /pairs/z?k=1'
        assert said('/if/x?go=1') == 'GET /if/x?go=1'
        assert rig.get('/if/x')[0] == 404
        assert rig.get('/varbad/')[0] == 500
        assert '"nosuch" is neither a "unix:" socket nor the name of an upstream' in rig.errors()
        assert rig.get('/ai')[0] == 301


def test_request_headers_are_an_allow_list():
    server = '''location / { tokenring_pass unix:%(w0)s; }
                location /set/ { tokenring_set_header X-Tenant t-$arg_t; tokenring_set_header Authorization ""; tokenring_set_header Host inner; tokenring_pass unix:%(w0)s:/; }'''
    with Rig(server) as rig:
        sent = {'Authorization': 'Bearer k', 'Cookie': 'c=1', 'X-Other': 'o', 'Accept': 'text/event-stream', 'User-Agent': 'ua/1', 'X-Request-Id': 'id-7', 'Content-Type': 'application/json'}
        status, headers, body = rig.get('/pairs', headers=sent)
        pairs = dict(l.split(': ', 1) for l in body.decode().splitlines()[1:])
        assert pairs == {'x-request-id': 'id-7', 'host': 'rig', 'content-type': 'application/json', 'accept': 'text/event-stream', 'authorization': 'Bearer k', 'user-agent': 'ua/1'}, pairs
        status, headers, body = rig.post('/pairs', b'x' * 5)
        pairs = dict(l.split(': ', 1) for l in body.decode().splitlines()[1:])
        assert pairs['content-length'] == '5' and re.fullmatch('[0-9a-f]{32}', pairs['x-request-id']), pairs
        for bad in ('a b', 'x' * 200, 'caf\u00e9'):
            with rig.connect() as s:
                s.sendall(f'GET /pairs HTTP/1.1\r\nHost: rig\r\nConnection: close\r\nX-Request-Id: {bad}\r\n\r\n'.encode())
                body = parse(read_all(s))[2]
            assert re.search(rb'x-request-id: [0-9a-f]{32}\n', body), (bad, body)
        status, headers, body = rig.get('/set/pairs?t=5', headers=sent)
        pairs = dict(l.split(': ', 1) for l in body.decode().splitlines()[1:])
        assert pairs['x-tenant'] == 't-5' and pairs['host'] == 'inner' and 'authorization' not in pairs, pairs


def test_what_cannot_be_carried_is_refused_with_400():
    with Rig(http='large_client_header_buffers 8 32k;') as rig:
        assert rig.get('/pairs?' + 'x' * 20000)[0] == 400
        assert rig.get('/pairs', headers={'Authorization': 'x' * 16300})[0] == 400
        assert rig.get('/pairs', headers={'Authorization': 'x' * 15000})[0] == 200
        assert rig.get('/health')[0] == 200


def test_response_head():
    server = '''location / { tokenring_pass unix:%(w0)s; }
                location /hide/ { tokenring_hide_header X-Worker; tokenring_pass_header X-Tokenring-Prompt-Tokens; tokenring_pass unix:%(w0)s:/; }'''
    with Rig(server) as rig:
        status, headers, body = rig.get('/status?code=503&retry=7')
        assert status == 503 and headers['retry-after'] == '7' and body == b'{"status":503}', (status, headers, body)
        assert headers['x-worker'] == 'fake' and headers['content-type'] == 'application/json' and headers['content-length'] == '14'
        assert not [h for h in headers if h.startswith('x-tokenring')], headers
        status, headers, body = rig.get('/hide/health')
        assert status == 200 and 'x-worker' not in headers and headers['x-tokenring-prompt-tokens'] == '12', headers
        status, headers, body = rig.request('/health', 'HEAD')
        assert status == 200 and headers['content-length'] == '15' and body == b'', (headers, body)
        assert rig.get('/pads?n=20&size=50')[1]['x-pad-19'] == 'p' * 50
        assert rig.get('/pads?n=1&size=7000')[1]['x-pad-0'] == 'p' * 7000
        assert rig.get('/pads?n=3&size=4000')[0] == 502
        assert 'upstream sent too big header' in rig.errors()


def test_bodies_of_every_size_and_way():
    server = '''location / { tokenring_pass unix:%(w0)s; }
                location /un/ { tokenring_request_buffering off; tokenring_pass unix:%(w0)s:/; }'''
    with Rig(server) as rig:
        for n in (0, 1, 100, 16384, 16385, 65536, 70000, 1000001):
            body = os.urandom(n)
            for path in ('/', '/un/'):
                assert rig.post(path + 'echo', body)[2] == body, (n, path)
        body = os.urandom(20000)
        chunks = b''.join(b'%x\r\n%s\r\n' % (len(c), c) for c in (body[i:i + 777] for i in range(0, len(body), 777))) + b'0\r\n\r\n'
        for path in ('/', '/un/'):
            assert rig.post(path + 'echo', chunks, headers={'Transfer-Encoding': 'chunked'})[2] == body, path


def test_uploads_over_h2():
    server = '''location / { tokenring_pass unix:%(w0)s; }
                location /un/ { tokenring_request_buffering off; tokenring_pass unix:%(w0)s:/; }'''
    with Rig(server) as rig:
        file = rig.dir / 'body'
        file.write_bytes(os.urandom(3000000))
        for path in ('/echo', '/un/echo'):
            for more in ((), ('-H', 'Content-Length:')):
                code, out = rig.curl(path, *more, '--data-binary', f'@{file}', h2=True)
                assert code == 0 and out == file.read_bytes(), (path, more, code, len(out))


def test_large_body_through_a_temporary_file():
    with Rig() as rig:
        body = os.urandom(1 << 20) * 40
        status, headers, answer = rig.post('/echo', body)
        assert status == 200 and answer == body, (status, len(answer or b''))
        assert 'a client request body is buffered to a temporary file' in rig.errors()
        code, out = rig.curl('/echo', '--data-binary', f'@{rig.dir}/nginx.conf', h2=True)
        assert code == 0 and out == (rig.dir / 'nginx.conf').read_bytes()


def gaps(times):
    return [b - a for a, b in zip(times, times[1:])]


def test_tokens_are_flushed_one_by_one_http1():
    with Rig() as rig, rig.send('/sse?n=8&gap=60') as s:
        times, data = [], b''
        while True:
            more = s.recv(65536)
            if not more:
                break
            if b'data: {' in more:
                times.append(time.time())
            data += more
        status, headers, body = parse(data)
        assert headers['content-type'] == 'text/event-stream; charset=utf-8'
        assert len(events(body)) == 9 and events(body)[-1] == '[DONE]', body
        assert len(times) == 8 and sum(g > 0.03 for g in gaps(times)) >= 6, gaps(times)


def test_head_and_first_token_come_in_one_write():
    with Rig() as rig, rig.send('/sse?n=2&gap=300&delay=50') as s:
        first = s.recv(65536)
        assert first.startswith(b'HTTP/1.1 200') and b'"i":0' in first, first


def test_tokens_are_flushed_one_by_one_h2():
    with Rig() as rig:
        curl = subprocess.Popen(['curl', '-sSN', '--http2-prior-knowledge', '-m', '20', f'http://127.0.0.1:{rig.port2}/sse?n=8&gap=60'], stdout=subprocess.PIPE)
        times, data = [], b''
        while True:
            more = os.read(curl.stdout.fileno(), 65536)
            if not more:
                break
            if b'data: {' in more:
                times.append(time.time())
            data += more
        assert curl.wait() == 0
        assert len(events(data)) == 9 and len(times) == 8 and sum(g > 0.03 for g in gaps(times)) >= 6, (data, gaps(times))


def test_many_streams_at_once():
    with Rig(processes=2) as rig:
        def one():
            status, headers, body = rig.get('/sse?n=30&gap=5')
            assert status == 200 and len(events(body)) == 31, (status, body)
        together([one] * 64)
        assert len(re.findall('CHANNEL', rig.workers[0].log)) <= 2


def test_buffered_answers():
    with Rig('tokenring_buffering on; location / { tokenring_pass unix:%(w0)s; }') as rig:
        status, headers, body = rig.get('/sse?n=5&gap=10')
        assert len(events(body)) == 6
        for path in ('/blob?n=3000000', '/blob?n=3000000&len=1', '/blob?n=0', '/blob?n=1&len=1'):
            status, headers, body = rig.get(path)
            assert status == 200 and len(body) == int(re.search(r'n=(\d+)', path).group(1)), (path, status)


def test_plain_answers_without_buffering():
    with Rig() as rig:
        for path in ('/blob?n=3000000', '/blob?n=3000000&len=1', '/blob?n=0', '/blob?n=1&len=1'):
            status, headers, body = rig.get(path)
            assert status == 200 and len(body) == int(re.search(r'n=(\d+)', path).group(1)), (path, status)
            code, out = rig.curl(path, h2=True)
            assert code == 0 and out == body


def test_large_and_small_pieces_of_events():
    with Rig() as rig:
        for path, size in (('/event?size=100000', 100000), ('/event?size=1000000', 1000000), ('/bits?size=40000', 40000)):
            status, headers, body = rig.get(path)
            assert status == 200 and len(events(body)) == 2 and len(events(body)[0]) > size, (path, status, body and len(body))


def test_slow_client_costs_a_window_and_nobody_else():
    with Rig() as rig:
        with rig.send('/blob?n=50000000', receive_buffer=4096) as slow:
            time.sleep(0.5)
            start = time.time()
            for i in range(20):
                assert rig.get('/health')[0] == 200
            assert time.time() - start < 2
            pid = children(rig.nginx.pid)[0]
            rss = int(open(f'/proc/{pid}/statm').read().split()[1]) * 4096
            assert rss < 40 << 20, rss
            total = read_all(slow)
        assert len(parse(total)[2]) == 50000000


def test_answer_before_the_body_was_read():
    with Rig() as rig:
        status, headers, body = rig.post('/early', b'x' * 5000000)
        assert status == 413 and body == b'{"error":"too large"}', (status, body)
        assert rig.get('/health')[0] == 200
        rig.workers[0].said('END /early')


def test_variables():
    form = "log_format vars '$tokenring_request_id|$tokenring_prompt_tokens|$tokenring_cached_tokens|$tokenring_completion_tokens|$tokenring_finish_reason|$tokenring_queue_ms';"
    with Rig('access_log %(dir)s/vars.log vars; location / { tokenring_pass unix:%(w0)s; } location /no { return 204; }', form) as rig:
        rig.get('/sse?n=2&gap=1&mark=1', headers={'X-Request-Id': 'abc'})
        rig.get('/sse?n=2&gap=1')
        rig.get('/no')
        lines = wait_for('three lines', lambda: (lambda l: l if len(l) == 3 else None)((rig.dir / 'vars.log').read_text().splitlines()))
        assert lines[0] == 'abc|12|4|77|length|-', lines
        assert re.fullmatch(r'[0-9a-f]{32}\|12\|4\|-\|-\|-', lines[1]), lines
        assert re.fullmatch(r'[0-9a-f]{32}\|-\|-\|-\|-\|-', lines[2]), lines


def test_subrequests_and_error_page_pass_the_body_on():
    server = '''location / { tokenring_pass unix:%(w0)s; }
                location /auth/ { auth_request /check; tokenring_pass unix:%(w0)s:/; }
                location = /check { internal; tokenring_pass unix:%(w0)s:/health; }
                location /mirror/ { mirror /copy; tokenring_pass unix:%(w0)s:/; }
                location = /copy { internal; tokenring_pass unix:%(w0)s:/sum; }
                location /fall/ { error_page 502 503 = @next; tokenring_intercept_errors on; tokenring_pass unix:%(dir)s/none.sock; }
                location /fall503/ { error_page 502 503 = @next; tokenring_intercept_errors on; tokenring_pass unix:%(w0)s:/status?code=503&; }
                location @next { rewrite ^ /echo break; tokenring_pass unix:%(w0)s; }'''
    with Rig(server, expect='none.sock') as rig:
        assert rig.get('/auth/health')[0] == 200
        body = os.urandom(100000)
        assert rig.post('/mirror/echo', body)[2] == body
        wait_for('the mirrored request', lambda: 'REQUEST POST /sum' in rig.workers[0].log)
        assert rig.post('/fall/x', body)[2] == body
        assert rig.post('/fall503/x', body)[2] == body


def test_proxy_pass_to_the_same_upstream_is_left_alone():
    server = '''location / { tokenring_pass both; }
                location /proxy/ { proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://both/; }'''
    http = '''upstream both { server unix:%(dir)s/http.sock max_fails=0; keepalive 4; }
              server { listen unix:%(dir)s/http.sock; location / { return 200 "by http"; } }'''
    with Rig(server, http) as rig:
        for _ in range(3):
            assert rig.get('/proxy/')[2] == b'by http'
            assert rig.get('/health')[0] == 502  # with a cached connection of the other protocol in the pool
        assert re.search(r'no channel to unix:\S+http.sock', rig.errors())


if __name__ == '__main__':
    main()
