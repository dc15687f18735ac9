#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Calls that the system refuses: messages, and what stays as it was.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_refusals.py" "$@"
