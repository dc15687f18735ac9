# SPDX-License-Identifier: Apache-2.0
# Units have the program's path; everything else is installed as it is.
systemdsystemunit_DATA = %D%/dedit-d.service %D%/dedit-d.socket
systemduserunit_DATA = %D%/user/dedit-d.service %D%/user/dedit-d.socket
sysusers_DATA = %D%/dedit.conf
examples_DATA = \
	%D%/examples/dedit-metrics-proxy.service \
	%D%/examples/dedit-metrics-proxy.socket \
	%D%/examples/gpu.conf
catalog_DATA = %D%/dedit.catalog
systempreset_DATA = %D%/90-dedit.preset
tmpfiles_DATA = %D%/tmpfiles/dedit.conf

unit_sources = %D%/dedit-d.service.in %D%/user/dedit-d.service.in
EXTRA_DIST += $(unit_sources) %D%/dedit-d.socket %D%/user/dedit-d.socket %D%/dedit.sysusers \
	%D%/dedit.tmpfiles $(examples_DATA) %D%/90-dedit.preset %D%/dedit.catalog
CLEANFILES += %D%/dedit-d.service %D%/user/dedit-d.service %D%/dedit.conf %D%/tmpfiles/dedit.conf

substitute = $(AM_V_GEN)$(MKDIR_P) $(@D) && sed -e 's|@sbindir@|$(sbindir)|g' <$< >$@.tmp && mv $@.tmp $@
%D%/dedit-d.service: $(srcdir)/%D%/dedit-d.service.in Makefile
	$(substitute)
%D%/user/dedit-d.service: $(srcdir)/%D%/user/dedit-d.service.in Makefile
	$(substitute)
%D%/dedit.conf: $(srcdir)/%D%/dedit.sysusers Makefile
	$(substitute)
%D%/tmpfiles/dedit.conf: $(srcdir)/%D%/dedit.tmpfiles Makefile
	$(substitute)
