/* SPDX-License-Identifier: Apache-2.0 */
/* rope on AVX-512: vector.h compiled for it. */
#include "kernels/cpu/rope/vector.h"
