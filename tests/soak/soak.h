/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon under load for long: what it may not lose, and what nobody may notice.  The parent starts
 * a private daemon and clients, each a process, and measures; soak-clients.c is what clients do with
 * libdedit, soak-kills.c the raw protocol up to the step at which a client is killed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SOAK_CASES      24
#define SOAK_MAX_TOKENS 96
#define SOAK_VOCAB      300 /* ids below are ordinary tokens of the tiny model */
#define SOAK_SLOTS      64

/* A prompt, and the answer that it gets alone. */
struct soak_case {
    uint32_t prompt[64];
    uint32_t n_prompt, max_tokens;
    float temperature;
    uint64_t seed;
    uint32_t answer[SOAK_MAX_TOKENS];
    uint32_t n_answer;
};

/* Shared by all processes. */
struct soak {
    struct soak_case cases[SOAK_CASES];
    char socket[108];
    uint64_t target;    /* requests to make */
    uint64_t begun, whole, cancelled, abandoned, reconnects;
    uint64_t wrong;     /* answers that differ: must stay 0 */
    uint32_t stop;
    char why[512];      /* the first wrong one */
    uint32_t doing[SOAK_SLOTS]; /* request under way of each client, by begun; for kills */
};

uint32_t soak_random(uint64_t *state); /* 32 bits */
void soak_wrong(struct soak *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* soak-clients.c: answers of each case alone; one client's life until the target is reached; a stream
 * that checks its answers until stop. */
bool soak_references(struct soak *s);
void soak_client(struct soak *s, unsigned number, uint64_t seed);
void soak_stream(struct soak *s, unsigned number);
/* Value of a metric; sum over its labels. */
bool soak_metric(struct soak *s, const char *name, double *ret);

/* soak-kills.c: a client that ends at this step, by SIGKILL; never returns. */
extern const unsigned soak_n_steps;
const char *soak_step_name(unsigned step);
void soak_die_at(struct soak *s, unsigned step) __attribute__((noreturn));
