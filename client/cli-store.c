/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client rm, and where the model store is. */
#include "client/cli-store.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

int store_path(const struct cli *c, struct strbuf *b)
{
    const char *own = cli_own(c, "store"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (own)
        return strbuf_adds(b, own);
    if (geteuid() == 0)
        return strbuf_adds(b, "/var/lib/dedit/models");
    if (cache && *cache)
        return strbuf_addf(b, "%s/dedit/models", cache);
    return strbuf_addf(b, "%s/.cache/dedit/models", home && *home ? home : "");
}

bool store_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 200 && s[0] != '.' && !strchr(s, '/');
}

int store_remove_folder(struct cli *c, const char *path)
{
    DIR *d = opendir(path);
    int status = CLI_OK;
    if (!d)
        return cli_fail_text(c, CLI_FAILED, "%s: %s", path, strerror(errno));
    for (struct dirent *e; status == CLI_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) < 0)
            status = cli_fail_text(c, CLI_FAILED, "%s/%s: %s", path, e->d_name, strerror(errno));
    }
    closedir(d);
    if (status == CLI_OK && rmdir(path) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", path, strerror(errno));
    return status;
}

int cli_rm(struct cli *c)
{
    struct strbuf path = {0};
    struct stat st;
    int status = CLI_OK;
    if (c->argc != 1 || !store_name(c->argv[0]))
        return cli_usage_error(c, "which model of the store?");
    if (store_path(c, &path) < 0 || strbuf_addf(&path, "/%s", c->argv[0]) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    else if (lstat(path.s, &st) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", path.s, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = store_remove_folder(c, path.s);
    else if (unlink(path.s) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", path.s, strerror(errno));
    if (status == CLI_OK && strbuf_adds(&path, ".sha256") == 0)
        (void)unlink(path.s); /* models that were put there by hand have none */
    if (status == CLI_OK && c->json)
        cli_print_json(json_pack("{s:b}", "ok", 1));
    strbuf_done(&path);
    return status;
}
