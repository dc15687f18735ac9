#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares dedit with llama.cpp on GGUF files: pairs of runs, one after the other, same threads.
#
#   bench/peers/llama-bench.sh [--build DIR] [--bench PROGRAM] [--threads N] [--pairs N]
#                              [--rows N,...] [--context N] [--prefill N] [--csv FILE]
#                              [--keep FILE] [--all-logits] [MODEL.gguf]...
#
# Several files take turns.  --rows 0 or --prefill 0 leaves that part out.  FILE of --keep gets a line for
# each pair: model, what, n, ms of either.  A later call with the same FILE goes on from there, so that many
# pairs may be cut into several sittings; --pairs 0 prints what it holds.
# Both compute the logits of the last row only, the only ones that llama-bench asks for; --all-logits: here
# those of every row, as verifying drafts needs them.
# DIR (default: ~/.cache/dedit/llama.cpp) holds a llama.cpp build; it is made there when there is none:
# from the source distribution of the Python package llama-cpp-python, natively, with the compiler
# barrier that gcc 12 needs before the AMX tile configuration.  That takes about a quarter of an hour.
set -u
me=llama-bench.sh
version=0.3.36
build=${XDG_CACHE_HOME:-$HOME/.cache}/dedit/llama.cpp
top=$(cd "$(dirname "$0")/../.." && pwd)
bench=$top/build/bench/dedit-bench
threads=$(nproc)
pairs=20 rows=1,2,4,8,16,32 prefill=512 context=256 csv='' keep='' models='' last=--last-logits

usage() { sed -n '3,17s/^# \{0,1\}//p' "$0"; }
die() {
    echo "$me: $*" >&2
    exit 1
}
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --build | --bench | --threads | --pairs | --rows | --context | --prefill | --csv | --keep)
            [ $# -gt 1 ] || die "$1 needs a value"
            eval "${1#--}=\$2"
            shift
            ;;
        --all-logits) last='' ;;
        -*)
            usage >&2
            exit 2
            ;;
        *)
            [ -f "$1" ] || die "$1: no such file"
            models="$models$1
"
            ;;
    esac
    shift
done
[ -n "$models" ] || models=$("$top/models/fetch" --print) || exit 1
[ -x "$bench" ] || die "$bench is missing: make bench/dedit-bench, or --bench PROGRAM"

build_llama() {
    command -v cmake > /dev/null 2>&1 || die "cmake is missing (Debian package: cmake)"
    command -v g++ > /dev/null 2>&1 || die "g++ is missing (Debian package: g++)"
    mkdir -p "$build/src" || exit 1
    echo "$me: building llama.cpp in $build (log: $build/log)" >&2
    {
        python3 -m pip download --no-deps --no-binary=:all: --dest "$build" "llama-cpp-python==$version" || exit 1
        tar -xzf "$build"/llama_cpp_python-*.tar.gz -C "$build/src" --strip-components=1 || exit 1
        amx=$build/src/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
        # gcc 12 drops most of the configuration's stores before _tile_loadconfig.
        [ ! -f "$amx" ] || sed -i 's|^\( *\)_tile_loadconfig(&\([a-z_]*\));|\1__asm__ volatile("" : : "r"(\&\2) : "memory");\n\1_tile_loadconfig(\&\2);|' "$amx"
        cmake -S "$build/src/vendor/llama.cpp" -B "$build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
            -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF &&
            cmake --build "$build" --target llama-bench -j "$(nproc)"
    } > "$build/log" 2>&1 || {
        tail -n 15 "$build/log" >&2
        die "building llama.cpp failed"
    }
}
peer=$build/bin/llama-bench
[ -x "$peer" ] || build_llama
[ -x "$peer" ] || die "$peer was not built"

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
# run PROGRAM ARGUMENT...: its output goes to $tmp/log, its errors end us.
run() {
    "$@" > "$tmp/log" 2> "$tmp/err" || {
        tail -n 3 "$tmp/log" "$tmp/err" >&2
        die "$1 failed"
    }
}
# One row is a generated token for llama.cpp (the mean of eight), more are a prompt of so many.
prompts=$(echo "$rows" | tr , '\n' | grep -v '^[01]$' | paste -s -d , -)
generate=0
case ,$rows, in *,1,*) generate=8 ;; esac
[ -n "$keep" ] || keep=$tmp/pairs
: >> "$keep" || exit 1

one_pair() {
    echo '[]' > "$tmp/rows.json"
    echo '[]' > "$tmp/prefill.json"
    : > "$tmp/rows.csv"
    : > "$tmp/prefill.csv"
    if [ "$rows" != 0 ]; then
        run "$bench" step --model "$1" --threads "$threads" --rows "$rows" --context "$context" $last \
            --repetitions 6 --csv "$tmp/rows.csv"
        run "$peer" -m "$1" -t "$threads" -d "$context" -p "${prompts:-0}" -n "$generate" -b 512 -ub 512 -r 2 -o json
        mv "$tmp/log" "$tmp/rows.json"
    fi
    if [ "$prefill" != 0 ]; then
        run "$bench" step --model "$1" --threads "$threads" --prefill "$prefill" --repetitions 6 \
            --csv "$tmp/prefill.csv"
        run "$peer" -m "$1" -t "$threads" -p "$prefill" -n 0 -b 512 -ub 512 -r 2 -o json
        mv "$tmp/log" "$tmp/prefill.json"
    fi
    python3 - "$tmp" "$(basename "$1" .gguf)" >> "$keep" << 'X' || die "a table cannot be read"
import csv, json, sys
for what, key in (("rows", "rows"), ("prefill", "tokens")):
    peer = {}
    for t in json.load(open(f"{sys.argv[1]}/{what}.json")):
        if t["n_prompt"]:
            peer[t["n_prompt"]] = t["avg_ns"]
        elif t["n_gen"]:
            peer[1] = t["avg_ns"] / t["n_gen"]
    for r in csv.DictReader(open(f"{sys.argv[1]}/{what}.csv")):
        print(sys.argv[2].replace(" ", "_"), what, r[key], r["ms"], peer[int(r[key])] / 1e6)
X
}

printf '%s\n' "$models" > "$tmp/models"
pair=0
while [ "$pair" -lt "$pairs" ]; do
    pair=$((pair + 1))
    while IFS= read -r model <&3; do
        [ -z "$model" ] || one_pair "$model"
    done 3< "$tmp/models"
done
python3 - "$keep" "$csv" "$threads" << 'X'
import math, statistics, sys
pairs, out, threads = sys.argv[1:]
table = {}
for line in open(pairs):
    model, kind, n, ours, peer = line.split()
    table.setdefault((model, kind, int(n)), []).append((float(ours), float(peer)))
wide = max([len(m) for m, _, _ in table] + [5])
def interval(x):
    x = sorted(x)
    n, half = len(x), 0.98 * math.sqrt(len(x))
    return x[max(0, math.floor(n / 2 - half))], x[min(n, math.ceil(n / 2 + half)) - 1]
lines = ["model,what,n,dedit_ms,llama_ms,llama_over_dedit,lo,hi,pairs"]
print(f"{threads} threads")
print(f"{'model':{wide}} what        n    dedit ms    llama.cpp ms    llama.cpp / dedit (95 %)  pairs")
for (model, kind, n), p in sorted(table.items()):
    ratio = [b / a for a, b in p]
    lo, hi = interval(ratio)
    a, b, r = (statistics.median(v) for v in ([x for x, _ in p], [y for _, y in p], ratio))
    print(f"{model:{wide}} {kind:8} {n:4} {a:11.3f} {b:15.3f} {r:10.2f} ({lo:.2f}-{hi:.2f}) {len(p):11}")
    lines.append(f"{model},{kind},{n},{a:.4f},{b:.4f},{r:.4f},{lo:.4f},{hi:.4f},{len(p)}")
if out:
    open(out, "w").write("\n".join(lines) + "\n")
X
