#!/bin/sh
# All that looks at the sources without running them. usage: tools/lint.sh BUILD JOBS
set -eu
build=$1 jobs=$2
status=0

for check in layers headers size banned readme references text; do
    python3 "tools/check_$check.py" . || status=1
done
git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror || status=1
sources=$(git ls-files 'src/*.c')
# shellcheck disable=SC2086 # the list is words
printf '%s\n' $sources | xargs -P "$jobs" -n 4 clang-tidy -p "$build" --quiet || status=1
# legacyUninitvar takes the result of error_set's statement expression for uninitialized; compilers find
# the true ones. zerodivcond does not see that a test before it has returned; the logarithm of 0 is
# meant, and so is reading floats as their bits. It takes a field `.n` for the n of `list[n++]`, a product of
# numbers with a sign for one without, and heads to have no channels.
cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr -j "$jobs" \
    --enable=warning,portability --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches \
    --suppress=legacyUninitvar --suppress=zerodivcond \
    --suppress=invalidFunctionArg --suppress=invalidPointerCast --suppress=arrayIndexThenCheck \
    --suppress=unknownEvaluationOrder:src/methods/batch.c --suppress=unknownEvaluationOrder:src/methods/kept.c \
    --suppress=signConversion:src/kv/tier_read.c --suppress=uninitvar:src/ops/cpu/lanes_bound.c \
    '-DcJSON_ArrayForEach(e,list)=while((e=(list)->child))' \
    -D_GNU_SOURCE -D__x86_64__ -D__linux__ -Iinclude -Isrc src || status=1
exit $status
