/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/prepare.h"

#include "daemon/models.h"

static int encode(struct job *j, struct error *err)
{
    const struct model *m = j->model;
    switch (j->prompt_kind) {
    case JOB_IDS:
        return 0;
    case JOB_TEXT: {
        unsigned flags =
            (j->parse_special ? TOKENIZE_SPECIAL : 0) | (j->add_bos ? TOKENIZE_BOS : 0);
        return tokenizer_encode(m->tokenizer, j->text, j->text_len, flags, &j->tokens, NULL, err);
    }
    case JOB_CHAT:
        if (!j->has_format) {
            if (!m->has_format)
                return ERR(err, UNSUPPORTED,
                           "chat: the template of %s is not known; name a format (chatml, qwen3, "
                           "smollm2, llama3)",
                           m->name);
            j->format = m->format;
        }
        return chat_render_ids(j->format, m->tokenizer, j->messages, j->n_messages, &j->chat,
                               &j->tokens, err);
    }
    return ERR(err, INTERNAL, "prompt of kind %d", (int)j->prompt_kind);
}

void prepare_job(void *object)
{
    struct job *j = object;
    j->prepare_error = (struct error){0};
    if (encode(j, &j->prepare_error) < 0)
        return;
    if (j->prompt_kind != JOB_IDS) {
        j->ids = j->tokens.ids;
        j->n_ids = j->tokens.len;
    }
}

int prepare_check(struct job *j, struct error *err)
{
    const struct model *m = j->model;
    if (j->n_ids == 0)
        return ERR(err, INVALID, "prompt: it has no tokens, at least one is needed");
    for (size_t i = 0; i < j->n_ids; i++)
        if (j->ids[i] >= m->vocab)
            return ERR(err, INVALID, "token_ids[%zu]: %u, the vocabulary of %s has %u", i,
                       j->ids[i], m->name, m->vocab);
    if (j->n_ids >= m->max_context)
        return ERR(err, CONTEXT_FULL, "prompt: %zu tokens leave no room in the context of %u",
                   j->n_ids, m->max_context);
    int r = sampling_params_check(&j->sampling, m->vocab, err);
    if (r < 0)
        return r;
    r = m->served ? engine_check_drafting(m->served->engine, &j->drafting, err) : 0;
    if (r == DEDIT_E_UNSUPPORTED) /* by the name that the peer knows */
        return ERR(err, UNSUPPORTED, "method: %s needs a drafter, and %s was loaded without one",
                   draft_method_name(j->drafting.method), m->name);
    if (r < 0)
        return r;
    uint32_t room = m->max_context - (uint32_t)j->n_ids;
    if (j->sampling.max_tokens > room)
        j->sampling.max_tokens = room;
    return 0;
}
