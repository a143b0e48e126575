#!/bin/sh
# tools/check_cuda.sh with programs that stand for checks: what it counts, that it runs as many at a
# time as it is told, and what it says to compute-sanitizer and to what this watches.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "test_check_cuda: $*" >&2; cat "$folder/out" >&2; exit 1; }

program() { # NAME, of what comes in
    { echo '#!/bin/sh'; cat; } >"$folder/$1"
    chmod +x "$folder/$1"
}
run() { # STATUS LAST_LINE NAME...
    want=$1 last=$2 got=0
    shift 2
    tools/check_cuda.sh "$folder" "$@" >"$folder/out" 2>&1 || got=$?
    [ $got -eq "$want" ] || fail "status $got of $*"
    [ "$(tail -n 1 "$folder/out")" = "$last" ] || fail "not '$last'"
}

# As cmocka tells it: what failed, it names twice.
program good <<'END'
echo "[       OK ] one"
echo "[       OK ] two"
echo "[  PASSED  ] 2 test(s)."
echo "cuda: a GPU"
END
program bad <<'END'
echo "[       OK ] one"
for turn in 1 2; do
    echo "[  FAILED  ] rows_of_f16"
    echo "[  FAILED  ] rows_of_q8"
    echo "[  FAILED  ] 2 test(s), listed below:"
done
exit 1
END
program dead <<'END'
echo "[       OK ] one"
kill -KILL $$
END
run 0 "2 passed, 0 failed" good
grep -q '^good: a GPU$' "$folder/out" || fail "it does not say which GPU"
run 1 "4 passed, 3 failed" good bad dead
grep -q rows_of_f16 "$folder/out" || fail "the log of what failed is not shown"

# Each waits for the other one.
for i in 1 2; do
    program "pair$i" <<END
touch "$folder/here$i"
for turn in 1 2 3 4 5 6 7 8 9 10; do
    [ ! -e "$folder/here$((3 - i))" ] || { echo "[       OK ] met"; exit 0; }
    sleep 0.5
done
exit 1
END
done
JOBS=2 run 0 "2 passed, 0 failed" pair1 pair2

# What a tool finds is a failure, whatever the checks say.
program compute-sanitizer <<'END'
while [ "${1#-}" != "$1" ]; do
    case $1 in
    --tool) tool=$2; shift ;;
    --error-exitcode) code=$2; shift ;;
    esac
    shift
done
"$1" || exit $?
[ "$tool" = memcheck ] || exit "$code"
END
program brief <<'END'
[ "${SAC_CHECK_BRIEF:-}" ] || exit 1
echo "[       OK ] one"
END
run 1 "0 passed, 1 failed" brief
PATH=$folder:$PATH
SANITIZER=memcheck run 0 "1 passed, 0 failed" brief
SANITIZER=racecheck run 1 "1 passed, 1 failed" brief
