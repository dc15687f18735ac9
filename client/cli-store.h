/* SPDX-License-Identifier: Apache-2.0 */
/* The model store of dedit-client add and rm: a folder of models, each with NAME.sha256 beside it. */
#pragma once

#include <stdbool.h>

#include "base/strbuf.h"
#include "client/cli.h"

int store_path(const struct cli *c, struct strbuf *b);
/* A name that is no path and begins with no dot: names that do are add's own. */
bool store_name(const char *s);
/* A folder of files; prints what failed and returns the exit status. */
int store_remove_folder(struct cli *c, const char *path);
