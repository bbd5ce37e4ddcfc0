#!/bin/sh
# test_planted.sh PLAIN ASAN: planted mistakes are reported. ASAN is planted.c built with AddressSanitizer; PLAIN
# the same without, to be run under valgrind, or "-" where the whole build is sanitized.
plain=$1
asan=$2
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failed=0

# expect NAME PATTERN COMMAND...: the command must fail and its output show the pattern.
expect() {
    name=$1 pattern=$2
    shift 2
    if "$@" >"$out" 2>&1; then
        echo "FAIL: $name: nothing was reported"; failed=1
    elif ! grep -q "$pattern" "$out"; then
        echo "FAIL: $name: no '$pattern' in the report:"; cat "$out"; failed=1
    else
        echo "ok: $name"
    fi
}

# clean NAME COMMAND...: the command must succeed.
clean() {
    name=$1
    shift
    if "$@" >"$out" 2>&1; then
        echo "ok: $name"
    else
        echo "FAIL: $name:"; cat "$out"; failed=1
    fi
}

clean "asan: nothing planted" "$asan" none
expect "asan: read after unref" "use-after-poison" "$asan" read
expect "asan: read behind the last page" "use-after-poison" "$asan" beyond
expect "asan: leak of malloc" "12345 byte" "$asan" leak
if [ "$plain" != - ]; then
    clean "plain run" "$plain" none
    if command -v valgrind >/dev/null; then
        vg="valgrind -q --leak-check=full --error-exitcode=9"
        clean "valgrind: nothing planted" $vg "$plain" none
        expect "valgrind: read after unref" "Invalid read of size 1" $vg "$plain" read
        expect "valgrind: read behind the last page" "Invalid read of size 1" $vg "$plain" beyond
        expect "valgrind: leak of malloc" "12,345 bytes in 1 blocks are definitely lost" $vg "$plain" leak
    else
        echo "valgrind's part left out: it is not installed"
    fi
fi
exit $failed
