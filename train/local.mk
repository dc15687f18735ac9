# SPDX-License-Identifier: Apache-2.0
noinst_LIBRARIES += libdedit-train.a
# What a program links to train, in link order.
train_libs = libdedit-train.a $(engine_libs)

# One file a line, in alphabetical order.
libdedit_train_a_SOURCES = \
	%D%/author.c \
	%D%/author.h \
	%D%/author_internal.h \
	%D%/author_talk.c \
	%D%/csv.c \
	%D%/csv.h \
	%D%/data.c \
	%D%/data.h \
	%D%/data_file.c \
	%D%/data_line.c \
	%D%/fit.h \
	%D%/lists.c \
	%D%/lists.h \
	%D%/loop_watch.h \
	%D%/shards.c \
	%D%/shards.h

# The step, fit, widen, export.
libdedit_train_a_SOURCES += \
	%D%/adamw.c \
	%D%/adamw.h \
	%D%/anchors.c \
	%D%/anchors.h \
	%D%/attention.c \
	%D%/backward.c \
	%D%/checkpoint.c \
	%D%/checkpoint.h \
	%D%/checkpoint_folder.c \
	%D%/export.c \
	%D%/export.h \
	%D%/export_gguf.c \
	%D%/fit.c \
	%D%/fit_internal.h \
	%D%/fit_memory.c \
	%D%/fit_setup.c \
	%D%/forward.c \
	%D%/from_drafter.c \
	%D%/from_drafter.h \
	%D%/forward.h \
	%D%/gain.c \
	%D%/gain.h \
	%D%/init.c \
	%D%/loss.c \
	%D%/loss.h \
	%D%/metrics.c \
	%D%/metrics.h \
	%D%/ops.c \
	%D%/ops.h \
	%D%/proposalmix.c \
	%D%/recipe.c \
	%D%/schedule.c \
	%D%/schedule.h \
	%D%/state.c \
	%D%/state.h \
	%D%/taps.c \
	%D%/taps.h \
	%D%/taps_cache.c \
	%D%/taps_cache.h \
	%D%/tensor_file.c \
	%D%/tensor_file.h \
	%D%/vocabulary.c \
	%D%/vocabulary.h \
	%D%/widen.c

bin_PROGRAMS += %D%/dedit-train
train_dedit_train_SOURCES = \
	%D%/cli.c \
	%D%/cli.h \
	%D%/compose.c \
	%D%/compose.h \
	%D%/compose_progress.c \
	%D%/eval.c \
	%D%/eval.h \
	%D%/eval_report.c \
	%D%/export_command.c \
	%D%/fit_command.c \
	%D%/inspect.c \
	%D%/inspect.h \
	%D%/inspect_data.c \
	%D%/inspect_drafter.c \
	%D%/main.c \
	%D%/plot.c \
	%D%/plot.h \
	%D%/plot_svg.c \
	%D%/plot_text.c \
	%D%/regen.c \
	%D%/synth.c
train_dedit_train_LDADD = $(train_libs) -lm
