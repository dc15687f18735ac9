/* SPDX-License-Identifier: Apache-2.0 */
/* rmsnorm on AVX2: vector.h compiled for it. */
#include "kernels/cpu/rmsnorm/vector.h"
