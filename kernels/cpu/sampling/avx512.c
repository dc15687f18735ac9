/* SPDX-License-Identifier: Apache-2.0 */
/* argmax, logsumexp and gumbel on AVX-512: vector.h compiled for it. */
#include "kernels/cpu/sampling/vector.h"
