#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-bench check itself: other ways through the engine, and that it can fail.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"

# Any chunking, number of rows, threads; KV types; converted weights.  A few models stand for all.
mkdir -p "$scratch/some/models" "$scratch/some/gguf"
cp -R "$golden"/models/b_llama_rope3* "$golden"/models/d_qwen3* "$scratch/some/models"
cp "$golden"/gguf/k_qwen3.MIX.* "$golden"/gguf/a_llama_tied.Q4_1.* "$scratch/some/gguf"
for options in '--chunk 1' '--chunk 7 --rows 16' '--rows 1' '--rows 33 --threads 3' '--threads 1' \
    '--kv-dtype f16' '--kv-dtype bf16' '--exact' '--max-model-len 200' '--dtype f32'; do
    # shellcheck disable=SC2086 # options are words
    ok "check $options" "$bench" check $options "$scratch/some"
done

# A folder of one's own.
mkdir -p "$scratch/mine/models" "$scratch/mine/train" "$scratch/mine/sampling"
cp -R "$golden"/models/a_llama_tied* "$scratch/mine/models"
cp "$golden"/sampling/* "$scratch/mine/sampling"
chmod -R u+w "$scratch/mine"
mine() {
    status 0 "$bench" check --only models "$scratch/mine" && [ "$(tail -n 1 "$scratch/out")" = '5 passed, 0 failed, 0 skipped' ]
}
ok 'a folder with one model' mine
kinds_told() {
    status 0 "$bench" check "$scratch/mine" && grep -q '^not yet supported kind: train$' "$scratch/out"
}
ok 'kinds without a check are told' kinds_told

oracle=$scratch/mine/models/a_llama_tied.oracle.json
sed 's/"greedy": \[20, /"greedy": [21, /' "$golden/models/a_llama_tied.oracle.json" > "$oracle"
one_fails() {
    status 1 "$bench" check --only models "$scratch/mine" &&
        [ "$(tail -n 1 "$scratch/out")" = "$1 passed, $2 failed, 0 skipped" ] && grep -q "$3" "$scratch/out"
}
ok 'another greedy token fails' sh -c "! cmp -s '$oracle' '$golden/models/a_llama_tied.oracle.json'"
# The first prompt of this model begins its answer with another id.
first=$(sed -n 's/.*"greedy": \[\([0-9]*\),.*/\1/p' "$golden/models/a_llama_tied.oracle.json" | head -n 1)
awk -v a="\"greedy\": [$first," 'BEGIN { b = "\"greedy\": [1," } { i = index($0, a); if (i && !done) { $0 = substr($0, 1, i - 1) b substr($0, i + length(a)); done = 1 } print }' \
    "$golden/models/a_llama_tied.oracle.json" > "$oracle"
ok 'and is counted' one_fails 4 1 '^FAIL models *a_llama_tied/'
echo '{' > "$oracle"
ok 'a broken file fails' one_fails 0 1 'a_llama_tied.oracle.json:'
cp "$golden/models/a_llama_tied.oracle.json" "$oracle"
cp "$golden/models/e_odd.oracle.safetensors" "$scratch/mine/models/a_llama_tied.oracle.safetensors"
ok 'tensors of another model fail' one_fails 0 5 'logits.0'
rm -f "$scratch/mine/models/a_llama_tied.oracle.safetensors"
ok 'missing tensors fail' one_fails 0 1 'a_llama_tied.oracle.safetensors'
sed 's/"temperature": 1.0/"temperature": 1.5/' "$golden/sampling/cases.jsonl" > "$scratch/mine/sampling/cases.jsonl"
sampling_fails() { status 1 "$bench" check --only sampling "$scratch/mine" && grep -q '^FAIL sampling' "$scratch/out"; }
ok 'another distribution fails' sampling_fails

ok 'no folder' error 2 'check' 'no folder is named'
ok 'a folder that is not there' error 1 'check /nowhere' '/nowhere'
ok 'a folder without cases' error 1 "check $scratch" 'no case'
ok 'an unknown kind' error 2 "check --only nothing $golden" '"nothing"'
skips() {
    HOME=$scratch XDG_CACHE_HOME='' status 0 "$bench" check --only smollm2 "$golden" &&
        grep -q '^SKIP smollm2 .*models/fetch' "$scratch/out"
}
if [ -e /var/lib/dedit/models/SmolLM2-135M-Instruct.Q4_1.gguf ]; then
    ok 'the model for all users is found' status 0 env HOME="$scratch" "$bench" tokenize x
else
    ok 'without the default model its cases are skipped' skips
fi
finish
