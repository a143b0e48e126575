#!/bin/sh
# How many requests a second each method serves where memory holds a quarter of all prompts' keys and
# values: dense with all of them in memory, for the idle iteration and as the yardstick; then all
# methods over a disk; then the same with every request let in at once. Three tables on stdout; trials
# and drawings go to OUT.
# usage: tools/capacity.sh PROGRAM MODEL OUT DISK [-- OPTIONS OF bench capacity]
# DISK: a file that is not there yet, on the disk that is measured. By the environment: SECONDS_EACH
# for each method and limit (so 6 methods take at most 24 times that, beside the prompts' computing),
# LENGTHS and PROMPTS, METHODS, SHARE of the keys and values that memory holds, in percent.
set -eu
program=$1 model=$2 out=$3 disk=$4
shift 4
[ "${1-}" != -- ] || shift
seconds=${SECONDS_EACH:-8} lengths=${LENGTHS:-1024:4096} prompts=${PROMPTS:-6} share=${SHARE:-25}
methods=${METHODS:-dense,arkvale,infinigen,psa,psa_cert,auto}
mkdir -p "$out"

capacity() { # name, methods, further options
    name=$1 list=$2
    shift 2
    "$program" bench capacity -m "$model" -ctk q8 -ctv q8 --lengths "$lengths" --num-prompts "$prompts" \
        --seconds "$seconds" --methods "$list" --trials "$out/$name.csv" --plot "$out/$name.svg" "$@" \
        >"$out/$name.md"
    printf '## %s\n\n' "$name"
    cat "$out/$name.md"
    printf '\n'
}

capacity resident dense "$@"
idle=$(sed -n 's/^one idle iteration: \([0-9.]*\) ms.*/\1/p' "$out/resident.md")
bytes=$(sed -n 's/^\([0-9]*\) prompts, mean .*(\([0-9.]*\) MiB of keys.*/\1 \2/p' "$out/resident.md" |
    awk -v share="$share" '{ printf "%.0f", $1 * $2 * 1048576 * share / 100 }')
tiers="--idle-ms $idle --kv-fast $bytes --kv-disk $disk:${DISK_SIZE:-8G}"
# shellcheck disable=SC2086 # the options are words
capacity working_set "$methods" $tiers "$@"
# shellcheck disable=SC2086
capacity all "$methods" $tiers --kv-admit all "$@"
