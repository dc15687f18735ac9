#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Proof that the kernels' tests can fail: each line below breaks one kernel, and its test must see it.
# Takes some minutes, so it is run by hand, from the build folder, after `make check`:
#   top_srcdir=.. sh ../tests/cuda-emu/mutate.sh [NAME]
set -eu
src=${top_srcdir:?}
only=${1:-}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
mkdir -p "$tmp/src/kernels" "$tmp/build"
emu=tests/cuda-emu
ls libdedit-cuda-emu.so $emu/test-kernels-mm > /dev/null
missed=0

# name, test, file that is broken, file that is compiled, sed expression
mutant()
{
    [ -z "$only" ] || [ "$only" = "$1" ] || return 0
    rm -rf "$tmp/src/kernels/cuda"
    cp -r "$src/kernels/cuda" "$tmp/src/kernels/cuda"
    sed -i "$5" "$tmp/src/kernels/cuda/$3"
    if cmp -s "$src/kernels/cuda/$3" "$tmp/src/kernels/cuda/$3"; then
        echo "not ok - $1: nothing was changed"
        missed=$((missed + 1))
        return 0
    fi
    "${CXX:-g++}" -std=gnu++17 -O1 -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -w \
        -fno-math-errno -fno-omit-frame-pointer -I"$tmp/src" -I"$src" -I. -I"$src/$emu/include" \
        -fsanitize=thread,alignment -fno-sanitize-recover=alignment -x c++ \
        -c "$tmp/src/kernels/cuda/$4.cu" -o "$tmp/mutant.o"
    objects=
    for o in "$src/$emu"/*.cc; do
        o=${o##*/}
        objects="$objects $emu/${o%.cc}.emu.o"
    done
    for o in kernels/cuda/*.emu.o; do
        [ "$o" = "kernels/cuda/$4.emu.o" ] || objects="$objects $o"
    done
    # A library that lacks something could not be opened, and no test would be needed to see that.
    # shellcheck disable=SC2086 # a list
    "${CXX:-g++}" -shared -Wl,-z,defs -o "$tmp/build/libdedit-cuda-emu.so" "$tmp/mutant.o" $objects -lpthread
    top_builddir=$tmp/build ./$emu/test-kernels-"$2" > "$tmp/log" 2>&1 || true
    if grep -q '^not ok' "$tmp/log"; then
        echo "ok - $1: $(grep -c '^not ok' "$tmp/log") tests failed: $(grep -m1 '^not ok' "$tmp/log" | cut -c1-150)"
    else
        echo "not ok - $1: no test failed"
        missed=$((missed + 1))
    fi
}

mutant ring-barrier mm matmul_float.cu matmul_float '0,/^ *__syncthreads();/s///'
mutant missing-wait mm matmul_float.cu matmul_float 's/dcu_cp_async_wait<STAGES - 2>();//'
mutant weak-wait mm matmul_quant.cu matmul_quant 's/dcu_cp_async_wait<RING_STAGES - 2>/dcu_cp_async_wait<RING_STAGES - 1>/'
mutant chain-start mm matmul_float.cu matmul_float 's/k < kn; k += 4/k + 4 < kn; k += 4/'
mutant stage-buffer mm matmul_quant.cu matmul_quant 's/buf ^= 1/buf ^= 0/'
mutant second-scale mm matmul_quant.cu matmul_quant 's/at->scale = s.dw\[h\]/at->scale = s.dw[0]/'
mutant past-a-tile mm matmul_wide.cu matmul_wide 's/dcu_min(t1 - t, CHUNK) \* pieces/CHUNK * pieces/'
mutant early-join mm matmul_wide.cu matmul_wide 's/== groups - 1;/== 0;/'
mutant group-end mm matmul_mma.cu matmul_mma 's/% GROUP == GROUP - 1/% GROUP == GROUP - 2/'
mutant rounding mm prepare.cu prepare 's/d = amax \/ 522231.0f/d = amax * (1.0f \/ 522231.0f)/'
mutant divergent rows rope.cu rope '/v\[d\] = bias/,/__syncthreads/s/__syncthreads();/if (threadIdx.x < 64) __syncthreads();/'
mutant pair-order rows attention.cu attention 's/i = 0; i < pairs; i++/i = pairs; i-- > 0;/'
mutant tail-entry attention attention.cu attention 's/words\[r.tail + p - r.tail_start\]/words[r.tail + p - r.tail_start + 1]/'
mutant wrong-block attention attention.cu attention 's/r.blocks + p \/ DK_KV_BLOCK/r.blocks + (p + 1) \/ DK_KV_BLOCK/'
mutant merge-rounding attention attention.cu attention 's/l = __fmaf_rn(x\[1\], c1, l \* c0)/l = x[1] * c1 + l * c0/'
mutant shared-path attention attention.cu attention 's/same = same \&\& s == slot0;/same = same;/'
mutant ties sample vocab.cuh sample 's/id < b->id/id > b->id/'
mutant depth sample sample.cu sample 's/r->pos + p.nodes\[row\].depth/r->pos/'
mutant next-pick sample draft.cu draft 's/p.picked\[f.pick\].token/p.picked[0].token/'
mutant next-live sample draft.cu draft 's/p.feeds\[p.live_index\[r\]\]/p.feeds[r]/'
mutant settle-first sample draft.cu draft 's/uint32_t q = 0; q < pass/uint32_t q = 1; q < pass/'
mutant settle-lanes sample draft.cu draft 's/if (__all_sync(DCU_FULL, same))/if (same)/'
mutant verify-node sample draft.cu draft 's/p.nodes\[f.node\]/p.nodes[f.row]/'
mutant walk-child sample walk.cu walk 's/parent == row \&\& /parent <= row \&\& /'
mutant walk-slot sample walk.cu walk 's/p.slots\[row0 + i\]/p.slots[row0 + path->row[i]]/'
mutant grow-ties tree tree.cu tree 's/? a.rank < b.rank/? a.rank > b.rank/'
mutant grow-parting tree tree.cu tree 's/while (a.parent != b.parent)/while (false)/'
mutant grow-sibling tree tree.cu tree 's/o.score - (double)list\[o.rank\].logprob/o.score/'
mutant grow-read tree tree.cu tree 's/__syncwarp(); .. all have read ..//'
mutant plant-path tree tree.cu tree 's/tail\[d\] = slot\[at\]/tail[d] = slot[d]/'
mutant plant-live tree tree.cu tree 's/p.live\[t.live + i\]/p.live[t.row + i]/'
mutant bins-barrier sample vocab.cuh sample '/^DCU_FN bool dcu_find_bin/,/^}/{0,/__syncthreads();/s/__syncthreads();//}'
mutant blas-scale blas blas.cu blas 's/return scaled ? scale(s, mm, scales, rows, false) : 0;/return 0;/'
mutant blas-size blas blas.cu blas 's/z->rows < rows/z->rows + 1 < rows/'
mutant blas-workspace blas blas.cu blas 's/b->workspace, b->bytes, s));/b->workspace, b->bytes \/ 4096, s));/'
mutant blas-columns blas prepare.cu prepare 's/row_bf16\[i\] = /row_bf16[i ^ 1] = /'
[ $missed = 0 ] || { echo "$missed mutants were not seen"; exit 1; }
