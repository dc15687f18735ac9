#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-client generate --trace and --trace-json, and the page of trace-html.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
client=${top_builddir:-.}/client/dedit-client
daemon=${top_builddir:-.}/daemon/dedit-d
folder=$(cd "$golden/drafter" && pwd)
export DEDIT_SOCKET="$scratch/s"
printf '[model tiny]\npath = %s/target\ndrafter = %s/fitted\npreload = yes\n' "$folder" "$folder" > "$scratch/conf"
"$daemon" --socket "$scratch/s" --config "$scratch/conf" --threads 1 2> "$scratch/log" &
pid=$!
trap 'kill $pid 2> /dev/null; rm -rf "$scratch"' EXIT
tries=0
until "$client" ping > /dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -ge 400 ] || ! kill -0 $pid 2> /dev/null; then break; fi
    sleep 0.05
done
ask() { "$client" generate --ids --raw --temperature 0 --max-tokens 40 --ignore-eos --quiet "$@" 5 6 7 8 9 10 11 12; }

# What a trace must say of itself; prints how many rounds had edits, and trees.
cat > "$scratch/check.py" << 'X'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
assert lines[0]["trace"] == 1 and lines[0]["method"] == sys.argv[2], lines[0]
rounds = [l for l in lines if "round" in l]
out = next(l for l in lines if "output" in l)["output"]
texts = next(l for l in lines if "texts" in l)["texts"]
assert len(out) == 40 and lines[-1]["usage"]["completion_tokens"] == 40
at = edited = trees = several = 0
for i, r in enumerate(rounds):
    assert r["round"] == i and r["at"] == at, r
    w, k = r["window"], r["passes"]
    assert len(r["draft"]) == len(r["accepted"]) == k and all(len(d) == w - 1 for d in r["draft"]), r
    assert len(r["confidence"]) == (w - 1 if w else 0) and all(0 <= c <= 1 for c in r["confidence"]), r
    assert all(p < n for n, (_, p) in enumerate(r["nodes"])), r
    for d, a in zip(r["draft"], r["accepted"]):
        n = min(a, 40 - at)
        assert d[:n] == out[at:at + n], (r, out)
    # The walk from the anchor along the committed tokens stays in what was verified, but for the bonus.
    node = -1
    for t in out[at:at + r["committed"] - 1]:
        node = next(n for n, (token, parent) in enumerate(r["nodes"]) if parent == node and token == t)
    for t in sum(r["draft"], []) + [t for t, _ in r["nodes"]]:
        assert str(t) in texts
    edited += any(a != b for x, y in zip(r["draft"], r["draft"][1:]) for a, b in zip(x, y))
    trees += any(p != n - 1 for n, (_, p) in enumerate(r["nodes"]))
    several += r["committed"] > 1
    at += r["committed"]
assert at >= 40 and several, (at, several)
print(edited, trees)
X
plain() { ask --method ar > "$scratch/want"; }
ok 'plain decoding' plain
dedit() {
    ask --method dedit --passes 3 --trace-json "$scratch/t" > "$scratch/got" && cmp "$scratch/want" "$scratch/got" &&
        python3 "$scratch/check.py" "$scratch/t" dedit > "$scratch/n" && read -r edited trees < "$scratch/n" &&
        [ "$edited" -gt 0 ] && [ "$trees" -eq 0 ]
}
ok 'draft and edit passes' dedit
tree() {
    ask --method ddtree --tree-budget 12 --trace-json "$scratch/tree" > "$scratch/got" && cmp "$scratch/want" "$scratch/got" &&
        python3 "$scratch/check.py" "$scratch/tree" ddtree > "$scratch/n" && read -r edited trees < "$scratch/n" &&
        [ "$edited" -eq 0 ] && [ "$trees" -gt 0 ]
}
ok 'trees' tree
shown() {
    ask --method dedit --passes 3 --trace > "$scratch/out" || return 1
    tail -n 1 "$scratch/want" > "$scratch/last"
    grep -q '^round 1 at 1, window ' "$scratch/out" && grep -q '^  P3 ' "$scratch/out" &&
        grep -q '^edits: [0-9]* helpful, ' "$scratch/out" && tail -n 1 "$scratch/out" | cmp - "$scratch/last" &&
        [ "$(grep -c '^round ' "$scratch/out")" -eq "$(grep -c '"round"' "$scratch/t")" ]
}
ok 'on the terminal' shown
page() {
    "$client" trace-html "$scratch/t" -o "$scratch/page.html" && python3 - "$scratch/page.html" "$scratch/t" << 'X'
import html.parser, json, sys
class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.scripts, self.now = [], [], None
    def handle_starttag(self, tag, attrs):
        assert not any(k in ("src", "href") for k, _ in attrs), attrs
        if tag not in ("meta", "input"):
            self.stack.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag
    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts[-1][1] += data
p = Page()
p.feed(open(sys.argv[1]).read())
assert p.stack == [] and len(p.scripts) == 2, (p.stack, len(p.scripts))
assert p.scripts[0][0] == {"type": "application/json", "id": "trace"}
assert json.loads(p.scripts[0][1]) == [json.loads(l) for l in open(sys.argv[2])]
X
}
ok 'a page without network' page
printf '{"trace": 1}\n{"texts": {"1": "</script><script>alert(1)</script>"}}\n' > "$scratch/evil"
evil() { "$client" trace-html "$scratch/evil" > "$scratch/page" && [ "$(grep -c '</script>' "$scratch/page")" -eq 2 ] && ! grep -q '<script>alert' "$scratch/page"; }
ok 'text cannot end the script' evil
bad() { # NAME CONTENT WHAT-THE-ERROR-SAYS
    printf '%b' "$2" > "$scratch/bad"
    says() {
        "$client" trace-html "$scratch/bad" > /dev/null 2> "$scratch/err"
        [ $? -eq 1 ] && grep -qF "$1" "$scratch/err"
    }
    ok "$1" says "$3"
}
bad 'no JSON' '{"trace": 1}\nx\n' 'bad:2: no JSON'
bad 'no trace' '{"trace": 2}\n' 'bad:1: "trace" must be 1'
bad 'an empty file' '' 'it is empty'
bad 'half a round' '{"trace": 1}\n{"round": 0, "at": 0}\n' 'bad:2: a round needs'
bad 'no object' '[1]\n' 'bad:1: must be an object'
usage() { # ARGUMENT...
    "$client" "$@" > /dev/null 2> "$scratch/err"
    [ $? -eq 2 ]
}
ok 'no file' usage trace-html
ok 'two formats' usage generate --trace --json hi
ok 'two traces to one place' usage generate --trace --trace-json - hi
nowhere() {
    ask --trace-json /nowhere/t > /dev/null 2> "$scratch/err"
    [ $? -eq 1 ] && grep -qF '/nowhere/t' "$scratch/err"
}
ok 'a file that cannot be' nowhere
onto_itself() { # FILE ARGUMENT...
    before=$(cksum < "$1") && file=$1
    shift
    "$client" "$@" > "$scratch/out" 2> "$scratch/err" < "$file"
    [ $? -eq 2 ] && [ ! -s "$scratch/out" ] && grep -q "$file is what is read" "$scratch/err" && [ "$before" = "$(cksum < "$file")" ]
}
outputs() {
    echo hi > "$scratch/hi"
    onto_itself "$scratch/t" trace-html "$scratch/t" -o "$scratch/t" && onto_itself "$scratch/t" trace-html - -o "$scratch/t" &&
        onto_itself "$scratch/hi" generate --raw --file "$scratch/hi" --trace-json "$scratch/hi" &&
        onto_itself "$scratch/hi" generate --raw --trace-json "$scratch/hi" &&
        onto_itself "$scratch/hi" batch --raw "$scratch/hi" --output "$scratch/hi" && onto_itself "$scratch/hi" batch --raw --output "$scratch/hi" || return 1
    echo '{"prompt": "hi"}' > "$scratch/line"
    # shellcheck disable=SC2094 # on purpose
    "$client" batch --raw "$scratch/line" >> "$scratch/line" 2> "$scratch/err"
    [ $? -eq 2 ] && grep -q 'what is read' "$scratch/err" && [ "$(wc -l < "$scratch/line")" -eq 1 ]
}
ok 'no file is written over what is read' outputs
# A file of rounds appears when it is whole: a request that fails leaves what was there.
whole() {
    cp "$scratch/t" "$scratch/kept" && ! ask --trace-json "$scratch/kept" --method guess > /dev/null 2>&1 && cmp "$scratch/t" "$scratch/kept"
}
ok 'a request that fails leaves the trace before it' whole
full() {
    ask --trace-json /dev/full > /dev/null 2> "$scratch/err"
    [ $? -eq 1 ] && grep -qF '/dev/full' "$scratch/err"
}
ok 'a full disk' full
refused() { # OPTION VALUE
    ask "--$1" "$2" > /dev/null 2> "$scratch/err"
    [ $? -eq 4 ] && grep -qF "$2" "$scratch/err"
}
ok 'a visibility that is none' refused edit-visibility sideways
ok 'a rule that is none' refused verification maybe
rejection() { ask --method dflash --verification rejection --temperature 1 --seed 1 > "$scratch/got" && [ -s "$scratch/got" ]; }
ok 'rejection sampling' rejection
no_noise() {
    ask --method ar --temperature 1 --seed 2 > "$scratch/want" && ask --method dedit --edit-visibility causal --no-noise --temperature 1 --seed 2 > "$scratch/got" &&
        cmp "$scratch/want" "$scratch/got"
}
ok 'causal edits, no noise: the same bytes' no_noise
ngram() {
    ask --method ngram --repetition-penalty 0.3 --trace-json "$scratch/look-up" > "$scratch/got" &&
        ask --method ar --repetition-penalty 0.3 > "$scratch/want" && cmp "$scratch/want" "$scratch/got" &&
        python3 "$scratch/check.py" "$scratch/look-up" ngram
}
ok 'look-up, which has no passes' ngram
finish
