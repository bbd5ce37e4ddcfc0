#!/bin/bash
# run.sh SECONDS [NAME...]: builds and runs every fuzzer of this folder (or those named) so long, under clang's
# address and undefined-behaviour sanitizers. One `ok` or `not ok` line each, with the number of runs and the share of
# the parser's lines that the runs reached; under 80 % is a failure.
#
# A fuzzer is fuzz_NAME.c. Its first comment has the lines
#     sources: files that it is linked with     covers: the parser's files, whose lines count
#     libs: linker arguments (may be absent)
# seeds_NAME.py FOLDER, where it exists, writes the corpus that the runs start from; NAME.dict, where it exists, is a
# libFuzzer dictionary. Corpora live in build/fuzz/NAME and grow from run to run.
set -u
export LLVM_PROFILE_FILE=/dev/null # whatever else is instrumented leaves nothing behind
seconds=${1:-15}
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/fuzz
cd "$root" || exit 1
if ! command -v clang >/dev/null; then
    echo "SKIP: fuzz: clang is not installed"
    exit 77
fi
llvm() { command -v "$1" || ls /usr/bin/"$1"-* 2>/dev/null | head -n 1; }
profdata=$(llvm llvm-profdata)
cov=$(llvm llvm-cov)
[ $# -gt 0 ] || set -- $(ls tests/fuzz/fuzz_*.c | sed 's,.*/fuzz_\(.*\)\.c,\1,')
bad=0

field() { sed -n "s/^ \* $1: *//p" "tests/fuzz/fuzz_$2.c" | head -n 1; }

# Prints what went wrong, or nothing; sets runs and share.
fuzz() {
    local name=$1 dir=$build/$1 covers files
    covers=$(field covers "$name")
    rm -rf "$dir"/profile* "$dir"/crash* "$dir"/log
    mkdir -p "$dir/corpus"
    clang -std=c17 -D_GNU_SOURCE -O1 -g -ffp-contract=off -fno-omit-frame-pointer -I. \
        -DTOKENRING_VERSION='"fuzz"' -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
        -fprofile-instr-generate -fcoverage-mapping -o "$dir/fuzz" "tests/fuzz/fuzz_$name.c" \
        $(field sources "$name") $(field libs "$name") -lm >"$dir/log" 2>&1 || { tail -n 20 "$dir/log"; return; }
    if [ -f "tests/fuzz/seeds_$name.py" ]; then
        python3 "tests/fuzz/seeds_$name.py" "$dir/corpus" || { echo "no seeds"; return; }
    fi
    local dict=()
    [ -f "tests/fuzz/$name.dict" ] && dict=(-dict="tests/fuzz/$name.dict")
    LLVM_PROFILE_FILE="$dir/profile.raw" timeout $((seconds * 4 + 120)) "$dir/fuzz" -max_total_time="$seconds" \
        -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 -artifact_prefix="$dir/crash-" \
        "${dict[@]}" "$dir/corpus" >"$dir/log" 2>&1 || { tail -n 40 "$dir/log"; return; }
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/log")
    files=$(for file in $covers; do echo "$root/$file"; done)
    "$profdata" merge -sparse "$dir/profile.raw" -o "$dir/profile.data" 2>>"$dir/log" || { tail -n 5 "$dir/log"; return; }
    share=$("$cov" export -summary-only -instr-profile="$dir/profile.data" "$dir/fuzz" $files 2>>"$dir/log" |
        python3 -c 'import json, sys; print(int(json.load(sys.stdin)["data"][0]["totals"]["lines"]["percent"]))') ||
        { tail -n 5 "$dir/log"; return; }
    [ "$share" -ge 80 ] || echo "only $share % of the lines of $covers"
}

one() {
    local name=$1 wrong
    runs=0 share=0
    fuzz "$name" >"$build.$name" 2>&1
    wrong=$(cat "$build.$name")
    rm -f "$build.$name"
    if [ -z "$wrong" ]; then
        echo "ok fuzz $name: $runs runs, $share % of the lines of $(field covers "$name")"
    else
        printf 'not ok fuzz %s\n%s\n' "$name" "$wrong"
        return 1
    fi
}

# Two at a time: each runs in one thread.
mkdir -p "$build"
ends=()
for name in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do sleep 0.2; done
    one "$name" &
    ends+=($!)
done
for end in "${ends[@]}"; do
    wait "$end" || bad=1
done
exit $bad
