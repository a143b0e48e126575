#!/bin/sh
# Several GPUs of one machine against one of them: layers behind each other give its bits, with and
# without -ts; shares of every layer (-sm row) give bits that depend on no chunk and no run, as near to
# it as rounding is; and how fast each is. Without a model it makes one, Llama-3.1-8B with random
# weights. No command takes longer than LIMIT seconds.
# usage: tools/check_gpus.sh PROGRAM [MODEL]
#   DEVICES=cuda:0,cuda:1 SPLIT=3,1 CTX=1024 CHUNKS=4 PROMPT=8192 GEN=128 DEPTH=0 LIMIT=120 PYTHON=python3
# The last line is `N passed, N failed`.
set -u
run="timeout ${LIMIT:-120} $1" model=${2:-}
devices=${DEVICES:-cuda:0,cuda:1} split=${SPLIT:-3,1} prompt=${PROMPT:-8192} gen=${GEN:-128} depth=${DEPTH:-0}
first=${devices%%,*} passed=0 failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

say() { # STATUS WORD...: counts a check by the status of the one before
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)) word=good; else failed=$((failed + 1)) word=BAD; fi
    shift
    printf '%-52s %s\n' "$*" "$word"
}

score() { # FILE ARG...: log-probabilities of prompt rows, to the last bit
    file=$folder/$1
    shift
    $run perplexity -m "$model" -f "$folder/text" -c ${CTX:-1024} --chunks ${CHUNKS:-4} --kl-type f32 \
        --kl-divergence-base "$file" "$@" >"$file.log" 2>&1 || { cat "$file.log"; return 1; }
}

answer() { # FILE ARG...: tokens of decode rows
    file=$folder/$1
    shift
    $run run -m "$model" -c 2048 -n 64 --temp 0 --ignore-eos --raw -f "$folder/prompt" "$@" \
        >"$file" 2>"$file.log" || { cat "$file.log"; return 1; }
}

speed() { # NAME ARG...
    name=$1
    shift
    $run bench -m "$model" -p "$prompt" -n "$gen" -d "$depth" -r 3 -o md "$@" \
        >"$folder/bench" 2>"$folder/bench.log" || { cat "$folder/bench.log"; return 1; }
    printf '\n%s\n' "$name"
    grep '^|' "$folder/bench"
}

if [ ! "$model" ]; then
    model=$folder/model.gguf
    "${PYTHON:-python3}" tools/make_model.py llama-8b "$model" --type q4_k || exit 1
fi
cat docs/*.md >"$folder/text"
head -c 1500 "$folder/text" >"$folder/prompt"

score one --device "$first" && answer one.txt --device "$first"
say $? "$first computes"
score layers --device "$devices" && cmp "$folder/one" "$folder/layers"
say $? "layers on $devices: prompt rows, same bits"
answer layers.txt --device "$devices" && cmp "$folder/one.txt" "$folder/layers.txt"
say $? "layers on $devices: answers, same tokens"
score split --device "$devices" -ts "$split" && cmp "$folder/one" "$folder/split"
say $? "layers as -ts $split: prompt rows, same bits"
answer split.txt --device "$devices" -ts "$split" && cmp "$folder/one.txt" "$folder/split.txt"
say $? "layers as -ts $split: answers, same tokens"

score row --device "$devices" -sm row
say $? "shares (-sm row) compute"
score again --device "$devices" -sm row && cmp "$folder/row" "$folder/again"
say $? "shares: prompt rows, same bits again"
score chunk --device "$devices" -sm row -b 96 && cmp "$folder/row" "$folder/chunk"
say $? "shares: prompt rows, same bits in chunks of 96"
answer row.txt --device "$devices" -sm row && answer again.txt --device "$devices" -sm row &&
    cmp "$folder/row.txt" "$folder/again.txt"
say $? "shares: answers, same tokens again"
$run perplexity -m "$model" -c ${CTX:-1024} --chunks ${CHUNKS:-4} --kl-divergence --device "$devices" -sm row \
    --kl-divergence-base "$folder/one" -o json >"$folder/kl" 2>"$folder/kl.log"
say $? "shares beside $first, divergence and agreement:"
cat "$folder/kl"

for way in "$first" "$devices" "$devices -ts $split" "$devices -sm row"; do
    speed "--device $way" --device $way
    say $? "speed of --device $way"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
