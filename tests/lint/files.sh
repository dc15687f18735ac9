#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Form of the files: licence line, length, headers, blanks, and that make knows every source.
# shellcheck source=tests/lint/lint.sh
. "${top_srcdir:-.}/tests/lint/lint.sh"

folders='base proto kernels engine train daemon client bench tests scripts models man systemd'

sources() {
    for pattern in '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.mk' '*.awk' '*.py'; do
        # shellcheck disable=SC2086
        files "$pattern" $folders
    done
    for f in autogen.sh configure.ac Makefile.am m4/dedit-flags.m4 quickstart scripts/test \
        models/fetch .ci/run; do
        [ -f "$root/$f" ] && echo "$root/$f"
    done
}
spdx() {
    for f in $(sources); do
        head -n 3 "$f" | grep -q 'SPDX-License-Identifier: Apache-2\.0' || echo "$f"
    done
}
# Over 1,000 lines the head of the file says why, in a line with "Long because".
long() {
    for f in $(sources); do
        n=$(wc -l < "$f")
        [ "$n" -le 1000 ] || head -n 40 "$f" | grep -q 'Long because' || echo "$f: $n lines"
    done
}
headers() {
    # shellcheck disable=SC2086
    for f in $(files '*.h' $folders; files '*.cuh' $folders); do
        grep -q -E '^#(pragma once|ifndef DEDIT_H)$' "$f" || echo "$f"
    done
}
blanks() {
    for f in $(sources); do
        grep -n '[[:blank:]]$' "$f" | sed "s|^|$f:|"
        case $f in *.c | *.h | *.cu | *.cuh) grep -n "$(printf '\t')" "$f" | sed "s|^|$f:|" ;; esac
        [ -z "$(tail -c 1 "$f")" ] || echo "$f: no newline at its end"
    done
}
unfinished() {
    for f in $(sources); do
        grep -n -E '(^|[^A-Za-z])(TO''DO|FIX''ME|XX''X)([^A-Za-z]|$)' "$f" | sed "s|^|$f:|"
    done | grep -v 'XX''XX'
}
# A source that no local.mk above it names is neither built nor shipped.
named() {
    dir=$1
    while [ "$dir" != "${dir%/*}" ]; do
        dir=${dir%/*}
        [ -f "$root/$dir/local.mk" ] && grep -q -F "/${1#"$dir/"}" "$root/$dir/local.mk" && return
    done
    false
}
listed() {
    for folder in base proto kernels engine train daemon client bench tests; do
        for f in $(files '*.c' $folder; files '*.h' $folder; files '*.sh' $folder; files '*.awk' $folder); do
            named "${f#"$root/"}" || echo "$f is in no local.mk"
        done
    done
}
# What ./configure asks for, quickstart must install.
packages() {
    sed -n 's/.*DEDIT_NEED(\[.*\], *\[\([a-z0-9-]*\)\]).*/\1/p' "$root/configure.ac" | while read -r package; do
        grep -q -w -e "$package" "$root/scripts/lib.sh" || echo "$package is not in scripts/lib.sh"
    done
}

check 'licence line' spdx
check 'at most 1,000 lines without a reason' long
check 'headers have #pragma once' headers
check 'no blanks at line ends, no tabs in C' blanks
check 'nothing unfinished' unfinished
check 'make knows every source' listed
check 'quickstart installs what configure needs' packages

bad_tree
mkdir -p "$bad/base" "$bad/scripts"
echo 'x, [DEDIT_NEED([nothing], [libnothing-dev])])' > "$bad/configure.ac"
echo '# SPDX-License-Identifier: Apache-2.0' > "$bad/scripts/lib.sh"
printf '// nothing \n\tint x; // TO%s\n' DO > "$bad/base/a.h"
awk 'BEGIN { print "/* SPDX-License-Identifier: Apache-2.0 */"; for (i = 0; i < 1000; i++) print "" }' > "$bad/base/b.c"
sed '2s/$/ Long because it must be./' "$bad/base/b.c" > "$bad/base/c.c"
printf 'x = %%D%%/c.c\n' > "$bad/base/local.mk"
sed -i '1i# SPDX-License-Identifier: Apache-2.0' "$bad/base/local.mk"
check_finds 'a missing package is found' 1 packages
check_finds 'a missing licence line is found' 2 spdx
check_finds 'a long file is found' 1 long
check_finds 'a bare header is found' 1 headers
check_finds 'blanks and tabs are found' 2 blanks
check_finds 'an unfinished place is found' 1 unfinished
check_finds 'a forgotten source is found' 2 listed
finish
