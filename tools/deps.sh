#!/bin/sh
# Installs what is missing of the packages that a target needs, and nothing when all are there.
# usage: tools/deps.sh [--list] [build|test|lint|fuzz|cross|deb|deb-check|cuda]...   (default: build)
# With --list it prints the names of the Debian packages and installs nothing.
# Debian packages come through apt-get (as root or with sudo). Tests and CUDA's compiler need Python
# packages, too: they come through pip, into virtual environments in the cache (tools/venv.sh).
set -eu
cd "$(dirname "$0")/.."

packages="gcc libc6-dev cmake ninja-build pkg-config libpcre2-dev libcjson-dev
          libxxhash-dev liblmdb-dev liburing-dev libssl-dev libedit-dev libmicrohttpd-dev
          libcurl4-openssl-dev
          libarchive-dev libxml2-dev libuchardet-dev
          python3 python3-venv python3-pip ca-certificates"
list="" venv="" cuda=""
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi
for purpose in "${@:-build}"; do
    case $purpose in
    build) ;;
    test) packages="$packages g++ git libcmocka-dev libzmq5 binutils poppler-utils curl chromium chromium-driver fonts-dejavu-core" venv=yes ;;
    lint) packages="$packages clang-format clang-tidy cppcheck" ;;
    fuzz) packages="$packages clang libclang-rt-14-dev" ;;
    cross) packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;;
    cuda) packages="$packages g++" cuda=yes ;;
    deb) packages="$packages git build-essential debhelper dpkg-dev fakeroot lintian" ;;
    deb-check) packages="$packages debootstrap" ;;
    *) echo "deps: no purpose '$purpose'; there are: build test lint fuzz cross deb deb-check cuda" >&2; exit 1 ;;
    esac
done
if [ "$list" ]; then
    # shellcheck disable=SC2086 # one line
    echo $packages
    exit 0
fi

missing=""
if command -v dpkg-query >/dev/null; then
    for package in $packages; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing="$missing $package"
    done
else
    # Not Debian: look for the tools by name and leave libraries to CMake, which names them.
    for tool in cc cmake ninja pkg-config python3; do
        command -v "$tool" >/dev/null || missing="$missing $tool"
    done
    if [ -n "$missing" ]; then
        echo "deps: please install:$missing (Debian's names: $packages)" >&2
        exit 1
    fi
fi
if [ -n "$missing" ]; then
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        as_root="sudo"
        if ! command -v sudo >/dev/null; then
            echo "deps: not root and no sudo; please install:$missing" >&2
            exit 1
        fi
    fi
    echo "deps: installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # the lists are words
    {
        $as_root apt-get update -qq </dev/null >&2
        $as_root apt-get install -y -qq --no-install-recommends $missing </dev/null >&2
    } || { echo "deps: apt-get failed; please install:$missing" >&2; exit 1; }
fi

# In its own virtual environment what takes gigabytes and serves one target alone.
install_python() { # folder, list
    cmp -s "$2" "$1/requirements.txt" && return
    python3 -m venv "$1" >&2
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2" </dev/null >&2 ||
        { echo "deps: pip cannot install $2; is the network there?" >&2; exit 1; }
    cp "$2" "$1/requirements.txt"
}
folder=$(tools/venv.sh)
[ ! "$venv" ] || install_python "$folder" tools/requirements.txt
[ ! "$cuda" ] || install_python "$folder-cuda" tools/requirements-cuda.txt
