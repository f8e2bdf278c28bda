/* text_windows.c - cuts a text into windows of tokens, and computes perplexity and KL divergence from logits.
 *
 * Windows do not overlap, and each is run from an empty context: this is how llama.cpp measures perplexity.
 *
 *     nll = -ln p(token)
 *     perplexity = exp(mean nll)          its standard error = perplexity * standard error of the mean nll
 *     KL(base || model) = sum over tokens of p_base (ln p_base - ln p_model)
 *
 * All numbers are double, because KL is a small difference of large numbers. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/model/text_windows.h"
#include "gguf/tensor_type.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT_CTX = 512, MAX_TEXT = 1 << 30 };

int32_t text_windows_ctx(int32_t wanted, int32_t n_ctx_train) {
    int32_t usual = n_ctx_train < DEFAULT_CTX ? n_ctx_train : DEFAULT_CTX;
    return wanted ? wanted : usual < 8 ? 8 : usual;
}

/* Tokenizes the whole text. t->bos: the token that begins each window, or -1. */
static int tokenize(TextWindows *t, const Gguf *g, const char *path, fr_error *err) {
    Tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t n_text = 0;
    int status = tokenizer_open(&tokenizer, g, err);
    if (!status) status = cli_read_file(path, MAX_TEXT, &text, &n_text, err);
    if (!status) {
        bool adds_bos = tokenizer_adds_bos(tokenizer);
        t->bos = adds_bos ? tokenizer_bos(tokenizer) : -1;
        status = tokenizer_encode(tokenizer, text, n_text, adds_bos ? TOKENIZE_BOS : 0, &t->tokens, &t->n, err);
    }
    free(text);
    tokenizer_close(tokenizer);
    return status;
}

int text_windows_open(TextWindows *t, const Gguf *g, const char *path, int32_t n_ctx, int64_t max_windows,
                      fr_error *err) {
    *t = (TextWindows){.n_ctx = n_ctx, .bos = -1};
    int status = tokenize(t, g, path, err);
    if (!status && t->n < t->n_ctx)
        status = error_set(err, FR_ERR_ARGUMENT,
                           "%s: has %lld token%s, but one window has %d: give a longer text, or a smaller --ctx", path,
                           (long long)t->n, cli_plural(t->n), t->n_ctx);
    if (status) {
        text_windows_close(t);
        return status;
    }
    t->n_windows = t->n / t->n_ctx;
    if (max_windows > 0 && max_windows < t->n_windows) t->n_windows = max_windows;
    return FR_OK;
}

void text_windows_close(TextWindows *t) {
    free(t->tokens);
    *t = (TextWindows){.tokens = NULL};
}

int32_t text_windows_token(const TextWindows *t, int64_t window, int32_t i) {
    return i == 0 && t->bos >= 0 ? t->bos : t->tokens[window * t->n_ctx + i];
}

/* ---- the score of predictions -------------------------------------------------------------------------- */

int prediction_score_begin(PredictionScore *s, int32_t n_vocab, int64_t n_max, fr_error *err) {
    *s = (PredictionScore){.n_vocab = n_vocab, .n_max = n_max};
    if (n_max == 0) return FR_OK;
    s->kls = mem_calloc((size_t)n_max, sizeof *s->kls);
    return s->kls ? FR_OK : (int)error_memory(err, "the divergences", (size_t)n_max * sizeof *s->kls);
}

void prediction_score_end(PredictionScore *s) { mem_free(s->kls); }

static void add(Mean *m, double x) {
    m->sum += x;
    m->squares += x * x;
}

static double mean_of(Mean m, int64_t n) { return n > 0 ? m.sum / (double)n : NAN; }

/* Returns the standard error of the mean of n values. */
static double mean_error(Mean m, int64_t n) {
    if (n < 2) return NAN;
    double mean = m.sum / (double)n, variance = m.squares / (double)n - mean * mean;
    return variance > 0 ? sqrt(variance / (double)(n - 1)) : 0;
}

/* Returns the q-quantile of n sorted values. */
static double quantile_of(const double *sorted, int64_t n, double q) {
    double at = q * (double)(n - 1);
    int64_t low = (int64_t)at, high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

/* Returns ln sum exp of the logits; *best: the index of the largest. */
static double log_sum(const float *logits, int32_t n, int32_t *best) {
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[*best]) *best = i;
    for (int32_t i = 0; i < n; i++) sum += math_exp((double)logits[i] - (double)logits[*best]);
    return (double)logits[*best] + math_log(sum);
}

static double divergence(const float *base, double base_log_sum, const float *logits, double logits_log_sum,
                         int32_t n) {
    double kl = 0;
    for (int32_t i = 0; i < n; i++) {
        double lp = (double)base[i] - base_log_sum;
        kl += math_exp(lp) * (lp - ((double)logits[i] - logits_log_sum));
    }
    return kl > 0 ? kl : 0; /* a negative value is a rounding error */
}

int prediction_score_add(PredictionScore *s, const float *logits, const float *base, int32_t token, fr_error *err) {
    int32_t best, base_best;
    if (!finite_floats(logits, s->n_vocab) || (base && !finite_floats(base, s->n_vocab)))
        return error_set(err, FR_ERR_FORMAT, "the logits hold NaN or infinity: one of the model files is damaged");
    double sum = log_sum(logits, s->n_vocab, &best), nll = sum - (double)logits[token];
    add(&s->nll, nll);
    if (base) {
        double base_sum = log_sum(base, s->n_vocab, &base_best), base_nll = base_sum - (double)base[token];
        double kl = divergence(base, base_sum, logits, sum, s->n_vocab);
        add(&s->base_nll, base_nll);
        add(&s->nll_difference, nll - base_nll);
        add(&s->kl, kl);
        s->n_same_top += best == base_best;
        if (s->n < s->n_max) s->kls[s->n] = kl;
    }
    s->n++;
    return FR_OK;
}

double prediction_score_perplexity(const PredictionScore *s) { return math_exp(mean_of(s->nll, s->n)); }

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_with_error(const char *what, double value, double error) {
    printf("%-26s %.4f +- %.4f\n", what, value, error);
}

void prediction_score_print(PredictionScore *s, int64_t n_windows, int32_t n_ctx) {
    double perplexity = prediction_score_perplexity(s), base = math_exp(mean_of(s->base_nll, s->n));
    double ratio = math_exp(mean_of(s->nll_difference, s->n)), same = (double)s->n_same_top / (double)s->n;
    printf("%lld predictions in %lld windows of %d tokens\n", (long long)s->n, (long long)n_windows, n_ctx);
    print_with_error("perplexity", perplexity, perplexity * mean_error(s->nll, s->n));
    if (!s->kls) return;
    qsort(s->kls, (size_t)s->n, sizeof *s->kls, by_size);
    print_with_error("perplexity of the base", base, base * mean_error(s->base_nll, s->n));
    print_with_error("ratio of the two", ratio, ratio * mean_error(s->nll_difference, s->n));
    printf("%-26s %.6f +- %.6f\n", "mean KL divergence", mean_of(s->kl, s->n), mean_error(s->kl, s->n));
    printf("%-26s %.6f\n", "99th percentile of KL", quantile_of(s->kls, s->n, 0.99));
    printf("%-26s %.6f\n", "largest KL", s->kls[s->n - 1]);
    printf("%-26s %.2f +- %.2f %%\n", "same best token", 100 * same,
           100 * sqrt(same * (1 - same) / (double)(s->n > 1 ? s->n - 1 : 1)));
}
