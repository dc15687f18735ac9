/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counter layout of every random number of the project.  It never changes: texts sampled with a
 * seed are reproducible across versions, tiers, devices and methods.
 *
 *   key     = { seed low 32 bits, seed high 32 bits }
 *   counter = { token id / 4, position low 32, position high 16 | stream << 16, 0 }
 *   word    = token id % 4 of the Philox4x32-10 block
 *
 * position: absolute index in the sequence of the token that is being chosen (prompt included).
 * For draws that are not per token (rule B's uniforms) the token id is the draw's index.
 */
#pragma once

#include <stdint.h>

enum noise_stream {
    NOISE_GUMBEL = 0,   /* the target's sample; drafters share it (rule A) */
    NOISE_ACCEPT = 1,   /* rule B: acceptance uniforms */
    NOISE_RESIDUAL = 2, /* rule B: residual draws */
    NOISE_DRAFT = 3,    /* rule B: the drafter's own draws */
    NOISE_DATA = 4,     /* synthetic data */
};

static inline void noise_key(uint64_t seed, uint32_t key[2])
{
    key[0] = (uint32_t)seed;
    key[1] = (uint32_t)(seed >> 32);
}
/* ctr of dk_ops.gumbel: the counter words after token id / 4. */
static inline void noise_counter(uint64_t position, enum noise_stream stream, uint32_t ctr[3])
{
    ctr[0] = (uint32_t)position;
    ctr[1] = ((uint32_t)(position >> 32) & 0xffffu) | (uint32_t)stream << 16;
    ctr[2] = 0;
}
