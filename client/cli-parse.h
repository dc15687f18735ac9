/* SPDX-License-Identifier: Apache-2.0 */
/* Between main and the parser of dedit-client. */
#pragma once

#include "client/cli.h"

/* Options into c; 0, or an exit status after printing. */
int cli_parse(struct cli *c, int argc, char **argv, bool *ret_help);
void cli_print_help(FILE *f, const struct cli_command *k);
void cli_print_overview(FILE *f);
const char *cli_nearest_command(const char *word); /* or NULL */
