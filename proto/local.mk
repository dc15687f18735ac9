# SPDX-License-Identifier: Apache-2.0
# The generated code is a library of its own, with its own (relaxed) warnings.
noinst_LIBRARIES += libdedit-pb.a libdedit-proto.a
proto_gen = %D%/dedit.pb-c.c %D%/dedit.pb-c.h
nodist_libdedit_pb_a_SOURCES = $(proto_gen)
libdedit_pb_a_CFLAGS = $(DEDIT_CFLAGS) -w $(PROTOBUF_C_CFLAGS)
BUILT_SOURCES += %D%/dedit.pb-c.h
CLEANFILES += $(proto_gen)
EXTRA_DIST += %D%/dedit.proto
$(proto_gen) &: $(srcdir)/%D%/dedit.proto
	$(AM_V_GEN)$(MKDIR_P) proto && $(PROTOC_C) --proto_path=$(srcdir)/proto --c_out=proto \
	  $(srcdir)/proto/dedit.proto

libdedit_proto_a_SOURCES = \
	%D%/packet.c \
	%D%/packet.h \
	%D%/ring-reader.c \
	%D%/ring-validate.c \
	%D%/ring-writer.c \
	%D%/ring.h
proto_libs = libdedit-proto.a libdedit-pb.a libdedit-base.a $(PROTOBUF_C_LIBS)
