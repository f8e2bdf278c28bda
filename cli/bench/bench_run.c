/* bench_run.c - runs questions through an engine and records what the answers cost.
 *
 * A conversation is a question with its turns: the model's own answer to one turn is part of the prompt of the next,
 * and each turn is prefilled as a whole. A pass keeps a number of conversations running in one engine; when one ends,
 * the next question takes its place, as in a server with waiting requests. The wall time of a pass includes tokenizing
 * and opening requests; prefill_s and decode_s are measured by the engine. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/system.h"
#include "cli/bench/bench.h"
#include "draft/drafter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 64 << 20 };

/* One of the places of a pass, with the conversation that runs in it. */
typedef struct Talk {
    const BenchQuestion *question; /* NULL: the place is free */
    BenchRecord *record;
    int i_turn;
    char **answers; /* [question->n_turns] answers to the earlier turns; owned */
    fr_request *request;
} Talk;

typedef struct Pass {
    BenchRig *rig;
    fr_engine *engine;
    const BenchMethod *method;
} Pass;

static void end_talk(Talk *t) {
    fr_request_close(t->request);
    for (int i = 0; t->answers && i < t->question->n_turns; i++) free(t->answers[i]);
    free(t->answers);
    *t = (Talk){0};
}

/* ---- prompts --------------------------------------------------------------------------------------- */

static int chat_prompt(const BenchRig *rig, const BenchQuestion *q, int i_turn, char *const *answers, int32_t **tokens,
                       int64_t *n_tokens, fr_error *err) {
    int n = 0;
    fr_chat_message *messages = calloc((size_t)(2 * i_turn + 2), sizeof *messages);
    if (!messages) return error_memory(err, "a conversation", (size_t)i_turn);
    if (rig->args->system) messages[n++] = (fr_chat_message){"system", rig->args->system};
    for (int i = 0; i <= i_turn; i++) {
        messages[n++] = (fr_chat_message){"user", q->turns[i]};
        if (i < i_turn) messages[n++] = (fr_chat_message){"assistant", answers[i]};
    }
    GenerateArgs args = *rig->args;
    if (q->thinking == 0) args.chat_variables = "{\"enable_thinking\": false, \"thinking\": false}";
    if (q->thinking == 1) args.chat_variables = "{\"enable_thinking\": true, \"thinking\": true}";
    int status = generate_chat(&args, rig->model, messages, n, tokens, n_tokens, err);
    free(messages);
    return status;
}

/* Joins raw turns: an answer follows its turn directly, and a blank line separates it from the next turn. */
static int raw_prompt(const BenchQuestion *q, int i_turn, char *const *answers, Buf *out, fr_error *err) {
    bool fits = true;
    for (int i = 0; i <= i_turn && fits; i++) {
        fits = buf_append(out, q->turns[i], strlen(q->turns[i]));
        if (i < i_turn) fits = fits && buf_append(out, answers[i], strlen(answers[i])) && buf_append(out, "\n\n", 2);
    }
    return fits ? FR_OK : error_memory(err, "a conversation", out->n);
}

int bench_prompt(const BenchRig *rig, const BenchQuestion *q, int i_turn, char *const *answers, int32_t **tokens,
                 int64_t *n_tokens, fr_error *err) {
    if (rig->chat) return chat_prompt(rig, q, i_turn, answers, tokens, n_tokens, err);
    Buf text = {.max_bytes = MAX_TEXT};
    int status = raw_prompt(q, i_turn, answers, &text, err);
    if (!status) status = fr_tokenize(rig->model, text.data, text.n, FR_TOKENIZE_PROMPT, tokens, n_tokens, err);
    buf_free(&text);
    return status;
}

/* ---- one turn -------------------------------------------------------------------------------------- */

static int cancel_if_stopped(void *user, const fr_token_event *event) {
    (void)event;
    return *(const volatile sig_atomic_t *)user != 0;
}

static int begin_turn(const Pass *p, Talk *t, fr_error *err) {
    int32_t *prompt;
    fr_request_options options = generate_request_options(p->rig->args, p->method->drafts, p->method->n_drafts);
    int status = bench_prompt(p->rig, t->question, t->i_turn, t->answers, &prompt, &options.n_prompt, err);
    if (status) return status;
    options.prompt = prompt;
    options.tree_budget = p->method->tree_budget;
    if (options.n_drafts == 0) options.verify = NULL; /* plain decoding samples by the seed, whatever the rule */
    options.on_token = cancel_if_stopped;
    options.user = (void *)(uintptr_t)p->rig->stop;
    status = fr_request_open(&t->request, p->engine, &options, err);
    fr_free(prompt);
    return status;
}

static void add_turn(BenchRig *rig, BenchRecord *record, const fr_request *request) {
    RequestStats s;
    int64_t n;
    stats_read(&s, request);
    const int32_t *tokens = fr_request_tokens(request, &n);
    record->n_turns++;
    stats_add(&record->stats, &s);
    record->fingerprint = hash64(tokens, (size_t)n * sizeof *tokens, record->fingerprint);
    record->fingerprint = hash64(&s.counts.logits_hash, sizeof s.counts.logits_hash, record->fingerprint);
    if (s.draft_error[0] && !rig->draft_error[0]) memcpy(rig->draft_error, s.draft_error, sizeof rig->draft_error);
}

/* ---- one pass -------------------------------------------------------------------------------------- */

/* Opens the current turn. If the context has no room for it, the conversation ends, which is not a failure. */
static int open_turn(const Pass *p, Talk *t, fr_error *err) {
    fr_error why;
    int status = begin_turn(p, t, &why);
    if (!status) return FR_OK;
    end_talk(t);
    if (status != FR_ERR_CONTEXT) *err = why;
    return status == FR_ERR_CONTEXT ? FR_OK : status;
}

static int begin_talk(const Pass *p, Talk *t, const BenchQuestion *question, BenchRecord *record, fr_error *err) {
    *record = (BenchRecord){0};
    *t = (Talk){.question = question, .record = record};
    t->answers = calloc((size_t)question->n_turns, sizeof *t->answers);
    if (!t->answers) return error_memory(err, "a conversation", (size_t)question->n_turns);
    return open_turn(p, t, err);
}

/* Records a finished turn, and begins the next one. */
static int end_turn(const Pass *p, Talk *t, fr_error *err) {
    fr_finish finish = fr_request_finish_reason(t->request);
    if (finish == FR_FINISH_CANCELLED) return error_set(err, FR_ERR_CANCELLED, "stopped");
    if (finish == FR_FINISH_ERROR) {
        *err = *fr_request_error(t->request);
        return err->code;
    }
    add_turn(p->rig, t->record, t->request);
    size_t n;
    const char *text = fr_request_text(t->request, &n);
    if (!(t->answers[t->i_turn] = strndup(text, n))) return error_memory(err, "an answer", n);
    fr_request_close(t->request);
    t->request = NULL;
    if (++t->i_turn < t->question->n_turns) return open_turn(p, t, err);
    end_talk(t);
    return FR_OK;
}

static int run_pass(const Pass *p, Talk *talks, int n_places, const BenchQuestion *questions, int n,
                    BenchRecord *records, fr_error *err) {
    int i_next = 0, status = FR_OK;
    for (;;) {
        int n_running = 0;
        for (int i = 0; i < n_places; i++) {
            while (!talks[i].question && i_next < n && !status) {
                status = begin_talk(p, &talks[i], &questions[i_next], &records[i_next], err);
                i_next++;
            }
            n_running += talks[i].question != NULL;
        }
        if (status || n_running == 0) return status;
        if (*p->rig->stop) return error_set(err, FR_ERR_CANCELLED, "stopped");
        status = fr_engine_step(p->engine, err);
        if (status < 0) return status;
        status = FR_OK;
        for (int i = 0; i < n_places && !status; i++)
            if (talks[i].question && fr_request_finish_reason(talks[i].request)) status = end_turn(p, &talks[i], err);
        if (status) return status;
    }
}

int bench_pass(BenchRig *rig, fr_engine *engine, const BenchMethod *m, const BenchQuestion *questions, int n,
               int n_parallel, BenchRecord *records, double *wall_s, fr_error *err) {
    const Pass pass = {.rig = rig, .engine = engine, .method = m};
    Talk *talks = calloc((size_t)n_parallel, sizeof *talks);
    if (!talks) return error_memory(err, "conversations", (size_t)n_parallel * sizeof *talks);
    double start_s = clock_s();
    int status = run_pass(&pass, talks, n_parallel, questions, n, records, err);
    *wall_s = clock_s() - start_s;
    for (int i = 0; i < n_parallel; i++) end_talk(&talks[i]);
    free(talks);
    return status;
}

int bench_engine_open(fr_engine **out, BenchRig *rig, const BenchMethod *m, int n_parallel, fr_error *err) {
    fr_engine_options options = rig->args->engine;
    options.struct_size = sizeof options;
    options.max_requests = n_parallel;
    return generate_open_engine(out, rig->model, &options, m->drafts, m->n_drafts, m->tree_budget, err);
}

int bench_warm_up(BenchRig *rig, fr_engine *engine, const BenchMethod *m, int n_parallel, fr_error *err) {
    int n = rig->warm_up.n;
    double wall_s;
    if (n == 0) return FR_OK;
    BenchRecord *records = calloc((size_t)n, sizeof *records);
    if (!records) return error_memory(err, "records", (size_t)n * sizeof *records);
    int status = bench_pass(rig, engine, m, rig->warm_up.items, n, n_parallel, records, &wall_s, err);
    free(records);
    return status;
}

int bench_round(BenchRig *rig, const BenchMethod *methods, int n_methods, const BenchQuestion *questions, int n,
                int i_run, BenchRecord *records, int *n_done, void (*on_done)(void *user), void *user, fr_error *err) {
    fr_engine *engines[BENCH_MAX_METHODS] = {0};
    int status = FR_OK;
    *n_done = 0;
    for (int m = 0; m < n_methods && !status; m++) {
        status = bench_engine_open(&engines[m], rig, &methods[m], 1, err);
        if (!status) status = bench_warm_up(rig, engines[m], &methods[m], 1, err);
    }
    for (int q = 0; q < n && !status; q++) {
        for (int k = 0; k < n_methods && !status; k++) {
            int m = (i_run + q + k) % n_methods;
            double wall_s;
            status = bench_pass(rig, engines[m], &methods[m], &questions[q], 1, 1,
                                &records[(size_t)q * (size_t)n_methods + (size_t)m], &wall_s, err);
            on_done(user);
        }
        if (!status) *n_done = q + 1;
    }
    for (int m = 0; m < n_methods; m++) fr_engine_close(engines[m]);
    return status;
}

/* ---- methods --------------------------------------------------------------------------------------- */

int bench_method_init(BenchMethod *m, const char *spec, int tree_budget, fr_error *err) {
    *m = (BenchMethod){.tree_budget = tree_budget, .name = strdup(spec), .storage = strdup(spec)};
    if (!m->name || !m->storage) return error_memory(err, "a method", strlen(spec));
    m->drafts[m->n_drafts++] = m->storage;
    return FR_OK;
}

int bench_method_init_plain(BenchMethod *m, fr_error *err) {
    *m = (BenchMethod){.name = strdup("plain")};
    return m->name ? FR_OK : error_memory(err, "a method", 1);
}

/* Replaces the name. False: memory ran out. */
__attribute__((format(printf, 2, 3))) static bool rename_method(BenchMethod *m, const char *format, ...) {
    va_list args;
    char *name;
    va_start(args, format);
    int n = vasprintf(&name, format, args);
    va_end(args);
    if (n < 0) return false;
    free(m->name);
    m->name = name;
    return true;
}

int bench_method_init_chain(BenchMethod *m, const char *spec, int length, fr_error *err) {
    *m = (BenchMethod){0};
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":"), spec);
    const DrafterClass *class = drafter_find(name);
    bool has_length = class && drafter_has_option(class, "length");
    if (strstr(spec, ":length=") || strstr(spec, ",length="))
        return error_set(err, FR_ERR_ARGUMENT, "--chain '%.100s' must not set the length, because bench tunes it",
                         spec);
    char *text;
    int n = has_length ? asprintf(&text, "%s%clength=%d", spec, strchr(spec, ':') ? ',' : ':', length)
                       : asprintf(&text, "%s", spec);
    if (n < 0) return error_memory(err, "a method", strlen(spec));
    int status = bench_method_init(m, text, length, err);
    free(text);
    if (status) return status;
    bool renamed = has_length ? rename_method(m, "tuned chain %s", m->storage)
                              : rename_method(m, "tuned chain %s, budget %d", spec, length);
    return renamed ? FR_OK : error_memory(err, "a method", strlen(spec));
}

void bench_method_free(BenchMethod *m) {
    free(m->name);
    free(m->storage);
    *m = (BenchMethod){0};
}
