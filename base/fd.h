/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors, read-only mappings and sealed memory files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

int fd_close(int fd); /* returns -1; fd < 0 is fine; never touches errno */
static inline void fd_closep(int *fd)
{
    *fd = fd_close(*fd);
}
#define _cleanup_fd_ _cleanup_(fd_closep)

/* Number of open descriptors of this process (leak tests); -1 on error. */
int fd_count(void);

/* Does path name the file that is open here?  flags: AT_SYMLINK_NOFOLLOW, or 0.  For who has just locked it: it may
 * have been removed before, and another one made. */
bool fd_is_named(int fd, const char *path, int flags);

/* All of it, after interruptions too; -1 with errno on failure. */
int fd_write_all(int fd, const void *p, size_t len);

/* Opens a regular file read-only, close-on-exec; directories and special files are refused. The
 * message names the first path component that fails, and why. */
int fd_open_regular(const char *path, uint64_t *ret_size, struct error *err); /* fd or negative */
/* Whole small file as a NUL-terminated string (NULs inside are kept); larger than max is LIMIT. */
int file_read(const char *path, size_t max, char **ret, size_t *ret_len, struct error *err);
/* A folder, and whatever part of its path is missing, with this mode less the umask; one that is there is fine. */
int folders_make(const char *path, unsigned mode, struct error *err);
/* Opens a folder and locks it until the descriptor is closed; BUSY where somebody has it, who is named `who`
 * then ("another process"). */
int folder_lock(const char *path, const char *who, struct error *err); /* fd or negative */
/* Writes to a new file beside path, syncs it, renames it over path; with the mode of the file that is
 * replaced. */
int file_write_atomic(const char *path, const void *data, size_t len, struct error *err);
/* The same with what lies in n places, one after the other. */
struct iovec;
int file_write_parts(const char *path, const struct iovec *parts, size_t n, struct error *err);

/* Read-only private mapping of a file. */
struct file_map {
    void *addr; /* NULL when size is 0 */
    size_t size;
};
int file_map_open(const char *path, struct file_map *ret, struct error *err);
void file_map_release(struct file_map *m, size_t off, size_t len); /* drops pages, mapping stays */
void file_map_done(struct file_map *m);

/* Memory file of the given size whose space is really reserved (ENOSPC now, not SIGBUS later). */
int memfd_new(const char *name, size_t size, struct error *err); /* fd or negative */
int memfd_seal(int fd, int seals, struct error *err);
/* Checks that fd is a memory file with at least these seals and this size. */
int memfd_check(int fd, int seals, size_t min_size, size_t *ret_size, struct error *err);
