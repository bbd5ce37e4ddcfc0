#!/usr/bin/env python3
"""seeds_stats.py FOLDER: small stats files (docs/stats.md) for fuzz_stats: every kind and unit, known and unknown names."""
import pathlib
import re
import struct
import sys

folder = pathlib.Path(sys.argv[1])
POINT, TEXT, HEADER = 200, 256, 168
LAYOUT = HEADER + 31 * POINT + 961 * TEXT + 29791 * 64
COUNTER, GAUGE, TIME, SIZE, HASH, TEXTS = range(1, 7)


def align(n):
    return (n + 63) // 64 * 64


def stats_file(points, texts=(), cells=1, epoch=2):
    """points: (name, unit, kind, value or values of a histogram with two bounds or number of a text)"""
    descriptions, words = b'', []
    for name, unit, kind, value in points:
        histogram = kind in (TIME, SIZE)
        index = value if kind == TEXTS else len(words)
        if kind != TEXTS:
            words += value if histogram else [value]
        descriptions += struct.pack('<48s16s16s104sBBHIII', name.encode(), unit.encode(), b'group', b'what "this" \\ is\nabout', kind, 1, 2 if histogram else 0, 0, index, 0)
    words += [0] * (-len(words) % 16)
    points_at = align(HEADER)
    bounds_at = align(points_at + len(descriptions))
    texts_at = bounds_at + 64
    cells_at = align(texts_at + TEXT * len(texts))
    size = cells_at + 8 * len(words) * cells
    head = struct.pack('<8sIIQ10I5Q64s', b'TOKNSTAT', 1, LAYOUT, size, len(points), points_at, 2, bounds_at, len(texts), texts_at, cells, cells_at, len(words), 3,
                       epoch, 1, 1000, 0, cells_at, b'seed')
    out = bytearray(size)
    for at, part in ((0, head), (points_at, descriptions), (bounds_at, struct.pack('<QQ', 1500000, 2000000000))):
        out[at:at + len(part)] = part
    for i, text in enumerate(texts):
        out[texts_at + TEXT * i:texts_at + TEXT * (i + 1)] = struct.pack('<II248s', 0, 0, text)
    for cell in range(cells):
        struct.pack_into(f'<{len(words)}Q', out, cells_at + 8 * len(words) * cell, *words)
    return bytes(out)


names = re.findall(r'FAMILY\("\w+", "(\w+)"', pathlib.Path(__file__).resolve().parents[2].joinpath('core/stats/families.def').read_text())
histogram = [3, 1, 1, 5, 70]
seeds = [
    stats_file([('heartbeat_ms', 'unix ms', GAUGE, 5)]),
    stats_file([('state', '', TEXTS, 0), ('model', '', TEXTS, 1), ('build', '', TEXTS, 2), ('x', '', GAUGE, 1)], [b'ready', b'a"b\\c\n\xff\xc3\xa4\x7f\xe2\x98\x83\xf0\x9f\x98\x8a\xed\xa0\x80', b'']),
    stats_file([(n, '', COUNTER, i) for i, n in enumerate(names[:8])], cells=3),
    stats_file([('ttft', 'us', TIME, histogram), ('step_tokens', 'tokens', SIZE, histogram), ('own_time', 'us', TIME, histogram), ('hash', '', HASH, 77)], cells=2),
    stats_file([('load_time_ms', 'ms', GAUGE, 1250), ('loading_percent', 'percent', GAUGE, 40), ('ring_bytes_sent', 'bytes', COUNTER, 9), ('kv_page_bytes', 'bytes', GAUGE, 20480),
                ('seen_ms', 'unix ms', GAUGE, 12345), ('we ird', '', GAUGE, 1), ('same', '', GAUGE, 1), ('same', '', GAUGE, 2), ('n' * 47, 'unix ms', GAUGE, 2**64 - 1)]),
    stats_file([('kv_pages_total', 'pages', GAUGE, 3), ('kv_pages_used', 'pages', GAUGE, 2), ('kv_pages_cached', 'pages', GAUGE, 1), ('stats_interval_ms', 'ms', GAUGE, 9000)]),
    stats_file([('a', '', GAUGE, 1)], epoch=3), b'', b'TOKNSTAT', stats_file([('steps_total', '', COUNTER, 4), ('step_tokens_total', '', COUNTER, 10)])[:-8],
]
states = (b'ready', b'loading', b'draining', b'stopping', b'odd')
seeds += [stats_file([('state', '', TEXTS, 0), ('requests_running', '', GAUGE, 1)], [state]) for state in states]
for i, seed in enumerate(seeds):
    for age in (0, 1, 7):
        (folder / f'seed-{i:02}-{age}').write_bytes(bytes([age]) + seed)
