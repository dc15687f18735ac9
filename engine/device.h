/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend a configuration's `device` means, and what to say when it is another than hoped for. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/backend.h"

/* Whether name is auto, cpu, cuda, cuda:N or emu; INVALID names the rule. */
int device_check(const char *name, struct error *err);
/*
 * NULL or "cpu": the CPU.  "auto": the first CUDA device, or the CPU with the reason in note.
 * "cuda", "cuda:N": that device or an error.  "emu": the emulated device of the tests, whose library
 * DEDIT_CUDA_EMU names.  Fills o->device and o->cuda.  *ret_optional: the CPU may stand in when loading
 * fails.  o->fast is kept where cuBLASLt is there; where it is not, that is an error, or with "auto" o->fast
 * goes and note says why.  On the CPU it has no meaning.
 */
int device_choose(const char *name, struct backend_options *o, const struct backend **ret,
                  bool *ret_optional, char *note, size_t note_size, struct error *err);
