/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the configuration: files (config-file.c), what must hold of values and paths (config-check.c), and
 * defaults, flags, printing (config.c). */
#pragma once

#include "base/strbuf.h"
#include "daemon/config.h"

/* What is wrong, or looks so. */
struct config_fault {
    char *text; /* a line, with its place */
    struct config_place place;
    size_t number; /* as they were found */
};
/* All of it; NULL where the first fault ends the reading. */
struct config_faults {
    struct config_fault *list;
    size_t n, wrong; /* wrong: without warnings */
};
/* What `r` and *err say becomes one of the faults of this place (NULL: of none), and 0 is returned; without a list, or
 * without memory, r, and *err has the place. */
int config_tell(struct config_faults *f, int r, const struct config_place *place,
                struct error *err);
/* The same of what does not keep the daemon from starting; not told without a list. */
int config_warn(struct config_faults *f, const struct config_place *place, struct error *err);
/* A line each, files and lines in their order; the caller's. */
int config_faults_text(struct config_faults *f, char **ret, struct error *err);
void config_faults_done(struct config_faults *f);

/* Both 0 or DEDIT_E_NOMEM. */
int config_place_set(struct config_place *to, const struct config_place *from);
int config_place_print(const struct config_place *p, struct strbuf *b);
#define CONFIG_FLAG ((struct config_place){.file = (char *)(uintptr_t) "command line"})

struct model_config_entry *config_find_model(struct config *c, const char *name);
int config_add_model(struct config *c, const char *name, struct model_config_entry **ret,
                     struct error *err);
int config_read_files(struct config *c, const char *file, bool named, struct config_faults *f,
                      struct error *err);
/* Ranges, models, the default; paths become what is used. */
int config_check_values(struct config *c, struct config_faults *f, struct error *err);
/* What a start would need to find: models, drafters, folders, groups. */
int config_check_paths(const struct config *c, struct config_faults *f, struct error *err);
