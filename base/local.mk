# SPDX-License-Identifier: Apache-2.0
noinst_LIBRARIES += libdedit-base.a
libdedit_base_a_SOURCES = \
	%D%/alloc.c \
	%D%/alloc.h \
	%D%/arena.c \
	%D%/checked.h \
	%D%/cleanup.h \
	%D%/clock.c \
	%D%/clock.h \
	%D%/error.c \
	%D%/error.h \
	%D%/fd.c \
	%D%/fd.h \
	%D%/file.c \
	%D%/hash.c \
	%D%/hash.h \
	%D%/line.c \
	%D%/line.h \
	%D%/log.c \
	%D%/log.h \
	%D%/mapguard.c \
	%D%/mapguard.h \
	%D%/memfd.c \
	%D%/options.c \
	%D%/options.h \
	%D%/out_file.c \
	%D%/out_file.h \
	%D%/parse.c \
	%D%/parse.h \
	%D%/strbuf.c \
	%D%/strbuf.h \
	%D%/utf8.c
