#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/device-check: what it needs and does not find is said in one line, before anything is built.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"

bin=$scratch/bin
mkdir "$bin"
# A program for the script to find: its status, and what it prints.
program() {
    printf '#!/bin/sh\necho "%s"\nexit %d\n' "$3" "$2" > "$bin/$1"
    chmod +x "$bin/$1"
}
check() { env "$@" PATH="$bin:$PATH" "$top/scripts/device-check" "$scratch/report"; }
# refused WORDS VARIABLE=VALUE...: status 1, and one line that says so.
refused() {
    words=$1
    shift
    status 1 check "$@" || return 1
    grep -q "^device-check: .*$words" "$scratch/err" && [ "$(wc -l < "$scratch/err")" -eq 1 ] && return 0
    cat "$scratch/err"
    return 1
}
program nvcc 0 nvcc
ok 'no C compiler' refused 'no C compiler none-here: install gcc' CC=none-here
ok 'no nvcc' refused 'no nvcc at /none/nvcc: install the CUDA toolkit' NVCC=/none/nvcc
ok 'a C compiler with a wrapper' refused 'no nvcc at /none/nvcc: install the CUDA toolkit' CC='env gcc' NVCC=/none/nvcc
program nvidia-smi 6 'No devices were found'
ok 'no device' refused 'finds no device: No devices were found' NVCC="$bin/nvcc"
ok 'no device, and an architecture' refused 'finds no device: No devices were found' NVCC="$bin/nvcc" CUDA_ARCH=90
program nvidia-smi 0 'No devices were found'
ok 'no device, and status 0' refused 'finds no device: No devices were found' NVCC="$bin/nvcc"
program nvidia-smi 9 "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
ok 'no driver' refused "finds no device: NVIDIA-SMI has failed because it couldn't" NVCC="$bin/nvcc"
program nvidia-smi 0 7.5
ok 'a device that is too old' refused 'compute capability 7.5, at least 8.0' NVCC="$bin/nvcc"
rm "$bin/nvidia-smi"
if ! command -v nvidia-smi > /dev/null; then
    ok 'no nvidia-smi' refused 'set CUDA_ARCH' NVCC="$bin/nvcc"
fi
finish
