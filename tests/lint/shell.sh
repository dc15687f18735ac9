#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shell scripts: syntax, and shellcheck where it is installed.
# shellcheck source=tests/lint/lint.sh
. "${top_srcdir:-.}/tests/lint/lint.sh"

scripts() {
    files '*.sh' tests scripts
    for f in autogen.sh quickstart scripts/test scripts/device-check models/fetch .ci/run; do
        [ -f "$root/$f" ] && echo "$root/$f"
    done
}
syntax() {
    for f in $(scripts); do
        case $(head -n 1 "$f") in
            *bash*) bash -n "$f" ;;
            *) sh -n "$f" ;;
        esac
    done
}
checked() {
    # shellcheck disable=SC2046
    (cd "$root" && shellcheck -x -f gcc $(scripts | sed "s|^$root/||"))
}

check 'shell syntax' syntax
if command -v shellcheck > /dev/null 2>&1; then
    check 'shellcheck' checked
else
    skip 'shellcheck' 'shellcheck is missing (Debian package: shellcheck)'
fi
bad_tree
mkdir -p "$bad/tests"
printf '#!/bin/sh\nif true; then\n' > "$bad/tests/a.sh"
found() { [ -n "$("$@" 2>&1)" ] && echo found; }
check_finds 'a syntax error is found' 1 found syntax
finish
