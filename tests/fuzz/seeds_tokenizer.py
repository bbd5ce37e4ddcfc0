#!/usr/bin/env python3
"""seeds_tokenizer.py FOLDER: texts for every family, a stream with stop strings, chat templates, a message."""
import pathlib, sys

folder = pathlib.Path(sys.argv[1])
text = "hello world's  12 345\n\n e\u0301\u0323 caf\u00e9 \u6c49\u5b57 \U0001f600 <|im_end|><tool>box ($x);\r\n".encode() + b'\xff\xc3' + b'a' * 40
for what in range(14):
    (folder / f'text-{what}').write_bytes(bytes([what]) + text)
(folder / 'stream').write_bytes(bytes([14, 3]) + b'llo' + bytes([2]) + '\u00e9'.encode() + b'hello \xe2\x82 \xc3\xa9 \xf0\x9f\x98\x80\xff hel')
templates = [
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nhi<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{# x #}\n  {%- if messages[0].role != \"system\" -%} {{- '<|im_start|>system\\nIt\\'s<|im_end|>\\n' -}} {%- endif -%} {{ a ~ b }}",
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}",
]
for number, template in enumerate(templates):
    (folder / f'template-{number}').write_bytes(bytes([15]) + template.encode())
(folder / 'message').write_bytes(bytes([16]) + b'hi<|im_end|>\n<|im_start|>system\n')
