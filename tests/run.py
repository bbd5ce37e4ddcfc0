#!/usr/bin/env python3
"""run.py: runs every test of Tokenring and counts; what `make test` and `make test-long` call.

    tests/run.py [--build build] [--long] [--only STEP,...] [--list]

Steps: meson (unit, kernels, stress, golden, end to end), tiers (end to end with forced scalar, AVX2 and AVX-VNNI kernels), clang
(warnings are errors there too), sanitizers, threads (ThreadSanitizer), valgrind, fuzz, load (long only), soak. What a step needs is built first.
Then programs that measure nothing run as many at a time as there are CPUs, and at last the others, each alone. The last line is
`N passed, N failed, N skipped`. A program of Check counts its checks, a script its `ok` and `not ok` lines, anything else counts
one. A line `SKIP: what: why` is a skip; with STRICT=1 a skip fails, except that of an instruction set which this CPU lacks
(`SKIP: tier ...`).
"""
import argparse, concurrent.futures, contextlib, dataclasses, json, os, pathlib, random, re, shutil, signal, subprocess, sys, tempfile, time

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
perturb = os.environ.get('MALLOC_PERTURB_', str(random.randint(1, 255)))  # nothing may depend on what malloc finds
if args.long:
    env['TOKENRING_LONG'] = '1'
passed = failed = 0
skips, failures, second_tries = [], [], []


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
    elif code == 0 and not here:
        passed += 1
    elif code == 77 and not here:
        skips.append(f'SKIP: {name}: no reason given')
    if code not in (0, 77) and failed == before:
        failed += 1
    if failed > before:
        failures.append(name)
        print(f'--- {name} failed (exit status {code}); its last lines:')
        print(last_lines(output), flush=True)


def last_lines(output):
    return '\n'.join('    ' + line for line in output.splitlines()[-40:])


@dataclasses.dataclass
class Job:
    """A test program."""
    name: str
    argv: list
    env: dict
    timeout: float
    cwd: pathlib.Path = root
    alone: bool = False  # it measures, or loads the machine
    again: bool = False  # neighbours may have a say in it: if it fails, it runs once more, alone, and that counts


running = set()


def below(pid):
    """A process and all that it and its children have started, whatever group they are in."""
    found = [pid]
    for parent in found:
        for children in pathlib.Path(f'/proc/{parent}/task').glob('*/children'):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def end(process):
    """Ends a program with all that it started; what was stopped ends, too."""
    pids = below(process.pid) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def stop(number, frame):
    """What runs is in process groups of its own, and ends with us all the same."""
    for process in list(running):
        end(process)
    print(f'stopped; {passed} passed, {failed} failed until then', flush=True)
    os._exit(128 + number)


def execute(job):
    """Runs a job; returns its exit status, what it printed and how long it took."""
    start = time.time()
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(job.argv, cwd=job.cwd, env=dict(env, **job.env), stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as why:
            return 127, f'{job.argv[0]} does not start: {why}', 0
        running.add(process)
        late = ''
        try:
            code = process.wait(job.timeout)
        except subprocess.TimeoutExpired:
            code, late = 124, f'\nran past {job.timeout:.0f} s'
        end(process)
        process.wait()
        running.discard(process)
        out.seek(0)
        return code, out.read().decode(errors='replace') + late, time.time() - start


def may_again(job, code, output):
    """Whether neighbours may be the reason: they make no program crash, hang or race."""
    return job.again and code not in (0, 77, 124, 127) and code > 0 and not re.search('Sanitizer:|runtime error:', output)


def told(name, code, seconds):
    print(f'{name}: {"ok" if code == 0 else "skipped" if code == 77 else "FAILED"} ({seconds:.1f} s)', flush=True)


def settle(job, code, output, seconds):
    """Counts a job, or runs it once more."""
    told(job.name, code, seconds)
    if may_again(job, code, output):
        run_again(job, output)
    else:
        count(job.name, code, output)


def run_again(job, output):
    print(f'--- {job.name} will run once more, alone; the last lines of the first try:')
    print(last_lines(output), flush=True)
    code, output, seconds = execute(job)
    told(f'{job.name}: once more', code, seconds)
    if code == 0:
        second_tries.append(job.name)
    count(job.name, code, output)


def processors():
    """Those that we may use, by affinity and by the control group's quota; more than 16 at a time gain nothing."""
    n = min(len(os.sched_getaffinity(0)), 16)
    with contextlib.suppress(OSError, ValueError):
        quota, period = pathlib.Path('/sys/fs/cgroup/cpu.max').read_text().split()
        n = min(n, round(int(quota) / int(period)))
    return max(n, 1)


def run_all(jobs):
    """Those that need not be alone together, those first that may take longest; then the others. Long: soak, fuzzing and
    valgrind take an hour and a half, and what a quick test has found should not wait for them."""
    together = sorted((job for job in jobs if not job.alone), key=lambda job: (args.long and job.timeout >= 1000, -job.timeout))
    once_more = []
    with concurrent.futures.ThreadPoolExecutor(processors()) as pool:
        begun = {pool.submit(execute, job): job for job in together}
        for done in concurrent.futures.as_completed(begun):
            job, (code, output, seconds) = begun[done], done.result()
            if may_again(job, code, output):
                told(job.name, code, seconds)
                once_more.append((job, output))
            else:
                settle(job, code, output, seconds)
    for job, output in once_more:
        run_again(job, output)
    for job in jobs:
        if job.alone:
            settle(job, *execute(job))


def introspect(directory, what):
    done = subprocess.run(['meson', 'introspect', what, str(directory)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def tests_of(directory, suites):
    """Meson's tests of these suites (of all: none given)."""
    return [test for test in introspect(directory, '--tests') if not suites or {name.split(':')[-1] for name in test['suite']} & set(suites)]


def compile_in(name, directory, options, compiler, suites=()):
    """Configures a build folder of its own and builds what the tests of these suites need; everything, if none are given."""
    start = time.time()
    setup = ['meson', 'setup', str(directory), *options]
    if (directory / 'build.ninja').exists():
        setup += ['--reconfigure']

    def ninja():
        targets = []
        if suites:
            files = {target['id']: target['filename'] for target in introspect(directory, '--targets')}
            for test in tests_of(directory, suites):
                wanted = [test['cmd'][0], *(file for depends in test['depends'] for file in files[depends])]
                targets += [os.path.relpath(file, directory) for file in wanted if pathlib.Path(file).is_relative_to(directory)]
        return ['ninja', '-C', str(directory), *sorted(set(targets))]

    for argv in (lambda: setup), ninja:
        done = subprocess.run(argv(), cwd=root, env=dict(env, CC=compiler), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors='replace')
        if done.returncode != 0:
            count(name, 1, done.stdout)
            return False
    print(f'{name}: built ({time.time() - start:.0f} s)', flush=True)
    count(name, 0, '')
    return True


def meson_jobs(label, directory, suites=(), name=None, extra=None, stretch=1):
    """Jobs of meson's tests in these suites, or of the one test. stretch: that much longer may they take."""
    jobs = []
    for test in tests_of(directory, suites):
        if name and test['name'] != name:
            continue
        suite = '+'.join(part.split(':')[-1] for part in test['suite'])
        own = {'CK_TIMEOUT_MULTIPLIER': '5', **test['env'], 'MALLOC_PERTURB_': perturb, **env, **(extra or {}), 'TOKENRING_BUILD': str(directory)}
        jobs.append(Job(f"{label} {suite} / {test['name']}", test['cmd'], own, test['timeout'] * stretch, pathlib.Path(test['workdir'] or directory), alone=not test['is_parallel'],
                        again='e2e' in suite or 'stress' in suite))
    if not jobs:
        count(label, 1, f'{directory} has no such tests')
    return jobs


def step_meson():
    return meson_jobs('test', build)


# The end-to-end programs that run a model, in the tiers that a new CPU would not choose. Short: the tests with
# stories260K (the C program, and of `bench` the only test with a model), which judge answers, hashes, ends, forks,
# cached pages and admission. Long: every program, whole, those with the default model too; only the module's own tests
# have no worker that could be forced.
TIER_PROGRAMS = {'api': [], 'cache': [], 'choices': [], 'exact': [], 'fair': [], 'ops': [], 'bench': ['test_our_own_stack']}


def step_tiers():
    jobs = []
    for tier in ('scalar', 'avx2', 'avxvnni'):
        probe = subprocess.run([build / 'tokenringd', '-t', '--model', os.devnull, '--tier', tier], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if 'this CPU' in probe.stdout:
            skips.append(f'SKIP: tier {tier}: not on this CPU')
            continue
        extra = {'TOKENRING_TIER': tier, 'CK_TIMEOUT_MULTIPLIER': '10' if tier == 'scalar' else '2'}
        programs = {path.stem[5:]: [] for path in sorted((root / 'tests/e2e').glob('test_*.py'))} if args.long else TIER_PROGRAMS
        jobs += [Job(f'tier {tier} {name}', ['python3', f'tests/e2e/test_{name}.py', *tests], extra, 3600 if args.long else 300,
                     alone=args.long or name in ('cache', 'fair'), again=True) for name, tests in programs.items()]
        jobs += meson_jobs(f'tier {tier}', build, name='e2e worker model', extra=extra, stretch=10 if args.long else 2)
    return jobs


def step_clang():
    compile_in('clang build', root / 'build-clang', ['--buildtype=debug', '-Ddebug=false'], 'clang')
    return []


def step_sanitizers():
    """Unit tests and a serving worker under AddressSanitizer and UndefinedBehaviorSanitizer."""
    directory, suites = root / 'build-asan', ('unit', 'sanitize')
    options = ['-Doptimization=1', '-Dc_args=-g1', '-Db_sanitize=address,undefined', '-Db_lundef=false']
    if not compile_in('sanitizer build', directory, options, 'gcc', suites):
        return []
    shutil.copy(build / 'ngx_http_tokenring_module.so', directory)
    extra = {'ASAN_OPTIONS': 'detect_leaks=1:abort_on_error=1', 'UBSAN_OPTIONS': 'halt_on_error=1:print_stacktrace=1', 'CK_TIMEOUT_MULTIPLIER': '5'}
    if not args.long:
        extra['TOKENRING_SHORT'] = '1'
    return [dataclasses.replace(job, alone=False) for job in meson_jobs('sanitizers', directory, suites, extra=extra, stretch=5)]


def step_threads():
    """What several threads do, under ThreadSanitizer. jemalloc is not instrumented and its mutexes unlock unseen, so
    that each of its locks looks like a second one: reports about mutexes are off, those of races are not."""
    directory, suites = root / 'build-tsan', ('threads',)
    options = ['-Doptimization=1', '-Dc_args=-g1', '-Db_sanitize=thread', '-Db_lundef=false']
    if not compile_in('thread sanitizer build', directory, options, 'gcc', suites):
        return []
    extra = {'TSAN_OPTIONS': 'exitcode=66:report_mutex_bugs=0', 'CK_EXCLUDE_TAGS': 'slow', 'CK_TIMEOUT_MULTIPLIER': '10'}
    return meson_jobs('threads', directory, suites, extra=extra, stretch=5)


def step_valgrind():
    script = ['tests/valgrind.sh', str(build)]
    names = subprocess.run([*script, '--list'], cwd=root, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return [Job(f'valgrind {name}', [*script, name], {}, 2000) for name in names]


def step_fuzz():
    seconds = 600 if args.long else 15
    names = sorted(file.stem[len('fuzz_'):] for file in (root / 'tests/fuzz').glob('fuzz_*.c'))
    return [Job(f'fuzz {name}', ['tests/fuzz/run.sh', str(seconds), name], {}, seconds * 4 + 600) for name in names]


def step_load():
    """Times under load: only where there is time for several tries."""
    return [Job(name, ['python3', f'tests/long/{name}.py'], {}, 3600, alone=True) for name in ('pace', 'crowd', 'outside') if args.long]


def step_soak():
    """It looks at no times."""
    return [Job('soak', ['python3', 'tests/e2e/soak.py', '3600' if args.long else '20'], {}, 4500 if args.long else 300)]


steps = {name[5:]: function for name, function in list(globals().items()) if name.startswith('step_')}
if args.list:
    print('\n'.join(steps))
    sys.exit(0)
chosen = args.only.split(',') if args.only else list(steps)
for name in chosen:
    if name not in steps:
        sys.exit(f'run.py: no step is named {name!r}; --list prints them')
for number in signal.SIGHUP, signal.SIGINT, signal.SIGTERM:
    signal.signal(number, stop)
start = time.time()
model = subprocess.run([root / 'tools/get_model.sh'], stdout=subprocess.PIPE, text=True).stdout.strip()
if model:
    env['TOKENRING_MODEL'] = model
if not shared.is_dir():
    print(f'note: {shared} does not exist; tests that need it skip')
run_all([job for name in chosen for job in steps[name]()])

unexcused = [line for line in skips if not line.startswith('SKIP: tier ')]
for line in sorted(set(skips)):
    print(line)
if strict and unexcused:
    print('STRICT: a skip is a failure')
    failed += len(unexcused)
if second_tries:
    print('passed at the second try: ' + ', '.join(second_tries))
if not passed and not failed and not skips:
    print('nothing was tested')
    failed = 1
if failures:
    print('failed: ' + ', '.join(failures))
    print(f'MALLOC_PERTURB_ was {perturb}')
print(f'({time.time() - start:.0f} s)')
print(f'{passed} passed, {failed} failed, {len(skips)} skipped', flush=True)
sys.exit(1 if failed else 0)
