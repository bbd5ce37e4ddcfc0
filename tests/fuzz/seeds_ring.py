#!/usr/bin/env python3
"""seeds_ring.py FOLDER: conversations for fuzz_ring: the steps of its head comment, good ones and broken ones."""
import itertools
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1])
CLIENT, JOURNAL, WIDE = 1, 2, 4
PAD, REQUEST, DATA, HEAD, CANCEL, CREDIT, RESET, JOURNAL_FRAME, TRAILER = range(1, 10)
OPEN, FIN, EVENT_END = 1, 2, 4
READ, PUBLISH, SLEEP, TAKEN = b'\x08', b'\x0c', b'\x0d', b'\x05\x01'
count = itertools.count()


def frame(kind, flags=0, aux=0, size=0, payload=b''):
    """A frame for the last stream."""
    return b'\x01' + struct.pack('<HBBH', size or len(payload), kind, flags, aux) + payload


def data(size):
    """DATA of zeros for the last stream."""
    return b'\x03' + struct.pack('<H', size)


def raw(size, kind, flags=0, reserved=0, id_=0, aux=0):
    return b'\x00' + struct.pack('<HBBHII', size, kind, flags, reserved, id_, aux)


def write(what, size=0, flags=0):
    return bytes([10, what]) + (struct.pack('<HB', size, flags) if what == 1 else b'\x05' if what == 2 else b'')


def request(slot=0, generation=1):
    return b'\x02' + bytes([slot, generation])


def seed(first, *steps):
    (folder / f'seed-{next(count):03}').write_bytes(bytes([first]) + b''.join(steps))


answer = [request(), READ, write(0), write(1, 500, EVENT_END), write(1, 0, FIN), PUBLISH, SLEEP]
seed(0, *answer)
seed(0, request(), frame(DATA, FIN, 0, 300), READ, *answer[2:])
seed(0, request(), READ, frame(CANCEL), READ, write(1, 5), PUBLISH)
seed(0, request(), READ, write(3), PUBLISH, frame(CANCEL), request(0, 2), READ)
seed(JOURNAL, request(), READ, write(0), write(2), PUBLISH, TAKEN, SLEEP)
seed(0, *[step for i in range(9) for step in (request(i % 8, i + 1), READ)])
seed(0, request(), *[data(16000) for _ in range(3)], READ, PUBLISH, data(16000), READ, PUBLISH)
seed(0, request(), READ, write(0), *[write(1, 16000) for _ in range(3)], PUBLISH, frame(CREDIT, 0, 9000), READ, write(1, 9000))
fill = [write(1, n) for n in (8000, 4000, 2000, 1000, 500, 250, 120, 60, 30, 15, 5, 5, 5)]
# Our writer runs out of room, then even of the room for control frames, so that these wait; then room comes.
more = [step for _ in range(20) for step in (data(16383), data(16383), data(2), READ, PUBLISH)]
streams = [step for i in range(8) for step in (request(i), READ, write(0), write(1, 16384))]
seed(0, *streams, *fill, *more, SLEEP, write(3), PUBLISH, TAKEN, PUBLISH, TAKEN, PUBLISH, SLEEP)
more = [step for _ in range(20) for step in (data(8192), READ, PUBLISH)]
streams = [step for _ in range(3) for step in (write(0), *[write(1, 16384) for _ in range(4)])]
seed(CLIENT, *streams, *fill, request(), *more, SLEEP, write(3), PUBLISH, TAKEN, PUBLISH, TAKEN, PUBLISH, write(0))
seed(WIDE, request(), READ, write(0), *[write(1, 19999) for _ in range(9)], SLEEP, PUBLISH, TAKEN, SLEEP, write(1, 19999), PUBLISH)
head = request()  # for a client this step is a HEAD
seed(CLIENT, write(0), head, frame(DATA, EVENT_END, 0, 200), frame(DATA, FIN), READ, write(3), PUBLISH)
seed(CLIENT, write(0), write(1, 3000, FIN), PUBLISH, head, READ, write(3), PUBLISH, TAKEN, write(0), PUBLISH)
seed(CLIENT, write(0), frame(RESET, 0, 3), READ, write(3), write(0), frame(RESET, 0, 99), READ)
seed(CLIENT, *[write(0) for _ in range(9)], PUBLISH, write(3), PUBLISH, write(0))
seed(CLIENT, write(0), head, frame(TRAILER, FIN, 0, 4, struct.pack('<HH', 200, 0)), READ)
seed(CLIENT | JOURNAL, write(0), head, frame(JOURNAL_FRAME, 0, 0, 40), READ)
seed(CLIENT, write(0), head, *[data(9000) for _ in range(2)], READ)
for role in (0, CLIENT):
    begin = [write(0), head, READ] if role else [request(), READ]
    for kind in range(11):
        for flags, aux, size in ((0, 0, 0), (0, 0, 20), (FIN, 0, 20), (OPEN, 0, 20), (0, 7, 0), (0, 60000, 0), (EVENT_END, 0, 20)):
            seed(role, *begin, frame(kind, flags, aux, size), frame(kind, flags, aux, size), READ)
    seed(role, *begin, raw(20, DATA, 0, 1), READ)
    seed(role, *begin, raw(65535, DATA), READ)
    seed(role, *begin, raw(20, DATA, 0, 0, 0x1009), READ)
    seed(role, *begin, raw(64, PAD), READ)
    seed(role, *begin, b'\x04' + struct.pack('<Q', 1 << 20), READ)
    seed(role, *begin, b'\x04' + struct.pack('<q', -32), READ)
    seed(role, *begin, b'\x05\x00' + struct.pack('<Q', 8), *[write(1, 19999) for _ in range(9)], READ)
# Messages by hand, right and wrong.
for payload in (struct.pack('<HHI', 3, 1, 2) + b'GET/x' + struct.pack('<HI', 1, 2) + b'abc', struct.pack('<HHI', 3, 0, 9) + b'GET/',
                struct.pack('<HHI', 3, 1, 1) + b'G T/' + struct.pack('<HI', 1, 2) + b'abc',
                struct.pack('<HHI', 3, 1, 1) + b'GET/' + struct.pack('<HI', 1, 2) + b'Abc',
                struct.pack('<HHI', 3, 1, 1) + b'GET/' + struct.pack('<HI', 1, 2) + b'a\n\n',
                struct.pack('<HHI', 40, 0, 1) + b'G' * 40 + b'/', struct.pack('<HHI', 3, 0, 1) + b'GETx',
                struct.pack('<HHI', 3, 65, 1) + b'GET/', struct.pack('<HHI', 3, 0, 1) + b'GET/more',
                struct.pack('<HHI', 3, 1, 1) + b'GET/' + struct.pack('<HI', 260, 0) + b'a' * 260):
    seed(0, b'\x00' + struct.pack('<HBBHII', len(payload), REQUEST, OPEN, 0, 0x1000, 0) + payload, READ)
for payload in (struct.pack('<HH', 200, 0), struct.pack('<HH', 99, 0), struct.pack('<HH', 200, 1), b'x',
                struct.pack('<HHHI', 404, 1, 1, 1) + b'ab'):
    seed(CLIENT, write(0), frame(HEAD, 0, 0, 0, payload), READ)
