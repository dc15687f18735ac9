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
# Twice: the dispatcher refers to the tiers, and the tiers to shared helpers.
kernels_libs = libdedit-kernels.a $(kernels_tiers) libdedit-kernels.a

# One file a line, in alphabetical order.
libdedit_kernels_a_SOURCES = \
	%D%/act.c \
	%D%/cpu/act-quant/c.c \
	%D%/cpu/act/c.c \
	%D%/cpu/act/float.h \
	%D%/cpu/dispatch.c \
	%D%/cpu/internal.h \
	%D%/cpu/matmul-quant/c.c \
	%D%/cpu/matmul/amx_ref.c \
	%D%/cpu/matmul/c.c \
	%D%/cpu/quant/block.c \
	%D%/cpu/quant/layout.h \
	%D%/cpu/quant/pack.c \
	%D%/cpu/matmul/tile.h \
	%D%/cpu/tier.c \
	%D%/dtype.c \
	%D%/fma.h \
	%D%/kernels.h \
	%D%/math.h \
	%D%/pool.c \
	%D%/weight.c

libdedit_kernels_avx2_a_CFLAGS = $(AM_CFLAGS) $(AVX2_CFLAGS)
libdedit_kernels_avx2_a_SOURCES = \
	%D%/cpu/matmul/avx2.c

libdedit_kernels_avx512_a_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS)
libdedit_kernels_avx512_a_SOURCES = \
	%D%/cpu/matmul/avx512.c

libdedit_kernels_amx_a_CFLAGS = $(AM_CFLAGS) $(AMX_CFLAGS)
libdedit_kernels_amx_a_SOURCES = \
	%D%/cpu/amx.h \
	%D%/cpu/matmul/amx.c
