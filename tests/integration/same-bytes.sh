#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One request, the same bytes (ids, text and every digit of the logprobs) on every tier, with any
# number of threads, and in a locale with decimal commas.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"

request() { # MODEL OPTION...
    model=$1
    shift
    # shellcheck disable=SC2086
    "$bench" generate --model "$golden/$model" --ids --json --logprobs 5 --ignore-eos \
        --max-tokens 24 --temperature 0.7 --top-p 0.95 --seed 42 $extra "$@" \
        '5 17 33 101 7 64 255 80 12' 2> "$scratch/stats"
}
same() {
    request "$@" > "$scratch/got" || { cat "$scratch/stats"; return 1; }
    cmp "$scratch/want" "$scratch/got"
}
for model in models/d_qwen3 gguf/a_llama_tied.Q4_0.gguf gguf/k_qwen3.MIX.gguf models/b_llama_rope3 \
    gguf/c_qwen2.F16.gguf; do
    extra=--exact
    request "$model" --tier c --threads 1 > "$scratch/want" || { echo "Bail out! $model: no reference"; exit 1; }
    ok "$model: 25 lines" test "$(wc -l < "$scratch/want")" -eq 25
    for tier in $tiers; do
        for threads in 1 2 3; do
            if has_tier "$tier"; then
                ok "$model: $tier, $threads threads" same "$model" --tier "$tier" --threads "$threads"
            elif [ "$threads" = 1 ]; then
                tests_run=$((tests_run + 1))
                echo "ok $tests_run - $model: $tier # SKIP hardware: this machine cannot run the tier $tier"
            fi
        done
    done
done

# DMN-05
extra=
request models/d_qwen3 > "$scratch/want"
if command -v localedef > /dev/null 2>&1 && localedef -i de_DE -f UTF-8 "$scratch/de_DE.UTF-8" > /dev/null 2>&1; then
    # The locale does have commas:
    comma=$(LC_ALL=de_DE.UTF-8 LOCPATH=$scratch bash -c 'printf "%.1f" 1,5' 2> /dev/null)
    ok 'the locale has decimal commas' test "$comma" = 1,5
    german() {
        LC_ALL=de_DE.UTF-8 LOCPATH=$scratch same models/d_qwen3
    }
    ok 'a locale with decimal commas' german
else
    echo 'Bail out! localedef cannot make de_DE.UTF-8 (Debian package: locales)'
    exit 1
fi
finish
