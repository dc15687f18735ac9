# SPDX-License-Identifier: Apache-2.0
# bench/dedit-bench links $(engine_libs).

# Laboratory: built by name (make bench/lab/ops), not installed.
EXTRA_PROGRAMS += %D%/lab/ops
bench_lab_ops_SOURCES = %D%/lab/ops.c
bench_lab_ops_LDADD = $(kernels_libs) libdedit-base.a
EXTRA_PROGRAMS += %D%/lab/mmq
bench_lab_mmq_SOURCES = %D%/lab/mmq.c
bench_lab_mmq_LDADD = $(kernels_libs) libdedit-base.a
EXTRA_PROGRAMS += %D%/lab/mm
bench_lab_mm_SOURCES = %D%/lab/mm.c
bench_lab_mm_LDADD = $(kernels_libs) libdedit-base.a
