#!/usr/bin/env python3
"""The terms that nginx's configuration sets for a request: tenant, priority, cap of tokens, keepalives, time in the queue."""
import signal, threading, time

from harness import Site, default_model, fewer, main, stories, together, wait_for

TEXT = '/v1/completions'


def ids(n, seed=1):
    return [1] + [3 + (seed * 7919 + i * 104729 + i * i) % 500 for i in range(n - 1)]


def body(prompt, tokens, **more):
    return {'prompt': prompt, 'max_tokens': tokens, 'temperature': 0, 'ignore_eos': True, **more}


def cached(reply):
    assert reply.status == 200, reply.body
    return reply.json['usage']['prompt_tokens_details']['cached_tokens']


def test_tokens_are_capped():
    with Site(stories(), location='tokenring_max_tokens $http_x_cap;') as site:
        capped = {'X-Cap': '5'}
        for request in (body(ids(5), 50), {'prompt': ids(5), 'ignore_eos': True}):
            answer = site.post(TEXT, request, headers=capped).json
            assert answer['usage']['completion_tokens'] == 5 and answer['choices'][0]['finish_reason'] == 'length', answer
        assert site.post(TEXT, body(ids(5), 3), headers=capped).json['usage']['completion_tokens'] == 3
        assert site.post(TEXT, body(ids(5), 9)).json['usage']['completion_tokens'] == 9
        assert site.post(TEXT, body(ids(5), 9), headers={'X-Cap': 'many'}).json['usage']['completion_tokens'] == 9
        assert 'x-tokenring-max-tokens: "many" is no number' in site.log()


def test_clients_cannot_set_them():
    with Site(stories()) as site:
        own = {'X-Tokenring-Max-Tokens': '2', 'X-Tokenring-Tenant': 'a', 'X-Tokenring-Queue-Timeout': '1', 'X-Tokenring-Priority': '9'}
        assert site.post(TEXT, body(ids(100), 9), headers=own).json['usage']['completion_tokens'] == 9
        assert cached(site.post(TEXT, body(ids(100), 9))) == 96  # no tenant's, like this one


def test_tenants_and_salts_share_no_pages():
    with Site(stories(), location='tokenring_tenant $http_x_user;') as site:
        ask = lambda user, **more: cached(site.post(TEXT, body(ids(100), 2, **more), headers={'X-User': user} if user else {}))
        assert ask('anne') == 0 and ask('bert') == 0 and ask('anne') == 96 and ask('bert') == 96 and ask(None) == 0
        assert ask('anne', cache_salt='x') == 0 and ask('anne', cache_salt='x') == 96 and ask(None, cache_salt='x') == 0
        for wrong in ('', 7, 'x' * 1025):
            reply = site.post(TEXT, body(ids(10), 2, cache_salt=wrong))
            assert reply.status == 400 and reply.json['error']['param'] == 'cache_salt', reply.body


def test_important_ones_come_first():
    with Site(default_model(), max_running=1, location='tokenring_priority $http_x_priority;') as site:
        first = site.stream(TEXT, body(ids(5), fewer(250, 60))).read_all(lambda s: len(s.events) >= 2)
        ended = []

        def ask(i, priority):
            site.post(TEXT, body(ids(5 + i), 4), headers={'X-Priority': priority})
            ended.append(priority)
        threads = [threading.Thread(target=ask, args=(i, p)) for i, p in enumerate('3915')]
        for n, t in enumerate(threads):
            t.start()
            wait_for('it waits', lambda: site.stat()['requests_waiting'] == n + 1)
        first.read_all()
        for t in threads:
            t.join()
        assert ended == ['9', '5', '3', '1'], ended


def test_who_waits_hears_of_it():
    with Site(default_model(), max_running=1, location='tokenring_keepalive_interval 200ms;') as site:
        first = site.stream(TEXT, body(ids(5), fewer(1000))).read_all(lambda s: len(s.events) >= 2)
        waiting = site.post(TEXT, body(ids(6), 4, stream=True))
        assert waiting.status == 200 and waiting.body.startswith(b': keepalive\n\n') and waiting.body.endswith(b'data: [DONE]\n\n'), waiting.body
        first.read_all()


def test_time_in_the_queue_is_limited():
    with Site(default_model(), max_running=1, location='tokenring_queue_timeout 200ms;') as site:
        first = site.stream(TEXT, body(ids(5), 1000)).read_all(lambda s: len(s.events) >= 2)
        start = time.time()
        late = site.post(TEXT, body(ids(6), 4))
        assert late.status == 503 and late.json['error']['code'] == 'queue_timeout' and int(late.headers['retry-after']) > 0, late.body
        assert 0.15 < time.time() - start < 3
        first.close()


def test_the_queue_is_limited_in_tokens():
    with Site(stories(), max_running=1, max_queue_tokens=300) as site:
        replies = together([lambda i=i: site.post(TEXT, body(ids(200, i), 200)) for i in range(8)])
        assert sorted({r.status for r in replies}) == [200, 503], [r.status for r in replies]
        assert all(r.json['error']['code'] == 'queue_full' for r in replies if r.status == 503)
        wait_for('all is over', lambda: site.stat()['requests_running'] == 0)
        assert site.post(TEXT, body(ids(400), 2)).status == 200


def test_two_tenants_share():
    """One tenant with many requests, one with few: the few do not wait for the many."""
    with Site(stories(), max_running=2, location='tokenring_tenant $http_x_user;') as site:
        done = {}

        def ask(user, i):
            site.post(TEXT, body(ids(40, i), 300), headers={'X-User': user})
            done[user, i] = time.time()
        many = [threading.Thread(target=ask, args=('many', i)) for i in range(24)]
        few = [threading.Thread(target=ask, args=('few', 100 + i)) for i in range(4)]
        site.worker.send_signal(signal.SIGSTOP)  # or a fast worker is through with the many before a slow client has sent them
        for group in (many, few):
            for t in group:
                t.start()
            time.sleep(0.5)
        site.worker.send_signal(signal.SIGCONT)
        for t in many + few:
            t.join()
        order = [user for user, _ in sorted(done, key=done.get)]
        last = max(i for i, user in enumerate(order) if user == 'few')
        assert last < 20, order


if __name__ == '__main__':
    main()
