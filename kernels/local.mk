# SPDX-License-Identifier: Apache-2.0
# One archive a tier, since each has its own instruction-set flags; nothing else may be compiled
# with them.  cpu/<op>/c.c goes into the first, cpu/<op>/avx2.c into the second, and so on.
noinst_LIBRARIES += libdedit-kernels.a
kernels_tiers =
if BUILD_AVX2
noinst_LIBRARIES += libdedit-kernels-avx2.a
kernels_tiers += libdedit-kernels-avx2.a
endif
if BUILD_AVX512
noinst_LIBRARIES += libdedit-kernels-avx512.a
kernels_tiers += libdedit-kernels-avx512.a
endif
if BUILD_AMX
noinst_LIBRARIES += libdedit-kernels-amx.a
kernels_tiers += libdedit-kernels-amx.a
endif
# Twice each: the dispatcher refers to the tiers, and the tiers to shared helpers that refer back.
kernels_libs = libdedit-kernels.a $(kernels_tiers) libdedit-kernels.a $(kernels_tiers) libdedit-cuda-open.a

# One file a line, in alphabetical order.
libdedit_kernels_a_SOURCES = \
	%D%/act.c \
	%D%/cpu/act-quant/c.c \
	%D%/cpu/act/c.c \
	%D%/cpu/act/float.h \
	%D%/cpu/dispatch.c \
	%D%/cpu/internal.h \
	%D%/cpu/matmul-quant/c.c \
	%D%/cpu/amx_ref.h \
	%D%/cpu/matmul/amx_ref.c \
	%D%/cpu/matmul/c.c \
	%D%/cpu/quant/block.c \
	%D%/cpu/quant/block.h \
	%D%/cpu/quant/layout.h \
	%D%/cpu/quant/pack.c \
	%D%/cpu/matmul/tile.h \
	%D%/cpu/tier.c \
	%D%/dtype.c \
	%D%/fma.h \
	%D%/kernels.h \
	%D%/pool.c \
	%D%/weight.c

libdedit_kernels_avx2_a_CFLAGS = $(DEDIT_CFLAGS) $(DEDIT_WARN_CFLAGS) $(AVX2_CFLAGS)
libdedit_kernels_avx2_a_SOURCES = \
	%D%/cpu/act-quant/avx2.c \
	%D%/cpu/matmul-quant/avx2.c \
	%D%/cpu/quant/avx2.h \
	%D%/cpu/matmul/avx2.c

libdedit_kernels_avx512_a_CFLAGS = $(DEDIT_CFLAGS) $(DEDIT_WARN_CFLAGS) $(AVX512_CFLAGS)
libdedit_kernels_avx512_a_SOURCES = \
	%D%/cpu/act-quant/avx512.c \
	%D%/cpu/matmul-quant/avx512.c \
	%D%/cpu/matmul/avx512.c \
	%D%/cpu/quant/avx512.h

libdedit_kernels_amx_a_CFLAGS = $(DEDIT_CFLAGS) $(DEDIT_WARN_CFLAGS) $(AMX_CFLAGS)
libdedit_kernels_amx_a_SOURCES = \
	%D%/cpu/act/amx.c \
	%D%/cpu/matmul-quant/amx.c \
	%D%/cpu/matmul-quant/amx_unit.h \
	%D%/cpu/amx.h \
	%D%/cpu/attention/amx.c \
	%D%/cpu/attention/amx_round.h \
	%D%/cpu/attention/chunk.h \
	%D%/cpu/matmul/amx.c

# All ops but products; vector.h is compiled once for each of the two vector tiers.
libdedit_kernels_a_SOURCES += \
	%D%/cpu/attention/amx_ref.c \
	%D%/cpu/attention/c.c \
	%D%/cpu/elementwise/c.c \
	%D%/cpu/kv_store/c.c \
	%D%/cpu/rmsnorm/c.c \
	%D%/cpu/rope/c.c \
	%D%/cpu/sampling/c.c \
	%D%/cpu/v16.h \
	%D%/cpu/vmath.h \
	%D%/kv.c \
	%D%/math.c \
	%D%/math.h
libdedit_kernels_avx2_a_SOURCES += \
	%D%/cpu/attention/avx2.c \
	%D%/cpu/attention/chunk.h \
	%D%/cpu/attention/tile.h \
	%D%/cpu/attention/one-row.h \
	%D%/cpu/attention/vector.h \
	%D%/cpu/elementwise/avx2.c \
	%D%/cpu/elementwise/vector.h \
	%D%/cpu/kv_store/avx2.c \
	%D%/cpu/kv_store/vector.h \
	%D%/cpu/math/avx2.c \
	%D%/cpu/rmsnorm/avx2.c \
	%D%/cpu/rmsnorm/vector.h \
	%D%/cpu/rope/avx2.c \
	%D%/cpu/rope/vector.h \
	%D%/cpu/sampling/avx2.c \
	%D%/cpu/sampling/philox.h \
	%D%/cpu/sampling/vector.h
libdedit_kernels_avx512_a_SOURCES += \
	%D%/cpu/attention/avx512.c \
	%D%/cpu/attention/chunk.h \
	%D%/cpu/attention/tile.h \
	%D%/cpu/attention/one-row.h \
	%D%/cpu/attention/vector.h \
	%D%/cpu/elementwise/avx512.c \
	%D%/cpu/elementwise/vector.h \
	%D%/cpu/kv_store/avx512.c \
	%D%/cpu/kv_store/vector.h \
	%D%/cpu/rmsnorm/avx512.c \
	%D%/cpu/rmsnorm/vector.h \
	%D%/cpu/rope/avx512.c \
	%D%/cpu/rope/vector.h \
	%D%/cpu/sampling/avx512.c \
	%D%/cpu/sampling/philox.h \
	%D%/cpu/sampling/vector.h
# The host's side of the CUDA kernels: needs no CUDA.
libdedit_kernels_a_SOURCES += \
	%D%/cuda/cuda_kernels.h \
	%D%/cuda/layout.c \
	%D%/cuda/layout.h

# Training.
libdedit_kernels_a_SOURCES += \
	%D%/cpu/gemm/c.c \
	%D%/cpu/train/body.h \
	%D%/cpu/train/c.c \
	%D%/cpu/train/dispatch.c \
	%D%/cpu/train/internal.h \
	%D%/train.h
libdedit_kernels_avx2_a_SOURCES += \
	%D%/cpu/gemm/avx2.c \
	%D%/cpu/gemm/tile.h \
	%D%/cpu/train/avx2.c
libdedit_kernels_avx512_a_SOURCES += \
	%D%/cpu/gemm/avx512.c \
	%D%/cpu/gemm/avx512bf16.c \
	%D%/cpu/gemm/transpose16.h \
	%D%/cpu/gemm/tile.h \
	%D%/cpu/train/avx512.c
libdedit_kernels_amx_a_SOURCES += \
	%D%/cpu/gemm/amx.c \
	%D%/cpu/gemm/amx_copy.h \
	%D%/cpu/gemm/transpose16.h \
	%D%/cpu/train/amx.c
EXTRA_DIST += %D%/README.md
