/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's configuration: the text of a file, a NUL, and flags with a NUL after each.  What is
 * accepted can be printed, and what was printed reads as the same configuration.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "daemon/config.h"

#define MAX_FLAGS   16
#define MAX_LINE    190 /* of a file; flags may set longer values */
#define MAX_SECTION 49

/* A file of its own for each text; its name fits in buf. */
static int text_file(const void *text, size_t len, char buf[64])
{
    int fd = memfd_create("conf", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, text, len) == (ssize_t)len);
    snprintf(buf, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static char *printed(const struct config *c, size_t *ret_len)
{
    char path[64];
    struct error err = {0};
    char *text = NULL;
    int fd = text_file("", 0, path);
    FUZZ_CHECK(config_print(c, fd) == 0);
    FUZZ_CHECK(file_read(path, 1 << 26, &text, ret_len, &err) == 0);
    close(fd);
    return text;
}

/* Flags can say what no line of a file can. */
static bool is_file(const char *text)
{
    for (const char *line = text, *end; *line; line = end + (*end != 0)) {
        end = line + strcspn(line, "\n");
        if (end - line > MAX_LINE || (*line == '[' && end - line > MAX_SECTION + 2))
            return false;
    }
    return true;
}

/* Values without the comments that tell where they came from. */
static void drop_comments(char *text)
{
    char *to = text;
    for (const char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        end += *end != 0;
        if (*line == ';')
            continue;
        memmove(to, line, (size_t)(end - line));
        to += end - line;
    }
    *to = 0;
}

static void check_printed(const struct config *c)
{
    char path[64], name[] = "dedit-d", flag[] = "--config";
    struct error err = {0};
    struct config *again = NULL;
    enum config_action action;
    size_t len, len2;
    char *one = printed(c, &len), *two = NULL;
    int fd = text_file(one, len, path);
    char *argv[] = {name, flag, path, NULL};
    if (is_file(one)) {
        int r = config_load(3, argv, &again, &action, &err);
        FUZZ_CHECK(r == 0 && action == CONFIG_RUN);
        two = printed(again, &len2);
        drop_comments(one);
        drop_comments(two);
        FUZZ_CHECK(strcmp(one, two) == 0);
    }
    close(fd);
    config_free(again);
    mem_free(one);
    mem_free(two);
}

static void check_values(const struct config *c)
{
    FUZZ_CHECK(c->max_connections && c->max_requests && c->max_models);
    FUZZ_CHECK(c->max_requests_per_connection && c->min_priority <= c->max_priority);
    FUZZ_CHECK(c->ring_bytes <= c->max_ring_bytes && c->socket_mode <= 0777 && c->model_dir);
    for (size_t i = 0; i < c->n_models; i++)
        FUZZ_CHECK(c->models[i].path && c->models[i].name[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64], name[] = "dedit-d", file_flag[] = "--config";
    char *argv[MAX_FLAGS + 4] = {name, file_flag, path};
    struct error err = {0};
    struct config *c = NULL, *again = NULL;
    enum config_action action = CONFIG_RUN;
    int argc = 3;

    unsetenv("STATE_DIRECTORY");
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t text = end ? (size_t)(end - data) : size;
    char *flags = mem_alloc(size - text + 1);
    memcpy(flags, data + text, size - text);
    flags[size - text] = 0;
    for (char *f = flags + 1; end && f < flags + (size - text) && argc < MAX_FLAGS + 3;
         f += strlen(f) + 1)
        argv[argc++] = f;
    argv[argc] = NULL;
    int fd = text_file(data, text, path);
    int r = config_load(argc, argv, &c, &action, &err);
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0] && !c));
    if (r == 0 && action != CONFIG_HELP && action != CONFIG_VERSION) {
        char *note = NULL;
        check_values(c);
        check_printed(c);
        FUZZ_CHECK(config_reload(c, argc, argv, &again, &note, &err) == 0 && !note);
        config_free(again);
    }
    close(fd);
    config_free(c);
    mem_free(flags);
    return 0;
}
