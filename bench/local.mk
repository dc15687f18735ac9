# SPDX-License-Identifier: Apache-2.0
bin_PROGRAMS += %D%/dedit-bench
bench_dedit_bench_SOURCES = \
	%D%/bench.h \
	%D%/check.c \
	%D%/check.h \
	%D%/check_drafter.c \
	%D%/check_models.c \
	%D%/check_numbers.c \
	%D%/check_read.c \
	%D%/check_smollm2.c \
	%D%/check_text.c \
	%D%/check_verify.c \
	%D%/controller.c \
	%D%/eval.c \
	%D%/eval.h \
	%D%/eval_answer.c \
	%D%/eval_clients.c \
	%D%/eval_pairs.c \
	%D%/eval_plot.c \
	%D%/eval_predict.c \
	%D%/eval_report.c \
	%D%/eval_run.c \
	%D%/eval_settings.c \
	%D%/floors.c \
	%D%/floors.h \
	%D%/generate.c \
	%D%/generate.h \
	%D%/generate_output.c \
	%D%/main.c \
	%D%/options.c \
	%D%/products.c \
	%D%/products.h \
	%D%/random_model.c \
	%D%/random_model.h \
	%D%/stats.c \
	%D%/stats.h \
	%D%/step.c \
	%D%/step.h \
	%D%/step_load.c \
	%D%/step_tables.c \
	%D%/tokenize.c
bench_dedit_bench_LDADD = $(engine_libs) -lm

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

EXTRA_DIST += %D%/paper/README.md %D%/paper/run %D%/paper/prompts %D%/paper/results
EXTRA_DIST += %D%/daemon/round-cost.sh %D%/peers/llama-bench.sh %D%/peers/llama-server.sh \
	%D%/peers/random-gguf.py %D%/peers/torch-train.py
EXTRA_PROGRAMS += %D%/lab/pool
bench_lab_pool_SOURCES = %D%/lab/pool.c
bench_lab_pool_LDADD = $(kernels_libs) libdedit-base.a
# What the daemon costs: make bench/daemon/measure.
EXTRA_PROGRAMS += %D%/daemon/measure
bench_daemon_measure_SOURCES = \
	%D%/daemon/handover.c \
	%D%/daemon/load.c \
	%D%/daemon/main.c \
	%D%/daemon/measure.h \
	%D%/daemon/ping.c \
	%D%/stats.c \
	%D%/stats.h
bench_daemon_measure_LDADD = $(libdedit_core_libs) $(proto_libs) -lm
EXTRA_PROGRAMS += %D%/lab/gemm
bench_lab_gemm_SOURCES = %D%/lab/gemm.c
bench_lab_gemm_LDADD = $(kernels_libs) libdedit-base.a

# Run by scripts/device-check, which builds it without the engine's libraries, and by the tests.
noinst_PROGRAMS += %D%/device-check
bench_device_check_SOURCES = %D%/device_check.c %D%/random_model.c %D%/random_model.h
bench_device_check_LDADD = $(engine_libs)
