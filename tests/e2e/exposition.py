"""exposition.py: a strict reader of Prometheus' text format 0.0.4; promtool has its word as well where it is installed."""
import math, re, shutil, subprocess

NAME = r'[a-zA-Z_:][a-zA-Z0-9_:]*'
SAMPLE = re.compile(rf'({NAME})\{{(.*)\}} (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def labels_of(text):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f'labels: {text!r}'
        assert match.group(1) not in labels, f'label twice: {text!r}'
        labels[match.group(1)] = re.sub(r'\\(.)', lambda m: {'n': '\n'}.get(m.group(1), m.group(1)), match.group(2))
        at = match.end()
    return labels


def check_histogram(name, samples):
    rows = {}
    for sample, labels, value in samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != 'le'))
        rows.setdefault(key, {'bucket': []})
        kind = sample[len(name) + 1:]
        if kind == 'bucket':
            rows[key]['bucket'].append((float(labels['le']), value))
        else:
            rows[key][kind] = value
    for row in rows.values():
        bounds, counts = zip(*row['bucket'])
        assert list(bounds) == sorted(set(bounds)) and bounds[-1] == math.inf, (name, bounds)
        assert list(counts) == sorted(counts), (name, counts)
        assert counts[-1] == row['count'] and row['sum'] >= 0, (name, row)


def value(samples, name, **labels):
    """The one sample of that name which has these labels among its own."""
    found = [v for (n, have), v in samples.items() if n == 'tokenring_' + name and set(labels.items()) <= set(have)]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def parse(text):
    """{(sample name, sorted labels): value}; asserts that the text keeps every rule."""
    assert text.endswith('\n') and '\r' not in text and '\n\n' not in text
    out, types, seen, family, members = {}, {}, set(), None, []

    def end():
        if family:
            assert members, f'{family} has no sample'
            if types[family] == 'histogram':
                check_histogram(family, members)
    for line in text[:-1].split('\n'):
        if line.startswith('# HELP '):
            end()
            _, _, family, about = line.split(' ', 3)
            assert family not in seen and about.strip(), line
            seen.add(family)
            members = []
            continue
        if line.startswith('# TYPE '):
            _, _, name, kind = line.split(' ')
            assert name == family and name not in types and kind in ('counter', 'gauge', 'histogram'), line
            assert (kind == 'counter') == name.endswith('_total'), line
            assert not re.search(r'_(ms|us|ns|percent|count|sum|bucket)$', name), line
            types[name] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.group(1), labels_of(match.group(2)), float(match.group(3))
        allowed = [family + s for s in ('_bucket', '_sum', '_count')] if types[family] == 'histogram' else [family]
        assert name in allowed and name.startswith('tokenring_'), line
        key = (name, tuple(sorted(labels.items())))
        assert key not in out, f'twice: {line}'
        out[key] = value
        members.append((name, labels, value))
    end()
    promtool = shutil.which('promtool')
    if promtool:
        done = subprocess.run([promtool, 'check', 'metrics'], input=text, text=True, capture_output=True)
        assert done.returncode == 0 and not done.stderr.strip(), done.stdout + done.stderr
    return out
