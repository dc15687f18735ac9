/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target once over every file of its corpus, for "make check" with any compiler: program
 * replay-NAME reads tests/fuzz/corpus/NAME.  The names given as arguments are read instead, which is
 * how a finding is looked at.  A crash ends the process, and the line before tells the file.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

#define FILE_MAX_BYTES (16u << 20)
#define TIME_LIMIT_S   60

static int replay(const char *path)
{
    struct error err = {0};
    char *data;
    size_t len;
    if (file_read(path, FILE_MAX_BYTES, &data, &len, &err) < 0) {
        printf("# %s\n", err.msg);
        return -1;
    }
    printf("# %s\n", path);
    fflush(stdout);
    alarm(TIME_LIMIT_S);
    /* An exact copy, so that a sanitizer sees the first byte read behind the end. */
    uint8_t *exact = mem_memdup(data, len);
    mem_free(data);
    if (!exact)
        return -1;
    (void)LLVMFuzzerTestOneInput(exact, len);
    mem_free(exact);
    return 0;
}

static int not_hidden(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    size_t live = mem_live_count();
    int bad = 0, n = 0;
    for (int i = 1; i < argc; i++, n++)
        bad += replay(argv[i]) < 0;
    if (argc == 1) {
        const char *top = getenv("top_srcdir"), *name = strstr(argv[0], "replay-");
        char dir[512], path[1024];
        struct dirent **e;
        snprintf(dir, sizeof(dir), "%s/tests/fuzz/corpus/%s", top ? top : ".",
                 name ? name + strlen("replay-") : "");
        n = scandir(dir, &e, not_hidden, alphasort);
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof(path), "%s/%s", dir, e[i]->d_name);
            bad += replay(path) < 0;
            free(e[i]);
        }
        if (n >= 0)
            free(e);
    }
    if (fuzz_done)
        fuzz_done();
    if (mem_live_count() != live) {
        printf("# %zu allocations were not freed\n", mem_live_count() - live);
        bad++;
    }
    printf("%s 1 - %d inputs\n1..1\n", bad || n <= 0 ? "not ok" : "ok", n > 0 ? n : 0);
    return bad || n <= 0;
}
