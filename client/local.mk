# SPDX-License-Identifier: Apache-2.0
# libdedit: the one library that is installed.  It holds what it uses of base/ and proto/, so that a program
# needs nothing but libc and protobuf-c beside it.
lib_LTLIBRARIES += %D%/libdedit.la
include_HEADERS = %D%/dedit.h
pkgconfig_DATA = %D%/dedit.pc
EXTRA_DIST += %D%/libdedit.sym

# Of base/ and proto/ what it needs and no more: nothing that prints, handles signals or writes rings.
libdedit_base_sources = \
	base/alloc.c \
	base/arena.c \
	base/clock.c \
	base/error.c \
	base/fd.c \
	base/memfd.c \
	base/parse.c \
	base/strbuf.c \
	base/utf8.c
libdedit_proto_sources = \
	proto/packet.c \
	proto/ring-reader.c \
	proto/ring-validate.c
noinst_LTLIBRARIES += %D%/libdedit-core.la
%C%_libdedit_core_la_SOURCES = \
	%D%/admin.c \
	%D%/client.c \
	%D%/dedit.h \
	%D%/internal.h \
	%D%/request.c \
	%D%/rpc.c \
	%D%/submit.c \
	$(libdedit_proto_sources) $(libdedit_base_sources)
%C%_libdedit_core_la_CFLAGS = $(AM_CFLAGS)
%C%_libdedit_core_la_LIBADD = %D%/libdedit-pb.la
libdedit_core_libs = %D%/libdedit-core.la $(PROTOBUF_C_LIBS)

# The shared library.  The static one is made below: libtool's would have every symbol of base/ global.
%C%_libdedit_la_SOURCES =
%C%_libdedit_la_LIBADD = %D%/libdedit-core.la $(PROTOBUF_C_LIBS)
# Interface version current:revision:age; see the libtool manual before changing it.
%C%_libdedit_la_LDFLAGS = $(AM_LDFLAGS) -shared -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(srcdir)/%D%/libdedit.sym
EXTRA_%C%_libdedit_la_DEPENDENCIES = %D%/libdedit.sym

# One object whose only global names are those of the symbol map.
if BUILD_STATIC
staticdir = $(libdir)
nodist_static_DATA = %D%/libdedit.a
CLEANFILES += %D%/libdedit.a
%D%/libdedit.a: %D%/libdedit-core.la %D%/libdedit.sym
	$(AM_V_GEN)rm -f $@ $@.o && \
	$(CC) $(CFLAGS) -nostdlib -r -o $@.o -Wl,--whole-archive %D%/.libs/libdedit-core.a && \
	$(OBJCOPY) -w `$(SED) -n '/^global:/,/^local:/s/^[ 	]*\([a-z_*]*\);$$/--keep-global-symbol=\1/p' \
	  $(srcdir)/%D%/libdedit.sym` $@.o && \
	$(AR) $(ARFLAGS) $@ $@.o && rm -f $@.o
endif

noinst_LTLIBRARIES += %D%/libdedit-pb.la
nodist_%C%_libdedit_pb_la_SOURCES = $(proto_gen)
%C%_libdedit_pb_la_SOURCES =
%C%_libdedit_pb_la_CFLAGS = $(DEDIT_CFLAGS) -w -DNDEBUG $(PROTOBUF_C_CFLAGS)

bin_PROGRAMS += %D%/dedit-client
%C%_dedit_client_SOURCES = \
	%D%/cli-add.c \
	%D%/cli-admin.c \
	%D%/cli-answer.h \
	%D%/cli-batch.c \
	%D%/cli-batch.h \
	%D%/cli-batch-line.c \
	%D%/cli-batch-output.c \
	%D%/cli-chat.c \
	%D%/cli-compare.c \
	%D%/cli-generate.c \
	%D%/cli-json.c \
	%D%/cli-options.c \
	%D%/cli-parse.h \
	%D%/cli-rm.c \
	%D%/cli-sha256.c \
	%D%/cli-sha256.h \
	%D%/cli-stats.c \
	%D%/cli-store.c \
	%D%/cli-store.h \
	%D%/cli-trace-html.c \
	%D%/cli-trace-lines.c \
	%D%/cli-trace-lines.h \
	%D%/cli-trace.c \
	%D%/cli-trace.h \
	%D%/cli.c \
	%D%/cli.h
nodist_%C%_dedit_client_SOURCES = %D%/trace-page.h
# The page of trace-html as a string.
EXTRA_DIST += %D%/trace.html
BUILT_SOURCES += %D%/trace-page.h
CLEANFILES += %D%/trace-page.h
%D%/dedit_client-cli-trace-html.$(OBJEXT): %D%/trace-page.h
%D%/trace-page.h: %D%/trace.html
	$(AM_V_GEN)$(MKDIR_P) $(@D) && { echo 'static const char trace_page[] ='; \
	$(SED) 's/\\/\\\\/g; s/"/\\"/g; s/.*/"&\\n"/' $(srcdir)/%D%/trace.html; echo ';'; } >$@.tmp && mv $@.tmp $@
%C%_dedit_client_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEDIT_CFLAGS)
%C%_dedit_client_LDADD = %D%/libdedit.la $(engine_libs) $(LIBEDIT_LIBS) -lm
