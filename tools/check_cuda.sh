#!/bin/sh
# Runs the checks of kernels on a GPU, JOBS of them at a time, and counts: the last line is `N passed, N failed`.
# usage: SAC_CHECK_CUDA=libsaccade_cuda.so tools/check_cuda.sh FOLDER NAME...
# With SANITIZER=memcheck (racecheck, initcheck, synccheck) they run under compute-sanitizer, with as
# few steps as meet every kernel (tests/check/brief.h).
watch=""
if [ "${SANITIZER:-}" ]; then
    watch="compute-sanitizer --tool $SANITIZER --error-exitcode 9"
    SAC_CHECK_BRIEF=1 && export SAC_CHECK_BRIEF
fi
folder=$1 passed=0 failed=0
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export folder logs watch
# What a program says and how it ends lie apart, by its name.
printf '%s\n' "$@" | xargs -P "${JOBS:-1}" -I NAME sh -c \
    '$watch "$folder/NAME" >"$logs/NAME" 2>&1; echo $? >"$logs/NAME.status"'
for name; do
    log=$logs/$name
    status=$(cat "$log.status")
    good=$(grep -c '^\[       OK ' "$log")
    bad=$(grep '^\[  FAILED  \] [a-z0-9_]*$' "$log" | sort -u | grep -c .) # told twice each
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    if [ "$bad" -ne 0 ]; then
        cat "$log"
    fi
    grep '^cuda:' "$log" | sed "s/^cuda/$name/"
    passed=$((passed + good)) failed=$((failed + bad))
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
