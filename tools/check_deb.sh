#!/bin/sh
# The packages of build/deb (make deb) in a clean Debian of this machine's release, as a user has them: they
# install with what they name and no more, fetch a model, answer, have a manual and complete command lines in
# three shells, serve a program that links with the library, and leave nothing behind. Takes root, for
# debootstrap and chroot, and the network.
# usage: tools/check_deb.sh [ROOT]    ROOT: a clean Debian that is there already; it is changed
set -eu
cd "$(dirname "$0")/.."
. /etc/os-release
model=smollm2-135m question="What is the capital of France?"
fail() { echo "check_deb: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "must be run as root"
for name in saccade libsaccade0 libsaccade-dev; do
    [ "$(find build/deb -name "${name}_*.deb" | wc -l)" = 1 ] || fail "no package $name in build/deb: make deb"
done

root=${1:-} made=""
[ "$root" ] || made=$(mktemp -d)
root=${root:-$made}
tidy() { umount "$root/proc" 2>/dev/null || true; [ ! "$made" ] || rm -rf --one-file-system "$made"; }
trap tidy EXIT
if [ "$made" ]; then
    log=$(debootstrap --variant=minbase "$VERSION_CODENAME" "$root" 2>&1) || fail "debootstrap: $(echo "$log" | tail -3)"
fi
mount -t proc proc "$root/proc" # programs look there for the file that they are
# What pip needs on this machine to reach its index.
for file in /etc/pip.conf /usr/local/share/ca-certificates/*.crt; do
    [ ! -f "$file" ] || cp --parents "$file" "$root"
done
mkdir -p "$root/packages"
cp build/deb/saccade_*.deb build/deb/libsaccade0_*.deb build/deb/libsaccade-dev_*.deb examples/ask.c "$root/packages"

inside() { chroot "$root" env HOME=/tmp SACCADE_MODELS=/models LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@" </dev/null; }
add() { inside apt-get install -y -qq --no-install-recommends "$@" >"$root/packages/apt.log" 2>&1 || { tail "$root/packages/apt.log" >&2; fail "apt-get install $*"; }; }
package() { (cd "$root" && echo "/$(echo packages/"$1"_*.deb)"); }
names_paris() { # what is asked, its answer
    case $2 in *Paris*) echo "$1: $2" ;; *) fail "$1 does not name Paris: $2" ;; esac
}

inside apt-get update -qq >/dev/null
add "$(package saccade)"
inside saccade --version
inside saccade methods >/dev/null
! inside saccade fetch "$model" 2>"$root/packages/fetch.log" || fail "saccade fetch worked without Python"
grep -q "python3 cannot be started" "$root/packages/fetch.log" || fail "saccade fetch without Python says: $(cat "$root/packages/fetch.log")"

# shellcheck disable=SC2046 # the list is words
add $(dpkg-deb -f build/deb/saccade_*.deb Recommends | tr -d ,)
inside saccade fetch "$model"
names_paris "saccade run" "$(inside saccade run -m "$model" -p "$question" --temp 0 -n 16)"

add man-db bash-completion zsh fish
inside man saccade 2>/dev/null | grep -q '^SYNOPSIS' || fail "man saccade shows no page"
inside bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader saccade; complete -p saccade' >/dev/null ||
    fail "bash does not complete saccade"
# shellcheck disable=SC2016 # expanded inside
inside zsh -c 'autoload -U compinit; compinit -u; [ "$_comps[saccade]" = _saccade ]' || fail "zsh does not complete saccade"
inside fish -c 'complete -C "saccade ru"' 2>/dev/null | grep -q '^run' || fail "fish does not complete saccade"
[ -s "$root/usr/share/doc/saccade/examples/saccade.service" ] || fail "the systemd unit is not there"

add "$(package libsaccade0)" "$(package libsaccade-dev)" gcc libc6-dev pkg-config
# shellcheck disable=SC2016 # expanded inside
inside sh -c 'cc -Wall -Werror /packages/ask.c -o /packages/ask $(pkg-config --cflags --libs saccade)'
names_paris "a program of libsaccade-dev" "$(inside /packages/ask "/models/$model.gguf" "$question")"

inside apt-get purge -y -qq saccade libsaccade0 libsaccade-dev >/dev/null 2>&1
left=$(find "$root/etc" "$root/usr" "$root/var/lib" -xdev -iname '*saccade*' ! -path '*/dpkg/*')
[ ! "$left" ] || fail "left behind: $left"
echo "check_deb: installed, fetched, answered, completed, linked, removed"
