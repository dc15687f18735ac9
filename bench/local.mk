# SPDX-License-Identifier: Apache-2.0
# bench/dedit-bench links $(engine_libs).
