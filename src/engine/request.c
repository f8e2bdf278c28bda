/* request.c - the life of one request, from its options to its last token.
 *
 * Opening checks the options and finds the request's drafters among the open ones; it reads no file. Then the engine's
 * steps hand tokens to request_emit, which decides where the text ends: at an end-of-text token, a stop string,
 * max_tokens, the end of the context, or because the caller cancels the request. Text that may still turn out to be the
 * beginning of a stop string is held back from the callback. */
#include "engine/request.h"

#include "base/system.h"
#include "base/hash.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How much memory a text gets at the start. A token is about 4 bytes of text; longer texts get more memory later. */
enum { TEXT_BYTES_PER_TOKEN = 16, TEXT_FIRST_MAX = 1 << 20 };

fr_sampling fr_sampling_default(void) {
    const SamplingOptions *d = &SAMPLING_DEFAULT;
    return (fr_sampling){.temperature = d->temperature,
                         .top_k = d->top_k,
                         .top_p = d->top_p,
                         .min_p = d->min_p,
                         .repeat_penalty = d->repeat_penalty,
                         .frequency_penalty = d->frequency_penalty,
                         .presence_penalty = d->presence_penalty,
                         .penalty_last_n = d->penalty_last_n,
                         .seed = d->seed};
}

static SamplingOptions sampling_of(const fr_sampling *s) {
    return (SamplingOptions){.temperature = s->temperature,
                             .top_k = s->top_k,
                             .top_p = s->top_p,
                             .min_p = s->min_p,
                             .repeat_penalty = s->repeat_penalty,
                             .frequency_penalty = s->frequency_penalty,
                             .presence_penalty = s->presence_penalty,
                             .penalty_last_n = s->penalty_last_n,
                             .seed = s->seed};
}

static int check_options(const fr_engine *e, const fr_request_options *o, fr_error *err) {
    static const char function[] = "fr_request_open";
    int status = check_array(o->prompt, o->n_prompt, function, "prompt", err);
    if (!status) status = check_array(o->prediction, o->n_prediction, function, "prediction", err);
    if (!status) status = check_strings(o->stops, o->n_stops, function, "stops", err);
    if (!status && o->n_drafts > REQUEST_MAX_DRAFTS)
        status = error_set(err, FR_ERR_ARGUMENT, "%d drafts are given; a request takes at most %d", o->n_drafts,
                           REQUEST_MAX_DRAFTS);
    if (!status) status = check_strings(o->drafts, o->n_drafts, function, "drafts", err);
    if (status) return status;
    int32_t n_vocab = e->model->model->hparams.n_vocab;
    if (o->n_prompt < 1) return error_set(err, FR_ERR_ARGUMENT, "the prompt is empty; it needs at least one token");
    if (o->n_prompt > e->options.n_ctx)
        return error_set(err, FR_ERR_CONTEXT,
                         "the prompt of %lld tokens is longer than the context of %d; shorten it, "
                         "or choose a longer context",
                         (long long)o->n_prompt, e->options.n_ctx);
    for (int64_t i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= n_vocab)
            return error_set(err, FR_ERR_ARGUMENT,
                             "token %d at index %lld of the prompt is outside the vocabulary of %d tokens",
                             o->prompt[i], (long long)i, n_vocab);
    if (o->tree_budget < FR_TREE_BUDGET_AUTO || o->tree_budget > FR_TREE_BUDGET_MAX)
        return error_set(err, FR_ERR_ARGUMENT, "the tree budget is %d; it must be from 1 to %d, or FR_TREE_BUDGET_AUTO",
                         o->tree_budget, FR_TREE_BUDGET_MAX);
    if (o->max_tokens < 0) return error_set(err, FR_ERR_ARGUMENT, "max_tokens cannot be negative");
    for (int i = 0; i < o->n_stops; i++)
        if (!*o->stops[i])
            return error_set(err, FR_ERR_ARGUMENT, "stops[%d] is an empty string, which would end every text at once",
                             i);
    const VerifyRule *rule;
    VerifyOptions options;
    status = o->verify ? verify_rule_parse(o->verify, o->allow_lossy, &rule, &options, err) : FR_OK;
    if (status) return status;
    SamplingOptions sampling = sampling_of(&o->sampling);
    status = sampling_check(&sampling, err);
    return status ? status : check_scores(o, n_vocab, err);
}

/* Refuses a draft that draws its tokens together with other drafts under a ratio rule, which divides by the
 * distribution from which a token was drawn: that is the distribution of a single drafter. And refuses a draft whose
 * trees depend on time under a rule whose text depends on trees. */
static int check_rule(const fr_request *r, fr_error *err) {
    const RequestDraft *drawing = NULL;
    for (int i = 0; i < r->options.n_drafts; i++) {
        const EngineDrafter *shared = r->drafts[i].shared;
        if (shared->drafter->class->draws) drawing = &r->drafts[i];
        if (shared->drafter->class->is_timed && verify_rule_needs_its_trees(r->rule))
            return error_set(err, FR_ERR_ARGUMENT,
                             "the draft '%.200s' depends on time, and with --verify %s the text would depend on it, "
                             "too; use --verify sampled",
                             shared->spec, r->rule->name);
    }
    if (!r->rule->is_ratio || r->options.n_drafts < 2 || !drawing) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "the draft '%s' draws its tokens from a distribution, and with --verify %s such a draft "
                     "cannot be united with others; use it alone, or use --verify sampled",
                     drawing->shared->spec, r->rule->name);
}

/* Copies the prompt, the stop strings and the prediction, and allocates the text. */
static int copy_inputs(fr_request *r, const fr_request_options *o, fr_error *err) {
    size_t room = (size_t)r->engine->options.n_ctx + TREE_MAX_NODES + 1;
    r->context = malloc(room * sizeof *r->context);
    r->stops = calloc((size_t)o->n_stops + 1, sizeof *r->stops);
    if (!r->context || !r->stops) return error_memory(err, "a request", room * sizeof *r->context);
    memcpy(r->context, o->prompt, (size_t)o->n_prompt * sizeof *r->context);
    r->n_context = o->n_prompt;
    for (int i = 0; i < o->n_stops; i++)
        if (!(r->stops[i] = strdup(o->stops[i]))) return error_memory(err, "a stop string", strlen(o->stops[i]));
    if (o->n_prediction > 0) {
        size_t n = (size_t)o->n_prediction * sizeof *r->prediction;
        if (!(r->prediction = malloc(n))) return error_memory(err, "a prediction", n);
        memcpy(r->prediction, o->prediction, n);
    }
    int64_t n_tokens = r->engine->options.n_ctx - o->n_prompt + 1;
    if (o->max_tokens && o->max_tokens < n_tokens) n_tokens = o->max_tokens;
    size_t n_bytes = TEXT_BYTES_PER_TOKEN * (size_t)n_tokens + DETOKENIZER_MAX_TEXT;
    if (n_bytes > TEXT_FIRST_MAX) n_bytes = TEXT_FIRST_MAX;
    if (!buf_reserve(&r->text, n_bytes) || !buf_append(&r->text, "", 0)) return error_memory(err, "a text", n_bytes);
    return FR_OK;
}

/* Replaces the shared drafter by one that only this request uses. */
static int isolate_draft(fr_request *r, RequestDraft *d, fr_error *err) {
    int status = drafter_pool_open_own(&d->own, d->shared, r->engine, err);
    if (status) return status;
    drafter_pool_release(d->shared);
    d->shared = &d->own;
    return FR_OK;
}

/* Adds the draft of one spec to the request. */
static int acquire_draft(void *request, const char *spec, fr_error *err) {
    fr_request *r = request;
    int n = r->options.n_drafts;
    if (n == REQUEST_MAX_DRAFTS)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a request takes at most %d drafts; \"auto\" counts as the drafts it stands for", n);
    if (strcmp(spec, "none") == 0) return FR_OK;
    EngineDrafter *d = drafter_pool_acquire(r->engine, spec);
    if (!d)
        return error_set(err, FR_ERR_ARGUMENT,
                         "the draft '%.200s' is not open in this engine: name it in "
                         "fr_engine_options.drafts, or call fr_engine_open_draft first",
                         spec);
    for (int i = 0; i < n; i++)
        if (strcmp(r->drafts[i].shared->spec, spec) == 0) { /* named twice, perhaps by "auto" */
            drafter_pool_release(d);
            return FR_OK;
        }
    r->drafts[n].shared = d;
    r->options.n_drafts++;
    if (d->drafter->class->remembers && verify_rule_needs_its_trees(r->rule))
        return isolate_draft(r, &r->drafts[n], err);
    return FR_OK;
}

/* Acquires the draft "grammar". A failure matters only if the text depends on the trees. */
static int acquire_grammar_draft(fr_request *r, fr_error *err) {
    int status = drafter_pool_open_draft(r->engine, "grammar", err);
    if (!status) status = acquire_draft(r, "grammar", err);
    return verify_rule_needs_its_trees(r->rule) ? status : FR_OK;
}

/* Finds the drafts among the open ones; "auto" names its members, and "a+b" names both. */
static int acquire_drafts(fr_request *r, const fr_request_options *o, fr_error *err) {
    bool has_auto = false;
    int status = FR_OK;
    r->options.n_drafts = 0;
    for (int i = 0; i < o->n_drafts && !status; i++) {
        status = drafter_each(o->drafts[i], acquire_draft, r, err);
        has_auto = has_auto || drafter_names_auto(o->drafts[i]);
    }
    if (!status && request_grammar_wants_draft(r, o, has_auto)) status = acquire_grammar_draft(r, err);
    bool wants_auto = has_auto || o->tree_budget == FR_TREE_BUDGET_AUTO ||
                      (o->tree_budget == 0 && r->engine->policy.cost.n > 0 && !request_drafts_want_rows(r));
    r->has_auto_budget = wants_auto && r->options.n_drafts > 0 && !verify_rule_needs_its_trees(r->rule);
    r->tree_budget = o->tree_budget > 0   ? o->tree_budget
                     : r->has_auto_budget ? FR_TREE_BUDGET_AUTO_MAX
                                          : FR_TREE_BUDGET;
    if (r->has_auto_budget && r->tree_budget > FR_TREE_BUDGET_AUTO_MAX) r->tree_budget = FR_TREE_BUDGET_AUTO_MAX;
    return status;
}

/* Returns the key of all random numbers of the request, from its seed and its prompt. Requests with the same seed and
 * different prompts, such as the turns of a conversation, are therefore independent, and the same request gives the
 * same text. */
static uint64_t noise_key(const fr_request_options *o) {
    return hash64(o->prompt, (size_t)o->n_prompt * sizeof *o->prompt, o->sampling.seed);
}

/* Returns whether nothing of a row of logits is needed but the token that wins with the request's noise. */
static bool needs_only_best(const fr_request *r) {
    bool takes_best = sampling_takes_best(&r->sampling) && r->sampling.temperature <= ROW_TEMPERATURE_MAX;
    for (int i = 0; i < r->options.n_drafts; i++)
        if (r->drafts[i].shared->drafter->class->needs_logits) return false;
    return takes_best && r->options.no_logits_hash && r->rule == verify_rules()[0] && !r->options.grammar &&
           !r->options.want_logprobs && r->options.n_top_logprobs == 0;
}

static int open_request(fr_request *r, const fr_request_options *o, fr_error *err) {
    fr_engine *e = r->engine;
    int status = copy_inputs(r, o, err);
    if (!status) status = request_grammar_begin(r, o, err);
    if (!status) status = request_reasoning_begin(r, o, err);
    if (!status) status = acquire_drafts(r, o, err);
    if (!status) status = open_scores(r, o, err);
    if (!status) status = request_embedding_begin(r, o, err);
    if (!status) status = check_rule(r, err);
    if (!status) status = draft_policy_begin(r, err);
    if (!status && r->rule->is_ratio && !(r->dists = draft_dists_new(e->model->model->hparams.n_vocab)))
        status = error_memory(err, "the distributions of a request", sizeof *r->dists);
    if (r->dists) r->dists->only_points = !r->rule->takes_any_tree || r->options.n_drafts > 1;
    if (r->dists) r->dists->whole_groups = r->rule->looks_ahead;
    if (!status) r->only_best = needs_only_best(r);
    return status ? status : request_queue_reserve(r, err);
}

static void free_request(fr_request *r) {
    request_queue_remove(r);
    draft_policy_end(r);
    for (int i = 0; i < r->options.n_drafts; i++) {
        drafter_pool_release(r->drafts[i].shared);
        drafter_pool_close_own(&r->drafts[i].own);
    }
    for (int i = 0; r->stops && i < r->options.n_stops; i++) free(r->stops[i]);
    free(r->stops);
    free(r->prediction);
    free(r->bias);
    free(r->top_logprobs);
    free(r->context);
    buf_free(&r->text);
    request_grammar_end(r);
    request_reasoning_end(r);
    request_embedding_end(r);
    draft_dists_free(r->dists);
    free(r);
}

static int make_request(fr_request **out, fr_engine *e, const fr_request_options *o, fr_error *err) {
    int status = check_options(e, o, err);
    if (!status) status = request_queue_check(e, err);
    if (status) return status;
    fr_request *r = calloc(1, sizeof *r);
    if (!r) return error_memory(err, "a request", sizeof *r);
    r->engine = e;
    r->options = *o;
    r->sampling = sampling_of(&o->sampling);
    r->sampling.seed = noise_key(o);
    r->sequence = -1;
    r->rule = verify_rules()[0];
    if (o->verify)
        verify_rule_parse(o->verify, true, &r->rule, &r->rule_options, NULL); /* check_options has accepted it */
    r->stats.is_lossy = r->rule->is_lossy;
    r->detokenizer = (Detokenizer){.tokenizer = e->model->tokenizer};
    r->text.max_bytes = REQUEST_MAX_TEXT;
    r->stats.n_prompt = o->n_prompt;
    status = open_request(r, o, err);
    if (status) {
        free_request(r);
        return status;
    }
    request_queue_add(r);
    *out = r;
    return FR_OK;
}

int fr_request_open(fr_request **out, fr_engine *e, const fr_request_options *o, fr_error *err) {
    int status = check_given(out, "fr_request_open", "out", err);
    if (status) return status;
    *out = NULL;
    status = engine_check_call(e, "fr_request_open", err);
    if (!status) status = check_given(o, "fr_request_open", "options", err);
    fr_request_options options = {0};
    if (!status) status = read_options(&options, sizeof options, o, "fr_request_open", "fr_request_options", err);
    if (status) return status;
    FpEnv caller_env = fp_env_enter();
    status = make_request(out, e, &options, err);
    fp_env_leave(&caller_env);
    return status;
}

/* Ends the request and gives its KV pages back. Calling it again does nothing. */
static void end_request(fr_request *r, fr_finish finish) {
    if (r->finish) return;
    r->finish = finish;
    double now = clock_s();
    if (r->decode_started_s > 0) r->stats.decode_s = now - r->decode_started_s;
    else if (r->sequence >= 0) r->stats.prefill_s = now - r->started_s;
    if (r->sequence >= 0) {
        prefix_cache_keep(r); /* before its drafters forget it */
        request_drafts_end(r);
        executor_sequence_truncate(r->engine->executor, r->sequence, 0);
    }
    request_queue_leave(r);
}

void request_fail(fr_request *r, const fr_error *err) {
    r->error = *err;
    end_request(r, FR_FINISH_ERROR);
}

void fr_request_close(fr_request *r) {
    if (!r) return;
    FpEnv caller_env = fp_env_enter();
    if (!r->is_emitting) end_request(r, FR_FINISH_CANCELLED); /* otherwise emit_token ends it */
    if (r->engine->is_in_callback) r->is_closed = true;       /* engine_end_step frees it */
    else free_request(r);
    fp_env_leave(&caller_env);
}

bool request_is_prefilling(const fr_request *r) {
    return executor_sequence_length(r->engine->executor, r->sequence) < r->n_context - 1;
}

int64_t request_tokens_left(const fr_request *r) {
    int64_t room = r->engine->options.n_ctx - r->n_context;
    if (!r->options.max_tokens) return room;
    int64_t left = r->options.max_tokens - r->stats.n_generated;
    return left < room ? left : room;
}

/* Returns where the first stop string begins, in the text that has not been sent yet; SIZE_MAX: there is none. */
static size_t find_stop(const fr_request *r) {
    size_t first = SIZE_MAX;
    for (int i = 0; i < r->options.n_stops; i++) {
        const char *at = memmem(r->text.data + r->n_sent, r->text.n - r->n_sent, r->stops[i], strlen(r->stops[i]));
        if (at && (size_t)(at - r->text.data) < first) first = (size_t)(at - r->text.data);
    }
    return first;
}

/* Returns how many bytes at the end of the text are the beginning of a stop string. */
static size_t held_back(const fr_request *r) {
    size_t most = 0;
    for (int i = 0; i < r->options.n_stops; i++) {
        size_t n = strlen(r->stops[i]) - 1, unsent = r->text.n - r->n_sent;
        for (n = n < unsent ? n : unsent; n > most; n--)
            if (memcmp(r->text.data + r->text.n - n, r->stops[i], n) == 0) most = n;
    }
    return most;
}

/* Why the text ends with this token; FR_FINISH_NONE: it does not. */
static fr_finish finish_after(const fr_request *r, int32_t token) {
    if (!r->options.ignore_eos && tokenizer_is_eog(r->engine->model->tokenizer, token)) return FR_FINISH_EOS;
    if (r->options.max_tokens && r->stats.n_generated >= r->options.max_tokens) return FR_FINISH_LENGTH;
    if (r->n_context >= r->engine->options.n_ctx) return FR_FINISH_CONTEXT;
    return FR_FINISH_NONE;
}

/* Appends the token's text, which a stop string may cut, and sets *certain to how many bytes of the text are certain.
 * False: the text is longer than its limit allows. */
static bool add_text(fr_request *r, int32_t token, fr_finish *finish, size_t *certain) {
    size_t n;
    const char *piece;
    if (r->reasoning.n_end > 0 && tokenizer_is_special(r->engine->model->tokenizer, token)) {
        piece = detokenizer_finish(&r->detokenizer, &n); /* reasoning may be closed within a character */
        if (!buf_append(&r->text, piece, n)) return false;
    }
    piece = detokenizer_next(&r->detokenizer, token, &n);
    if (!buf_append(&r->text, piece, n)) return false;
    if (*finish) {
        piece = detokenizer_finish(&r->detokenizer, &n);
        if (!buf_append(&r->text, piece, n)) return false;
    }
    size_t stop = find_stop(r);
    if (stop != SIZE_MAX) {
        *finish = FR_FINISH_STOP;
        r->text.n = stop;
        r->text.data[stop] = '\0';
    }
    *certain = *finish ? r->text.n : r->text.n - held_back(r);
    return true;
}

/* Runs the callback in the caller's floating-point environment. True: the callback cancelled or closed the request. */
static bool call_back(fr_request *r, const fr_token_event *event) {
    fr_engine *e = r->engine;
    e->is_in_callback = r->is_emitting = true;
    fp_env_leave(&e->caller_env);
    int answer = r->options.on_token(r->options.user, event);
    e->caller_env = fp_env_enter();
    e->is_in_callback = r->is_emitting = false;
    return answer || r->is_closed;
}

/* Appends token number i of the step and calls the callback. True: the request goes on. */
static bool emit_token(fr_request *r, int32_t token, int32_t source, int32_t i) {
    const TokenScore *score = &r->verdict.scores[i];
    r->context[r->n_context++] = token;
    r->stats.n_generated++;
    r->stats.logits_hash = score->logits_hash;
    request_reasoning_advance(r);
    fr_finish finish = finish_after(r, token), by_grammar = request_grammar_advance(r, token);
    if (by_grammar && finish != FR_FINISH_EOS) finish = by_grammar;
    size_t certain = 0;
    if (!add_text(r, token, &finish, &certain)) {
        fr_error err;
        error_set(&err, FR_ERR_MEMORY, "the text is longer than %zu bytes, or memory ran out", r->text.max_bytes);
        request_fail(r, &err);
        return false;
    }
    if (r->options.on_token) {
        /* The text of the event must end with '\0'; the byte there is put back afterwards. */
        char after = r->text.data[certain];
        r->text.data[certain] = '\0';
        fr_token_event event = {.struct_size = sizeof event,
                                .token = token,
                                .source = source,
                                .text = r->text.data + r->n_sent,
                                .n_bytes = certain - r->n_sent,
                                .logprob = score->logprob,
                                .n_top_logprobs = r->options.n_top_logprobs};
        if (event.n_top_logprobs > 0) event.top_logprobs = r->top_logprobs + (int64_t)i * event.n_top_logprobs;
        if (call_back(r, &event)) finish = FR_FINISH_CANCELLED;
        r->text.data[certain] = after;
    }
    r->n_sent = certain;
    if (finish) end_request(r, finish);
    return !finish;
}

void request_emit(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n) {
    int32_t i = 0, n_accepted = 0;
    bool goes_on = true;
    for (; i < n && goes_on; i++) {
        if (sources[i] >= 0) n_accepted++;
        goes_on = emit_token(r, tokens[i], sources[i], i);
    }
    r->stats.accepted += n_accepted;
    r->draft_stats.accept_histogram[n_accepted < FR_MAX_DEPTH ? n_accepted : FR_MAX_DEPTH]++;
    if (goes_on) draft_policy_observe_step(r, tokens, sources, n);
}
