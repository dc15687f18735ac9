# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034,SC2001
# Sourced by the lint tests: TAP, and the files of the project.
# $root is the tree to look at; a test sets it to a folder of bad examples to see itself fail.
export LC_ALL=C
top=${top_srcdir:-.}
root=$top
lint=$top/tests/lint
tests_run=0

# check NAME COMMAND...: passes when the command prints nothing; what it prints are the findings.
check() {
    check_name=$1
    shift
    tests_run=$((tests_run + 1))
    findings=$("$@" 2>&1)
    if [ -z "$findings" ]; then
        echo "ok $tests_run - $check_name"
    else
        echo "not ok $tests_run - $check_name"
        echo "$findings" | sed 's/^/# /'
    fi
}

# check_finds NAME N COMMAND...: passes when the command prints exactly N lines (on bad examples).
check_finds() {
    check_name=$1
    want=$2
    shift 2
    tests_run=$((tests_run + 1))
    findings=$("$@" 2>&1)
    got=$(printf '%s' "$findings" | grep -c '')
    if [ "$got" -eq "$want" ]; then
        echo "ok $tests_run - $check_name"
    else
        echo "not ok $tests_run - $check_name"
        echo "# $got findings, wanted $want"
        echo "$findings" | sed 's/^/# /'
    fi
}

skip() {
    tests_run=$((tests_run + 1))
    echo "ok $tests_run - $1 # SKIP $2"
}

finish() {
    echo "1..$tests_run"
}

# files PATTERN FOLDER...: files below $root/FOLDER that match, folders that do not exist left out.
files() {
    pattern=$1
    shift
    for folder in "$@"; do
        [ -e "$root/$folder" ] && find "$root/$folder" -type f -name "$pattern" \
            ! -path '*/.deps/*' ! -path "$root/$folder/build*"
    done | sort
}

# A folder for bad examples, removed at the end.
bad_tree() {
    bad=$(mktemp -d "${TMPDIR:-/tmp}/dedit-lint-XXXXXX") || exit 99
    trap 'rm -rf "$bad"' EXIT
    root=$bad
}
