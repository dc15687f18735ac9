#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
tier=amx kinds=sampling,dequant,models,gguf,smollm2,nll
# shellcheck source=tests/integration/golden.sh
. "${top_srcdir:-.}/tests/integration/golden.sh"
