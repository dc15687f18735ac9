# SPDX-License-Identifier: Apache-2.0
# A target NAME is fuzz-NAME.c with its corpus in corpus/NAME.  It is built twice: replay-NAME runs
# the corpus in every "make check"; fuzz-NAME is the libFuzzer program of --enable-fuzz:
#   tests/fuzz/fuzz-NAME -max_total_time=1200 NEW-FOLDER $top_srcdir/tests/fuzz/corpus/NAME
EXTRA_DIST += %D%/README.md %D%/corpus %D%/config.dict %D%/gguf.dict
fuzz_replay = %D%/replay.c %D%/fuzz.h

check_PROGRAMS += %D%/replay-parse
tests_fuzz_replay_parse_SOURCES = %D%/fuzz-parse.c $(fuzz_replay)
tests_fuzz_replay_parse_LDADD = libdedit-base.a
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-parse
tests_fuzz_fuzz_parse_SOURCES = %D%/fuzz-parse.c %D%/fuzz.h
tests_fuzz_fuzz_parse_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_parse_LDADD = libdedit-base.a
endif

check_PROGRAMS += %D%/replay-config
tests_fuzz_replay_config_SOURCES = %D%/fuzz-config.c $(fuzz_replay)
tests_fuzz_replay_config_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-config
tests_fuzz_fuzz_config_SOURCES = %D%/fuzz-config.c %D%/fuzz.h
tests_fuzz_fuzz_config_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_config_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-gguf
tests_fuzz_replay_gguf_SOURCES = %D%/fuzz-gguf.c %D%/file.h $(fuzz_replay)
tests_fuzz_replay_gguf_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-gguf
tests_fuzz_fuzz_gguf_SOURCES = %D%/fuzz-gguf.c %D%/file.h %D%/fuzz.h
tests_fuzz_fuzz_gguf_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_gguf_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-safetensors
tests_fuzz_replay_safetensors_SOURCES = %D%/fuzz-safetensors.c %D%/file.h $(fuzz_replay)
tests_fuzz_replay_safetensors_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-safetensors
tests_fuzz_fuzz_safetensors_SOURCES = %D%/fuzz-safetensors.c %D%/file.h %D%/fuzz.h
tests_fuzz_fuzz_safetensors_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_safetensors_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-drafter
tests_fuzz_replay_drafter_SOURCES = %D%/fuzz-drafter.c $(fuzz_replay)
tests_fuzz_replay_drafter_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-drafter
tests_fuzz_fuzz_drafter_SOURCES = %D%/fuzz-drafter.c %D%/fuzz.h
tests_fuzz_fuzz_drafter_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_drafter_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-chat
tests_fuzz_replay_chat_SOURCES = %D%/fuzz-chat.c $(fuzz_replay)
tests_fuzz_replay_chat_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-chat
tests_fuzz_fuzz_chat_SOURCES = %D%/fuzz-chat.c %D%/fuzz.h
tests_fuzz_fuzz_chat_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_chat_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-tokenize
tests_fuzz_replay_tokenize_SOURCES = %D%/fuzz-tokenize.c $(fuzz_replay)
tests_fuzz_replay_tokenize_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-tokenize
tests_fuzz_fuzz_tokenize_SOURCES = %D%/fuzz-tokenize.c %D%/fuzz.h
tests_fuzz_fuzz_tokenize_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_tokenize_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-tokenizer-json
tests_fuzz_replay_tokenizer_json_SOURCES = %D%/fuzz-tokenizer-json.c $(fuzz_replay)
tests_fuzz_replay_tokenizer_json_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-tokenizer-json
tests_fuzz_fuzz_tokenizer_json_SOURCES = %D%/fuzz-tokenizer-json.c %D%/fuzz.h
tests_fuzz_fuzz_tokenizer_json_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_tokenizer_json_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-packet
tests_fuzz_replay_packet_SOURCES = %D%/fuzz-packet.c $(fuzz_replay)
tests_fuzz_replay_packet_LDADD = $(daemon_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-packet
tests_fuzz_fuzz_packet_SOURCES = %D%/fuzz-packet.c %D%/fuzz.h
tests_fuzz_fuzz_packet_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_packet_LDADD = $(daemon_libs)
endif

check_PROGRAMS += %D%/replay-ring
tests_fuzz_replay_ring_SOURCES = %D%/fuzz-ring.c $(fuzz_replay)
tests_fuzz_replay_ring_LDADD = libdedit-proto.a libdedit-base.a
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-ring
tests_fuzz_fuzz_ring_SOURCES = %D%/fuzz-ring.c %D%/fuzz.h
tests_fuzz_fuzz_ring_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_ring_LDADD = libdedit-proto.a libdedit-base.a
endif

check_PROGRAMS += %D%/replay-daemon-config
tests_fuzz_replay_daemon_config_SOURCES = %D%/fuzz-daemon-config.c $(fuzz_replay)
tests_fuzz_replay_daemon_config_LDADD = $(daemon_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-daemon-config
tests_fuzz_fuzz_daemon_config_SOURCES = %D%/fuzz-daemon-config.c %D%/fuzz.h
tests_fuzz_fuzz_daemon_config_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_daemon_config_LDADD = $(daemon_libs)
endif

check_PROGRAMS += %D%/replay-proposal
tests_fuzz_replay_proposal_SOURCES = %D%/fuzz-proposal.c %D%/file.h $(fuzz_replay)
tests_fuzz_replay_proposal_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-proposal
tests_fuzz_fuzz_proposal_SOURCES = %D%/fuzz-proposal.c %D%/file.h %D%/fuzz.h
tests_fuzz_fuzz_proposal_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_proposal_LDADD = $(engine_libs)
endif

check_PROGRAMS += %D%/replay-train-data
tests_fuzz_replay_train_data_SOURCES = %D%/fuzz-train-data.c $(fuzz_replay)
tests_fuzz_replay_train_data_LDADD = $(train_libs) -lm
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-train-data
tests_fuzz_fuzz_train_data_SOURCES = %D%/fuzz-train-data.c %D%/fuzz.h
tests_fuzz_fuzz_train_data_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_train_data_LDADD = $(train_libs) -lm
endif

check_PROGRAMS += %D%/replay-checkpoint
tests_fuzz_replay_checkpoint_SOURCES = %D%/fuzz-checkpoint.c $(fuzz_replay)
tests_fuzz_replay_checkpoint_LDADD = $(train_libs) -lm
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-checkpoint
tests_fuzz_fuzz_checkpoint_SOURCES = %D%/fuzz-checkpoint.c %D%/fuzz.h
tests_fuzz_fuzz_checkpoint_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_checkpoint_LDADD = $(train_libs) -lm
endif

check_PROGRAMS += %D%/replay-trace
tests_fuzz_replay_trace_SOURCES = %D%/fuzz-trace.c client/cli-trace-lines.c client/cli-trace-lines.h $(fuzz_replay)
tests_fuzz_replay_trace_LDADD = $(engine_libs)
if ENABLE_FUZZ
noinst_PROGRAMS += %D%/fuzz-trace
tests_fuzz_fuzz_trace_SOURCES = %D%/fuzz-trace.c client/cli-trace-lines.c client/cli-trace-lines.h %D%/fuzz.h
tests_fuzz_fuzz_trace_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)
tests_fuzz_fuzz_trace_LDADD = $(engine_libs)
endif
