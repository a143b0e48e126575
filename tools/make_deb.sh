#!/bin/sh
# The Debian packages, in build/deb, from the files that git tracks: packaging/debian with the version
# of CMakeLists.txt, the last commit's date and the packages of tools/deps.sh.
# DEBFULLNAME and DEBEMAIL say who maintains them.
set -eu
cd "$(dirname "$0")/.."
git rev-parse HEAD >/dev/null || { echo "make_deb: the packages are made of what git tracks: this folder is no clone, or git may not read it" >&2; exit 1; }
version=$(sed -n 's/^project(saccade VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
maintainer="${DEBFULLNAME:-Saccade authors} <${DEBEMAIL:-saccade@example.org}>"
# Of what a build needs, the compiler and make are always there; Python fetches models, no more.
needs=$(tools/deps.sh --list build | tr ' ' '\n' | grep -E '^(cmake|ninja-build|pkg-config|lib.*-dev)$' | grep -v '^libc6-dev$')
# Packages of what saccade.pc names for those who link statically.
dev=$(for module in $(sed -n 's/^Requires.private: //p' cmake/saccade.pc.in); do
    dpkg-query -S "*/pkgconfig/$module.pc" | cut -d: -f1
done | sort -u)
list() { echo "$1" | tr '\n' ' ' | sed 's/ *$//; s/ /, /g'; }

top=build/deb
tree=$top/saccade-$version
rm -rf "$top"
mkdir -p "$tree"
git ls-files -z | xargs -0 tar -c | tar -x -C "$tree"
cp -r packaging/debian "$tree/debian"
sed -e "s/@MAINTAINER@/$maintainer/" -e "s/@BUILD_DEPENDS@/$(list "$needs")/" \
    -e "s/@DEV_DEPENDS@/$(list "$dev")/" "$tree/debian/control.in" >"$tree/debian/control"
rm "$tree/debian/control.in"
cat >"$tree/debian/changelog" <<END
saccade ($version) unstable; urgency=medium

  * Version $version.

 -- $maintainer  $(git log -1 --format=%cD)
END
{
    cat <<END
saccade
Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE)

It is under the Expat licence. Notices of the libraries that it is linked with are in their packages.

END
    sed -n '/^Permission is/,$p' LICENSE
    printf '\nThe page of the server has marked and DOMPurify inside.\n\n'
    cat src/serve/page/marked.LICENSE
    printf '\nDOMPurify: Copyright Cure53 and other contributors, under the Apache License, Version 2.0;\n'
    printf 'its text is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$tree/debian/copyright"
cd "$tree"
dpkg-buildpackage -us -uc -b -j"${JOBS:-$(nproc)}" >../build.log 2>&1 || { tail -30 ../build.log >&2; exit 1; }
cd ..
ls ./*.deb
