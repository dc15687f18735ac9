#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-bench generate, tokenize, detokenize: right tokens, streams, errors.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
model=$golden/models/d_qwen3

# The reference's greedy ids, through requests instead of direct evaluation.
greedy() {
    python3 - "$golden" "$bench" "$1" << 'X'
import json, subprocess, sys
golden, bench, name = sys.argv[1:]
for p in json.load(open(f"{golden}/models/{name}.oracle.json"))["prompts"]:
    n = next((i for i, m in enumerate(p["margin"]) if m < 0.02), len(p["greedy"]))
    out = subprocess.run([bench, "generate", "--model", f"{golden}/models/{name}", "--exact", "--ids", "--json", "--ignore-eos",
                          "--max-tokens", "48", " ".join(map(str, p["prompt"]))], capture_output=True, check=True).stdout
    lines = [json.loads(l) for l in out.splitlines()]
    got = [l["token"] for l in lines[:-1]]
    assert got[:n] == p["greedy"][:n], (got, p["greedy"], n)
    end = lines[-1]
    assert end["finish_reason"] == "length" and end["usage"]["completion_tokens"] == 48 == len(got), end
    assert end["usage"]["prompt_tokens"] == len(p["prompt"]), end
X
}
for name in a_llama_tied b_llama_rope3 c_qwen2 d_qwen3 e_odd; do
    ok "greedy ids of $name" greedy $name
done

one() { "$bench" generate --model "$model" --raw --max-tokens 12 --seed 3 --temperature 1 "$@"; }
one 'Hello there' > "$scratch/text" 2> "$scratch/stats"
ok 'one line of statistics' sh -c "[ \$(wc -l < '$scratch/stats') -eq 1 ] && grep -q 'tokens/s' '$scratch/stats' && grep -q 'seed 3;' '$scratch/stats'"
from_stdin() { printf 'Hello there\n' | one > "$scratch/got" 2> /dev/null && cmp "$scratch/text" "$scratch/got"; }
ok 'prompt from standard input' from_stdin
from_dash() { printf 'Hello there' | one - > "$scratch/got" 2> /dev/null && cmp "$scratch/text" "$scratch/got"; }
ok 'prompt from "-"' from_dash
words() { one Hello there > "$scratch/got" 2> /dev/null && cmp "$scratch/text" "$scratch/got"; }
ok 'words of the prompt are joined' words
after() { "$bench" generate Hello there --model "$model" --raw --max-tokens 12 --seed 3 --temperature 1 > "$scratch/got" 2> /dev/null && cmp "$scratch/text" "$scratch/got"; }
ok 'options may follow the prompt' after
json_joined() {
    one --json 'Hello there' 2> /dev/null | python3 -c '
import json, sys
lines = [json.loads(l) for l in sys.stdin]
text = "".join(l["text"] for l in lines)
sys.stdout.buffer.write(text.encode() if text.endswith("\n") else (text + "\n").encode())' > "$scratch/got" && cmp "$scratch/text" "$scratch/got"
}
ok 'JSON pieces join to the text' json_joined
reported_seed() {
    "$bench" generate --model "$model" --raw --max-tokens 8 --temperature 1 x > "$scratch/a" 2> "$scratch/stats" || return 1
    seed=$(sed -n 's/.*seed \([0-9]*\);.*/\1/p' "$scratch/stats")
    "$bench" generate --model "$model" --raw --max-tokens 8 --temperature 1 --seed "$seed" x > "$scratch/b" 2> /dev/null &&
        cmp "$scratch/a" "$scratch/b"
}
ok 'the reported seed gives the text again' reported_seed
chat() { status 0 "$bench" generate --model "$model" --chat-format chatml --max-tokens 4 --system 'Be brief.' 'Hi' && [ -s "$scratch/out" ]; }
ok 'a chat format by name' chat
zero() { status 0 "$bench" generate --model "$model" --raw --max-tokens 0 --json x && grep -q '"finish_reason": "length".*"completion_tokens": 0' "$scratch/out" && [ "$(wc -l < "$scratch/out")" -eq 1 ]; }
ok 'max-tokens 0' zero
stop_id() {
    id=$(one --json 'Hello there' 2> /dev/null | sed -n '3s/.*"token": \([0-9]*\),.*/\1/p')
    one --json --stop-token-ids "$id" 'Hello there' > "$scratch/got" 2> /dev/null
    tail -n 1 "$scratch/got" | grep -q "\"finish_reason\": \"stop\", \"stop_reason\": $id" && [ "$(wc -l < "$scratch/got")" -le 4 ]
}
ok 'a stop token' stop_id
closed() {
    # The reader goes away: one error, no signal.
    { one --ignore-eos --max-tokens 200 x 2> "$scratch/err"; echo $? > "$scratch/code"; } | head -c 1 > /dev/null
    code=$(cat "$scratch/code")
    # All may have been written before head went.
    [ "$code" -eq 0 ] || { [ "$code" -eq 1 ] && grep -q 'standard output' "$scratch/err"; }
}
ok 'a reader that goes away' closed
interrupt() {
    rm -f "$scratch/out" "$scratch/err"
    "$bench" generate --model "$model" --raw --ignore-eos --max-tokens 2000 --threads 1 x > "$scratch/out" 2> "$scratch/err" &
    pid=$!
    i=0
    while [ ! -s "$scratch/out" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
    kill -INT $pid 2> /dev/null
    wait $pid
    code=$?
    # It may have been done by then.
    if [ $code -eq 0 ] || { [ $code -eq 130 ] && grep -q 'finish cancelled' "$scratch/err"; }; then
        return 0
    fi
    echo "status $code"
    cat "$scratch/err"
    return 1
}
ok 'an interrupt ends it with statistics' interrupt

g="generate --model $model --raw"
ok 'no command' error 2 frobnicate 'unknown command "frobnicate"'
ok 'an unknown option' error 2 'generate --frobnicate x' '\--frobnicate is unknown'
ok 'an option without its value' error 2 'generate --model' 'needs a value'
ok 'a number that is none' error 2 "$g --temperature 0,7 x" '\--temperature: "0,7" is not a number'
ok 'temperature out of range' error 1 "$g --temperature -1 x" 'temperature'
ok 'top_p out of range' error 1 "$g --top-p 1.1 x" 'top_p'
ok 'top_k out of range' error 1 "$g --top-k -2 x" 'top_k'
ok 'penalty out of range' error 1 "$g --repetition-penalty 0 x" 'repetition_penalty'
ok 'a bias outside the vocabulary' error 1 "$g --logit-bias 100000=1 x" 'logit_bias'
ok 'a stop id outside the vocabulary' error 1 "$g --stop-token-ids 100000 x" 'stop_token_ids'
ok 'a prompt id outside the vocabulary' error 1 "generate --model $model --ids 100000" 'prompt'
ok 'a prompt id that is none' error 1 "generate --model $model --ids x" 'prompt'
ok 'an empty prompt' error 2 "$g" 'prompt is empty'
ok 'a model that is not there' error 1 'generate --model /nowhere x' '/nowhere'
ok 'a tier that is none' error 2 "$g --tier sse x" '"sse"'
ok 'a KV type that is none' error 2 "$g --kv-dtype f8 x" '"f8"'
ok 'a chat format that is none' error 2 "generate --model $model --chat-format x x" '"x"'
no_template() { error 1 "generate --model $model x" 'chatml'; }
ok 'a model without a template says what to do' no_template
bad_utf8() { printf 'a\377b' | "$bench" generate --model "$model" --raw > "$scratch/out" 2> "$scratch/err"; [ $? -eq 2 ] && grep -q 'not valid UTF-8' "$scratch/err"; }
ok 'bytes that are no UTF-8' bad_utf8
tier_env() { DEDIT_CPU_TIER=sse error 1 "$g x" 'DEDIT_CPU_TIER'; }
ok 'DEDIT_CPU_TIER is checked' tier_env

there_and_back() {
    "$bench" tokenize --model "$qwen3" 'The quick brown fox' > "$scratch/ids" && [ "$(cat "$scratch/ids")" = '785 3974 13876 38835' ] &&
        [ "$("$bench" detokenize --model "$qwen3" < "$scratch/ids")" = 'The quick brown fox' ]
}
ok 'tokenize and detokenize' there_and_back
special() {
    [ "$("$bench" tokenize --model "$qwen3" --special '<|im_end|>')" = 151645 ] &&
        [ "$("$bench" tokenize --model "$qwen3" '<|im_end|>')" = '27 91 318 6213 91 29' ] &&
        [ -z "$("$bench" detokenize --model "$qwen3" --skip-special 151645)" ]
}
ok 'control tokens only when asked for' special
ok 'an id that is none' error 2 "detokenize --model $qwen3 x" '"x"'
finish
