#!/bin/bash
# valgrind.sh BUILD [NAME...]: unit tests, `worker` (one that serves) and `nginx` (the module in it), all or those named,
# under valgrind; each is one `ok` or `not ok` line. `valgrind.sh BUILD --list` prints the names.
# The programs use libc's malloc (jemalloc is reached by mallocx alone), so valgrind sees every block. Valgrind knows
# no AVX-512 and says so through CPUID: the AVX2 tier runs.
set -u
build=$(cd "$1" && pwd) || exit 2
shift
root=$(cd "$(dirname "$0")/.." && pwd)
programs=(ring/test_ring ring/test_message ring/test_channel alloc/test_pages alloc/test_block_table sched/test_sched text/test_detokenizer api/test_request api/test_reply)
if [ -n "${TOKENRING_LONG:-}" ]; then
    mapfile -t programs < <(cd "$build/tests/unit" && find . -type f -executable -name 'test_*' | sed 's,^\./,,' | sort)
fi
[ $# -gt 0 ] || set -- worker nginx "${programs[@]}"
if [ "$1" = --list ]; then
    printf '%s\n' worker nginx "${programs[@]}"
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Threads of OpenBLAS wait in loops, and valgrind runs one thread at a time.
export OPENBLAS_NUM_THREADS=1
check=(valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect --num-callers=25 --max-stackframe=4000000)

unit_test() {
    if [ ! -x "$build/tests/unit/$1" ]; then
        echo "not ok valgrind $1: there is no such program"
        bad=1
    elif TOKENRING_VALGRIND=1 CK_FORK=no CK_TIMEOUT_MULTIPLIER=20 timeout 1800 "${check[@]}" "$build/tests/unit/$1" >"$work/log" 2>&1; then
        echo "ok valgrind $1"
    else
        echo "not ok valgrind $1"
        tail -n 40 "$work/log"
        bad=1
    fi
}

# Valgrind's exit status becomes the worker's, which the harness does not look at, so its log does.
worker() {
    if [ ! -d "${TOKENRING_SHARED:-$root/../shared}" ]; then
        echo "SKIP: valgrind worker: the shared test data is not here"
        return
    fi
    TOKENRING_WRAP="${check[*]} --log-file=$work/worker.%p" timeout 900 python3 "$root/tests/e2e/test_api.py" \
        test_golden_ids_through_nginx test_stop_strings test_seeds_and_sampling >"$work/log" 2>&1
    status=$?
    reports=$(cat "$work"/worker.* 2>/dev/null)
    judge worker
}

# nginx's own blocks at exit are its affair, anything that names the module or reads what it may not is ours.
nginx() {
    TOKENRING_NGINX_WRAP="valgrind -q --trace-children=yes --keep-debuginfo=yes --leak-check=full --log-file=$work/nginx.%p" TOKENRING_BUILD="$build" timeout 300 \
        python3 "$root/tests/e2e/module/test_failures.py" test_death_in_mid_stream_ends_with_error_event_and_done \
        test_client_abort_sends_cancel_at_once test_hostile_worker_loses_its_channel_and_nothing_else >"$work/log" 2>&1
    status=$?
    reports=$(grep -hE 'tokenring|channel_|ring_|message_|Invalid|ninitialised' "$work"/nginx.* 2>/dev/null)
    judge nginx
}

judge() {
    if [ $status = 0 ] && [ -n "$(ls "$work/$1".* 2>/dev/null)" ] && [ -z "$reports" ]; then
        echo "ok valgrind $1"
    else
        echo "not ok valgrind $1"
        tail -n 40 "$work/log"
        echo "$reports" | head -n 80
        bad=1
    fi
}

bad=0
for name; do
    case $name in
    worker | nginx) $name ;;
    *) unit_test "$name" ;;
    esac
done
exit $bad
