#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples of the manual pages, as they stand there, with private daemons; options of dedit-d in --help, in its
# manual and in the configuration's.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
build=$(cd "${top_builddir:-.}" && pwd)
top=$(cd "$top" && pwd)
model=$golden/models/a_llama_tied
pid=
trap '[ -z "$pid" ] || kill $pid 2> /dev/null; rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" "$scratch/work"
for p in client/dedit-client daemon/dedit-d; do ln -s "$build/$p" "$scratch/bin/${p##*/}"; done
PATH=$scratch/bin:$PATH

# The .Dl lines of a page that begin with this prompt, without their marks.
lines() { sed -n "s/^\\.Dl $2 //p" "$top/man/$1" | sed 's/\\(dq/"/g; s/\\-/-/g; s/\\&//g'; }
# The literal block number $2 of a page.
block() { awk -v n="$2" '/^\.Bd -literal/ { k++; next } /^\.Ed/ { p = 0 } { p = k == n && !ended } /^\.Ed/ { if (k == n) ended = 1 } p && !/^\./' "$top/man/$1"; }
await() {
    tries=0
    until dedit-client ping; do
        tries=$((tries + 1))
        if [ $tries -ge 400 ] || ! kill -0 $pid 2> /dev/null; then return 1; fi
        sleep 0.05
    done
}

# ---- dedit-client(1): a daemon with a model that has a chat format.
cat > "$scratch/conf" << X
[model tiny]
path = $(cd "$model" && pwd)
chat_format = chatml
preload = yes
X
export DEDIT_SOCKET="$scratch/s"
dedit-d --socket "$scratch/s" --config "$scratch/conf" --threads 1 2> "$scratch/log" &
pid=$!
ok 'the daemon is ready' await
printf '{"id": 1, "prompt": "one", "max_tokens": 4}\n{"id": 2, "prompt": "two", "max_tokens": 4}\n' > "$scratch/work/prompts.jsonl"
lines dedit-client.1 '\$' > "$scratch/examples"
ok 'dedit-client(1) has examples' test "$(wc -l < "$scratch/examples")" -ge 3
run() { (cd "$scratch/work" && sh -c "$1" < /dev/null); }
while read -r example <&3; do
    ok "dedit-client(1): $example" run "$example"
done 3< "$scratch/examples"
batch_done() { [ "$(wc -l < "$scratch/work/answers.jsonl")" -eq 2 ]; }
ok 'dedit-client(1): the batch is answered' batch_done
stop() { kill $pid && wait $pid && pid=; }
ok 'the daemon stops without an error' stop

# ---- dedit-d(8): as a user who is not root, from a home with the model.
home() {
    mkdir "$scratch/home" "$scratch/home/models" "$scratch/run" "$scratch/copy" && cp "$build/daemon/dedit-d" "$scratch/copy/" &&
        cp -r "$model" "$scratch/home/models/SmolLM2-135M-Instruct.Q4_1.gguf" && chmod 755 "$scratch"
    [ "$(id -u)" -ne 0 ] || chown -R 65534:65534 "$scratch/home" "$scratch/run"
}
unprivileged() { if [ "$(id -u)" -eq 0 ]; then exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; else exec "$@"; fi; }
lines dedit-d.8 '\$' > "$scratch/examples"
by_hand() {
    home || return 1
    [ "$(wc -l < "$scratch/examples")" -eq 1 ] || return 1
    (unprivileged env -u DEDIT_SOCKET HOME="$scratch/home" XDG_RUNTIME_DIR="$scratch/run" PATH="$scratch/copy:$PATH" \
        sh -c "exec $(cat "$scratch/examples")") 2> "$scratch/log" &
    pid=$!
    DEDIT_SOCKET=$scratch/run/dedit/dedit.sock await || { cat "$scratch/log"; return 1; }
    DEDIT_SOCKET=$scratch/run/dedit/dedit.sock dedit-client models | grep 'SmolLM2.*ready.*(default)' || return 1
    # A client of that user finds it by the runtime folder.
    env -u DEDIT_SOCKET XDG_RUNTIME_DIR="$scratch/run" dedit-client ping && stop
}
ok "dedit-d(8): $(cat "$scratch/examples")" by_hand

# ---- dedit.conf(5): its file is taken, its wrong line is refused with the words that stand there.
conf_example() {
    block dedit.conf.5 1 > "$scratch/example.conf" && [ "$(wc -l < "$scratch/example.conf")" -ge 6 ] || return 1
    mkdir "$scratch/models" && cp -r "$model" "$scratch/models/$(sed -n 's/^path = //p' "$scratch/example.conf")" || return 1
    dedit-d --check-config --config "$scratch/example.conf" --model-dir "$scratch/models"
}
ok 'dedit.conf(5): its example is a configuration' conf_example
conf_serves() {
    dedit-d --socket "$scratch/s" --config "$scratch/example.conf" --model-dir "$scratch/models" --threads 1 2> "$scratch/log" &
    pid=$!
    await && dedit-client models smollm2 | grep ready && stop
}
ok 'dedit.conf(5): its example serves' conf_serves
conf_error() {
    want=$(sed -n 's/^\.Li \/etc\/dedit\/dedit.conf\(:[0-9].*\) \.$/\1/p' "$top/man/dedit.conf.5")
    printf '[daemon]\n[limits]\nmax_request = 3\n' > "$scratch/wrong.conf"
    if dedit-d --check-config --config "$scratch/wrong.conf" 2> "$scratch/err"; then return 1; fi
    cat "$scratch/err"
    [ -n "$want" ] && grep -F -e "$scratch/wrong.conf$want" "$scratch/err"
}
ok 'dedit.conf(5): the error that it shows' conf_error

# ---- dedit-d: every key is an option with its default; the other options stand in dedit-d(8).
options() {
    dedit-d --help | grep -o -e '^  --[a-z-]*' -e ', --[a-z-]*' | sed 's/.*--//' | sort -u > "$scratch/help"
    {
        sed -n '/^\.Sh FILES/q; s/^\.It Li \([a-z_]*\) = .*/\1/p; s/^\.Ss .*/&/p' "$top/man/dedit.conf.5" |
            awk '/^\.Ss/ { model = /[Mm]odel/ ; next } !model' | tr _ -
        tr ' ' '\n' < "$top/man/dedit-d.8" | awk 'p == "Fl" && q == "Fl" && /^[a-z]/ { print } { q = p; p = $0 }' |
            grep -v -e '^max-models$' -e '^stop$'
    } | sort -u > "$scratch/man"
    [ "$(wc -l < "$scratch/help")" -gt 30 ] && diff "$scratch/help" "$scratch/man"
}
ok 'dedit-d: options in --help and in the manuals' options
# The defaults that the manual tells are those of the program.
defaults() {
    dedit-d --print-config --config /dev/null | sed -n 's/^\([a-z_]*\) = \(.*\)/\1 \2/p' | sed 's/ *#.*//' > "$scratch/is"
    awk '/^\.It Li [a-z_]* = / { key = $3 } /^Default: [^ ]*\.$/ && key { v = $2; sub(/\.$/, "", v); print key, v; key = "" }' "$top/man/dedit.conf.5" > "$scratch/said"
    [ "$(wc -l < "$scratch/said")" -gt 15 ] || return 1
    while read -r key value; do
        is=$(awk -v k="$key" '$1 == k { print $2; exit }' "$scratch/is")
        [ -z "$is" ] || [ "$is" = "$value" ] || { [ "$value" = empty ] && [ -z "$is" ]; } || echo "$key: manual $value, program $is"
    done < "$scratch/said" > "$scratch/differ"
    [ ! -s "$scratch/differ" ] || { cat "$scratch/differ"; return 1; }
}
ok 'dedit.conf(5): defaults are those of the program' defaults
functions() {
    tr '\n' ' ' < "$top/client/dedit.h" | grep -o 'DEDIT_API [^;(]*(' | sed -n 's/.*[ *]\(dedit_[a-z_]*\)($/\1/p' | sort -u > "$scratch/header"
    sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESC/s/^\.Fn \(dedit_[a-z_]*\).*/\1/p' "$top/man/libdedit.3" | sort -u > "$scratch/man"
    [ "$(wc -l < "$scratch/header")" -gt 30 ] && diff "$scratch/header" "$scratch/man"
}
ok 'libdedit(3): every function of dedit.h' functions
lint() { mandoc -T lint -W warning "$top"/man/*.[1-8] > "$scratch/lint"; [ ! -s "$scratch/lint" ] || { cat "$scratch/lint"; return 1; }; }
ok 'manual pages are clean' lint
finish
