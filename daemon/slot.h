/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of a connection, reused by one request after the other. */
#pragma once

#include "daemon/quota.h"
#include "proto/ring.h"

struct slot {
    struct ring_writer ring; /* loop thread when free, engine thread while a job runs */
    uint32_t number;
    struct job *job;         /* NULL when free */
    bool released;           /* the client said so, or nothing was left in it */
    bool announced;          /* the client has its descriptors */
    bool broken;             /* the client's cursor made no sense: never used again */
};
