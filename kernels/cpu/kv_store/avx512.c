/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store on AVX-512: vector.h compiled for it. */
#include "kernels/cpu/kv_store/vector.h"
