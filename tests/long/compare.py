#!/usr/bin/env python3
"""compare.py: Tokenring and other servers behind the same stock nginx, in alternating runs.

    tests/long/compare.py [--model FILE|default|1.1b] [--clients 16] [--rounds 2] [--requests 64] [--prompt 61] [--tokens 48]
                          --peer 'NAME=/path/to/llama-server ARGS...' ...
                          [--want-rate 2] [--want-ttft 0.333] [--want-fairness 1.2]

A peer is a program with llama-server's options; it gets -m, --host, --port, -t, -np (the clients) and -c (room for all of
them), and what is given behind its path. All servers are up the whole time; those that are not measured are stopped
(SIGSTOP). Every request has a prompt of its own, random from the first token on. Prints each run and, at the end, for
each figure the median over the rounds and the ratio to the better peer. Then, so that nothing of it is in the times, the
last round's requests go once more through Tokenring with --trace-logits, by as many clients, and one after the other
through one without a prefix cache: the hash over the logits of every token must be the same. Status 1 if a ratio is not
what was wanted or a hash differs.
"""
import argparse, http.client, itertools, json, os, shlex, signal, statistics, subprocess, sys, tempfile, threading

from loads import TEXT, Site, bench, big_model, body, default_model, free_port, prompt_file, together, wait_for

FIGURES = {'out_tok_s': max, 'ttft_p50_ms': min, 'ttft_max_ms': min, 'itl_p50_ms': min, 'itl_p99_ms': min, 'fairness': min}


class Peer:
    """A server behind nginx's proxy_pass, with a Site's shape: port, pids."""

    def __init__(self, command, model, args):
        program, *more = shlex.split(command)
        self.port = free_port()
        slots = args.clients
        argv = [program, '-m', str(model), '--host', '127.0.0.1', '--port', str(self.port), '-t', str(os.cpu_count()), '-np', str(slots),
                '-c', str(slots * (args.prompt + args.tokens + 64)), *more]
        self.process = subprocess.Popen(argv, cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ready(self):
        if self.process.poll() is not None:
            sys.exit(f'{self.process.args}: ended with status {self.process.returncode}')
        try:
            connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=5)
            connection.request('GET', '/health')
            return connection.getresponse().status == 200
        except OSError:
            return False


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--model', default='1.1b')
    p.add_argument('--peer', action='append', default=[])
    for name, value in (('clients', 16), ('rounds', 2), ('requests', 64), ('prompt', 61), ('tokens', 48)):
        p.add_argument('--' + name, type=int, default=value)
    for name in ('rate', 'ttft', 'fairness'):
        p.add_argument('--want-' + name, type=float)
    return p.parse_args()


def measure(site, port, args, seed, requests):
    return bench(port, clients=args.clients, requests=requests, max_tokens=args.tokens, prompts=prompt_file(site.dir, requests, args.prompt, seed))


def hashes(site, prompts, args, clients):
    """The logits hash of every prompt's answer, asked for by so many clients at once."""
    found, turn, lock = [None] * len(prompts), itertools.count(), threading.Lock()

    def client():
        while True:
            with lock:
                i = next(turn)
            if i >= len(prompts):
                return
            stream = site.stream(TEXT, body(prompts[i], args.tokens, stream_options={'include_usage': True})).read_all()
            usage = [o for o in stream.objects if o.get('usage')]
            assert stream.status == 200 and stream.done and usage, (i, stream.status, stream.events[-2:])
            found[i] = (usage[-1]['usage']['completion_tokens'], usage[-1]['timings']['logits_hash'])
    together([client] * clients)
    return found


def same_bits(model, args):
    """Whether the load's answers have the logits that each has alone."""
    with Site(model, max_running=args.clients, trace_logits=True) as site:
        file = prompt_file(site.dir, args.requests, args.prompt, f'tokenring/{args.rounds - 1}')
        prompts = [json.loads(line) for line in file.read_text().splitlines()]
        crowd = hashes(site, prompts, args, args.clients)
        most = site.stat()['step_sequences_total'] / site.stat()['steps_total']
    with Site(model, max_running=1, trace_logits=True, prefix_cache='off') as site:
        alone = hashes(site, prompts, args, 1)
    differ = [i for i, (a, b) in enumerate(zip(crowd, alone)) if a != b]
    print(f'logits hashes: {len(prompts) - len(differ)} of {len(prompts)} requests as alone ({most:.1f} sequences a step in the crowd)')
    return not differ and len(set(alone)) == len(alone)


def judge(runs, args):
    """Prints medians and ratios; returns what is not as wanted."""
    table = {name: {key: statistics.median(r[key] or 0 for r in of) for key in FIGURES} for name, of in runs.items()}
    for name, row in table.items():
        print(f'{name:12}', *(f'{key} {value:.2f}' for key, value in row.items()), f"cached {sum(r['cached_tokens'] for r in runs[name])}")
    ours, bad = table.pop('tokenring'), []
    if args.want_fairness and ours['fairness'] > args.want_fairness:
        bad.append('fairness')
    if table:
        ratio = {key: ours[key] / (best(row[key] for row in table.values()) or 1) for key, best in FIGURES.items()}
        print('ratio       ', *(f'{key} {value:.3f}' for key, value in ratio.items()))
        bad += ['rate'] * bool(args.want_rate and ratio['out_tok_s'] < args.want_rate)
        bad += ['ttft'] * bool(args.want_ttft and ratio['ttft_p50_ms'] > args.want_ttft)
    return bad


def run(site, peers, args):
    pids = {'tokenring': (site.port, site.worker.pid), **{n: (site.ports[n], p.process.pid) for n, p in peers.items()}}
    for name, peer in peers.items():
        wait_for(name + ' is ready', peer.ready, 120)
    runs = {name: [] for name in pids}
    for round_ in range(-1, args.rounds):  # the first one only warms up
        for name, (port, pid) in pids.items():
            for other, (_, p) in pids.items():
                os.kill(p, signal.SIGCONT if other == name else signal.SIGSTOP)
            r = measure(site, port, args, f'{name}/{round_}', args.requests if round_ >= 0 else args.clients)
            if round_ >= 0:
                runs[name].append(r)
                print(f'    {name:12}', *(f'{key} {r[key] or 0:.2f}' for key in FIGURES), flush=True)
    return runs


def main():
    args = arguments()
    model = default_model() if args.model == 'default' else big_model() if args.model == '1.1b' else args.model
    peers, servers, ports = {}, '', {}
    for text in args.peer:
        name, _, command = text.partition('=')
        peers[name], ports[name] = Peer(command, model, args), free_port()
        servers += (f'server {{ listen 127.0.0.1:{ports[name]}; location / {{ proxy_pass http://127.0.0.1:{peers[name].port}; '
                    'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 600s; } }\n')
    try:
        with Site(model, http=servers, max_running=args.clients) as site:
            site.ports = ports
            try:
                runs = run(site, peers, args)
            finally:
                site.worker.send_signal(signal.SIGCONT)
    finally:
        for peer in peers.values():
            peer.process.kill()
            peer.process.wait()
    bad = judge(runs, args)
    if not same_bits(model, args):
        bad.append('logits')
    print('not ok ' + ', '.join(bad) if bad else 'ok compare')
    sys.exit(1 if bad else 0)


if __name__ == '__main__':
    main()
