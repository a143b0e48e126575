#!/bin/sh
# Removes the files that `make install` has put in place, by the list that it wrote, the folders that
# held nothing else, and the list. usage: tools/uninstall.sh LIST
set -eu
[ -f "$1" ] || { echo "uninstall: no $1: nothing was installed from this tree, or 'make clean' removed the list" >&2; exit 1; }
while read -r file; do
    rm -f "$file"
    folder=${file%/*}
    # Other folders were there before, or are shared.
    case $folder in
    */saccade) rmdir "$folder" ;;
    */saccade/examples) rmdir "$folder" "${folder%/*}" ;;
    esac 2>/dev/null || true
done <"$1"
rm "$1"
