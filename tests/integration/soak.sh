#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The soak in short; --whole is the long one, --requests and --kills are anything between.
here=${top_builddir:-.}
exec "$here/tests/soak/soak" --daemon "$here/daemon/dedit-d" \
    --model "${top_srcdir:-.}/tests/golden/models/a_llama_tied" "$@"
