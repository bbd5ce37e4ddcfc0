#!/usr/bin/env python3
"""Drafts change no byte of an answer, and are told of: usage, timings, statistics, log, variables."""
import json, pathlib, subprocess, tempfile

from harness import Site, build, default_model, fewer, main, patience, stories, tier_options, together, wait_for

TEXT = '/v1/completions'


def body(i, tokens=120, **more):
    return {'prompt': [1] + [3 + (i * 7919 + k * k) % 500 for k in range(3 + 11 * i)], 'max_tokens': tokens, 'seed': i, 'ignore_eos': True,
            'temperature': 0 if i % 2 else 0.7, **({'top_p': 0.9} if i % 3 == 0 else {}), **({'presence_penalty': 0.5} if i % 4 == 0 else {}), **more}


def outcome(reply):
    answer = reply.json
    assert reply.status == 200, answer
    return answer['choices'][0]['text'], answer['timings']['logits_hash']


def words(i):
    """Prompts that make the default model repeat itself, more or less."""
    return {'prompt': ' '.join('one two three four five six'.split()[:2 + i % 5]) * (1 + i), 'max_tokens': fewer(80, 24), 'seed': i, 'ignore_eos': True,
            'temperature': 0 if i % 2 else 0.5, **({'frequency_penalty': 0.2} if i % 3 == 0 else {})}


def compare(model, requests, draft):
    with Site(model, trace_logits=True) as site:
        want = [outcome(site.post(TEXT, r)) for r in requests]
        assert 'completion_tokens_details' not in site.post(TEXT, requests[0]).json['usage']
    with Site(model, trace_logits=True, draft=draft) as site:
        assert [outcome(site.post(TEXT, r)) for r in requests] == want
        assert together([lambda r=r: outcome(site.post(TEXT, r)) for r in requests]) == want
        figures = site.stat()
        print(f"    {figures['draft_accepted_total']} of {figures['draft_tokens_total']} drafted tokens right")
        return figures


def test_no_byte_is_changed():
    figures = compare(default_model(), [words(i) for i in range(8)], 'ngram')
    assert figures['draft_accepted_total'] > 0, figures


def test_no_byte_is_changed_by_a_draft_model():
    compare(stories(), [body(i) for i in range(8)], str(stories()))


def test_drafts_are_told_of():
    """A text that loops: nearly all of it is guessed."""
    form = "log_format drafts '$tokenring_draft_accepted $tokenring_draft_tokens';"
    with Site(default_model(), http=form, location='access_log drafts.log drafts;', draft='ngram') as site:
        reply = site.post(TEXT, {'prompt': 'one two three four ' * 12, 'max_tokens': 200, 'temperature': 0, 'ignore_eos': True}).json
        usage, timings, figures = reply['usage']['completion_tokens_details'], reply['timings'], site.stat()
        accepted, rejected = usage['accepted_prediction_tokens'], usage['rejected_prediction_tokens']
        assert accepted > 0, reply['usage']
        assert timings['draft_n_accepted'] == accepted and timings['draft_n'] == accepted + rejected, timings
        assert figures['draft_accepted_total'] == accepted and figures['draft_tokens_total'] == accepted + rejected, figures
        assert figures['steps_total'] < 200 and figures['draft_tried_1'] >= figures['draft_right_1'] > 0, figures
        assert f'draft={accepted}/{accepted + rejected} ' in (site.dir / 'worker.log').read_text()
        wanted = f'{accepted} {accepted + rejected}\n'
        wait_for('the access log has it', lambda: (site.dir / 'drafts.log').read_text().endswith(wanted))


def test_a_draft_that_does_not_suit_is_refused():
    done = subprocess.run([build / 'tokenringd', '-t', '--model', default_model(), '--draft', stories()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0 and '512' in done.stdout and '49152' in done.stdout, done.stdout
    with tempfile.TemporaryDirectory() as folder:
        # No room for its window and a draft behind it.
        short = pathlib.Path(folder) / 'short.gguf'
        subprocess.run([build / 'tokenring', 'synth', '-o', short, '--layers', '1', '--dim', '64', '--ffn', '64', '--heads', '2', '--kv-heads', '1', '--vocab', '320', '--context', '79'], check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run([build / 'tokenringd', '-t', '--model', short, '--draft', short], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode != 0 and 'context of 79' in done.stdout, done.stdout


def test_bench_names_what_is_wrong_with_a_prompt():
    with tempfile.TemporaryDirectory() as folder:
        model, prompts = pathlib.Path(folder) / 'toy.gguf', pathlib.Path(folder) / 'prompts'
        subprocess.run([build / 'tokenring', 'synth', '-o', model, '--layers', '1', '--dim', '64', '--ffn', '96', '--heads', '4', '--kv-heads', '2',
                        '--vocab', '300', '--context', '2048', '--type', 'q8_0', '--tied'], check=True)
        for ids, words in (([1, 5] * 4, None), ([1, 2, 300], 'token 2 is none of the model'), ([1, -1], 'token 1 is none'), ([1, 2**32 + 5], 'token 1 is none'),
                           ([1] * 2041, '2041 tokens'), ([1] * 2040, None)):
            prompts.write_text(json.dumps({'class': 'a', 'prompt_tokens': [7]}) + '\n' + json.dumps({'class': 'a', 'prompt_tokens': ids}) + '\n')
            done = subprocess.run([build / 'tokenring', 'bench', 'spec', '-m', model, '-p', prompts, '-n', '8', *tier_options()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=100 * patience())
            assert done.returncode == (words is not None) and (words or '') in done.stderr, (ids[:3], done)


if __name__ == '__main__':
    main()
