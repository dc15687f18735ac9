# SPDX-License-Identifier: Apache-2.0
noinst_LIBRARIES += libdedit-engine.a
# What a program links to use the engine, in link order.
engine_libs = libdedit-engine.a $(kernels_libs) libdedit-base.a $(JANSSON_LIBS) $(PCRE2_LIBS) \
	$(UTF8PROC_LIBS)

# One file a line, in alphabetical order.
libdedit_engine_a_SOURCES = \
	%D%/backend.h \
	%D%/backend_cpu.c \
	%D%/backend_cpu.h \
	%D%/backend_cpu_attention.c \
	%D%/backend_cpu_forward.c \
	%D%/backend_cpu_load.c \
	%D%/backend_cpu_run.h \
	%D%/backend_cpu_scratch.c \
	%D%/chat.c \
	%D%/chat.h \
	%D%/chat_detect.c \
	%D%/chat_internal.h \
	%D%/chat_json.c \
	%D%/chat_llama3.c \
	%D%/chat_qwen3.c \
	%D%/chat_template.c \
	%D%/chat_template.h \
	%D%/commit.c \
	%D%/detokenizer.c \
	%D%/draft_script.c \
	%D%/drafting.c \
	%D%/drafting.h \
	%D%/engine.c \
	%D%/engine.h \
	%D%/engine_internal.h \
	%D%/feed.c \
	%D%/gguf.c \
	%D%/gguf.h \
	%D%/gguf_get.c \
	%D%/gguf_internal.h \
	%D%/hf_config.c \
	%D%/hf_config.h \
	%D%/hf_tokens.c \
	%D%/json.c \
	%D%/json.h \
	%D%/json_member.c \
	%D%/json_parse.c \
	%D%/kv.c \
	%D%/kv.h \
	%D%/method.c \
	%D%/method.h \
	%D%/model_bind.c \
	%D%/model_file.c \
	%D%/model_file.h \
	%D%/model_file_internal.h \
	%D%/model_gguf.c \
	%D%/model_hf.c \
	%D%/model_random.c \
	%D%/model_random.h \
	%D%/names.c \
	%D%/names.h \
	%D%/ngram.c \
	%D%/ngram.h \
	%D%/noise.h \
	%D%/proposal.c \
	%D%/proposal.h \
	%D%/rejection.c \
	%D%/rejection.h \
	%D%/request.c \
	%D%/rope.c \
	%D%/rope.h \
	%D%/round.c \
	%D%/round.h \
	%D%/safetensors.c \
	%D%/safetensors.h \
	%D%/sampler.c \
	%D%/sampler.h \
	%D%/sampler_choose.c \
	%D%/sampler_cut.c \
	%D%/sampler_internal.h \
	%D%/sampler_params.c \
	%D%/scheduler.c \
	%D%/seq.c \
	%D%/seq.h \
	%D%/stop.c \
	%D%/stop.h \
	%D%/tokenizer.c \
	%D%/tokenizer.h \
	%D%/tokenizer_added.c \
	%D%/tokenizer_bpe.c \
	%D%/tokenizer_gguf.c \
	%D%/tokenizer_internal.h \
	%D%/tokenizer_json.c \
	%D%/tokenizer_json.h \
	%D%/tokenizer_load.c \
	%D%/tokenizer_nfc.c \
	%D%/tokenizer_pipeline.c \
	%D%/tokenizer_regex.c \
	%D%/tokenizer_split.c \
	%D%/tokenizer_vocab.c
