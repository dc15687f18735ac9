#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Faults of clients that must cost only the one who makes them.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_faults.py" "$@"
