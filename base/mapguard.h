/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that get shorter while they are mapped.  Reading behind their new end is SIGBUS, which would
 * end the process for what somebody else did to a file.  Once a program has installed the guard, such
 * pages of the mappings of file_map_open read as zeros, and the fault is counted: whoever reads a file
 * compares the count before and after.  Any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* A SIGBUS handler, for programs (never called by a library). Other faults end the process as ever. */
int map_guard_install(struct error *err);
uint64_t map_guard_faults(void); /* pages so far */

/* For file_map_open and file_map_done.  More mappings than there are places are not guarded. */
void map_guard_add(void *addr, size_t size);
void map_guard_remove(void *addr);
