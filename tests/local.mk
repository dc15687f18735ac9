# SPDX-License-Identifier: Apache-2.0
# A unit test is one program: add it to check_PROGRAMS, with _SOURCES and one of the link lists.
AM_TESTS_ENVIRONMENT = top_srcdir='$(abs_top_srcdir)'; top_builddir='$(abs_top_builddir)'; \
	CC='$(CC)'; SANITIZE='$(DEDIT_SANITIZE)'; CACHE_DIRECTORY='$(abs_top_builddir)/tests/cache'; export top_srcdir top_builddir CC SANITIZE CACHE_DIRECTORY;
# For sanitized builds: slower, and the first finding ends the program.  No fake stack: gcc 12 aligns it
# to 32 bytes, and the spills of 64-byte vectors then crash.
if SANITIZED
AM_TESTS_ENVIRONMENT += CK_TIMEOUT_MULTIPLIER=10; \
	ASAN_OPTIONS="allocator_may_return_null=1:detect_stack_use_after_return=0:strict_string_checks=1:$$ASAN_OPTIONS"; \
	UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:$$UBSAN_OPTIONS"; \
	TSAN_OPTIONS="allocator_may_return_null=1:halt_on_error=1:second_deadlock_stack=1:$$TSAN_OPTIONS"; \
	export CK_TIMEOUT_MULTIPLIER ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS;
endif
tap_driver = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(tap_driver)
TEST_EXTENSIONS = .sh
SH_LOG_DRIVER = $(tap_driver)
SH_LOG_COMPILER = $(SHELL)

if ENABLE_TESTS
check_LIBRARIES += libdedit-test.a
libdedit_test_a_SOURCES = \
	%D%/unit/golden.c \
	%D%/unit/golden.h \
	%D%/unit/util.c \
	%D%/unit/util.h
base_test_libs = libdedit-test.a libdedit-base.a $(JANSSON_LIBS) $(CHECK_LIBS) -lm
kernels_test_libs = libdedit-test.a $(kernels_libs) libdedit-base.a $(JANSSON_LIBS) $(CHECK_LIBS) -lm
engine_test_libs = libdedit-test.a $(engine_libs) $(CHECK_LIBS) -lm

proto_test_libs = libdedit-test.a $(proto_libs) $(JANSSON_LIBS) $(CHECK_LIBS)

check_PROGRAMS += %D%/unit/test-libdedit %D%/unit/test-libdedit-calls %D%/unit/test-libdedit-lies
libdedit_tests = %D%/unit/fake-daemon.c %D%/unit/fake-daemon.h %D%/unit/libdedit-util.h
libdedit_test_libs = libdedit-test.a $(libdedit_core_libs) $(proto_libs) $(JANSSON_LIBS) $(CHECK_LIBS)
tests_unit_test_libdedit_SOURCES = %D%/unit/test-libdedit.c $(libdedit_tests)
tests_unit_test_libdedit_LDADD = $(libdedit_test_libs)
tests_unit_test_libdedit_calls_SOURCES = %D%/unit/test-libdedit-calls.c $(libdedit_tests)
tests_unit_test_libdedit_calls_LDADD = $(libdedit_test_libs)
tests_unit_test_libdedit_lies_SOURCES = %D%/unit/test-libdedit-lies.c $(libdedit_tests)
tests_unit_test_libdedit_lies_LDADD = $(libdedit_test_libs)

check_PROGRAMS += %D%/unit/test-base %D%/unit/test-ring %D%/unit/test-packet
tests_unit_test_ring_SOURCES = %D%/unit/test-ring.c
tests_unit_test_ring_LDADD = $(proto_test_libs)
tests_unit_test_packet_SOURCES = %D%/unit/test-packet.c
tests_unit_test_packet_LDADD = $(proto_test_libs)
tests_unit_test_base_SOURCES = %D%/unit/test-base.c
tests_unit_test_base_LDADD = $(base_test_libs)

check_PROGRAMS += %D%/unit/test-base-fd
tests_unit_test_base_fd_SOURCES = %D%/unit/test-base-fd.c
tests_unit_test_base_fd_LDADD = $(base_test_libs)

check_PROGRAMS += %D%/unit/test-base-options
tests_unit_test_base_options_SOURCES = %D%/unit/test-base-options.c
tests_unit_test_base_options_LDADD = $(base_test_libs)

check_PROGRAMS += %D%/unit/test-base-parse
tests_unit_test_base_parse_SOURCES = %D%/unit/test-base-parse.c
tests_unit_test_base_parse_LDADD = $(base_test_libs)

check_PROGRAMS += %D%/unit/test-frame
tests_unit_test_frame_SOURCES = %D%/unit/test-frame.c
tests_unit_test_frame_LDADD = $(base_test_libs)

engine_fixtures = %D%/unit/engine-util.c %D%/unit/engine-util.h %D%/unit/fixture.c %D%/unit/fixture.h
check_PROGRAMS += %D%/unit/test-engine-feed
tests_unit_test_engine_feed_SOURCES = %D%/unit/test-engine-feed.c $(engine_fixtures)
tests_unit_test_engine_feed_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-engine-drafter
tests_unit_test_engine_drafter_SOURCES = %D%/unit/test-engine-drafter.c $(engine_fixtures) \
	%D%/unit/draftergen.c %D%/unit/draftergen.h %D%/unit/modelgen.c %D%/unit/modelgen.h
tests_unit_test_engine_drafter_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-engine-long
tests_unit_test_engine_long_SOURCES = %D%/unit/test-engine-long.c $(engine_fixtures)
tests_unit_test_engine_long_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-engine-random
tests_unit_test_engine_random_SOURCES = %D%/unit/test-engine-random.c $(engine_fixtures)
tests_unit_test_engine_random_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-engine-request
tests_unit_test_engine_request_SOURCES = %D%/unit/test-engine-request.c $(engine_fixtures)
tests_unit_test_engine_request_LDADD = $(engine_test_libs) -lm
check_PROGRAMS += %D%/unit/test-engine-schedule
tests_unit_test_engine_schedule_SOURCES = %D%/unit/test-engine-schedule.c $(engine_fixtures)
tests_unit_test_engine_schedule_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-engine-round
tests_unit_test_engine_round_SOURCES = %D%/unit/test-engine-round.c $(engine_fixtures)
tests_unit_test_engine_round_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-ddtree %D%/unit/test-drafter %D%/unit/test-drafter-file \
	%D%/unit/test-drafter-rows
tests_unit_test_drafter_rows_SOURCES = %D%/unit/test-drafter-rows.c %D%/unit/draftergen.c \
	%D%/unit/draftergen.h %D%/unit/fixture.c %D%/unit/fixture.h %D%/unit/modelgen.c \
	%D%/unit/modelgen.h
tests_unit_test_drafter_rows_LDADD = $(engine_test_libs) -lm
tests_unit_test_drafter_file_SOURCES = %D%/unit/test-drafter-file.c %D%/unit/draftergen.c \
	%D%/unit/draftergen.h %D%/unit/modelgen.c %D%/unit/modelgen.h
tests_unit_test_drafter_file_LDADD = $(engine_test_libs) -lm
tests_unit_test_ddtree_SOURCES = %D%/unit/test-ddtree.c
tests_unit_test_ddtree_LDADD = $(engine_test_libs) -lm
tests_unit_test_drafter_SOURCES = %D%/unit/test-drafter.c %D%/unit/draftergen.c \
	%D%/unit/draftergen.h %D%/unit/modelgen.c %D%/unit/modelgen.h
tests_unit_test_drafter_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-controller
tests_unit_test_controller_SOURCES = %D%/unit/test-controller.c $(engine_fixtures)
tests_unit_test_controller_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-drafting
tests_unit_test_drafting_SOURCES = %D%/unit/test-drafting.c %D%/unit/fake-drafter.c \
	%D%/unit/fake-drafter.h $(engine_fixtures)
tests_unit_test_drafting_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-methods
tests_unit_test_methods_SOURCES = %D%/unit/test-methods.c $(engine_fixtures)
tests_unit_test_methods_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-drafted-bytes
test_record = %D%/unit/record.c %D%/unit/record.h
tests_unit_test_drafted_bytes_SOURCES = %D%/unit/test-drafted-bytes.c $(test_record) %D%/unit/fake-drafter.c \
	%D%/unit/fake-drafter.h $(engine_fixtures)
tests_unit_test_drafted_bytes_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-train-author %D%/unit/test-train-data %D%/unit/test-train-files
tests_unit_test_train_author_SOURCES = %D%/unit/test-train-author.c %D%/unit/fixture.c \
	%D%/unit/fixture.h
tests_unit_test_train_author_LDADD = libdedit-test.a $(train_libs) $(CHECK_LIBS) -lm
tests_unit_test_train_files_SOURCES = %D%/unit/test-train-files.c
tests_unit_test_train_files_LDADD = libdedit-test.a $(train_libs) $(CHECK_LIBS) -lm
tests_unit_test_train_data_SOURCES = %D%/unit/test-train-data.c
tests_unit_test_train_data_LDADD = libdedit-test.a $(train_libs) $(CHECK_LIBS) -lm

check_PROGRAMS += %D%/unit/test-proposal
tests_unit_test_proposal_SOURCES = %D%/unit/test-proposal.c
tests_unit_test_proposal_LDADD = $(engine_test_libs)

check_PROGRAMS += %D%/unit/test-kv
tests_unit_test_kv_SOURCES = %D%/unit/test-kv.c
tests_unit_test_kv_LDADD = $(engine_test_libs)

check_PROGRAMS += %D%/unit/test-quant-format
tests_unit_test_quant_format_SOURCES = %D%/unit/guard.h %D%/unit/test-quant-format.c
tests_unit_test_quant_format_LDADD = $(kernels_test_libs)

check_PROGRAMS += %D%/unit/test-quant-mm
tests_unit_test_quant_mm_SOURCES = \
	%D%/unit/guard.h \
	%D%/unit/quant-case.c \
	%D%/unit/quant-case.h \
	%D%/unit/test-quant-mm.c
tests_unit_test_quant_mm_LDADD = $(amx_emu_libs) $(kernels_test_libs)

check_PROGRAMS += %D%/unit/test-tier
tests_unit_test_tier_SOURCES = %D%/unit/test-tier.c
tests_unit_test_tier_LDADD = $(kernels_test_libs) -lm

check_PROGRAMS += %D%/unit/test-pool
tests_unit_test_pool_SOURCES = %D%/unit/test-pool.c
tests_unit_test_pool_LDADD = $(kernels_test_libs)

check_PROGRAMS += %D%/unit/test-matmul
tests_unit_test_matmul_SOURCES = %D%/unit/guard.h %D%/unit/test-matmul.c
tests_unit_test_matmul_CPPFLAGS = $(AM_CPPFLAGS)
tests_unit_test_matmul_LDADD = $(kernels_test_libs) -lm

check_PROGRAMS += %D%/unit/test-ops-attention
tests_unit_test_ops_attention_SOURCES = %D%/unit/test-ops-attention.c %D%/unit/ops.h
tests_unit_test_ops_attention_LDADD = $(amx_emu_libs) $(kernels_test_libs) -lm
check_PROGRAMS += %D%/unit/test-ops-math
tests_unit_test_ops_math_SOURCES = %D%/unit/test-ops-math.c %D%/unit/ops.h
tests_unit_test_ops_math_LDADD = $(kernels_test_libs) -lm
check_PROGRAMS += %D%/unit/test-ops-rows
tests_unit_test_ops_rows_SOURCES = %D%/unit/test-ops-rows.c %D%/unit/ops.h
tests_unit_test_ops_rows_LDADD = $(kernels_test_libs) -lm

check_PROGRAMS += %D%/unit/test-sampler
tests_unit_test_sampler_SOURCES = %D%/unit/test-sampler.c
tests_unit_test_sampler_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-sampler-dist
tests_unit_test_sampler_dist_SOURCES = %D%/unit/test-sampler-dist.c
tests_unit_test_sampler_dist_LDADD = $(engine_test_libs) -lm

check_PROGRAMS += %D%/unit/test-stop
tests_unit_test_stop_SOURCES = %D%/unit/test-stop.c
tests_unit_test_stop_LDADD = $(engine_test_libs)

text_fixture = %D%/unit/text-fixture.c %D%/unit/text-fixture.h
check_PROGRAMS += %D%/unit/test-tokenizer-golden
tests_unit_test_tokenizer_golden_SOURCES = %D%/unit/test-tokenizer-golden.c $(text_fixture)
tests_unit_test_tokenizer_golden_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/unit/test-tokenizer
tests_unit_test_tokenizer_SOURCES = %D%/unit/test-tokenizer.c $(text_fixture)
tests_unit_test_tokenizer_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/unit/test-json
tests_unit_test_json_SOURCES = %D%/unit/test-json.c $(text_fixture)
tests_unit_test_json_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/unit/test-tokenizer-gguf
tests_unit_test_tokenizer_gguf_SOURCES = %D%/unit/test-tokenizer-gguf.c $(text_fixture)
tests_unit_test_tokenizer_gguf_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/unit/test-tokenizer-load
tests_unit_test_tokenizer_load_SOURCES = %D%/unit/test-tokenizer-load.c $(text_fixture)
tests_unit_test_tokenizer_load_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/unit/test-chat
tests_unit_test_chat_SOURCES = %D%/unit/test-chat.c $(text_fixture)
tests_unit_test_chat_LDADD = $(engine_test_libs)

check_PROGRAMS += %D%/unit/test-gguf %D%/unit/test-model-file %D%/unit/test-safetensors
model_file_tests = %D%/unit/modelgen.c %D%/unit/modelgen.h
tests_unit_test_gguf_SOURCES = %D%/unit/test-gguf.c $(model_file_tests)
tests_unit_test_gguf_LDADD = $(engine_test_libs)
tests_unit_test_model_file_SOURCES = %D%/unit/test-model-file.c $(model_file_tests)
tests_unit_test_model_file_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/unit/test-model-config
tests_unit_test_model_config_SOURCES = %D%/unit/test-model-config.c $(model_file_tests)
tests_unit_test_model_config_LDADD = $(engine_test_libs)
tests_unit_test_safetensors_SOURCES = %D%/unit/test-safetensors.c $(model_file_tests)
tests_unit_test_safetensors_LDADD = $(engine_test_libs)

train_test_libs = libdedit-test.a $(train_libs) $(CHECK_LIBS) -lm
train_fixtures = %D%/unit/train-util.c %D%/unit/train-util.h
check_PROGRAMS += %D%/unit/test-train-golden
tests_unit_test_train_golden_SOURCES = %D%/unit/test-train-golden.c $(train_fixtures)
tests_unit_test_train_golden_LDADD = $(train_test_libs)
check_PROGRAMS += %D%/unit/test-train-agree %D%/unit/test-train-fit %D%/unit/test-train-kernels
tests_unit_test_train_fit_SOURCES = %D%/unit/test-train-fit.c $(model_file_tests)
tests_unit_test_train_fit_LDADD = $(train_test_libs)
check_PROGRAMS += %D%/unit/test-train-from %D%/unit/test-train-gain
tests_unit_test_train_gain_SOURCES = %D%/unit/test-train-gain.c
tests_unit_test_train_gain_LDADD = $(train_test_libs)
tests_unit_test_train_from_SOURCES = %D%/unit/test-train-from.c
tests_unit_test_train_from_LDADD = $(train_test_libs)
tests_unit_test_train_agree_SOURCES = %D%/unit/test-train-agree.c $(train_fixtures)
tests_unit_test_train_agree_LDADD = $(train_test_libs)
tests_unit_test_train_kernels_SOURCES = %D%/unit/test-train-kernels.c
tests_unit_test_train_kernels_LDADD = $(amx_emu_libs) $(train_test_libs)

daemon_test_libs = libdedit-test.a $(daemon_libs) $(JANSSON_LIBS) $(CHECK_LIBS)
check_PROGRAMS += %D%/unit/test-daemon-config
tests_unit_test_daemon_config_SOURCES = %D%/unit/test-daemon-config.c
tests_unit_test_daemon_config_LDADD = $(daemon_test_libs)
check_PROGRAMS += %D%/unit/test-daemon-queue
tests_unit_test_daemon_queue_SOURCES = %D%/unit/test-daemon-queue.c
tests_unit_test_daemon_queue_LDADD = $(daemon_test_libs)
check_PROGRAMS += %D%/unit/test-fair
tests_unit_test_fair_SOURCES = %D%/unit/test-fair.c
tests_unit_test_fair_LDADD = $(daemon_test_libs)
check_PROGRAMS += %D%/unit/test-loop
tests_unit_test_loop_SOURCES = %D%/unit/test-loop.c
tests_unit_test_loop_LDADD = $(daemon_test_libs)
check_PROGRAMS += %D%/unit/test-quota
tests_unit_test_quota_SOURCES = %D%/unit/test-quota.c
tests_unit_test_quota_LDADD = $(daemon_test_libs)

amx_emu_libs =
if BUILD_AMX
# Tile instructions emulated, the vector instructions around them real.
check_LIBRARIES += libdedit-amx-emu.a
libdedit_amx_emu_a_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS)
libdedit_amx_emu_a_SOURCES = \
	%D%/amx-emu/amx-emu.h \
	%D%/amx-emu/attention.c \
	%D%/amx-emu/gemm.c \
	%D%/amx-emu/matmul-quant.c
amx_emu_libs += libdedit-amx-emu.a
tests_unit_test_ops_attention_CPPFLAGS = $(AM_CPPFLAGS) -DHAVE_AMX_EMU
tests_unit_test_quant_mm_CPPFLAGS = $(AM_CPPFLAGS) -DHAVE_AMX_EMU
tests_unit_test_train_kernels_CPPFLAGS = $(AM_CPPFLAGS) -DHAVE_AMX_EMU
tests_unit_test_matmul_SOURCES += %D%/amx-emu/amx-emu.h %D%/amx-emu/matmul-bf16.c
tests_unit_test_matmul_CPPFLAGS += -DHAVE_AMX_EMU
endif
# A tool, run by integration/soak.sh: no test of its own.
noinst_PROGRAMS += %D%/soak/soak
tests_soak_soak_SOURCES = %D%/soak/soak.c %D%/soak/soak.h %D%/soak/soak-clients.c %D%/soak/soak-kills.c
tests_soak_soak_LDADD = $(libdedit_core_libs)
include tests/fuzz/local.mk
if BUILD_EMU
include tests/cuda-emu/local.mk
endif
endif
# Reference data; the one big tokenizer is packed, and unpacked into the build folder for the tests.
EXTRA_DIST += %D%/data %D%/golden
golden_packed = \
	%D%/golden/qwen3-tokenizer/tokenizer.json \
	%D%/golden/smollm2-tokenizer/tokenizer.gguf
check_DATA += $(golden_packed)
CLEANFILES += $(golden_packed)
# Folders are packed whole, from the build folder too: without this the unpacked files would be there
# and the rule below would find them in the source folder.
dist-hook:
	rm -f $(golden_packed:%=$(distdir)/%)
$(golden_packed): %: $(srcdir)/%.xz
	$(AM_V_GEN)$(MKDIR_P) $(@D) && xz -dc $< >$@.tmp && mv $@.tmp $@


lint_tests = \
	%D%/lint/banned.sh \
	%D%/lint/files.sh \
	%D%/lint/layers.sh \
	%D%/lint/shell.sh
script_tests = \
	%D%/integration/check.sh \
	%D%/integration/client.sh \
	%D%/integration/daemon.sh \
	%D%/integration/daemon-config.sh \
	%D%/integration/daemon-device.sh \
	%D%/integration/daemon-faults.sh \
	%D%/integration/daemon-life.sh \
	%D%/integration/device-check.sh \
	%D%/integration/eval.sh \
	%D%/integration/examples.sh \
	%D%/integration/fetch.sh \
	%D%/integration/generate.sh \
	%D%/integration/golden-amx.sh \
	%D%/integration/golden-avx2.sh \
	%D%/integration/golden-avx512.sh \
	%D%/integration/golden-c.sh \
	%D%/integration/golden-text.sh \
	%D%/integration/install.sh \
	%D%/integration/manual.sh \
	%D%/integration/options.sh \
	%D%/integration/packages.sh \
	%D%/integration/refusals.sh \
	%D%/integration/same-bytes.sh \
	%D%/integration/soak.sh \
	%D%/integration/step.sh \
	%D%/integration/terminal.sh \
	%D%/integration/trace.sh \
	%D%/integration/train.sh \
	%D%/integration/verdict.sh
# The units as they are shipped: a sanitizer's run-time library needs what they forbid.
if !SANITIZED
script_tests += %D%/integration/systemd.sh
endif
EXTRA_DIST += %D%/integration/systemd.sh
EXTRA_DIST += %D%/integration/golden.sh %D%/integration/lib.sh \
	%D%/integration/dedit_py.py %D%/integration/harness.py \
	%D%/integration/preload.c %D%/integration/test_config.py \
	%D%/integration/test_daemon.py \
	%D%/integration/test_device.py %D%/integration/test_faults.py \
	%D%/integration/test_life.py %D%/integration/test_refusals.py \
	%D%/integration/test_terminal.py
EXTRA_DIST += $(lint_tests) %D%/lint/lint.sh %D%/lint/code.awk $(script_tests)
TESTS += $(check_PROGRAMS) $(lint_tests) $(script_tests)
