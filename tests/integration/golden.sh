# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# Every reference case on one tier: sourced by golden-TIER.sh, which sets $tier and $kinds.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
if has_tier "$tier"; then
    "$bench" check --tap --tier "$tier" --only "$kinds" --qwen3-tokenizer "$qwen3" "$golden"
else
    echo "ok 1 - golden cases # SKIP hardware: this machine cannot run the tier $tier"
    echo 1..1
fi
