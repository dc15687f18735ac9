/* SPDX-License-Identifier: Apache-2.0 */
/* A shard, line by line: the file is mapped, so that only one line's values are in memory. */
#include <string.h>

#include "base/fd.h"
#include "base/mapguard.h"
#include "train/data.h"

/* With no model to compare with, what the header says of its own. */
static int check_ids(const struct data_record *r, const struct data_header *h, const char *path,
                     uint64_t line, struct error *err)
{
    for (size_t i = 0; h->present && h->vocab_size && i < r->ids.len; i++)
        if (r->ids.ids[i] >= h->vocab_size)
            return ERR(err, MISMATCH,
                       "%s:%llu: \"ids\"[%zu] is %u; the header of the file says \"vocab_size\" %u",
                       path, (unsigned long long)line, i, r->ids.ids[i], h->vocab_size);
    return 0;
}

int data_read_file(const char *path, uint32_t vocab_size, struct data_header *header,
                   int (*take)(void *arg, const struct data_record *r, uint64_t line,
                               struct error *err),
                   void *arg, struct error *err)
{
    _cleanup_record_ struct data_record record = {0};
    struct data_header h = {.present = false};
    struct file_map map = {0};
    const uint64_t faults = map_guard_faults();
    uint64_t line = 0, n_blank = 0, first_blank = 0;
    int r = file_map_open(path, &map, err);
    for (size_t at = 0; r == 0 && at < map.size;) {
        const char *text = (const char *)map.addr + at;
        const char *end = memchr(text, '\n', map.size - at);
        const size_t len = end ? (size_t)(end - text) : map.size - at;
        line++;
        at += len + 1;
        r = data_parse_line(text, len, path, line, vocab_size, &record, &h, err);
        if (r == 0 && !vocab_size)
            r = check_ids(&record, &h, path, line, err);
        if (r == 2 && n_blank++ == 0)
            first_blank = line;
        if (r == 0)
            r = take(arg, &record, line, err);
        else if (r == 1 && line > 1)
            r = ERR(err, FORMAT, "%s:%llu: a header that is not in line 1", path,
                    (unsigned long long)line);
        else if (r > 0)
            r = 0;
    }
    if (map_guard_faults() != faults)
        r = ERR(err, IO, "%s: the file became shorter while it was read", path);
    file_map_done(&map);
    h.n_blank = n_blank;
    h.first_blank = first_blank;
    if (r == 0 && header)
        *header = h;
    return r;
}
