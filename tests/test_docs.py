#!/usr/bin/env python3
"""test_docs.py [--write]: docs/ says what the sources say.

The option table of docs/options.md is made from core/worker/options.def (--write puts it there); docs/nginx.md has a
section for each directive with its default and context, and each variable; docs/api.md has every field that
core/api reads and every error code. Prints `ok NAME` or `not ok NAME: why` for each test."""
import os
import pathlib
import re
import sys

root = pathlib.Path(os.environ.get('TOKENRING_SOURCE', pathlib.Path(__file__).resolve().parents[1]))


def read(path):
    return (root / path).read_text(encoding='utf-8')


def strings(text):
    """The C strings of a macro call's arguments, adjacent ones joined."""
    return [re.sub(r'\\(.)', r'\1', ''.join(re.findall(r'"((?:[^"\\]|\\.)*)"', run)))
            for run in re.findall(r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*', text)]


def option_table():
    rows = ['| option | default | meaning |', '|---|---|---|']
    calls = re.findall(r'^OPTION\((.*?)\)$', read('core/worker/options.def'), re.M | re.S)
    for call in calls:
        name, default, argument, help = strings(call)
        option = f'--{name} {argument}'.strip()
        rows.append(f'| `{option}` | {f"`{default}`" if default else ""} | {help.replace("|", "/")} |')
    assert len(rows) > 15, 'options.def is not understood'
    return '\n'.join(rows) + '\n'


def split_options():
    """docs/options.md: before the table, the table, after it."""
    return re.fullmatch(r'(.*-->\n)(.*?)(<!-- end -->.*)', read('docs/options.md'), re.S).groups()


def test_options():
    assert split_options()[1] == option_table(), 'docs/options.md differs; run tests/test_docs.py --write'


CONTEXT = {'NGX_HTTP_TOKENRING_ANY': 'http, server, location',
           'NGX_HTTP_LOC_CONF': 'location, if in location, limit_except'}


def test_directives():
    source = read('ngx_module/ngx_http_tokenring_module.c')
    wanted = dict(re.findall(r'\{ngx_string\("(tokenring_\w+)"\),\s*(NGX_HTTP_\w+) \|', source))
    assert len(wanted) >= 10 and 'tokenring_pass' in wanted, wanted
    sections = dict(re.findall(r'^### (\w+)\n(.*?)(?=^##)', read('docs/nginx.md'), re.M | re.S))
    assert sorted(wanted) == sorted(sections), set(wanted) ^ set(sections)
    for name, flag in wanted.items():
        lines = sections[name]
        assert f'    Syntax:  {name} ' in lines, name
        assert f'    Context: {CONTEXT[flag]}\n' in lines, f'context of {name}'


def test_directive_defaults():
    """The defaults of plain directives, as merge_loc_conf has them."""
    source, text = read('ngx_module/ngx_http_tokenring_module.c'), read('docs/nginx.md')
    merges = re.findall(r'ngx_conf_merge_(msec_|uint_|)value\(conf->upstream\.(\w+),\s*prev->upstream\.\w+,\s*(\d+)\)', source)
    assert len(merges) >= 8, merges
    for kind, name, value in merges:
        if kind == 'msec_':
            value = f'{int(value) // 1000}s' if value != '0' else '0'
        elif kind == '':
            value = 'on' if value == '1' else 'off'
        line = f'    Default: tokenring_{name} {value};\n'
        assert line in text, line.strip()
    masks = re.search(r'next_upstream_masks\[\] = \{(.*?)ngx_null_string', source, re.S).group(1)
    syntax = re.search(r'Syntax:  tokenring_next_upstream (.*?);', text, re.S).group(1)
    assert re.findall(r'ngx_string\("(\w+)"\)', masks) == re.findall(r'\w+', syntax), syntax


def test_variables():
    wanted = re.findall(r'\{ngx_string\("(tokenring_\w+)"\),', read('ngx_module/ngx_http_tokenring_variables.c'))
    listed = re.findall(r'^- `\$(tokenring_\w+)`:', read('docs/nginx.md'), re.M)
    assert len(wanted) >= 5 and sorted(wanted) == sorted(listed), (wanted, listed)
    used = set(re.findall(r'\$(tokenring_\w+)', read('conf/nginx.conf')))
    assert used <= set(wanted), used - set(wanted)


def test_fields():
    text, names = read('docs/api.md'), set()
    for file in ('request.c', 'refuse.c', 'prompt.c'):
        source = read('core/api/' + file)
        names |= set(re.findall(r'field_\w+\((?:f|&inner), "(\w+)"', source))
        names |= set(re.findall(r'^    \{"(\w+)", ', source, re.M))
        for row in re.findall(r'\bnames\[\] = \{(.*?)\}', source):
            names |= set(strings(row))
    assert {'temperature', 'stop', 'max_completion_tokens', 'messages', 'n', 'logprobs'} <= names, names
    missing = [name for name in sorted(names) if not re.search(r'\b%s\b' % name, text)]
    assert not missing, missing


def test_stats_layout():
    """docs/stats.md's offsets, against the structures: what stands in a row there follows each other here."""
    text, source = read('docs/stats.md'), read('core/stats/format.h')
    sizes = {'char': 1, 'uint8_t': 1, 'uint16_t': 2, 'uint32_t': 4, 'uint64_t': 8}
    numbers = dict(re.findall(r'#define (STATS_\w+) (\d+)', source))
    tables = re.findall(r'^\| at \| type.*?\n\n', text, re.M | re.S)
    places = {}
    for struct, table in zip(('stats_header', 'stats_point_desc'), tables, strict=True):
        rows = re.findall(r'^\| ([\d, ]+) \| [^|]* \| ([^|]+) \|', table, re.M)
        places[struct] = {name: int(offset) for offsets, names in rows for offset, name in zip(offsets.split(', '), re.findall(r'`(\w+)`', names))}
    for struct, fields in places.items():
        at = 0
        body = re.search(r'struct %s \{(.*?)\n\};' % struct, source, re.S).group(1)
        for declaration in re.findall(r'^    (?:_Atomic )?(\w+) ([^;]+);', body, re.M):
            for name in declaration[1].split(','):
                name, _, count = name.strip().rstrip(']').partition('[')
                size = sizes[declaration[0]]
                if name != 'reserved':
                    assert fields.pop(name) == at, f'{struct}.{name} is at {at}'
                at += size * int(numbers.get(count, count) or 1)
        assert not fields, fields
        assert f'has {at} bytes' in text, f'{struct} has {at} bytes'
    kinds = re.findall(r'STATS_([A-Z]+)(?: = 1)?,', re.search(r'enum stats_kind \{(.*?)STATS_KINDS', source, re.S).group(1))
    assert [(str(i + 1), k.lower()) for i, k in enumerate(kinds)] == re.findall(r'^\| (\d) \| ([a-z]+) \|', text, re.M), kinds


def test_error_codes():
    text = read('docs/api.md')
    rows = re.findall(r'^STATUS\((\w+), (\d+), "\w*", "(\w+)"', read('core/base/status.def'), re.M)
    assert len(rows) > 15, rows
    for _, http, code in rows:
        assert re.search(r'^\|.*\b%s\b.*\| .*`%s`' % (http, code), text, re.M), f'{http} {code}'
    for file in ('conf/nginx.conf', 'conf/tokenring-location.conf', 'ngx_module/ngx_http_tokenring_stream.c'):
        for code in re.findall(r'\\?"code\\?":\\?"(\w+)\\?"', read(file)):
            assert f'`{code}`' in text, f'{code} of {file}'


if sys.argv[1:] == ['--write']:
    before, _, after = split_options()
    (root / 'docs/options.md').write_text(before + option_table() + after, encoding='utf-8')
    sys.exit(0)
bad = 0
for name, function in list(globals().items()):
    if name.startswith('test_'):
        try:
            function()
            print('ok docs', name[5:])
        except (AssertionError, AttributeError, OSError, ValueError) as error:
            bad += 1
            print('not ok docs', name[5:] + ':', error)
sys.exit(bad > 0)
