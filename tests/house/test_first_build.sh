#!/bin/sh
# The first `make` on a bare machine: the program's build must configure with what tools/deps.sh
# installs for `build`, that is without the tests' cmocka, and the tests' build must ask for it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "test_first_build: $*" >&2; exit 1; }

cat >"$folder/pkg-config" <<'END'
#!/bin/sh
case " $* " in *" cmocka "*) echo "Package cmocka was not found" >&2; exit 1 ;; esac
exec pkg-config "$@"
END
chmod +x "$folder/pkg-config"

configure() { # PRESET
    PKG_CONFIG="$folder/pkg-config" cmake --preset "$1" -B "$folder/$1" >"$folder/$1.log" 2>&1
}
configure default || { cat "$folder/default.log" >&2; fail "the program does not configure without cmocka"; }
ninja -C "$folder/default" -t query saccade >/dev/null || fail "no target saccade"
! configure werror || fail "the tests configure without cmocka: the test above shows nothing"
grep -q cmocka "$folder/werror.log" || fail "the tests' error does not name cmocka"
