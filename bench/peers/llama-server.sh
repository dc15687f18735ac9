#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares dedit-d with llama-server on one GGUF file: clients that each ask one prompt after the other, pairs of
# runs, one after the other, same threads, plain greedy decoding, no prefix shared.
#
#   bench/peers/llama-server.sh [--server PROGRAM] [--build DIR] [--threads N] [--pairs N] [--clients N,...]
#                               [--tokens N] [--rounds N] [--port N] [MODEL.gguf]
#
# PROGRAM: llama-server (default: of the build that bench/peers/llama-bench.sh makes; target llama-server).
# DIR: dedit's build folder (default: build), in which bench/daemon/measure is made.
# The other side's clients get the whole answer at once: they cost it nothing on the way.
set -u
me=llama-server.sh
top=$(cd "$(dirname "$0")/../.." && pwd)
server=${XDG_CACHE_HOME:-$HOME/.cache}/dedit/llama.cpp/bin/llama-server
build=$top/build threads=$(nproc) pairs=20 clients=8,32 tokens=128 rounds=1 port=18080
model=${XDG_CACHE_HOME:-$HOME/.cache}/dedit/models/SmolLM2-135M-Instruct.Q4_1.gguf

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
        --server | --build | --threads | --pairs | --clients | --tokens | --rounds | --port)
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
[ -x "$server" ] || die "$server: no llama-server"
[ -f "$model" ] || die "$model: no such file (models/fetch)"
make -C "$build" bench/daemon/measure daemon/dedit-d > /dev/null || die 'make failed'
scratch=$(mktemp -d) || exit 1
daemon='' peer=''
stop() {
    [ -z "$daemon" ] || kill "$daemon" 2> /dev/null
    [ -z "$peer" ] || kill "$peer" 2> /dev/null
    wait
    daemon='' peer=''
}
trap 'stop; rm -rf "$scratch"' EXIT
: > "$scratch/conf"

# One run of the peer: N threads, each with a connection, ROUNDS prompts; tokens/s on stdout.
cat > "$scratch/ask.py" << 'X'
import http.client, json, sys, threading, time
port, n, tokens, rounds = map(int, sys.argv[1:])
done, failed = [0] * n, []
def ask(who):
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        for k in range(1, rounds + 1):
            c.request("POST", "/completion", json.dumps({
                "prompt": "Client %d asks for its story number %d. Once upon a time" % (who, k - 1), "n_predict": tokens,
                "temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": False}),
                {"Content-Type": "application/json"})
            done[who] += json.load(c.getresponse())["tokens_predicted"]
    except Exception as e:
        failed.append(repr(e))
threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
start = time.monotonic()
for t in threads: t.start()
for t in threads: t.join()
if failed: sys.exit(failed[0])
print(sum(done) / (time.monotonic() - start))
X
for n in $(echo "$clients" | tr ',' ' '); do
    "$build/daemon/dedit-d" --socket "$scratch/s" --config "$scratch/conf" --threads "$threads" --model "$model" 2> "$scratch/daemon.log" &
    daemon=$!
    # A slot of the peer holds one prompt and its answer.
    "$server" -m "$model" -t "$threads" -tb "$threads" -np "$n" -c $((n * 512)) --port "$port" --host 127.0.0.1 --no-warmup \
        > "$scratch/peer.log" 2>&1 &
    peer=$!
    tries=0
    until python3 "$scratch/ask.py" "$port" 1 1 1 > /dev/null 2>&1 && "$build/bench/daemon/measure" load --socket "$scratch/s" --clients 1 --tokens 1 --rounds 1 > /dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -ge 300 ] || ! kill -0 "$peer" 2> /dev/null; then tail -n 5 "$scratch/peer.log" >&2; die 'the servers are not ready'; fi
        sleep 0.2
    done
    : > "$scratch/pairs"
    i=0
    while [ $i -lt "$pairs" ]; do
        i=$((i + 1))
        ours=$("$build/bench/daemon/measure" load --socket "$scratch/s" --clients "$n" --tokens "$tokens" --rounds "$rounds") || die 'dedit failed'
        theirs=$(python3 "$scratch/ask.py" "$port" "$n" "$tokens" "$rounds") || die 'the peer failed'
        echo "$ours" | sed -n "s/.*, \([0-9.]*\) tokens\/s; shares of the mean \([0-9.]*\) to .*/\1 \2 $theirs/p" >> "$scratch/pairs"
    done
    python3 - "$n" "$scratch/pairs" << 'X'
import math, sys
n, rows = sys.argv[1], [list(map(float, l.split())) for l in open(sys.argv[2])]
def stats(x):
    x = sorted(x)
    k, h = len(x), 0.98 * math.sqrt(len(x))
    lo, hi = max(0, math.floor(k / 2 - h)), min(k, math.ceil(k / 2 + h))
    return (x[k // 2] if k % 2 else (x[k // 2 - 1] + x[k // 2]) / 2), x[lo], x[hi - 1]
print("%s clients, %d pairs:" % (n, len(rows)))
for name, x in (("dedit-d, tokens/s", [r[0] for r in rows]), ("llama-server, tokens/s", [r[2] for r in rows]),
                ("ratio", [r[0] / r[2] for r in rows]), ("least share of a dedit client", [r[1] for r in rows])):
    print("  %-32s %8.2f [%.2f, %.2f]" % ((name,) + stats(x)))
X
    stop
done
