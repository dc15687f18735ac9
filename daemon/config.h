/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's configuration: defaults, dedit.conf and its drop-ins, flags; in that order, the last
 * word wins.  One object is immutable; a reload makes a new one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "daemon/loop.h"
#include "engine/engine.h"

/* Where a value was given. */
struct config_place {
    char *file;  /* or "command line"; NULL: nowhere, it is a default */
    size_t line; /* from 1; 0: of no file */
};

/* [model NAME] */
struct model_config_entry {
    char *name;
    char *path;               /* file or folder; relative ones lie in model_dir */
    char *chat_format;        /* NULL: the model's own */
    char *drafter;            /* as path; NULL: one that lies beside the model; "none" */
    char *device;             /* engine/device.h; NULL: auto */
    struct engine_config engine; /* what the section sets; defaults otherwise */
    bool preload;             /* load at start; default: yes for the default model */
    bool on_demand;           /* load when a request names it; default yes */
    struct config_place place;    /* of its first key; none: of a flag */
    struct config_place *origins; /* as those of struct config */
};

struct config {
    /* [daemon] */
    char *socket_path;        /* NULL: the standard place (docs/operations.md) */
    mode_t socket_mode;       /* 0660 */
    char *socket_group;       /* NULL: unchanged */
    char *metrics_socket;     /* NULL: beside the socket; "none": none */
    char *metrics_textfile;   /* NULL: none */
    uint64_t metrics_interval_ns; /* of the textfile; 15 s */
    char *model_dir;          /* /var/lib/dedit/models for root, the user's cache otherwise */
    char *costs_dir;          /* NULL or "none": measured costs are not kept */
    enum loop_kind event_loop;
    unsigned threads;         /* CPU threads of a model's kernels; 0: all allowed */
    char *cpu_tier;           /* NULL: DEDIT_CPU_TIER or the best */
    enum dk_tier tier;        /* what that comes to; of every model */
    bool exact;               /* BF16 weights never take the AMX BF16 class */
    char *default_model;      /* NULL: the first section */
    uint32_t max_models;      /* loaded at once; 4 */
    uint64_t memory_limit;    /* bytes for all models; 0: none */
    uint64_t drain_timeout_ns; /* at SIGTERM, for running requests; 8 s */
    int log_level;

    /* [limits] */
    uint32_t max_connections;             /* 1024 */
    uint32_t max_connections_per_uid;     /* 256 */
    uint32_t max_requests;                /* of all users, queued and running; 4096 */
    uint32_t max_requests_per_uid;        /* 1024 */
    uint32_t max_requests_per_connection; /* 256 */
    uint64_t max_prompt_bytes;            /* of one request; 16 MiB */
    uint64_t max_prompt_bytes_per_uid;    /* 64 MiB */
    uint64_t max_ring_bytes;              /* of one ring; 4 MiB */
    uint64_t max_ring_bytes_per_uid;      /* 256 MiB */
    uint32_t max_kv_blocks_per_uid;       /* 0: no limit of its own */
    uint64_t max_queue_ns;                /* longest wait in the queue; 0: none */
    uint32_t ring_bytes;                  /* default ring; 256 KiB */
    uint64_t ring_stall_timeout_ns;       /* 30 s */

    /* [policy] */
    uid_t *privileged_uids;  /* beside root and the daemon's own user */
    size_t n_privileged_uids;
    gid_t *privileged_gids;
    size_t n_privileged_gids;
    int32_t min_priority;    /* what unprivileged peers may ask for; 0 */
    int32_t max_priority;    /* 100 */

    struct model_config_entry *models;
    size_t n_models;

    struct config_place *origins; /* of each value, by the number of its option */
};

enum config_action { CONFIG_RUN, CONFIG_CHECK, CONFIG_PRINT, CONFIG_HELP, CONFIG_VERSION };
/* Flags and files.  *ret_action says what the command line asks for beside running.  Errors name the
 * file and line, or the flag, and the rule. */
int config_load(int argc, char **argv, struct config **ret, enum config_action *ret_action,
                struct error *err);
/* The same, but all that is wrong, a line each, in *ret_text (mem_free it); with --check-config among the flags, of what
 * the configuration names on disk, too, as this user finds it. */
int config_check(int argc, char **argv, char **ret_text, size_t *ret_n, struct error *err);
/* The same sources again (SIGHUP, Reload). Keys that need a restart are reported in *ret_note
 * (mem_free it; NULL when none) and keep their old value. */
int config_reload(const struct config *old, int argc, char **argv, struct config **ret,
                  char **ret_note, struct error *err);
struct config *config_free(struct config *c);
DEFINE_CLEANUP(struct config *, config_free);
/* Effective values with their origins, as a file that could be read again. */
int config_print(const struct config *c, int fd);
const char *config_help(void); /* text of --help */
/* One file's text into c; path is for messages. */
int config_read_text(struct config *c, const char *path, const char *text, size_t len,
                     struct error *err);
