#!/usr/bin/env python3
"""tokenring_status on workers that live, load, are stopped, dead or were never there; docs/stats.md's reader."""
import contextlib, json, os, pathlib, re, shutil, signal, struct, subprocess, sys, tempfile, time

import exposition
from harness import Site, attempts, build, fewer, free_port, main, nginx, module, source, stories, tier_options, wait_for

TEXT = '/v1/completions'
PLAIN = 'text/plain; version=0.0.4; charset=utf-8'


class Status(Site):
    """A Site with the status at /status, /metrics and /healthz; `names` are the stats files' names."""

    def __init__(self, *arguments, names=('e2e',), more='', **options):
        super().__init__(*arguments, **options)
        self.files = ' '.join(f'{self.dir}/{name}.stats' for name in names)
        self.more = more

    def config(self):
        places = f'''
        location = /status {{ tokenring_status {self.files}; }}
        location = /metrics {{ tokenring_status {self.files} format=prometheus; }}
        location = /healthz {{ tokenring_status {self.files} format=health; }}
        {self.more}
        location / {{'''
        return super().config().replace('location / {', places, 1)

    def workers(self):
        return {w['name']: w for w in self.get('/status').json['workers']}

    def health(self):
        start = time.perf_counter()
        reply = self.get('/healthz', timeout=5)
        assert time.perf_counter() - start < 2, 'a health answer took two seconds'
        return reply.status, reply.json['status']

    def metrics(self):
        reply = self.get('/metrics', timeout=5)
        assert reply.status == 200 and reply.headers['content-type'] == PLAIN, reply.headers
        return exposition.parse(reply.body.decode())


made = None  # the folder of a model that takes its time: to load, and some milliseconds a token


def slow_model():
    global made
    if made is None:
        made = tempfile.TemporaryDirectory(prefix='tokenring-made-')
        subprocess.run([build / 'tokenring', 'synth', '-o', f'{made.name}/made.gguf', '--layers', '6', '--dim', '1024', '--ffn', '2816', '--heads', '16', '--vocab', '512'],
                       check=True, stdout=subprocess.DEVNULL)
    return f'{made.name}/made.gguf'


def complete(site, n=5):
    reply = site.post(TEXT, {'prompt': [1, 403, 407], 'max_tokens': n, 'ignore_eos': True})
    assert reply.status == 200, reply.body


def test_figures():
    with Status(stories()) as site:
        for _ in range(3):
            complete(site)
        assert site.post(TEXT, {'prompt': 7}).status == 400
        beats = site.workers()['e2e']['heartbeats_total']
        wait_for('the figures are out', lambda: site.workers()['e2e']['heartbeats_total'] > beats + 1)
        one, stat = site.workers()['e2e'], site.stat()
        assert list(one) == list(stat), set(one) ^ set(stat)
        for key in ('name', 'path', 'condition', 'state', 'model', 'requests_total', 'completion_tokens_total', 'ttft_count', 'itl_p50_us'):
            assert one[key] == stat[key], (key, one[key], stat[key])
        assert one['condition'] == 'ready' and one['stats_interval_ms'] == 250
        samples = site.metrics()
        value = lambda name, **labels: exposition.value(samples, name, worker='e2e', model_name=one['model'], **labels)
        expected = {'up': 1, 'num_requests_running': 0, 'num_requests_waiting': 0, 'prompt_tokens_total': 9, 'generation_tokens_total': 15,
                    'requests_total': 3, 'prefilled_tokens_total': 9, 'time_to_first_token_seconds_count': 3, 'inter_token_latency_seconds_count': 12,
                    'e2e_request_latency_seconds_count': 3, 'request_queue_time_seconds_count': 3, 'kv_cache_usage_perc': 0, 'loading_ratio': 1,
                    'request_prefill_time_seconds_count': 3, 'request_decode_time_seconds_count': 3, 'request_inference_time_seconds_count': 3,
                    'request_time_per_output_token_seconds_count': 3, 'request_prompt_tokens_sum': 9, 'request_generation_tokens_sum': 15,
                    'request_params_n_sum': 3, 'request_params_max_tokens_sum': 15, 'corrupted_requests_total': 0, 'requests_timed_out_total': 0,
                    'threads': 2, 'worker_starts_total': 1}
        for name, number in expected.items():
            assert value(name) == number, (name, value(name), number)
        assert value('request_success_total', finished_reason='length') == 3 and value('request_success_total', finished_reason='stop') == 0
        assert value('request_refused_total', reason='invalid') == 1
        assert value('worker_condition', condition='ready') == 1 and value('worker_condition', condition='dead') == 0
        assert abs(value('start_time_seconds') - one['start_ms'] / 1000) < 0.001
        assert value('heartbeats_total') > 0 and value('ring_bytes_sent_total') > 0 and value('kv_page_bytes') > 0
        for key, name in (('ttft', 'time_to_first_token'), ('itl', 'inter_token_latency')):
            mean = value(name + '_seconds_sum') / value(name + '_seconds_count')
            assert abs(mean * 1e6 - one[key + '_mean_us']) < 1, (key, mean, one[key + '_mean_us'])


def test_kv_use_and_running_while_streaming():
    with Status(slow_model()) as site:
        stream = site.stream(TEXT, {'prompt': [1, 403, 407], 'max_tokens': fewer(400, 100), 'ignore_eos': True})
        stream.read_all(lambda s: len(s.events) >= 3)
        seen = []
        while not stream.ended and not stream.complete:
            samples = site.metrics()
            seen.append((exposition.value(samples, 'num_requests_running'), exposition.value(samples, 'kv_cache_usage_perc')))
            count = len(stream.events)
            stream.read_all(lambda s: len(s.events) >= count + 40)
        assert any(running == 1 and 0 < use <= 1 for running, use in seen), seen


def test_formats_and_methods():
    with Status(stories()) as site:
        pass_through = lambda accept: site.get('/status', headers={'Accept': accept}).headers['content-type']
        for accept, want in (('*/*', 'application/json'), ('application/json', 'application/json'), ('text/html,*/*;q=0.8', 'application/json'), ('text/plain', 'application/json'),
                             ('text/plain;version=0.0.4', PLAIN), ('application/openmetrics-text; version=1.0.0', PLAIN),
                             ('application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1', PLAIN)):
            assert pass_through(accept) == want, (accept, pass_through(accept))
        assert site.get('/status?format=prometheus').body.startswith(b'# HELP tokenring_up ')
        assert site.get('/metrics?format=json', headers={'Accept': 'text/plain;version=0.0.4'}).json['status'] == 'ready'
        assert site.get('/status?x=1&format=health').json['status'] == 'ok'
        assert site.get('/status?format=xml').status == 400 and site.get('/status?format=').status == 400
        for method in ('POST', 'PUT', 'DELETE', 'OPTIONS'):
            assert site.request(method, '/status', '{}').status == 405, method
        head, got = site.request('HEAD', '/healthz'), site.get('/healthz')
        assert head.status == 200 and head.body == b'' and head.headers['content-type'] == 'application/json'
        assert int(head.headers['content-length']) > 0 and int(got.headers['content-length']) == len(got.body)
        assert site.request('GET', '/status', 'x' * 100000).status == 200  # a body is read and thrown away
        assert site.health() == (200, 'ok')


def test_stopped_killed_and_back():
    with Status(stories(), stats_interval=50) as site:
        complete(site)
        wait_for('the figures are out', lambda: site.workers()['e2e']['requests_done_length'] == 1)
        assert site.health() == (200, 'ok')
        site.worker.send_signal(signal.SIGSTOP)
        wait_for('it is seen to be stopped', lambda: site.health() == (503, 'stopped'), 5)
        assert site.workers()['e2e']['state'] == 'stopped' and site.workers()['e2e']['requests_total'] == 1
        samples = site.metrics()
        assert exposition.value(samples, 'up') == 0 and exposition.value(samples, 'worker_condition', condition='stopped') == 1
        site.worker.send_signal(signal.SIGCONT)
        wait_for('it is seen to go on', lambda: site.health() == (200, 'ok'), 5)
        site.worker.kill()
        site.worker.wait()
        assert site.health() == (503, 'dead')
        samples = site.metrics()
        assert exposition.value(samples, 'requests_total') == 1 and exposition.value(samples, 'worker_condition', condition='dead') == 1
        assert not [name for name, _ in samples if name == 'tokenring_num_requests_running'], 'gauges of a dead worker'
        assert site.workers()['e2e']['requests_total'] == 1 and site.workers()['e2e']['condition'] == 'dead'
        site.start_worker()
        wait_for('a new one is seen', lambda: site.health() == (200, 'ok'))
        assert exposition.value(site.metrics(), 'worker_starts_total') == 2 and site.workers()['e2e']['requests_total'] == 0
        site.worker.send_signal(signal.SIGINT)
        assert site.worker.wait(10) == 0
        assert site.health() == (503, 'dead')


def test_stopped_in_mid_stream():
    """Requests hang on the stopped worker; the status answers at once and says what it was at."""
    with Status(slow_model()) as site:
        stream = site.stream(TEXT, {'prompt': [1, 403, 407], 'max_tokens': fewer(500, 100), 'ignore_eos': True})
        stream.read_all(lambda s: len(s.events) >= 3)
        site.worker.send_signal(signal.SIGSTOP)
        wait_for('it is seen to be stopped', lambda: site.health() == (503, 'stopped'), 5)
        samples = site.metrics()
        assert exposition.value(samples, 'num_requests_running') == 1 and exposition.value(samples, 'kv_pages_used') >= 1
        made = exposition.value(samples, 'generation_tokens_total')
        time.sleep(0.3)
        assert 3 <= made == site.workers()['e2e']['completion_tokens_total'] < 500
        site.worker.send_signal(signal.SIGCONT)
        stream.read_all()
        assert stream.done and stream.finish == ['length'], stream.finish
        wait_for('it is seen to go on', lambda: site.health() == (200, 'ok'), 5)


def test_no_sign_of_life():
    """A process that lives and publishes nothing any more: its interval says when that is too long."""
    with Status(stories()) as site:
        file = site.dir / 'e2e.stats'
        data = file.read_bytes()
        site.worker.send_signal(signal.SIGINT)
        site.worker.wait(10)
        silent = bytearray(data)
        beat = struct.unpack_from('<Q', silent, 96)[0]
        for at in (80, beat):
            struct.pack_into('<Q', silent, at, int(time.time() * 1000) - 60000)
        file.write_bytes(silent)
        holder = subprocess.Popen([sys.executable, '-c', 'import fcntl, struct, sys, time\nf = open(sys.argv[1], "r+b")\n'
                                   'fcntl.fcntl(f, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))\nprint(flush=True)\ntime.sleep(60)', file],
                                  stdout=subprocess.PIPE)
        try:
            holder.stdout.readline()
            assert site.health() == (503, 'stalled')
            assert site.workers()['e2e']['process'] == 'running'
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()


def test_draining():
    with Status(slow_model()) as site:
        stream = site.stream(TEXT, {'prompt': [1, 403], 'max_tokens': fewer(480, 130), 'ignore_eos': True})
        stream.read_all(lambda s: len(s.events) >= 2)
        site.worker.send_signal(signal.SIGTERM)
        seen = []
        while not stream.ended and not stream.complete:
            seen.append(site.health())
            count = len(stream.events)
            stream.read_all(lambda s: len(s.events) >= count + 60)
        assert (503, 'draining') in seen, seen
        site.worker.wait(10)
        assert site.health() == (503, 'dead')


def test_loading():
    """A load takes some milliseconds, which a client that has to wait for a CPU can miss."""
    seen = set()

    def look():
        with Status(slow_model(), wait=False) as site:
            states = []
            wait_for('ready', lambda: states.append(site.health()) or (200, 'ok') in states, every=0.001)
            seen.update(states)
            assert (503, 'loading') in states, states
    attempts(20, look)
    assert seen <= {(503, 'missing'), (503, 'starting'), (503, 'loading'), (200, 'ok')}, seen


def test_missing_damaged_and_two_workers():
    names = ('e2e', 'other', 'never', 'bad')
    with Status(stories(), names=names) as site:
        (site.dir / 'bad.stats').write_bytes(b'no stats at all' * 1000)
        second = subprocess.Popen([build / 'tokenringd', '--model', stories('Q8_0'), '--listen', f'unix:{site.dir}/other.sock', '--stats-dir', site.dir, '--name', 'other', *tier_options(),
                                   '--alias', 'qu"ote\\'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for('both are ready', lambda: site.workers()['other']['condition'] == 'ready')
            workers = site.workers()
            assert {n: w['condition'] for n, w in workers.items()} == {'e2e': 'ready', 'other': 'ready', 'never': 'missing', 'bad': 'damaged'}
            assert 'error' in workers['bad'] and 'never.stats' in workers['never']['error']
            samples = site.metrics()
            models = {dict(labels)['worker']: dict(labels)['model_name'] for name, labels in samples if name == 'tokenring_threads'}
            assert set(models) == {'e2e', 'other'} and models['other'] == workers['other']['model'], models
            assert [exposition.value(samples, 'up', worker=n) for n in names] == [1, 1, 0, 0]
            assert exposition.value(samples, 'worker_condition', worker='never', condition='missing') == 1
            site.worker.kill()
            site.worker.wait()
            assert site.health() == (200, 'ok')  # one is enough
            assert [w['status'] for w in site.get('/healthz').json['workers']] == ['dead', 'ok', 'missing', 'damaged']
            second.send_signal(signal.SIGSTOP)
            wait_for('none is ready', lambda: site.health() == (503, 'stopped'), 5)
        finally:
            second.kill()
            second.wait()
        for n in range(0, 9000, 611):  # cut short at any place
            os.truncate(site.dir / 'other.stats', 9000 - n)
            assert site.health() == (503, 'dead') and site.workers()['other' if (site.dir / 'other.stats').exists() else 'e2e']
            assert site.metrics()


def test_the_documented_reader():
    code = re.search(r'```python\n(.*?)```', (source / 'docs/stats.md').read_text(), re.S).group(1)
    with Status(stories()) as site:
        for _ in range(2):
            complete(site, 9)
        read = lambda: json.loads(subprocess.run([sys.executable, '-c', code, site.dir / 'e2e.stats'], check=True, stdout=subprocess.PIPE).stdout)
        pair = lambda: (site.stat(), read())  # of one moment: the worker publishes four times a second
        wait_for('the figures are out', lambda: read()['heartbeats_total'] > 2)
        stat, got = wait_for('two readings between two beats', lambda: next(((s, g) for s, g in [pair()] if s['heartbeats_total'] == g['heartbeats_total']), None))
        assert got['alive'] and got['name'] == 'e2e' and got['pid'] == site.worker.pid
        for key, number in stat.items():
            if key.endswith('_count'):
                histogram = got[key[:-6]]
                assert sum(histogram['buckets']) == histogram['count'] and len(histogram['bounds']) + 1 == len(histogram['buckets'])
            if key in got and key not in ('last_logits_hash', 'loop_wake_time'):
                assert got[key] == number, (key, got[key], number)
        itl = got['itl']
        assert itl['count'] == stat['itl_count'] == 16 and abs(itl['sum'] / itl['count'] / 1000 - stat['itl_mean_us']) < 1, (itl, stat['itl_mean_us'])
        site.worker.kill()
        site.worker.wait()
        assert not read()['alive'] and read()['requests_total'] == 2


def configured(directives):
    """nginx -t of a location with these directives; its messages, "" if it is fine."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / 'nginx.conf'
        file.write_text(f'pid {folder}/pid; load_module {module};\nevents {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{free_port()}; location / {{ {directives} }} }} }}\n')
        done = subprocess.run([nginx, '-t', '-q', '-p', folder, '-e', f'{folder}/error.log', '-c', file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, 'RUNTIME_DIRECTORY': folder})
        return done.stdout if done.returncode else ''


def test_configuration():
    for good in ('default', 'a b.c', '/run/x.stats', 'relative/x.stats a', 'a format=health'):
        assert configured(f'tokenring_status {good};') == '', (good, configured(f'tokenring_status {good};'))
    for bad, words in (('', 'invalid number of arguments'), ('format=json', 'needs the name'), ('.x', 'cannot be the name'), ('"a b"', 'cannot be the name'),
                       ('a format=xml', 'format is'), ('a /run/a.stats', 'two workers'), ('/run/x/', 'no file'), ('a; tokenring_status b', 'duplicate')):
        assert words in configured(f'tokenring_status {bad};'), (bad, configured(f'tokenring_status {bad};'))
    assert configured('tokenring_status a; limit_except GET { deny all; } if ($args) { set $x 1; }') == ''


def test_inside_if_and_a_name_in_the_default_folder():
    with tempfile.TemporaryDirectory(prefix='tokenring-status-') as folder:
        before = os.environ.get('RUNTIME_DIRECTORY')
        os.environ['RUNTIME_DIRECTORY'] = folder
        try:
            with Status(worker=False, more='location = /named { tokenring_status some; if ($arg_x) { add_header X-If yes; } limit_except GET { deny all; } }') as site:
                for path in ('/named', '/named?x=1'):
                    reply = site.get(path)
                    assert reply.status == 200 and reply.json['workers'][0]['path'] == f'{folder}/some.stats', reply.body
                    assert reply.headers.get('x-if') == ('yes' if 'x=1' in path else None)
        finally:
            os.environ.pop('RUNTIME_DIRECTORY')
            if before is not None:
                os.environ['RUNTIME_DIRECTORY'] = before


if __name__ == '__main__':
    main()
