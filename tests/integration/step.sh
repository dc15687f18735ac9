#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-bench step on small models: tables and CSV have what they should; no figure is judged here.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
small="--random smollm2-135m --layers 1 --repetitions 6"

table() {
    # shellcheck disable=SC2086
    status 0 "$bench" step $small --rows 1,3,8 --context 16,40 --csv "$scratch/csv" "$@" || return 1
    grep -q '^machine peaks' "$scratch/out" || { cat "$scratch/out"; return 1; }
    [ "$(grep -c '^context' "$scratch/out")" -eq 2 ] && [ "$(wc -l < "$scratch/csv")" -eq 7 ] || return 1
    python3 - "$scratch/csv" << 'X'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert [(r["context"], r["rows"]) for r in rows] == [(c, n) for c in ("16", "40") for n in ("1", "3", "8")], rows
for r in rows:
    assert float(r["ms_lo"]) <= float(r["ms"]) <= float(r["ms_hi"]), r
    assert float(r["floor_ms"]) > 0 and float(r["share"]) > 0, r
    assert r["rows"] != "1" or float(r["ratio"]) == 1, r
X
}
for type in F32 F16 bf16 Q8_0 q4_0 Q4_1 Q5_0 Q5_1; do
    ok "random weights in $type" table --dtype $type
done
for type in Q4_K Q5_K Q6_K; do
    k_type() {
        status 0 "$bench" step --random qwen3-0.6b --layers 1 --dtype "$type" --rows 1 --context 16 --repetitions 6
    }
    ok "random weights in $type" k_type
done
for tier in $tiers; do
    if has_tier "$tier"; then
        ok "tier $tier" table --tier "$tier" --threads 2
    else
        tests_run=$((tests_run + 1))
        echo "ok $tests_run - tier $tier # SKIP hardware: this machine cannot run the tier $tier"
    fi
done
given() { status 0 "$bench" step --model "$golden/models/d_qwen3" --rows 1,2 --context 16 --repetitions 6 --dtype bf16 --kv-dtype f16; }
ok 'a model by path, converted' given
# shellcheck disable=SC2086
prefill() { status 0 "$bench" step $small --prefill 40 --csv "$scratch/csv" && grep -q '^prefill of 40 tokens' "$scratch/out" && [ "$(wc -l < "$scratch/csv")" -eq 2 ]; }
ok 'prefill' prefill
# shellcheck disable=SC2086
rest() { status 0 "$bench" step $small --rest --context 16,32 --csv "$scratch/csv" && [ "$(wc -l < "$scratch/csv")" -eq 3 ]; }
ok 'the rest of a step' rest
load() { status 0 "$bench" step --model "$golden/models/d_qwen3" --load && grep -q '^vocabulary' "$scratch/out" && grep -q '^resident' "$scratch/out"; }
ok 'loading' load

ok 'a shape that is none' error 1 'step --random gpt5' '"gpt5"'
ok 'a type that is none' error 2 'step --random smollm2-135m --dtype Q9' '"Q9"'
ok 'rows that do not fit the blocks' error 1 'step --random smollm2-135m --dtype Q6_K' '576'
ok 'no rows' error 2 'step --rows 0' '\--rows: "0"'
ok 'rows that are no list' error 2 'step --rows 1,,2' '\--rows'
ok 'two models' error 2 'step --random smollm2-135m --model x' 'exclude'
ok 'loading no file' error 2 'step --random smollm2-135m --load' '\--load'
ok 'two measurements' error 2 'step --load --rest' 'exclude'
ok 'an argument' error 2 'step x' '"x"'
ok 'a CSV file that cannot be' error 1 "step $small --csv /nowhere/x" '/nowhere/x'
own_model() {
    cp -r "$golden/models/d_qwen3" "$scratch/m" && chmod -R u+w "$scratch/m" && before=$(cat "$scratch"/m/* | cksum) || return 1
    for to in config.json model.safetensors; do
        status 1 "$bench" step --model "$scratch/m" --rows 1 --repetitions 6 --csv "$scratch/m/$to" && grep -q -e "--csv: .*$to is what is read" "$scratch/err" || return 1
    done
    [ "$before" = "$(cat "$scratch"/m/* | cksum)" ]
}
ok 'not over the model' own_model
finish
