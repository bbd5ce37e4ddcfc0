#!/usr/bin/env python3
"""What nginx's configuration says of clients that leave, that must hear something, and that wait too long."""
import time

from harness import Site, default_model, main, patience, wait_for

TEXT, CHAT = '/v1/completions', '/v1/chat/completions'
PROMPT = 1500 if patience() == 1 else 500  # tokens; the scalar tier's attention is slow
KEPT = (PROMPT - 1) // 32 * 32


def ids(n, seed=1):
    return [1] + [3 + (seed * 7919 + i * 104729 + i * i) % 500 for i in range(n - 1)]


def body(prompt, tokens, **more):
    return {'prompt': prompt, 'max_tokens': tokens, 'temperature': 0, 'ignore_eos': True, **more}


def leave_in_prefill(site):
    stream = site.stream(TEXT, body(ids(PROMPT), 500, n=3))
    wait_for('the prefill runs', lambda: site.stat()['prefilled_tokens_total'] > 0, every=0.005)
    stream.close()
    wait_for('the request is gone', lambda: site.stat()['requests_running'] == 0)
    figures = site.stat()
    assert figures['requests_cancelled'] == 1 and figures['kv_pages_used'] == 0 and figures['completion_tokens_total'] == 0, figures
    return figures['prefilled_tokens_total'], site.post(TEXT, body(ids(PROMPT), 2)).json['usage']['prompt_tokens_details']['cached_tokens']


def test_who_leaves_stops_the_prefill():
    with Site(default_model(), prefill_chunk=64) as site:
        prefilled, cached = leave_in_prefill(site)
        assert prefilled < PROMPT and cached < KEPT, (prefilled, cached)


def test_who_leaves_may_leave_the_prefill():
    with Site(default_model(), prefill_chunk=64, location='tokenring_on_disconnect prefill;') as site:
        assert leave_in_prefill(site) == (PROMPT, KEPT)
        # one that decodes stops as ever
        stream = site.stream(TEXT, body(ids(10), 5000)).read_all(lambda s: len(s.events) > 3)
        stream.close()
        wait_for('the request is gone', lambda: site.stat()['requests_running'] == 0)
        assert site.stat()['completion_tokens_total'] < 4000


def test_keepalives_as_data():
    with Site(default_model(), max_running=1, location='tokenring_keepalive_interval 200ms; tokenring_keepalive data;') as site:
        for path, ask in ((TEXT, body(ids(6), 4)), (CHAT, {'messages': [{'role': 'user', 'content': 'Hi'}], 'max_tokens': 4, 'temperature': 0})):
            first = site.stream(TEXT, body(ids(5), 6000)).read_all(lambda s: len(s.events) >= 2)
            waiting = site.stream(path, ask).read_all(lambda s: len(s.events) >= 3)
            first.close()
            waiting.read_all()
            early = [event['choices'][0] for event in waiting.objects[:3]]
            want = [''] * 3 if path == TEXT else [{'role': 'assistant', 'content': ''}, {}, {}]
            assert [c['text'] if path == TEXT else c['delta'] for c in early] == want, early
            assert all(c['finish_reason'] is None and c['index'] == 0 for c in early)
            assert waiting.status == 200 and waiting.done and len(waiting.finish) == 1
            plain = site.post(path, ask).json['choices'][0]
            assert waiting.text == (plain['text'] if path == TEXT else plain['message']['content'])


def test_a_request_has_its_time():
    form = "log_format reason '$status $tokenring_finish_reason';"
    location = 'tokenring_request_timeout 700ms; access_log reason.log reason;'
    with Site(default_model(), http=form, location=location) as site:
        ask = body(ids(5), 6000)
        start = time.time()
        stream = site.stream(TEXT, ask).read_all()
        assert stream.status == 200 and stream.finish == ['length'] and stream.done and 0.6 < time.time() - start < 10
        assert 0 < len(stream.events) < 5000
        whole = site.post(TEXT, ask)
        assert whole.status == 200 and whole.json['choices'][0]['finish_reason'] == 'length', whole.body
        assert 0 < whole.json['usage']['completion_tokens'] < 6000
        wait_for('nothing is left', lambda: site.stat()['requests_running'] == 0 and site.stat()['kv_pages_used'] == 0)
        assert site.stat()['requests_timed_out'] == 2
        log = lambda: (site.dir / 'reason.log').read_text().splitlines()
        wait_for('the log', lambda: sum(line == '200 timeout' for line in log()) == 2)


def test_who_got_no_token_gets_an_error():
    with Site(default_model(), request_timeout=1, max_running=1, keepalive_interval=100) as site:
        # the one that runs is cut off a moment before those that wait behind it, so let it run on other terms
        with Site(default_model(), worker=False, location='tokenring_request_timeout 0;') as other:
            other.nginx.terminate()
            other.nginx.wait()
            other.socket = site.socket
            other.start_nginx()
            first = other.stream(TEXT, body(ids(5), 8000)).read_all(lambda s: len(s.events) >= 2)
            late = site.post(TEXT, body(ids(6), 4))
            assert late.status == 504 and late.json['error']['code'] == 'request_timeout', late.body
            stream = site.stream(TEXT, body(ids(6), 4)).read_all()
            assert stream.status == 200 and stream.finish == ['error:request_timeout'] and stream.done, stream.events
            first.close()
        assert site.stat()['requests_timed_out'] == 2 and site.stat()['requests_failed'] == 2


def test_clients_may_ask_for_less():
    with Site(default_model()) as site:
        start = time.time()
        reply = site.post(TEXT, body(ids(5), 8000, t_max_predict_ms=300, n=2))
        assert reply.status == 200 and [c['finish_reason'] for c in reply.json['choices']] == ['length'] * 2 and time.time() - start < 10, reply.body
        assert 2 <= reply.json['usage']['completion_tokens'] < 16000
        reply = site.post(TEXT, body(ids(5), 8, t_max_predict_ms=-1))
        assert reply.status == 400 and reply.json['error']['param'] == 't_max_predict_ms'
        wait_for('nothing is left', lambda: site.stat()['requests_running'] == 0)
        assert site.post(TEXT, body(ids(5), 8, t_max_predict_ms=0)).json['usage']['completion_tokens'] == 8


if __name__ == '__main__':
    main()
