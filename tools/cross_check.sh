#!/bin/sh
# cross_check.sh [-c COMPILER] [BUILD_DIR]: compiles base and ops for aarch64 with all warnings as
# errors and, where they can run, runs the checks of the kernels under qemu: with SDOT, and on a
# CPU without it (cortex-a53).
#
# Debian: gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; to run, qemu-user-static,
# libcmocka-dev:arm64 and libssl-dev:arm64.
# Exit status: 0 all is well, 1 something failed, 2 the compiler is missing or usage.
set -eu

cc=aarch64-linux-gnu-gcc
while getopts c: option; do
    case $option in
    c) cc=$OPTARG ;;
    *) echo "usage: cross_check.sh [-c COMPILER] [BUILD_DIR]" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/aarch64}
if ! command -v "$cc" >/dev/null; then
    echo "cross_check: no $cc; on Debian: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
    exit 2
fi
mkdir -p "$build"
# Headers of libcrypto that are an architecture's own serve to compile, whichever it is.
flags="-std=gnu17 -O2 -g1 -D_GNU_SOURCE -I$root/include -I$root/src
    -idirafter /usr/include/$(gcc -print-multiarch)
    -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror"

objects=
for source in "$root"/src/base/*.c "$root"/src/ops/*.c "$root"/src/ops/cpu/*.c; do
    name=$(basename "$source" .c)
    case $name in
    *_avx2 | *_avx512 | *_amx) continue ;;
    esac
    # shellcheck disable=SC2086 # flags are words
    "$cc" $flags -c "$source" -o "$build/$name.o"
    objects="$objects $build/$name.o"
done
echo "cross_check: base and ops compile for aarch64"

sysroot=/usr/aarch64-linux-gnu
libs=/usr/lib/aarch64-linux-gnu
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [ -z "$qemu" ] || [ ! -e "$libs/libcmocka.so" ] || [ ! -e "$libs/libcrypto.so" ]; then
    echo "cross_check: not run: needs qemu-user-static, libcmocka-dev:arm64 and libssl-dev:arm64"
    exit 0
fi
for test in unit/test_base check/check_small check/check_linear; do
    program=$build/$(basename "$test")
    # shellcheck disable=SC2086
    "$cc" $flags -o "$program" "$root/tests/$test.c" $objects \
        -I/usr/include "$libs/libcmocka.so" "$libs/libcrypto.so" -lm -lpthread
    for cpu in max cortex-a53; do
        echo "cross_check: $test on $cpu"
        "$qemu" -cpu "$cpu" -L "$sysroot" -E LD_LIBRARY_PATH="$libs" "$program" >"$program.log" 2>&1 || {
            cat "$program.log"
            exit 1
        }
    done
done
