# SPDX-License-Identifier: Apache-2.0
dist_man_MANS += \
	%D%/dedit-bench.1 \
	%D%/dedit-client.1 \
	%D%/dedit-protocol.7 \
	%D%/dedit-train.1 \
	%D%/libdedit.3
# These name the folder of the configuration: /etc in the source, installed as configured.
made_pages = %D%/made/dedit-d.8 %D%/made/dedit.conf.5
nodist_man_MANS = $(made_pages)
EXTRA_DIST += %D%/dedit-d.8 %D%/dedit.conf.5
CLEANFILES += $(made_pages)
make_page = $(AM_V_GEN)$(MKDIR_P) $(@D) && sed -e 's|/etc/dedit|$(sysconfdir)/dedit|g' <$< >$@.tmp && mv $@.tmp $@
%D%/made/dedit-d.8: $(srcdir)/%D%/dedit-d.8 Makefile
	$(make_page)
%D%/made/dedit.conf.5: $(srcdir)/%D%/dedit.conf.5 Makefile
	$(make_page)
