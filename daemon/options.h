/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every option of the daemon, once: X(section, key, TYPE, member, default text, unit, help).  The file's
 * key, the flag --key, --help, --print-config and the manual's table all come from here.
 * TYPE names the parser in config.c.
 */
#pragma once

#define DAEMON_OPTIONS(X)                                                                          \
    X("daemon", "socket", STRING, socket_path, "", "path", "where clients connect")                \
    X("daemon", "socket_mode", MODE, socket_mode, "0660", "octal", "mode of the socket")           \
    X("daemon", "socket_group", STRING, socket_group, "", "group", "group of the socket")          \
    X("daemon", "metrics_socket", STRING, metrics_socket, "", "path",                              \
      "HTTP GET of the metrics; none: no such socket; empty: metrics.sock beside dedit.sock, "       \
      "x-metrics.sock beside x.sock, x-metrics beside x")                                          \
    X("daemon", "metrics_textfile", STRING, metrics_textfile, "", "path",                          \
      "the metrics written for node-exporter; empty: none")                                        \
    X("daemon", "metrics_interval", TIME, metrics_interval_ns, "15s", "time",                      \
      "how often the text file is written")                                                        \
    X("daemon", "model_dir", STRING, model_dir, "", "folder",                                      \
      "where relative model paths lie; made absolute at start")                                    \
    X("daemon", "costs_dir", STRING, costs_dir, "", "folder",                                      \
      "where measured costs are kept; none: nowhere; empty: the cache folder")                     \
    X("daemon", "event_loop", LOOP, event_loop, "auto", "auto|io_uring|epoll", "event loop")       \
    X("daemon", "threads", U32, threads, "0", "threads", "CPU threads of a model; 0: all")         \
    X("daemon", "cpu_tier", STRING, cpu_tier, "", "c|avx2|avx512|amx",                             \
      "instruction set of the kernels; empty: the best")                                           \
    X("daemon", "exact", BOOL, exact, "no", "yes|no",                                              \
      "BF16 weights never take the AMX BF16 class")                                                \
    X("daemon", "default_model", STRING, default_model, "", "name",                                \
      "model of requests that name none; empty: the first section")                                \
    X("daemon", "max_models", U32, max_models, "4", "models", "models loaded at once")             \
    X("daemon", "memory_limit", SIZE, memory_limit, "0", "bytes", "memory of all models; 0: none") \
    X("daemon", "drain_timeout", TIME, drain_timeout_ns, "8s", "time",                             \
      "how long running requests may go on at SIGTERM")                                            \
    X("daemon", "log_level", LEVEL, log_level, "info", "err|warning|notice|info|debug",            \
      "least important lines that are logged")                                                     \
    X("limits", "max_connections", U32, max_connections, "1024", "connections",                    \
      "connections of all users")                                                                  \
    X("limits", "max_connections_per_uid", U32, max_connections_per_uid, "256", "connections",     \
      "connections of one user; 0: no limit of its own")                                           \
    X("limits", "max_requests", U32, max_requests, "4096", "requests",                             \
      "requests of all users, queued and running")                                                 \
    X("limits", "max_requests_per_uid", U32, max_requests_per_uid, "1024", "requests",             \
      "requests of one user; 0: no limit of its own")                                              \
    X("limits", "max_requests_per_connection", U32, max_requests_per_connection, "256",            \
      "requests", "requests of one connection")                                                    \
    X("limits", "max_prompt_bytes", SIZE, max_prompt_bytes, "16M", "bytes", "one prompt")          \
    X("limits", "max_prompt_bytes_per_uid", SIZE, max_prompt_bytes_per_uid, "64M", "bytes",        \
      "prompts of one user under way, and distributions of rejection; 0: no limit of its own")      \
    X("limits", "max_ring_bytes", SIZE, max_ring_bytes, "4M", "bytes", "one ring")                 \
    X("limits", "max_ring_bytes_per_uid", SIZE, max_ring_bytes_per_uid, "256M", "bytes",           \
      "rings of one user; 0: no limit of its own")                                                 \
    X("limits", "max_kv_blocks_per_uid", U32, max_kv_blocks_per_uid, "0", "blocks",                \
      "KV blocks (16 positions) that one user's running requests may need; 0: no limit of its own") \
    X("limits", "max_queue_time", TIME, max_queue_ns, "0", "time",                                 \
      "longest wait before a request runs; 0: none")                                               \
    X("limits", "ring_bytes", U32SIZE, ring_bytes, "256K", "bytes", "a ring when none is asked for") \
    X("limits", "ring_stall_timeout", TIME, ring_stall_timeout_ns, "30s", "time",                  \
      "a reader that does not move for so long loses its request; 0: never")                       \
    X("policy", "privileged_uids", UIDS, privileged_uids, "", "uids",                              \
      "users beside root and the daemon's own who may load, unload, reload and drain")             \
    X("policy", "privileged_gids", GIDS, privileged_gids, "", "gids", "groups who may do the same") \
    X("policy", "min_priority", I32, min_priority, "0", "priority",                                \
      "the most urgent priority that others may ask for")                                          \
    X("policy", "max_priority", I32, max_priority, "100", "priority",                              \
      "the least urgent priority that others may ask for")

/* Keys of a [model NAME] section: X(key, TYPE, member, default text, unit, help). */
#define MODEL_OPTIONS(X)                                                                           \
    X("path", STRING, path, "", "path", "GGUF file or Hugging Face folder")                        \
    X("chat_format", STRING, chat_format, "", "chatml|qwen3|smollm2|llama3",                       \
      "chat format; empty: recognised from the model's template")                                  \
    X("drafter", STRING, drafter, "", "path|none",                                                  \
      "drafter for the model: DFlash folder or GGUF file; empty: one that lies beside the model")  \
    X("drafter_dtype", DTYPE, engine.drafter_dtype, "auto", "auto|file|bf16|f32|q8_0",                    \
      "the drafter's weights: as in the file, or converted at load; auto: bf16 for a model of "    \
      "class amx-bf16, else as in the file")                                                       \
    X("device", STRING, device, "auto", "auto|cpu|cuda|cuda:N",                                      \
      "where it computes; auto: the first CUDA device, or the CPU where there is none")              \
    X("exactness", EXACTNESS, engine.fast, "strict", "strict|fast",                                  \
      "on a CUDA device: the same bytes in every batch, or float products by cuBLASLt")              \
    X("preload", BOOL, preload, "no", "yes|no", "load at start")                                   \
    X("on_demand", BOOL, on_demand, "yes", "yes|no", "load when a request names it")               \
    X("max_context", U32, engine.max_context, "0", "tokens", "positions of a request; 0: the model's, at most 8192") \
    X("kv_bytes", SIZE, engine.kv_bytes, "0", "bytes", "KV pool; 0: room for max_context, at least") \
    X("kv_dtype", KVTYPE, engine.kv_type, "f32", "f32|bf16|f16", "type of the KV pool")            \
    X("dtype", DTYPE, engine.dtype, "auto", "auto|file|bf16|f32|q8_0",                                  \
      "weights: as in the file, or converted at load (bf16 and q8_0 round: another model)")        \
    X("max_num_seqs", U32, engine.max_num_seqs, "64", "requests", "running at once; 0: 64")        \
    X("max_num_batched_tokens", U32, engine.max_num_batched_tokens, "512", "tokens", "rows of a step; 0: 512") \
    X("prefill_chunk", U32, engine.prefill_chunk, "256", "tokens", "prompt rows of a request per step; 0: 256") \
    X("cohorts", U32, engine.cohorts, "1", "number",                                               \
      "on a CUDA device, with a drafter: 2, half of the requests is drafted for while the rest is verified") \
    X("cohort_seqs", U32, engine.cohort_seqs, "2", "requests", "that drafts are made for, from which on there are two cohorts; 0: 2") \
    X("enable_prefix_caching", BOOL, engine.enable_prefix_caching, "yes", "yes|no", "reuse of KV blocks of equal prefixes")
