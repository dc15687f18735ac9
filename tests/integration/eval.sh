#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-bench eval: settings, suites, tables and files; no figure is judged here.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
small='--random smollm2-135m --layers 4 --drafter-layers 1 --draft-vocab 512 --prompt-tokens 20 --quiet'

random() {
    # shellcheck disable=SC2086 # options are words
    status 0 "$bench" eval $small --samples 3 --max-tokens 24 --csv "$scratch/csv" --svg "$scratch/svg" \
        --setting dflash,w=8,tau=3 --setting dedit,w=8,k=2,t=0.7 --setting ddtree,w=6,n=20 \
        --setting ngram,t=0.7 --setting dedit,k=3,causal,rejection,t=1 || return 1
    # The cost model's line of each setting with a drafter, and of ar at each temperature.
    [ "$(sed -n '/^cost model/,/^$/p' "$scratch/out" | wc -l)" -eq 9 ] || { cat "$scratch/out"; return 1; }
    for word in ar ar,t=0.7 ar,t=1 dflash,w=8,tau=3 ddtree,w=6,n=20; do
        grep -q "^$word " "$scratch/out" || { cat "$scratch/out"; return 1; }
    done
    python3 - "$scratch/csv" "$scratch/svg" << 'X'
import csv, sys, xml.dom.minidom
rows = {r["setting"]: r for r in csv.DictReader(open(sys.argv[1]))}
assert len(rows) == 8, list(rows)
for r in rows.values():
    assert r["suite"] == "random" and r["responses"] == "3" and r["tokens"] == "72", r
    assert 1 <= float(r["tau"]) <= 8 and float(r["ms_per_token"]) > 0 and float(r["speedup"]) > 0, r
    assert int(r["accepted"]) <= int(r["drafted"]), r
assert float(rows["ar"]["tau"]) == 1 and float(rows["ar"]["speedup"]) == 1
assert float(rows["dflash,w=8,tau=3"]["tau"]) > 1.5  # made up: about 3
assert int(rows["dedit,w=8,k=2,t=0.7"]["drafter_passes"]) > int(rows["dedit,w=8,k=2,t=0.7"]["rounds"])
xml.dom.minidom.parse(sys.argv[2])
X
}
ok 'random weights: every setting, CSV and SVG' random

ok 'clients need suites' error 2 'eval --random smollm2-135m --clients 2' 'needs suites'
ok 'a type of a drafter that is not there' error 2 'eval --random smollm2-135m --drafter-dtype bf16' 'needs --drafter'
ok 'controller: no suite' error 2 'controller' 'no suite is named'
# A model whose template says nothing: the error names an option, and there it is.
formatted() {
    printf '{"prompt": "hello"}\n{"prompt": "hello there"}\n' > "$scratch/p.jsonl"
    set -- --model "$golden/drafter/target" --drafter "$golden/drafter/fitted" --samples 1 --max-tokens 8 --quiet --setting dflash
    status 1 "$bench" eval "$@" "$scratch/p.jsonl" && grep -q -e '--chat-format' "$scratch/err" || return 1
    status 0 "$bench" eval "$@" --chat-format chatml "$scratch/p.jsonl" || return 1
    status 0 "$bench" controller "$@" --search 1 --chat-format chatml "$scratch/p.jsonl" || return 1
    status 2 "$bench" eval "$@" --chat-format latin "$scratch/p.jsonl" && grep -q latin "$scratch/err"
}
ok 'a model without a chat template: --chat-format' formatted
# With the target's noise and without: the same answers, one line for each such pair of settings.
noise() {
    for i in 1 2 3 4 5 6; do echo "{\"prompt\": \"hello $i\"}"; done > "$scratch/n.jsonl"
    status 0 "$bench" eval --model "$golden/drafter/target" --drafter "$golden/drafter/fitted" --samples 0 --max-tokens 12 \
        --chat-format chatml --temperature 1 --quiet --setting dflash --setting dflash,no-noise --setting dflash,no-noise,t=0.5 \
        --setting ddtree,n=5,no-noise --setting ddtree,n=5 --answers "$scratch/answers" "$scratch/n.jsonl" || return 1
    python3 - "$scratch/answers" "$scratch/out" << 'X'
import csv, re, sys
tau = {}
for r in csv.DictReader(open(sys.argv[1])):
    assert r["suite"] == "n" and float(r["ms_per_token"]) > 0, r
    tau.setdefault(r["setting"], []).append(float(r["tau"]))
assert len(tau) == 7 and all(len(t) == 6 for t in tau.values()), tau
table = re.search(r"^the target's noise.*\n((?:.+\n)+)", open(sys.argv[2]).read(), re.M).group(1).splitlines()
assert [l.split()[0] for l in table] == ["dflash", "ddtree,n=5"], table
for line in table:
    name, n, with_, without, diff, interval = line.split()
    lo, hi = map(float, interval.split(".."))
    mean = [sum(tau[s]) / 6 for s in (name, name + ",no-noise")]
    assert n == "6" and abs(float(with_) - mean[0]) < 1e-3 and abs(float(without) - mean[1]) < 1e-3, line
    assert abs(float(diff) - (mean[0] - mean[1])) < 1.1e-3 and lo <= float(diff) <= hi, line
X
}
ok 'the noise of the target in the drafter, by pairs of answers' noise
ok 'controller: one temperature' error 2 'controller --setting ngram,t=1 x.jsonl' 'temperature'
ok 'controller: no made-up acceptance' error 2 'controller --setting dflash,w=8,tau=3 x.jsonl' 'made-up'
ok 'no suite' error 2 'eval --setting ngram' 'no suite is named'
ok 'a setting that is none' error 2 'eval --setting magic x.jsonl' '"magic"'
ok 'a word that is none' error 2 'eval --setting dedit,q=4 x.jsonl' '"q=4"'
ok 'tau without a window' error 2 'eval --setting dflash,tau=4 x.jsonl' 'w=ROWS'
ok 'a suite that is not there' error 1 'eval --setting ngram /nowhere.jsonl' '/nowhere.jsonl'
echo '{"turns": 3}' > "$scratch/bad.jsonl"
ok 'a line without turns' error 1 "eval --setting ngram $scratch/bad.jsonl" 'bad.jsonl:1: "turns"'
ok 'random weights have no suites' error 2 "eval --random smollm2-135m $scratch/bad.jsonl" 'no suites'
ok 'standard settings need a drafter' error 2 "eval --drafter none $scratch/bad.jsonl" '--drafter'
# The drafter that lies beside its model is used as the daemon does it, unless it is told not to be.
beside() {
    cp -r "$golden/drafter/target" "$scratch/b" && cp -r "$golden/drafter/fitted" "$scratch/b.drafter" && printf '{"prompt": "hello"}\n{"prompt": "hi"}\n' > "$scratch/p.jsonl" || return 1
    set -- --model "$scratch/b/" --chat-format chatml --samples 1 --max-tokens 8 --quiet
    status 0 "$bench" eval "$@" "$scratch/p.jsonl" && grep -q '^dedit,k=3 ' "$scratch/out" && ! grep -q 'drafter none' "$scratch/out" || return 1
    status 0 "$bench" controller "$@" --search 1 --max-tokens 2 "$scratch/p.jsonl" && grep -q '; 19 settings on' "$scratch/out" || return 1
    status 0 "$bench" eval "$@" --drafter none --setting ngram "$scratch/p.jsonl" && grep -q 'drafter none' "$scratch/out" || return 1
    # The table of milliseconds has a figure or "-" in every column.
    sed -n '/^ms /,/^$/p' "$scratch/out" | awk 'NF && NF != 8 { exit 1 } /^ar / && $5 != "-" { exit 1 } END { exit NR < 3 }' || { cat "$scratch/out"; return 1; }
    status 0 "$bench" generate --model "$scratch/b" --raw --method dedit --max-tokens 4 hello &&
        status 1 "$bench" generate --model "$scratch/b" --drafter none --raw --method dedit --max-tokens 4 hello || return 1
    for c in 'step --rows 1 --context 16 --repetitions 6' "check --only drafter $golden"; do
        # shellcheck disable=SC2086 # words
        status 0 "$bench" $c --model "$scratch/b" --drafter none || return 1
    done
    chmod -R u+w "$scratch/b.drafter" && echo '{"architectures": ["X"]}' > "$scratch/b.drafter/config.json"
    status 1 "$bench" eval "$@" "$scratch/p.jsonl" && grep -q -e 'b.drafter.*--drafter none leaves it alone' "$scratch/err"
}
ok 'the drafter beside the model' beside
# A file that cannot be written is told before anything is measured: nothing else is said.
unwritable() {
    for o in csv svg answers; do
        # shellcheck disable=SC2086
        status 1 "$bench" eval $small --samples 1 --warm-up 0 --max-tokens 4 --setting ngram --$o /nowhere/x &&
            grep -q -e "--$o: /nowhere/x" "$scratch/err" && [ ! -s "$scratch/out" ] || return 1
    done
    printf '{"prompt": "hello"}\n' > "$scratch/u.jsonl"
    status 1 "$bench" controller --model "$golden/drafter/target" --chat-format chatml --setting ngram --csv /nowhere/x "$scratch/u.jsonl" &&
        grep -q -e '--csv: /nowhere/x' "$scratch/err" && [ ! -s "$scratch/out" ]
}
ok 'a file that cannot be written is told at the start' unwritable
# apart PATH ARGUMENT...: refused, and the file is what it was.
apart() {
    before=$(cksum < "$1") && file=$1
    shift
    status 2 "$bench" "$@" && [ ! -s "$scratch/out" ] && [ "$before" = "$(cksum < "$file")" ]
}
own_input() {
    cp -r "$golden/drafter/target" "$scratch/target" && chmod -R u+w "$scratch/target" && cp -r "$golden/drafter/fitted" "$scratch/fitted" &&
        chmod -R u+w "$scratch/fitted" && printf '{"prompt": "hello"}\n' > "$scratch/s.jsonl" && ln -s s.jsonl "$scratch/link" || return 1
    set -- --model "$scratch/target" --drafter "$scratch/fitted" --chat-format chatml --samples 1 --max-tokens 4 --setting ngram "$scratch/s.jsonl"
    for o in csv svg answers; do
        for to in s.jsonl ../${scratch##*/}/s.jsonl link target/config.json fitted/model.safetensors; do
            apart "$scratch/$to" eval "$@" "--$o" "$scratch/$to" && grep -q -e "--$o: .*$to is what is read" "$scratch/err" || return 1
        done
    done
    apart "$scratch/s.jsonl" controller "$@" --csv "$scratch/s.jsonl" && grep -q 'is what is read' "$scratch/err" || return 1
    status 2 "$bench" eval "$@" --csv "$scratch/both" --svg "$scratch/./both" && grep -q 'what --csv writes' "$scratch/err" && [ ! -e "$scratch/both" ] &&
        status 0 "$bench" eval "$@" --quiet --csv /dev/null --svg /dev/null
}
ok 'no file is written over what is read, nor two to one place' own_input

# What auto knows is kept: a number that stands in the file is there again, or larger, after a run.
kept() {
    printf '{"prompt": "hello"}\n{"prompt": "hello there"}\n' > "$scratch/p.jsonl"
    set -- --model "$golden/drafter/target" --drafter "$golden/drafter/fitted" --chat-format chatml --samples 0 --max-tokens 24 \
        --quiet --setting auto --costs "$scratch/costs" "$scratch/p.jsonl"
    status 0 "$bench" eval "$@" || return 1
    python3 - "$scratch"/costs/*.json << 'X' || return 1
import json, sys
o = json.load(open(sys.argv[1]))
o["drafts"]["curves"][0] = 777777
json.dump(o, open(sys.argv[1], "w"))
X
    status 0 "$bench" eval "$@" || return 1
    python3 -c 'import json, sys; n = json.load(open(sys.argv[1]))["drafts"]["curves"][0]; assert n >= 777777, n' "$scratch"/costs/*.json
}
ok 'what auto knows is kept' kept

if "$bench" tokenize x > /dev/null 2>&1; then
    printf '%s\n' '{"turns": ["Count to ten.", "And backwards?"]}' '{"turns": ["Say hello."]}' > "$scratch/few.jsonl"
    suite() {
        status 0 "$bench" eval --setting ngram --setting ngram,t=0.8 --turns 2 --samples 0 --max-tokens 16 --quiet \
            --csv "$scratch/csv" "$scratch/few.jsonl" || return 1
        # Two conversations, three answers, each with ar and ngram at two temperatures.
        [ "$(grep -c '^few,' "$scratch/csv")" -eq 4 ] && grep -q '^few,"ngram,t=0.8",ngram,0.8,0,0,0,3,' "$scratch/csv"
    }
    ok 'a suite of conversations' suite
    clients() {
        status 0 "$bench" eval --setting ngram --setting auto --clients 3 --samples 5 --max-tokens 16 --quiet \
            --csv "$scratch/csv" "$scratch/many.jsonl" || return 1
        [ "$(grep -c '^many,' "$scratch/csv")" -eq 3 ] && grep -q '^many,"auto",auto,0,0,0,0,5,' "$scratch/csv"
    }
    for i in 1 2 3 4 5; do echo "{\"turns\": [\"Say $i.\"]}"; done > "$scratch/many.jsonl"
    ok 'clients at once' clients
    regret() {
        status 0 "$bench" controller --setting ngram --setting ngram,w=3 --search 1 --samples 2 --max-tokens 12 --quiet \
            --csv "$scratch/csv" "$scratch/many.jsonl" || return 1
        # ar, auto and both settings, two answers each; one of those that auto does not count is the best.
        [ "$(grep -c '^many,' "$scratch/csv")" -eq 4 ] && grep -q '^many,"auto",auto,2,' "$scratch/csv" &&
            [ "$(grep -c ',best,' "$scratch/csv")" -eq 1 ] && grep -q '^many ' "$scratch/out"
    }
    ok 'controller' regret
else
    tests_run=$((tests_run + 1))
    echo "ok $tests_run - suites # SKIP the default model is not in the cache: models/fetch"
fi
finish
