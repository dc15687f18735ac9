/* SPDX-License-Identifier: Apache-2.0 */
/* rope on AVX2: vector.h compiled for it. */
#include "kernels/cpu/rope/vector.h"
