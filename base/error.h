/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error codes and error objects.  One X-macro is the source of the enum, the names, the texts, the
 * wire status and the table in the manual.
 *
 * Convention: a function returns 0 on success and a negative DEDIT_E_* on failure; callers pass a
 * negative value up unchanged.  A positive value is that function's own documented outcome.
 */
#pragma once

#include <stddef.h>

/*  X(NAME, number, "name", "text")  The numbers are wire values: never reuse or renumber one. */
#define DEDIT_ERRORS(X)                                                                            \
    X(NOMEM, 1, "out-of-memory", "memory could not be allocated")                                  \
    X(INVALID, 2, "invalid-argument", "a value is outside its documented range")                   \
    X(IO, 3, "io", "the operating system reported an error")                                       \
    X(NOT_FOUND, 4, "not-found", "the named thing does not exist")                                 \
    X(FORMAT, 5, "bad-format", "a file or message breaks a rule of its format")                    \
    X(UNSUPPORTED, 6, "unsupported", "well formed, but not supported by this version")             \
    X(LIMIT, 7, "limit-exceeded", "a configured or built-in limit would be exceeded")              \
    X(BUSY, 8, "busy", "the resource is in use or the queue is full")                              \
    X(CANCELLED, 9, "cancelled", "the request was cancelled")                                      \
    X(TIMEOUT, 10, "timeout", "a deadline passed")                                                 \
    X(NUMERIC, 11, "numeric", "a NaN or an infinity appeared in the logits")                       \
    X(DENIED, 12, "denied", "the caller may not do this")                                          \
    X(PROTOCOL, 13, "protocol", "the peer broke the protocol")                                     \
    X(CLOSED, 14, "closed", "the connection or the service is gone")                               \
    X(CONTEXT_FULL, 15, "context-full", "the context or the KV pool has no room")                  \
    X(MISMATCH, 16, "mismatch", "two descriptions of one thing disagree")                          \
    X(INTERNAL, 17, "internal", "a bug in dedit")                                                  \
    X(DEVICE_LOST, 18, "device-lost", "the device failed, and this process cannot use it any more")

/* -20000 - number: away from errno and from libraries' codes. */
#define DEDIT_E_BASE 20000
enum dedit_error_code {
    DEDIT_OK = 0,
#define X(NAME, number, name, text) DEDIT_E_##NAME = -(DEDIT_E_BASE + (number)),
    DEDIT_ERRORS(X)
#undef X
};

/* Where an error's text is put.  Owned by the caller, may live on the stack; zero-initialise. */
struct error {
    int code;         /* 0 or DEDIT_E_* */
    int line;         /* origin in our source */
    const char *file; /* static string */
    char msg[512];    /* one line, UTF-8, no newline; says the file, field or limit and the rule */
};

/* "invalid-argument" / its text; "unknown" for a number that is no code.  Static strings. */
const char *error_name(int code);
const char *error_text(int code);

/* Formats into *err (which may be NULL) and returns code.  Long texts are cut at a UTF-8 boundary;
 * control bytes (file content echoed in a message) are replaced by '?'. */
int error_set(struct error *err, int code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Puts "prefix: " before the message of *err; returns err's code (or code when err is NULL). */
int error_prefix(struct error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define ERR(err, NAME, ...) error_set((err), DEDIT_E_##NAME, __FILE__, __LINE__, __VA_ARGS__)
#define ERR_NOMEM(err) ERR(err, NOMEM, "out of memory")
