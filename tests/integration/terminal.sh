#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dedit-client on a terminal.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_terminal.py" "$@"
