#!/bin/sh
# The first `make` on a bare machine: the program's build must configure with what tools/deps.sh
# installs for `build`, that is without the tests' cmocka, and the tests' build must ask for it. Nor
# does it fetch the tests' Python packages.
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

case $(tools/deps.sh --list build) in *cmocka*) fail "the program's build asks for cmocka" ;; esac
if [ "$(tools/deps.sh --list build | xargs dpkg-query -W -f '${db:Status-Status}\n' 2>/dev/null | sort -u)" = installed ]; then
    SACCADE_VENV="$folder/venv" tools/deps.sh build
    [ ! -e "$folder/venv" ] || fail "the program's build installs Python packages"
fi
plan=$(MAKEFLAGS="" MFLAGS="" make -n SACCADE_VENV="$folder/venv" all model models text demo demo-long relations man methods plots deb sbom install)
! echo "$plan" | grep -v -- -DSAC_PYTHON | grep "$folder/venv" || fail "this runs with the Python packages of the tests, which a build does not install"
