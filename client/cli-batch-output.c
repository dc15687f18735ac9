/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of batch --output.  One batch writes it at a time: the file is locked while it is open.  A
 * run that finds results goes on behind them once it has seen that they answer the lines of its input;
 * nothing is changed in the file before that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/line.h"
#include "client/cli-batch.h"

/* ---- results that are there -------------------------------------------------------------------- */

/* Whether a line is result `number` by how a batch begins it; a torn one, as far as it goes. */
static bool is_result(const char *line, size_t len, size_t number)
{
    char begin[40];
    size_t n = (size_t)snprintf(begin, sizeof(begin), "{\"line\":%zu", number);
    const bool whole = len > 0 && line[len - 1] == '\n';
    if (len <= n)
        return !whole && memcmp(line, begin, len) == 0;
    return memcmp(line, begin, n) == 0 && (line[n] == ',' || line[n] == '}') &&
           (!whole || line[len - 2] == '}');
}

/* Results of earlier versions have none. */
static void digest_of(const char *line, size_t len, char ret[BATCH_DIGEST])
{
    static const char name[] = ",\"request\":\"";
    const char *s = memchr(line, ',', len);
    ret[0] = 0;
    if (!s || len - (size_t)(s - line) < strlen(name) + BATCH_DIGEST ||
        memcmp(s, name, strlen(name)) != 0)
        return;
    memcpy(ret, s + strlen(name), BATCH_DIGEST - 1);
    ret[BATCH_DIGEST - 1] = 0;
}

static bool is_failure(const char *line, size_t len)
{
    json_t *result = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
    const bool failed = json_object_get(result, "error") != NULL;
    json_decref(result);
    return failed;
}

static bool keep(struct batch_output *o, const char *line, size_t len)
{
    if (o->done == o->room) {
        const size_t room = o->room ? 2 * o->room : 1024;
        void *grown = mem_realloc_array(o->digests, room, sizeof *o->digests);
        if (!grown)
            return false;
        o->digests = grown;
        o->room = room;
    }
    digest_of(line, len, o->digests[o->done++]);
    o->failed += is_failure(line, len);
    o->good += (long)len;
    return true;
}

static int read_results(const struct cli *c, struct batch_output *o)
{
    char *line = NULL;
    size_t cap = 0, bad = 0;
    bool room = true;
    struct error e = {0};
    long n = 0;
    rewind(o->f);
    while (room && !bad && (n = line_read(o->f, o->path, &line, &cap, &e)) > 0) {
        if (!is_result(line, (size_t)n, o->done + 1))
            bad = o->done + 1;
        else if (line[n - 1] == '\n')
            room = keep(o, line, (size_t)n);
    }
    free(line);
    if (!room)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    if (bad)
        return cli_fail_text(c, CLI_FAILED,
                             "--output: %s:%zu is not result %zu of a batch; the file is left as "
                             "it is",
                             o->path, bad, bad);
    /* What could not be read is not cut off as if it were not there. */
    return n < 0 ? cli_fail_text(c, CLI_FAILED, "--output: %s; the file is left as it is", e.msg)
                 : CLI_OK;
}

int batch_output_open(const struct cli *c, const char *path, struct batch_output *ret)
{
    struct stat st;
    *ret = (struct batch_output){.path = path, .f = stdout};
    if (!path)
        return CLI_OK;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
    ret->f = fd >= 0 ? fdopen(fd, "a+") : NULL;
    if (!ret->f) {
        const int why = errno;
        if (fd >= 0)
            close(fd);
        return cli_fail_text(c, CLI_FAILED, "--output: %s: %s", path, strerror(why));
    }
    ret->regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!ret->regular)
        return CLI_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return cli_fail_text(c, CLI_FAILED,
                             errno == EWOULDBLOCK
                                 ? "--output: %s: another dedit-client batch is writing there"
                                 : "--output: %s: it cannot be locked",
                             path);
    return read_results(c, ret);
}

/* ---- going on where an earlier run stopped ------------------------------------------------------ */

static int check_lines(const struct cli *c, const struct batch_output *o, FILE *in,
                       const char *in_path)
{
    char *line = NULL, digest[BATCH_DIGEST];
    size_t cap = 0;
    int status = CLI_OK;
    for (size_t i = 0; i < o->done && status == CLI_OK; i++) {
        struct error e = {0};
        const long n = line_read_next(in, in_path, &line, &cap, &e);
        if (n < 0) {
            status = cli_fail_text(c, CLI_FAILED, "%s", e.msg);
            break;
        }
        if (n == 0) {
            status = cli_fail_text(c, CLI_FAILED,
                                   "--output: %s has %zu results, and %s has %zu requests: it "
                                   "belongs to another input, and is left as it is",
                                   o->path, o->done, in_path, i);
            break;
        }
        batch_digest(line, (size_t)n, digest);
        if (o->digests[i][0] && strcmp(o->digests[i], digest) != 0)
            status = cli_fail_text(c, CLI_FAILED,
                                   "--output: %s:%zu answers another request than number %zu of "
                                   "%s: it belongs to another input, and is left as it is",
                                   o->path, i + 1, i + 1, in_path);
    }
    free(line);
    return status;
}

int batch_output_resume(const struct cli *c, struct batch_output *o, FILE *in, const char *in_path)
{
    int status = check_lines(c, o, in, in_path);
    if (status != CLI_OK || !o->regular)
        return status;
    if (ftruncate(fileno(o->f), o->good) < 0 || fseek(o->f, 0, SEEK_END) < 0)
        return cli_fail_text(c, CLI_FAILED, "--output: %s: %s", o->path, strerror(errno));
    if (o->done && !c->quiet)
        fprintf(stderr, "%zu line%s done already\n", o->done, o->done == 1 ? " is" : "s are");
    if (o->failed && !c->quiet)
        fprintf(stderr, "%zu of them with an error\n", o->failed);
    return CLI_OK;
}

int batch_output_close(const struct cli *c, struct batch_output *o, int status)
{
    mem_free(o->digests);
    if (o->f && o->f != stdout && fclose(o->f) != 0 && status == CLI_OK)
        status = cli_fail_text(c, CLI_FAILED, "output: %s", strerror(errno));
    *o = (struct batch_output){0};
    return status;
}
