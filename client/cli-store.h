/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model store of dedit-client add and rm: a folder of models, each with NAME.sha256 beside it.
 *
 * Who adds or removes NAME works in the folder .NAME.adding, which it locks.  What is in there is no
 * part of the store, and what a process left there that died is undone by the next add or rm of any
 * name.  While the folder has the file ".sums", NAME.sha256 in the store belongs to what is in the
 * folder; so at every moment NAME is in the store with its sums, or not at all, or the folder says that
 * the sums go with it.
 */
#pragma once

#include <stdbool.h>

#include "base/strbuf.h"
#include "client/cli.h"

int store_path(const struct cli *c, struct strbuf *b);
/* A name that is no path and begins with no dot: names that do are add's own. */
bool store_name(const char *s);
bool store_ends_with(const char *s, const char *end); /* and has something before it */
bool store_is_drafter(const char *name);              /* by how it ends */
/* Length of the name that a model's drafters begin with: NAME without .gguf. */
size_t store_stem(const char *name);
/* Path of NAME in the store, made of its first n bytes and an end; its existence, links not followed. */
int store_member(struct strbuf *b, const char *store, const char *name, size_t n, const char *end);
bool store_has(const char *path);

struct store_stage {
    struct cli *c;
    struct strbuf store;
    struct strbuf path, mark, item, item_sums; /* .NAME.adding; .sums, NAME and NAME.sha256 in it */
    struct strbuf to, to_sums;                 /* in the store */
    int lock;
    bool stray; /* the sums that are in the store may be replaced: they are of nothing */
};
/* All of these print what failed and return the exit status. */
/* Takes the folder, and undoes what is in it; afterwards store_stage_end() in any case. */
int store_stage_begin(struct store_stage *s, struct cli *c, const char *store, const char *name);
/* Undoes what was done: a copy that has not its name is removed, and its sums with it. */
int store_stage_undo(struct store_stage *s);
/* What is at `item` gets its name, and its sums theirs; where either is taken (but for stray
 * sums), nothing happens. */
int store_stage_publish(struct store_stage *s, const char *sums, size_t len);
/* Removes NAME and its sums. */
int store_stage_withdraw(struct store_stage *s);
void store_stage_end(struct store_stage *s);

/* Makes the names in a folder last. */
void store_sync_folder(const char *path);

/* Undoes what dead processes left; what cannot be undone fails for its own name alone, and is told for others.
 * *ret_had (may be NULL): there was something of this name. */
int store_sweep(struct cli *c, const char *store, const char *name, bool *ret_had);
