# SPDX-License-Identifier: Apache-2.0
# A unit test is one program: add it to check_PROGRAMS, with _SOURCES and one of the link lists.
AM_TESTS_ENVIRONMENT = top_srcdir='$(abs_top_srcdir)'; top_builddir='$(abs_top_builddir)'; \
	CC='$(CC)'; export top_srcdir top_builddir CC;
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
base_test_libs = libdedit-test.a libdedit-base.a $(JANSSON_LIBS) $(CHECK_LIBS)
kernels_test_libs = libdedit-test.a $(kernels_libs) libdedit-base.a $(JANSSON_LIBS) $(CHECK_LIBS)
engine_test_libs = libdedit-test.a $(engine_libs) $(CHECK_LIBS)

proto_test_libs = libdedit-test.a $(proto_libs) $(JANSSON_LIBS) $(CHECK_LIBS)

check_PROGRAMS += %D%/unit/test-base %D%/unit/test-ring %D%/unit/test-packet
tests_unit_test_ring_SOURCES = %D%/unit/test-ring.c
tests_unit_test_ring_LDADD = $(proto_test_libs)
tests_unit_test_packet_SOURCES = %D%/unit/test-packet.c
tests_unit_test_packet_LDADD = $(proto_test_libs)
tests_unit_test_base_SOURCES = %D%/unit/test-base.c
tests_unit_test_base_LDADD = $(base_test_libs)

check_PROGRAMS += %D%/unit/test-quant-format
tests_unit_test_quant_format_SOURCES = %D%/unit/test-quant-format.c
tests_unit_test_quant_format_LDADD = $(kernels_test_libs)

check_PROGRAMS += %D%/unit/test-matmul
tests_unit_test_matmul_SOURCES = %D%/unit/test-matmul.c
tests_unit_test_matmul_CPPFLAGS = $(AM_CPPFLAGS)
tests_unit_test_matmul_LDADD = $(kernels_test_libs) -lm

check_PROGRAMS += %D%/unit/test-stop
tests_unit_test_stop_SOURCES = %D%/unit/test-stop.c
tests_unit_test_stop_LDADD = $(engine_test_libs)

if BUILD_AMX
tests_unit_test_matmul_SOURCES += %D%/amx-emu/amx-emu.h %D%/amx-emu/matmul-bf16.c
tests_unit_test_matmul_CPPFLAGS += -DHAVE_AMX_EMU
endif
endif
# Reference data; the one big tokenizer is packed, and unpacked into the build folder for the tests.
EXTRA_DIST += %D%/golden
check_DATA = %D%/golden/qwen3-tokenizer/tokenizer.json
CLEANFILES += %D%/golden/qwen3-tokenizer/tokenizer.json
%D%/golden/qwen3-tokenizer/tokenizer.json: %D%/golden/qwen3-tokenizer/tokenizer.json.xz
	$(AM_V_GEN)$(MKDIR_P) $(@D) && xz -dc $(srcdir)/tests/golden/qwen3-tokenizer/tokenizer.json.xz >$@.tmp && \
	  mv $@.tmp $@


lint_tests = \
	%D%/lint/banned.sh \
	%D%/lint/files.sh \
	%D%/lint/layers.sh \
	%D%/lint/shell.sh
EXTRA_DIST += $(lint_tests) %D%/lint/lint.sh %D%/lint/code.awk
TESTS += $(check_PROGRAMS) $(lint_tests)
