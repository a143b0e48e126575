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
cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr -j "$jobs" \
    --enable=warning,portability --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches \
    -D_GNU_SOURCE -Iinclude -Isrc src || status=1
exit $status
