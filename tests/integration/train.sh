#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-train: options = --help = manual; interruptions; and every command of docs/training.md on a tiny model, from
# nothing to a drafter that a daemon serves.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
build=$(cd "${top_builddir:-.}" && pwd)
top=$(cd "$top" && pwd)
train=$build/train/dedit-train
manual=$top/man/dedit-train.1
pid=
trap '[ -z "$pid" ] || kill $pid 2> /dev/null; rm -rf "$scratch"' EXIT

# A tiny model that has a chat format.
model=$scratch/tiny
cp -r "$top/tests/golden/models/a_llama_tied" "$model" && chmod -R u+w "$model"
cat > "$model/tokenizer_config.json" <<'J'
{"chat_template": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"}
J

# ---- options
commands='synth regen fit widen eval export inspect plot'
helped() { "$train" "$1" --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' | grep -v '^help$' | sort -u; }
section() {
    awk -v s="$1" '/^\.S[sh] / { in_it = $0 == ".Ss " s } in_it && /^\.It Fl -/ { sub(/^-/, "", $3); print $3 }' "$manual"
}
same_options() {
    helped "$1" > "$scratch/help"
    {
        section "$1"
        case $1 in
            synth | regen) section 'Options of synth and regen'; section 'Options of synth, regen and eval' ;;
            fit | widen) section 'Options of fit and widen' ;;
            eval) section 'Options of synth, regen and eval' ;;
        esac
    } | sort -u > "$scratch/man"
    [ -s "$scratch/help" ] && diff "$scratch/help" "$scratch/man"
}
defaults() {
    "$train" "$1" --help | awk '/^  --[a-z-]* [A-Z]/ { if (o != "" && !d) print o; o = $1; d = 0 } /default/ { d = 1 } END { if (o != "" && !d) print o }' > "$scratch/none"
    [ ! -s "$scratch/none" ] || { cat "$scratch/none"; return 1; }
}
taken() {
    helped "$1" | while read -r option; do
        "$train" "$1" "--$option=" < /dev/null > "$scratch/o" 2>&1
        if grep -q 'is unknown' "$scratch/o"; then echo "$option"; fi
    done > "$scratch/refused"
    [ ! -s "$scratch/refused" ] || { cat "$scratch/refused"; return 1; }
}
for c in $commands; do
    ok "$c: options in --help and in the manual" same_options "$c"
    ok "$c: options say their defaults" defaults "$c"
    ok "$c: options of --help are taken" taken "$c"
done
# usage NAME "ARGUMENTS" WORDS: status 2, one line with these words.
usage() {
    # shellcheck disable=SC2086 # words
    status 2 "$train" $1 || return 1
    cat "$scratch/out" "$scratch/err"
    [ ! -s "$scratch/out" ] && [ "$(wc -l < "$scratch/err")" -eq 1 ] && grep -q -e "$2" "$scratch/err"
}
ok 'no command: usage' status 2 "$train"
ok 'a command nearly right' usage 'sinth' 'did you mean synth'
ok 'an option nearly right' usage 'synth --tokns 3' 'did you mean --tokens'
ok 'synth needs a folder' usage synth '--output FOLDER'
ok 'synth: a share without its file' usage 'synth --output x --share opening=1' 'openings FILE is needed'
ok 'synth: a kind that is none' usage 'synth --share poem=3' 'poem=3'
ok 'synth: temperatures' usage 'synth --temperatures 0:0' 'all shares are 0'
ok 'regen needs prompts' usage 'regen --output x' 'a file of prompts'
ok 'fit needs data' usage 'fit --output x' 'files of data'
ok 'widen needs a start' usage 'widen --output x y' '--from'
ok 'eval needs a drafter' usage 'eval x' '--drafter'
ok 'export needs a checkpoint' usage 'export --output x' 'one checkpoint'
ok 'export: q8_0 is for GGUF' usage 'export --output x --type q8_0 y' 'GGUF'
ok '--version' sh -c "'$train' --version | grep -q '^dedit-train [0-9]'"

# ---- the same data whatever the interruptions
cd "$scratch" || exit 1
options="--model $model --threads 1 --answer-tokens 16,40 --user-tokens 12 --shard-size 8K --sync 0"
synth() {
    out=$1
    shift
    # shellcheck disable=SC2086 # words
    "$train" synth $options --output "$out" "$@"
}
whole() { synth whole --tokens 6000 --sequences 8 --quiet && [ "$(find whole -name '*.jsonl' | wc -l)" -gt 3 ]; }
ok 'synth writes shards' whole
pieces() {
    # Stopped by the number of tokens, by a signal, and by a torn line.
    synth pieces --tokens 700 --sequences 3 --quiet || return 1
    # shellcheck disable=SC2086 # words
    (exec "$train" synth $options --output pieces --tokens 6000 --sequences 5) 2> log & k=$!
    while [ "$(cat pieces/*.jsonl | wc -l)" -lt 40 ] && kill -0 $k 2> /dev/null; do sleep 0.02; done
    kill -TERM $k
    wait $k
    s=$?
    [ $s -eq 130 ] || [ $s -eq 0 ] || { echo "status $s"; cat log; return 1; }
    last=$(find pieces -name '*.jsonl' | sort | tail -n 1)
    size=$(wc -c < "$last")
    [ "$size" -lt 40 ] || truncate -s $((size - 33)) "$last"
    synth pieces --tokens 6000 2> log || { cat log; return 1; }
    grep -q 'going on behind' log && diff -r whole pieces
}
ok 'synth: interrupted three times, the same bytes' pieces
other() { status 1 "$train" synth --model "$model" --output whole --tokens 6000 --second-turn 0.5 --answer-tokens 16,40 --user-tokens 12 && grep -q '"second_turn" is 0.15.* there, 0.5 now' "$scratch/err"; }
ok 'synth: another recipe is refused and named' other
busy() {
    flock whole "$train" synth --model "$model" --output whole 2> log && return 1
    grep -q 'another process' log
}
ok 'synth: one process at a time' busy
full() {
    # No space: what is there stays, and the run can go on elsewhere.
    status 1 "$train" synth --model "$model" --output /proc/nothing --tokens 10 && grep -q 'cannot create' "$scratch/err"
}
ok 'synth: a folder that cannot be' full
openings() {
    printf '# own\nOnce upon a\n\n  In the beginning  \n' > openings
    synth own-data --tokens 300 --openings openings --share empty=0 --share math=0 --share code=0 --share chat=0 --share topic=0 --quiet || return 1
    [ "$(grep -c '"kind": "opening"' own-data/synth-00000.jsonl)" -eq "$(($(wc -l < own-data/synth-00000.jsonl) - 1))" ] &&
        grep -q '"content":"Once upon a' own-data/synth-00000.jsonl && grep -q '"content":"In the beginning' own-data/synth-00000.jsonl
}
ok 'synth: openings of a file' openings
rm -rf whole pieces own-data

# ---- docs/training.md
cat > prompts.jsonl <<'J'
{"prompt": "Write a haiku about rain."}
{"turns": ["What is a monad?", "And in plain words?"]}
{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Why is the sky blue?"}]}]}
J
# What the page's commands take hours for is made small; nothing else is changed.
small() {
    sed -e 's/--tokens 5000000/--tokens 4000 --answer-tokens 16,40/' -e 's/^dedit-train regen/& --answer-tokens 24 --samples 4 --temperature 1/' \
        -e 's/--steps 5000/--steps 30 --p1-only 10 --batch 4 --anchors 8/' -e 's/--draft-vocab 8192/--draft-vocab 128/' \
        -e 's/^dedit-train widen/& --steps 10 --batch 4/' -e 's/^dedit-train eval/& --max-tokens 24/' \
        -e 's/^dedit-bench eval/& --max-tokens 16/' -e 's/^dedit-client generate/& --max-tokens 16/'
}
mkdir bin
for p in train/dedit-train bench/dedit-bench client/dedit-client daemon/dedit-d; do ln -s "$build/$p" "bin/${p##*/}"; done
PATH=$scratch/bin:$PATH
MODEL=$model
export PATH MODEL
awk '/^```sh/ { p = 1; next } /^```/ { p = 0 } p' "$top/docs/training.md" > commands
ok 'docs/training.md has its commands' test "$(wc -l < commands)" -ge 11
run() { sh -c "$(echo "$1" | small)" < /dev/null; }
serve() {
    mkdir -p served && cp -r "$model" served/mine && cp drafter.gguf served/drafter.gguf || return 1
    awk '/^```ini/ { p = 1; next } /^```/ { p = 0 } p' "$top/docs/training.md" | sed -e "s|/srv/models/mine.gguf|$scratch/served/mine|" \
        -e "s|/srv/models/|$scratch/served/|" > served/conf
    export DEDIT_SOCKET="$scratch/s"
    dedit-d --socket "$scratch/s" --config served/conf --threads 1 2> served/log &
    pid=$!
    tries=0
    until dedit-client ping > /dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -ge 400 ] || ! kill -0 $pid 2> /dev/null; then cat served/log; return 1; fi
        sleep 0.05
    done
}
while read -r command <&3; do
    case $command in dedit-client*) ok 'docs/training.md: a daemon with the drafter' serve ;; esac
    ok "docs/training.md: $command" run "$command"
done 3< commands
ok 'the daemon names the drafter' sh -c 'dedit-client models | grep -q drafter'
forms() { [ -s run.svg ] && [ -s drafter.gguf ] && [ -s run/metrics.csv ] && ls run/step-*.safetensors wide/step-*.safetensors; }
ok 'what they were to make is there' forms
folder() {
    "$train" export --model "$model" --output drafter run && [ -s drafter/config.json ] && "$train" inspect --model "$model" drafter run > o &&
        grep -q 'drafts from 128 of' o && grep -q 'checkpoint at step 30' o
}
ok 'export: a folder; inspect shows it' folder
csv() {
    "$train" eval --model "$model" --drafter drafter --max-tokens 24 --passes 1,2 --window 4,8 --csv e.csv prompts.jsonl > o &&
        [ "$(wc -l < e.csv)" -eq 5 ] && grep -q '^prompts,8,2,0,bidirectional,3,' e.csv
}
ok 'eval: windows and passes in a CSV file' csv
broken() {
    printf '{"ids": [1, 2], "response_spans": []}\n' > bad.jsonl
    status 1 "$train" fit --model "$model" --output bad --steps 3 bad.jsonl && grep -q 'bad.jsonl:1: nothing to train on' "$scratch/err" || return 1
    printf '{"ids": [1, 99999], "response_spans": [[0, 1]]}\n' > bad.jsonl
    status 1 "$train" fit --model "$model" --output bad --steps 3 bad.jsonl && grep -q 'bad.jsonl:1: "ids"\[1\] is 99999' "$scratch/err"
}
ok 'fit: data with nothing to train on, or of another model' broken
ok 'plot: a file that is none' status 1 "$train" plot prompts.jsonl
ok 'inspect: a path that is not there' status 1 "$train" inspect nowhere
strange_ids() {
    printf '{"ids":[1,2,3,99999],"response_spans":[[1,4]]}\n' > strange.jsonl
    status 0 "$train" inspect strange.jsonl && status 1 "$train" inspect --model "$model" strange.jsonl
}
ok 'inspect: ids beyond the model that is named' strange_ids
# What is wrong with data is told by file and line.
faults() {
    good='{"ids": [1, 2, 3], "response_spans": [[1, 3]]}'
    printf '{"dedit_data": 1, "vocab_size": 300}\n%s\n\n  \n{"ids": [7], "response_spans": []}\n' "$good" > faults.jsonl
    status 0 "$train" inspect faults.jsonl && grep -q 'fit refuses; the first one: faults.jsonl:5$' "$scratch/out" &&
        grep -q '2 blank lines passed over; the first one: faults.jsonl:3$' "$scratch/out" || return 1
    printf '%s\n{"ids": [7, 300], "response_spans": [[0, 1]]}\n' "$good" >> faults.jsonl
    status 1 "$train" inspect faults.jsonl && grep -q 'faults.jsonl:7: "ids"\[1\] is 300; the header of the file says "vocab_size" 300' "$scratch/err" || return 1
    printf '\n{"ids": [7], "response_spans": []}\n' > faults.jsonl
    status 1 "$train" inspect faults.jsonl && grep -q 'faults.jsonl:2: no answer to train on' "$scratch/err"
}
ok 'inspect: what is wrong, by file and line' faults
onto_itself() {
    cp -r "$model" mine
    for to in drafter.gguf mine; do
        before=$(find "$to" -type f -exec cksum {} +) || return 1
        form=gguf
        [ "$to" = drafter.gguf ] || form=hf
        status 1 "$train" export --model mine --force --format $form --output ./$to drafter.gguf && grep -q 'is what is read' "$scratch/err" || return 1
        [ "$before" = "$(find "$to" -type f -exec cksum {} +)" ] || return 1
    done
    # One of the files that are written into a folder.
    mkdir inside && cp "$(find run -name 'step-*.safetensors' | sort | tail -n 1)" inside/model.safetensors || return 1
    before=$(cksum inside/model.safetensors)
    status 1 "$train" export --model "$model" --force --output inside inside/model.safetensors && grep -q 'inside/model.safetensors is what is read' "$scratch/err" &&
        [ "$before" = "$(cksum inside/model.safetensors)" ]
}
ok 'export: not over what it reads' onto_itself
# refused PATH WORDS ARGUMENT...: status 1, these words, and the file is what it was.
kept() {
    file=$1 && words=$2 && before=$(cksum < "$1") || return 1
    shift 2
    status 1 "$train" "$@" && grep -q -e "$words" "$scratch/err" && [ ! -s "$scratch/out" ] && [ "$before" = "$(cksum < "$file")" ]
}
outputs() {
    ln -sf prompts.jsonl link
    for to in prompts.jsonl ./prompts.jsonl link drafter.gguf drafter/config.json; do
        drafter=drafter.gguf
        [ "$to" = drafter.gguf ] || drafter=drafter
        kept $to "--csv: $to is what is read" eval --model "$model" --drafter $drafter --csv $to prompts.jsonl || return 1
    done
    kept run/metrics.csv '--svg: run/metrics.csv is what is read' plot --svg run/metrics.csv run &&
        kept run/metrics.csv '--svg: ./run/metrics.csv is what is read' plot --svg ./run/metrics.csv run/metrics.csv || return 1
    status 1 "$train" eval --model "$model" --drafter drafter.gguf --csv /nowhere/x prompts.jsonl && grep -q -e '--csv: /nowhere/x' "$scratch/err" &&
        [ ! -s "$scratch/out" ]
}
ok 'eval and plot: not over what they read; what cannot be written is told at the start' outputs
# says WORDS ARGUMENT...: refused, and the last line has these words.
says() {
    words=$1
    shift
    "$train" "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null && return 1
    tail -n 1 "$scratch/err" | grep -q -e "$words" || { cat "$scratch/err"; return 1; }
}
messages() {
    printf '{"ids": [1, 2], "response_spans": [[0, 1' > cut.jsonl
    gzip -c prompts.jsonl > p.jsonl.gz && xz -c prompts.jsonl > p.jsonl.xz && mkdir packed && cp p.jsonl.xz packed || return 1
    says '--window 4: must be longer than the 8 rows of --from run' widen --model "$model" --output x --from run --window 4 data &&
        says '--from drafter.gguf: is an exported drafter; widen goes on from a checkpoint' widen --model "$model" --output x --from drafter.gguf data &&
        says '--taps: layer 99: the model has layers 0 to 1, and they must ascend' fit --model "$model" --output x --taps 0,99 data &&
        says '--seed: at most 9223372036854775807' fit --model "$model" --output x --seed 9223372036854775808 data && [ ! -e x ] &&
        says '--steps 0: must be from 1' fit --model "$model" --output x --steps 0 data &&
        says 'was trained with --max-len 512, now it is 40' fit --model "$model" --output run --steps 30 --p1-only 10 --batch 4 --anchors 8 --draft-vocab 128 --max-len 40 data own &&
        says 'was trained on other data' fit --model "$model" --output run --steps 30 --p1-only 10 --batch 4 --anchors 8 --draft-vocab 128 data &&
        says 'cut.jsonl:1:[1-9][0-9]: ' inspect cut.jsonl && ! grep -q 'cut.jsonl:1:1:' "$scratch/err" &&
        says 'p.jsonl.xz: is compressed; "xz -dk p.jsonl.xz" makes' fit --model "$model" --output x p.jsonl.xz &&
        says 'p.jsonl.xz: is compressed; "xz -dk p.jsonl.xz" makes' eval --model "$model" --drafter drafter.gguf p.jsonl.xz &&
        says '"gzip -dk p.jsonl.gz" makes' eval --model "$model" --drafter drafter.gguf p.jsonl.gz &&
        says 'packed: no \*.jsonl file; "xz -dk packed/p.jsonl.xz" unpacks' inspect packed &&
        says 'run: is the folder of a training run; dedit-train export makes a drafter' eval --model "$model" --drafter run prompts.jsonl &&
        says '--window: 65 is not from 2 to 64' eval --model "$model" --drafter drafter.gguf --window 8,65 prompts.jsonl &&
        says '--tree: 128 is not from 0 to 127' eval --model "$model" --drafter drafter.gguf --tree 128 prompts.jsonl
}
ok 'messages name the option, the file, the limit and the rule' messages
# What is held out has the losses of both passes, as metrics.csv says; with proposals alone there is no second one.
held_out() {
    for o in dedit dflash; do
        "$train" fit --model "$model" --output held-$o --objective $o --steps 4 --p1-only 1 --batch 4 --anchors 4 --held-out 0.3 data 2> log || return 1
        python3 - held-$o/metrics.csv log $o << 'X' || return 1
import csv, re, sys
row = list(csv.DictReader(open(sys.argv[1])))[-1]
line = [l for l in open(sys.argv[2], encoding="utf-8", errors="replace") if "held out P1" in l][-1]
p1, tau1, p2 = re.search(r"held out P1 ([0-9.]+) τ ([0-9.]+)(.*)$", line.strip()).groups()
assert abs(float(p1) - float(row["held_loss_p1"])) < 1e-3, (line, row)
if sys.argv[3] == "dedit":
    p2, tau2 = re.fullmatch(r" P2 ([0-9.]+) τ ([0-9.]+)", p2).groups()
    assert abs(float(p2) - float(row["held_loss_p2"])) < 1e-3, (line, row)
else:
    assert p2 == "" and row["held_loss_p2"] == "", (line, row)
X
    done
}
ok 'fit: what is held out, of both passes' held_out
# What makes no sense is refused, and leaves no folder behind that was not there before.
nonsense() {
    mkdir there || return 1
    for o in '--heads 7:--heads 7: must be a multiple of --kv-heads, which is 2, the model.s' '--draft-vocab 321:--draft-vocab 321: the model has 320 tokens' \
        '--steps 5 --p1-only 6:--p1-only 6: must be at most --steps 5' '--memory-limit 1K:memory' '--from nowhere:nowhere'; do
        for out in new new/x/y/ there there/x; do
            # shellcheck disable=SC2086 # words
            says "${o#*:}" fit --quiet --model "$model" --output $out --steps 5 ${o%%:*} data && [ ! -e new ] && [ -d there ] && [ ! -e there/x ] || return 1
        done
    done
    ln -s data/synth-00000.jsonl again.jsonl
    says 'again.jsonl: is given twice, also as data/synth-00000.jsonl' fit --quiet --model "$model" --output new data again.jsonl && [ ! -e new ] || return 1
    says 'synth-00000.jsonl: is given twice; ' fit --quiet --model "$model" --output new data/synth-00000.jsonl data/synth-00000.jsonl
}
ok 'fit: nonsense is refused, and no folder is left' nonsense
damaged() {
    # Nothing is begun anew over a run that cannot be read, or that another process is in.
    cp -r run hurt || return 1
    for f in hurt/step-*.safetensors; do truncate -s 1000 "$f"; done
    before=$(find hurt -type f -exec cksum {} +)
    for more in '' --fresh; do
        # shellcheck disable=SC2086 # none or one
        status 1 "$train" fit --quiet --model "$model" --output hurt --steps 30 $more data &&
            grep -q 'hurt: no checkpoint that can be read; the newest: hurt/step-.*safetensors: ' "$scratch/err" || return 1
    done
    [ "$before" = "$(find hurt -type f -exec cksum {} +)" ] || return 1
    flock run "$train" fit --model "$model" --output run --steps 30 data 2> log && return 1
    grep -q 'run: another run is writing there' log
}
ok 'fit: damaged checkpoints stay, and so does what another run writes' damaged
finish
