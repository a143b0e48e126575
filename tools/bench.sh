#!/bin/sh
# Speed of fetched models: prefill of 512 and 8,192 tokens, decode at depth 0 and 8,192; then of every
# operation alone. Each table begins with the limits of the machine that were measured with it.
# usage: tools/bench.sh PROGRAM [MODEL...]   (default: smollm2-135m qwen2.5-coder-0.5b)
set -eu
program=$1
shift
[ $# -gt 0 ] || set -- smollm2-135m qwen2.5-coder-0.5b
for model in "$@"; do
    echo "## $model"
    "$program" bench -m "$model" -p 512,8192 -n 64 -r 3
    "$program" bench -m "$model" -p 0 -n 64 -d 8192 -r 3
    echo
done
echo "## operations"
"$program" bench ops
