#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
tier=c kinds=sampling,dequant,models,gguf
# shellcheck source=tests/integration/golden.sh
. "${top_srcdir:-.}/tests/integration/golden.sh"
