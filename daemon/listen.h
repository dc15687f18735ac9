/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket: inherited from systemd, or made here and removed at the end. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "daemon/config.h"

#define LISTENER_PATH 128
struct listener {
    char path[LISTENER_PATH]; /* for messages; of the bound socket */
    bool own;                 /* made here: unlinked at the end */
    int lock_fd;              /* beside an own socket: two daemons never fight for one path */
};
/* What listener_close() may be given, too: nothing is open. */
#define LISTENER_NONE ((struct listener){.lock_fd = -1})
/* Opens, or takes LISTEN_FDS over.  An existing socket file is replaced only when nobody listens. */
int listener_open(struct listener *l, const struct config *c, int *ret_fd, struct error *err);
void listener_close(struct listener *l);

/* The path of the socket that systemd has passed: 1; 0: it has passed none.  keep: LISTEN_* stay for the next who asks. */
int listener_inherited(char path[LISTENER_PATH], bool keep, struct error *err);
/* Where the configuration says, or the standard place. */
int listener_path(const struct config *c, char ret[LISTENER_PATH], struct error *err);
/* Whether two paths, of which neither need be there, are one place. */
bool listener_is_at(const char *a, const char *b);

/* Does somebody listen at this address?  Waits up to a second for a socket whose owner has just died: the
 * kernel lets go of what its io_uring held a little later. */
struct sockaddr_un;
bool listener_in_use(const struct sockaddr_un *a, int type);
