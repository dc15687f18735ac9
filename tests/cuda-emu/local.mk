# SPDX-License-Identifier: Apache-2.0
# libdedit-cuda-emu.so: the kernels of kernels/cuda, compiled by the C++ compiler, and the runner that
# executes them on the CPU.  Opened like libdedit-cuda.so; never installed.
emu_runner = \
	%D%/blas.cc \
	%D%/check.cc \
	%D%/mma.cc \
	%D%/order.cc \
	%D%/runner.cc \
	%D%/shim.cc
emu_headers = \
	%D%/emu.h \
	%D%/include/cublasLt.h \
	%D%/include/cuda_bf16.h \
	%D%/include/cuda_fp16.h \
	%D%/include/cuda_runtime.h \
	%D%/include/cuemu.h \
	%D%/include/vector_types.h \
	%D%/runner.h
EXTRA_DIST += $(emu_runner) $(emu_headers)
emu_flags = -std=gnu++17 -O1 -g -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off \
	-fno-math-errno -fno-omit-frame-pointer -Wall -Wextra -Wno-unknown-pragmas \
	-Werror=return-type \
	-I$(srcdir) -I$(builddir) -I$(srcdir)/%D%/include
# Plain builds: the thread sanitizer's calls, answered by check.cc (see there); alignment likewise.
if SANITIZED
if SANITIZED_THREAD
emu_kernel_flags = $(DEDIT_SANITIZE) -DCUEMU_TSAN
emu_runner_flags = -DCUEMU_TSAN
else
emu_kernel_flags = $(DEDIT_SANITIZE)
emu_runner_flags = $(DEDIT_SANITIZE)
endif
emu_link_flags = $(DEDIT_SANITIZE)
else
emu_kernel_flags = -fsanitize=thread,alignment -fno-sanitize-recover=alignment
emu_runner_flags = -DCUEMU_HOOKS -O2
emu_link_flags =
endif
emu_objects = $(emu_runner:%.cc=%.emu.o)
emu_kernels = $(cuda_sources:%.cu=%.emu.o)
AM_V_EMU = $(am__v_EMU_@AM_V@)
am__v_EMU_ = $(am__v_EMU_@AM_DEFAULT_V@)
am__v_EMU_0 = @echo "  CXX-EMU " $@;
am__v_EMU_1 =
$(emu_objects): %.emu.o: $(srcdir)/%.cc
	$(AM_V_EMU)$(MKDIR_P) $(@D) && $(CXX) $(emu_flags) $(emu_runner_flags) -MD -MP -MF $@.d -MT $@ -c -o $@ $<
$(emu_kernels): %.emu.o: $(srcdir)/%.cu
	$(AM_V_EMU)$(MKDIR_P) $(@D) && $(CXX) $(emu_flags) $(emu_kernel_flags) -MD -MP -MF $@.d -MT $@ -x c++ -c -o $@ $<
tests/cuda-emu/bugs.emu.o: $(srcdir)/%D%/bugs.cu
	$(AM_V_EMU)$(MKDIR_P) $(@D) && $(CXX) $(emu_flags) $(emu_kernel_flags) -MD -MP -MF $@.d -MT $@ -x c++ -c -o $@ $<
-include $(emu_objects:%=%.d) $(emu_kernels:%=%.d) tests/cuda-emu/bugs.emu.o.d
libdedit-cuda-emu.so: $(emu_objects) $(emu_kernels)
	$(AM_V_EMU)$(CXX) $(emu_link_flags) -shared -o $@ $(emu_objects) $(emu_kernels) -lpthread
tests/cuda-emu/libbugs.so: $(emu_objects) tests/cuda-emu/bugs.emu.o
	$(AM_V_EMU)$(CXX) $(emu_link_flags) -shared -o $@ $(emu_objects) tests/cuda-emu/bugs.emu.o -lpthread
emu_libs = libdedit-cuda-emu.so tests/cuda-emu/libbugs.so
check_DATA += $(emu_libs)
CLEANFILES += $(emu_libs) $(emu_objects) $(emu_kernels) $(emu_objects:%=%.d) $(emu_kernels:%=%.d) \
	tests/cuda-emu/bugs.emu.o tests/cuda-emu/bugs.emu.o.d

check_PROGRAMS += %D%/test-emu
EXTRA_DIST += %D%/bugs.cu
%C%_test_emu_SOURCES = %D%/test-emu.c
%C%_test_emu_LDADD = $(kernels_test_libs)

# The kernels against the CPU's portable ops.
kernels_emu = %D%/kernels-util.c %D%/kernels-util.h
kernels_emu_libs = libdedit-cuda-open.a $(kernels_test_libs) -ldl
check_PROGRAMS += %D%/test-kernels-mm
%C%_test_kernels_mm_SOURCES = %D%/test-kernels-mm.c $(kernels_emu)
%C%_test_kernels_mm_LDADD = $(kernels_emu_libs)
check_PROGRAMS += %D%/test-kernels-blas
%C%_test_kernels_blas_SOURCES = %D%/test-kernels-blas.c $(kernels_emu)
%C%_test_kernels_blas_LDADD = $(kernels_emu_libs) -lm
backend_emu = %D%/emu-util.c %D%/emu-util.h $(engine_fixtures)
check_PROGRAMS += %D%/test-backend %D%/test-failures
%C%_test_backend_SOURCES = %D%/test-backend.c $(backend_emu)
%C%_test_backend_LDADD = $(engine_test_libs)
%C%_test_failures_SOURCES = %D%/test-failures.c $(backend_emu)
%C%_test_failures_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-backend-fast
%C%_test_backend_fast_SOURCES = %D%/test-backend-fast.c $(backend_emu)
%C%_test_backend_fast_LDADD = $(engine_test_libs) -lm
check_PROGRAMS += %D%/test-draws
%C%_test_draws_SOURCES = %D%/test-draws.c $(backend_emu)
%C%_test_draws_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-resident %D%/test-passes
pair_emu = %D%/pair-util.c %D%/pair-util.h $(backend_emu) \
	tests/unit/draftergen.c tests/unit/draftergen.h tests/unit/modelgen.c tests/unit/modelgen.h
%C%_test_resident_SOURCES = %D%/test-resident.c $(pair_emu)
%C%_test_resident_LDADD = $(engine_test_libs)
%C%_test_passes_SOURCES = %D%/test-passes.c $(pair_emu)
%C%_test_passes_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-walk %D%/test-one-wait
%C%_test_one_wait_SOURCES = %D%/test-one-wait.c $(backend_emu) $(test_record) \
	tests/unit/draftergen.c tests/unit/draftergen.h tests/unit/modelgen.c tests/unit/modelgen.h
%C%_test_one_wait_LDADD = $(engine_test_libs)
%C%_test_walk_SOURCES = %D%/test-walk.c $(backend_emu) $(test_record)
%C%_test_walk_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-cohorts
%C%_test_cohorts_SOURCES = %D%/test-cohorts.c $(backend_emu) $(test_record)
%C%_test_cohorts_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-auto
%C%_test_auto_SOURCES = %D%/test-auto.c $(backend_emu)
%C%_test_auto_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-engine
%C%_test_engine_SOURCES = %D%/test-engine.c $(engine_fixtures) $(test_record)
%C%_test_engine_LDADD = $(engine_test_libs)
check_PROGRAMS += %D%/test-kernels-rows %D%/test-kernels-attention
%C%_test_kernels_rows_SOURCES = %D%/test-kernels-rows.c $(kernels_emu)
%C%_test_kernels_rows_LDADD = $(kernels_emu_libs)
%C%_test_kernels_attention_SOURCES = %D%/test-kernels-attention.c $(kernels_emu)
%C%_test_kernels_attention_LDADD = $(kernels_emu_libs)
check_PROGRAMS += %D%/test-kernels-sample
%C%_test_kernels_sample_SOURCES = %D%/test-kernels-sample.c $(kernels_emu)
%C%_test_kernels_sample_LDADD = libdedit-cuda-open.a $(engine_test_libs) -lm -ldl
check_PROGRAMS += %D%/test-kernels-tree
%C%_test_kernels_tree_SOURCES = %D%/test-kernels-tree.c $(kernels_emu)
%C%_test_kernels_tree_LDADD = libdedit-cuda-open.a $(engine_test_libs) -ldl

EXTRA_DIST += %D%/mutate.sh %D%/ptxas.sh
if WITH_CUDA
if !SANITIZED
check_DATA += libdedit-cuda.so
TESTS += %D%/ptxas.sh
endif
endif

# Seeded faults in the kernels; not a part of "make check", for its time.
EXTRA_DIST += %D%/mutants.sh
mutants: $(emu_libs) %D%/test-engine %D%/test-kernels-attention %D%/test-kernels-mm %D%/test-kernels-rows %D%/test-kernels-sample
	CXX='$(CXX)' FLAGS='$(emu_flags) $(emu_kernel_flags)' SANITIZE='$(emu_link_flags)' \
		OBJECTS='$(emu_objects) $(emu_kernels)' top_srcdir='$(abs_top_srcdir)' top_builddir='$(abs_top_builddir)' \
		$(SHELL) $(srcdir)/%D%/mutants.sh
.PHONY: mutants
