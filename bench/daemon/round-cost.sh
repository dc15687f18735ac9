#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where the time of dedit-d's rounds goes, by the folder of the code: round-cost.sh MODEL [CLIENTS...]
# Needs perf and a build with symbols; run from the build folder.  One thread computes, and the reader
# sleeps, so that each of its wake-ups is in the figures of the system.
set -eu
model=${1:?usage: round-cost.sh MODEL [CLIENTS...]}
shift
[ $# -gt 0 ] || set -- 1 64
build=$(pwd)
work=$(mktemp -d)
trap 'kill "$daemon" 2> /dev/null; wait "$daemon" 2> /dev/null || :; rm -rf "$work"' EXIT
: > "$work/conf"
"$build/daemon/dedit-d" --config "$work/conf" --socket "$work/s" --threads 1 --model m="$model" 2> "$work/log" &
daemon=$!
until "$build/client/dedit-client" ping --socket "$work/s" > /dev/null 2>&1; do
    kill -0 "$daemon" || { cat "$work/log"; exit 1; }
    sleep 0.2
done
nm -l --defined-only "$build/daemon/dedit-d" | sed -n 's/^[0-9a-f]* [tTwW] \([^	]*\)	\(.*\):[0-9]*$/\1 \2/p' > "$work/where"
for clients; do
    prompts=$((clients < 4 ? 4 : clients))
    perf record -q -e cpu-clock -F 1500 -p "$daemon" -o "$work/perf" 2> /dev/null &
    perf=$!
    sleep 0.5
    i=0
    while [ $i -lt $prompts ]; do
        echo '{"prompt":"The history of the world is"}'
        i=$((i + 1))
    done | "$build/client/dedit-client" batch --socket "$work/s" --raw --ignore-eos -n 120 -p "$clients" \
        > /dev/null 2>&1
    kill -INT $perf
    wait $perf || :
    perf script -i "$work/perf" -F ip,sym,dso 2> /dev/null | awk -v clients="$clients" '
        NR == FNR { file[$1] = $2; next }
        {
            name = $2
            sub(/[+].*/, "", name)
            f = file[name]
            if ($NF !~ /dedit-d/)
                part = $NF ~ /kernel/ ? "system: wake-ups, interrupts, page faults" : "C library"
            else if (f ~ /\/kernels\/|\/engine\/backend_/)
                part = "the model: kernels/, engine/backend_*"
            else if (f ~ /\/engine\//)
                part = "engine/, the rest: batches, KV blocks, sampling, stops"
            else
                part = "daemon/, proto/, base/"
            n[part]++
            all++
        }
        END {
            printf "%d client%s, %d samples\n", clients, clients == 1 ? "" : "s", all
            for (part in n)
                printf "  %6.2f %%  %s\n", 100 * n[part] / all, part | "sort -r -n"
        }' "$work/where" -
done
