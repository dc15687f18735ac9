/* SPDX-License-Identifier: Apache-2.0 */
#include "base/line.h"

#include <errno.h>
#include <string.h>

long line_read(FILE *f, const char *name, char **line, size_t *cap, struct error *err)
{
    errno = 0;
    const ssize_t n = getline(line, cap, f);
    if (n > 0)
        return n;
    const int why = errno;
    if (feof(f) && !ferror(f))
        return 0;
    return why == ENOMEM
               ? ERR(err, NOMEM, "%s: a line is too long for the memory that is there", name)
               : ERR(err, IO, "%s: %s", name, why ? strerror(why) : "cannot be read");
}

long line_read_next(FILE *f, const char *name, char **line, size_t *cap, struct error *err)
{
    long n;
    do
        n = line_read(f, name, line, cap, err);
    while (n > 0 && strspn(*line, " \t\r\n") == (size_t)n);
    return n;
}
