/* SPDX-License-Identifier: Apache-2.0 */
/* attention on AVX-512: vector.h compiled for it. */
#include "kernels/cpu/attention/one-row.h"
