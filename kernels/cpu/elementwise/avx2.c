/* SPDX-License-Identifier: Apache-2.0 */
/* add and silu_mul on AVX2: vector.h compiled for it. */
#include "kernels/cpu/elementwise/vector.h"
