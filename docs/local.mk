# SPDX-License-Identifier: Apache-2.0
dist_doc_DATA += %D%/architecture.md %D%/models.md %D%/protocol.md proto/dedit.proto
EXTRA_DIST += %D%/examples/many.c %D%/examples/one.c
