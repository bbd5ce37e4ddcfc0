#!/bin/sh
# build_module.sh OUT_DIR [NGINX_SOURCE]: builds OUT_DIR/ngx_http_tokenring_module.so.
#
# Against Debian's nginx-dev by default (/usr/share/nginx/src), with the flags of the distribution's binary, so that
# the module's signature is the binary's. NGINX_SOURCE may be an unpacked nginx instead: it is then configured
# --with-compat and the flags in NGINX_FLAGS. Writes only below OUT_DIR; runs as any user. CC chooses the compiler.
# configure runs again only when `config`, this script, the compiler or the nginx changed; make does the rest.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { echo "usage: $0 OUT_DIR [NGINX_SOURCE]" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
src=${2:-/usr/share/nginx/src}
cc=${CC:-cc}
objs=$out/nginx-objs
debian=/usr/share/nginx/src/conf_flags

if [ -x "$src/configure" ]; then
    configure=./configure
elif [ -x "$src/auto/configure" ]; then
    configure=auto/configure
else
    echo "build_module.sh: no nginx source in $src (Debian: apt install nginx-dev)" >&2
    exit 1
fi

# Behind nginx's own flags; its callbacks have parameters that not every one of them needs.
ours="-Wall -Wextra -Werror -Wno-unused-parameter"

stamp=$objs/tokenring.stamp
want=$(cat "$here/config" "$here/tools/build_module.sh" "$src/src/core/nginx.h" | cksum; echo "$cc|$src|${NGINX_FLAGS:-}|$here"; "$cc" --version 2>/dev/null | head -1)

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
    rm -rf "$objs"
    mkdir -p "$objs"
    if [ "$src/conf_flags" = "$debian" ]; then
        flags='. ./conf_flags; set -- "${NGX_CONF_FLAGS[@]}"'
        cflags="$(dpkg-buildflags --get CFLAGS) -fPIC $(dpkg-buildflags --get CPPFLAGS)"
        ldflags="$(dpkg-buildflags --get LDFLAGS) -fPIC"
    else
        flags='set -- --with-compat --with-http_v2_module ${NGINX_FLAGS:-}'
        cflags="-g -O2 -fPIC"
        ldflags="-fPIC"
    fi
    SRC=$src CFG=$configure FLAGS=$flags CFL=$cflags LDF=$ldflags MOD=$here BLD=$objs CCX=$cc bash -c '
        cd "$SRC"; eval "$FLAGS"
        "$CFG" --with-cc="$CCX" --with-cc-opt="$CFL" --with-ld-opt="$LDF" "$@" \
            --add-dynamic-module="$MOD" --builddir="$BLD"' > "$objs/configure.log" 2>&1 ||
        { tail -20 "$objs/configure.log" >&2; exit 1; }
    printf '%s' "$want" > "$stamp"
fi

make -s -f "$objs/Makefile" -C "$src" CFLAGS="$(sed -n 's/^CFLAGS = //p' "$objs/Makefile") $ours" modules
cmp -s "$objs/ngx_http_tokenring_module.so" "$out/ngx_http_tokenring_module.so" 2>/dev/null || {
    # A running nginx may have the old file mapped: replace it, never write into it.
    cp "$objs/ngx_http_tokenring_module.so" "$out/ngx_http_tokenring_module.so.new"
    mv "$out/ngx_http_tokenring_module.so.new" "$out/ngx_http_tokenring_module.so"
}
