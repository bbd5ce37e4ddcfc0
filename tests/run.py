#!/usr/bin/env python3
"""run.py: runs every test of Tokenring and counts; what `make test` and `make test-long` call.

    tests/run.py [--build build] [--long] [--only STEP,...] [--list]

Steps: meson (unit, kernels, stress, golden, end to end), tiers (end to end with forced scalar, AVX2 and AVX-VNNI kernels), clang
(warnings are errors there too), sanitizers, threads (ThreadSanitizer), valgrind, load (long only), fuzz, soak. The last line is `N passed, N failed, N skipped`. A program of Check counts its checks, a script its `ok` and
`not ok` lines, anything else counts one. A line `SKIP: what: why` is a skip; with STRICT=1 a skip fails, except that of
an instruction set which this CPU lacks (`SKIP: tier ...`).
"""
import argparse, json, os, pathlib, re, shutil, subprocess, sys, threading, time

root = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument('--build', default='build')
parser.add_argument('--long', action='store_true', help='soak, load, long fuzzing, long valgrind')
parser.add_argument('--only', default='', help='steps to run, with commas between them')
parser.add_argument('--list', action='store_true', help='print the steps and stop')
args = parser.parse_args()
build = (root / args.build).resolve()
strict = os.environ.get('STRICT', '') not in ('', '0')
shared = pathlib.Path(os.environ.get('TOKENRING_SHARED', root.parent / 'shared'))
env = dict(os.environ, TOKENRING_SOURCE=str(root), TOKENRING_BUILD=str(build), TOKENRING_SHARED=str(shared))
if args.long:
    env['TOKENRING_LONG'] = '1'
passed = failed = 0
skips, failures = [], []
counting = threading.Lock()


def count(name, code, output):
    """Adds one program's outcome to the totals."""
    global passed, failed
    before = failed
    here = [line for line in output.splitlines() if line.startswith('SKIP: ')]
    skips.extend(here)
    checks = re.findall(r'^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)', output, re.M)
    oks = len(re.findall(r'^ok\b', output, re.M))
    bads = re.findall(r'^not ok\b.*', output, re.M)
    if checks:
        for total, fails, errors in checks:
            passed += int(total) - int(fails) - int(errors)
            failed += int(fails) + int(errors)
    elif oks or bads:
        passed += oks
        failed += len(bads)
    elif code == 0:
        passed += 1
    elif code == 77 and not here:
        skips.append(f'SKIP: {name}: no reason given')
    if code not in (0, 77) and failed == before:
        failed += 1
    if failed > before:
        failures.append(name)
        print(f'--- {name} failed (exit status {code}); its last lines:')
        print('\n'.join('    ' + line for line in output.splitlines()[-40:]), flush=True)


def command(name, argv, timeout=600, extra=None):
    """Runs one command as one test program."""
    start = time.time()
    try:
        done = subprocess.run(argv, cwd=root, env=dict(env, **(extra or {})), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, errors='replace')
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, output = 124, (late.stdout or b'').decode(errors='replace') + f'\nran past {timeout} s'
    with counting:
        print(f'{name}: {"ok" if code == 0 else "skipped" if code == 77 else "FAILED"} ({time.time() - start:.0f} s)', flush=True)
        count(name, code, output)
    return code == 0


def programs_of(directory, suite):
    """The programs of a suite's tests, as ninja names them."""
    told = subprocess.run(['meson', 'introspect', '--tests', str(directory)], stdout=subprocess.PIPE, check=True)
    return sorted({os.path.relpath(test['cmd'][0], directory) for test in json.loads(told.stdout)
                   if any(name.split(':')[-1] == suite for name in test['suite'])})


def compile_in(name, directory, options, compiler, suite=None):
    """Configures a build folder of its own and builds everything in it, or what a suite's tests need."""
    global failed
    start = time.time()
    steps = []
    if not (directory / 'build.ninja').exists():
        steps.append(lambda: ['meson', 'setup', str(directory), *options])
    steps.append(lambda: ['ninja', '-C', str(directory), *(programs_of(directory, suite) if suite else [])])
    for argv in steps:
        done = subprocess.run(argv(), cwd=root, env=dict(env, CC=compiler), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors='replace')
        if done.returncode != 0:
            count(name, 1, done.stdout)
            return False
    print(f'{name}: built ({time.time() - start:.0f} s)', flush=True)
    count(name, 0, '')
    return True


def run_meson(directory, options, extra):
    """`meson test`; returns its outcomes as (name, exit status, seconds, output), and what it printed itself."""
    log = directory / 'meson-logs' / 'testlog.json'
    log.unlink(missing_ok=True)
    done = subprocess.run(['meson', 'test', '-C', str(directory), '--no-rebuild', '--num-processes', str(os.cpu_count() or 1), *options],
                          cwd=root, env=dict(env, TOKENRING_BUILD=str(directory), **(extra or {})), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors='replace')
    outcomes = []
    for line in log.read_text().splitlines() if log.exists() else []:
        test = json.loads(line)
        code = {'OK': 0, 'SKIP': 77, 'EXPECTEDFAIL': 0}.get(test['result'], test.get('returncode') or 1)
        outcomes.append((test['name'], code, test.get('duration', 0), (test.get('stdout') or '') + '\n' + (test.get('stderr') or '')))
    return outcomes, done.stdout


def meson_tests(label, directory, options=(), extra=None):
    """Runs `meson test` and counts each program by its own output. A program of the end-to-end or stress tests that
    fails, where timing and neighbours have a say, runs once more, alone, and that outcome counts; both are printed."""
    outcomes, printed = run_meson(directory, options, extra)
    if not outcomes:
        return count(label, 1, printed)
    for name, code, seconds, output in outcomes:
        print(f"{label} {name}: {'ok' if code == 0 else 'skipped' if code == 77 else 'FAILED'} ({seconds:.1f} s)", flush=True)
        if code not in (0, 77) and re.search(r'e2e|stress', name.split(' / ')[0]):
            print('\n'.join('    ' + line for line in output.splitlines()[-40:]))
            again, _ = run_meson(directory, [name.split(' / ')[-1], *options], extra)
            if again:
                _, code, seconds, output = again[0]
                print(f"{label} {name}: once more: {'ok' if code == 0 else 'FAILED'} ({seconds:.1f} s)", flush=True)
        count(f'{label} {name}', code, output)


def step_meson():
    meson_tests('test', build)


# The end-to-end programs that run a model, in the tiers that a new CPU would not choose. Short: the tests with
# stories260K (the C program, and of `bench` the only test with a model), which judge answers, hashes, ends, forks,
# cached pages and admission. Long: every program, whole, those with the default model too; only the module's own tests
# have no worker that could be forced.
TIER_PROGRAMS = {'api': [], 'cache': [], 'choices': [], 'exact': [], 'fair': [], 'ops': [], 'bench': ['test_our_own_stack']}


def step_tiers():
    for tier in ('scalar', 'avx2', 'avxvnni'):
        probe = subprocess.run([build / 'tokenringd', '-t', '--model', os.devnull, '--tier', tier], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if 'this CPU' in probe.stdout:
            skips.append(f'SKIP: tier {tier}: not on this CPU')
            continue
        extra = {'TOKENRING_TIER': tier, 'CK_TIMEOUT_MULTIPLIER': '10' if tier == 'scalar' else '2'}
        programs = {path.stem[5:]: [] for path in sorted((root / 'tests/e2e').glob('test_*.py'))} if args.long else TIER_PROGRAMS
        for name, tests in programs.items():
            command(f'tier {tier} {name}', ['python3', f'tests/e2e/test_{name}.py', *tests], timeout=3600 if args.long else 300, extra=extra)
        meson_tests(f'tier {tier}', build, ['e2e worker model', *(['--timeout-multiplier', '10'] if args.long else [])], extra)


def step_clang():
    compile_in('clang build', root / 'build-clang', ['--buildtype=debugoptimized'], 'clang')


def step_sanitizers():
    directory = root / 'build-asan'
    if compile_in('sanitizer build', directory, ['-Db_sanitize=address,undefined', '-Db_lundef=false'], 'gcc'):
        options = {'ASAN_OPTIONS': 'detect_leaks=1:abort_on_error=1', 'UBSAN_OPTIONS': 'halt_on_error=1:print_stacktrace=1'}
        shutil.copy(build / 'ngx_http_tokenring_module.so', directory)
        meson_tests('sanitizers', directory, ['--suite', 'unit', '--suite', 'sanitize', '--timeout-multiplier', '5'], options)


def step_threads():
    """What several threads do, under ThreadSanitizer. jemalloc is not instrumented and its mutexes unlock unseen, so
    that each of its locks looks like a second one: reports about mutexes are off, those of races are not."""
    directory = root / 'build-tsan'
    if compile_in('thread sanitizer build', directory, ['-Db_sanitize=thread', '-Db_lundef=false'], 'gcc', suite='threads'):
        options = {'TSAN_OPTIONS': 'exitcode=66:report_mutex_bugs=0', 'CK_EXCLUDE_TAGS': 'slow', 'CK_TIMEOUT_MULTIPLIER': '10'}
        meson_tests('threads', directory, ['--suite', 'threads', '--timeout-multiplier', '5'], options)


def step_valgrind():
    command('valgrind', ['tests/valgrind.sh', str(build)], timeout=3600 if args.long else 600)


def step_load():
    """Times under load: only where there is time for several tries."""
    for name in ('pace', 'crowd', 'outside') if args.long else ():
        command(name, ['python3', f'tests/long/{name}.py'], timeout=3600)


def step_fuzz():
    command('fuzz', ['tests/fuzz/run.sh', '600' if args.long else '15'], timeout=7200 if args.long else 900)


def step_soak():
    command('soak', ['python3', 'tests/e2e/soak.py', '3600' if args.long else '20'], timeout=4500 if args.long else 120)


steps = {name[5:]: function for name, function in list(globals().items()) if name.startswith('step_')}
if args.list:
    print('\n'.join(steps))
    sys.exit(0)
chosen = args.only.split(',') if args.only else list(steps)
for name in chosen:
    if name not in steps:
        sys.exit(f'run.py: no step is named {name!r}; --list prints them')
start = time.time()
model = subprocess.run([root / 'tools/get_model.sh'], stdout=subprocess.PIPE, text=True).stdout.strip()
if model:
    env['TOKENRING_MODEL'] = model
if not shared.is_dir():
    print(f'note: {shared} does not exist; tests that need it skip')
# Neither the hour of soak nor the long fuzzing looks at times: they run side by side.
side = [threading.Thread(target=steps[name]) for name in ('fuzz', 'soak') if args.long and {'fuzz', 'soak'} <= set(chosen)]
for name in chosen:
    if not (side and name in ('fuzz', 'soak')):
        steps[name]()
for thread in side:
    thread.start()
for thread in side:
    thread.join()

unexcused = [line for line in skips if not line.startswith('SKIP: tier ')]
for line in sorted(set(skips)):
    print(line)
if strict and unexcused:
    print('STRICT: a skip is a failure')
    failed += len(unexcused)
if failures:
    print('failed: ' + ', '.join(failures))
print(f'({time.time() - start:.0f} s)')
print(f'{passed} passed, {failed} failed, {len(skips)} skipped', flush=True)
sys.exit(1 if failed else 0)
