#!/bin/sh
# How many requests a second each method serves where memory is short: first dense with all keys and
# values in memory, for the idle iteration and for what it holds at most at the largest rate that it
# serves; then all methods over a disk, with a quarter of that. Tables on stdout; trials and drawings
# go to OUT. Requests have pages of their own (CONTEXTS).
# usage: tools/capacity.sh PROGRAM MODEL OUT DISK [-- OPTIONS OF bench capacity]
# DISK: a file that is not there yet, on the disk that is measured. By the environment: SECONDS_EACH
# for each method and limit (so 6 methods take at most 14 times that, beside the computing of prompts,
# once for each group of methods), LENGTHS, PROMPTS and CONTEXTS, METHODS in groups that share an
# engine (infinigen is alone: all methods of its engine would have to compute the rows whose queries it
# wants), SHARE that memory holds, in percent, and TABLES: working_set, and all, in which every
# request decodes at once.
set -eu
program=$1 model=$2 out=$3 disk=$4
shift 4
[ "${1-}" != -- ] || shift
seconds=${SECONDS_EACH:-8} lengths=${LENGTHS:-1024:4096} prompts=${PROMPTS:-6} share=${SHARE:-25}
contexts=${CONTEXTS:-48} tables=${TABLES:-working_set}
methods=${METHODS:-dense,arkvale,psa,psa_cert,auto infinigen}
mkdir -p "$out"

capacity() { # name, methods, further options
    name=$1 list=$2
    shift 2
    "$program" bench capacity -m "$model" -ctk q8 -ctv q8 --lengths "$lengths" --num-prompts "$prompts" --num-contexts "$contexts" \
        --seconds "$seconds" --methods "$list" --trials "$out/$name.csv" --plot "$out/$name.svg" "$@" \
        >"$out/$name.md"
    printf '## %s\n\n' "$name"
    cat "$out/$name.md"
    printf '\n'
}

capacity resident dense "$@"
idle=$(sed -n 's/^one idle iteration: \([0-9.]*\) ms.*/\1/p' "$out/resident.md")
bytes=$(awk -F, -v share="$share" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    $at["kept"] && $at["kv_most_bytes"] > most { most = $at["kv_most_bytes"] }
    END { printf "%.0f", most * share / 100 }' "$out/resident.csv")
[ "$bytes" -gt 0 ] || {
    echo "capacity.sh: dense attention keeps no limit with all in memory: see $out/resident.csv" >&2
    exit 1
}
tiers="--idle-ms $idle --kv-fast $bytes --kv-disk $disk:${DISK_SIZE:-8G}"
for table in $tables; do
    case $table in
    working_set) admit=working-set ;;
    all) admit=all ;;
    *) echo "capacity.sh: TABLES: $table is neither working_set nor all" >&2 && exit 2 ;;
    esac
    for group in $methods; do
        # shellcheck disable=SC2086 # the options are words
        capacity "$table-${group%%,*}" "$group" $tiers --kv-admit "$admit" "$@"
    done
done
