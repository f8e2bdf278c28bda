/* public_api.c - the functions of forerun.h that need no engine, and the checks of what callers pass to any of them.
 *
 * A NULL pointer where one is required, or a negative count, is a mistake in the calling program. The call is
 * refused with a sentence instead of a crash, because the library may be part of a program that has other work to
 * do. Structs that can grow are copied into the library's own form, whatever version of them the caller knows.
 * Proof: tests/engine/test_misuse.c, tests/engine/test_struct_size.c, tests/api_0. */
#include "base/error.h"
#include "base/threads.h"
#include "draft/drafter_file.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "text/chat.h"
#include "text/vocab.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks --------------------------------------------------------------------------------------- */

/* No version of any struct is larger than this. */
enum { STRUCT_MAX_BYTES = 1 << 16 };

int check_given(const void *argument, const char *function, const char *name, fr_error *err) {
    if (argument) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: %s is NULL, but must be given", function, name);
}

int check_array(const void *array, int64_t n, const char *function, const char *name, fr_error *err) {
    if (n < 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s: n_%s is %lld, but cannot be negative", function, name,
                         (long long)n);
    if (array || n == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: %s is NULL, but should have %lld items", function, name, (long long)n);
}

int check_strings(const char *const *strings, int64_t n, const char *function, const char *name, fr_error *err) {
    int status = check_array(strings, n, function, name, err);
    for (int64_t i = 0; i < n && !status; i++)
        if (!strings[i])
            status = error_set(err, FR_ERR_ARGUMENT, "%s: %s[%lld] is NULL, but must be a string", function, name,
                               (long long)i);
    return status;
}

static size_t struct_size_of(const void *given) {
    size_t n;
    memcpy(&n, given, sizeof n);
    return n;
}

int read_options(void *own, size_t own_bytes, const void *given, const char *function, const char *type,
                 fr_error *err) {
    if (given) {
        size_t n = struct_size_of(given);
        if (n < sizeof n || n > STRUCT_MAX_BYTES)
            return error_set(err, FR_ERR_ARGUMENT, "%s: struct_size is %zu; set it to sizeof(%s)", function, n, type);
        for (size_t i = own_bytes; i < n; i++)
            if (((const char *)given)[i])
                return error_set(err, FR_ERR_UNSUPPORTED,
                                 "%s: %s has an option that version " FORERUN_VERSION
                                 " of the library does not know; install a newer libforerun, or leave the option 0",
                                 function, type);
        memcpy(own, given, n < own_bytes ? n : own_bytes);
    }
    memcpy(own, &own_bytes, sizeof own_bytes);
    return FR_OK;
}

int fill_result(void *out, const void *own, size_t own_bytes) {
    size_t n = out ? struct_size_of(out) : 0, first = sizeof n;
    if (n < first || n > STRUCT_MAX_BYTES) return FR_ERR_ARGUMENT;
    size_t n_copied = (n < own_bytes ? n : own_bytes) - first;
    memcpy((char *)out + first, (const char *)own + first, n_copied);
    memset((char *)out + first + n_copied, 0, n - first - n_copied);
    return FR_OK;
}

/* ---- models --------------------------------------------------------------------------------------- */

const char *fr_version(void) { return FORERUN_VERSION; }
void fr_free(void *p) { free(p); }

static char *copy_name(const Gguf *g) {
    GgufString name = {gguf_path(g), strlen(gguf_path(g))};
    gguf_get_string(g, "general.name", &name);
    return strndup(name.data, name.n);
}

/* What rank 0 was asked to open. */
typedef struct SharedOptions {
    int32_t n_threads;
    char path[4096], packed_file[4096], backend[64], kernels[64], activations[64]; /* "": NULL */
} SharedOptions;

/* The caller's function, which runs in the caller's floating-point environment. */
typedef struct Progress {
    fr_model_options options;
    SharedOptions shared; /* the texts that the options of a later rank point to */
    FpEnv caller_env;
} Progress;

static void call_progress(void *user, double part) {
    Progress *p = user;
    fp_env_leave(&p->caller_env);
    p->options.progress(p->options.progress_user, part);
    p->caller_env = fp_env_enter();
}

/* Opens the weights, on all ranks if there are several. */
static int open_weights(fr_model *m, const Backend *backend, const WeightsOptions *options, fr_error *err) {
    int status = backend->weights_open(&m->weights, m->model, options, err);
    if (!options->ranks) return status;
    return ranks_compare(options->ranks, m->weights, status, status ? 0 : drafter_target_fingerprint(m->model), err);
}

static int load(fr_model *m, const char *path, const fr_model_options *o, Progress *progress, fr_error *err) {
    const Backend *backend;
    WeightsOptions options = {.kernels = o->kernels,
                              .packed_file = o->packed_file,
                              .n_threads = o->n_threads ? o->n_threads : threads_n_physical_cores(),
                              .ranks = m->ranks,
                              .progress = o->progress ? call_progress : NULL,
                              .progress_user = progress};
    if (o->n_threads < 0)
        return error_set(err, FR_ERR_ARGUMENT, "n_threads is %d; it must be 0 (one per core) to %d", o->n_threads,
                         THREADS_MAX);
    int status = backend_find(o->backend, &backend, err);
    if (status) return status;
    if (m->ranks && backend != &backend_cpu)
        return error_set(err, FR_ERR_UNSUPPORTED, "the backend '%s' cannot divide a model among ranks; use cpu",
                         backend->name);
    if (m->ranks) backend = ranks_backend();
    if (!act_precision_from_name(o->activations, &options.activations))
        return error_set(err, FR_ERR_ARGUMENT, "there are no activations '%s'; choose q16 or q8", o->activations);
    if (options.n_threads > THREADS_MAX) options.n_threads = THREADS_MAX;
    status = gguf_open(&m->gguf, path, err);
    if (!status) status = drafter_file_refuse_as_target(m->gguf, err);
    if (!status) status = tokenizer_open(&m->tokenizer, m->gguf, err);
    if (!status) status = model_open(&m->model, m->gguf, err);
    if (!status) status = open_weights(m, backend, &options, err);
    if (status) return status;
    if (tokenizer_n_vocab(m->tokenizer) > m->model->hparams.n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: the vocabulary has %d tokens, but the model has only %d embeddings",
                         path, tokenizer_n_vocab(m->tokenizer), m->model->hparams.n_vocab);
    if ((status = chat_template_open_gguf(&m->chat_template, m->gguf, "tokenizer.chat_template", err))) return status;
    status = chat_template_open_gguf(&m->tool_template, m->gguf, "tokenizer.chat_template.tool_use", err);
    if (status) return status;
    m->name = copy_name(m->gguf);
    return m->name ? FR_OK : error_memory(err, "a name", 0);
}

static int start_ranks(fr_model *m, const fr_model_options *o, fr_error *err) {
    int64_t n = o->n_ranks == FR_RANKS_NUMA ? threads_n_nodes() : o->n_ranks;
    if (n == FR_RANKS_MPI) return ranks_join_mpi(&m->ranks, err);
    if (n < 0 || n > COMM_MAX_RANKS)
        return error_set(err, FR_ERR_ARGUMENT, "n_ranks is %lld; it must be 0 to %d, FR_RANKS_NUMA or FR_RANKS_MPI",
                         (long long)n, COMM_MAX_RANKS);
    return n > 1 ? ranks_start(&m->ranks, (int)n, err) : FR_OK;
}

static bool is_over_mpi(const Ranks *r) { return r && comm_transport(r->comm)->is_own_process; }
static bool is_later_rank(const Ranks *r) { return r && comm_rank(r->comm) > 0; }

static bool copy_text(char *to, size_t size, const char *text) {
    return !text || (size_t)snprintf(to, size, "%s", text) < size;
}

/* Gives all ranks over MPI the path and the options of rank 0. The texts are in *shared. */
static int share_options(const Ranks *r, SharedOptions *shared, const char **path, fr_model_options *o, fr_error *err) {
    memset(shared, 0, sizeof *shared);
    shared->n_threads = o->n_threads;
    bool fits = copy_text(shared->path, sizeof shared->path, *path) &&
                copy_text(shared->packed_file, sizeof shared->packed_file, o->packed_file) &&
                copy_text(shared->backend, sizeof shared->backend, o->backend) &&
                copy_text(shared->kernels, sizeof shared->kernels, o->kernels) &&
                copy_text(shared->activations, sizeof shared->activations, o->activations);
    if (!fits && !is_later_rank(r)) comm_abort(r->comm, "a path or the name of an option is too long for ranks");
    comm_broadcast(r->comm, shared, sizeof *shared);
    if (!is_later_rank(r)) return comm_check(r->comm, err);
    *path = shared->path;
    *o = (fr_model_options){.struct_size = o->struct_size, .n_ranks = o->n_ranks, .n_threads = shared->n_threads};
    if (*shared->packed_file) o->packed_file = shared->packed_file;
    if (*shared->backend) o->backend = shared->backend;
    if (*shared->kernels) o->kernels = shared->kernels;
    if (*shared->activations) o->activations = shared->activations;
    return comm_check(r->comm, err);
}

/* Loads the model in this process and in those of the other ranks. Processes that ranks_start has started do not return
 * from here. */
static int load_in_ranks(fr_model *m, const char *path, Progress *progress, fr_error *err) {
    fr_error why = {.code = FR_OK};
    bool is_first = !is_later_rank(m->ranks);
    if (!is_first) progress->options.progress = NULL;
    int status = is_over_mpi(m->ranks) ? share_options(m->ranks, &progress->shared, &path, &progress->options, &why)
                                       : FR_OK;
    progress->caller_env = fp_env_enter();
    if (!status) status = load(m, path, &progress->options, progress, &why);
    if (!is_first) status = ranks_work_to_the_end(m->ranks, status ? why.message : NULL, &why);
    fp_env_leave(&progress->caller_env);
    return status ? (int)error_set(err, status, "%s", why.message) : FR_OK;
}

int fr_model_open(fr_model **out, const char *path, const fr_model_options *options, fr_error *err) {
    int status = check_given(out, "fr_model_open", "out", err);
    if (status) return status;
    *out = NULL;
    if ((status = check_given(path, "fr_model_open", "path", err))) return status;
    Progress progress = {.options = {0}};
    status = read_options(&progress.options, sizeof progress.options, options, "fr_model_open", "fr_model_options",
                          err);
    if (status) return status;
    fr_model *m = calloc(1, sizeof *m);
    if (!m) return error_memory(err, "a model", sizeof *m);
    atomic_init(&m->n_users, 1);
    pthread_mutex_init(&m->trie_lock, NULL);
    status = start_ranks(m, &progress.options, err);
    if (!status) status = load_in_ranks(m, path, &progress, err);
    if (status) {
        fr_model_close(m);
        return status;
    }
    m->weights->options.progress = NULL; /* it is the caller's, who may free it now */
    m->weights->options.packed_file = NULL;
    *out = m;
    return FR_OK;
}

void fr_model_close(fr_model *m) { model_release(m); }

void model_release(fr_model *m) {
    if (!m || atomic_fetch_sub(&m->n_users, 1) > 1) return;
    token_trie_close(m->trie);
    pthread_mutex_destroy(&m->trie_lock);
    ranks_close(m->ranks);
    weights_close(m->weights);
    model_close(m->model);
    chat_template_close(&m->chat_template);
    chat_template_close(&m->tool_template);
    tokenizer_close(m->tokenizer);
    gguf_close(m->gguf);
    free(m->name);
    free(m);
}

static const char *chat_name(const ChatTemplate *t) {
    return t->family == CHAT_NONE && t->compiled ? "jinja" : chat_family_name(t->family);
}

int fr_model_get_info(const fr_model *m, fr_model_info *out) {
    fr_model_info info = {0};
    if (!m) {
        (void)fill_result(out, &info, sizeof info);
        return FR_ERR_ARGUMENT;
    }
    const Hparams *h = &m->model->hparams;
    info = (fr_model_info){.name = m->name,
                           .architecture = arch_name(h->arch),
                           .backend = m->weights->backend->name,
                           .kernels = m->weights->options.kernels,
                           .activations = weights_activations(m->weights),
                           .chat_family = chat_name(&m->chat_template),
                           .n_vocab = h->n_vocab,
                           .n_layer = h->n_layer,
                           .n_embd = h->n_embd,
                           .n_ctx_train = h->n_ctx_train,
                           .weight_bytes = m->weights->bytes,
                           .packed_error = m->weights->packed_error[0] ? m->weights->packed_error : NULL,
                           .chat_template_error = m->chat_template.why[0] ? m->chat_template.why : NULL,
                           .chat_reasons = m->chat_template.reasons || m->tool_template.reasons};
    return fill_result(out, &info, sizeof info);
}

/* The weights are read in the mapped file, which may have changed since it was opened. */
int fr_model_fingerprint(const fr_model *m, uint64_t *out, fr_error *err) {
    int status = check_given(out, "fr_model_fingerprint", "out", err);
    if (status) return status;
    *out = 0;
    if ((status = check_given(m, "fr_model_fingerprint", "model", err))) return status;
    if ((status = gguf_check(m->gguf, err))) return status;
    uint64_t fingerprint = drafter_target_fingerprint(m->model);
    if (!(status = gguf_check(m->gguf, err))) *out = fingerprint;
    return status;
}

int fr_vocab_fingerprint(const fr_model *m, uint64_t *out, fr_error *err) {
    int status = check_given(out, "fr_vocab_fingerprint", "out", err);
    if (status) return status;
    *out = 0;
    if ((status = check_given(m, "fr_vocab_fingerprint", "model", err))) return status;
    if ((status = gguf_check(m->gguf, err))) return status;
    return vocab_fingerprint(m->gguf, out, err);
}

/* ---- the sampling that a file recommends -------------------------------------------------------- */

static int replace_real(float *value, const Gguf *file, const char *key, float lo, float hi) {
    float recommended;
    if (!gguf_get_f32(file, key, &recommended) || !(recommended >= lo && recommended <= hi)) return 0;
    *value = recommended;
    return 1;
}

static int replace_int(int32_t *value, const Gguf *file, const char *key, int32_t lo) {
    int64_t recommended;
    if (!gguf_get_i64(file, key, &recommended) || recommended < lo || recommended > INT32_MAX) return 0;
    *value = (int32_t)recommended;
    return 1;
}

int fr_model_recommended_sampling(const fr_model *m, fr_sampling *s) {
    if (!m || !s) return 0;
    return replace_real(&s->temperature, m->gguf, "general.sampling.temp", 0, FLT_MAX) +
           replace_int(&s->top_k, m->gguf, "general.sampling.top_k", 0) +
           replace_real(&s->top_p, m->gguf, "general.sampling.top_p", 1e-6f, 1) +
           replace_real(&s->min_p, m->gguf, "general.sampling.min_p", 0, 1) +
           replace_real(&s->repeat_penalty, m->gguf, "general.sampling.penalty_repeat", 1e-6f, FLT_MAX) +
           replace_int(&s->penalty_last_n, m->gguf, "general.sampling.penalty_last_n", -1);
}

/* ---- tokens -------------------------------------------------------------------------------------- */

int fr_tokenize(const fr_model *m, const char *text, size_t n, unsigned flags, int32_t **tokens, int64_t *n_tokens,
                fr_error *err) {
    int status = check_given(tokens, "fr_tokenize", "tokens", err);
    if (!status) status = check_given(n_tokens, "fr_tokenize", "n_tokens", err);
    if (status) return status;
    *tokens = NULL;
    *n_tokens = 0;
    if ((status = check_given(m, "fr_tokenize", "model", err))) return status;
    if (n > INT64_MAX) n = INT64_MAX; /* no text is this long: the tokenizer refuses it */
    if ((status = check_array(text, (int64_t)n, "fr_tokenize", "text", err))) return status;
    unsigned f = (flags & FR_TOKENIZE_BOS ? TOKENIZE_BOS : 0u) | (flags & FR_TOKENIZE_EOS ? TOKENIZE_EOS : 0u) |
                 (flags & FR_TOKENIZE_SPECIAL ? TOKENIZE_SPECIAL : 0u);
    if (flags & FR_TOKENIZE_PROMPT) {
        if (tokenizer_adds_bos(m->tokenizer)) f |= TOKENIZE_BOS;
        if (tokenizer_adds_eos(m->tokenizer)) f |= TOKENIZE_EOS;
    }
    FpEnv caller_env = fp_env_enter(); /* pieces have scores */
    status = tokenizer_encode(m->tokenizer, text ? text : "", n, f, tokens, n_tokens, err);
    fp_env_leave(&caller_env);
    return status;
}

const char *fr_token_piece(const fr_model *m, int32_t token, int with_control, size_t *n_bytes) {
    size_t n = 0;
    const char *piece = m ? tokenizer_piece(m->tokenizer, token, with_control != 0, &n) : "";
    if (n_bytes) *n_bytes = n;
    return piece;
}

int fr_token_is_special(const fr_model *m, int32_t token) {
    return m && token >= 0 && token < tokenizer_n_vocab(m->tokenizer) && tokenizer_is_special(m->tokenizer, token);
}

static int check_detokenize(const fr_model *m, const int32_t *tokens, int64_t n_tokens, char **text, size_t *n_bytes,
                            fr_error *err) {
    static const char function[] = "fr_detokenize";
    int status = check_given(text, function, "text", err);
    if (text) *text = NULL;
    if (n_bytes) *n_bytes = 0;
    if (!status) status = check_given(n_bytes, function, "n_bytes", err);
    if (!status) status = check_given(m, function, "model", err);
    return status ? status : check_array(tokens, n_tokens, function, "tokens", err);
}

int fr_detokenize(const fr_model *m, const int32_t *tokens, int64_t n_tokens, char **text, size_t *n_bytes,
                  fr_error *err) {
    int status = check_detokenize(m, tokens, n_tokens, text, n_bytes, err);
    if (status) return status;
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

/* ---- conversations -------------------------------------------------------------------------------- */

static int check_messages(const fr_model *m, const fr_chat_message *messages, int n_messages, const char *function,
                          fr_error *err) {
    int status = check_given(m, function, "model", err);
    if (!status) status = check_array(messages, n_messages, function, "messages", err);
    for (int i = 0; i < n_messages && !status; i++)
        if (!messages[i].role || !messages[i].content)
            status = error_set(err, FR_ERR_ARGUMENT, "%s: messages[%d] has no %s", function, i,
                               messages[i].role ? "content" : "role");
    return status;
}

/* Writes the prompt by another template or format than the model's. */
static int apply_other(const fr_model *m, const char *name, const Conversation *c, TemplateOutput *out,
                       char warning[256], fr_error *err) {
    size_t n = strlen(name);
    const char *text = strstr(name, "{{") || strstr(name, "{%") ? name : named_template(name, &n);
    ChatFamily family = chat_family_from_name(name);
    Printable safe;
    if (!text && family != CHAT_NONE) return chat_family_apply(family, c, out, err);
    if (!text)
        return error_set(err, FR_ERR_UNSUPPORTED, "there is no chat template '%s'",
                         printable(&safe, name, strlen(name)));
    ChatTemplate t;
    int status = chat_template_open(&t, text, n, err);
    if (status) return status;
    t.family = CHAT_NONE; /* a template that the caller names is not replaced by a built-in format */
    status = chat_template_apply(&t, m->tokenizer, c, out, warning, err);
    chat_template_close(&t);
    return status;
}

static int apply(const fr_model *m, const fr_chat_options *o, const fr_chat_message *messages, int n_messages,
                 TemplateOutput *out, char warning[256], fr_error *err) {
    if (n_messages == 0 && !o->messages) return error_set(err, FR_ERR_ARGUMENT, "the conversation has no messages");
    ChatMessage *copies = malloc((size_t)(n_messages ? n_messages : 1) * sizeof *copies);
    if (!copies) return error_memory(err, "messages", (size_t)n_messages * sizeof *copies);
    for (int i = 0; i < n_messages; i++) copies[i] = (ChatMessage){messages[i].role, messages[i].content};
    Conversation c = {.messages = copies,
                      .n_messages = n_messages,
                      .messages_json = o->messages,
                      .tools_json = o->tools,
                      .variables_json = o->variables,
                      .adds_generation_prompt = !o->no_generation_prompt};
    warning[0] = '\0';
    const ChatTemplate *own = o->tools && m->tool_template.compiled ? &m->tool_template : &m->chat_template;
    int status = o->chat_template ? apply_other(m, o->chat_template, &c, out, warning, err)
                                  : chat_template_apply(own, m->tokenizer, &c, out, warning, err);
    free(copies);
    return status;
}

static int encode(const fr_model *m, const TemplateOutput *text, fr_chat_result *out, fr_error *err) {
    unsigned flags = TOKENIZE_SPECIAL | (tokenizer_adds_bos(m->tokenizer) ? TOKENIZE_BOS : 0u) |
                     (tokenizer_adds_eos(m->tokenizer) ? TOKENIZE_EOS : 0u);
    return tokenizer_encode_marked(m->tokenizer, text->text.data, text->text.n, text->data, text->n_data, flags,
                                   &out->tokens, &out->n_tokens, err);
}

int fr_chat_apply(const fr_model *m, const fr_chat_message *messages, int n_messages, const fr_chat_options *options,
                  fr_chat_result *out, fr_error *err) {
    static const char function[] = "fr_chat_apply";
    fr_chat_options o = {0};
    fr_chat_result result = {0};
    int status = check_given(out, function, "out", err);
    if (status) return status;
    if (fill_result(out, &result, sizeof result))
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: struct_size of the result is not set; set it to sizeof(fr_chat_result)", function);
    status = read_options(&o, sizeof o, options, function, "fr_chat_options", err);
    if (!status) status = check_messages(m, messages, n_messages, function, err);
    if (status) return status;
    FpEnv caller_env = fp_env_enter();
    TemplateOutput text = {.text.max_bytes = REQUEST_MAX_TEXT};
    status = apply(m, &o, messages, n_messages, &text, result.warning, err);
    if (!status) status = encode(m, &text, &result, err);
    fp_env_leave(&caller_env);
    free(text.data);
    result.text = text.text.data;
    result.n_bytes = text.text.n;
    if (status) fr_chat_result_free(&result);
    (void)fill_result(out, &result, sizeof result);
    return status;
}

void fr_chat_result_free(fr_chat_result *r) {
    static const fr_chat_result none;
    if (!r) return;
    free(r->text);
    free(r->tokens);
    r->text = NULL;
    r->tokens = NULL;
    (void)fill_result(r, &none, sizeof none);
}
