# SPDX-License-Identifier: Apache-2.0
dist_man_MANS += \
	%D%/dedit-bench.1 \
	%D%/dedit-client.1 \
	%D%/dedit-d.8 \
	%D%/dedit-protocol.7 \
	%D%/dedit-train.1 \
	%D%/dedit.conf.5 \
	%D%/libdedit.3
