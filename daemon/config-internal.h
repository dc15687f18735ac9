/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the configuration: files (config-file.c), what must hold of values and paths (config-check.c), and
 * defaults, flags, printing (config.c). */
#pragma once

#include "base/strbuf.h"
#include "daemon/config.h"

/* All that is wrong, a line each; NULL where the first fault ends the reading. */
struct config_faults {
    struct strbuf text;
    size_t n;
};
/* What `r` and *err say becomes one of the faults, and 0 is returned; without a list, or without memory, r. */
int config_fault(struct config_faults *f, int r, struct error *err);

struct model_config_entry *config_find_model(struct config *c, const char *name);
int config_add_model(struct config *c, const char *name, struct model_config_entry **ret,
                     struct error *err);
/* place: "file:line", or CONFIG_FLAG */
#define CONFIG_FLAG "command line"
int config_set_origin(char **origins, size_t option, const char *place);

int config_read_files(struct config *c, const char *file, bool named, struct config_faults *f,
                      struct error *err);
/* Ranges, models, the default; paths become what is used. */
int config_check_values(struct config *c, struct config_faults *f, struct error *err);
/* What a start would need to find: models, drafters, folders, groups. */
int config_check_paths(const struct config *c, struct config_faults *f, struct error *err);
/* Files and lines in their order. */
int config_sort_faults(struct config_faults *f, struct error *err);
