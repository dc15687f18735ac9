/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer of an open model: from whichever of the two forms the model has. */
#include "base/strbuf.h"
#include "engine/model_file.h"
#include "engine/tokenizer.h"

int tokenizer_load(const struct model_file *f, struct tokenizer **ret, struct error *err)
{
    const struct gguf *g = model_file_gguf(f);
    if (g)
        return tokenizer_from_gguf(g, ret, err);
    size_t len = 0, config_len = 0;
    const char *json = model_file_tokenizer_json(f, &len);
    const char *config = model_file_tokenizer_config_json(f, &config_len);
    _cleanup_strbuf_ struct strbuf name = {0};
    if (!json)
        return ERR(err, NOT_FOUND, "%s: there is no tokenizer.json", model_file_path(f));
    if (strbuf_addf(&name, "%s/tokenizer.json", model_file_path(f)) < 0)
        return ERR_NOMEM(err);
    return tokenizer_from_json(json, len, config, config_len, name.s, ret, err);
}
