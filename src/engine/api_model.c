/* api_model.c - the parts of forerun.h that need no engine: fr_model, tokenizing, chat prompts. */
#include "base/threads.h"
#include "format/printable.h"
#include "engine/engine.h"
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

const char *fr_version(void) { return FORERUN_VERSION; }
void fr_free(void *p) { free(p); }

static char *copy_name(const Gguf *g) {
    GgufString name = {gguf_path(g), strlen(gguf_path(g))};
    gguf_get_string(g, "general.name", &name);
    return strndup(name.data, name.n);
}

static int load(fr_model *m, const char *path, const fr_model_options *o, fr_error *err) {
    const Backend *backend;
    WeightsOptions options = {.kernels = o->kernels,
                              .n_threads = o->n_threads > 0 ? o->n_threads : threads_n_cores(),
                              .progress = o->progress,
                              .progress_user = o->progress_user};
    int status = backend_find(o->backend, &backend, err);
    if (status) return status;
    if (!act_precision_from_name(o->activations, &options.activations))
        return error_set(err, FR_ERR_ARGUMENT, "there are no activations '%s'; choose q16 or q8", o->activations);
    if (options.n_threads > THREADS_MAX) options.n_threads = THREADS_MAX;
    status = gguf_open(&m->gguf, path, err);
    if (!status) status = tokenizer_open(&m->tokenizer, m->gguf, err);
    if (!status) status = model_open(&m->model, m->gguf, err);
    if (!status) status = backend->weights_open(&m->weights, m->model, &options, err);
    if (status) return status;
    if (tokenizer_n_vocab(m->tokenizer) > m->model->hparams.n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: the vocabulary has %d tokens, but the model has only %d embeddings",
                         path, tokenizer_n_vocab(m->tokenizer), m->model->hparams.n_vocab);
    m->chat_family = chat_family_of(m->gguf);
    m->name = copy_name(m->gguf);
    return m->name ? FR_OK : error_memory(err, "a name", 0);
}

int fr_model_open(fr_model **out, const char *path, const fr_model_options *options, fr_error *err) {
    *out = NULL;
    fr_model *m = calloc(1, sizeof *m);
    if (!m) return error_memory(err, "a model", sizeof *m);
    static const fr_model_options defaults;
    int status = load(m, path, options ? options : &defaults, err);
    if (status) {
        fr_model_close(m);
        return status;
    }
    *out = m;
    return FR_OK;
}

void fr_model_close(fr_model *m) {
    if (!m) return;
    weights_close(m->weights);
    model_close(m->model);
    tokenizer_close(m->tokenizer);
    gguf_close(m->gguf);
    free(m->name);
    free(m);
}

void fr_model_get_info(const fr_model *m, fr_model_info *out) {
    const Hparams *h = &m->model->hparams;
    *out = (fr_model_info){.name = m->name,
                           .architecture = arch_name(h->arch),
                           .backend = m->weights->backend->name,
                           .kernels = m->weights->options.kernels,
                           .activations = weights_activations(m->weights),
                           .chat_family = chat_family_name(m->chat_family),
                           .n_vocab = h->n_vocab,
                           .n_layer = h->n_layer,
                           .n_embd = h->n_embd,
                           .n_ctx_train = h->n_ctx_train,
                           .weight_bytes = m->weights->bytes};
}

int fr_tokenize(const fr_model *m, const char *text, size_t n, unsigned flags, int32_t **tokens, int64_t *n_tokens,
                fr_error *err) {
    unsigned f = (flags & FR_TOKENIZE_BOS ? TOKENIZE_BOS : 0u) | (flags & FR_TOKENIZE_EOS ? TOKENIZE_EOS : 0u) |
                 (flags & FR_TOKENIZE_SPECIAL ? TOKENIZE_SPECIAL : 0u);
    if (flags & FR_TOKENIZE_PROMPT) {
        if (tokenizer_adds_bos(m->tokenizer)) f |= TOKENIZE_BOS;
        if (tokenizer_adds_eos(m->tokenizer)) f |= TOKENIZE_EOS;
    }
    return tokenizer_encode(m->tokenizer, text, n, f, tokens, n_tokens, err);
}

int fr_detokenize(const fr_model *m, const int32_t *tokens, int64_t n_tokens, char **text, size_t *n_bytes,
                  fr_error *err) {
    Detokenizer d = {.tokenizer = m->tokenizer, .strip_space = tokenizer_adds_space_prefix(m->tokenizer)};
    Buf out = {.max_bytes = REQUEST_MAX_TEXT};
    bool fits = buf_append(&out, "", 0);
    for (int64_t i = 0; i <= n_tokens && fits; i++) {
        size_t n;
        const char *piece = i < n_tokens ? detokenizer_next(&d, tokens[i], &n) : detokenizer_finish(&d, &n);
        fits = buf_append(&out, piece, n);
    }
    if (!fits) {
        buf_free(&out);
        return error_memory(err, "a text", out.n);
    }
    *text = out.data;
    *n_bytes = out.n;
    return FR_OK;
}

int fr_chat_prompt(const fr_model *m, const char *family_name, const fr_chat_message *messages, int n_messages,
                   char **text, fr_error *err) {
    ChatFamily family = family_name ? chat_family_from_name(family_name) : m->chat_family;
    Printable safe;
    if (family == CHAT_NONE)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         family_name ? "there is no chat format '%s'"
                                     : "%s has no chat template that is recognised; "
                                       "name a format, or prompt without chat",
                         family_name ? family_name : printable(&safe, m->name, strlen(m->name)));
    ChatMessage *copies = malloc((size_t)(n_messages ? n_messages : 1) * sizeof *copies);
    if (!copies) return error_memory(err, "messages", (size_t)n_messages * sizeof *copies);
    for (int i = 0; i < n_messages; i++) copies[i] = (ChatMessage){messages[i].role, messages[i].content};
    Buf out = {.max_bytes = REQUEST_MAX_TEXT};
    int status = chat_format(family, copies, n_messages, &out, err);
    free(copies);
    if (status) buf_free(&out);
    *text = status ? NULL : out.data;
    return status;
}
