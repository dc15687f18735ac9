# SPDX-License-Identifier: Apache-2.0
dist_doc_DATA += %D%/architecture.md %D%/cuda.md %D%/models.md %D%/protocol.md %D%/training.md proto/dedit.proto
dist_examples_DATA = \
	%D%/examples/cancel.c \
	%D%/examples/chat.c \
	%D%/examples/events.c \
	%D%/examples/many.c \
	%D%/examples/one.c \
	%D%/examples/one.cpp \
	%D%/examples/one.py
