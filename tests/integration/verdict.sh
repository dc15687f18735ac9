#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/test as a judge: its last line and exit status, in a false project whose "make check" writes
# the results it is told to.
set -u
export LC_ALL=C
top=${top_srcdir:-.}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dedit-verdict-XXXXXX") || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0

mkdir -p "$tmp/scripts" "$tmp/models" "$tmp/m4" "$tmp/bin"
cp "$top/scripts/test" "$top/scripts/lib.sh" "$tmp/scripts/"
touch "$tmp/configure.ac" "$tmp/m4/dedit-flags.m4"
# shellcheck disable=SC2016 # for the false tool to expand
printf '#!/bin/sh\n[ -z "${NO_MODEL:-}" ] || { echo "models/fetch: offline" >&2; exit 1; }\n' > "$tmp/models/fetch"
printf '#!/bin/sh\necho installed\n' > "$tmp/bin/dpkg-query"
printf '#!/bin/sh\nprintf "%%s\\n" "$*" >> "%s/configured"\ncp "%s/Makefile.in" Makefile\n' "$tmp" "$tmp" > "$tmp/configure"
chmod +x "$tmp/scripts/test" "$tmp/models/fetch" "$tmp/bin/dpkg-query" "$tmp/configure"
# The log of a test as automake's TAP driver leaves it, RESULTS being its result lines.
cat > "$tmp/Makefile.in" << 'X'
all:
	[ -z "$$BAD_BUILD" ]
check:
	mkdir -p tests/unit
	printf 'ok 1 - noise\nPASS: elsewhere 1 - what a test prints itself\n' > tests/unit/test-a.log
	printf '%b' "$$RESULTS" >> tests/unit/test-a.log
	echo ':recheck: no' > tests/unit/test-a.trs
	[ -z "$$BAD_CHECK" ]
X

# verdict NAME STATUS LAST-LINE [TEXT]: runs scripts/test --plain.
verdict() {
    PATH="$tmp/bin:$PATH" MAKEFLAGS='' "$tmp/scripts/test" "${mode:---plain}" > "$tmp/out" 2> "$tmp/err"
    status=$?
    n=$((n + 1))
    if [ "$status" -eq "$2" ] && [ "$(tail -n 1 "$tmp/out")" = "$3" ] && grep -q -e "${4:-}" "$tmp/out"; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        echo "# status $status"
        sed 's/^/# /' "$tmp/out" "$tmp/err"
    fi
}
export RESULTS BAD_BUILD BAD_CHECK NO_MODEL
BAD_BUILD='' BAD_CHECK='' NO_MODEL=''
t='tests/unit/test-a'
RESULTS="PASS: $t 1 - a\nPASS: $t 2 - b\n"
verdict 'all passed' 0 '2 passed, 0 failed, 0 skipped'
RESULTS="PASS: $t 1 - a\nFAIL: $t 2 - b\nERROR: $t - exited with status 1\n"
BAD_CHECK=1 verdict 'a failure' 1 '1 passed, 2 failed, 0 skipped' '^plain: FAIL tests/unit/test-a 2 - b$'
RESULTS="PASS: $t 1 - a\nSKIP: $t 2 - b # SKIP hardware: no AMX\n"
verdict 'missing hardware' 0 '1 passed, 0 failed, 1 skipped' '^plain: SKIP .* # SKIP hardware: no AMX$'
RESULTS="PASS: $t 1 - a\nSKIP: $t 2 - b # SKIP no model\n"
verdict 'a skip for another reason' 1 '1 passed, 0 failed, 1 skipped' '^plain: 1 skipped for another reason'
RESULTS="SKIP: $t - hardware: no device\nPASS: $t 1 - a\n"
verdict 'a whole program skipped' 0 '1 passed, 0 failed, 1 skipped' 'no device'
RESULTS=''
verdict 'no test at all' 1 '0 passed, 0 failed, 0 skipped'
RESULTS="PASS: $t 1 - a\n"
BAD_CHECK=1 verdict 'make check fails without a failed test' 1 '1 passed, 1 failed, 0 skipped' '^FAIL: plain: make check'
BAD_BUILD=1 verdict 'the build fails' 1 '0 passed, 1 failed, 0 skipped' '^FAIL: plain: the build'
NO_MODEL=1 verdict 'the model cannot be had' 1 '1 passed, 1 failed, 0 skipped' '^FAIL: getting the default model'
rm -f "$tmp/configured"
mode=--werror verdict 'both runs by default' 0 '2 passed, 0 failed, 0 skipped'
n=$((n + 1))
if [ "$(cat "$tmp/configured")" = "--enable-werror
--enable-werror --enable-asan" ]; then echo "ok $n - options of the two builds"; else
    echo "not ok $n - options of the two builds"
    sed 's/^/# /' "$tmp/configured"
fi
mode=--werror verdict 'again: nothing is configured twice' 0 '2 passed, 0 failed, 0 skipped'
n=$((n + 1))
if [ "$(wc -l < "$tmp/configured")" -eq 2 ]; then echo "ok $n - nothing was configured twice"; else
    echo "not ok $n - nothing was configured twice"
fi
echo "1..$n"
