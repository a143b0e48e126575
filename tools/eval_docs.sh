#!/bin/sh
# The tables of docs/performance/stored_documents.md: questions over stored documents, asked by several processes
# with processors of their own, and read together. What OUT has already is not asked again, so a run
# that was cut off goes on.
# usage: tools/eval_docs.sh PROGRAM MODEL OUT [-- OPTIONS OF eval docs]
# By the environment: N questions a place and task, FIRST of them, PARTS processes of THREADS threads,
# SECONDS_MOST after which they are stopped, STORE the folder of their documents (a file system in memory
# saves the disk's time; documents of a question go with it unless OPTIONS have --keep).
set -eu
program=$1 model=$2 out=$3
shift 3
[ "${1-}" != -- ] || shift
n=${N:-20} first=${FIRST:-0} parts=${PARTS:-1} threads=${THREADS:-2} store=${STORE:-$out}
mkdir -p "$out" "$store"
i=0
while [ $i -lt "$parts" ]; do
    from=$((n * i / parts)) to=$((n * (i + 1) / parts))
    if [ $to -gt $from ]; then
        timeout -s INT "${SECONDS_MOST:-86400}" \
            taskset -c $((i * threads))-$((i * threads + threads - 1)) \
            "$program" eval docs -m "$model" -t "$threads" -n $((to - from)) --first $((first + from)) \
            --store "$store/store.$i" --out "$out/part.$i" -q "$@" >"$out/part.$i.txt" 2>&1 &
    fi
    i=$((i + 1))
done
wait
set --
for part in "$out"/part.*/docs.jsonl; do set -- "$@" --read "$part"; done
"$program" eval docs "$@"
"$(dirname "$0")/docs_table.py" "$out"/part.*/docs.jsonl
