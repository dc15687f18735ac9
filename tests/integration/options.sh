#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Options = --help = manual, for every command; and every option that --help lists is taken.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
manual=$top/man/dedit-bench.1

helped() { "$bench" "$1" --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' | sort -u; }
# The manual's section of a command, or of the common options.
section() {
    awk -v s="$1" '/^\.S[sh] / { in_it = index($0, s) > 0 } in_it && /^\.It Fl -/ { sub(/^-/, "", $3); print $3 }' "$manual"
}
same_options() {
    helped "$1" | grep -v '^help$' > "$scratch/help"
    case $1 in
        tokenize) section 'tokenize , detokenize' | grep -v '^skip-special$' ;;
        detokenize) section 'tokenize , detokenize' | grep -v -e '^special$' -e '^bos$' ;;
        *)
            section ".Ss $1"
            section 'Options of generate, check, eval, controller and step'
            ;;
    esac | sort -u > "$scratch/manual"
    diff "$scratch/help" "$scratch/manual"
}
# An option that the table lacks is told as unknown; one that is there is not.
taken() {
    helped "$1" | while read -r option; do
        "$bench" "$1" "--$option=" < /dev/null > "$scratch/out" 2>&1
        if grep -q 'is unknown' "$scratch/out"; then
            # A flag with "=" is refused that way, too: without it it must be taken.
            "$bench" "$1" "--$option" --help > "$scratch/out" 2>&1 || { echo "$option"; cat "$scratch/out"; }
        fi
    done > "$scratch/refused"
    [ ! -s "$scratch/refused" ] || { cat "$scratch/refused"; return 1; }
}
for command in generate check eval controller step tokenize detokenize; do
    ok "$command: options in --help and in the manual" same_options $command
    ok "$command: options of --help are taken" taken $command
    ok "$command: --help ends with status 0" status 0 "$bench" $command --help
    ok "$command is in the list of commands" sh -c "'$bench' --help | grep -q '^  $command '"
done
defaults() {
    # An option with a value says its default, or that it may be repeated, or has none.
    "$bench" generate --help | awk '/^  --[a-z-]* [A-Z]/ && !/^  --(stop-token-ids|logprobs|system|stop) / { if (o != "" && !d) print o; o = $1; d = 0 } /default|repeated/ { d = 1 }' > "$scratch/none"
    [ ! -s "$scratch/none" ] || { cat "$scratch/none"; return 1; }
}
ok 'options say their defaults' defaults
ok 'no command: usage, status 2' status 2 "$bench"
ok '--version' sh -c "'$bench' --version | grep -q '^dedit-bench [0-9]'"
if command -v mandoc > /dev/null 2>&1; then
    ok 'mandoc has no warnings' sh -c "[ -z \"\$(mandoc -T lint -W warning '$manual')\" ]"
else
    tests_run=$((tests_run + 1))
    echo "ok $tests_run - mandoc # SKIP mandoc is missing (Debian package: mandoc)"
fi

# The manual's examples, as they stand there.
sed -n 's/^\.Dl \$ \(dedit-bench .*\)/\1/p' "$manual" | sed 's/\\(dq/"/g' > "$scratch/examples"
ok 'the manual has examples' test "$(wc -l < "$scratch/examples")" -ge 4
mkdir "$scratch/bin"
ln -s "$(cd "$(dirname "$bench")" && pwd)/dedit-bench" "$scratch/bin/dedit-bench"
while read -r example <&3; do
    if [ "${example#dedit-bench generate}" != "$example" ] && ! "$bench" tokenize x > /dev/null 2>&1; then
        tests_run=$((tests_run + 1))
        echo "ok $tests_run - example # SKIP the default model is not in the cache: models/fetch"
    else
        ok "example: $example" sh -c "cd '$top' && PATH='$scratch/bin':\$PATH && $example"
    fi
done 3< "$scratch/examples"
finish
