#!/bin/sh
# `make install` into an empty DESTDIR: what is there, what it exports, and that examples/ask.c builds
# against it with pkg-config, shared and static, and answers on a real model.
set -eu
destination=$(mktemp -d)
trap 'rm -rf "$destination"' EXIT
fail() { echo "test_install: $*" >&2; exit 1; }

DESTDIR=$destination cmake --install "$SACCADE_BUILD" >/dev/null
pc=$(find "$destination" -name saccade.pc)
[ -n "$pc" ] || fail "no saccade.pc"
export PKG_CONFIG_PATH="${pc%/*}" PKG_CONFIG_SYSROOT_DIR="$destination"
lib=$(pkg-config --variable=libdir saccade)
lib=$destination${lib#"$destination"}
prefix=$destination$(PKG_CONFIG_SYSROOT_DIR="" pkg-config --variable=prefix saccade)

for file in "$prefix/include/saccade.h" "$prefix/include/saccade_machine.h" \
    "$prefix/include/saccade_method.h" "$lib/libsaccade.a" "$lib/libsaccade.so" \
    "$prefix/bin/saccade" "$prefix/share/man/man1/saccade.1" "$prefix/share/saccade/models.tsv" \
    "$prefix/share/bash-completion/completions/saccade" "$prefix/share/zsh/site-functions/_saccade" \
    "$prefix/share/fish/vendor_completions.d/saccade.fish" "$prefix/share/doc/saccade/LICENSE" \
    "$prefix/share/doc/saccade/THIRD_PARTY" "$prefix/share/doc/saccade/examples/saccade.service"; do
    [ -s "$file" ] || fail "$file was not installed"
done
"$prefix/bin/saccade" fetch | grep -q smollm2-135m || fail "saccade fetch lists no models"
version=$(pkg-config --modversion saccade)
soname=$(readelf -d "$lib/libsaccade.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = "libsaccade.so.${version%%.*}" ] || fail "soname is $soname, version is $version"
[ -s "$lib/libsaccade.so.$version" ] || fail "no libsaccade.so.$version"

# Another folder than the configuration's: pkg-config leads there.
cmake --install "$SACCADE_BUILD" --prefix "$destination/else where" >/dev/null
pc=$(find "$destination/else where" -name saccade.pc)
[ "$(PKG_CONFIG_SYSROOT_DIR="" PKG_CONFIG_PATH="${pc%/*}" pkg-config --variable=prefix saccade)" = "$destination/else where" ] ||
    fail "saccade.pc of another --prefix: $(sed -n 1p "$pc")"
rm -r "$destination/else where"
DESTDIR=$destination cmake --install "$SACCADE_BUILD" >/dev/null # the manifest is that of the last one

# Folders may have blanks in their names.
told=$(make -n -C "${0%/*}/../.." install PREFIX="/a b" DESTDIR="/c d")
for word in 'CMAKE_INSTALL_PREFIX="/a b"' 'DESTDIR="/c d"'; do
    case $told in
    *"$word"*) ;;
    *) fail "make install does not keep $word together" ;;
    esac
done

# Exported are the functions of the headers, all of them and nothing else.
declared=$(sed -n 's/^SAC_API.*[ *]\(sac_[a-z_]*\)(.*/\1/p' "$prefix"/include/*.h | sort)
[ "$(echo "$declared" | wc -l)" -gt 20 ] || fail "the headers' functions were not found"
shared=$(nm -D --defined-only "$lib/libsaccade.so" | awk '{print $3}' | sort)
[ "$declared" = "$shared" ] || fail "libsaccade.so exports: $(echo "$declared
$shared" | sort | uniq -u | tr '\n' ' ')"
static=$(nm -g --defined-only "$lib/libsaccade.a" | awk 'NF == 3 {print $3}' | sort)
[ "$declared" = "$static" ] || fail "libsaccade.a exports: $(echo "$declared
$static" | sort | uniq -u | tr '\n' ' ')"

# shellcheck disable=SC2046 # flags are words
${CC:-cc} -Wall -Wextra -Werror examples/ask.c -o "$destination/ask" \
    $(pkg-config --cflags --libs saccade)
# shellcheck disable=SC2046
${CC:-cc} -Wall -Wextra -Werror examples/ask.c -o "$destination/ask-static" \
    $(pkg-config --cflags saccade) "$lib/libsaccade.a" \
    $(PKG_CONFIG_SYSROOT_DIR="" pkg-config --libs-only-l --static saccade | sed 's/-lsaccade//')

models=${SACCADE_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/saccade/models}
model=$models/smollm2-135m.gguf
if [ ! -s "$model" ]; then
    echo "no $model: installed and linked, not run"
    exit 77
fi
question="What is the capital of France?"
answer=$(LD_LIBRARY_PATH=$lib "$destination/ask" "$model" "$question")
echo "$answer"
case $answer in
*Paris*) ;;
*) fail "the answer does not name Paris" ;;
esac
[ "$("$destination/ask-static" "$model" "$question")" = "$answer" ] ||
    fail "static and shared library answer differently"
[ "$("$prefix/bin/saccade" --version | head -1)" = "saccade $version" ] || fail "saccade --version"

# What was there before, and what is put beside, stays.
awk -v destination="$destination" '{print destination $0}' "$SACCADE_BUILD/install_manifest.txt" >"$destination/list"
rm "$destination/ask" "$destination/ask-static"
touch "$prefix/share/saccade/own"
tools/uninstall.sh "$destination/list"
[ "$(find "$destination" ! -type d)" = "$prefix/share/saccade/own" ] || fail "uninstall leaves $(find "$destination" ! -type d)"
[ ! -d "$prefix/share/doc/saccade" ] || fail "uninstall leaves an empty folder"
[ -d "$prefix/bin" ] || fail "uninstall removes a folder that others use"
! tools/uninstall.sh "$destination/list" 2>/dev/null || fail "nothing is there to uninstall, and that is not told"
