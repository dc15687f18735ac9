/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding: the inverse frequencies of a model, with every scaling that a file may ask for. */
#pragma once

#include "engine/model_file.h"

/* ret: head_dim / 2 inverse frequencies, binary32.  The angle of pair i at position p is the
 * binary32 product (float)p * ret[i]; its sine and cosine come from dk_sincosf. */
void rope_inv_freq(const struct model_config *c, float *ret);
