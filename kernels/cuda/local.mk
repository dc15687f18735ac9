# SPDX-License-Identifier: Apache-2.0
# libdedit-cuda.so: opened at run time, so that nothing else needs CUDA.  nvcc compiles and links it;
# tests/cuda-emu compiles the same files with the C++ compiler.  One file a line, in alphabetical order.
cudalibdir = $(pkglibdir)
cuda_sources = \
	%D%/attention.cu \
	%D%/blas.cu \
	%D%/draft.cu \
	%D%/matmul.cu \
	%D%/matmul_float.cu \
	%D%/matmul_mma.cu \
	%D%/matmul_quant.cu \
	%D%/matmul_wide.cu \
	%D%/prepare.cu \
	%D%/rope.cu \
	%D%/rows.cu \
	%D%/runtime.cu \
	%D%/sample.cu \
	%D%/tree.cu \
	%D%/vocab.cu \
	%D%/walk.cu
cuda_headers = \
	%D%/blas.h \
	%D%/common.cuh \
	%D%/cuda_api.h \
	%D%/cuda_kernels.h \
	%D%/matmul.cuh \
	%D%/platform.cuh \
	%D%/quant.cuh \
	%D%/vocab.cuh
EXTRA_DIST += $(cuda_sources) $(cuda_headers)

noinst_LIBRARIES += libdedit-cuda-open.a
libdedit_cuda_open_a_CPPFLAGS = $(AM_CPPFLAGS) -DDEDIT_CUDA_LIBDIR='"$(cudalibdir)"'
libdedit_cuda_open_a_SOURCES = \
	%D%/open.c \
	%D%/open.h

# -fmad=false: a product and a sum are two roundings unless the source says fma, as everywhere.
cuda_flags = -std=c++17 -fmad=false $(NVCC_WERROR) $(NVCC_BLAS) --expt-relaxed-constexpr \
	-Xcompiler -fPIC,-fvisibility=hidden,-Wall,-ffp-contract=off -I$(srcdir) -I$(builddir)
cuda_objects = $(cuda_sources:%.cu=%.nv.o)
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =
# What the compiler's assembler says of each kernel (registers, spills) is left beside the object.
$(cuda_objects): %.nv.o: $(srcdir)/%.cu
	$(AM_V_NVCC)$(MKDIR_P) $(@D) && $(NVCC) $(cuda_flags) $(NVCC_ARCH) $(NVCCFLAGS) -Xptxas -v \
		-DDCU_BUILT='"$(CUDA_BUILT)"' -MD -MP -MF $@.d -MT $@ -c -o $@ $< > $@.ptxas 2>&1 || \
		{ grep -v '^ptxas info\|bytes stack frame' $@.ptxas >&2; rm -f $@; false; }
-include $(cuda_objects:%=%.d)
libdedit-cuda.so: $(cuda_objects)
	$(AM_V_NVCC)$(NVCC) -shared -cudart static -o $@ $(cuda_objects)
CLEANFILES += libdedit-cuda.so $(cuda_objects) $(cuda_objects:%=%.d) $(cuda_objects:%=%.ptxas)
if WITH_CUDA
if !SANITIZED
cudalib_DATA += libdedit-cuda.so
endif
endif
