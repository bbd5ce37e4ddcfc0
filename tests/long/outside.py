#!/usr/bin/env python3
"""outside.py: what `tokenring bench` says is what a client behind nginx gets, and what busy neighbours leave of it.

Decoding is compared with decoding: the client's rate is that between a request's first and last token, times the
clients; the prompt's part, which bench gives as prefill, is in the time to the first token. Runs alternate and medians
are compared, for the machine's speed wanders; there are three tries. No drafts, which
bench does not have either. The client and nginx share the CPUs with the compute threads.
"""
import contextlib, json, os, pathlib, statistics, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'e2e'))
from harness import Site, attempts, build, default_model, main

ROUNDS = 4
TOKENS = 192


def tool(*words):
    done = subprocess.run([build / 'tokenring', 'bench', *map(str, words), '--json'], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def decode_rate(model, clients):
    figures = tool('-m', model, '-t', 2, '-p', 0, '-n', TOKENS, '-b', clients, '-d', 64, '-r', 1)
    return figures['decode_tps' + (f'_b{clients}' if clients > 1 else '') + '_d64']


def outside_rate(site, clients, seed):
    figures = tool('serve', f'http://127.0.0.1:{site.port}', '-c', clients, '-n', 2 * clients, '--words', 40, '--max-tokens', TOKENS, '--seed', seed)
    assert figures['ok'] == 2 * clients, figures
    return figures['request_tok_s_p50'] * clients


@contextlib.contextmanager
def hogs(n):
    """n processes of normal priority that compute all the time."""
    busy = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def ratio(runs, of, to):
    """The ratio of medians; prints what it is made of."""
    of, to = runs[of], runs[to]
    value = statistics.median(of) / statistics.median(to)
    print(f'    {[round(x) for x in of]} against {[round(x) for x in to]} tokens/s: {value:.2f}')
    return value


def compare(clients):
    """One try."""
    model, runs = default_model(), {'bench': [], 'outside': []}
    with Site(model, threads=2, draft='none') as site:
        for i in range(ROUNDS):
            runs['bench'].append(decode_rate(model, clients))
            runs['outside'].append(outside_rate(site, clients, i + 1))
    assert ratio(runs, 'outside', 'bench') >= 0.9


def test_one_client_gets_what_bench_says():
    attempts(3, lambda: compare(1))


def test_eight_clients_get_what_bench_says():
    attempts(3, lambda: compare(8))


def neighbours():
    """One try."""
    if len(os.sched_getaffinity(0)) > 2:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    model, runs = default_model(), {0: [], 1: [], 3: []}
    for _ in range(ROUNDS):
        for n in (0, 1, 0, 3):
            with hogs(n):
                runs[n].append(decode_rate(model, 1))
    assert ratio(runs, 1, 0) >= 0.55 and ratio(runs, 3, 0) >= 0.3


def test_busy_neighbours_cost_their_share():
    """Two compute threads and n hogs on two CPUs: the fair share is 0.67 with one hog, 0.4 with three."""
    attempts(3, neighbours)


if __name__ == '__main__':
    main()
