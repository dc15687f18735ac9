/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client trace-html: a trace as one page that needs no network.  client/trace.html is the page, with a
 * mark where the trace goes. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "client/cli.h"
#include "client/trace-page.h"

#define MARK "@TRACE@"

/* Whether a line belongs to a trace; the first says so. */
static int check_line(struct cli *c, const char *file, unsigned line, const char *s, size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(s, len, 0, &e);
    int status = CLI_OK;
    if (!j)
        status = cli_fail_text(c, CLI_FAILED, "%s:%u: no JSON: %s", file, line, e.text);
    else if (!json_is_object(j))
        status = cli_fail_text(c, CLI_FAILED, "%s:%u: must be an object", file, line);
    else if (line == 1 && json_integer_value(json_object_get(j, "trace")) != 1)
        status =
            cli_fail_text(c, CLI_FAILED, "%s:1: \"trace\" must be 1: the file is no trace", file);
    else if (json_object_get(j, "round") && (!json_is_array(json_object_get(j, "draft")) ||
                                             !json_is_array(json_object_get(j, "nodes")) ||
                                             !json_is_integer(json_object_get(j, "at")) ||
                                             !json_is_integer(json_object_get(j, "committed"))))
        status = cli_fail_text(
            c, CLI_FAILED, "%s:%u: a round needs \"at\", \"committed\", \"draft\" and \"nodes\"",
            file, line);
    json_decref(j);
    return status;
}

/* The lines as an array, every < escaped: nothing in it ends the script element. */
static int embed(struct cli *c, const char *file, const char *s, size_t len, struct strbuf *out)
{
    unsigned line = 0;
    int r = strbuf_adds(out, "[");
    for (size_t at = 0; at < len && r == 0;) {
        const char *nl = memchr(s + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - (s + at)) : len - at;
        if (n) {
            int status = check_line(c, file, ++line, s + at, n);
            if (status != CLI_OK)
                return status;
            if (line > 1)
                r = strbuf_adds(out, ",\n");
            for (size_t i = 0; i < n && r == 0; i++)
                r = s[at + i] == '<' ? strbuf_adds(out, "\\u003c") : strbuf_add(out, s + at + i, 1);
        }
        at += n + 1;
    }
    if (r == 0)
        r = strbuf_adds(out, "]");
    if (r < 0)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    return line ? CLI_OK : cli_fail_text(c, CLI_FAILED, "%s: it is empty", file);
}

int cli_trace_html(struct cli *c)
{
    const char *path = cli_own(c, "output");
    _cleanup_strbuf_ struct strbuf b = {0};
    size_t len = 0;
    if (c->argc != 1)
        return cli_usage_error(c, "one file, as --trace-json writes it");
    char *text = cli_read(c, c->argv[0], &len);
    if (!text)
        return CLI_FAILED;
    int status = embed(c, c->argv[0], text, len, &b);
    mem_free(text);
    if (status != CLI_OK)
        return status;
    const char *mark = strstr(trace_page, MARK);
    FILE *f = path ? fopen(path, "we") : stdout;
    bool good = f && mark && fwrite(trace_page, 1, (size_t)(mark - trace_page), f) > 0 &&
                fwrite(b.s, 1, b.len, f) == b.len && fputs(mark + strlen(MARK), f) >= 0 &&
                fflush(f) == 0;
    int e = errno;
    if (f && path)
        (void)fclose(f);
    return good ? CLI_OK
                : cli_fail_text(c, CLI_FAILED, "%s: %s", path ? path : "standard output",
                                strerror(e));
}
