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
	%D%/hash.h \
	%D%/log.h \
	%D%/parse.h \
	%D%/strbuf.h \
	%D%/utf8.c
