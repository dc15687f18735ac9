#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Kernels with one seeded fault each must fail their tests: a barrier less, a shifted index, a wrong path
# entry, a read past a tile.  "make mutants" runs it (minutes); it prints TAP.
# Its environment: CXX, FLAGS, OBJECTS of libdedit-cuda-emu.so, top_srcdir, top_builddir.
set -u
: "${top_builddir:?}" "${top_srcdir:?}" "${CXX:?}" "${FLAGS:?}" "${OBJECTS:?}"
work=$top_builddir/tests/cuda-emu/mutants.dir
log=$top_builddir/tests/cuda-emu/mutants.log
: > "$log"

# mutant NUMBER "WHAT" FILE OCCURRENCE FROM TO TEST [COMPILED FILE]: the n-th line with FROM gets TO.
mutant() {
    number=$1 what=$2 file=$3 test=$7 compiled=${8:-$3}
    rm -rf "$work"
    mkdir -p "$work/kernels/cuda"
    if ! awk -v n="$4" -v from="$5" -v to="$6" '
        { at = index($0, from) }
        at && ++seen == n { $0 = substr($0, 1, at - 1) to substr($0, at + length(from)); done = 1 }
        { print }
        END { exit !done }' "$top_srcdir/kernels/cuda/$file" > "$work/kernels/cuda/$file"; then
        echo "not ok $number - $what: $file has no such line"
        return
    fi
    [ "$file" = "$compiled" ] || cp "$top_srcdir/kernels/cuda/$compiled" "$work/kernels/cuda/$compiled"
    original=kernels/cuda/$(basename "$compiled" .cu).emu.o
    objects=
    for o in $OBJECTS; do
        [ "$o" = "$original" ] || objects="$objects $o"
    done
    # shellcheck disable=SC2086 # lists of options and files
    if ! $CXX -I"$work" $FLAGS -x c++ -c -o "$work/mutant.o" "$work/kernels/cuda/$compiled" >> "$log" 2>&1 ||
        ! $CXX ${SANITIZE:-} -shared -o "$work/libmutant.so" $objects "$work/mutant.o" -lpthread >> "$log" 2>&1; then
        echo "not ok $number - $what: it does not compile"
        return
    fi
    echo "== $what" >> "$log"
    if DEDIT_CUDA_LIBRARY=$work/libmutant.so DEDIT_CUDA_EMU=$work/libmutant.so "$top_builddir/tests/cuda-emu/$test" >> "$log" 2>&1; then
        echo "not ok $number - $what: nothing noticed"
    else
        echo "ok $number - $what"
    fi
}

echo 1..16
mutant 1 'attention: a barrier less before the scores' attention.cu 1 '__syncthreads();' ';' test-kernels-attention
mutant 2 'attention: a barrier less after the scores' attention.cu 2 '__syncthreads();' ';' test-kernels-attention
mutant 3 'attention: a wrong entry of a tail' attention.cu 1 'p - r.tail_start]' 'p - r.tail_start + 1]' test-kernels-attention
mutant 4 'attention: a wrong position of a block' attention.cu 1 'p % DK_KV_BLOCK' '(p + 1) % DK_KV_BLOCK' test-kernels-attention
mutant 5 'attention: a warp barrier less' attention.cu 1 '__syncwarp();' ';' test-kernels-attention
mutant 6 'float products: a barrier less' matmul_float.cu 1 '__syncthreads();' ';' test-kernels-mm
mutant 7 'tensor cores: a barrier less' matmul_mma.cu 1 '__syncthreads();' ';' test-kernels-mm
mutant 8 'quantised products: a barrier less' matmul_quant.cu 1 '__syncthreads();' ';' test-kernels-mm
mutant 9 'preparing: a barrier less' prepare.cu 2 '__syncthreads();' ';' test-kernels-rows
mutant 10 'rotation: a barrier less' rope.cu 1 '__syncthreads();' ';' test-kernels-rows
mutant 11 'vocabulary: a barrier less' vocab.cuh 2 '__syncthreads();' ';' test-kernels-sample sample.cu
mutant 12 'the engine: K of another accepted node' attention.cu 1 'from[i]' 'from[i ? i - 1 : 0]' test-engine
mutant 13 'the engine: V of an accepted node left where it was' attention.cu 2 'from[i]' 'to[i]' test-engine
mutant 14 'the engine: a wrong node of a path' attention.cu 1 'words[r.tail + p - r.tail_start]' 'words[r.tail]' test-engine
mutant 15 'the engine: the best sibling in the place of each' tree.cu 1 'list[o.rank].token' 'list[0].token' test-engine
mutant 16 'the engine: siblings of a tree as children of each other' tree.cu 1 'o.parent == NONE ? 0 : o.parent + 1' 'n' test-engine
rm -rf "$work"
