# SPDX-License-Identifier: Apache-2.0
# main.c only parses and wires; the rest is a library, so that tests can link it.
noinst_LIBRARIES += libdedit-daemon.a
libdedit_daemon_a_CPPFLAGS = $(AM_CPPFLAGS) $(URING_CFLAGS) $(SYSTEMD_CFLAGS) $(INIH_CFLAGS) \
	-DDEDIT_SYSCONFDIR='"$(sysconfdir)"'
libdedit_daemon_a_SOURCES = \
	%D%/config-check.c \
	%D%/config-faults.c \
	%D%/config-file.c \
	%D%/config-internal.h \
	%D%/config-values.c \
	%D%/config-values.h \
	%D%/config.c \
	%D%/config.h \
	%D%/engine-thread.c \
	%D%/engine-thread.h \
	%D%/fair.c \
	%D%/fair.h \
	%D%/job.c \
	%D%/job.h \
	%D%/journal.c \
	%D%/journal.h \
	%D%/listen.c \
	%D%/listen.h \
	%D%/loop-epoll.c \
	%D%/loop-internal.h \
	%D%/loop-uring.c \
	%D%/loop.c \
	%D%/loop.h \
	%D%/metrics-http.c \
	%D%/metrics-http.h \
	%D%/metrics.c \
	%D%/metrics.h \
	%D%/models-load.c \
	%D%/models.c \
	%D%/models.h \
	%D%/options.h \
	%D%/peer-admin.c \
	%D%/peer-messages.c \
	%D%/peer-submit.c \
	%D%/peer.c \
	%D%/peer.h \
	%D%/prepare.c \
	%D%/prepare.h \
	%D%/queue.c \
	%D%/queue.h \
	%D%/quota.c \
	%D%/quota.h \
	%D%/sdglue.c \
	%D%/sdglue.h \
	%D%/server-jobs.c \
	%D%/server.c \
	%D%/server.h \
	%D%/sink.c \
	%D%/sink.h \
	%D%/slot.c \
	%D%/slot.h \
	%D%/worker.c \
	%D%/worker.h
daemon_libs = libdedit-daemon.a libdedit-proto.a libdedit-pb.a $(engine_libs) $(PROTOBUF_C_LIBS) \
	$(URING_LIBS) $(SYSTEMD_LIBS) $(INIH_LIBS)

sbin_PROGRAMS += %D%/dedit-d
%C%_dedit_d_SOURCES = %D%/main.c
%C%_dedit_d_CPPFLAGS = $(libdedit_daemon_a_CPPFLAGS)
%C%_dedit_d_LDADD = $(daemon_libs)
