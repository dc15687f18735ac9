/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder that self-written data go to: PREFIX-00000.jsonl, PREFIX-00001.jsonl, ... each with a header
 * line.  A shard ends with the line that makes it as large as wished, so that the bytes of all shards do
 * not depend on when a run was interrupted.  What a crash left behind the last whole line is cut off
 * when the folder is opened again; it will be written anew.  One process at a time has the folder.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/json.h"
#include "train/data.h"

struct shards_options {
    const char *dir;    /* made when it is not there */
    const char *prefix; /* of the files' names */
    json_t
        *header; /* borrowed; "dedit_data" and "shard" are added.  Must be that of what is there */
    uint32_t vocab_size;
    uint64_t shard_bytes; /* a shard is at least that large, but for the last */
    uint64_t sync_ns;     /* time between two fsyncs, at most */
    bool fresh;           /* refuse a folder that has shards already */
};
struct shards_found {
    uint64_t lines, cut_bytes; /* conversations there; bytes cut off as incomplete */
    uint32_t shards;
};

struct shards;
/* found: called for each conversation that is there, in order. */
int shards_open(const struct shards_options *o,
                int (*found)(void *arg, const struct data_record *r, const char *line, size_t len,
                             struct error *err),
                void *arg, struct shards **ret, struct shards_found *ret_found, struct error *err);
/* Drops what was not written yet. */
struct shards *shards_free(struct shards *s);
DEFINE_CLEANUP(struct shards *, shards_free);
/* One line, newline included. */
int shards_add(struct shards *s, const char *line, size_t len, struct error *err);
/* Writes and syncs when it is time; `now`: whatever the time. */
int shards_sync(struct shards *s, bool now, struct error *err);
