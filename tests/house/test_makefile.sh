#!/bin/sh
# The Makefile, by what it would run: `make help` lists what there is, and variables reach those who
# read them.
set -eu
fail() { echo "test_makefile: $*" >&2; exit 1; }
# Without the options of a make that has started this test.
plan() { MAKEFLAGS="" MFLAGS="" make -n "$@" 2>&1; }

phony=$(sed -n '/^\.PHONY:/,/[^\\]$/p' Makefile | tr -d '\\' | sed 's/^\.PHONY://' | tr -s ' \t\n' '\n\n\n' | grep . | sort)
rules=$(sed -nE 's/^([a-z][a-z -]*):.*/\1/p' Makefile | tr ' ' '\n' | sort)
[ "$phony" = "$rules" ] || fail ".PHONY and the rules differ: $(printf '%s\n%s\n' "$phony" "$rules" | sort | uniq -u | tr '\n' ' ')"

help=$(make -s help)
for target in $(echo "$rules" | grep -v '^deps-'); do
    echo "$help" | grep -qE "^ ( [a-z-]+)*  ?$target( |$)" || fail "make help does not list $target"
done
# Those that are set where they are used, or are the Makefile's own.
own='VENV|PYTHON|CURDIR|CONFIGURE|BUILD|RUN_TESTS|CHECKED|CUDA_[A-Z]*'
for variable in $(grep -oE '\$\([A-Z_]+|\$\((or|if) \$\([A-Z_]+' Makefile | grep -oE '[A-Z_]+$' | sort -u | grep -vxE "$own"); do
    echo "$help" | grep -q "^  $variable " || fail "make help does not list the variable $variable"
done

# Of names that make gives a value itself, such as AS and CC, users could not leave one unset.
plan cuda | grep -qE -- '-DSAC_CUDA_AS=( |$)' ||
    fail "make cuda builds the code of another GPU: $(plan cuda | grep -o 'SAC_CUDA_AS=.*')"
plan check-cuda GPU_AS=86 | grep -q -- '-DSAC_CUDA_AS=86' || fail "GPU_AS does not reach CMake"
plan install DESTDIR="/c d" | grep -q 'destination="/c d" .*build/installed.txt' || fail "make install keeps no list for make uninstall"
