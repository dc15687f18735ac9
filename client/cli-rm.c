/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client rm: a model of the store, its sums, and the drafter that only it uses. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "client/cli-store.h"
#include "engine/drafter_file.h"

struct removing {
    struct cli *c;
    const char *name;
    struct strbuf store;
    json_t *removed, *kept;
};

static int remove_one(struct removing *r, const char *name)
{
    struct store_stage s;
    int status = store_stage_begin(&s, r->c, r->store.s, name);
    if (status == CLI_OK)
        status = store_stage_withdraw(&s);
    store_stage_end(&s);
    if (status == CLI_OK)
        json_array_append_new(r->removed, json_string(name));
    return status;
}

/* x.gguf and the folder x have the same drafter. */
static int is_shared(struct removing *r, bool *ret)
{
    _cleanup_strbuf_ struct strbuf other = {0};
    const size_t n = store_stem(r->name);
    if (store_member(&other, r->store.s, r->name, n, r->name[n] ? "" : ".gguf") < 0)
        return cli_fail_text(r->c, CLI_FAILED, "out of memory");
    *ret = store_has(other.s);
    return CLI_OK;
}

static int remove_drafters(struct removing *r)
{
    const size_t n = store_stem(r->name);
    const bool file = r->name[n] != 0; /* NAME ends in .gguf */
    bool shared = false;
    int status = is_shared(r, &shared);
    const char *whose = file != shared ? ".gguf" : "";
    for (size_t i = 0; i < ARRAY_LEN(DRAFTER_ENDS) && status == CLI_OK; i++) {
        _cleanup_strbuf_ struct strbuf path = {0}, name = {0};
        if (store_member(&path, r->store.s, r->name, n, DRAFTER_ENDS[i]) < 0 ||
            strbuf_addf(&name, "%.*s%s", (int)n, r->name, DRAFTER_ENDS[i]) < 0)
            return cli_fail_text(r->c, CLI_FAILED, "out of memory");
        if (!store_has(path.s))
            continue;
        if (shared)
            json_array_append_new(r->kept, json_string(name.s));
        else
            status = remove_one(r, name.s);
        if (status == CLI_OK && !r->c->json && !r->c->quiet)
            fprintf(stderr,
                    shared ? "%s stays: it is the drafter of %.*s%s, too\n"
                           : "%s is removed, too: it was the drafter of %.*s%s\n",
                    name.s, (int)n, r->name, whose);
    }
    return status;
}

static int remove_all(struct removing *r)
{
    _cleanup_strbuf_ struct strbuf path = {0}, sums = {0};
    bool had = false;
    int status = store_sweep(r->c, r->store.s, r->name, &had);
    if (status != CLI_OK)
        return status;
    if (store_member(&path, r->store.s, r->name, strlen(r->name), "") < 0 ||
        store_member(&sums, r->store.s, r->name, strlen(r->name), ".sha256") < 0)
        return cli_fail_text(r->c, CLI_FAILED, "out of memory");
    if (!store_has(path.s) && !store_has(sums.s)) {
        struct store_stage s;
        if (!had)
            return cli_fail_text(r->c, CLI_FAILED, "%s: %s", path.s, strerror(ENOENT));
        /* What was there of it is gone, unless somebody is at work. */
        status = store_stage_begin(&s, r->c, r->store.s, r->name);
        store_stage_end(&s);
        return status;
    }
    /* Drafters first: one that has lost its model would be found by another of that name. */
    if (!store_is_drafter(r->name))
        status = remove_drafters(r);
    return status == CLI_OK ? remove_one(r, r->name) : status;
}

int cli_rm(struct cli *c)
{
    struct removing r = {.c = c, .name = c->argc == 1 ? c->argv[0] : ""};
    int status = CLI_OK;
    if (!store_name(r.name))
        return cli_usage_error(c, "which model of the store?");
    if (store_ends_with(r.name, ".sha256")) {
        const int n = (int)(strlen(r.name) - strlen(".sha256"));
        return cli_usage_error(c, "%s has the sums of %.*s; \"rm %.*s\" removes both", r.name, n,
                               r.name, n, r.name);
    }
    r.removed = json_array();
    r.kept = json_array();
    if (!r.removed || !r.kept || store_path(c, &r.store) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    cli_catch_end(true); /* what is begun is done */
    if (status == CLI_OK)
        status = remove_all(&r);
    cli_catch_end(false);
    if (status == CLI_OK && c->json)
        cli_print_json(json_pack("{s:b, s:O, s:O}", "ok", 1, "removed", r.removed, "kept", r.kept));
    json_decref(r.removed);
    json_decref(r.kept);
    strbuf_done(&r.store);
    return status;
}
