#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tokenizers and chat formats: no tier in them.
tier=c kinds=tokenizer,chat
# shellcheck source=tests/integration/golden.sh
. "${top_srcdir:-.}/tests/integration/golden.sh"
