#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares dedit with llama.cpp on one GGUF file: pairs of runs, one after the other, same threads.
#
#   bench/peers/llama-bench.sh [--build DIR] [--bench PROGRAM] [--threads N] [--pairs N]
#                              [--rows N,...] [--context N] [--prefill N] [--csv FILE]
#                              [MODEL.gguf]
#
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
pairs=20 rows=1,2,4,8,16,32 prefill=512 context=256 csv='' model=''

usage() { sed -n '3,11s/^# \{0,1\}//p' "$0"; }
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
        --build | --bench | --threads | --pairs | --rows | --context | --prefill | --csv)
            [ $# -gt 1 ] || die "$1 needs a value"
            eval "${1#--}=\$2"
            shift
            ;;
        -*)
            usage >&2
            exit 2
            ;;
        *) model=$1 ;;
    esac
    shift
done
[ -n "$model" ] || model=$("$top/models/fetch" --print) || exit 1
[ -f "$model" ] || die "$model: no such file"
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
# Milliseconds of a step of $2 rows after $1 positions: a prompt of so many tokens, or, for one row, the
# mean of eight generated tokens.
peer_ms() {
    if [ "$2" = 1 ]; then set -- "$1" 0 8; else set -- "$1" "$2" 0; fi
    "$peer" -m "$model" -t "$threads" -d "$1" -p "$2" -n "$3" -b 512 -ub 512 -r 1 -o json 2> "$tmp/peer.err" > "$tmp/peer.json" || {
        tail -n 3 "$tmp/peer.err" >&2
        die "llama-bench failed"
    }
    python3 -c '
import json, sys
t = json.load(open(sys.argv[1]))[0]
n = t["n_prompt"] or t["n_gen"]
print(t["avg_ns"] / (1 if t["n_prompt"] else n) / 1e6)' "$tmp/peer.json"
}
our_ms() {
    if [ "$1" = prefill ]; then
        "$bench" step --model "$model" --threads "$threads" --prefill "$2" --repetitions 6 --csv "$tmp/our.csv" > "$tmp/our.log" 2>&1
    else
        "$bench" step --model "$model" --threads "$threads" --rows "$2" --context "$context" --repetitions 6 --csv "$tmp/our.csv" > "$tmp/our.log" 2>&1
    fi || {
        tail -n 3 "$tmp/our.log" >&2
        die "dedit-bench failed"
    }
    python3 -c '
import csv, sys
print(next(csv.DictReader(open(sys.argv[1])))["ms"])' "$tmp/our.csv"
}

: > "$tmp/pairs"
pair=0
while [ "$pair" -lt "$pairs" ]; do
    pair=$((pair + 1))
    for n in $(echo "$rows" | tr , ' '); do
        echo "rows $n $(our_ms rows "$n") $(peer_ms "$context" "$n")" >> "$tmp/pairs"
    done
    [ "$prefill" = 0 ] || echo "prefill $prefill $(our_ms prefill "$prefill") $(peer_ms 0 "$prefill")" >> "$tmp/pairs"
done
python3 - "$tmp/pairs" "$csv" "$model" "$threads" << 'X'
import math, statistics, sys
pairs, out, model, threads = sys.argv[1:]
table = {}
for line in open(pairs):
    kind, n, ours, peer = line.split()
    table.setdefault((kind, int(n)), []).append((float(ours), float(peer)))
def interval(x):
    x = sorted(x)
    n, half = len(x), 0.98 * math.sqrt(len(x))
    return x[max(0, math.floor(n / 2 - half))], x[min(n, math.ceil(n / 2 + half)) - 1]
lines = ["what,n,dedit_ms,llama_ms,llama_over_dedit,lo,hi,pairs"]
print(f"{model}, {threads} threads; llama.cpp gives no logits but the last row's")
print("what        n    dedit ms    llama.cpp ms    llama.cpp / dedit (95 %)")
for (kind, n), p in table.items():
    ratio = [b / a for a, b in p]
    lo, hi = interval(ratio)
    a, b, r = (statistics.median(v) for v in ([x for x, _ in p], [y for _, y in p], ratio))
    print(f"{kind:8} {n:4} {a:11.3f} {b:15.3f} {r:10.2f} ({lo:.2f}-{hi:.2f})")
    lines.append(f"{kind},{n},{a:.4f},{b:.4f},{r:.4f},{lo:.4f},{hi:.4f},{len(p)}")
if out:
    open(out, "w").write("\n".join(lines) + "\n")
X
