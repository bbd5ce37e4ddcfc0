#!/usr/bin/env python3
"""Each file of conf/ does what it says, and a loaded but unused module changes nothing."""
import json, os, pathlib, re, signal, subprocess, tempfile, time, urllib.error, urllib.request

from harness import Site, Skip, build, free_port, main, module, nginx, source, stories, tier_options, wait_for


def adapt(text, folder, port, socket):
    """A conf/ file with its system paths replaced by ones of this test; everything else stays."""
    text = re.sub(r'unix:/run/tokenring/[\w.-]+\.sock', f'unix:{socket}', text)
    text = re.sub(r'/run/tokenring/[\w.-]+\.stats', f'{folder}/conf.stats', text)
    text = text.replace('load_module modules/', f'load_module {module.parent}/')
    text = re.sub(r'listen +(\[::\]:|[\d.]+:)?80\b[^;]*;', lambda m: '' if '[' in m.group(0) else f'listen 127.0.0.1:{port};', text)
    text = re.sub(r'(access_log|error_log) +/\S+?([\w.]+)( \w+)?;', lambda m: f'{m.group(1)} {folder}/{m.group(2)}{m.group(3) or ""};', text)
    text = re.sub(r'^(\s*)(pid|user) [^;]*;', r'\1', text, flags=re.M)
    return text.replace('/etc/nginx/mime.types', '/etc/nginx/mime.types')


class Nginx:
    def __init__(self, folder, text, port):
        self.folder, self.port = pathlib.Path(folder), port
        file = self.folder / 'nginx.conf'
        user = 'user root;\n' if os.geteuid() == 0 else ''
        file.write_text(f'{user}daemon off;\npid {folder}/nginx.pid;\n' + text)
        self.argv = [nginx, '-p', str(folder), '-e', f'{folder}/error.log', '-c', str(file)]

    def __enter__(self):
        done = subprocess.run([*self.argv, '-t'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        self.process = subprocess.Popen(self.argv)
        wait_for('nginx answers', lambda: request(self.port, '/')[0] != 0)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)


def request(port, path, body=None, size=None):
    data = json.dumps(body).encode() if body is not None else (b'x' * size if size else None)
    try:
        answer = urllib.request.urlopen(urllib.request.Request(f'http://127.0.0.1:{port}{path}', data, {'Content-Type': 'application/json'}), timeout=30)
        return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)
    except (urllib.error.URLError, ConnectionError):
        return 0, b'', {}


def worker(folder, socket, *more):
    return subprocess.Popen([build / 'tokenringd', '--model', stories(), '--listen', f'unix:{socket}', '--stats-dir', folder, '--name', 'conf', *tier_options(), *more],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def openai_error(body):
    error = json.loads(body)['error']
    assert set(error) == {'message', 'type', 'param', 'code'}, error
    return error


def test_nginx_conf_serves_and_says_errors_as_json():
    stories()
    with tempfile.TemporaryDirectory() as folder:
        socket, port = f'{folder}/w.sock', free_port()
        with Nginx(folder, adapt((source / 'conf/nginx.conf').read_text(), folder, port, socket), port) as site:
            status, body, _ = request(port, '/v1/models')
            assert status == 502 and openai_error(body), (status, body)
            assert request(port, '/health')[0] == 503 and request(port, '/status')[0] == 200
            running = worker(folder, socket)
            try:
                wait_for('the worker is ready', lambda: request(port, '/health')[0] == 200)
                status, body, _ = request(port, '/v1/completions', {'prompt': 'Once', 'max_tokens': 3})
                assert status == 200 and json.loads(body)['choices'][0]['text'], body
                assert json.loads(request(port, '/status')[1])['workers'][0]['requests_total'] == 1
                assert b'\ntokenring_requests_total{' in request(port, '/metrics')[1]
                status, body, _ = request(port, '/v1/completions', size=200 << 20)
                assert status in (413, 0), status
                if status == 413:
                    openai_error(body)
            finally:
                running.send_signal(signal.SIGINT)
                assert running.wait(10) == 0


def test_the_snippet_fits_an_existing_site():
    stories()
    with tempfile.TemporaryDirectory() as folder:
        socket, port = f'{folder}/w.sock', free_port()
        snippet = pathlib.Path(folder) / 'snippet.conf'
        snippet.write_text(adapt((source / 'conf/tokenring-location.conf').read_text(), folder, port, socket))
        (pathlib.Path(folder) / 'index.html').write_text('the old site')
        text = f'''load_module {module};
events {{}}
http {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        root {folder};
        include {snippet};
    }}
}}
'''
        running = worker(folder, socket)
        try:
            with Nginx(folder, text, port):
                assert request(port, '/index.html')[1] == b'the old site'
                mount = re.search(r'^\s*location\s+(?:=\s+|\^~\s+)?(/\S*)\s*\{', snippet.read_text(), re.M).group(1)
                path = '/v1/completions' if mount.startswith('/v1') else mount.rstrip('/') + '/completions'
                wait_for('the worker is ready', lambda: request(port, path, {'prompt': 'Once', 'max_tokens': 1})[0] == 200)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(10)


def test_worker_conf():
    stories()
    with tempfile.TemporaryDirectory() as folder:
        text = (source / 'conf/tokenringd.conf').read_text()
        text = re.sub(r'^(\s*model\b[ =]*).*$', rf'\g<1>{stories()}', text, flags=re.M)
        text = re.sub(r'unix:/run/tokenring/[\w.-]+', f'unix:{folder}/w.sock', text)
        text = re.sub(r'^(\s*(log-file|socket-group|allow-group)\b)', r'# \1', text, flags=re.M)
        file = pathlib.Path(folder) / 'tokenringd.conf'
        file.write_text(text + f'\nstats-dir {folder}\n')
        done = subprocess.run([build / 'tokenringd', '-t', '--config', file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        running = subprocess.Popen([build / 'tokenringd', '--config', file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for('the socket is there', lambda: os.path.exists(f'{folder}/w.sock'))
        running.send_signal(signal.SIGTERM)
        assert running.wait(15) == 0


def test_systemd_unit():
    unit = (source / 'conf/tokenringd.service').read_text()
    command = re.search(r'^ExecStart=(.*)$', unit, re.M).group(1).split()
    assert command[0] == '/usr/sbin/tokenringd', command
    help = subprocess.run([build / 'tokenringd', '--help'], check=True, stdout=subprocess.PIPE, text=True).stdout
    for word in command[1:]:
        assert not word.startswith('--') or word.split('=')[0] in help, word
    assert 'RuntimeDirectory=tokenring' in unit and 'ExecReload' in unit
    verify = subprocess.run(['systemd-analyze', 'verify', '--man=no', source / 'conf/tokenringd.service'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) \
        if os.path.exists('/usr/bin/systemd-analyze') else None
    if verify:
        complaints = [line for line in verify.stdout.splitlines() if 'tokenringd' in line and 'not executable' not in line and 'No such file' not in line]
        assert not complaints, complaints


def test_unused_module_changes_nothing():
    """The same site with and without the module answers the same bytes (but for the date)."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / 'index.html').write_text('hello')
        answers = []
        for load in ('', f'load_module {module};\n'):
            port = free_port()
            text = load + f'events {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; root {folder}; location /gone {{ return 410 "gone"; }} }} }}\n'
            with Nginx(folder, text, port):
                got = [request(port, path) for path in ('/index.html', '/missing', '/gone')]
            for status, body, headers in got:
                headers.pop('Date', None)
            answers.append(got)
        assert answers[0] == answers[1]


if __name__ == '__main__':
    main()
