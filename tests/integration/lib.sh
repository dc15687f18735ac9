# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034
# Sourced by the integration tests: TAP, the program, a scratch folder.
export LC_ALL=C
top=${top_srcdir:-.}
bench=${top_builddir:-.}/bench/dedit-bench
golden=$top/tests/golden
qwen3=${top_builddir:-.}/tests/golden/qwen3-tokenizer/tokenizer.json
tests_run=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# ok NAME COMMAND...: passes when the command does; its output is shown when it does not.
ok() {
    ok_name=$1
    shift
    tests_run=$((tests_run + 1))
    if "$@" > "$scratch/ok.log" 2>&1; then
        echo "ok $tests_run - $ok_name"
    else
        echo "not ok $tests_run - $ok_name"
        tail -n 20 "$scratch/ok.log" | sed 's/^/# /'
    fi
}
finish() { echo "1..$tests_run"; }

# status WANTED COMMAND...: exit status; stdout and stderr are in $scratch/out and $scratch/err.
status() {
    wanted=$1
    shift
    "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
    got=$?
    [ "$got" -eq "$wanted" ] && return 0
    echo "exit status $got, wanted $wanted: $*"
    cat "$scratch/err"
    return 1
}
# A usage or run-time error: this status, one line on stderr that has these words, no output.
error() {
    # shellcheck disable=SC2086 # words
    status "$1" "$bench" $2 || return 1
    [ -s "$scratch/out" ] && echo "there is output" && return 1
    [ "$(wc -l < "$scratch/err")" -eq 1 ] || { cat "$scratch/err"; return 1; }
    grep -q -e "$3" "$scratch/err" || { cat "$scratch/err"; return 1; }
}
tiers='c avx2 avx512 amx'
# Can this machine run the tier?
has_tier() { "$bench" check --tier "$1" --help > /dev/null 2>&1; }
