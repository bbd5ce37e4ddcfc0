#!/usr/bin/env python3
"""Loading: what memory holds while the weights are repacked and afterwards, and what a load that fails or is cancelled says."""
import os, pathlib, shutil, signal, subprocess, tempfile

from harness import Site, build, default_model, main, patience, source, status_figures, wait_for

TEXT = '/v1/completions'
MIB = 1 << 20


def synth(folder, *options):
    path = pathlib.Path(folder) / 'synth.gguf'
    subprocess.run([build / 'tokenring', 'synth', '-o', path, *map(str, options)], check=True, stdout=subprocess.DEVNULL)
    return path


def check_memory(site, *models, beside=0):
    """Weights (and `beside`, bytes of weights that no file has), resident KV pages, a tenth and 64 MiB are all that a worker may ever have held."""
    site.post(TEXT, {'prompt': list(range(3, 300)), 'max_tokens': 20, 'ignore_eos': True})
    figures = status_figures(site.worker.pid)
    limit = (sum(model.stat().st_size for model in models) + beside) * 1.1 + site.stat()['kv_arena_resident'] + 64 * MIB
    print(f'    {models[0].name}: resident {figures["VmRSS"] >> 20}, at most {figures["VmHWM"] >> 20} MiB; allowed {limit / MIB:.0f} MiB')
    assert figures['VmRSS'] <= figures['VmHWM'] <= limit, (figures, limit)


def test_memory_never_holds_a_model_twice():
    """One tensor makes up nearly all of this model: dropping the file's pages tensor by tensor would not do."""
    with tempfile.TemporaryDirectory(prefix='tokenring-load-') as folder:
        model = synth(folder, '--type', 'q8_0', '--layers', 2, '--dim', 2048, '--ffn', 2048, '--heads', 16, '--kv-heads', 2, '--vocab', 64000, '--tied')
        with Site(model) as site:
            check_memory(site, model)


def test_memory_of_the_default_model():
    model = default_model()
    with Site(model) as site:
        check_memory(site, model)


def test_memory_with_a_draft():
    model, draft = default_model(), source / 'conf/drafts/SmolLM2-135M-Instruct.Q4_1.draft.gguf'
    with Site(model, draft=draft) as site:
        rows = 8192 + 16 * 256  # of the target's table, copied: the draft's head, and rare tokens of as many texts as can be guessed for
        check_memory(site, model, draft, beside=rows * 576 * 34 // 32)


def test_memory_of_other_types():
    """What a panel of each type takes more than the rows of the file is within the tenth."""
    long = os.environ.get('TOKENRING_LONG')
    for kind in ('q4_k', 'q6_k', 'q8_0', 'q5_k', 'f16') if long else ('q6_k',):
        with tempfile.TemporaryDirectory(prefix='tokenring-load-') as folder:
            model = synth(folder, '--type', kind, '--layers', 4 if long else 1, '--dim', 2048, '--ffn', 5632, '--heads', 32, '--kv-heads', 4, '--vocab', 32000)
            with Site(model) as site:
                check_memory(site, model)


def test_a_file_that_shrinks_later_is_not_missed():
    """Once it is loaded, a worker needs nothing of its file, nor of its draft's: what maps a file dies of SIGBUS where it has been cut."""
    def answers(site):
        ids = [site.post(TEXT, {'prompt': list(range(first, 1000, 37)), 'max_tokens': 24, 'temperature': 0, 'ignore_eos': True}).json
               ['choices'][0]['text'] for first in range(3, 40, 6)]
        assert site.worker.poll() is None
        return ids

    with tempfile.TemporaryDirectory(prefix='tokenring-load-') as folder:
        for tied in ([], ['--tied']):
            model = synth(folder, '--type', 'q4_0', '--layers', 2, '--dim', 256, '--ffn', 512, '--heads', 4, '--kv-heads', 2, '--vocab', 2000, *tied)
            draft = pathlib.Path(shutil.copy(model, f'{folder}/draft.gguf'))
            with Site(model, draft=draft) as site:
                before = answers(site)
            with Site(model, draft=draft) as site:
                os.truncate(model, 0)
                os.truncate(draft, 0)
                assert answers(site) == before


def test_a_load_can_be_cancelled():
    """The loading thread notices within a slice; with a small model the signal may come too late, which is fine too."""
    with Site(default_model(), wait=False) as site:
        wait_for('the worker listens', lambda: site.socket.exists() or site.worker.poll() is not None)
        site.worker.send_signal(signal.SIGTERM)
        assert site.worker.wait(10 * patience()) == 0, site.log()


if __name__ == '__main__':
    main()
