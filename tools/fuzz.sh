#!/bin/sh
# Runs every fuzzer of a build for some seconds, several at once. New inputs are kept in the build
# folder, findings in its crashes/, and a finding fails the run.
# usage: tools/fuzz.sh BUILD SECONDS JOBS
set -eu
build=$1 seconds=$2 jobs=$3
corpora=tests/fuzz/corpus

fuzz_one() {
    fuzzer=$1
    name=$(basename "$fuzzer" | sed 's/^fuzz_//')
    mkdir -p "$build/corpus/$name" "$build/crashes"
    # Own crashes only: a limit on memory and time makes a hang or a bomb a finding too.
    if "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
        "$build/corpus/$name" "$corpora/$name" >"$build/fuzz_$name.log" 2>&1; then
        echo "fuzz $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz_$name.log")" \
            "inputs in $seconds s, no finding"
    else
        tail -n 40 "$build/fuzz_$name.log"
        echo "fuzz $name: FINDING, see $build/crashes"
        return 1
    fi
}

if [ "${4:-}" ]; then
    fuzz_one "$4"
    exit
fi
find "$build/tests" -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | sort |
    xargs -P "$jobs" -I '{}' sh "$0" "$build" "$seconds" 1 '{}'
