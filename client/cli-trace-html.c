/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client trace-html: a trace as one page that needs no network.  client/trace.html is the page, with a
 * mark where the trace goes. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/out_file.h"
#include "base/strbuf.h"
#include "client/cli-trace-lines.h"
#include "client/cli.h"
#include "client/trace-page.h"

#define MARK "@TRACE@"

int cli_trace_html(struct cli *c)
{
    const char *path = cli_own(c, "output");
    _cleanup_strbuf_ struct strbuf b = {0};
    size_t len = 0;
    if (c->argc != 1)
        return cli_usage_error(c, "one file, as --trace-json writes it");
    if (!cli_apart(c, "--output", path, c->argv[0]))
        return CLI_USAGE;
    char *text = cli_read(c, c->argv[0], &len);
    if (!text)
        return CLI_FAILED;
    struct error err = {0};
    int r = trace_embed(c->argv[0], text, len, &b, &err);
    mem_free(text);
    if (r < 0)
        return cli_fail_text(c, CLI_FAILED, "%s", err.msg);
    const char *mark = strstr(trace_page, MARK);
    struct out_file o = {0};
    if (path && out_file_open(&o, path, &err) < 0)
        return cli_fail_text(c, CLI_FAILED, "%s", err.msg);
    FILE *f = path ? o.f : stdout;
    bool good = mark && fwrite(trace_page, 1, (size_t)(mark - trace_page), f) > 0 &&
                fwrite(b.s, 1, b.len, f) == b.len && fputs(mark + strlen(MARK), f) >= 0 &&
                fflush(f) == 0;
    if (path && !good) {
        out_file_drop(&o);
        return cli_fail_text(c, CLI_FAILED, "%s: out of memory", path);
    }
    if (path)
        return out_file_close(&o, &err) < 0 ? cli_fail_text(c, CLI_FAILED, "%s", err.msg) : CLI_OK;
    return good ? CLI_OK : cli_fail_text(c, CLI_FAILED, "standard output: %s", strerror(errno));
}
