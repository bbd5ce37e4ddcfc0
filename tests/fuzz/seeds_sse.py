#!/usr/bin/env python3
"""seeds_sse.py FOLDER: responses for fuzz_sse, good and broken; two bytes before each choose its pieces."""
import itertools, pathlib, sys

folder = pathlib.Path(sys.argv[1])
count = itertools.count()
EVENTS = 'Content-Type: text/event-stream\r\n'
CHUNKED = 'Transfer-Encoding: chunked\r\n'
BODY = ': a comment\n\ndata: {"a":1}\n\ndata: x\r\ndata: y\r\n\r\nevent: e\ndata:z\n\ndata: [DONE]\n\n'


def seed(head, body='', cut=(6, 40)):
    (folder / f'seed-{next(count):03}').write_bytes(bytes(cut) + head.encode() + b'\r\n' + body.encode())


def chunks(text, size, more=''):
    parts = [text[i:i + size] for i in range(0, len(text), size)]
    return ''.join(f'{len(p):x}{more}\r\n{p}\r\n' for p in parts) + '0\r\n'


for cut in ((0, 0), (3, 7), (31, 255)):
    seed('HTTP/1.1 200 OK\r\n' + EVENTS + CHUNKED, chunks(BODY, 10) + '\r\n', cut)
    seed('HTTP/1.1 200 OK\r\n' + EVENTS + CHUNKED, chunks(BODY, 99, ';ext=1') + 'X-Trailer: 1\r\n\r\n', cut)
    seed(f'HTTP/1.1 200 OK\r\n{EVENTS}Content-Length: {len(BODY)}\r\n', BODY, cut)
    seed('HTTP/1.0 200 OK\r\n' + EVENTS, BODY, cut)
    seed('HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 4\r\n', '{"a"', cut)
    seed('HTTP/1.1 100 Continue\r\n', 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n', cut)
for head in ('HTTP/2 200\r\n', 'HTTP/1.1 2000 OK\r\n', 'HTTP/1.1 abc\r\n', 'GET / HTTP/1.1\r\n', 'HTTP/1.1 200 OK\r\nno colon\r\n',
             'HTTP/1.1 204 No Content\r\n', 'HTTP/1.1 200 OK\r\nContent-Length: -1\r\n', 'HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n',
             'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n'):
    seed(head, 'abc')
for body in ('g\r\n', 'ffffffffffffffffff\r\n', '1\r\nab\r\n', '-1\r\n', '\r\n', '3 \r\nabc\r\n0\r\n\r\n'):
    seed('HTTP/1.1 200 OK\r\n' + EVENTS + CHUNKED, body)
