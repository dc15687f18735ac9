/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train: finds the command and runs it. */
#include <stdio.h>
#include <string.h>

#include "config.h"

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("dedit-train %s\n", PACKAGE_VERSION);
        return 0;
    }
    fputs("usage: dedit-train COMMAND [OPTION...]\n       dedit-train --version\n", stderr);
    return 2;
}
