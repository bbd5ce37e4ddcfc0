"""rig.py: the stock nginx with the module, and fake workers (../fake_worker.c) behind it.

    with Rig() as rig:                      # one fake worker, one nginx worker process
        status, headers, body = rig.get('/health')

    with Rig('location / { tokenring_pass unix:%(w0)s; }', workers=2, options=['-S', '4']) as rig: ...

In server and http text %(w0)s, %(w1)s ... are the workers' sockets, %(dir)s is the rig's folder. After the test nginx's
error log must hold no [alert], [crit] or [emerg] line, unless `expect` (a regular expression) matches it.
TOKENRING_NGINX_WRAP in the environment goes before nginx's command line (valgrind, say).
"""
import os, pathlib, re, shutil, signal, socket, subprocess, sys, tempfile, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness
from harness import build, children, free_port, main, module, nginx, process_figures, source, together, wait_for

fake_worker = build / 'tests/e2e/module/fake_worker'
if not fake_worker.exists():
    fake_worker = source / 'build/tests/e2e/module/fake_worker'


class Worker:
    """A fake worker; log: what it said."""

    def __init__(self, folder, name, options=()):
        self.socket = folder / (name + '.sock')
        self.file = folder / (name + '.log')
        self.options = list(options)
        self.start()

    def start(self):
        self.out = open(self.file, 'ab')
        wanted = self.log.count('LISTEN')
        self.process = subprocess.Popen([str(fake_worker), '-s', str(self.socket), *self.options], stdout=self.out, stderr=subprocess.STDOUT)
        wait_for('the fake worker listens', lambda: self.log.count('LISTEN') > wanted or self.process.poll() is not None)

    def kill(self, how=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
        self.process.wait()
        self.out.close()

    @property
    def log(self):
        return self.file.read_text() if self.file.exists() else ''

    def said(self, text, seconds=5):
        return wait_for(f'the fake worker says {text!r}; it said {self.log[-500:]!r}', lambda: text in self.log, seconds, 0.005)


class Rig:
    def __init__(self, server='location / { tokenring_pass unix:%(w0)s; }', http='', workers=1, options=(), processes=1, main_conf='', expect=None, load=True):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix='tokenring-rig-'))
        self.server, self.http, self.main_conf, self.processes, self.expect, self.load = server, http, main_conf, processes, expect, load
        self.port, self.port2 = free_port(), free_port()
        self.workers = [Worker(self.dir, f'w{i}', options) for i in range(workers)]
        self.nginx = None

    def config(self):
        names = {f'w{i}': self.dir / f'w{i}.sock' for i in range(10)}
        names['dir'] = self.dir
        user = 'user root;' if os.geteuid() == 0 else ''
        tmp = ''.join(f'{kind}_temp_path {self.dir}/tmp-{kind};\n' for kind in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))
        load = f'load_module {module};' if self.load else ''
        return f'''{load} {user}
daemon off; worker_processes {self.processes}; pid {self.dir}/nginx.pid; error_log {self.dir}/error.log info;
{self.main_conf}
events {{ worker_connections 1024; }}
http {{
    log_format rig '$request_uri $status $upstream_status $upstream_addr $body_bytes_sent';
    access_log {self.dir}/access.log rig;
    client_max_body_size 300m;
    {tmp}
    {self.http % names}
    server {{
        listen 127.0.0.1:{self.port};
        listen 127.0.0.1:{self.port2} http2;
        {self.server % names}
    }}
}}
'''

    def __enter__(self):
        try:
            (self.dir / 'nginx.conf').write_text(self.config())
            self.nginx = subprocess.Popen(self.argv(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            wait_for('nginx listens', self.listening)
        except BaseException:
            self.stop()
            shutil.rmtree(self.dir, ignore_errors=True)
            raise
        return self

    def argv(self, *more):
        return [*os.environ.get('TOKENRING_NGINX_WRAP', '').split(), nginx, '-p', str(self.dir), '-e', str(self.dir / 'error.log'), '-c', str(self.dir / 'nginx.conf'), *more]

    def listening(self):
        if self.nginx.poll() is not None:
            raise AssertionError('nginx ended: ' + self.nginx.stderr.read().decode())
        with socket.socket() as s:
            return s.connect_ex(('127.0.0.1', self.port)) == 0

    def stop(self):
        if self.nginx and self.nginx.poll() is None:
            self.nginx.send_signal(signal.SIGQUIT)
            try:
                self.nginx.wait(10)
            except subprocess.TimeoutExpired:
                for pid in children(self.nginx.pid):
                    os.kill(pid, signal.SIGKILL)
                self.nginx.kill()
                self.nginx.wait()
                raise AssertionError('nginx did not quit')
        for worker in self.workers:
            worker.kill()

    def __exit__(self, kind, value, trace):
        try:
            self.stop()
            bad = [line for line in self.errors().splitlines() if re.search(r'\[(alert|crit|emerg)\]', line)]
            bad = [line for line in bad if not (self.expect and re.search(self.expect, line))]
            if kind is None and bad:
                raise AssertionError('nginx logged: ' + '\n'.join(bad[:5]))
            if kind is not None:
                print('    nginx: ' + self.errors()[-3000:].replace('\n', '\n    '))
                for worker in self.workers:
                    print('    fake worker: ' + worker.log[-1000:].replace('\n', '\n    '))
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)

    def errors(self):
        path = self.dir / 'error.log'
        return path.read_text(errors='replace') if path.exists() else ''

    def access(self):
        return (self.dir / 'access.log').read_text(errors='replace').splitlines()

    def logged(self, pattern, seconds=5):
        """Waits for an access log line that matches; returns it."""
        return wait_for(f'access log says {pattern!r}; it says {self.access()}', lambda: next((l for l in self.access() if re.search(pattern, l)), None), seconds)

    def reload(self):
        """HUP, and waits until new worker processes have replaced the old in listening. Returns the old ones."""
        old = set(children(self.nginx.pid))
        closing = self.errors().count('gracefully shutting down')
        self.nginx.send_signal(signal.SIGHUP)
        wait_for('new nginx workers', lambda: len(set(children(self.nginx.pid)) - old) >= self.processes)
        wait_for('the old ones stop listening', lambda: self.errors().count('gracefully shutting down') > closing)
        return old

    def connect(self, receive_buffer=None):
        s = socket.socket()
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(30)
        s.connect(('127.0.0.1', self.port))
        return s

    def send(self, path, method='GET', body=b'', headers=None, **more):
        """A socket on which a request was sent."""
        s = self.connect(**more)
        fields = {'Host': 'rig', 'Connection': 'close', **(headers or {})}
        if body and 'Transfer-Encoding' not in fields:
            fields['Content-Length'] = len(body)
        s.sendall(f'{method} {path} HTTP/1.1\r\n'.encode() + ''.join(f'{k}: {v}\r\n' for k, v in fields.items()).encode() + b'\r\n' + body)
        return s

    def request(self, path, method='GET', body=b'', headers=None):
        """(status, headers, body) of an answer; body None: it broke off."""
        with self.send(path, method, body, headers) as s:
            return parse(read_all(s), method)

    def get(self, path, **more):
        return self.request(path, **more)

    def post(self, path, body, **more):
        return self.request(path, 'POST', body, **more)

    def curl(self, path, *options, h2=False, timeout=30):
        """(exit status, output) of curl."""
        port = self.port2 if h2 else self.port
        argv = ['curl', '-sS', '-N', '-m', str(timeout), *(['--http2-prior-knowledge'] if h2 else []), *options, f'http://127.0.0.1:{port}{path}']
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return done.returncode, done.stdout


def read_all(s):
    data = bytearray()
    while True:
        try:
            more = s.recv(1 << 20)
        except ConnectionResetError:
            return bytes(data)
        if not more:
            return bytes(data)
        data += more


def parse(wire, method='GET'):
    """(status, headers, body) of one HTTP/1.1 answer on a closed connection; body None if it is not complete."""
    head, mark, rest = wire.partition(b'\r\n\r\n')
    if not mark:
        return 0, {}, None
    lines = head.decode('latin-1').split('\r\n')
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(':') for line in lines[1:])}
    status = int(lines[0].split()[1])
    if method == 'HEAD' or status in (204, 304):
        return status, headers, rest
    if headers.get('transfer-encoding') == 'chunked':
        pieces, at = [], 0
        while True:
            mark = rest.find(b'\r\n', at)
            if mark < 0:
                return status, headers, None
            n = int(rest[at:mark], 16)
            if n == 0:
                return status, headers, b''.join(pieces)
            pieces.append(rest[mark + 2:mark + 2 + n])
            at = mark + n + 4
    if 'content-length' in headers and len(rest) != int(headers['content-length']):
        return status, headers, None
    return status, headers, rest


def events(body):
    """The data of every whole event."""
    return [e[6:] for e in body.decode().split('\n\n') if e.startswith('data: ')]


ERROR_EVENT = '"code":"worker_lost"'
