"""harness.py: the stock nginx with the module, a worker behind it, and real clients, for the end-to-end tests.

    with Site(model=stories('F32'), kv_type='f32') as site:
        reply = site.post('/v1/completions', {'prompt': 'Once', 'max_tokens': 8})

TOKENRING_WRAP in the environment goes before the worker's command line (valgrind, say). TOKENRING_TIER is the kernel
tier of every worker with a model whose test doesn't choose one itself; tests with the default model, for which the slow
tiers need minutes, then run only if TOKENRING_LONG is set too.

A Site has its own folder, ports and processes and leaves nothing behind. Each test is a function test_*; main() runs
them all and prints `ok NAME`, `not ok NAME: why` or `SKIP: NAME: why`, the form that tests/run.py counts.
"""
import contextlib, http.client, json, os, pathlib, shutil, signal, socket, subprocess, sys, tempfile, threading, time, traceback

source = pathlib.Path(os.environ.get('TOKENRING_SOURCE', pathlib.Path(__file__).resolve().parents[2]))
build = pathlib.Path(os.environ.get('TOKENRING_BUILD', source / 'build'))
shared = pathlib.Path(os.environ.get('TOKENRING_SHARED', source.parent / 'shared'))
nginx = shutil.which('nginx') or '/usr/sbin/nginx'
module = build / 'ngx_http_tokenring_module.so'
if not module.exists():
    module = source / 'build' / module.name


class Skip(Exception):
    """What this test needs cannot be had here."""


class Elsewhere(Exception):
    """This test makes no sense in this run, and runs in another one: neither passed nor skipped."""


def tier():
    """The kernel tier that this run forces; '' if it doesn't."""
    return os.environ.get('TOKENRING_TIER', '')


def tier_options():
    """The same for a command of `tokenring` that runs a model."""
    return ['--tier', tier()] if tier() else []


def patience():
    """What waits are multiplied by: the scalar tier makes about a tenth of the tokens that others do."""
    return 10 if tier() == 'scalar' else 1


def fewer(tokens, least=1):
    """As many tokens as take about the time that these take in other tiers."""
    return max(tokens // patience(), least)


def stories(kind='F32'):
    """The path of a stories260K file (F32, F16, Q8_0)."""
    if not shared.is_dir():
        raise Skip('the shared test data is not here')
    return shared / 'data/models/stories260K' / f'stories260K-{kind.lower()}.gguf'


def default_model():
    """The path of the default model, fetched if it has to be."""
    if tier() and not os.environ.get('TOKENRING_LONG'):
        raise Elsewhere('the default model in a forced tier belongs to make test-long')
    done = subprocess.run([source / 'tools/get_model.sh'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Skip('the default model cannot be had: ' + done.stderr.strip().splitlines()[0])
    return pathlib.Path(done.stdout.strip())


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def wait_for(what, condition, seconds=20, every=0.02):
    """Waits until condition() is true; raises with `what` when it never becomes so."""
    seconds *= patience()
    end = time.time() + seconds
    while time.time() < end:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f'waited {seconds} s in vain: {what}')


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Stream:
    """One SSE answer read as it comes. reads: (time, bytes) of every read; events: (time, data text)."""

    def __init__(self, port, path, body, headers=None, receive_buffer=None):
        data = json.dumps(body).encode()
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(120 * patience())
        self.sock.connect(('127.0.0.1', port))
        head = f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n'
        head += ''.join(f'{k}: {v}\r\n' for k, v in (headers or {}).items())
        self.start = time.perf_counter()
        self.sock.sendall(head.encode() + b'\r\n' + data)
        self.status, self.headers, self.reads, self.events = 0, {}, [], []
        self.wire = self.pending = b''  # not yet taken out of the chunks; not yet a whole event
        self.complete = self.ended = False

    def close(self):
        self.sock.close()

    def fill(self):
        data = self.sock.recv(65536)
        if data:
            self.reads.append((time.perf_counter(), len(data)))
            self.wire += data
        else:
            self.ended = True
        return bool(data)

    def read_head(self):
        while b'\r\n\r\n' not in self.wire:
            if not self.fill():
                raise AssertionError(f'the connection ended inside the header: {self.wire[:200]!r}')
        head, _, self.wire = self.wire.partition(b'\r\n\r\n')
        lines = head.decode('latin-1').split('\r\n')
        self.status = int(lines[0].split()[1])
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(':') for line in lines[1:])}
        self.chunked = self.headers.get('transfer-encoding') == 'chunked'

    def unchunk(self):
        if not self.chunked:
            self.pending, self.wire = self.pending + self.wire, b''
            return
        while b'\r\n' in self.wire:
            size, _, after = self.wire.partition(b'\r\n')
            n = int(size, 16)
            if n == 0:
                self.complete = True
                return
            if len(after) < n + 2:
                return
            self.pending += after[:n]
            self.wire = after[n + 2:]

    def read_all(self, stop=lambda stream: False):
        """Reads to the end, or until stop(self) after some event; may be called again then. Returns self.
        complete: a chunked answer had its last chunk; body: what is no event (an error object, say)."""
        if not self.status:
            self.read_head()
        while True:
            self.unchunk()
            while b'\n\n' in self.pending:
                event, _, self.pending = self.pending.partition(b'\n\n')
                for line in event.split(b'\n'):
                    if line.startswith(b'data:'):
                        self.events.append((time.perf_counter(), line[5:].strip().decode()))
                if stop(self):
                    return self
            if self.complete or self.ended or not self.fill():
                break
        self.body = self.pending
        self.close()  # or nginx lingers on the connection, which holds up an old worker's exit
        return self

    @property
    def objects(self):
        return [json.loads(text) for _, text in self.events if text != '[DONE]']

    @property
    def text(self):
        out = ''
        for event in self.objects:
            for choice in event.get('choices') or []:
                out += choice.get('text') or (choice.get('delta') or {}).get('content') or ''
        return out

    @property
    def finish(self):
        """The finish reasons and errors, in order: a good stream has exactly one."""
        found = []
        for event in self.objects:
            if 'error' in event:
                found.append('error:' + str(event['error'].get('code')))
            found += [c['finish_reason'] for c in event.get('choices') or [] if c.get('finish_reason')]
        return found

    @property
    def done(self):
        return [text for _, text in self.events].count('[DONE]') == 1 and self.events[-1][1] == '[DONE]'


class Site:
    def __init__(self, model=None, nginx_workers=1, location='', http='', worker=True, wait=True, **options):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix='tokenring-e2e-'))
        self.socket = self.dir / 'worker.sock'
        self.port, self.model, self.options = free_port(), model, options
        self.nginx_workers, self.location, self.http = nginx_workers, location, http
        self.want_worker, self.wait, self.worker, self.nginx = worker, wait, None, None

    def config(self):
        user = 'user root;' if os.geteuid() == 0 else ''
        tmp = ''.join(f'{kind}_temp_path {self.dir}/tmp-{kind};\n' for kind in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))
        return f'''{user}
daemon off;
worker_processes {self.nginx_workers};
pid {self.dir}/nginx.pid;
error_log {self.dir}/error.log info;
load_module {module};
events {{ worker_connections 1024; }}
http {{
    access_log {self.dir}/access.log;
    client_max_body_size 32m;
    {tmp}
    {self.http}
    server {{
        listen 127.0.0.1:{self.port};
        location / {{ tokenring_pass unix:{self.socket}; {self.location} }}
    }}
}}
'''

    def start_worker(self, **more):
        argv = [*os.environ.get('TOKENRING_WRAP', '').split(), str(build / 'tokenringd'), '--listen', f'unix:{self.socket}', '--stats-dir', str(self.dir), '--name', 'e2e']
        if self.model:
            argv += ['--model', str(self.model)]
        forced = {'tier': tier()} if self.model and tier() else {}
        # Tests count tokens, steps and reads; what drafts change of that is test_spec.py's.
        for key, value in {'threads': 2, 'draft': 'none', **forced, **self.options, **more}.items():
            argv.append('--' + key.replace('_', '-') + ('' if value is True else f'={value}'))
        self.worker_log = open(self.dir / 'worker.log', 'ab')
        self.worker = subprocess.Popen(argv, stdout=self.worker_log, stderr=subprocess.STDOUT)
        return self.worker

    def start_nginx(self):
        (self.dir / 'nginx.conf').write_text(self.config())
        self.nginx = subprocess.Popen([nginx, '-p', str(self.dir), '-e', str(self.dir / 'error.log'), '-c', str(self.dir / 'nginx.conf')],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_for('nginx listens', self.listening)

    def listening(self):
        if self.nginx.poll() is not None:
            raise AssertionError('nginx ended: ' + self.nginx.stderr.read().decode())
        with socket.socket() as s:
            return s.connect_ex(('127.0.0.1', self.port)) == 0

    def ready(self):
        if self.worker.poll() is not None:
            raise AssertionError('the worker ended:\n' + self.log())
        return self.get('/health').status == 200

    def __enter__(self):
        try:
            if self.want_worker:
                self.start_worker()
            self.start_nginx()
            if self.want_worker and self.wait:
                wait_for('the worker is ready', self.ready, 120)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        for process, how in ((self.nginx, signal.SIGTERM), (self.worker, signal.SIGINT)):
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(how)
                try:
                    process.wait(15 * patience())
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    if kind is None:
                        kind = AssertionError
                        self.cleanup()
                        raise AssertionError('a process did not stop on its signal')
        if kind not in (None, Skip, Elsewhere):
            print('    worker: ' + self.log()[-3000:].replace('\n', '\n    '))
            with contextlib.suppress(OSError):
                print('    nginx: ' + (self.dir / 'error.log').read_text()[-3000:].replace('\n', '\n    '))
        self.cleanup()

    def cleanup(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def log(self):
        with contextlib.suppress(OSError):
            return (self.dir / 'worker.log').read_text(errors='replace')
        return ''

    def error_log(self):
        return (self.dir / 'error.log').read_text(errors='replace')

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout * patience())
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            connection.request(method, path, body, {'Content-Type': 'application/json', **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request('GET', path, **more)

    def post(self, path, body, **more):
        return self.request('POST', path, body, **more)

    def stream(self, path, body, headers=None, **more):
        """Starts a streaming POST; read_all() on what it returns."""
        return Stream(self.port, path, {'stream': True, **body}, headers, **more)

    def stat(self):
        done = subprocess.run([str(build / 'tokenring'), 'stat', '--json', '--dir', str(self.dir), 'e2e'], stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)

    def nginx_children(self):
        return children(self.nginx.pid)


def children(pid):
    return [int(p) for p in pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]


def process_figures(pid):
    """fds, threads and resident bytes of a process."""
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
    value = lambda key: int(status.split(key + ':')[1].split()[0])
    return {'fds': len(os.listdir(f'/proc/{pid}/fd')), 'threads': value('Threads'), 'rss': value('VmRSS') * 1024}


def status_figures(pid):
    """The memory figures of /proc/PID/status, in bytes: VmRSS, VmHWM and so on."""
    lines = (line.split() for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines())
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if words[-1] == 'kB'}


def cpu_seconds(pid):
    fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def together(functions):
    """Runs the functions in threads; returns their results in order; raises the first exception."""
    results, errors = [None] * len(functions), []

    def one(i, function):
        try:
            results[i] = function()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=one, args=(i, f)) for i, f in enumerate(functions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def attempts(n, function):
    """Calls function until it passes, n times at most: for what a busy neighbour on the machine can spoil."""
    for i in range(n):
        try:
            return function()
        except AssertionError as error:
            if i == n - 1:
                raise
            print(f'    once more: {error!r}')


def main():
    """Runs every test_* of the calling script (or those named on the command line)."""
    tests = [(n, f) for n, f in vars(sys.modules['__main__']).items() if n.startswith('test_')]
    chosen = sys.argv[1:]
    bad = 0
    for name, function in tests:
        if chosen and name not in chosen:
            continue
        start = time.time()
        try:
            function()
            print(f'ok {name} ({time.time() - start:.1f} s)', flush=True)
        except Skip as why:
            print(f'SKIP: {name}: {why}', flush=True)
        except Elsewhere as why:
            print(f'note: {name}: {why}', flush=True)
        except Exception:
            bad += 1
            print(f'not ok {name}', flush=True)
            print('    ' + traceback.format_exc().replace('\n', '\n    '), flush=True)
    sys.exit(1 if bad else 0)
