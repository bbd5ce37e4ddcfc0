#!/usr/bin/env python3
"""The HTTP API through nginx: answers, streams, limits, and what bad input gets."""
import json, random, socket, time

from harness import Site, Skip, default_model, main, shared, stories, together, wait_for

CHAT = '/v1/chat/completions'
TEXT = '/v1/completions'


def refused(reply, status, code=None, param=None):
    """The reply is an error in OpenAI's shape."""
    assert reply.status == status, (reply.status, reply.body)
    error = reply.json['error']
    assert set(error) >= {'message', 'type', 'param', 'code'}, error
    if code:
        assert error['code'] == code, error
    if param:
        assert error['param'].split('[')[0].split('.')[0] == param, error
    return error


def test_golden_ids_through_nginx():
    golden = json.loads((stories().parent / 'golden/once-f64.json').read_text())
    with Site(stories(), kv_type='f32') as site:
        reply = site.post(TEXT, {'prompt': golden['prompt'], 'max_tokens': 64, 'temperature': 0, 'ignore_eos': True})
        assert reply.status == 200, reply.body
        body = reply.json
        assert body['choices'][0]['text'] == golden['text'], body
        assert body['choices'][0]['finish_reason'] == 'length'
        assert body['usage']['prompt_tokens'] == len(golden['prompt_ids']) and body['usage']['completion_tokens'] == 64
        by_ids = site.post(TEXT, {'prompt': golden['prompt_ids'], 'max_tokens': 64, 'temperature': 0, 'ignore_eos': True})
        assert by_ids.json['choices'][0]['text'] == golden['text']
        stream = site.stream(TEXT, {'prompt': golden['prompt'], 'max_tokens': 64, 'temperature': 0, 'ignore_eos': True}).read_all()
        assert stream.text == golden['text'] and stream.finish == ['length'] and stream.done


def test_completion_logprobs():
    golden = json.loads((stories().parent / 'golden/once-f64.json').read_text())
    with Site(stories(), kv_type='f32') as site:
        body = site.post(TEXT, {'prompt': golden['prompt'], 'max_tokens': 8, 'temperature': 0, 'logprobs': 5}).json
        logprobs = body['choices'][0]['logprobs']
        assert len(logprobs['tokens']) == 8 == len(logprobs['token_logprobs']) == len(logprobs['top_logprobs']) == len(logprobs['text_offset'])
        for step, value in enumerate(logprobs['token_logprobs']):
            assert abs(value - golden['top'][step][0][1]) < 1e-3, (step, value, golden['top'][step])
        assert all(len(top) == 5 for top in logprobs['top_logprobs'])


def golden(name):
    if not shared.is_dir():
        raise Skip('the shared test data is not here')
    for line in (shared / 'data/golden/smollm2/greedy.jsonl').read_text().splitlines():
        entry = json.loads(line)
        if entry['name'] == name:
            return entry
    raise AssertionError(f'no golden is named {name}')


def test_chat_answers_like_the_golden():
    entry = golden('edit')  # its gaps are all 0.75 or more, so rounding cannot change the answer
    question = entry['prompt'].rsplit('<|im_start|>user\n', 1)[1].split('<|im_end|>')[0]
    want = entry['text'].replace('<|im_end|>', '')
    with Site(default_model()) as site:
        body = site.post(CHAT, {'messages': [{'role': 'user', 'content': question}], 'temperature': 0, 'max_tokens': 64}).json
        assert body['object'] == 'chat.completion' and body['id'].startswith('chatcmpl-'), body
        assert body['usage']['prompt_tokens'] == len(entry['prompt_ids']), body['usage']
        message = body['choices'][0]['message']
        assert message['role'] == 'assistant' and message['content'] == want, message
        assert body['choices'][0]['finish_reason'] == 'stop' and body['system_fingerprint']
        stream = site.stream(CHAT, {'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': question}]}],
                                    'temperature': 0, 'max_tokens': 64, 'stream_options': {'include_usage': True}}).read_all()
        assert stream.text == want and stream.finish == ['stop'] and stream.done
        assert stream.headers['content-type'].startswith('text/event-stream'), stream.headers
        assert stream.objects[0]['choices'][0]['delta'].get('role') == 'assistant'
        assert stream.objects[-1]['choices'] == [] and stream.objects[-1]['usage']['prompt_tokens'] == len(entry['prompt_ids'])


def test_special_tokens_in_chat_are_text():
    """A message that spells <|im_end|> must not end the turn."""
    with Site(default_model()) as site:
        plain = site.post(CHAT, {'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': 1}).json['usage']['prompt_tokens']
        spelled = site.post(CHAT, {'messages': [{'role': 'user', 'content': '<|im_end|>'}], 'max_tokens': 1}).json['usage']['prompt_tokens']
        assert spelled > plain + 2, (plain, spelled)
        parsed = site.post(TEXT, {'prompt': '<|im_start|>user<|im_end|>', 'max_tokens': 1}).json['usage']['prompt_tokens']
        assert parsed == 3, parsed


def test_stop_strings():
    with Site(stories(), kv_type='f32') as site:
        body = {'prompt': 'Once upon a time', 'max_tokens': 64, 'temperature': 0}
        full = site.post(TEXT, body).json['choices'][0]['text']
        cut = site.post(TEXT, {**body, 'stop': ['named Li', 'zebra']}).json
        assert cut['choices'][0]['text'] == full[:full.index('named Li')] and cut['choices'][0]['finish_reason'] == 'stop', cut
        assert cut['usage']['completion_tokens'] < 20
        stream = site.stream(TEXT, {**body, 'stop': 'named Li'}).read_all()
        assert stream.text == cut['choices'][0]['text'] and stream.finish == ['stop'] and stream.done
        wait_for('the stopped sequence is gone', lambda: site.stat()['requests_running'] == 0)


def test_seeds_and_sampling():
    with Site(stories()) as site:
        body = {'prompt': 'Once', 'max_tokens': 24, 'temperature': 1.3, 'seed': 42}
        assert site.post(TEXT, body).json['choices'][0]['text'] == site.post(TEXT, body).json['choices'][0]['text']
        texts = {site.post(TEXT, {**body, 'seed': seed}).json['choices'][0]['text'] for seed in range(6)}
        assert len(texts) >= 5, texts
        banned = site.post(TEXT, {**body, 'temperature': 0, 'logit_bias': {'432': -100}, 'prompt': 'Once upon a time'}).json
        assert not banned['choices'][0]['text'].startswith(','), banned


def test_models_health_and_ids():
    with Site(stories(), alias='tiny') as site:
        models = site.get('/v1/models').json
        assert models['object'] == 'list' and 'tiny' in json.dumps(models), models
        assert site.get('/health').json['status'] == 'ok'
        reply = site.post(TEXT, {'prompt': 'Once', 'max_tokens': 2, 'model': 'tiny'}, headers={'X-Request-Id': 'abc-123'})
        assert reply.status == 200 and reply.headers['x-request-id'] == 'abc-123', reply.headers
        odd = 'a"b\\c{}<~>%n'
        reply = site.post(TEXT, {'prompt': 'Once', 'max_tokens': 2}, headers={'X-Request-Id': odd})
        assert reply.headers['x-request-id'] == odd and reply.json['id'] == 'cmpl-' + odd, (reply.headers, reply.body)
        for bad in ('a b', 'x' * 129, 'caf\xe9'):
            given = site.post(TEXT, {'prompt': 'Once', 'max_tokens': 2}, headers={'X-Request-Id': bad}).headers['x-request-id']
            assert len(given) == 32 and int(given, 16), given
        assert site.post(TEXT, {'prompt': 'Once', 'max_tokens': 2}).headers['x-request-id']
        refused(site.post(TEXT, {'prompt': 'Once', 'model': 'gpt-9'}), 404, 'model_not_found')
        refused(site.get('/v1/nothing'), 404)
        refused(site.get(CHAT), 405)


def test_bad_input():
    with Site(stories()) as site:
        cases = [
            ('{', None), ('[]', None), ({'prompt': 3}, 'prompt'), ({}, 'prompt'), ({'prompt': 'x', 'max_tokens': 'many'}, 'max_tokens'),
            ({'prompt': 'x', 'max_tokens': -1}, 'max_tokens'), ({'prompt': 'x', 'temperature': 3}, 'temperature'),
            ({'prompt': 'x', 'top_p': 1.5}, 'top_p'), ({'prompt': 'x', 'top_k': 'a'}, 'top_k'), ({'prompt': 'x', 'stop': ['a'] * 5}, 'stop'),
            ({'prompt': [1, 2, 99999]}, 'prompt'), ({'prompt': [-1]}, 'prompt'), ({'prompt': 'x', 'logit_bias': {'a': 1}}, 'logit_bias'),
            ({'prompt': 'x', 'logit_bias': {'5': 500}}, 'logit_bias'), ({'prompt': 'x', 'presence_penalty': 9}, 'presence_penalty'),
            ({'prompt': 'x', 'stream': 'yes'}, 'stream'), ({'prompt': 'x', 'logprobs': 9}, 'logprobs'), ({'prompt': 'x', 'n': 17}, 'n'),
            ({'prompt': 'x', 'seed': 'a'}, 'seed'), ({'prompt': 'x', 'ignore_eos': 'a'}, 'ignore_eos')]
        for body, param in cases:
            refused(site.post(TEXT, body), 400, None, param)
        refused(site.post(TEXT, b'{"prompt": "\xff\xfe"}'), 400)
        refused(site.post(CHAT, {'messages': [{'role': 'user', 'content': 'x'}]}), 400)  # stories260K has no ChatML template
        error = refused(site.post(TEXT, {'prompt': 'Once ' * 10, 'max_tokens': 100000}), 400, 'context_length_exceeded')
        assert '100000' in error['message'] and '512' in error['message'], error
        assert site.post(TEXT, {'prompt': 'Once', 'max_tokens': 2}).status == 200


def test_json_suite_never_breaks_it():
    folder = shared / 'data/json/JSONTestSuite/test_parsing'
    if not shared.is_dir():
        raise Skip('the shared test data is not here')
    files = sorted(folder.iterdir())
    assert len(files) > 100, folder
    with Site(stories()) as site:
        for file in files:
            reply = site.post(TEXT, file.read_bytes() or b' ')
            assert reply.status == 400 and 'error' in reply.json, (file.name, reply.status)
        assert site.get('/health').status == 200


def test_limits():
    with Site(stories(), max_body=4096, max_queue=2) as site:
        refused(site.post(TEXT, {'prompt': 'x' * 8000}), 413)
        replies = together([lambda i=i: site.post(TEXT, {'prompt': 'Once', 'max_tokens': 400, 'ignore_eos': True, 'seed': i}) for i in range(48)])
        kinds = {r.status for r in replies}
        assert kinds <= {200, 503}, kinds
        for reply in replies:
            if reply.status == 503:
                refused(reply, 503, 'queue_full')
                assert int(reply.headers['retry-after']) >= 1


def test_large_bodies_and_slow_ones():
    """A body that nginx spills to a file, one sent in pieces, one without a length."""
    with Site(stories(), location='client_body_buffer_size 8k;') as site:
        ids = [random.Random(1).randrange(3, 500) for _ in range(400)]
        big = json.dumps({'prompt': ids, 'max_tokens': 1, 'temperature': 0}) + ' ' * 300_000
        whole = site.post(TEXT, big)
        assert whole.status == 200 and whole.json['usage']['prompt_tokens'] == 400, whole.body
        connection = socket.create_connection(('127.0.0.1', site.port))
        data = big.encode()
        connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n')
        for i in range(0, len(data), 50_000):
            piece = data[i:i + 50_000]
            connection.sendall(b'%x\r\n%s\r\n' % (len(piece), piece))
            time.sleep(0.02)
        connection.sendall(b'0\r\n\r\n')
        answer = b''
        while piece := connection.recv(65536):
            answer += piece
        assert b' 200 ' in answer.split(b'\r\n')[0] and b'"prompt_tokens":400' in answer.replace(b' ', b'').replace(b'200OK', b' 200 '), answer


def test_slow_reader_pauses_and_finishes():
    with Site(stories()) as site:
        streams = [site.stream(TEXT, {'prompt': 'Once', 'max_tokens': 480, 'ignore_eos': True, 'logprobs': 5, 'seed': 1}, receive_buffer=4096) for _ in range(4)]
        fast = site.post(TEXT, {'prompt': 'Once', 'max_tokens': 32})
        assert fast.status == 200
        time.sleep(1)
        for stream in streams:
            stream.read_all()
            assert stream.finish == ['length'] and stream.done


def test_loading_is_told():
    with Site(default_model(), wait=False) as site:
        seen = set()
        while (reply := site.get('/health')).status != 200:
            seen.add((reply.status, reply.json['status'] if reply.status == 503 else ''))
            time.sleep(0.005)
        assert seen <= {(503, 'loading'), (502, '')}, seen
        assert site.get('/health').json['status'] == 'ok'


if __name__ == '__main__':
    main()
