/* cmd_perplexity.c - `forerun perplexity -m MODEL TEXT`: measures how well a model predicts a text, and how far its
 * distributions are from another model's.
 *
 * The text is cut into windows of n_ctx tokens. Each window is run from an empty context, and the second half of its
 * tokens is predicted, so that each prediction sees at least half a window. llama.cpp measures in the same way, so the
 * figures can be compared. With --base both models run side by side, window by window, so that no logits need to be
 * stored. */
#include "cli/model/text_windows.h"
#include "compute/executor.h"
#include "base/progress.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 64 };

typedef struct PerplexityArgs {
    CliModel model;
    const char *text, *base;
    int32_t n_ctx, n_windows;
} PerplexityArgs;

static PerplexityArgs args;

static const Option option_table[] = {
    {.key = "TEXT",
     OPT_FILE(PerplexityArgs, text),
     .is_argument = true,
     .required = "text",
     .help = "text to predict; -: standard input"},
    {.key = "base",
     OPT_FILE(PerplexityArgs, base),
     .metavar = "MODEL",
     .section = "Measurement",
     .help = "also run MODEL, for example the F16 file that this one was quantised from, and compare the "
             "distributions: KL divergence, and how often the best tokens agree"},
    {.key = "ctx",
     .letter = 'c',
     OPT_INT(PerplexityArgs, n_ctx, 8, 1 << 20),
     .default_help = "512, or less if the model was trained for less",
     .help = "tokens in a window"},
    {.key = "windows",
     OPT_INT(PerplexityArgs, n_windows, 1, 1 << 30),
     .default_help = "all",
     .help = "stop after N windows"},
    {.key = NULL},
};

static void set_defaults(void) {
    args = (PerplexityArgs){.n_ctx = 0};
    cli_model_defaults(&args.model);
}

/* One of the two models, with its sequence of the current window. */
typedef struct Side {
    Executor *executor;
    int32_t sequence, n_vocab;
} Side;

static int open_side(Side *s, const CliModel *m, int32_t n_ctx, fr_error *err) {
    const ExecutorOptions options = {.kv_type = m->kv,
                                     .page_size = 16,
                                     .n_ctx = n_ctx,
                                     .max_sequences = 1,
                                     .max_rows = CHUNK};
    s->n_vocab = m->model->hparams.n_vocab;
    return executor_open(&s->executor, m->device, m->weights, &options, err);
}

/* Runs tokens [first, first + n) of a window, with logits for those from `from` on. */
static int run_chunk(Side *s, const TextWindows *t, int64_t window, int32_t first, int32_t n, int32_t from,
                     fr_error *err) {
    Row rows[CHUNK];
    int status = executor_reserve(s->executor, s->sequence, n, err);
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = text_windows_token(t, window, first + i),
                        .sequence = s->sequence,
                        .parent = i - 1,
                        .want_logits = first + i >= from};
    return status ? status : executor_forward(s->executor, rows, n, err);
}

static void keep_chunk(Side *s, int32_t n) {
    int32_t kept[CHUNK];
    for (int32_t i = 0; i < n; i++) kept[i] = i;
    executor_commit(s->executor, s->sequence, kept, n);
}

/* Scores the predictions of one window; base NULL: there is no base. */
static int run_window(Side *model, Side *base, const TextWindows *t, int64_t window, PredictionScore *score,
                      fr_error *err) {
    int32_t from = t->n_ctx / 2, n_run = t->n_ctx - 1; /* nothing is predicted from the last token */
    int status = FR_OK;
    for (int32_t first = 0; first < n_run && !status; first += CHUNK) {
        int32_t n = n_run - first < CHUNK ? n_run - first : CHUNK;
        status = run_chunk(model, t, window, first, n, from, err);
        if (!status && base) status = run_chunk(base, t, window, first, n, from, err);
        for (int32_t i = first < from ? from - first : 0; i < n && !status; i++)
            status = prediction_score_add(score, executor_logits(model->executor, i),
                                          base ? executor_logits(base->executor, i) : NULL,
                                          t->tokens[window * t->n_ctx + first + i + 1], err);
        if (!status) keep_chunk(model, n);
        if (!status && base) keep_chunk(base, n);
    }
    return status;
}

static int run_windows(Side *model, Side *base, const TextWindows *t, PredictionScore *score, fr_error *err) {
    Progress bar;
    int status = FR_OK;
    progress_begin(&bar, stderr, "predicting", t->n_windows);
    for (int64_t i = 0; i < t->n_windows && !status; i++) {
        char text[64];
        status = executor_sequence_open(model->executor, &model->sequence, err);
        if (!status && base) status = executor_sequence_open(base->executor, &base->sequence, err);
        if (!status) status = run_window(model, base, t, i, score, err);
        if (status) break;
        executor_sequence_close(model->executor, model->sequence);
        if (base) executor_sequence_close(base->executor, base->sequence);
        snprintf(text, sizeof text, "perplexity %.4f so far", prediction_score_perplexity(score));
        progress_note(&bar, text);
        progress_update(&bar, i + 1);
    }
    progress_end(&bar);
    return status;
}

static int measure(const PerplexityArgs *a, const CliModel *base, const TextWindows *t, fr_error *err) {
    Side sides[2] = {{.executor = NULL}, {.executor = NULL}};
    PredictionScore score;
    int status = prediction_score_begin(&score, a->model.model->hparams.n_vocab,
                                        base ? t->n_windows * (t->n_ctx - 1 - t->n_ctx / 2) : 0, err);
    if (!status) status = open_side(&sides[0], &a->model, t->n_ctx, err);
    if (!status && base) status = open_side(&sides[1], base, t->n_ctx, err);
    if (!status) status = run_windows(&sides[0], base ? &sides[1] : NULL, t, &score, err);
    if (!status) prediction_score_print(&score, t->n_windows, t->n_ctx);
    executor_close(sides[0].executor);
    executor_close(sides[1].executor);
    prediction_score_end(&score);
    return status;
}

/* Checks that both models tokenize the text alike. */
static int check_base(const PerplexityArgs *a, const CliModel *base, const TextWindows *t, fr_error *err) {
    TextWindows of_base = {.tokens = NULL};
    if (base->model->hparams.n_vocab != a->model.model->hparams.n_vocab)
        return error_set(err, FR_ERR_MISMATCH, "%s has %d tokens and %s has %d: they cannot be compared", a->model.path,
                         a->model.model->hparams.n_vocab, a->base, base->model->hparams.n_vocab);
    if (strcmp(a->text, "-") == 0) return FR_OK; /* standard input cannot be read twice */
    int status = text_windows_open(&of_base, base->gguf, a->text, t->n_ctx, a->n_windows, err);
    if (!status && (of_base.n != t->n || memcmp(of_base.tokens, t->tokens, (size_t)t->n * sizeof *t->tokens) != 0))
        status = error_set(err, FR_ERR_MISMATCH, "%s and %s have different vocabularies: they cannot be compared",
                           a->model.path, a->base);
    text_windows_close(&of_base);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    PerplexityArgs *a = &args;
    CliModel base = a->model;
    TextWindows text = {.tokens = NULL};
    fr_error err = {0};
    base.path = a->base;
    int status = cli_model_open(&a->model, &err);
    if (!status)
        status = text_windows_open(&text, a->model.gguf, a->text,
                                   text_windows_ctx(a->n_ctx, a->model.model->hparams.n_ctx_train), a->n_windows, &err);
    if (!status && a->base) status = cli_model_open(&base, &err);
    if (!status && a->base) status = check_base(a, &base, &text, &err);
    if (!status) status = measure(a, a->base ? &base : NULL, &text, &err);
    text_windows_close(&text);
    if (a->base) cli_model_close(&base);
    cli_model_close(&a->model);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a model predicts a text, and how close it is to another",
    .about =
        "Measure the perplexity of a model on a text, with its standard error. The text is cut into windows, and the "
        "second half of each is predicted. With --base the model is compared with another one token by token: the "
        "mean KL divergence and its 99th percentile show the effect of quantisation far more exactly than perplexity "
        "does.",
    .sets = (const OptionSet[]){{option_table, &args},
                                {cli_model_options, &args.model},
                                {cli_model_threads, &args.model},
                                {NULL, NULL}},
    .examples = "  forerun perplexity -m model-q4_k_m.gguf text.txt\n"
                "  forerun perplexity -m model-q4_k_m.gguf text.txt --base model-f16.gguf --windows 40\n",
    .defaults = set_defaults,
    .run = run,
};
