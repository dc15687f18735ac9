#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A device that is lost under the daemon.
exec /usr/bin/python3 "${top_srcdir:-.}/tests/integration/test_device.py" "$@"
