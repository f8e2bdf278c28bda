/* bench_act.c - the cost of rounding: the perplexity of a text, and how far the distributions of the next token move.
 *
 *   bench_act MODEL.gguf FLOAT.gguf TEXT [TOKENS]
 *
 * FLOAT.gguf holds the weights of MODEL.gguf as F32 (grow_model MODEL.gguf --type F32 -o FLOAT.gguf), so that its
 * activations are never rounded and its keys and values are kept as F32: that is the reference. The first TOKENS (8192)
 * of TEXT run through it and through MODEL.gguf with activations of 16 and of 8 bits and caches of F16 and Q8, in
 * windows of the model's context (512 at most). It prints the perplexity; the mean divergence KL(reference || this) of
 * the distributions in millinats; how often the most probable token is that of the reference; and the rms of the
 * logits' difference over the rms of the reference's logits. */
#include "base/threads.h"
#include "opened_model.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, CHUNK = 64, TEXT_BYTES = 1 << 20 };

static fr_error err;
static void die(const char *what) {
    fprintf(stderr, "bench_act: %s\n", what);
    exit(1);
}

typedef struct Form {
    const char *name;
    const Gguf *g;
    ActPrecision act;
    KvType kv;
    OpenedModel m;
    Executor *e;
    int32_t sequence;
    double log_p, kl, off, norm;
    int64_t n_same;
} Form;

static void open_form(Form *f) {
    if (opened_model_open(&f->m, f->g, f->act, threads_n_cores(), &err)) die(err.message);
    const ExecutorOptions eo = {.kv_type = f->kv,
                                .page_size = 16,
                                .n_ctx = WINDOW,
                                .max_sequences = 1,
                                .max_rows = CHUNK};
    if (executor_open(&f->e, f->m.device, f->m.weights, &eo, &err) || executor_sequence_open(f->e, &f->sequence, &err))
        die(err.message);
}

static void close_form(Form *f) {
    executor_close(f->e);
    opened_model_close(&f->m);
}

static void run_chunk(Form *f, const int32_t *tokens, int32_t n) {
    Row rows[CHUNK];
    int32_t kept[CHUNK];
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (Row){.token = tokens[i], .sequence = f->sequence, .parent = i - 1, .want_logits = true};
        kept[i] = i;
    }
    if (executor_reserve(f->e, f->sequence, n, &err) || executor_forward(f->e, rows, n, &err)) die(err.message);
    executor_commit(f->e, f->sequence, kept, n);
}

static double log_sum(const float *x, int32_t n) {
    double max = x[0], sum = 0;
    for (int32_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++) sum += exp(x[i] - max);
    return max + log(sum);
}

static int32_t best_of(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

static void compare_row(Form *f, const float *want, int32_t row, int32_t next, int32_t n_vocab) {
    const float *got = executor_logits(f->e, row);
    double z = log_sum(want, n_vocab), y = log_sum(got, n_vocab);
    f->log_p += got[next] - y;
    for (int32_t i = 0; i < n_vocab; i++) {
        f->kl += exp(want[i] - z) * ((want[i] - z) - (got[i] - y));
        f->off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        f->norm += (double)want[i] * want[i];
    }
    f->n_same += best_of(want, n_vocab) == best_of(got, n_vocab);
}

int main(int argc, char **argv) {
    if (argc < 4) die("usage: bench_act MODEL.gguf FLOAT.gguf TEXT [TOKENS]");
    Gguf *g = NULL, *exact = NULL;
    Tokenizer *t;
    int32_t *tokens;
    int64_t n, n_judged = 0, most = argc > 4 ? atoll(argv[4]) : 8192;
    char *text = malloc(TEXT_BYTES);
    FILE *file = fopen(argv[3], "rb");
    if (!text || !file) die("the text cannot be read");
    size_t n_text = fread(text, 1, TEXT_BYTES, file);
    fclose(file);
    if (gguf_open(&g, argv[1], &err) || gguf_open(&exact, argv[2], &err) || tokenizer_open(&t, g, &err))
        die(err.message);
    if (tokenizer_encode(t, text, n_text, TOKENIZE_BOS, &tokens, &n, &err)) die(err.message);
    if (n > most) n = most;
    Form forms[] = {{.name = "F32, exact", .g = exact, .kv = KV_F32},
                    {.name = "q16, kv f16", .g = g},
                    {.name = "q8, kv f16", .g = g, .act = ACT_PRECISION_Q8},
                    {.name = "q16, kv q8", .g = g, .kv = KV_Q8},
                    {.name = "q8, kv q8", .g = g, .act = ACT_PRECISION_Q8, .kv = KV_Q8}};
    enum { N_FORMS = sizeof forms / sizeof *forms };
    for (int k = 0; k < N_FORMS; k++) open_form(&forms[k]);
    int32_t n_vocab = executor_n_vocab(forms[0].e),
            window = forms[0].m.model->hparams.n_ctx_train < WINDOW ? forms[0].m.model->hparams.n_ctx_train : WINDOW;
    for (int64_t from = 0; from + 1 < n; from += window) {
        for (int k = 0; k < N_FORMS; k++) executor_sequence_truncate(forms[k].e, forms[k].sequence, 0);
        for (int64_t i = from; i < from + window && i + 1 < n; i += CHUNK) {
            int64_t left = n - 1 - i < from + window - i ? n - 1 - i : from + window - i;
            int32_t n_rows = (int32_t)(left < CHUNK ? left : CHUNK);
            for (int k = 0; k < N_FORMS; k++) run_chunk(&forms[k], tokens + i, n_rows);
            for (int32_t r = 0; r < n_rows; r++)
                for (int k = 0; k < N_FORMS; k++)
                    compare_row(&forms[k], executor_logits(forms[0].e, r), r, tokens[i + r + 1], n_vocab);
            n_judged += n_rows;
        }
    }
    printf("%lld tokens\n%-14s %11s %14s %10s %12s\n", (long long)n_judged, "activations", "perplexity",
           "KL, millinats", "same best", "logits off");
    for (int k = 0; k < N_FORMS; k++) {
        Form *f = &forms[k];
        printf("%-14s %11.4f %14.5f %9.2f%% %12.2e\n", f->name, exp(-f->log_p / (double)n_judged),
               1e3 * f->kl / (double)n_judged, 100 * (double)f->n_same / (double)n_judged, sqrt(f->off / f->norm));
        close_form(f);
    }
    free(tokens);
    free(text);
    tokenizer_close(t);
    gguf_close(exact);
    gguf_close(g);
    return 0;
}
