/* exact.c - random engines against plain decoding.
 *
 * A round takes one small model, and for each of some engines a set of requests: prompts that fork from each other,
 * sampling, grammars, stops, biases, log-probabilities, embeddings, unions of drafters, budgets and verification rules.
 * What each must generate is found first: by plain decoding, one request at a time, in an engine with one thread that
 * shares nothing; or, where a ratio rule draws and only promises that a seed gives one text, by the same request
 * without company. Then all of them run in one random engine: other threads, pages, chunks and kernels, a prefix cache,
 * too few pages, requests that arrive, are cancelled and closed at any time. Tokens, text, log-probabilities,
 * embeddings and the hash of the logits must have the same bits.
 *
 * Round r of seed S is round 0 of seed S + r, so a fault is repeated by the seed that is printed with it. */
#include "torture.h"

#include "all_drafters.h"
#include "base/hash.h"
#include "base/system.h"
#include "compute/cpu/kernels/kernels.h"
#include "engine_rig.h"
#include "random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_REQUESTS = 12,
    MOST_PROMPT = 72,
    MOST_TOKENS = 40,  /* of a request in most rounds */
    LONG_TOKENS = 240, /* and in the others */
    MOST_DRAFTS = 5,
    N_GRAMMARS = 3,
    N_ENGINES = 4, /* of a round */
    N_PREDICTION = 24,
    SMOKE_SECONDS = 6,
};

/* What a request generates, as its callback sees it, and at its end. */
typedef struct Outcome {
    Stream stream;
    uint64_t logprobs;  /* hash of all log-probabilities */
    uint64_t embedding; /* hash; 0: none is wanted */
    char error[200];    /* why it failed; "" if it did not */
} Outcome;

typedef struct Case {
    int32_t prompt[MOST_PROMPT], prediction[N_PREDICTION];
    const char *drafts[MOST_DRAFTS], *stops[1];
    fr_logit_bias biases[2];
    fr_request_options o;
    bool is_of_rule; /* its text depends on what is drafted, so that it is compared with itself without company */
    int grammar;     /* its place in the grammars of the round; -1: none */
    Outcome expected, got;

    /* In the engine with the others. */
    int arrives_at;   /* step */
    int cancelled_at; /* tokens after which its callback ends it; 0: never */
    int closed_after; /* steps after its arrival; 0: it runs to its end */
    fr_request *request;
    bool is_done;
} Case;

typedef struct Round {
    Torture *t;
    RandomModel shape;
    bool has_learned_drafters;
    int engine, most_tokens;
    char path[64], what[512];
    fr_model *plain, *model;             /* the same file with two kernel tables */
    fr_grammar *grammars[2][N_GRAMMARS]; /* the same ones for both */
    fr_engine_options options;
    const char *drafts[40]; /* those that this model can open */
    int n_drafts;
    Devil devils[2];
    Case *cases;
    int n_cases;
} Round;

static int64_t n_tokens, n_requests, n_accepted, n_preempted, n_shared;

static int below(Round *r, int n) { return (int)torture_below(r->t, (uint64_t)n); }
static bool one_in(Round *r, int n) { return below(r, n) == 0; }
static int pick(Round *r, const int *list, int n) { return list[below(r, n)]; }
#define PICK(r, ...) pick(r, (const int[]){__VA_ARGS__}, (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)))

static void give_up(const char *what, const fr_error *err) {
    printf("FAULT %s: %s\n", what, err->message);
    exit(1);
}

/* ---- models ------------------------------------------------------------------------------------------------- */

/* The scalar reference takes most of the time, so that it is rarely one of the two. */
static const char *random_table(Round *r) {
    int n;
    const Kernels *const *tables = kernels_available(&n);
    return tables[n == 1 || one_in(r, 40) ? 0 : 1 + below(r, n - 1)]->name;
}

/* Learned drafters need a width that their small files are written for, and which any of the models can have. */
static void write_model(Round *r) {
    fr_error err;
    snprintf(r->path, sizeof r->path, "build/model.gguf");
    r->shape = small_models[below(r, n_small_models)];
    r->has_learned_drafters = !r->shape.head_counts[0] && one_in(r, 2);
    if (r->has_learned_drafters) r->shape.n_embd = ALL_DRAFTERS_EMBD, r->shape.head_dim = 0;
    if (random_model_write(&r->shape, r->path, &err)) give_up("a model", &err);
    if (r->has_learned_drafters) all_drafters_write_for(r->path);
}

static void open_grammars(Round *r) {
    static const struct {
        fr_grammar_kind kind;
        const char *text;
    } texts[] = {
        {FR_GRAMMAR_REGEX, "[a-z ]{3,60}"},
        {FR_GRAMMAR_REGEX, "(ab|cd|[0-9]+)*x?"},
        {FR_GRAMMAR_REGEX, "(.|\n)*"},
        {FR_GRAMMAR_GBNF, "root ::= \"{\" pair (\",\" pair)* \"}\"\npair ::= [a-f]+ \":\" (root | [0-9]{1,4})"},
        {FR_GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\"}"},
        {FR_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},"
                                 "\"kind\":{\"enum\":[\"one\","
                                 "\"other\",\"once\"]},\"n\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":1999}},"
                                 "\"required\":[\"name\",\"kind\",\"n\"]}"},
    };
    fr_error err;
    for (int i = 0; i < N_GRAMMARS; i++) {
        int k = below(r, (int)(sizeof texts / sizeof *texts));
        for (int m = 0; m < 2; m++)
            if (fr_grammar_open(&r->grammars[m][i], m ? r->model : r->plain, texts[k].kind, texts[k].text,
                                strlen(texts[k].text), &err))
                give_up(texts[k].text, &err);
    }
}

static void open_models(Round *r) {
    fr_error err;
    write_model(r);
    const char *backend = one_in(r, 200) ? "reference" : "cpu", *activations = one_in(r, 2) ? "q8" : "q16";
    fr_model_options o = {.struct_size = sizeof o, .backend = backend, .n_threads = 2};
    if (strcmp(backend, "cpu") == 0) o.activations = activations, o.kernels = random_table(r);
    if (fr_model_open(&r->plain, r->path, &o, &err)) give_up("a model", &err);
    int n = snprintf(r->what, sizeof r->what, "%s (%d experts, %d wide) in %s%s%s, kernels %s", r->shape.arch,
                     r->shape.n_expert, r->shape.n_embd, backend, o.activations ? " with " : "",
                     o.activations ? activations : "", o.kernels ? o.kernels : "none");
    if (o.kernels) o.kernels = random_table(r);
    if (fr_model_open(&r->model, r->path, &o, &err)) give_up("a model", &err);
    snprintf(r->what + n, sizeof r->what - (size_t)n, " and %s", o.kernels ? o.kernels : "none");
    open_grammars(r);
}

static void close_models(Round *r) {
    for (int i = 0; i < N_GRAMMARS; i++) fr_grammar_close(r->grammars[0][i]), fr_grammar_close(r->grammars[1][i]);
    fr_model_close(r->plain);
    fr_model_close(r->model);
}

/* Every method that this model can draft with. A drafter with a layer of its own is refused where the target's cache
 * has no keys and values of heads. */
static void list_drafts(Round *r) {
    fr_error err;
    bool has_heads = r->shape.n_head > 0 && r->shape.kv_rank == 0;
    fr_engine *e;
    if (fr_engine_open(&e, r->model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 8}, &err))
        give_up("an engine", &err);
    for (const char *const *spec = all_drafters; *spec; spec++) {
        bool has_file = strstr(*spec, "file=") != NULL;
        if (has_file && !r->has_learned_drafters) continue;
        if (fr_engine_open_draft(e, *spec, &err)) {
            if (has_heads) give_up(*spec, &err);
            continue;
        }
        r->drafts[r->n_drafts++] = *spec;
    }
    if (r->shape.n_nextn) r->drafts[r->n_drafts++] = "mtp:top=8";
    r->drafts[r->n_drafts++] = "prediction";
    r->drafts[r->n_drafts++] = "auto";
    fr_engine_close(e);
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

static int on_token(void *user, const fr_token_event *event) {
    Case *c = user;
    Outcome *out = c->request ? &c->got : &c->expected;
    if (!isnan(event->logprob)) out->logprobs = hash64(&event->logprob, sizeof event->logprob, out->logprobs);
    for (int i = 0; i < event->n_top_logprobs; i++) {
        const fr_top_logprob *top = &event->top_logprobs[i];
        out->logprobs = hash64(&top->logprob, sizeof top->logprob, out->logprobs + (uint64_t)top->token);
    }
    return c->request && c->cancelled_at && --c->cancelled_at == 0;
}

/* The prompt begins with a part of what an earlier request reads and writes, or is new. */
static void draw_prompt(Round *r, Case *c, int i) {
    int n = 0, most = 1 + below(r, 40), step = 1 + below(r, 9);
    if (i > 0 && !one_in(r, 3)) {
        const Case *from = &r->cases[below(r, i)];
        int n_all = (int)(from->o.n_prompt + from->expected.stream.n), n_kept = 1 + below(r, n_all);
        for (; n < n_kept && n < MOST_PROMPT - 1; n++)
            c->prompt[n] = n < from->o.n_prompt ? from->prompt[n] : from->expected.stream.tokens[n - from->o.n_prompt];
    }
    for (int k = 0; k < most && n < MOST_PROMPT; k++, n++)
        c->prompt[n] = one_in(r, 3) ? below(r, SMALL_MODELS_VOCAB) : ALL_DRAFTERS_TOKEN(k * step);
    c->o.prompt = c->prompt;
    c->o.n_prompt = n;
}

static fr_sampling draw_sampling(Round *r) {
    fr_sampling s = fr_sampling_default();
    if (!one_in(r, 3)) s.temperature = (float)PICK(r, 3, 8, 10, 15) / 10;
    if (one_in(r, 3)) s.top_k = PICK(r, 1, 4, 40);
    if (one_in(r, 3)) s.top_p = 0.9f;
    if (one_in(r, 4)) s.min_p = 0.05f;
    if (one_in(r, 4)) s.repeat_penalty = 1.3f;
    if (one_in(r, 6)) s.frequency_penalty = 0.4f, s.presence_penalty = 0.2f, s.penalty_last_n = PICK(r, -1, 0, 8);
    s.seed = (uint64_t)below(r, 4);
    return s;
}

/* Returns whether its tokens are drawn: under a ratio rule such a draft is not united with others. */
static bool draws(const char *spec) {
    size_t n = strcspn(spec, ":");
    for (const DrafterClass *const *c = drafter_classes(); *c; c++)
        if (strncmp((*c)->name, spec, n) == 0 && !(*c)->name[n]) return (*c)->draws;
    return false;
}

/* The rules of a chain or of independent draws take the trees of some methods only. */
static void draw_rule(Round *r, Case *c) {
    static const struct {
        const char *rule, *method;
    } rules[] = {{"sampled", NULL},           {"recursive", NULL}, {"transport", NULL},
                 {"typical", NULL},           {"chain", "sps"},    {"block", "sps"},
                 {"multi-round", "spectr"},   {"k-seq", "sps"},    {"k-seq", "spectr"},
                 {"multi-round", "specinfer"}};
    int i = below(r, (int)(sizeof rules / sizeof *rules));
    c->o.verify = rules[i].rule;
    c->o.allow_lossy = 1;
    for (int k = 0; k < r->n_drafts && rules[i].method; k++)
        if (strncmp(r->drafts[k], rules[i].method, strlen(rules[i].method)) == 0)
            c->drafts[0] = r->drafts[k], c->o.n_drafts = 1;
}

static void draw_drafts(Round *r, Case *c) {
    c->o.drafts = c->drafts;
    c->o.n_drafts = below(r, MOST_DRAFTS + 1);
    for (int i = 0; i < c->o.n_drafts; i++)
        c->drafts[i] = one_in(r, 4) ? "prediction" : r->drafts[below(r, r->n_drafts)];
    c->o.tree_budget = one_in(r, 12) ? FR_TREE_BUDGET_AUTO : PICK(r, 1, 2, 3, 5, 8, 13, 24, one_in(r, 4) ? 64 : 4);
    if (one_in(r, 3)) draw_rule(r, c);
    bool is_sampled = !c->o.verify || strcmp(c->o.verify, "sampled") == 0;
    for (int i = 0; i < c->o.n_drafts && !is_sampled; i++)
        if (draws(c->drafts[i])) c->drafts[0] = c->drafts[i], c->o.n_drafts = 1;
    bool is_lossy = c->o.verify && strcmp(c->o.verify, "typical") == 0;
    c->is_of_rule = !is_sampled && (c->o.sampling.temperature > 0 || is_lossy);
    if (c->is_of_rule && c->o.tree_budget == FR_TREE_BUDGET_AUTO) c->o.tree_budget = 8;
    /* Devils draw on, from request to request, so that only plain decoding's text does not depend on them. */
    for (int i = 0; i < c->o.n_drafts && is_sampled; i++)
        if (one_in(r, 8)) c->drafts[i] = one_in(r, 2) ? "random" : "malformed";
}

static void draw_case(Round *r, Case *c, int i) {
    c->o = (fr_request_options){.struct_size = sizeof c->o,
                                .max_tokens = one_in(r, 8) ? 0 : 1 + below(r, r->most_tokens),
                                .sampling = draw_sampling(r),
                                .ignore_eos = !one_in(r, 3),
                                .want_logprobs = one_in(r, 3),
                                .n_top_logprobs = one_in(r, 3) ? 1 + below(r, 5) : 0,
                                .want_embedding = one_in(r, 12),
                                .prediction = c->prediction,
                                .n_prediction = N_PREDICTION,
                                .on_token = on_token,
                                .user = c};
    draw_prompt(r, c, i);
    draw_drafts(r, c);
    for (int k = 0; k < N_PREDICTION; k++) c->prediction[k] = ALL_DRAFTERS_TOKEN(k + 3);
    if (one_in(r, 4)) c->stops[0] = one_in(r, 2) ? "a" : "th", c->o.stops = c->stops, c->o.n_stops = 1;
    if (one_in(r, 4)) {
        c->biases[0] = (fr_logit_bias){below(r, SMALL_MODELS_VOCAB), -INFINITY};
        c->biases[1] = (fr_logit_bias){below(r, SMALL_MODELS_VOCAB), 2.5f};
        c->o.logit_bias = c->biases, c->o.n_logit_bias = 2;
    }
    c->grammar = one_in(r, 4) ? below(r, N_GRAMMARS) : -1;
    if (c->grammar >= 0) c->o.ignore_eos = 0;
    if (c->grammar >= 0 && one_in(r, 4)) c->o.grammar_after = one_in(r, 2) ? "e" : "th";
    c->arrives_at = below(r, 30);
    if (one_in(r, 6)) c->cancelled_at = 1 + below(r, 12);
    else if (one_in(r, 6)) c->closed_after = 1 + below(r, 12);
}

/* ---- what must come out ------------------------------------------------------------------------------------- */

static void add_devils(Round *r, fr_engine *e) {
    r->devils[0] = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, SMALL_MODELS_VOCAB, r->t->seed);
    r->devils[1] = devil_make(DEVIL_MALFORMED, (DevilFault)(1 + below(r, DEVIL_N_FAULTS - 1)), SMALL_MODELS_VOCAB, 8);
    rig_add_drafter(e, "random", &r->devils[0].base);
    rig_add_drafter(e, "malformed", &r->devils[1].base);
}

static void collect(const Round *r, const Case *c, const fr_request *request, Outcome *out) {
    fr_error err;
    float embedding[128];
    rig_collect(request, &out->stream);
    if (out->stream.finish == FR_FINISH_ERROR)
        snprintf(out->error, sizeof out->error, "%.199s", fr_request_error(request)->message);
    if (!c->o.want_embedding || out->stream.n == 0) return;
    fr_assert(r->shape.n_embd <= (int)(sizeof embedding / sizeof *embedding));
    if (fr_request_embedding(request, embedding, &err)) give_up(r->what, &err);
    out->embedding = hash64(embedding, (size_t)r->shape.n_embd * sizeof *embedding, 1);
}

/* One engine, which shares nothing between requests. */
static void find_expected(Round *r, Case *c) {
    fr_error err;
    fr_engine_options o = {.struct_size = sizeof o,
                           .n_threads = 1,
                           .n_ctx = r->options.n_ctx,
                           .kv_type = r->options.kv_type,
                           .prefix_cache = -1};
    fr_request_options request = c->o;
    fr_engine *e;
    if (c->grammar >= 0) request.grammar = r->grammars[0][c->grammar], c->o.grammar = r->grammars[1][c->grammar];
    if (!c->is_of_rule) request.drafts = NULL, request.n_drafts = 0, request.verify = NULL, request.tree_budget = 1;
    if (fr_engine_open(&e, r->plain, &o, &err)) give_up("an engine", &err);
    fr_request *alone;
    if (rig_open_request(&alone, e, &request, &err)) give_up(r->what, &err);
    int n_left = 1;
    while (n_left > 0) n_left = fr_engine_step(e, &err);
    if (n_left < 0) give_up(r->what, &err);
    collect(r, c, alone, &c->expected);
    fr_request_close(alone);
    fr_engine_close(e);
    for (int i = 0; i < N_PREDICTION && i < c->expected.stream.n && !c->is_of_rule; i++)
        if (!one_in(r, 8)) c->prediction[i] = c->expected.stream.tokens[i]; /* so that much of it is accepted */
}

/* ---- all of them together ----------------------------------------------------------------------------------- */

static void draw_engine(Round *r) {
    fr_engine_options *o = &r->options;
    *o = (fr_engine_options){.struct_size = sizeof *o,
                             .n_threads = PICK(r, 1, 1, 1, 2, 3),
                             .n_ctx = MOST_PROMPT + PICK(r, 4, 24, r->most_tokens, r->most_tokens, r->most_tokens),
                             .kv_type = (fr_kv_type)below(r, 3),
                             .kv_page_size = PICK(r, 1, 2, 3, 5, 8, 16, 32),
                             .max_requests = 1 + below(r, 6),
                             .max_queued = below(r, 4),
                             .prefill_chunk = PICK(r, 1, 3, 8, 17, 256),
                             .max_gap_s = PICK(r, 0, 0, 1, 1000) * 1e-4, /* once a drafter needs the costs */
                             .prefix_cache = PICK(r, -1, 0, 1, 2, 16)};
    if (!one_in(r, 3)) o->kv_tokens = o->n_ctx + below(r, o->n_ctx);
}

static void describe(const Round *r, const Case *c, char *out, size_t size) {
    char drafts[300] = "";
    for (int i = 0; i < c->o.n_drafts; i++)
        snprintf(drafts + strlen(drafts), sizeof drafts - strlen(drafts), "%s%.50s", i ? "+" : "", c->drafts[i]);
    snprintf(out, size,
             "--seed %llu, engine %d: %s; %d threads, pages of %d, %lld of %d tokens, chunks of %d, %d requests at "
             "once, cache %d, "
             "kv %d; request %d: %s, %s, budget %d, temperature %g, %s",
             (unsigned long long)r->t->seed, r->engine, r->what, r->options.n_threads, r->options.kv_page_size,
             (long long)r->options.kv_tokens, r->options.n_ctx, r->options.prefill_chunk, r->options.max_requests,
             r->options.prefix_cache, (int)r->options.kv_type, (int)(c - r->cases), drafts[0] ? drafts : "no draft",
             c->o.verify ? c->o.verify : "sampled", c->o.tree_budget, (double)c->o.sampling.temperature,
             c->grammar < 0 ? "no grammar" : "a grammar");
}

static void fault(Round *r, const Case *c, const char *what) {
    char which[1024];
    describe(r, c, which, sizeof which);
    printf("%s\n", which);
    torture_fault(r->t, which, what, NULL);
}

/* Compares what there is of a request that ended, or is about to be closed. */
static void compare(Round *r, Case *c) {
    char what[200];
    const Stream *want = &c->expected.stream, *got = &c->got.stream;
    collect(r, c, c->request, &c->got);
    bool is_whole = got->finish != FR_FINISH_NONE && got->finish != FR_FINISH_CANCELLED;
    n_requests++;
    n_tokens += got->n;
    n_accepted += got->stats.accepted;
    n_preempted += got->stats.n_preempted;
    n_shared += got->stats.n_prompt_shared;
    for (int64_t i = 0; i < got->n; i++)
        if (i >= want->n || got->tokens[i] != want->tokens[i]) {
            snprintf(what, sizeof what, "token %d of %d is %d and must be %d", (int)i, (int)got->n, got->tokens[i],
                     i < want->n ? want->tokens[i] : -1);
            fault(r, c, what);
            return;
        }
    if (!is_whole) return;
    const char *why = got->n != want->n                                   ? "tokens are missing"
                      : got->finish != want->finish                       ? "it ended otherwise"
                      : strcmp(got->text, want->text) != 0                ? "the text differs"
                      : c->got.logprobs != c->expected.logprobs           ? "log-probabilities differ"
                      : c->got.embedding != c->expected.embedding         ? "the embedding differs"
                      : got->stats.logits_hash != want->stats.logits_hash ? "the logits differ"
                      /* A grammar and biases may leave no token: then plain decoding fails with the same sentence. */
                      : strcmp(c->got.error, c->expected.error) != 0 ? c->got.error
                                                                     : NULL;
    if (why) fault(r, c, why);
}

static void finish_case(Round *r, Case *c) {
    compare(r, c);
    fr_request_close(c->request);
    c->is_done = true;
}

/* Opens what has arrived; where there is no place, it comes again in the next step. */
static void admit(Round *r, fr_engine *e, int step) {
    for (int i = 0; i < r->n_cases; i++) {
        Case *c = &r->cases[i];
        fr_error err;
        if (c->request || c->arrives_at > step) continue;
        int status = rig_open_request(&c->request, e, &c->o, &err);
        if (status == FR_ERR_MEMORY) c->request = NULL;
        else if (status) give_up(r->what, &err);
        else c->arrives_at = step;
    }
}

static void run_together(Round *r) {
    fr_error err;
    fr_engine *e;
    int n_left = r->n_cases;
    if (fr_engine_open(&e, r->model, &r->options, &err)) give_up("an engine", &err);
    add_devils(r, e);
    for (int step = 0; n_left > 0; step++) {
        admit(r, e, step);
        if (fr_engine_step(e, &err) < 0) give_up(r->what, &err);
        for (int i = 0; i < r->n_cases; i++) {
            Case *c = &r->cases[i];
            if (!c->request || c->is_done) continue;
            bool is_closed = c->closed_after && step - c->arrives_at >= c->closed_after;
            if (fr_request_finish_reason(c->request) == FR_FINISH_NONE && !is_closed) continue;
            finish_case(r, c);
            n_left--;
        }
        if (step < 100000) continue;
        fault(r, &r->cases[0], "the requests do not end");
        break;
    }
    fr_engine_close(e);
}

/* ---- rounds ------------------------------------------------------------------------------------------------- */

static void run_engine(Round *r) {
    r->n_cases = 2 + below(r, MOST_REQUESTS - 1);
    r->most_tokens = one_in(r, 2) ? LONG_TOKENS : MOST_TOKENS;
    r->cases = calloc((size_t)r->n_cases, sizeof *r->cases);
    fr_assert(r->cases);
    draw_engine(r);
    for (int i = 0; i < r->n_cases; i++) {
        draw_case(r, &r->cases[i], i);
        find_expected(r, &r->cases[i]);
    }
    run_together(r);
    free(r->cases);
}

static void run_round(Torture *t) {
    Round r = {.t = t};
    t->random = t->seed * 0x9e3779b97f4a7c15u + 1;
    open_models(&r);
    list_drafts(&r);
    for (r.engine = 0; r.engine < N_ENGINES; r.engine++) run_engine(&r);
    close_models(&r);
    t->n_runs++;
}

/* Files that the drafters name are below build/, and other tests write other ones there. */
static void prepare_folder(const Torture *t) {
    if (chdir(t->out) != 0 || mkdir("build", 0777) != 0) {
        perror(t->out);
        exit(2);
    }
    all_drafters_write_files();
}

int main(int argc, char **argv) {
    Torture t;
    torture_begin(&t, "exact", argc, argv);
    prepare_folder(&t);
    if (t.is_smoke) t.is_smoke = false, t.seconds = SMOKE_SECONDS;
    for (; torture_goes_on(&t) || t.n_runs == 0; t.seed++) run_round(&t);
    printf("exact: %lld tokens of %lld requests compared; %lld of them were accepted drafts, %lld tokens of prompts "
           "were taken "
           "over, and requests were preempted %lld times\n",
           (long long)n_tokens, (long long)n_requests, (long long)n_accepted, (long long)n_shared,
           (long long)n_preempted);
    return torture_end(&t);
}
