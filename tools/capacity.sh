#!/bin/sh
# How many requests a second each method serves where memory is short: first dense with all keys and
# values in memory, for the idle iteration and for what it holds at most at the largest rate that it
# serves; then all methods over a disk, with a quarter of that. A table on stdout, with resident dense
# first; it, its trials and their drawing go to OUT/TABLE.md, .csv and .svg, those of each run beside
# them as soon as they are there. Requests have pages of their own (CONTEXTS).
# usage: tools/capacity.sh PROGRAM MODEL OUT DISK [-- OPTIONS OF bench capacity]
# DISK: a file that is not there yet, on the disk that is measured; with `-- --device cuda`, whose
# pages lie in the machine's memory, a dash. By the environment: SECONDS_EACH
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
        --seconds "$seconds" --methods "$list" --trials "$out/$name.csv" "$@" >"$out/$name.md"
}

rows() { # of a run's table
    grep '^|' "$out/$1.md" | tail -n +3
}

join() { # table, its runs: one table, one list of trials, one drawing
    table=$1
    shift
    {
        printf '## %s\n\n' "$table"
        sed -n '/^|---/q;p' "$out/$1.md"
        grep '^|---' "$out/$1.md"
        rows resident | sed 's/^| dense |/| dense, all in memory |/'
        for name; do rows "$name"; done
        for name in resident "$@"; do sed '1,/^|---/d;/^|/d' "$out/$name.md"; done | awk 'NF && !seen[$0]++ { print "\n" $0 }'
    } >"$out/$table.md"
    {
        sed 's/^"dense"/"dense, all in memory"/' "$out/resident.csv"
        for name; do tail -n +2 "$out/$name.csv"; done
    } >"$out/$table.csv"
    "$program" bench plot "$out/$table.csv" -x rate -y p99_iterations --by method --x-label 'requests per second' \
        --y-label 'p99 of the time between tokens, in idle iterations' >"$out/$table.svg"
    cat "$out/$table.md"
}

rm -f "$out/resident.csv" # a search that decides nothing writes none
capacity resident dense "$@"
[ -f "$out/resident.csv" ] || {
    echo "capacity.sh: no rate was decided with all in memory: give it more SECONDS_EACH than $seconds" >&2
    exit 1
}
idle=$(sed -n 's/^one idle iteration: \([0-9.]*\) ms.*/\1/p' "$out/resident.md")
bytes=$(awk -F, -v share="$share" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    $at["kept"] && $at["kv_most_bytes"] > most { most = $at["kv_most_bytes"] }
    END { printf "%.0f", most * share / 100 }' "$out/resident.csv")
[ "$bytes" -gt 0 ] || {
    echo "capacity.sh: dense attention keeps no limit with all in memory: see $out/resident.csv" >&2
    exit 1
}
tiers="--idle-ms $idle --kv-fast $bytes"
[ "$disk" = - ] || tiers="$tiers --kv-disk $disk:${DISK_SIZE:-8G}"
for table in $tables; do
    case $table in
    working_set) admit=working-set ;;
    all) admit=all ;;
    *) echo "capacity.sh: TABLES: $table is neither working_set nor all" >&2 && exit 2 ;;
    esac
    runs=
    for group in $methods; do
        # shellcheck disable=SC2086 # the options are words
        capacity "$table-${group%%,*}" "$group" $tiers --kv-admit "$admit" "$@"
        runs="$runs $table-${group%%,*}"
    done
    # shellcheck disable=SC2086 # names without spaces
    join "$table" $runs
done
