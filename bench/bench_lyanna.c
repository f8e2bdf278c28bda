/* bench_lyanna.c - where a proposal of lyanna spends its time, compared with eagle.
 *
 *   bench_lyanna TARGET.gguf [RANK [HOT [DEPTH [TOP [DRAFT...]]]]]
 *
 * It writes drafters with random weights for the target into /tmp (token info of rank RANK, default 64, over HOT
 * tokens; default 0: all), removes them at the end, and prints
 *   the time to make the table of token info, in each form, and its size;
 *   the time of the LM head for DEPTH (5) hidden states in one pass and one after the other (Lyanna, Fig. 13 a);
 *   the time of a proposal by its parts, beside eagle's at the same depth and TOP (4) (Fig. 13 b), for 1 to 16
 *     sequences that draft together; and of each DRAFT, which is what --draft takes, such as lyanna:file=FILE.
 * Times are medians over at most ROUNDS proposals after steps of one token each. */
#include "opened_model.h"

#include "base/system.h"
#include "base/rng.h"
#include "base/threads.h"
#include "gguf/tensor_type.h"
#include "draft/learned/lyanna.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 200, N_CTX = 1024, N_PROMPT = 128, MAX_SEQUENCES = 16, BUDGET = 16 };
#define MOST_S 1.0 /* a median is taken of what ran in this time, if that is fewer than ROUNDS */

static fr_error err;
static void die(void) {
    fprintf(stderr, "bench_lyanna: %s\n", err.message);
    exit(1);
}

/* ---- drafters of random weights ---------------------------------------------------------------------- */

static uint64_t n_tensors;

static void fill(void *ctx, int64_t first, int64_t n_rows, void *dst) {
    const int64_t *n_in = ctx;
    for (int64_t i = 0; i < n_rows * *n_in; i++) {
        float x = (float)(0.1 * (rng_uniform(++n_tensors, RNG_TEST, (uint64_t)(first + i), 0) - 0.5));
        uint16_t half = float_to_half(x);
        memcpy((char *)dst + 2 * i, &half, sizeof half);
    }
}

static void add(GgufWriter *w, const char *name, int64_t n_in, int64_t n_out) {
    static int64_t widths[64];
    static int n;
    int64_t dims[] = {n_in, n_out};
    widths[n] = n_in;
    gguf_add_tensor_filled(w, name, TYPE_F16, n_out ? 2 : 1, dims, fill, &widths[n++]);
}

static void write_drafter(const Model *m, const char *method, int32_t rank, int32_t hot, const char *path) {
    const Hparams *h = &m->hparams;
    int64_t H = h->n_embd, q = hparams_q_dim(h), kv = hparams_kv_dim(h), n_hot = hot ? hot : h->n_vocab;
    char name[96];
    GgufWriter *w = drafter_file_writer(method, m, NULL);
    snprintf(name, sizeof name, DRAFTER_KEY("%s.feed_forward_length"), method);
    gguf_set_u32(w, name, (uint32_t)h->n_ff);
    const struct {
        const char *name;
        int64_t n_in, n_out;
    } tensors[] = {{"fc.weight", 2 * H, H},       {"fc.bias", H, 0},
                   {"attn_q.weight", H, q},       {"attn_k.weight", H, kv},
                   {"attn_v.weight", H, kv},      {"attn_output.weight", q, H},
                   {"ffn_norm.weight", H, 0},     {"ffn_gate.weight", H, h->n_ff},
                   {"ffn_up.weight", H, h->n_ff}, {"ffn_down.weight", h->n_ff, H}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        snprintf(name, sizeof name, "%s.%s", method, tensors[i].name);
        add(w, name, tensors[i].n_in, tensors[i].n_out);
    }
    if (strcmp(method, "lyanna") == 0) {
        int32_t *tokens = calloc((size_t)n_hot, sizeof *tokens);
        for (int32_t i = 0; i < n_hot; i++) tokens[i] = i;
        if (hot) gguf_set_i32s(w, DRAFTER_KEY("lyanna.hot_tokens"), tokens, n_hot);
        free(tokens);
        if (rank) gguf_set_u32(w, DRAFTER_KEY("lyanna.token_info.rank"), (uint32_t)rank);
        gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_FIRST_TOKEN), "fused", 5);
        add(w, LYANNA LAYER_ATTN_NORM, H, 0);
        if (rank) {
            add(w, "lyanna.token_info.down.weight", H, rank);
            add(w, "lyanna.token_info.up.weight", rank, n_hot);
            add(w, "lyanna.token_info.gain", n_hot, 0);
        }
    }
    if (gguf_writer_finish(w, path, &err)) die();
    gguf_writer_free(w);
}

/* ---- times --------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static double median_ms(double *seconds, int n) {
    qsort(seconds, (size_t)n, sizeof *seconds, compare);
    return 1e3 * seconds[n / 2];
}

static DrafterEnv env_of(const OpenedModel *m) {
    return (DrafterEnv){.n_vocab = m->model->hparams.n_vocab,
                        .max_sequences = MAX_SEQUENCES,
                        .target = m->model->gguf,
                        .weights = m->weights,
                        .device = m->device,
                        .n_ctx = N_CTX};
}

static void tables(const OpenedModel *m, const char *path, int32_t rank) {
    static const char *const names[] = {"f16", "q8", "factors"};
    printf("token info of rank %d:\n", rank);
    for (int form = TOKEN_INFO_F16; form <= TOKEN_INFO_FACTORS; form++) {
        LearnedDrafter l = {0};
        TokenInfo t;
        const DrafterEnv env = env_of(m);
        if (learned_open(&l, path, "lyanna", &env, &err)) die();
        double start_s = clock_s();
        if (token_info_open(&t, &l, "lyanna", (TokenInfoForm)form, &err))
            printf("  %-8s %s\n", names[form], err.message);
        else printf("  %-8s %.3f s to open, %d rows\n", names[form], clock_s() - start_s, t.n);
        token_info_close(&t);
        learned_release(&l);
    }
}

/* Rows of the LM head: n_products products of n_rows each. */
static double head_ms(const OpenedModel *m, int32_t n_products, int32_t n_rows, Buffer *x, Buffer *y) {
    double seconds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double start_s = clock_s();
        for (int32_t k = 0; k < n_products; k++)
            m->weights->backend->head(m->device, m->weights, (Slice){x, 0}, n_rows, (Slice){y, 0});
        seconds[i] = clock_s() - start_s;
    }
    return median_ms(seconds, ROUNDS);
}

/* The text that drafters are shown: any tokens, with one hidden state and one row of logits for all of them. */
typedef struct Text {
    int32_t tokens[N_PROMPT + ROUNDS + 1];
    const float *hidden, *logits;
} Text;

static void begin(Drafter *d, int32_t sequence, const Text *t) {
    if (d->class->begin(d, sequence, t->tokens, N_PROMPT, &err)) die();
    for (int i = 0; i < N_PROMPT - 1; i++)
        if (d->class->observe_prompt(d, sequence, i, &t->hidden, 1, &err)) die();
}

/* Commits the token after the first n. */
static void step(Drafter *d, int32_t sequence, const Text *t, int32_t n) {
    static Tree tree;
    const VerifyResult verdict = {.next_token = t->tokens[n]};
    const VerifiedTree verified = {.tree = &tree, .logits = &t->logits, .hidden = &t->hidden, .verdict = &verdict};
    tree_reset(&tree, t->tokens[n - 1]);
    if (d->class->observe_tree(d, sequence, &verified, &err) || d->class->observe(d, sequence, &t->tokens[n], 1, &err))
        die();
}

/* Returns the milliseconds of a proposal of n sequences together, including the work of feeding them, in steps of one
 * token each. */
static double proposal_ms(Drafter *d, const Text *t, int32_t n) {
    static Tree forest[MAX_SEQUENCES];
    double seconds[ROUNDS], sum = 0;
    int32_t sequences[MAX_SEQUENCES], budgets[MAX_SEQUENCES];
    Tree *trees[MAX_SEQUENCES];
    int n_rounds = 0;
    for (int32_t i = 0; i < n; i++) {
        sequences[i] = i, budgets[i] = BUDGET, trees[i] = &forest[i];
        begin(d, i, t);
    }
    for (; n_rounds < ROUNDS && sum < MOST_S; n_rounds++) {
        double start_s = clock_s();
        for (int32_t i = 0; i < n; i++) tree_reset(trees[i], t->tokens[N_PROMPT + n_rounds - 1]);
        if (d->class->propose(d, sequences, budgets, trees, n, &err)) die();
        for (int32_t i = 0; i < n; i++) step(d, i, t, N_PROMPT + n_rounds);
        sum += seconds[n_rounds] = clock_s() - start_s;
    }
    for (int32_t i = 0; i < n; i++) d->class->end(d, i);
    return median_ms(seconds, n_rounds);
}

static void proposals(const OpenedModel *m, const char *name, const char *spec) {
    const Hparams *h = &m->model->hparams;
    const DrafterEnv env = env_of(m);
    Drafter *d;
    Text t;
    float *hidden = calloc((size_t)h->n_embd, sizeof *hidden), *logits = calloc((size_t)h->n_vocab, sizeof *logits);
    for (int i = 0; i < h->n_embd; i++) hidden[i] = (float)(i % 5) - 2;
    for (int i = 0; i < N_PROMPT + ROUNDS + 1; i++) t.tokens[i] = i * 7919 % h->n_vocab;
    t.hidden = hidden, t.logits = logits;
    if (drafter_open(&d, spec, &env, 0, &err)) die();
    printf("  %-28s", name);
    for (int32_t n = 1; n <= MAX_SEQUENCES; n *= 2) printf(" %9.3f", proposal_ms(d, &t, n));
    printf("\n");
    drafter_close(d);
    free(hidden);
    free(logits);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_lyanna TARGET.gguf [RANK [HOT [DEPTH [TOP [DRAFT...]]]]]\n");
        return 2;
    }
    int32_t given[] = {64, 0, 5, 4}, *rank = given, *hot = given + 1, *depth = given + 2, *top = given + 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 2; i < argc && i < 6; i++) given[i - 2] = atoi(argv[i]);
    Gguf *g;
    OpenedModel m;
    char paths[2][64], spec[160], name[64];
    if (gguf_open(&g, argv[1], &err) || opened_model_open(&m, g, ACT_PRECISION_Q16, threads_n_cores(), &err)) die();
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/bench-lyanna-%d-%d.gguf", (int)getpid(), i);
        write_drafter(m.model, i ? "eagle" : "lyanna", *rank, *hot, paths[i]);
    }
    if (*rank) tables(&m, paths[0], *rank);

    int32_t most = *depth > *top ? *depth : *top;
    const Backend *backend = m.weights->backend;
    Buffer *x = NULL, *y = NULL;
    if (backend->buffer_open(&x, m.device, (int64_t)most * m.model->hparams.n_embd, &err) ||
        backend->buffer_open(&y, m.device, (int64_t)most * m.model->hparams.n_vocab, &err) ||
        backend->head_reserve(m.device, m.weights, most, &err))
        die();
    double one_pass = head_ms(&m, 1, *depth, x, y), iterative = head_ms(&m, *depth, 1, x, y);
    double eagle_head = head_ms(&m, 1, 1, x, y) + (*depth - 1) * head_ms(&m, 1, *top, x, y);
    printf("LM head of %d hidden states, ms: one pass %.3f, one after the other %.3f\n", *depth, one_pass, iterative);
    printf("of it for eagle's proposal %.3f, for lyanna's %.3f\n", eagle_head, one_pass);
    printf("a proposal of depth %d and top %d, ms, for\n  %-28s %9d %9d %9d %9d %9d\n", *depth, *top, "sequences", 1, 2,
           4, 8, 16);
    snprintf(spec, sizeof spec, "eagle:file=%s,depth=%d,top=%d", paths[1], *depth, *top);
    proposals(&m, "eagle", spec);
    static const char *const extra[] = {"resample=off,live=0", "resample=off", "resample=0"};
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        snprintf(spec, sizeof spec, "lyanna:file=%s,depth=%d,top=%d,%s", paths[0], *depth, *top, extra[i]);
        snprintf(name, sizeof name, "lyanna:%s", extra[i]);
        proposals(&m, name, spec);
    }
    for (int i = 6; i < argc; i++) proposals(&m, argv[i], argv[i]);
    for (int i = 0; i < 2; i++) unlink(paths[i]);
    buffer_close(x);
    buffer_close(y);
    opened_model_close(&m);
    gguf_close(g);
    return 0;
}
