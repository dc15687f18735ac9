/* SPDX-License-Identifier: Apache-2.0 */
/**
 * libdedit: tokens from dedit-d without HTTP.
 *
 * Model
 *   A *client* is one connection to the daemon.  A *request* is one prompt and its answer.  Control
 *   travels over a Unix socket; tokens are read straight out of memory that the daemon shares with
 *   this process (read-only), so a reader that keeps up costs no system call.
 *
 *       struct dedit_client *c;
 *       struct dedit_request *r;
 *       struct dedit_options o;
 *       struct dedit_event ev;
 *       struct dedit_error err;
 *
 *       if (dedit_client_connect(NULL, &c, &err) < 0) ...
 *       dedit_options_init(&o, sizeof o);
 *       o.text = "The capital of France is";
 *       if (dedit_client_submit(c, &o, &r, &err) < 0) ...
 *       while (dedit_request_next(r, &ev, -1, &err) > 0) {
 *           if (ev.type == DEDIT_EVENT_TOKENS)
 *               fwrite(ev.text, 1, ev.text_len, stdout);
 *           else if (ev.type == DEDIT_EVENT_FINISHED || ev.type == DEDIT_EVENT_FAILED)
 *               break;
 *       }
 *       dedit_request_free(r);
 *       dedit_client_free(c);
 *
 * Threads
 *   A client and its requests belong to one thread at a time; different clients are independent.
 *   The library has no global state, starts no thread, installs no signal handler, never prints,
 *   never exits and never raises SIGPIPE.
 *
 * Ownership
 *   What a function returns through a `ret_` argument is the caller's to free with the matching
 *   *_free().  Pointers inside a dedit_event are valid until the next call on the same request.
 *   Strings that go in are copied before the call returns.
 *
 * Errors
 *   Functions return 0 (or a documented positive number), or a negative DEDIT_ERR_* with a text in
 *   *err (which may be NULL).  A daemon that dies is DEDIT_ERR_CLOSED, at once, never a short
 *   answer: an answer is whole only when its last event is DEDIT_EVENT_FINISHED.
 *   After CLOSED, PROTOCOL or a TIMEOUT of dedit_client_set_timeout the connection is lost: every later
 *   call on it gives the same error, and what is left is to free it and to connect again.  PROTOCOL of
 *   dedit_request_next is about that request's records alone; it cannot be read any further.
 *   Any function that allocates may give NOMEM.
 *
 * Usable from C11, C++ and through ctypes: plain structs and fixed-width integers only.  dedit_options
 * begins with its size, dedit_event and dedit_usage end with room (0 now), so that they can grow without
 * breaking the ABI; what the library allocates may grow at its end.
 */
#ifndef DEDIT_H
#define DEDIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEDIT_API __attribute__((visibility("default")))

/* ---- errors ------------------------------------------------------------------------------------ */

enum dedit_status {
    DEDIT_ERR_NOMEM = -20001,        /* memory could not be allocated */
    DEDIT_ERR_INVALID = -20002,      /* a value is outside its documented range */
    DEDIT_ERR_IO = -20003,           /* the operating system reported an error */
    DEDIT_ERR_NOT_FOUND = -20004,    /* no such model, file or request */
    DEDIT_ERR_FORMAT = -20005,       /* a file or message breaks a rule of its format */
    DEDIT_ERR_UNSUPPORTED = -20006,  /* well formed, but not supported by this daemon */
    DEDIT_ERR_LIMIT = -20007,        /* a configured or built-in limit would be exceeded */
    DEDIT_ERR_BUSY = -20008,         /* the queue is full */
    DEDIT_ERR_CANCELLED = -20009,    /* the request was cancelled */
    DEDIT_ERR_TIMEOUT = -20010,      /* a deadline passed */
    DEDIT_ERR_NUMERIC = -20011,      /* a NaN or an infinity appeared in the logits */
    DEDIT_ERR_DENIED = -20012,       /* this user may not do this */
    DEDIT_ERR_PROTOCOL = -20013,     /* the daemon broke the protocol, or we did */
    DEDIT_ERR_CLOSED = -20014,       /* the daemon is gone, or was never there */
    DEDIT_ERR_CONTEXT_FULL = -20015, /* the prompt does not fit in the context or the KV pool */
    DEDIT_ERR_MISMATCH = -20016,     /* two descriptions of one thing disagree */
    DEDIT_ERR_INTERNAL = -20017,     /* a bug in dedit */
    DEDIT_ERR_DEVICE_LOST = -20018   /* the device failed; the daemon ends, to be started again */
};
struct dedit_error {
    int32_t code;   /* 0 or DEDIT_ERR_* */
    char msg[512];  /* one line of UTF-8: the field or limit and the rule */
};
/* "limit-exceeded"; "unknown" for a number that is none.  Static. */
DEDIT_API const char *dedit_error_name(int code);
/* "0.1.0" of the library. */
DEDIT_API const char *dedit_version(void);

/* ---- connection -------------------------------------------------------------------------------- */

struct dedit_client;

/*
 * Connects and agrees on a protocol version.  path: the daemon's socket, or NULL for $DEDIT_SOCKET,
 * else $XDG_RUNTIME_DIR/dedit/dedit.sock when it exists, else /run/dedit/dedit.sock.
 * Errors: CLOSED (nobody listens), DENIED (socket mode), LIMIT (path too long, too many
 * connections), UNSUPPORTED (no common version), PROTOCOL.
 */
DEDIT_API int dedit_client_connect(const char *path, struct dedit_client **ret,
                                   struct dedit_error *err);
/* The same, and TIMEOUT when the daemon says nothing for that long (-1: wait, as above). A daemon that
 * systemd starts for this connection may first have a model to load. */
DEDIT_API int dedit_client_connect_timeout(const char *path, int timeout_ms,
                                           struct dedit_client **ret, struct dedit_error *err);
/* Longest silence that a call which waits for the daemon's answer bears; -1 (default): any. Over it
 * the call fails with TIMEOUT and the connection is lost, since the answer may come later.  Not for
 * dedit_request_next, which has its own. */
DEDIT_API int dedit_client_set_timeout(struct dedit_client *c, int timeout_ms,
                                       struct dedit_error *err);
/* Cancels what runs and closes.  Requests of this client that are still held stay valid objects
 * whose only use is dedit_request_free().  NULL is fine. */
DEDIT_API void dedit_client_free(struct dedit_client *c);

/* One descriptor for the caller's event loop: readable when any request of this client may have
 * something, or the daemon is gone.  Then call dedit_client_dispatch.  Not to be read or closed. */
DEDIT_API int dedit_client_fd(const struct dedit_client *c);
/* Call before sleeping on that descriptor: 1 when the loop may sleep, 0 when something is there
 * already (do not sleep), or CLOSED. */
DEDIT_API int dedit_client_prepare(struct dedit_client *c, struct dedit_error *err);
/* Takes in what has come, without blocking.  Then ask each request with timeout 0. */
DEDIT_API int dedit_client_dispatch(struct dedit_client *c, struct dedit_error *err);
/* The socket, for callers that only want to know whether the connection is alive. */
DEDIT_API int dedit_client_socket(const struct dedit_client *c);
/* Microseconds that dedit_request_next spins before it sleeps; default 20, 0 never spins.  Spinning
 * wants a CPU of its own. */
DEDIT_API void dedit_client_set_spin(struct dedit_client *c, uint32_t microseconds);

/* ---- requests ----------------------------------------------------------------------------------- */

struct dedit_request;

struct dedit_chat_message {
    const char *role;            /* "system", "user", "assistant", "tool" */
    const char *content;         /* UTF-8 */
    const char *reasoning;       /* assistant's earlier thinking, or NULL */
    const char *tool_calls_json; /* or NULL */
};
struct dedit_logit_bias {
    uint32_t token;
    float bias; /* -100..100 */
};

/* Exactly one of text, messages, ids.  dedit_options_init gives every default. */
struct dedit_options {
    size_t size; /* sizeof this struct, set by dedit_options_init */

    const char *model;     /* NULL: the daemon's default */
    const char *text;      /* prompt as UTF-8 text ... */
    size_t text_len;       /* ... of this length; (size_t)-1: NUL-terminated (default) */
    const struct dedit_chat_message *messages;
    size_t n_messages;
    const uint32_t *ids;
    size_t n_ids;

    const char *chat_format;    /* NULL: the model's own */
    const char *tools_json;     /* NULL: none */
    int32_t enable_thinking;    /* -1: the template's default; 0 off; 1 on */
    int32_t parse_special;      /* text: 1 recognises control tokens; default 0 */
    int32_t raw;                /* text: 1 adds no BOS; default 0 */

    /* Sampling, in vLLM's names and meanings. */
    float temperature;          /* 0..100; default 1 */
    int32_t top_k;              /* default 0: off */
    float top_p;                /* default 1 */
    float min_p;                /* default 0 */
    float repetition_penalty;   /* default 1 */
    float frequency_penalty;    /* default 0 */
    float presence_penalty;     /* default 0 */
    uint64_t seed;
    int32_t has_seed;           /* default 0: the daemon draws one and reports it */
    uint32_t max_tokens;        /* default 256 */
    uint32_t min_tokens;        /* default 0 */
    int32_t ignore_eos;         /* default 0 */
    int32_t logprobs;           /* alternatives per token, 0..20; default -1: no logprobs */
    const struct dedit_logit_bias *logit_bias;
    size_t n_logit_bias;
    const uint32_t *stop_token_ids;
    size_t n_stop_token_ids;
    const char *const *stop;    /* strings of 1..256 bytes */
    size_t n_stop;
    int32_t include_stop_str_in_output; /* default 0 */
    int32_t skip_special_tokens;        /* default 1 */

    /* Drafting: speed only, never the text. */
    const char *method;         /* NULL or "auto"; "ar": plain decoding */
    uint32_t window, passes, tree_budget; /* 0: automatic */
    const char *edit_visibility; /* "bidirectional" or "causal"; NULL: the drafter's own */
    const char *verification;    /* "exact" or NULL: the text of plain decoding; "rejection": its law */
    int32_t no_noise;            /* 1: the drafter does not know the target's noise; default 0 */

    int32_t priority;           /* lower runs first; default 0 */
    uint64_t timeout_ms;        /* default 0: none */
    const char *cache_salt;     /* NULL: prefixes are shared within this user */
    int32_t rounds;             /* 1: DEDIT_EVENT_ROUND events */
    int32_t want_text;          /* default 1 */
    uint32_t ring_bytes;        /* 0: the daemon's default */
};
DEDIT_API void dedit_options_init(struct dedit_options *o, size_t size);

/*
 * Sends a request and waits for the daemon's word that it is queued.
 * Errors: INVALID (names the field), NOT_FOUND (model), LIMIT and BUSY (name and value of the
 * limit), CONTEXT_FULL (both numbers), UNSUPPORTED, CLOSED.
 */
DEDIT_API int dedit_client_submit(struct dedit_client *c, const struct dedit_options *o,
                                  struct dedit_request **ret, struct dedit_error *err);
/* Asks the daemon to stop; the last event will be FINISHED with reason "cancelled", unless the
 * request ended before.  Never blocks for long; late calls are no-ops. */
DEDIT_API int dedit_request_cancel(struct dedit_request *r, struct dedit_error *err);
/* Cancels if it still runs.  NULL is fine. */
DEDIT_API void dedit_request_free(struct dedit_request *r);
DEDIT_API uint64_t dedit_request_id(const struct dedit_request *r);
DEDIT_API uint64_t dedit_request_seed(const struct dedit_request *r);
DEDIT_API uint32_t dedit_request_prompt_tokens(const struct dedit_request *r);
DEDIT_API void dedit_request_set_user(struct dedit_request *r, void *user);
DEDIT_API void *dedit_request_user(const struct dedit_request *r);

/* ---- events ------------------------------------------------------------------------------------- */

enum dedit_event_type {
    DEDIT_EVENT_TOKENS = 1,   /* tokens of one commit */
    DEDIT_EVENT_ROUND = 2,    /* how one verification round went (options.rounds) */
    DEDIT_EVENT_FINISHED = 3, /* last event: the answer is whole */
    DEDIT_EVENT_FAILED = 4    /* last event: it is not, and why */
};
enum dedit_token_flags {
    DEDIT_TOKEN_DRAFTED = 1,
    DEDIT_TOKEN_EDITED = 2,
    DEDIT_TOKEN_BONUS = 4,
    DEDIT_TOKEN_REASONING = 8
};
struct dedit_alternative {
    uint32_t id;
    float logprob; /* natural log */
};
struct dedit_token {
    uint32_t id;
    uint32_t flags;
    float logprob;      /* with options.logprobs */
    uint32_t n_alternatives;
    const struct dedit_alternative *alternatives; /* the chosen token first */
    const char *text;   /* whole UTF-8, not NUL-terminated */
    size_t text_len;
};
struct dedit_usage {
    uint32_t prompt_tokens, completion_tokens, cached_tokens, preemptions;
    uint64_t queued_ns, first_token_ns, total_ns; /* since the daemon took the request */
    /* Rounds that verified a draft; committed_tokens / rounds is the acceptance length. */
    uint64_t rounds, drafted_tokens, accepted_tokens, committed_tokens;
    uint64_t seed;
    const char *method; /* what most tokens came from, "ar": plain decoding; NULL: not told */
    uint64_t reserved[3];
};
struct dedit_event {
    uint32_t type; /* enum dedit_event_type */
    uint32_t n_tokens;
    const struct dedit_token *tokens; /* TOKENS */
    const char *text;                 /* TOKENS: all their text, whole UTF-8, not NUL-terminated */
    size_t text_len;
    uint32_t window, passes, nodes, committed; /* ROUND */
    const uint32_t *accepted;                  /* ROUND: per pass */
    const float *confidence;                   /* ROUND: per row of the window, the anchor's 1 */
    const uint32_t *draft;                     /* ROUND: [passes][window], the anchor's row 0 */
    const uint32_t *node_token;                /* ROUND: [nodes], what was verified */
    const int32_t *node_parent;                /* ROUND: [nodes], -1: the anchor */
    const char *finish_reason; /* FINISHED: "stop", "length", "cancelled"; FAILED: "error",
                                  "timeout", "shutdown", "stalled" */
    const char *stop_reason;   /* FINISHED: the stop string or token id met, or NULL */
    struct dedit_usage usage;  /* FINISHED */
    int32_t error_code;        /* FAILED: DEDIT_ERR_* */
    const char *error_message; /* FAILED */
    uint64_t reserved[6];
};

/*
 * The next event.  timeout_ms: -1 waits, 0 never blocks.  Returns 1 with *ev; 0 when the time is over
 * (or after the last event); negative: CLOSED when the daemon died, PROTOCOL.  A signal handler that
 * interrupts the wait does not end it.
 */
DEDIT_API int dedit_request_next(struct dedit_request *r, struct dedit_event *ev, int timeout_ms,
                                 struct dedit_error *err);
/* Reads to the end and returns the whole text (NUL-terminated, dedit_free it) and the last event's
 * values.  FAILED becomes a negative return with the daemon's message. ev may be NULL. */
DEDIT_API int dedit_request_collect(struct dedit_request *r, char **ret_text, size_t *ret_len,
                                    struct dedit_event *ev, struct dedit_error *err);
DEDIT_API void dedit_free(void *p);

/* ---- the daemon ---------------------------------------------------------------------------------- */

struct dedit_model {
    const char *name, *path, *state, *family, *chat_format, *numeric_class, *drafter, *methods, *error;
    uint32_t progress_percent, vocab_size, max_context, running, waiting;
    uint64_t weight_bytes, kv_bytes, memory_bytes;
    int32_t is_default;
};
struct dedit_model_list;
/* name NULL: all of them. */
DEDIT_API int dedit_client_models(struct dedit_client *c, const char *name,
                                  struct dedit_model_list **ret, struct dedit_error *err);
DEDIT_API size_t dedit_model_list_len(const struct dedit_model_list *l);
DEDIT_API const struct dedit_model *dedit_model_list_at(const struct dedit_model_list *l, size_t i);
DEDIT_API void dedit_model_list_free(struct dedit_model_list *l);

/* The daemon's metrics in the Prometheus text format (dedit_free it). */
DEDIT_API int dedit_client_stats(struct dedit_client *c, char **ret_text, struct dedit_error *err);
/* 1 ready, 0 alive but not ready (loading, draining); the status word goes to status[32]. */
DEDIT_API int dedit_client_health(struct dedit_client *c, char status[32], uint64_t *ret_uptime_ns,
                                  struct dedit_error *err);
/* Token ids of a text / text of ids (dedit_free both). */
DEDIT_API int dedit_client_tokenize(struct dedit_client *c, const char *model, const char *text,
                                    size_t len, int parse_special, uint32_t **ret_ids,
                                    size_t *ret_n, struct dedit_error *err);
DEDIT_API int dedit_client_detokenize(struct dedit_client *c, const char *model,
                                      const uint32_t *ids, size_t n, char **ret_text,
                                      size_t *ret_len, struct dedit_error *err);
/* Privileged.  load waits until the model is ready or has failed. */
DEDIT_API int dedit_client_load(struct dedit_client *c, const char *name, const char *path,
                                struct dedit_error *err);
/* path and drafter of a model that is not configured; drafter "none": not even one that lies beside it. */
DEDIT_API int dedit_client_load_drafted(struct dedit_client *c, const char *name, const char *path,
                                        const char *drafter, struct dedit_error *err);
DEDIT_API int dedit_client_unload(struct dedit_client *c, const char *name, struct dedit_error *err);
DEDIT_API int dedit_client_reload(struct dedit_client *c, struct dedit_error *err);
/* No new requests from now on; with stop != 0 the daemon exits when idle. */
DEDIT_API int dedit_client_drain(struct dedit_client *c, int stop, struct dedit_error *err);

#ifdef __cplusplus
}
#endif
#endif
