#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The daemon's integration tests: Debian's Python has the protobuf module.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_daemon.py" "$@"
