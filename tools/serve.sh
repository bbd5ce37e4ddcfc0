#!/bin/bash
# serve.sh BUILD: the worker and an nginx of its own in the foreground, as `make serve` promises.
# Environment: MODEL DRAFT PORT THREADS KV_TYPE ARGS. Everything lives in BUILD/serve; the system's nginx is not touched.
set -euo pipefail

build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
port=${PORT:-8080}
nginx=${NGINX:-$(command -v nginx || echo /usr/sbin/nginx)}
case $port in
'' | *[!0-9]*) echo "tokenring: PORT must be a number, not '$port'" >&2; exit 1 ;;
esac

if [ -n "${MODEL:-}" ]; then
    [ -f "$MODEL" ] || { echo "tokenring: MODEL=$MODEL is not a file" >&2; exit 1; }
    model=$MODEL
else
    model=$("$root/tools/get_model.sh")
fi

dir=$build/serve-$port
mkdir -p "$dir/tmp" "$dir/run"
rm -f "$dir/nginx.pid"
# nginx's own workers drop to another user when started as root, and must reach the socket.
user_line=""
[ "$(id -u)" != 0 ] || user_line="user root;"
socket=$dir/run/tokenring.sock
[ ${#socket} -lt 100 ] || { socket_dir=$(mktemp -d /tmp/tokenring.XXXXXX); socket=$socket_dir/tokenring.sock; }

cat >"$dir/nginx.conf" <<CONF
$user_line
daemon off;
worker_processes 1;
pid "$dir/nginx.pid";
error_log "$dir/error.log" notice;
load_module "$build/ngx_http_tokenring_module.so";
events { worker_connections 1024; }
http {
    access_log "$dir/access.log";
    client_body_temp_path "$dir/tmp/body";
    proxy_temp_path "$dir/tmp/proxy";
    fastcgi_temp_path "$dir/tmp/fastcgi";
    uwsgi_temp_path "$dir/tmp/uwsgi";
    scgi_temp_path "$dir/tmp/scgi";
    client_max_body_size 32m;
    server {
        listen 127.0.0.1:$port;
        location / {
            tokenring_pass "unix:$socket";
        }
    }
}
CONF

worker_args=(--model "$model" --listen "unix:$socket" --name "serve-$port" --stats-dir "$dir/run")
[ -z "${THREADS:-}" ] || worker_args+=(--threads "$THREADS")
# A draft model lies beside its model, X.gguf and X.draft.gguf; the default model's, wherever that lies, is ours.
draft=${DRAFT:-}
[ -n "$draft" ] || [ ! -f "${model%.gguf}.draft.gguf" ] || draft=${model%.gguf}.draft.gguf
ours=$root/conf/drafts/SmolLM2-135M-Instruct.Q4_1.draft.gguf
if [ -z "$draft" ] && [ -f "$ours" ]; then
    [ -n "${MODEL:-}" ] && ! "$root/tools/get_model.sh" --is "$model" || draft=$ours
fi
[ -z "$draft" ] || worker_args+=(--draft "$draft")
[ -z "${KV_TYPE:-}" ] || worker_args+=(--kv-type "$KV_TYPE")
# shellcheck disable=SC2206 # ARGS is a list of options, split at its blanks on purpose
worker_args+=(${ARGS:-})

worker=
web=
finish() {
    trap '' INT TERM HUP
    [ -z "$web" ] || kill -QUIT "$web" 2>/dev/null || true
    [ -z "$worker" ] || kill -INT "$worker" 2>/dev/null || true
    wait 2>/dev/null || true
    [ -z "${socket_dir:-}" ] || rm -rf "$socket_dir"
    exit "${1:-0}"
}
trap 'echo; echo "tokenring: stopping" >&2; finish 0' INT TERM HUP

"$nginx" -t -q -p "$dir" -e "$dir/error.log" -c "$dir/nginx.conf" || exit 1
# Own process groups: Ctrl-C reaches this script alone, which then stops both in order.
set -m
"$build/tokenringd" "${worker_args[@]}" &
worker=$!
"$nginx" -p "$dir" -e "$dir/error.log" -c "$dir/nginx.conf" &
web=$!
set +m

for _ in $(seq 1 6000); do
    kill -0 "$worker" 2>/dev/null || { echo "tokenring: the worker ended (see above)" >&2; finish 1; }
    kill -0 "$web" 2>/dev/null || { tail -n 3 "$dir/error.log" >&2; echo "tokenring: nginx ended; is port $port in use?" >&2; finish 1; }
    # nginx has its port when it has written its pid: who answers before that is somebody else
    [ -s "$dir/nginx.pid" ] || { sleep 0.1; continue; }
    code=$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/health" || true)
    [ "$code" != 200 ] || break
    sleep 0.1
done

cat <<READY
tokenring: ready on http://127.0.0.1:$port (stop with Ctrl-C). Try:

  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"stream":true,"max_tokens":128,"messages":[{"role":"user","content":"Why is the sky blue?"}]}'

READY
wait -n "$worker" "$web" || true
kill -0 "$worker" 2>/dev/null || echo "tokenring: the worker ended" >&2
kill -0 "$web" 2>/dev/null || echo "tokenring: nginx ended" >&2
finish 1
