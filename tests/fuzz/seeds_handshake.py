#!/usr/bin/env python3
"""seeds_handshake.py FOLDER: handshakes for fuzz_handshake: good ones of both roles, each kind of region, cut hellos."""
import itertools, pathlib, sys

folder = pathlib.Path(sys.argv[1])
count = itertools.count()
FIELDS = 13  # of the hello that a change can name
NOTHING, ALL, DRAIN, CLOSE, TURN_AWAY = 7, 0, 5, 6, 14


def seed(*parts):
    (folder / f'seed-{next(count):03}').write_bytes(bytes(b for part in parts for b in (part if isinstance(part, (bytes, list)) else [part])))


for role in (0, 1):
    for config in (0, 2 | 4, 8 | 16, 32, 64):
        seed(role | config, 0, NOTHING, ALL, NOTHING, DRAIN, NOTHING)
    for region in range(6):
        seed(role, 0, 2 + 8 * region, 200, 1, NOTHING)
    for fds in range(16):  # a first part with so many descriptors, then the rest
        seed(role, 0, 4 + 8 * fds, 100, 3, 255, 3, 255, 3, 255, NOTHING)
    seed(role, 3, NOTHING, ALL, NOTHING)                      # a refusal without a text
    seed(role, 3 + 4 * 2, 11, ord('n'), 11 + FIELDS, 7, ALL)  # with one, and a byte that is no text
    for field in range(FIELDS):
        for byte in range(0, 8 if field in (0, 6, 7, 8) else 4, 1):
            for value in (0, 1, 2, 3, 16, 255):
                if field + FIELDS * byte < 128:
                    seed(role, 4, field + FIELDS * byte, value, ALL, NOTHING)
    seed(role, 0, CLOSE, NOTHING)
    seed(role, 0, 3, 10, CLOSE, NOTHING)
    seed(role, 0, TURN_AWAY, DRAIN, ALL, NOTHING)
