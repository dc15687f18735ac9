#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The daemon's life: start, models that come and go, what systemd says and hears, stop.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_life.py" "$@"
