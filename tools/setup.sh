#!/bin/bash
# setup.sh: makes sure that Debian's packages which build, run and test Tokenring are there.
# As root it installs what is missing; otherwise it prints the one command to run. A service that was not
# running before is not started: a policy-rc.d forbids it while packages are being configured.
set -euo pipefail

packages=(build-essential clang libclang-rt-14-dev llvm meson ninja-build pkg-config nginx nginx-dev libuv1-dev libjemalloc-dev
          libjansson-dev libopenblas-dev libpcre2-dev libutf8proc-dev check valgrind strace curl python3 python3-pip python3-venv
          python3-jsonschema)

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "tokenring: these packages are missing. As root, run:" >&2
    echo "    apt-get install -y ${missing[*]}" >&2
    exit 1
fi

echo "tokenring: installing ${missing[*]}" >&2
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "tokenring: the packages could not be installed (whole log: $log)" >&2
    exit 1
}
rm -f "$log"
