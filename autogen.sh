#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes ./configure from a git checkout.  Needs autoconf >= 2.71, automake >= 1.16, libtool, pkg-config.
set -eu
cd "$(dirname "$0")"
for tool in autoreconf aclocal automake libtoolize; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "autogen.sh: $tool is missing: install autoconf, automake, libtool and pkg-config" >&2
        exit 1
    }
done
mkdir -p build-aux m4
autoreconf -fi -I m4
