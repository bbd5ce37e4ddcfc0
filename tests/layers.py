#!/usr/bin/env python3
"""layers.py: who may include whom (tests/layers.txt), and whether each header compiles alone.

    tests/layers.py               checks the tree: one `ok` or `not ok` line a rule
    tests/layers.py --self-test   plants one fault a rule in a small tree, and wants each reported

Rules: an include in quotes names an existing file from the root (in ngx_module, as nginx's own sources do, and in
tests also one beside it); what a file includes, directly or through others,
belongs to its own layer, to core/base, or to what its line in layers.txt gives it (with what those layers may
include; a single file there gives that file alone); x_priv.h stays in its folder; uv.h is core/worker's; nginx's
headers are ngx_module's; what goes into nginx includes neither check.h nor xalloc.h; every header compiles alone.
"""
import os, pathlib, re, subprocess, sys, tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
ABORTING = {'core/base/check.h', 'core/base/xalloc.h', 'core/base/buffer.h', 'core/base/log.h'}


class Tree:
    def __init__(self, root, table):
        self.root = root
        self.layers = {}  # layer -> (allowed entries, forbidden entries)
        for line in table.splitlines():
            line = line.split('#')[0].strip()
            if line:
                name, _, rest = line.partition(':')
                words = rest.split()
                self.layers[name] = ({w for w in words if w[0] != '-'}, {w[1:] for w in words if w[0] == '-'})
        listed = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=root, text=True, capture_output=True)
        names = listed.stdout.split('\n') if listed.returncode == 0 else \
            [str(p.relative_to(root)) for p in root.rglob('*') if p.is_file()]
        self.files = {n: INCLUDE.findall((root / n).read_text(errors='replace'))
                      for n in names if re.search(r'\.(c|h|def|inc)$', n) and (root / n).is_file()}
        for name in self.files:
            if name.startswith(('ngx_module/', 'tests/')):
                self.files[name] = [(kind, self.beside(name, target) if kind == '"' else target) for kind, target in self.files[name]]
        self.faults = []

    def beside(self, name, target):
        local = os.path.join(os.path.dirname(name), target)
        return local if target not in self.files and local in self.files else target

    def layer(self, name):
        """The layer with the longest name that this path begins with; None if it has none."""
        fits = [l for l in self.layers if name.startswith(l + '/') or (name.startswith(l) and name[len(l):len(l) + 1] in '._')]
        return max(fits, key=len, default=None)

    def closure(self, layer):
        """Layers and single files that a layer may reach."""
        seen, todo = set(), [layer, 'core/base']
        while todo:
            entry = todo.pop()
            if entry not in seen:
                seen.add(entry)
                if entry in self.layers and '*' not in self.layers[entry][0]:
                    todo += self.layers[entry][0]
        return seen

    def reach(self, name):
        """Every file that this one includes, directly or not, with the way there."""
        way, todo = {}, [name]
        while todo:
            at = todo.pop()
            for kind, target in self.files.get(at, ()):
                if kind == '"' and target not in way and target != name:
                    way[target] = way.get(at, []) + [at]
                    todo.append(target)
        return way

    def fault(self, rule, text):
        self.faults.append((rule, text))

    def check_file(self, name):
        layer = self.layer(name)
        if layer is None:
            return self.fault('layer', f'{name}: no line of layers.txt covers it')
        allowed, forbidden = self.layers[layer]
        reachable = None if '*' in allowed else self.closure(layer)
        for target, way in self.reach(name).items():
            if target not in self.files:
                if way == [name]:
                    self.fault('exists', f'{name} includes "{target}", which is no file from the root')
                continue
            other = self.layer(target)
            through = '' if len(way) == 1 else ' (through ' + ', '.join(way[1:]) + ')'
            if other in forbidden or (reachable is not None and other not in reachable and target not in reachable):
                self.fault('layer', f'{name} may not include {target}{through}')
            if target.endswith('_priv.h') and way == [name] and not name.startswith('tests/') and \
                    os.path.dirname(target) != os.path.dirname(name):
                self.fault('priv', f'{name} includes {target}, private to its folder')
            if target in ABORTING and (layer in ('core/ring', 'ngx_module') or name in ('core/stats/reader.c', 'core/stats/reader.h')):
                self.fault('nginx', f'{name} goes into nginx, which must not see {target}{through}')
        for kind, target in self.files[name]:
            if target == 'uv.h' and not name.startswith(('core/worker/', 'tests/')):
                self.fault('uv', f'{name} includes uv.h')
            if re.match(r'ngx_(config|core|http|event)', target) and not name.startswith(('ngx_module/', 'tests/')):
                self.fault('ngx', f'{name} includes {target}')

    def check_headers(self, compilers):
        """Compiles each header by itself, many in one run of the compiler."""
        headers = [n for n in sorted(self.files) if n.endswith('.h') and not n.startswith('ngx_module/')]
        with tempfile.TemporaryDirectory() as scratch:
            sources = []
            for i, header in enumerate(headers):
                source = pathlib.Path(scratch) / f'{i}.c'
                source.write_text(f'#include "{header}"\n#include "{header}"\n')
                sources.append(str(source))
            for compiler in compilers:
                # Some kernels' headers are for one instruction set; nothing is run here.
                done = subprocess.run([*compiler, '-std=c17', '-D_GNU_SOURCE', '-march=sapphirerapids', '-Wall', '-Wextra', '-Werror', '-Wno-unused-function', '-Wno-unused-variable',
                                       '-fsyntax-only', '-I.', *sources], cwd=self.root, text=True, capture_output=True)
                if done.returncode != 0:
                    for line in [l for l in done.stderr.splitlines() if 'error' in l][:10] or [done.stderr[-500:]]:
                        self.fault('alone', f'{compiler[-1]}: {line}')

    def check(self, compilers):
        for name in sorted(self.files):
            self.check_file(name)
        self.check_headers(compilers)


RULES = ('exists', 'layer', 'priv', 'nginx', 'uv', 'ngx', 'alone')


def report(tree):
    for rule in RULES:
        here = [text for r, text in tree.faults if r == rule]
        print(f'{"not ok" if here else "ok"} layers {rule}')
        for text in here:
            print('    ' + text)
    print(f'{len(tree.files)} files, {sum(map(len, tree.files.values()))} includes')
    return 1 if tree.faults else 0


def self_test():
    """Each file of this tree breaks one rule; nothing else may be reported."""
    table = 'core/base:\ncore/ring: core/base\ncore/a: core/base\ncore/b: core/a\ncore/c: core/b core/d/one.h\ncore/d: core/e\n' \
            'core/e:\ncore/worker: *\ntools/x: core/a\ntools: * -core/worker\ntests: *\n'
    good = {
        'core/base/check.h': '', 'core/a/a.h': '#include "core/base/check.h"\n', 'core/b/b.h': '#include "core/a/a.h"\n',
        'core/c/c.c': '#include "core/b/b.h"\n#include "core/d/one.h"\n', 'core/d/one.h': 'typedef int one;\n',
        'core/d/two.h': '#include "core/e/e.h"\n', 'core/e/e.h': '', 'core/e/e_priv.h': '', 'core/e/e.c': '#include "core/e/e_priv.h"\n',
        'core/worker/w.c': '#include <uv.h>\n#include "core/d/two.h"\n', 'tools/y.c': '#include "core/d/two.h"\n',
        'tools/x.c': '#include "core/a/a.h"\n', 'tests/t.c': '#include "core/e/e_priv.h"\n', 'core/worker/w.h': '',
        'tests/s.c': '#include "s.h"\n', 'tests/s.h': '',
    }
    bad = [
        ('exists', 'core/a/f.c', '#include "a.h"\n'), ('layer', 'core/a/f.c', '#include "core/b/b.h"\n'),
        ('layer', 'core/c/f.c', '#include "core/d/two.h"\n'), ('layer', 'core/base/f.c', '#include "core/a/a.h"\n'),
        ('layer', 'core/c/f.c', '#include "core/d/one.h"\n#include "core/e/e.h"\n'), ('layer', 'tools/x.c', '#include "core/e/e.h"\n'),
        ('layer', 'tools/y.c', '#include "core/worker/w.h"\n'), ('layer', 'other/f.c', ''),
        ('layer', 'core/d/one.h', '#include "core/e/e.h"\n'), ('priv', 'core/d/f.c', '#include "core/e/e_priv.h"\n'),
        ('nginx', 'core/ring/f.c', '#include "core/base/check.h"\n'), ('exists', 'tests/f.c', '#include "none.h"\n'), ('uv', 'core/a/f.c', '#include <uv.h>\n'),
        ('ngx', 'core/a/f.c', '#include <ngx_core.h>\n'), ('alone', 'core/a/f.h', 'one f(void);\n'),
        ('alone', 'core/a/f.h', 'enum twice { TWICE };\n'),
    ]
    code = 0
    for rule, name, text in [(None, '', '')] + bad:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, content in (good | ({name: text} if rule else {})).items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(content)
            tree = Tree(root, table)
            tree.check([['cc']])
            got = {r for r, _ in tree.faults}
            if got != ({rule} if rule else set()):
                print(f'not ok layers self-test: {name} {text!r}: wanted {rule}, got {tree.faults}')
                code = 1
    if code == 0:
        print(f'ok layers self-test: {len(bad)} planted faults, each reported')
    return code


if __name__ == '__main__':
    if sys.argv[1:] == ['--self-test']:
        sys.exit(self_test())
    here = pathlib.Path(__file__).resolve().parent
    tree = Tree(here.parent, (here / 'layers.txt').read_text())
    tree.check([['cc']])
    sys.exit(report(tree))
