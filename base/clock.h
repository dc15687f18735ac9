/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

uint64_t clock_now_ns(void);      /* CLOCK_MONOTONIC */
uint64_t clock_realtime_ns(void); /* CLOCK_REALTIME */
