#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-client against a private daemon: answers, batches, errors, exit codes, help and manual.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
client=${top_builddir:-.}/client/dedit-client
daemon=${top_builddir:-.}/daemon/dedit-d
model=$golden/models/a_llama_tied
export DEDIT_SOCKET="$scratch/s" XDG_STATE_HOME="$scratch/state" XDG_CACHE_HOME="$scratch/cache"

: > "$scratch/conf"
"$daemon" --socket "$scratch/s" --config "$scratch/conf" --threads 1 --model "$model" 2> "$scratch/log" &
pid=$!
trap 'kill $pid 2> /dev/null; rm -rf "$scratch"' EXIT
tries=0
until "$client" ping > /dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -ge 400 ] || ! kill -0 $pid 2> /dev/null; then break; fi
    sleep 0.05
done

# fails STATUS WORDS COMMAND...
fails() {
    want=$1
    words=$2
    shift 2
    status "$want" "$@" || return 1
    [ "$(wc -l < "$scratch/err")" -eq 1 ] && grep -q -e "$words" "$scratch/err"
}
ask() { "$client" generate --raw --temperature 0 --max-tokens 12 --ignore-eos "$@"; }
# The engine by itself gives the same text.
same() {
    "$bench" generate --model "$model" --raw --temperature 0 --max-tokens 12 --ignore-eos 'Hello there' > "$scratch/want" 2> /dev/null || return 1
    ask 'Hello there' > "$scratch/got" 2> /dev/null && cmp "$scratch/want" "$scratch/got"
}
ok 'the daemon gives the bytes of the engine' same
stdin_is_prompt() { printf 'Hello there' | ask > "$scratch/got" 2> /dev/null && cmp "$scratch/want" "$scratch/got"; }
ok 'prompt from standard input' stdin_is_prompt
file_is_prompt() {
    printf 'Hello there' > "$scratch/prompt"
    ask --file "$scratch/prompt" > "$scratch/got" 2> /dev/null && cmp "$scratch/want" "$scratch/got"
}
ok 'prompt from a file' file_is_prompt
stats_line() { ask hi 2>&1 > /dev/null | grep -q 'prompt tokens, first token after .* ms, 12 tokens, .* tokens/s'; }
ok 'one line of statistics' stats_line
quiet() { [ -z "$(ask --quiet hi 2>&1 > /dev/null)" ]; }
ok 'quiet' quiet
# Drafts of a repetitive prompt are right often; the daemon has said what it used.
compare() {
    "$client" generate --raw --method ngram --temperature 0 --ignore-eos -n 60 --compare 'a b a b a b a b' > "$scratch/got" 2> "$scratch/err" &&
        "$client" generate --raw --method ar --temperature 0 --ignore-eos -n 60 --quiet 'a b a b a b a b' | cmp - "$scratch/got" &&
        grep -q -x 'drafted: .* tokens/s, ngram, drafts in [0-9]* of [0-9]* rounds, acceptance length .*' "$scratch/err" && grep -q -x 'plain: .* tokens/s, ar' "$scratch/err" &&
        grep -q -x '.* times as fast, the same 60 tokens' "$scratch/err" &&
        "$client" generate --raw --method ngram --temperature 1 --ignore-eos -n 30 --compare --json 'a b a b' | tail -n 1 | python3 -c '
import json, sys
j = json.load(sys.stdin)
a, b = j["drafted"], j["plain"]
assert j["event"] == "compared" and j["same"] is True and a["seed"] == b["seed"] and b["method"] == "ar", j
assert a["completion_tokens"] == b["completion_tokens"] == 30 and j["speedup"] > 0, j
' && status 2 "$client" generate --compare --method ar x && status 2 "$client" generate --compare --trace x &&
        status 2 "$client" generate --compare --verification rejection x && status 4 "$client" generate --raw --compare --method dflash x
}
ok 'plain and drafted answers compared' compare
# How many rounds had a draft, as the rounds themselves say; and one token is no tokens.
drafted_rounds() {
    "$client" generate --raw --method ngram --temperature 0 --ignore-eos -n 60 --trace-json "$scratch/rounds" 'a b a b a b a b' 2> "$scratch/err" > /dev/null &&
        python3 - "$scratch/rounds" "$scratch/err" << 'X' || return 1
import json, re, sys
rounds = [r for r in map(json.loads, open(sys.argv[1])) if "round" in r]
rounds = [r for r in rounds if r["at"] > 0]  # the first is the prompt's
n, of = re.search(r"ngram, drafts in (\d+) of (\d+) rounds, acceptance length [0-9.]+, length$", open(sys.argv[2]).read().strip()).groups()
assert int(n) == sum(1 for r in rounds if r["nodes"]) and int(of) == len(rounds), (n, of, len(rounds))
X
    "$client" generate --raw -t 0 --ignore-eos -n 1 --compare x 2> "$scratch/err" > /dev/null && grep -q 'the same 1 token$' "$scratch/err" &&
        ask -n 1 hi 2>&1 > /dev/null | grep -q ' ms, 1 token, '
}
ok 'the share of drafted rounds; one token' drafted_rounds
full() {
    for form in --quiet --compare --trace --json; do
        "$client" generate --raw -t 0 -n 4 $form x > /dev/full 2> "$scratch/err" && return 1
        grep -q 'standard output' "$scratch/err" || return 1
    done
}
ok 'generate: an answer that cannot be written is no success' full
# What says how to draft is not for the plain answer.
compare_drafting() {
    "$client" generate --raw --method ngram --window 4 --no-noise -n 12 --temperature 0 --ignore-eos --compare --quiet 'a b a b a b' > /dev/null || return 1
    for o in '--window 8' '--passes 3' '--tree-budget 20' '--edit-visibility causal'; do
        # shellcheck disable=SC2086 # an option and its value
        "$client" generate --raw --method auto $o -n 12 --temperature 0 --ignore-eos --compare --quiet 'a b a b a b' > /dev/null || return 1
    done
}
ok 'answers compared with options of drafting' compare_drafting
as_json() { ask --json hi | python3 -c '
import json, sys
lines = [json.loads(l) for l in sys.stdin]
assert lines[-1]["event"] == "finished" and lines[-1]["usage"]["completion_tokens"] == 12, lines[-1]
assert sum(len(l["tokens"]) for l in lines[:-1]) == 12
'; }
ok 'JSON' as_json
logprobs() { ask --json --logprobs 3 hi | python3 -c '
import json, sys
for l in sys.stdin:
    for t in json.loads(l).get("tokens", []):
        assert len(t["alternatives"]) == 3 and t["logprob"] <= 0, t
        assert t["alternatives"][0]["logprob"] >= t["alternatives"][1]["logprob"]
'; }
ok 'log-probabilities' logprobs
no_logprobs() {
    for o in 'generate --raw x' 'chat --json' 'batch --json /dev/null'; do
        # shellcheck disable=SC2086 # words
        status 2 "$client" $o --logprobs 3 && cat "$scratch/out" "$scratch/err" | grep -q -e '--logprobs: generate --json alone' || return 1
    done
}
ok 'log-probabilities are refused where nothing prints them' no_logprobs

batch() {
    python3 - "$scratch/in" << 'X'
import json, sys
with open(sys.argv[1], "w") as f:
    for i in range(40):
        f.write(json.dumps({"id": i, "prompt": "number %d" % i, "max_tokens": 6, "seed": i}) + "\n")
    f.write("nonsense\n" + json.dumps({"id": "last", "prompt": 7}) + "\n")
X
    "$client" batch --raw --parallel 7 "$scratch/in" > "$scratch/out1" 2> /dev/null
    [ $? -eq 1 ] || return 1
    "$client" batch --raw --parallel 1 "$scratch/in" > "$scratch/out2" 2> /dev/null
    python3 - "$scratch/out1" "$scratch/out2" << 'X'
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:])
assert len(a) == len(b) == 42, (len(a), len(b))
for i, (x, y) in enumerate(zip(a, b)):
    assert x["line"] == y["line"] == i + 1
    assert x.get("text") == y.get("text"), (x, y)
    assert x.get("id", i) == (i if i < 40 else "last" if i == 41 else i)
assert a[40]["error"]["code"] == "bad-format" and a[41]["error"]["code"] == "invalid-argument"
X
}
ok 'a batch in the order of its lines, the same one by one' batch
batch_values() {
    for v in '"max_tokens": -1' '"max_tokens": 1.5' '"max_tokens": "4"' '"temperature": "hot"' '"seed": -1' '"seed": 0.5' \
        '"top_p": "x"' '"method": 3' '"stop": 7' '"stop": ["a", 1]'; do
        printf '{"prompt": "hi", %s}\n' "$v"
    done > "$scratch/values"
    # What can be read is obeyed: a wrong method is the daemon's to refuse, and text ends before a stop string.
    cat >> "$scratch/values" << 'X'
{"prompt": "hi", "max_tokens": 3, "temperature": null, "seed": null, "note": []}
{"prompt": "hi", "method": "magic"}
{"prompt": "hi", "max_tokens": 9, "temperature": 0, "top_p": 0.5, "method": "ngram"}
X
    "$client" batch --raw --quiet --ignore-eos "$scratch/values" > "$scratch/out"
    [ $? -eq 1 ] || return 1
    python3 - "$scratch/out" << 'X'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
names = ["max_tokens"] * 3 + ["temperature", "seed", "seed", "top_p", "method", "stop", "stop"]
assert len(lines) == 13, lines
for l, name in zip(lines, names):
    assert l["error"]["code"] == "invalid-argument" and l["error"]["message"].startswith(name), l
assert lines[10]["usage"]["completion_tokens"] == 3, lines[10]
assert "magic" in lines[11]["error"]["message"], lines[11]
text = lines[12]["text"]
assert lines[12]["usage"]["completion_tokens"] == 9 and len(text) > 3, lines[12]
json.dump({"prompt": "hi", "max_tokens": 9, "temperature": 0, "stop": [text[2:4], "\u0001"]}, open(sys.argv[1] + ".stop", "w"))
X
    "$client" batch --raw --quiet --ignore-eos "$scratch/out.stop" > "$scratch/out2" || return 1
    grep -q '"finish_reason": *"stop"' "$scratch/out2"
}
ok 'a batch refuses values that it cannot read, and obeys the others' batch_values
# A folder opens like a file; nothing is begun with one.
batch_of_a_folder() {
    mkdir -p "$scratch/folder" && rm -f "$scratch/none" || return 1
    fails 1 "^dedit-client: $scratch/folder: is a directory, not a file$" "$client" batch --raw "$scratch/folder" &&
        fails 1 'folder: is a directory' "$client" batch --raw --output "$scratch/none" "$scratch/folder" && [ ! -e "$scratch/none" ] || return 1
    "$client" batch --raw < "$scratch/folder" 2> "$scratch/err" && return 1
    grep -q -x 'dedit-client: standard input: is a directory, not a file' "$scratch/err" || return 1
    for command in 'generate --file' trace-html; do
        # shellcheck disable=SC2086 # words
        fails 1 "$scratch/folder: is a directory, not a file" "$client" $command "$scratch/folder" || return 1
    done
    for command in generate chat; do
        "$client" $command < "$scratch/folder" 2> "$scratch/err" && return 1
        grep -q -x 'dedit-client: standard input: Is a directory' "$scratch/err" || return 1
    done
}
ok 'a folder is no input' batch_of_a_folder
# What other programs put into JSON: told in words; the other lines are done.
batch_strange() {
    printf '\357\273\277{"prompt": "hi"}\n{"prompt": "a\\u0000b"}\n{"messages": [{"role": "user", "content": "\\u0000"}]}\n{"a\\u0000": 1, "prompt": "hi"}\n{"prompt": "hi"}\n' > "$scratch/strange"
    status 1 "$client" batch --raw --quiet -n 2 "$scratch/strange" && [ "$(wc -l < "$scratch/out")" -eq 5 ] &&
        sed -n 1p "$scratch/out" | grep -q '"message":"the line begins with a byte order mark (EF BB BF), which JSON has not"' &&
        [ "$(sed -n 2,4p "$scratch/out" | grep -c -F '"message":"a string has \\u0000, which no request can hold"')" -eq 3 ] && sed -n 5p "$scratch/out" | grep -q '"text":' || return 1
    # A trace may hold any token.
    printf '{"trace":1,"model":"m","method":"ar","prompt":"\\u0000"}\n' > "$scratch/strange" && "$client" trace-html "$scratch/strange" > "$scratch/out" && grep -q -F '\u0000' "$scratch/out"
}
ok 'byte order marks and NULs in JSON' batch_strange
resume() {
    head -n 17 "$scratch/out1" > "$scratch/part"
    printf '{"line":18,"te' >> "$scratch/part"
    "$client" batch --raw --output "$scratch/part" --quiet "$scratch/in"
    [ $? -eq 1 ] || return 1
    python3 - "$scratch/out1" "$scratch/part" << 'X'
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:])
assert [x.get("text") for x in a] == [x.get("text") for x in b]
X
}
ok 'a batch goes on after its last whole line' resume
# What is no result of a batch is not gone on with, and keeps its last line.
not_a_result() {
    for text in 'a note\nwithout an end' 'torn' '{"line":2,"text":"x"}\n' '{"line":1,"text":"x"}\n{"line":1,"text":"x"}\n' '[1]\n'; do
        printf '%b' "$text" > "$scratch/note" && cp "$scratch/note" "$scratch/copy"
        status 1 "$client" batch --raw --output "$scratch/note" --quiet "$scratch/in" && grep -q 'note:[12] is not result [12] of a batch' "$scratch/err" &&
            cmp "$scratch/note" "$scratch/copy" || return 1
    done
}
ok 'a batch leaves a file alone that is not its own' not_a_result
# A text may hold what not every reader of JSON takes.
goes_on_behind() {
    printf '%s\n' '{"line":1,"text":"\u0000"}' > "$scratch/nul"
    "$client" batch --raw --output "$scratch/nul" --quiet "$scratch/in"
    [ $? -eq 1 ] && [ "$(wc -l < "$scratch/nul")" -eq "$(wc -l < "$scratch/out1")" ] && sed -n 2p "$scratch/nul" | grep -q '^{"line":2,'
}
ok 'a batch goes on behind a NUL' goes_on_behind
# A result knows its line, whatever stands around it; another input is told, and nothing is lost.
another_input() {
    cp "$scratch/out1" "$scratch/kept"
    want=$(sed -n 3p "$scratch/in" | tr -d '\n' | sha256sum | cut -c 1-16)
    sed -n 3p "$scratch/kept" | grep -q "^{\"line\":3,\"request\":\"$want\"," || return 1
    head -n 20 "$scratch/out1" > "$scratch/begun" && printf '{"line":21,"te' >> "$scratch/begun" && cp "$scratch/begun" "$scratch/copy"
    { head -n 4 "$scratch/in" && echo '{"prompt": "another"}' && tail -n +6 "$scratch/in"; } > "$scratch/in2"
    fails 1 'begun:5 answers another request than number 5 of .*in2: .* left as it is' "$client" batch --raw --output "$scratch/begun" "$scratch/in2" &&
        cmp "$scratch/begun" "$scratch/copy" || return 1
    head -n 12 "$scratch/in" > "$scratch/in3"
    fails 1 'begun has 20 results, and .*in3 has 12 requests' "$client" batch --raw --output "$scratch/begun" "$scratch/in3" && cmp "$scratch/begun" "$scratch/copy" &&
        ! "$client" batch --raw --output "$scratch/begun" - < "$scratch/in3" 2> "$scratch/err" && grep -q 'standard input has 12' "$scratch/err" || return 1
    # Blanks and empty lines are no other request; lines that follow are new ones.
    sed 's/^/  /; s/$/ \n/' "$scratch/in" > "$scratch/in4" && echo '{"prompt": "one more", "max_tokens": 2}' >> "$scratch/in4"
    "$client" batch --raw --quiet --output "$scratch/begun" "$scratch/in4"
    [ $? -eq 1 ] && [ "$(wc -l < "$scratch/begun")" -eq 43 ]
}
ok 'a batch goes on with its own input only' another_input
# Two of them would write each result twice.
two_writers() {
    : > "$scratch/one"
    flock "$scratch/one" "$client" batch --raw --output "$scratch/one" "$scratch/in" 2> "$scratch/err" && return 1
    [ "$(cat "$scratch/err")" = "dedit-client: --output: $scratch/one: another dedit-client batch is writing there" ] && [ ! -s "$scratch/one" ] || return 1
    for i in $(seq 30); do printf '{"prompt": "line %d", "max_tokens": 40, "seed": 1}\n' "$i"; done > "$scratch/many"
    "$client" batch --raw --ignore-eos --quiet --output "$scratch/one" "$scratch/many" 2> "$scratch/err1" &
    a=$!
    "$client" batch --raw --ignore-eos --quiet --output "$scratch/one" "$scratch/many" 2> "$scratch/err2" &
    b=$!
    wait $a
    ra=$?
    wait $b
    [ "$ra$?" != 11 ] && [ "$(wc -l < "$scratch/one")" -eq 30 ] && [ "$(cut -d , -f 1 "$scratch/one" | sort -u | wc -l)" -eq 30 ]
}
ok 'a batch has its output for itself' two_writers
# What has failed is not asked again, and still counts.
failed_before() {
    printf '{"prompt": "hi", "max_tokens": 2}\n{"prompt": 3}\n{"prompt": "ho", "max_tokens": 2}\n' > "$scratch/in"
    rm -f "$scratch/one"
    status 1 "$client" batch --raw --output "$scratch/one" "$scratch/in" && cp "$scratch/one" "$scratch/want" || return 1
    status 1 "$client" batch --raw --output "$scratch/one" "$scratch/in" && cmp -s "$scratch/one" "$scratch/want" &&
        grep -q '^3 lines are done already$' "$scratch/err" && grep -q '^1 of them with an error$' "$scratch/err"
}
ok 'a batch that is run again remembers what failed' failed_before
# Seeds have 64 bits everywhere, and no sign.
seeds() {
    for seed in 0 9223372036854775807 9223372036854775808 18446744073709551615; do
        ask --seed $seed --json -n 2 hi | grep -q "\"seed\":${seed}[,}]" || return 1
        printf '{"id": {"seed": -1}, "note": {"seed": 3}, "prompt": "hi", "max_tokens": 2, "seed" : %s }\n' $seed | "$client" batch --raw > "$scratch/got" || return 1
        grep -q "\"id\":{\"seed\":-1}" "$scratch/got" && grep -q "\"usage\":{.*\"seed\":$seed," "$scratch/got" || return 1
        "$client" generate --raw --temperature 1 --seed $seed -n 8 --quiet hi > "$scratch/want1" && printf '{"prompt": "hi", "max_tokens": 8, "seed": %s}\n' $seed |
            "$client" batch --raw | python3 -c 'import json,sys; sys.stdout.write(json.load(sys.stdin)["text"] + "\n")' > "$scratch/got1" && cmp "$scratch/want1" "$scratch/got1" || return 1
        "$client" generate --raw --seed $seed -n 2 --quiet --trace-json "$scratch/seeds" hi > /dev/null && grep -q "\"seed\":${seed}[,}]" "$scratch/seeds" &&
            "$client" trace-html "$scratch/seeds" | grep -q "\"seed\":${seed}[,}]" || return 1
    done
    status 2 "$client" generate --seed 18446744073709551616 hi && grep -q -e '--seed: .* is not a whole number from 0 to 18446744073709551615' "$scratch/err" &&
        ! printf '{"prompt": "hi", "seed": -1}\n' | "$client" batch --raw > "$scratch/got" && grep -q 'seed must be a whole number from 0 to 18446744073709551615' "$scratch/got" &&
        ! printf '{"prompt": "hi", "seed": %s}\n' 18446744073709551616 340282366920938463463374607431768211456 | "$client" batch --raw > "$scratch/got" &&
        [ "$(grep -c '"invalid-argument","message":"seed must be a whole number from 0 to 18446744073709551615"' "$scratch/got")" -eq 2 ]
}
ok 'seeds of 64 bits' seeds
# The command line's drafting is for the lines that it fits; what a line asks for itself must fit.
drafting_of_lines() {
    printf '{"prompt": "a b a b", "max_tokens": 4, "method": "%s"}\n' ar ngram auto ar > "$scratch/lines"
    "$client" batch --raw --window 4 --passes 2 --tree-budget 8 --edit-visibility causal --verification rejection "$scratch/lines" > "$scratch/got" || { cat "$scratch/got"; return 1; }
    "$client" batch --raw --method ar --window 4 "$scratch/lines" > /dev/null || return 1
    # shellcheck disable=SC2016
    printf '%s\n' '{"prompt": "x", "method": "ar", "window": 4}' '{"prompt": "x", "method": "ngram", "passes": 2}' '{"prompt": "x", "window": 1.5}' \
        '{"prompt": "x", "max_tokens": 2, "method": "ngram", "window": 3}' '{"prompt": "x", "max_tokens": 2}' > "$scratch/lines"
    "$client" batch --raw --method ar "$scratch/lines" > "$scratch/got" && return 1
    [ "$(grep -c '"error"' "$scratch/got")" -eq 3 ] && sed -n 1p "$scratch/got" | grep -q 'ar drafts nothing' && sed -n 2p "$scratch/got" | grep -q 'ngram has no edit passes' &&
        sed -n 3p "$scratch/got" | grep -q 'whole numbers from 1' || return 1
    # What the command line says for all lines is the daemon's to refuse.
    ! echo '{"prompt": "x"}' | "$client" batch --raw --method ar --window 4 > "$scratch/got" && grep -q 'ar drafts nothing' "$scratch/got"
}
ok 'drafting of a batch is for the lines that it fits' drafting_of_lines
prompt_or_messages() {
    ! echo '{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}' | "$client" batch --raw > "$scratch/got" &&
        grep -q '"code":"invalid-argument","message":"a line has \\"prompt\\" or \\"messages\\", not both"' "$scratch/got" &&
        echo '{"prompt": null, "messages": [{"role": "user", "content": "y"}], "max_tokens": 2}' | "$client" batch --chat-format chatml > "$scratch/got"
}
ok 'a line of a batch has prompt or messages' prompt_or_messages
tokens() {
    ids=$("$client" tokenize 'hello there') || return 1
    # shellcheck disable=SC2086 # one id a word
    [ "$("$client" detokenize $ids)" = 'hello there' ]
}
ok 'tokenize and detokenize' tokens
chat() {
    printf 'hi\n/show\n/undo\n/show\n/nonsense\n/quit\n' | "$client" chat --chat-format chatml --max-tokens 4 --quiet > "$scratch/got" || return 1
    grep -q '^user: hi' "$scratch/got" && grep -q '^assistant: ' "$scratch/got" && grep -q '/nonsense: unknown' "$scratch/got" &&
        [ "$(grep -c '^user: hi' "$scratch/got")" -eq 1 ]
}
ok 'chat' chat
models() { "$client" models | grep -q '^a_llama_tied .*ready.*(default)' && "$client" models --json | python3 -c 'import json,sys; m = json.load(sys.stdin); assert m["state"] == "ready" and m["vocab_size"] == 320'; }
ok 'models' models
unload() { "$client" unload a_llama_tied && "$client" models | grep -q unloaded && "$client" load a_llama_tied && same; }
ok 'unload and load' unload
stats() { "$client" stats | grep -q 'requests running 0' && "$client" stats --prometheus | grep -q '^dedit_generation_tokens_total' && "$client" stats --json | python3 -c 'import json,sys; assert json.load(sys.stdin)["dedit_connections"] >= 1'; }
ok 'stats' stats
drafting() {
    "$client" generate --raw --quiet --method ngram --temperature 0 --ignore-eos -n 60 'a b a b a b a b' > /dev/null &&
        "$client" stats | grep -q -x 'drafting: [0-9]* rounds, acceptance length [0-9.]*'
}
ok 'stats: how drafting does' drafting
ping() { "$client" ping --count 20 | grep -q '^ready, up'; }
ok 'ping' ping
store() {
    "$client" add --store "$scratch/store" --name tiny "$model" > /dev/null && [ -f "$scratch/store/tiny/config.json" ] &&
        status 1 "$client" add --store "$scratch/store" --name tiny "$model" && grep -q 'exists already' "$scratch/err" &&
        status 1 "$client" add --store "$scratch/store" "$top/README.md" && grep -q 'neither a GGUF' "$scratch/err" &&
        "$client" rm --store "$scratch/store" tiny && [ ! -e "$scratch/store/tiny" ] &&
        status 2 "$client" rm --store "$scratch/store" ../x
}
hashed() {
    "$client" add --store "$scratch/store" --name tiny "$model" > "$scratch/got" && (cd "$scratch/store" && sha256sum -c tiny.sha256) &&
        [ "$(wc -l < "$scratch/store/tiny.sha256")" -eq "$(find "$model" -type f | wc -l)" ] &&
        grep -q -x -F -f "$scratch/store/tiny.sha256" "$scratch/got" &&
        "$client" rm --json --store "$scratch/store" tiny | grep -q -x '{"ok":true,"removed":\["tiny"\],"kept":\[\]}' && [ -z "$(ls "$scratch/store")" ] || return 1
    # Sums of all lengths around a block: files of a folder beside its model.
    cp -r "$model" "$scratch/lengths" && for n in 0 1 54 55 56 57 63 64 65 119 120 121 128 1048576 1048577; do head -c $n /dev/zero > "$scratch/lengths/$n"; done
    "$client" add --json --store "$scratch/store" "$scratch/lengths/" | python3 -c 'import json,sys; j = json.load(sys.stdin); assert j["name"] == "lengths" and j["sha256"] is None and len(j["files"]) > 15, j' &&
        (cd "$scratch/store" && sha256sum -c --quiet lengths.sha256)
}
ok 'add: sums that sha256sum checks' hashed
# What the daemon would refuse does not get into the store; nothing of it is left there.
checked() {
    rm -rf "$scratch/store"
    cp -r "$model" "$scratch/broken" && weights=$(find "$scratch/broken" -name '*.safetensors' | head -n 1) &&
        head -c 5000 "$weights" > "$scratch/cut" && mv "$scratch/cut" "$weights" || return 1
    status 1 "$client" add --store "$scratch/store" "$scratch/broken" && grep -q safetensors "$scratch/err" &&
        printf 'GGUF and no more' > "$scratch/x.gguf" && status 1 "$client" add --store "$scratch/store" "$scratch/x.gguf" &&
        grep -q 'x.gguf' "$scratch/err" && [ -z "$(ls "$scratch/store" 2> /dev/null)" ]
}
ok 'add: broken models are refused' checked
in_store() { (cd "$scratch/store" && find . -mindepth 1 -maxdepth 1 | sed 's|^./||' | sort | paste -s -d ' '); }
# One file: its sum alone; every sum by its name.
sum_json() {
    rm -rf "$scratch/store" && cp "$golden/gguf/a_llama_tied.Q8_0.gguf" "$scratch/one.gguf" && hash=$(sha256sum < "$scratch/one.gguf") || return 1
    "$client" add --json --store "$scratch/store" "$scratch/one.gguf" | python3 -c '
import json, sys
j = json.load(sys.stdin)
assert j["sha256"] == sys.argv[1] and j["files"] == {"one.gguf": sys.argv[1]}, j
' "${hash%% *}" && [ "$(in_store)" = 'one.gguf one.gguf.sha256' ]
}
ok 'add: the sum in JSON' sum_json
# Nothing that is in the store is taken over, and a model is there with its sums or not at all.
not_its_own() {
    rm -rf "$scratch/store" && mkdir -p "$scratch/store/m.gguf.sha256" && echo mine > "$scratch/store/one.gguf.part" || return 1
    status 1 "$client" add --store "$scratch/store" --name m.gguf "$scratch/one.gguf" && grep -q 'm.gguf.sha256: exists already' "$scratch/err" &&
        [ ! -e "$scratch/store/m.gguf" ] && status 0 "$client" add --store "$scratch/store" "$scratch/one.gguf" &&
        [ "$(cat "$scratch/store/one.gguf.part")" = mine ] || return 1
    # What a run that was killed left is removed; what somebody else holds is not touched.
    mkdir -p "$scratch/store/.tiny.adding/tiny" && echo old > "$scratch/store/.tiny.adding/tiny/old" || return 1
    flock "$scratch/store/.tiny.adding" "$client" add --store "$scratch/store" --name tiny "$model" 2> "$scratch/err" && return 1
    grep -q 'store/tiny: another dedit-client is adding or removing it' "$scratch/err" && [ -e "$scratch/store/.tiny.adding/tiny/old" ] &&
        status 0 "$client" add --store "$scratch/store" --name tiny "$model" && [ ! -e "$scratch/store/tiny/old" ] && [ ! -e "$scratch/store/.tiny.adding" ]
}
ok 'add: what is not its own stays' not_its_own
# Many adds of one name: one of them, whole.
concurrent() {
    rm -rf "$scratch/store" "$scratch/added"
    for i in 1 2 3 4 5 6; do
        ("$client" add --store "$scratch/store" --name tiny "$model" 2> /dev/null && echo "$i" >> "$scratch/added") &
        adders="$adders $!"
    done > /dev/null
    # shellcheck disable=SC2086 # words
    wait $adders
    [ "$(wc -l < "$scratch/added")" -eq 1 ] && (cd "$scratch/store" && sha256sum -c --quiet tiny.sha256) && [ "$(in_store)" = 'tiny tiny.sha256' ]
}
adders=
ok 'add: several of one name' concurrent
names() {
    for name in "$(printf 'two\nlines')" "$(printf 'a\tb')" .x a/b x.sha256 x.drafter x.drafter.gguf "$(printf '\377')" "$(printf '%0200d' 0)"; do
        status 2 "$client" add --store "$scratch/none" --name "$name" "$model" && grep -q -e '--name: ' "$scratch/err" || return 1
    done
    [ ! -e "$scratch/none" ]
}
ok 'add: names' names
# A drafter goes beside its model, against which it is checked.
drafters() {
    rm -rf "$scratch/store" && d=$golden/drafter && set -- "$client" add --store "$scratch/store" || return 1
    status 2 "$@" "$d/fitted" && grep -q 'must be MODEL.drafter: ' "$scratch/err" || return 1
    status 2 "$@" --name t.gguf.drafter "$d/fitted" && grep -q 'that of x.gguf is x.drafter' "$scratch/err" || return 1
    status 1 "$@" --name t.drafter "$d/fitted" && grep -q 'is a drafter: its model, "t.gguf" or "t", is not in' "$scratch/err" || return 1
    status 0 "$@" --name t "$d/target" && status 0 "$@" --name t.drafter "$d/fitted" && (cd "$scratch/store" && sha256sum -c --quiet t.drafter.sha256) || return 1
    "$@" --name tiny "$model" > /dev/null && status 1 "$@" --name tiny.drafter "$d/fitted" && grep -q 'a drafter of another model' "$scratch/err" || return 1
    "$client" load --path "$scratch/store/t" t && "$client" models t | grep -q drafter && "$client" unload t && "$client" rm --store "$scratch/store" t.drafter &&
        rm -r "$scratch/store"
}
ok 'add: drafters' drafters
# A model goes with its sums and the drafter that only it has; sums do not go alone.
removes() {
    rm -rf "$scratch/store" && d=$golden/drafter && set -- "$client" add --store "$scratch/store" && rm="$client rm --store $scratch/store" || return 1
    "$@" --name t "$d/target" > /dev/null && "$@" --name t.drafter "$d/fitted" > /dev/null || return 1
    # shellcheck disable=SC2086 # words
    fails 2 't.sha256 has the sums of t; "rm t" removes both' $rm t.sha256 && [ "$(in_store)" = 't t.drafter t.drafter.sha256 t.sha256' ] &&
        status 0 $rm t && [ -z "$(in_store)" ] && [ "$(cat "$scratch/err")" = 't.drafter is removed, too: it was the drafter of t' ] || return 1
    # One name, a folder and a file: both have the drafter, which must be that of both, and stays with the last.
    "$@" --name t "$d/target" > /dev/null && "$@" --name t.drafter "$d/fitted" > /dev/null || return 1
    status 1 "$@" --name t.gguf "$golden/gguf/a_llama_tied.Q8_0.gguf" && grep -q 't.drafter would be the drafter of t.gguf, too, and is none: ' "$scratch/err" || return 1
    cp "$golden/gguf/a_llama_tied.Q8_0.gguf" "$scratch/store/t.gguf"
    # shellcheck disable=SC2086 # words
    $rm --json t | grep -q -x '{"ok":true,"removed":\["t"\],"kept":\["t.drafter"\]}' && [ "$(in_store)" = 't.drafter t.drafter.sha256 t.gguf' ] &&
        status 0 $rm t.gguf && [ -z "$(in_store)" ] || return 1
    "$@" --name t "$d/target" > /dev/null && cp "$golden/gguf/a_llama_tied.Q8_0.gguf" "$scratch/store/t.gguf" || return 1
    status 1 "$@" --name t.drafter "$d/fitted" && grep -q 'a drafter of another model' "$scratch/err" || return 1
    # What is no file alone, sums whose model went away, and what was put there by hand.
    mkdir -p "$scratch/store/hand/onnx/deep" && echo x > "$scratch/store/hand/onnx/deep/file" && echo x > "$scratch/store/gone.sha256" && ln -s /etc "$scratch/store/link" || return 1
    # shellcheck disable=SC2086 # words
    for name in hand gone link t.gguf t; do status 0 $rm $name || return 1; done
    # shellcheck disable=SC2086 # words
    [ -z "$(in_store)" ] && [ -d /etc ] && status 1 $rm t
}
ok 'rm: drafters and sums' removes
# What was left by a command that was killed goes, of a drafter's long name, too; a file whose name is only like one stays.
leftovers() {
    long=$(printf '%0199d' 0).drafter.gguf
    rm -rf "$scratch/store" && mkdir -p "$scratch/store/.x.adding" "$scratch/store/.$long.adding" || return 1
    echo half > "$scratch/store/.x.adding/x" && echo half > "$scratch/store/.$long.adding/$long" && : > "$scratch/store/y.sha256.tmp-4000000-0" &&
        mkdir "$scratch/store/..adding" "$scratch/store/...adding"
    status 0 "$client" rm --store "$scratch/store" x && grep -q 'x.adding: removed what is left of a command that was killed' "$scratch/err" &&
        [ "$(in_store)" = '...adding ..adding y.sha256.tmp-4000000-0' ]
}
ok 'rm: what was left by a command that was killed' leftovers
# Sums whose model somebody has removed: theirs are replaced, another text is not.
stray_sums() {
    rm -rf "$scratch/store" && "$client" add --store "$scratch/store" "$scratch/one.gguf" > /dev/null && cp "$scratch/store/one.gguf.sha256" "$scratch/want" || return 1
    sed 's/^./0/' "$scratch/want" > "$scratch/store/one.gguf.sha256" && rm "$scratch/store/one.gguf" || return 1
    status 0 "$client" add --store "$scratch/store" "$scratch/one.gguf" && grep -q 'one.gguf.sha256 is of a model that is gone, and is replaced' "$scratch/err" &&
        cmp "$scratch/want" "$scratch/store/one.gguf.sha256" && [ "$(in_store)" = 'one.gguf one.gguf.sha256' ] && rm "$scratch/store/one.gguf" || return 1
    for text in '' 'a note\n' "$(cut -c 1-64 "$scratch/want")  two.gguf\n" "$(cut -c 1-64 "$scratch/want")  one.gguf" "$(cut -c 1-63 "$scratch/want")  one.gguf\n" \
        "$(cut -c 1-64 "$scratch/want")  one.gguf\nx\n" "$(cut -c 1-64 "$scratch/want")  one.gguf.old\n"; do
        printf '%b' "$text" > "$scratch/store/one.gguf.sha256" && cp "$scratch/store/one.gguf.sha256" "$scratch/copy" || return 1
        fails 1 'one.gguf.sha256: exists already, and is not what add writes for one.gguf' "$client" add --store "$scratch/store" "$scratch/one.gguf" &&
            cmp "$scratch/copy" "$scratch/store/one.gguf.sha256" && [ "$(in_store)" = one.gguf.sha256 ] || return 1
    done
    # A folder's sums name its files.
    rm -r "$scratch/store" && "$client" add --store "$scratch/store" --name tiny "$model" > /dev/null && rm -r "$scratch/store/tiny" &&
        status 0 "$client" add --store "$scratch/store" --name tiny "$model" && (cd "$scratch/store" && sha256sum -c --quiet tiny.sha256) && rm -r "$scratch/store"
}
ok 'add: sums whose model is gone' stray_sums
chat_json() {
    printf 'hi\n/show\n/nonsense\n' | "$client" chat --json --chat-format chatml --max-tokens 4 | python3 -c '
import json, sys
a = [json.loads(l) for l in sys.stdin]
assert a[0]["role"] == "assistant" and a[0]["usage"]["completion_tokens"] <= 4, a
assert [m["role"] for m in a[1:3]] == ["user", "assistant"] and a[2]["content"] == a[0]["content"], a
assert "nonsense" in a[3]["error"]["message"] and len(a) == 4, a
'
}
ok 'chat in JSON' chat_json
# Every command with --json prints JSON, in success and in failure.
all_json() {
    is_json() { python3 -c 'import json,sys; l = [json.loads(l) for l in sys.stdin]; assert l'; }
    for arguments in 'generate --raw -n 2 x' 'tokenize x' 'detokenize 5 6' models 'models a_llama_tied' stats ping \
        'load a_llama_tied' reload 'generate --raw -t 1000 x' 'models nope' 'load nope' 'unload nope' 'tokenize -m nope x' \
        'detokenize 4000000000' 'ping -S /nowhere' 'generate -f /nowhere' 'rm nope' 'add /nowhere' 'batch /nowhere'; do
        # shellcheck disable=SC2086 # words
        "$client" $arguments --json < /dev/null 2> "$scratch/err" | is_json || { echo "$arguments"; return 1; }
        [ ! -s "$scratch/err" ] || { cat "$scratch/err"; return 1; }
    done
}
ok '--json everywhere, errors too' all_json
ok 'add and rm' store
completion() { "$client" completion bash > "$scratch/c" && bash -n "$scratch/c" && grep -q -- '--temperature' "$scratch/c"; }
ok 'completion' completion
completes() {
    # completes WANTED WORD...: what bash offers for the last word
    wanted=$1
    shift
    # shellcheck disable=SC2016
    got=$(bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dedit_client; echo "${COMPREPLY[*]}"' "$scratch/c" "$@")
    [ "$got" = "$wanted" ] || { echo "$*: $got"; return 1; }
}
in_bash() {
    completes generate dedit-client gen && completes 'load' dedit-client lo && completes '--temperature' dedit-client generate --temp &&
        completes '--parallel' dedit-client batch x --par && completes '' dedit-client ping --temp &&
        completes "$scratch/conf" dedit-client generate -f "$scratch/con"
}
ok 'completion in bash' in_bash

ok 'a wrong option names the nearest' fails 2 'did you mean --temperature' "$client" generate --temprature 1 hi
for o in -Z -Zq -qZ -qZq; do
    ok "a wrong letter in $o is named" fails 2 '^dedit-client ping: -Z: unknown option' "$client" ping --socket "$scratch/s" $o
done
ok 'a wrong command names the nearest' fails 2 'did you mean generate' "$client" generat hi
ok 'a missing value' fails 2 'needs a value' "$client" generate hi --seed
ok 'a value that is no number' fails 2 'seed' "$client" generate --seed x hi
for o in window passes tree-budget; do
    ok "--$o 0 is not automatic" fails 2 'from 1' "$client" generate "--$o" 0 hi
done
ok 'an unknown method' fails 4 'ddtree' "$client" generate --raw --method guess hi
ok 'an option before the command' fails 2 'after the command' "$client" -S x ping
ok 'a refused value' fails 4 'temperature' "$client" generate --raw --temperature 1000 hi
ok 'an unknown model' fails 4 'nope' "$client" generate --model nope hi
ok 'no daemon' fails 3 'is dedit-d running' "$client" ping --socket "$scratch/nobody"
ok 'a path that is too long' fails 4 '107' "$client" ping --socket "/tmp/$(printf '%0200d' 0)"
ok 'a file that is not there' fails 1 'nothing' "$client" generate --file "$scratch/nothing"
pipe_quiet() { ask --max-tokens 200 hi 2> "$scratch/err" | head -c 1 > /dev/null; ! grep -qi pipe "$scratch/err"; }
ok 'a closed pipe is quiet' pipe_quiet

# Options: --help and the manual name the same ones.
manual() {
    for c in generate chat batch tokenize detokenize models add rm load unload reload drain stats ping trace-html completion; do
        "$client" $c --help || return 1
    done | grep -o -e '--[a-z-]*' | sort -u > "$scratch/help"
    sed -n 's/.*Fl Fl \([a-z-]*\).*/--\1/p; s/.*, Fl Fl \([a-z-]*\) .*/--\1/p' "$top/man/dedit-client.1" > "$scratch/man1"
    tr ' ' '\n' < "$top/man/dedit-client.1" | awk 'p == "Fl" && q == "Fl" { print "--" $0 } { q = p; p = $0 }' | sort -u > "$scratch/man"
    diff "$scratch/help" "$scratch/man"
}
ok 'help and manual name the same options' manual
keys() {
    "$daemon" --print-config --config "$scratch/conf" --model "$model" | sed -n 's/^\([a-z_]*\) = .*/\1/p' | sort -u > "$scratch/help"
    sed -n 's/^\.It Li \([a-z_]*\) = .*/\1/p' "$top/man/dedit.conf.5" | sort -u > "$scratch/man"
    diff "$scratch/help" "$scratch/man"
}
ok 'the configuration and its manual name the same keys' keys
codes() {
    sed -n 's/.*X([A-Z_]*, [0-9]*, "\([a-z-]*\)".*/\1/p' "$top/base/error.h" | sort > "$scratch/codes"
    sed -n '/Sh DIAGNOSTICS/,$s/^\.It Li \([a-z-]*\)$/\1/p' "$top/man/dedit-protocol.7" | sort > "$scratch/man"
    tr -d '`' < "$top/docs/protocol.md" | sed -n '/^| code /d; s/^| \([a-z][a-z-]*\) | [a-zA-Z].*/\1/p' | sort > "$scratch/doc"
    diff "$scratch/codes" "$scratch/man" && diff "$scratch/codes" "$scratch/doc"
}
ok 'errors, wire and manual name the same codes' codes
print_config() {
    "$daemon" --print-config --config "$scratch/conf" --max-models 3 > "$scratch/printed" || return 1
    "$daemon" --print-config --config "$scratch/printed" | grep -q '^max_models = 3'
}
ok 'a printed configuration can be read again' print_config
conf_error() {
    printf '%b' "$1" > "$scratch/bad"
    fails 78 "$2" "$daemon" --check-config --config "$scratch/bad"
}
ok 'unknown key' conf_error '[limits]\nmax_request = 1\n' 'bad:2.*max_request'
ok 'unknown section' conf_error '\n[limit]\na = 1\n' 'bad:3.*limit'
ok 'bad value' conf_error '[daemon]\nmax_models = many\n' 'bad:2.*max_models.*many'
ok 'given twice' conf_error '[daemon]\nmax_models = 1\nmax_models = 2\n' 'bad:3.*twice'
ok 'long line' conf_error "[daemon]\nsocket = /$(printf '%0300d' 0)\n" 'bad:2.*190'
ok 'model without a path' conf_error '[model x]\npreload = yes\n' 'model x.*path'
ok 'no such default' conf_error '[daemon]\ndefault_model = y\n' 'default_model.*y'
conf_faults() {
    printf '[daemon]\nmax_models = 0\nfoo = 1\n[model x]\npath = /nowhere/m\n[model y]\npath = %s\ndrafter = /nowhere/d\n' "$(cd "$model" && pwd)" > "$scratch/bad"
    status 78 "$daemon" --check-config --config "$scratch/bad" && [ "$(grep -c "^dedit-d: $scratch/bad:[2358]: \[" "$scratch/err")" -eq 4 ] && [ "$(wc -l < "$scratch/err")" -eq 4 ] || return 1
    # A start tells the same of values.
    status 78 "$daemon" --socket "$scratch/s2" --config "$scratch/bad" && [ "$(wc -l < "$scratch/err")" -eq 2 ] && [ ! -e "$scratch/s2" ]
}
ok 'all faults, and what is not there' conf_faults
ok 'unknown flag' fails 78 'unknown option' "$daemon" --nonsense
lint_man() { mandoc -T lint -W warning "$top"/man/*.[1-8]; }
ok 'manual pages are clean' lint_man

# Each status of dedit-client(1).
ok 'status 1: a request that failed after it was accepted' fails 1 ': timeout: the deadline of 1 ms has passed' "$client" generate --raw --timeout 1ms -n 400 --ignore-eos -q x
drained() {
    "$client" drain && status 1 "$client" ping && grep -q '^draining' "$scratch/out" && fails 3 'draining' "$client" generate --raw x
}
ok 'status 1 and 3: a daemon that takes no more requests' drained
stop() { "$client" drain --stop && wait $pid; }
ok 'drain --stop ends the daemon without an error' stop
ok 'a daemon that is gone' fails 3 'is dedit-d running' "$client" ping
finish
