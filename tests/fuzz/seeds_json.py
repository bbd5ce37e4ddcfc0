#!/usr/bin/env python3
"""seeds_json.py FOLDER: request bodies, good and bad, for fuzz_json. The byte in front chooses the endpoint."""
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
CHAT, COMPLETIONS = b'\x01', b'\x00'
both = [
    '"model":"fake"', '"model":"org/fake-1"', '"model":"other"', '"model":1', '"temperature":0.7', '"temperature":3',
    '"temperature":"x"', '"temperature":[]', '"temperature":{}', '"temperature":true', '"temperature":1e999',
    '"temperature":1.00000000000000000000000000000000000000000000000000000000000000000000000000001',
    '"top_p":0.9,"min_p":0.05,"top_k":40,"repetition_penalty":1.1,"presence_penalty":-1,"frequency_penalty":1',
    '"repeat_penalty":0', '"seed":-1', '"seed":99999999999999999999', '"seed":5.0', '"seed":5.5', '"stop":"x"',
    '"stop":["a","\\n","\\u00e9","\\ud83d\\ude00"]', '"stop":["a","b","c","d","e"]', '"stop":""', '"stop":5',
    '"stop":"\\u0000"', '"stop":[1]', '"stop":"%s"' % ('y' * 1100), '"logit_bias":{"1":-100,"262":5.5,"1":3}',
    '"logit_bias":{"263":1}', '"logit_bias":{"x":1}', '"logit_bias":{"1":101}', '"logit_bias":[]', '"logit_bias":{}',
    '"stream":true', '"stream":true,"stream_options":{"include_usage":true}', '"stream":true,"stream_options":{"include_usage":1}',
    '"stream_options":{}', '"stream_options":5', '"ignore_eos":true', '"max_tokens":5', '"max_tokens":600', '"max_tokens":-1',
    '"max_completion_tokens":7', '"n":1', '"n":2', '"n":0', '"response_format":{"type":"text"}',
    '"response_format":{"type":"json_object"}', '"response_format":5', '"guided_json":{}', '"min_tokens":1',
    '"stop_token_ids":[1]', '"stop_token_ids":5', '"grammar":"x"', '"grammar":5', '"use_beam_search":true', '"t\\u006fp_k":1',
    '"x":[[[[{"y":[null,true,false,-0.5e+3]}]]]]', '"user":"u","logit_bias":null',
    '"logit_bias":{%s}' % ','.join('"1":1' for _ in range(1000)),
]
chat = [
    '"logprobs":true,"top_logprobs":5', '"top_logprobs":5', '"logprobs":1', '"tools":[]', '"tools":[{}]', '"tools":5',
    '"tool_choice":"auto"', '"tool_choice":{}', '"modalities":["text"]', '"modalities":["audio"]', '"modalities":5', '"audio":{}',
]
completions = ['"logprobs":3', '"logprobs":6', '"best_of":2', '"echo":true', '"suffix":"x"', '"suffix":5']
prompts = ['null', '""', '"a<|im_end|>b"', '"\\b\\f\\n\\r\\t\\/\\\\\\""', '["x"]', '["x","y"]', '[1,2,3]', '[[1,2]]', '[[]]', '[]',
           '[263]', '[-1]', '[true]', '[1,"a"]', '{}', '5', '"%s"' % ('z' * 600)]
messages = [
    'null', '[]', '5', '[5]', '[{}]', '[{"role":5}]', '[{"role":"tool"}]', '[{"role":"user"}]', '[{"role":"x","content":"a"}]',
    '[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"}]',
    '[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"b"}]}]',
    '[{"role":"user","content":[{"type":"image_url"}]}]', '[{"role":"user","content":[5]}]', '[{"role":"user","content":[{}]}]',
    '[{"role":"user","content":[{"type":"text"}]}]', '[{"role":"user","content":[{"type":"text","text":5}]}]',
    '[{"role":"user","content":[]}]', '[{"role":"user","content":"\\u0000"}]', '[{"role":"user","content":null,"tool_calls":[{}]}]',
    '[{"role":"assistant","content":"x","function_call":null,"tool_calls":[]}]', '[{"role":"user","content":"%s"}]' % ('z' * 600),
]
broken = ['', '{', '{"a"', '{"a":', '{"a":1', '{"a":1,', '[1', '{"a":tru}', '{"a":01}', '{"a":1.}', '{"a":1e}', '{"a":"\\x"}',
          '{"a":"\\u12"}', '{"a":"\\ud800"}', '{"a":"\\udc00"}', '{"a":"', '{"a":"\\', '{"a" 1}', '{a:1}', '{}x', '[' * 200, '5', '[]',
          '{"a":"\t"}', '{"a":[1 2]}', '{"a":-}']
wanted = [(COMPLETIONS, '{"prompt":"hi",%s}' % m) for m in both + completions]
wanted += [(CHAT, '{"messages":[{"role":"user","content":"hi"}],%s}' % m) for m in both + chat]
wanted += [(COMPLETIONS, '{"prompt":%s}' % p) for p in prompts] + [(b'\x04', '{"prompt":%s}' % p) for p in prompts[:3]]
wanted += [(CHAT, '{"messages":%s}' % m) for m in messages] + [(b'\x09', '{"messages":[{"role":"user","content":"a"}]}')]
wanted += [(b'\x02', '{"prompt":"0123456789abcdefgh"}'), (b'\x02', '{"prompt":"0123","max_tokens":14}')]
wanted += [(COMPLETIONS, text) for text in broken]
bodies = [first + text.encode() for first, text in wanted]
bodies += [b'\x00{"prompt":"\xff"}', b'\x00{"prompt":"\xe2\x82"}', b'\x01{"messages":[{"role":"user","content":"\xc3"}]}',
           b'\x00{"prompt":"a\x00b"}', b'\x00\xef\xbb\xbf{}', b'\x00{"prompt":"' + b'w' * 8100 + b'"}']
for i, body in enumerate(bodies):
    (folder / ('seed-%03d' % i)).write_bytes(body)
