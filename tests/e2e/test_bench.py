#!/usr/bin/env python3
"""`tokenring bench serve` against a small server whose every delay is known, and through nginx and the worker."""
import json, pathlib, socket, subprocess, tempfile, threading, time

from harness import Site, build, free_port, main, patience, stories, tier_options

PIECES = 5


def bench(url, *options):
    done = subprocess.run([build / 'tokenring', 'bench', 'serve', url, '--json', *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * patience())
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def chunk(data):
    return f'{len(data):x};x=y\r\n'.encode() + data + b'\r\n'


class Server:
    """Answers POSTs. how: what the answer is like; `first` and `gap`: seconds before the first and between the others."""

    def __init__(self, how='chunked', first=0.05, gap=0.02, usage=True, refuse=lambda i: False):
        self.how, self.first, self.gap, self.usage, self.refuse = how, first, gap, usage, refuse
        self.bodies, self.heads, self.arrivals, self.connections, self.lock = [], [], [], 0, threading.Lock()

    def __enter__(self):
        self.listener = socket.socket()
        self.listener.bind(('127.0.0.1', 0))
        self.listener.listen(256)
        self.url = f'http://127.0.0.1:{self.listener.getsockname()[1]}'
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        with peer:
            with self.lock:
                self.connections += 1
            while self.request(peer) and self.how == 'kept':
                pass

    def request(self, peer):
        """One request and its answer; false if the client has gone."""
        data = b''
        while b'\r\n\r\n' not in data:
            more = peer.recv(65536)
            if not more:
                return False
            data += more
        head, _, body = data.partition(b'\r\n\r\n')
        size = int([line for line in head.split(b'\r\n') if line.lower().startswith(b'content-length:')][0].split(b':')[1])
        while len(body) < size:
            body += peer.recv(65536)
        with self.lock:
            mine = len(self.bodies)
            self.arrivals.append(time.perf_counter())
            self.bodies.append(json.loads(body))
            self.heads.append(head.decode())
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.answer(peer, mine, json.loads(body))
        except OSError:
            return False
        return True

    def event(self, i, chat):
        text = f'piece {i} ☃'
        return {'choices': [{'index': 0, 'delta': {'content': text}} if chat else {'index': 0, 'text': text}]}

    def answer(self, peer, mine, body):
        if self.refuse(mine):
            peer.sendall(b'HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\n{}')
            return
        if self.how == 'error':
            peer.sendall(b'HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n{"error":{"message":"no such thing"}}')
            return
        if self.how == 'garbage':
            peer.sendall(b'SSH-2.0-OpenSSH\r\n')
            return
        framing = 'Transfer-Encoding: chunked\r\n' if self.how in ('chunked', 'cut', 'kept') else ''
        whole = []
        send = (lambda data: peer.sendall(chunk(data))) if framing else whole.append if self.how == 'length' else peer.sendall
        if self.how == 'bytes':  # byte for byte, every boundary there is
            send = lambda data: [peer.sendall(chunk(data[i:i + 1])) for i in range(len(data))]
            framing = 'Transfer-Encoding: Chunked\r\n'
        if self.how != 'length':
            peer.sendall(b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n' + framing.encode() + b'\r\n')
        chat = 'messages' in body
        send(b': a comment\r\n\r\n')
        if chat:
            send(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')
        time.sleep(self.first)
        for i in range(PIECES):
            if i:
                time.sleep(self.gap)
            lines = json.dumps(self.event(i, chat), indent=1 if i == 2 else None).split('\n')
            send(('event: x\n' + ''.join(f'data: {line}\n' for line in lines) + '\n').encode())
            if self.how == 'cut' and i == 2:
                return
            if self.how == 'broken' and i == 2:
                send(b'data: {"error":{"message":"the worker went away","code":"worker_lost"}}\n\ndata: [DONE]\n\n')
                return
        send(b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n')
        if self.usage:
            send(b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}\n\n')
        if self.how != 'no done':
            send(b'data: [DONE]\n\n')
        if self.how in ('chunked', 'bytes', 'kept'):
            peer.sendall(b'0\r\nX-Trailer: 1\r\n\r\n')
        if self.how in ('chunked', 'bytes'):
            time.sleep(0.3)  # the answer has ended although the connection has not
        if self.how == 'length':
            data = b''.join(whole)
            peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n' % len(data) + data)
            time.sleep(0.3)


def test_times_are_true():
    for how in ('chunked', 'close'):
        with Server(how) as server:
            code, out, err = bench(server.url, '-c', 2, '-n', 6)
            assert code == 0 and out['ok'] == 6 and out['failed'] == out['refused'] == out['no_done'] == 0, (out, err)
            assert out['out_tokens'] == 60 and out['prompt_tokens_p50'] == 11 and out['cached_tokens'] == 24 and out['finish_length'] == 6
            assert 50 <= out['ttft_p50_ms'] < 1000 and 19 <= out['itl_p50_ms'] < 400 and out['itl_p50_ms'] <= out['itl_p99_ms'] <= out['itl_max_ms'], out
            assert 130 <= out['e2e_p50_ms'] < 3000 and 0.39 <= out['wall_s'] < 10, out
            assert abs(out['out_tok_s'] - 60 / out['wall_s']) < 0.5 and out['refusal_p50_ms'] is None
            assert 1 <= out['fairness'] <= 3 and out['client_tokens_max'] >= 2 * PIECES, out


def test_framings():
    for how in ('bytes', 'length', 'no done'):
        for options in ([], ['--chat']):
            with Server(how, 0.01, 0.001, usage=how != 'length') as server:
                code, out, err = bench(server.url, '-n', 2, *options)
                tokens = 2 * (10 if how != 'length' else PIECES)
                assert code == 0 and out['ok'] == 2 and out['out_tokens'] == tokens, (how, out, err)
                assert out['no_done'] == (2 if how == 'no done' else 0)


def test_failures_are_counted_and_told():
    for how, words in (('cut', 'ended inside the answer'), ('broken', 'worker_lost'), ('error', 'no such thing'), ('garbage', 'no HTTP response')):
        with Server(how, 0.001, 0.001) as server:
            code, out, err = bench(server.url, '-n', 3)
            assert code == 1 and out['failed'] == 3 and out['ok'] == 0 and words in err, (how, out, err)
    code, out, err = bench(f'http://127.0.0.1:{free_port()}', '-n', 2)
    assert code == 1 and out['failed'] == 2 and 'refused' in err, (out, err)
    with Server(first=5) as server:
        start = time.time()
        code, out, err = bench(server.url, '-n', 1, '--timeout', 0.3)
        assert code == 1 and 'timeout' in err and time.time() - start < 4, err


def test_refusals():
    with Server(first=0.05, gap=0, refuse=lambda i: i % 2 == 1) as server:
        code, out, err = bench(server.url, '-c', 4, '-n', 12)
        assert code == 0 and out['ok'] == 6 and out['refused'] == 6 and out['failed'] == 0, (out, err)
        assert 0 < out['refusal_p50_ms'] < 500 and out['ttft_p50_ms'] >= 50, out


def test_connections():
    """They are kept where both sides want it, refusals included; one that the server closed meanwhile costs no request."""
    with Server('kept', 0.01, 0, refuse=lambda i: i % 3 == 1) as server:
        code, out, err = bench(server.url, '-c', 2, '-n', 12)
        assert code == 0 and out['ok'] == 8 and out['refused'] == 4 and server.connections == 2, (server.connections, out, err)
        assert 'connection:' not in server.heads[0].lower()
        code, out, err = bench(server.url, '-c', 2, '-n', 6, '--close')
        assert code == 0 and out['ok'] + out['refused'] == 6 and server.connections == 8, (server.connections, out, err)
        assert '\r\nConnection: close\r\n' in server.heads[-1]
    with Server('chunked', 0.01, 0) as server:  # says nothing of closing, and closes
        code, out, err = bench(server.url, '-c', 2, '-n', 6)
        assert code == 0 and out['ok'] == 6 and server.connections == 6, (server.connections, out, err)


def test_open_loop():
    with Server(first=0.3, gap=0) as server:
        code, out, err = bench(server.url, '--rate', 40, '-n', 24, '--seed', 5)
        assert code == 0 and out['ok'] == 24 and out['fairness'] is None, (out, err)
        took = server.arrivals[-1] - server.arrivals[0]
        assert 0.25 < took < 5, took  # 24 at 40 a second; one after the other it would take 7 s
        gaps = [b - a for a, b in zip(server.arrivals, server.arrivals[1:])]
        assert max(gaps) > 2 * min(gaps)
        assert out['ttft_p50_ms'] < 3000, out
    with Server(first=0.1, gap=0) as server:  # one at a time: waiting counts
        code, out, err = bench(server.url, '--rate', 1000, '-c', 1, '-n', 5)
        assert out['ttft_max_ms'] > 450 and out['wall_s'] > 0.5, out


def test_bodies():
    with Server(first=0, gap=0) as server:
        bench(server.url, '-n', 2, '--words', 7, '--shared', 3, '--max-tokens', 9, '--model', 'm"x', '--extra', '{"ignore_eos":null,"top_p":0.5}', '--header', 'Authorization: Bearer abc')
        one, two = server.bodies
        assert one == {**two, 'prompt': one['prompt']} and one['prompt'] != two['prompt'] and one['prompt'].split()[:3] == two['prompt'].split()[:3]
        assert len(one['prompt'].split()) == 10 and one['max_tokens'] == 9 and one['model'] == 'm"x' and one['top_p'] == 0.5 and 'ignore_eos' not in one
        assert one['stream'] is True and one['temperature'] == 0 and one['stream_options'] == {'include_usage': True}
        assert server.heads[0].startswith('POST /v1/completions HTTP/1.1\r\n') and '\r\nAuthorization: Bearer abc\r\n' in server.heads[0]
        first = server.bodies[:2]
        bench(server.url, '-n', 2, '--words', 7, '--shared', 3)
        assert [b['prompt'] for b in server.bodies[2:]] == [b['prompt'] for b in first]
        bench(server.url, '-n', 1, '--seed', 2, '--words', 7, '--shared', 3)
        assert server.bodies[4]['prompt'] != first[0]['prompt']
    with Server(first=0, gap=0) as server, tempfile.NamedTemporaryFile('w') as file:
        file.write('plain text\n"a \\"JSON\\" string\\n"\n\n[1, 2, 3]\n{"prompt": "own", "max_tokens": 3}\n')
        file.flush()
        code, out, err = bench(server.url + '/base/v1/', '-n', 5, '--prompts', file.name, '--shared', 2)
        assert code == 0, err
        prompts = [b['prompt'] for b in server.bodies]
        shared = ' '.join(prompts[0].split()[:2]) + ' '
        assert prompts == [shared + 'plain text', shared + 'a "JSON" string\n', [1, 2, 3], 'own', shared + 'plain text'], prompts
        assert server.bodies[3]['max_tokens'] == 3 and server.heads[0].startswith('POST /base/v1/completions ')
        bench(server.url, '-n', 1, '--prompts', file.name, '--chat')
        assert server.bodies[5]['messages'] == [{'role': 'user', 'content': 'plain text'}] and server.heads[5].startswith('POST /v1/chat/completions ')
        bench(server.url + '/x/chat/completions', '-n', 1)
        assert 'messages' in server.bodies[6] and server.heads[6].startswith('POST /x/chat/completions ')
    for wrong in (['ftp://x'], ['http://'], ['http://x:y'], ['http://x', '-n', '0'], ['http://x', '--rate', '-1'], ['http://x', '--extra'], []):
        done = subprocess.run([build / 'tokenring', 'bench', 'serve', *wrong], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr, wrong
    code, out, err = bench('http://127.0.0.1:9', '--extra', '[1]')
    assert code == 1 and 'no JSON object' in err


def test_no_kv_shows_what_the_cache_gives():
    """Making 480 tokens, the cache saves 240 times the work: at least five times the time must be seen."""
    rates = []
    for more in ([], ['--no-kv']):
        done = subprocess.run([build / 'tokenring', 'bench', '-m', stories(), '-t', '2', '-p', '0', '-n', '480', '-r', '1', '--json', *tier_options(), *more],
                              stdout=subprocess.PIPE, check=True, text=True, timeout=120 * patience())
        rates.append(json.loads(done.stdout)['decode_tps'])
    assert rates[0] >= 5 * rates[1] > 0, rates


def test_our_own_stack():
    with Site(stories(), max_queue=2, max_running=2) as site:
        url = f'http://127.0.0.1:{site.port}'
        code, out, err = bench(url, '-c', 2, '-n', 8, '--words', 10, '--max-tokens', 40)
        assert code == 0 and out['ok'] == 8 and out['out_tokens'] == 320 and out['no_done'] == 0 and out['finish_length'] == 8, (out, err)
        assert out['itl_max_ms'] is not None and out['prompt_tokens_p50'] > 10  # 0 where a client that had to wait reads each answer at once
        assert site.stat()['completion_tokens_total'] == 320
        code, out, err = bench(url, '-c', 32, '-n', 200, '--words', 10, '--max-tokens', 40)
        assert code == 0 and out['ok'] + out['refused'] == 200 and out['refused'] > 0, (out, err)


if __name__ == '__main__':
    main()
