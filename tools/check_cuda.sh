#!/bin/sh
# Runs the checks of kernels on a GPU and counts: the last line is `N passed, N failed`.
# usage: SAC_CHECK_CUDA=libsaccade_cuda.so tools/check_cuda.sh FOLDER NAME...
# With SANITIZER=memcheck (racecheck, initcheck, synccheck) they run under compute-sanitizer.
watch=""
if [ "${SANITIZER:-}" ]; then
    watch="compute-sanitizer --tool $SANITIZER --error-exitcode 9"
fi
folder=$1 passed=0 failed=0
shift
for name; do
    log=$(mktemp)
    $watch "$folder/$name" >"$log" 2>&1
    status=$?
    good=$(grep -c '^\[       OK ' "$log")
    bad=$(grep -c '^\[  FAILED  \] [a-z_]*$' "$log")
    if [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    if [ "$bad" -ne 0 ]; then
        cat "$log"
    fi
    grep '^cuda:' "$log" | sed "s/^cuda/$name/"
    passed=$((passed + good)) failed=$((failed + bad))
    rm -f "$log"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
