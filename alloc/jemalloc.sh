#!/bin/sh
# jemalloc.sh CC OUT: makes OUT (a static library) of the system's libjemalloc_pic.a with the malloc family renamed
# and every symbol local but the five that alloc/ calls. The C++ operators are left out.
set -e
cc=$1
out=$2
lib=$($cc -print-file-name=libjemalloc_pic.a)
[ -f "$lib" ] || { echo "jemalloc.sh: libjemalloc_pic.a not found (package libjemalloc-dev)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exports="mallocx dallocx nallocx mallctl mallctlbymib mallctlnametomib"
undefined=
keep=
rename=
for s in $exports; do
    undefined="$undefined -u $s"
    keep="$keep --keep-global-symbol=jemalloc_$s"
    rename="$rename --redefine-sym $s=jemalloc_$s"
done
for s in malloc calloc realloc free aligned_alloc posix_memalign memalign valloc pvalloc malloc_usable_size \
    malloc_conf malloc_conf_2_conf_harder malloc_message malloc_stats_print sdallocx rallocx xallocx sallocx; do
    rename="$rename --redefine-sym $s=jemalloc_$s"
done
ld -r $undefined -o "$work/all.o" "$lib"
objcopy $rename "$work/all.o" "$work/renamed.o"
objcopy $keep "$work/renamed.o" "$work/jemalloc.o"
rm -f "$out"
ar rcs "$out" "$work/jemalloc.o"
