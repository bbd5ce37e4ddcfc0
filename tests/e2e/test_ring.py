#!/usr/bin/env python3
"""The ring is real: what strace sees of nginx and the worker while tokens stream."""
import re, subprocess, tempfile, time

from harness import Site, Skip, default_model, fewer, main, together, wait_for
from test_streams import TEXT, generation, good


class Strace:
    """Follows processes while inside the `with`; calls: the system calls seen, as text lines."""

    def __init__(self, *pids):
        self.pids = pids

    def __enter__(self):
        self.file = tempfile.NamedTemporaryFile(suffix='.strace')
        argv = ['strace', '-f', '-qq', '-yy', '-s', '64', '-e', 'trace=sendto,sendmsg,recvfrom,recvmsg,read,write,writev,readv,send,recv', '-o', self.file.name]
        for pid in self.pids:
            argv += ['-p', str(pid)]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE)
        time.sleep(1)
        if self.process.poll() is not None:
            raise Skip('strace cannot attach here: ' + self.process.stderr.read().decode().strip())
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.calls = open(self.file.name, errors='replace').read().splitlines()


def unix_calls(calls, site):
    """Calls on the control socket (a unix socket); resumed halves left out."""
    return [c for c in calls if 'UNIX' in c and 'resumed' not in c]


def size_of(call):
    found = re.search(r'= (-?\d+)', call.rsplit(')', 1)[-1])
    return int(found.group(1)) if found else 0


def test_no_payload_on_any_socket_but_the_clients():
    with Site(default_model()) as site:
        good(site.stream(TEXT, generation(1, 8)).read_all(), 8)
        before = site.stat()
        with Strace(site.worker.pid, *site.nginx_children()) as trace:
            good(site.stream(TEXT, generation(2, 256)).read_all(), 256)
            after = site.stat()
        bells = unix_calls(trace.calls, site)
        assert bells, 'strace saw no doorbell at all'
        big = [c for c in bells if size_of(c) > 64]
        assert not big, big[:3]
        leaked = [c for c in trace.calls if 'UNIX' in c and ('data:' in c or 'choices' in c)]
        assert not leaked, leaked[:3]
        steps = after['steps_total'] - before['steps_total']
        sent = [c for c in bells if re.search(r'\b(sendto|sendmsg|write)\(', c)]
        print(f'    {len(sent)} doorbells for {steps} steps')
        assert len(sent) <= 1.05 * steps + 4, (len(sent), steps)


def test_many_streams_share_a_doorbell():
    with Site(default_model()) as site:
        good(site.stream(TEXT, generation(1, 8)).read_all(), 8)
        tokens = fewer(48, 16)
        with Strace(site.worker.pid, *site.nginx_children()) as trace:
            for stream in together([lambda i=i: site.stream(TEXT, generation(i, tokens, words=5)).read_all() for i in range(32)]):
                good(stream, tokens)
        sent = [c for c in unix_calls(trace.calls, site) if re.search(r'\b(sendto|sendmsg|write)\(', c)]
        print(f'    {len(sent) / (32 * tokens):.3f} doorbells a token')
        assert len(sent) < 0.1 * 32 * tokens, len(sent)


if __name__ == '__main__':
    main()
