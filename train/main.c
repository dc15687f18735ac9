/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train: finds the command and runs it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mapguard.h"
#include "config.h"
#include "train/cli.h"

static const struct train_command *const commands[] = {
    &train_synth,
    &train_regen,
    &train_fit_command,
    &train_widen_command,
    &train_eval,
    &train_export_command,
    &train_inspect,
    &train_plot,
};

static void usage(FILE *f)
{
    fputs("usage: dedit-train COMMAND [OPTION...] [ARGUMENT...]\n"
          "       dedit-train --help | --version\n\n",
          f);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(f, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\ndedit-train COMMAND --help tells a command's options.\n", f);
}

static const struct train_command *nearest(const char *word)
{
    const struct train_command *best = NULL;
    unsigned least = NAME_NEAR + 1;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        unsigned d = name_distance(word, commands[i]->name);
        if (d < least) {
            least = d;
            best = commands[i];
        }
    }
    return best;
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct error err = {0};
    if (map_guard_install(&err) < 0)
        return train_error(c, &err);
    int status = c->run(c, argc, argv);
    if (fflush(stdout) || ferror(stdout)) {
        perror("dedit-train: standard output");
        return TRAIN_FAILED;
    }
    return status;
}

int main(int argc, char **argv)
{
    /* A reader that went away is an error of write(), not a signal. */
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        usage(stderr);
        return TRAIN_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(stdout);
        return TRAIN_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("dedit-train %s\n", PACKAGE_VERSION);
        return TRAIN_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (!strcmp(argv[1], commands[i]->name))
            return run(commands[i], argc - 1, argv + 1);
    const struct train_command *near = nearest(argv[1]);
    fprintf(stderr, "dedit-train: unknown command \"%s\"%s%s; dedit-train --help lists them\n",
            argv[1], near ? "; did you mean " : "", near ? near->name : "");
    return TRAIN_USAGE;
}
