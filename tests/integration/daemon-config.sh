#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The daemon's configuration: a check of it and a start agree.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_config.py" "$@"
