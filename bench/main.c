/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench: finds the command and runs it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "config.h"

static const struct bench_command *const commands[] = {
    &bench_generate,   &bench_check, &bench_step,       &bench_tokenize,
    &bench_detokenize, &bench_eval,  &bench_controller,
};

static void usage(FILE *f)
{
    fputs("usage: dedit-bench COMMAND [OPTION...] [ARGUMENT...]\n"
          "       dedit-bench --help | --version\n\n",
          f);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(f, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\ndedit-bench COMMAND --help tells a command's options.\n", f);
}

int main(int argc, char **argv)
{
    /* A reader that went away is an error of write(), not a signal. */
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        usage(stderr);
        return BENCH_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(stdout);
        return BENCH_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("dedit-bench %s\n", PACKAGE_VERSION);
        return BENCH_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (!strcmp(argv[1], commands[i]->name)) {
            int status = commands[i]->run(commands[i], argc - 1, argv + 1);
            if (fflush(stdout) || ferror(stdout)) {
                perror("dedit-bench: standard output");
                return BENCH_FAILED;
            }
            return status;
        }
    fprintf(stderr, "dedit-bench: unknown command \"%s\"; dedit-bench --help lists them\n",
            argv[1]);
    return BENCH_USAGE;
}
