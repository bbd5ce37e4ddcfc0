#!/usr/bin/env python3
"""`tokenring draft` from nothing but a model's file: texts, training, export, measuring, stopping and going on."""
import hashlib, json, pathlib, random, re, signal, subprocess, tempfile

from harness import Skip, build, main, patience, source, stories, tier_options

QUICK = ['--tokens', 6000, '--head-tokens', 256, '--slots', 16, '-t', 1]


def draft(*options, **more):
    return subprocess.run([build / 'tokenring', 'draft', *tier_options(), *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=250 * patience(), **more)


def synth(folder, *options):
    path = pathlib.Path(folder) / 'toy.gguf'
    subprocess.run([build / 'tokenring', 'synth', '-o', path, '--layers', '3', '--dim', '64', '--ffn', '96', '--heads', '4', '--kv-heads', '2',
                    '--vocab', '300', '--context', '256', '--type', 'q8_0', '--tied', *options], check=True)
    return path


def losses(text):
    return [float(x) for x in re.findall(r'loss ([0-9.]+)', text)]


def test_makes_a_draft():
    with tempfile.TemporaryDirectory() as folder:
        model, out = synth(folder), pathlib.Path(folder) / 'toy.draft.gguf'
        done = draft('-m', model, '-o', out, *QUICK, '--steps', 1, '--keep')
        assert done.returncode == 0, done.stderr
        assert sorted(p.name for p in pathlib.Path(folder).iterdir()) == ['toy.draft.gguf', 'toy.draft.gguf.corpus', 'toy.draft.gguf.state', 'toy.gguf']
        # The state's weights go on from there: the first loss of the second run is lower than a fresh one's.
        prompts = pathlib.Path(folder) / 'prompts.jsonl'
        pick = random.Random(1)
        prompts.write_text(''.join(json.dumps({'class': 'any', 'prompt_tokens': [1, 5], 'target_tokens': pick.choices(range(300), k=40)}) + '\n' for _ in range(5)))
        before = out.read_bytes()
        done = draft('-m', model, '-o', out, *QUICK, '--steps', 60, '--resume')
        assert done.returncode == 0, done.stderr
        assert out.read_bytes() != before
        assert sorted(p.name for p in pathlib.Path(folder).iterdir()) == ['prompts.jsonl', 'toy.draft.gguf', 'toy.gguf']
        assert b'layers 0, 2 of the target' in out.read_bytes() and b'60 steps' in out.read_bytes()
        done = draft('-m', model, '-o', out, '--measure', prompts, '-t', 1)
        assert done.returncode == 0, done.stderr
        assert re.search(r'^any +200 .*\nall +200 ', done.stdout, re.M), done.stdout


def test_learns():
    """Training on the real small model lowers the loss, and the draft guesses much of its held-out text."""
    model = stories('F16')
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / 's.draft.gguf'
        done = draft('-m', model, '-o', out, '--tokens', 60000, '--steps', 150, '--head-tokens', 512, '-t', 1, '--layers', '0,1,4', '--seed', 2)
        assert done.returncode == 0, done.stderr
        share = re.findall(r'agreement ([0-9.]+)', done.stderr)
        assert share and float(share[-1]) > 0.4, done.stderr


def test_begins_with_a_draft():
    """No step of training: what comes out is what went in; and only a draft of this shape will do."""
    with tempfile.TemporaryDirectory() as folder:
        model, first, second = synth(folder), pathlib.Path(folder) / 'first.draft.gguf', pathlib.Path(folder) / 'second.draft.gguf'
        assert draft('-m', model, '-o', first, *QUICK, '--steps', 20).returncode == 0
        done = draft('-m', model, '-o', second, *QUICK, '--minutes', 0.0001, '--from', first)
        assert done.returncode == 0, done.stderr
        assert b'(begun with first.draft.gguf)' in second.read_bytes()
        same = sum(a == b for a, b in zip(first.read_bytes()[-20000:], second.read_bytes()[-20000:])) / 20000
        assert same > 0.8, same  # Q4_0 of Q4_0: some blocks move
        done = draft('-m', model, '-o', second, *QUICK, '--minutes', 0.0001)
        same = sum(a == b for a, b in zip(first.read_bytes()[-20000:], second.read_bytes()[-20000:])) / 20000
        assert same < 0.6, same
        done = draft('-m', model, '-o', second, *QUICK, '--steps', 1, '--layers', '0', '--from', first)
        assert done.returncode == 1 and 'has 2 layers, not 1' in done.stderr, done.stderr
        done = draft('-m', model, '-o', second, *QUICK, '--steps', 1, '--from', folder + '/none')
        assert done.returncode == 1 and '/none' in done.stderr, done.stderr


def test_stops_and_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        model, out = synth(folder), pathlib.Path(folder) / 'toy.draft.gguf'
        command = [build / 'tokenring', 'draft', *tier_options(), '-m', model, '-o', out, *map(str, QUICK), '--steps', '100000000']
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if line.startswith('step'):
                    break
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
        assert process.returncode == 1 and '--resume goes on from here' in rest, rest
        state = (out.parent / (out.name + '.state')).read_bytes()
        done = draft('-m', model, '-o', out, *QUICK, '--steps', 1, '--resume', '--keep')  # has been done already
        assert done.returncode == 0, done.stderr
        assert len((out.parent / (out.name + '.state')).read_bytes()) == len(state)
        other = synth(folder, '--seed', '2')
        done = draft('-m', other, '-o', out, *QUICK, '--resume')
        assert done.returncode == 1 and 'holds no texts of this model' in done.stderr, done.stderr


def test_time_that_the_texts_have_used_up():
    """Nothing is left for training: it ends at once, anew and where a run goes on with fewer minutes."""
    with tempfile.TemporaryDirectory() as folder:
        model, out = synth(folder), pathlib.Path(folder) / 'toy.draft.gguf'
        done = draft('-m', model, '-o', out, *QUICK, '--minutes', 0.0001, '--keep')
        assert done.returncode == 0 and b', 0 steps of' in out.read_bytes(), done.stderr
        done = draft('-m', model, '-o', out, *QUICK, '--minutes', 0.0001, '--resume')
        assert done.returncode == 0 and b', 0 steps of' in out.read_bytes(), done.stderr


def test_requantise():
    model = stories('F16')
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / 's.q4_0.gguf'
        done = draft('-m', model, '-o', out, '--requantise', 'q4_0')
        assert done.returncode == 0, done.stderr
        assert out.stat().st_size < model.stat().st_size * 0.75
        text = pathlib.Path(folder) / 'text'
        text.write_text('Once upon a time, there was a little girl named Lily. She loved to play outside in the park. ' * 40)
        figure = lambda path: json.loads(subprocess.run([build / 'tokenring', 'perplexity', *tier_options(), '-m', path, '-f', text, '-c', '128', '--json'],
                                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True).stdout)['ppl']
        assert figure(out) < figure(model) * 1.5
        finer = pathlib.Path(folder) / 's.q5_0.gguf'
        assert draft('-m', model, '-o', finer, '--requantise', 'q5_0').returncode == 0
        assert out.stat().st_size < finer.stat().st_size < model.stat().st_size * 0.75
        assert figure(finer) < figure(model) * 1.1
        done = draft('-m', out, '-o', str(out) + '.again', '--requantise', 'q4_0')
        assert done.returncode == 1 and 'smaller in Q4_0' in done.stderr, done.stderr


def test_refusals():
    with tempfile.TemporaryDirectory() as folder:
        model, out = synth(folder), pathlib.Path(folder) / 'x.gguf'
        for options, code, words in [
            (['-m', model], 2, 'usage'),
            (['-m', model, '-o', out, '--layers', '2,1'], 2, "'2,1' is no possible value"),
            (['-m', model, '-o', out, '--layers', '0,3'], 1, 'has layers 0 to 2, not 3'),
            (['-m', model, '-o', out, '--minutes', '0'], 2, "'0' is no possible value"),
            (['-m', model, '-o', out, '--requantise', 'q9'], 2, "'q9' is no possible value"),
            (['-m', model, '-o', out, '--tier', 'tpu'], 1, "no kernel tier 'tpu'"),
            (['-m', model, '-o', out, '--tokens', '900000000000'], 1, 'MiB are free'),
            (['-m', folder + '/none', '-o', out], 1, 'none'),
            (['-m', model, '-o', model], 1, "the model's own file"),
            (['-m', model, '-o', f'{folder}/../{pathlib.Path(folder).name}/toy.gguf', '--requantise', 'q4_0'], 1, "the model's own file"),
            (['-m', model, '-o', folder + '/none/x'], 1, 'cannot open'),
            (['-m', model, '-o', model, '--measure', '/dev/null'], 1, 'it has no token map'),
        ]:
            done = draft(*options)
            assert done.returncode == code and words in done.stderr, (options, done)
        bytes_ = bytearray(model.read_bytes())
        at = bytes_.index(b'llama', bytes_.index(b'general.architecture'))
        bytes_[at:at + 5] = b'mamba'
        model.write_bytes(bytes_)
        done = draft('-m', model, '-o', out)
        assert done.returncode == 1 and "architecture 'mamba'" in done.stderr, done.stderr


def test_committed_drafts():
    """conf/drafts: small, for the default model, licensed, and what its README says."""
    drafts = list((source / 'conf/drafts').glob('*.gguf'))
    if not drafts:
        raise Skip('no draft is committed')
    target = re.search(r'^sha256=(\w{64})$', (source / 'tools/get_model.sh').read_text(), re.M).group(1)
    readme = (source / 'conf/drafts/README.md').read_text()
    for path in drafts:
        content = path.read_bytes()
        assert len(content) <= 6 << 20, path
        assert hashlib.sha256(content).hexdigest() in readme and path.name in readme, path
        assert target.encode() in content and b'general.license' in content and b'apache-2.0' in content.lower(), path


if __name__ == '__main__':
    main()
