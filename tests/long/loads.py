"""loads.py: what the programs under load share: models, made prompts, `tokenring bench serve`, figures.

Models: the default one (`tools/get_model.sh`), and one of 1.1B parameters with random weights, made by `tokenring synth`
unless TOKENRING_1B names a file. Prompts are lists of token ids, each unlike every other from its first token on, so
that no server's prefix cache helps unless a test wants that.
"""
import json, os, pathlib, random, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'e2e'))
from harness import *  # noqa: E402, F403
from harness import build  # noqa: E402

TEXT = '/v1/completions'


def big_model():
    """The path of the 1.1B Q4_0 file, made if it has to be."""
    path = pathlib.Path(os.environ.get('TOKENRING_1B', pathlib.Path(tempfile.gettempdir()) / 'tokenring-1.1b-q4_0.gguf'))
    if not path.exists():
        part = path.with_suffix('.part')
        subprocess.run([build / 'tokenring', 'synth', '-o', part, '--type', 'q4_0', '--context', '4096'], check=True)
        part.rename(path)
    return path


def ids(n, seed, vocabulary=30000):
    """A prompt of n token ids."""
    choose = random.Random(seed)
    return [choose.randrange(300, vocabulary) for _ in range(n)]


def prompt_file(directory, n_prompts, n_tokens, seed):
    """A file of prompts for `tokenring bench serve --prompts`."""
    path = pathlib.Path(directory) / f'prompts-{n_tokens}-{str(seed).replace("/", "-")}'
    path.write_text(''.join(json.dumps(ids(n_tokens, f'{seed}/{i}')) + '\n' for i in range(n_prompts)))
    return path


def start_bench(port, **options):
    argv = [str(build / 'tokenring'), 'bench', 'serve', f'http://127.0.0.1:{port}', '--json']
    for key, value in options.items():
        argv.append('--' + key.replace('_', '-') + ('' if value is True else f'={value}'))
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def end_bench(process):
    out, _ = process.communicate()
    assert process.returncode == 0, (process.args, out)
    return json.loads(out)


def bench(port, **options):
    return end_bench(start_bench(port, **options))


def quantile(values, q):
    values = sorted(values)
    return values[min(int(q * len(values)), len(values) - 1)]


def body(prompt, tokens, **more):
    return {'prompt': prompt, 'max_tokens': tokens, 'temperature': 0, 'ignore_eos': True, **more}
