#!/usr/bin/env python3
"""Reloads, several nginx workers, their ends, and what the kernel sees of the ring."""
import os, re, shutil, signal, subprocess, tempfile, threading, time

from rig import Rig, children, events, main, parse, read_all, together, wait_for
from harness import Skip, process_figures


def whole(answer, n):
    status, headers, body = answer
    assert status == 200 and body is not None and len(events(body)) == n + 1, (status, body)


def test_reload_under_load_loses_nothing():
    with Rig(processes=2) as rig:
        end = time.time() + 3
        done = []

        def client(i):
            while time.time() < end:
                whole(rig.get(f'/sse?n={5 + i % 7}&gap=15'), 5 + i % 7)
                assert rig.post('/echo', b'z' * 50000)[2] == b'z' * 50000
                done.append(1)

        def reloader():
            while time.time() < end:
                rig.reload()
                time.sleep(0.3)
        together([lambda i=i: client(i) for i in range(12)] + [reloader])
        assert len(done) > 50, len(done)
        wait_for('old nginx workers leave', lambda: len(children(rig.nginx.pid)) == 2, 10)
        wait_for('their channels end', lambda: rig.workers[0].log.count('CHANNEL') - rig.workers[0].log.count('EOF') <= 2, 5)


def test_reload_lets_streams_finish():
    with Rig() as rig, rig.send('/sse?n=40&gap=50') as s:
        rig.workers[0].said('REQUEST')
        old = rig.reload()
        whole(rig.get('/sse?n=2&gap=1'), 2)
        assert rig.workers[0].log.count('CHANNEL') == 2
        whole(parse(read_all(s)), 40)
        wait_for('the old worker leaves', lambda: not set(children(rig.nginx.pid)) & old, 5)


def test_reload_with_an_idle_channel_leaves_at_once():
    with Rig() as rig:
        assert rig.get('/health')[0] == 200
        start = time.time()
        old = rig.reload()
        wait_for('the old worker leaves', lambda: not set(children(rig.nginx.pid)) & old, 5)
        assert time.time() - start < 2
        rig.workers[0].said('EOF')


def test_shutdown_timeout_cancels():
    with Rig(main_conf='worker_shutdown_timeout 500ms;') as rig, rig.send('/sse?n=1000&gap=20') as s:
        rig.workers[0].said('REQUEST')
        old = rig.reload()
        wait_for('the old worker leaves', lambda: not set(children(rig.nginx.pid)) & old, 5)
        assert parse(read_all(s))[2] is None
        wait_for('cancelled or closed', lambda: re.search('CANCEL|EOF', rig.workers[0].log))


def test_terminate_during_streams():
    with Rig() as rig:
        streams = [rig.send('/sse?n=1000&gap=20') for _ in range(8)]
        wait_for('eight requests', lambda: rig.workers[0].log.count('REQUEST') == 8)
        rig.nginx.send_signal(signal.SIGTERM)
        rig.nginx.wait(10)
        rig.workers[0].said('EOF')
        for s in streams:
            s.close()


def test_killed_nginx_worker_is_replaced():
    with Rig(expect=r'exited on signal 9') as rig:
        with rig.send('/sse?n=1000&gap=20') as s:
            rig.workers[0].said('REQUEST')
            os.kill(children(rig.nginx.pid)[0], signal.SIGKILL)
            assert parse(read_all(s))[2] is None
        rig.workers[0].said('EOF')
        whole(rig.get('/sse?n=3&gap=1'), 3)


def test_each_nginx_worker_has_its_channel():
    with Rig(processes=3) as rig:
        for _ in range(40):
            together([lambda: whole(rig.get('/sse?n=3&gap=2'), 3)] * 6)
            if rig.workers[0].log.count('CHANNEL') == 3:
                break
        assert 1 < rig.workers[0].log.count('CHANNEL') <= 3


def test_worker_restarts_under_load():
    with Rig(expect=r'connect\(\)') as rig:
        end = time.time() + 2
        good, bad = [], []

        def client(i):
            while time.time() < end:
                status, headers, body = rig.get('/sse?n=5&gap=10')
                assert status in (200, 502) and body is not None, (status, body)
                if status == 200:
                    assert body.endswith(b'data: [DONE]\n\n') and body.count(b'[DONE]') == 1, body
                (bad if status == 502 or b'worker_lost' in body else good).append(1)

        def killer():
            while time.time() < end:
                time.sleep(0.2)
                rig.workers[0].kill()
                rig.workers[0].start()
        together([lambda i=i: client(i) for i in range(16)] + [killer])
        assert len(good) > 50 and bad, (len(good), len(bad))
        whole(rig.get('/sse?n=5&gap=1'), 5)


def test_nothing_grows():
    with Rig() as rig:
        def load():
            together([lambda: [rig.get('/sse?n=3&gap=0') for _ in range(20)] for _ in [0]] * 8)
            for _ in range(10):
                rig.send('/hang').close()
            wait_for('cancels', lambda: rig.workers[0].log.count('REQUEST') == rig.workers[0].log.count('CANCEL') + rig.workers[0].log.count('END'))
        load()
        pid = children(rig.nginx.pid)[0]
        before = process_figures(pid)
        for _ in range(3):
            load()
        wait_for('as many descriptors as before', lambda: process_figures(pid)['fds'] <= before['fds'])
        after = process_figures(pid)
        assert after['rss'] - before['rss'] < 2 << 20, (before, after)


class Strace:
    def __init__(self, pids):
        self.pids = pids

    def __enter__(self):
        if not shutil.which('strace'):
            raise Skip('strace is not installed')
        self.file = tempfile.NamedTemporaryFile(suffix='.strace')
        argv = ['strace', '-f', '-qq', '-yy', '-s', '256', '-e', 'trace=network,read,write,readv,writev', '-o', self.file.name]
        for pid in self.pids:
            argv += ['-p', str(pid)]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE)
        time.sleep(1)
        if self.process.poll() is not None:
            raise Skip('strace cannot attach here')
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.calls = [c for c in open(self.file.name, errors='replace').read().splitlines() if 'resumed' not in c]


def test_no_payload_on_the_socket_and_few_doorbells():
    with Rig() as rig:
        assert rig.get('/health')[0] == 200  # the channel is made
        pids = [*children(rig.nginx.pid), rig.workers[0].process.pid]
        with Strace(pids) as trace:
            whole(rig.get('/sse?n=100&gap=10'), 100)
            together([lambda: whole(rig.get('/sse?n=100&gap=10'), 100)] * 32)
        bells = [c for c in trace.calls if 'UNIX' in c and re.search(r'\b(sendto|sendmsg|write|writev)\(', c)]
        sizes = [int(m.group(1)) for c in bells if (m := re.search(r'= (\d+)$', c))]
        assert sizes and max(sizes) == 1, (max(sizes, default=0), bells[:3])
        assert not [c for c in trace.calls if 'UNIX' in c and 'pad' in c]
        down = [c for c in bells if c.split()[0] == str(pids[-1])]
        print(f'    {len(down)} doorbells down, {len(bells) - len(down)} up, for 101 + 101 turns and 33 requests')
        assert len(down) < 101 + 33 * 101 * 0.5, len(down)


if __name__ == '__main__':
    main()
