/* token_info.c - the token-info embedding of Lyanna (sections 5.1 and 6.1).
 *
 * The problem. Lyanna's hidden states are drafted without the tokens between them, so that they stay valid when a
 * token turns out wrong. Their logits thus depend on the position but not on the token before it, on which a text
 * depends most. A map from tokens to logits has V x V numbers: too many to train, and for large V too many to store.
 *
 * The idea. A product of three factors is trained, of which the first is the target's embedding and fixed:
 *
 *     E'(t) = g * RMSNorm(E[t] W1 W2)      W1 [H][d], W2 [d][V]; g a gain for each token, as in any norm
 *     l'    = l + E'(t)                    the norm keeps the sum in the range of logits, whatever t is
 *
 * The file has the factors. At open, all rows are computed once (W_collapsed of the paper): V^2 numbers, of which a
 * draft reads one row for each token that it continues from.
 *
 *     V = 4096     F16  34 MB, Q8  18 MB
 *     V = 32000    F16 2.0 GB, Q8 1.1 GB
 *
 * `eagle` and `redrafter` do know the token before, through their state. Their files may have the factors too, and
 * the info is then added to their logits (docs/methods/README.md).
 *
 * Hot tokens. A small part of the vocabulary makes up most texts. With <method>.hot_tokens, only these tokens have
 * rows and columns, the norm is over these columns, and other tokens have no info: a quarter of the vocabulary is a
 * sixteenth of the table.
 *
 *     hot 3 7 9:  table [3][3];  E'(7) is added to the logits of 3, 7 and 9;  E'(8) = 0
 *
 * If even that does not fit into memory, the factors are multiplied on demand: all tokens of one level of a tree in
 * one product. All three forms give the same numbers, up to the rounding of the table.
 *
 * Cost: n d (H + n) multiplications at open, by all threads (docs/methods/README.md has times); for each token, a row of n
 * numbers is read and added. Proof: tests/draft/test_token_info.c, against the formula in double precision. */
#include "draft/learned/token_info.h"

#include "base/mem.h"
#include "draft/learned/layer_names.h"

#include <stdio.h>
#include <string.h>

typedef struct Name {
    char text[64];
} Name;

/* "<method>.<what>": a key or a tensor of the file. */
static Name name_of(const TokenInfo *t, const char *what) {
    Name name;
    snprintf(name.text, sizeof name.text, "%s.%s", t->method, what);
    return name;
}

/* *rank stays 0 if the file has no such key. */
static int read_rank(const TokenInfo *t, const DrafterFile *f, int32_t *rank, fr_error *err) {
    char key[128];
    Name name = name_of(t, TOKEN_INFO_KEY_RANK);
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name.text);
    if (gguf_find_key(f->gguf, key) < 0) return FR_OK;
    return drafter_file_int(f, name.text, 0, TOKEN_INFO_MAX_RANK, rank, err);
}

/* Which tokens have info: those of the file's list, or all. */
static int read_hot(TokenInfo *t, const DrafterFile *f, fr_error *err) {
    int32_t n_vocab = t->learned->target->hparams.n_vocab;
    t->n = n_vocab;
    int status = drafter_file_tokens(f, name_of(t, TOKEN_INFO_KEY_HOT_TOKENS).text, n_vocab, &t->hot, &t->n, err);
    if (status || !t->hot) return status;
    t->index_of = mem_alloc((size_t)n_vocab * sizeof *t->index_of);
    if (!t->index_of) return error_memory(err, "token info", (size_t)n_vocab * sizeof *t->index_of);
    for (int32_t i = 0; i < n_vocab; i++) t->index_of[i] = -1;
    for (int32_t i = 0; i < t->n; i++) t->index_of[t->hot[i]] = i;
    return FR_OK;
}

static int read_factors(TokenInfo *t, int32_t rank, fr_error *err) {
    LearnedDrafter *l = t->learned;
    int64_t batch = TOKEN_INFO_BATCH;
    int status = learned_linear_open(l, name_of(t, TOKEN_INFO_DOWN).text, l->n_embd, rank, false, batch, &t->down, err);
    if (!status) status = learned_linear_open(l, name_of(t, TOKEN_INFO_UP).text, rank, t->n, false, batch, &t->up, err);
    if (!status) status = drafter_file_vector(&l->file, name_of(t, TOKEN_INFO_GAIN).text, t->n, &t->gain, err);
    const ArenaItem items[] = {ARENA_ITEM(&t->embeddings, batch * l->n_embd), ARENA_ITEM(&t->narrow, batch * rank),
                               ARENA_ITEM(&t->wide, batch * t->n)};
    return status ? status : arena_take(&l->arena, items, ARENA_COUNT(items), "token info", err);
}

static void close_factors(TokenInfo *t) {
    learned_linear_close(t->learned, t->down);
    learned_linear_close(t->learned, t->up);
    t->down = t->up = NULL;
}

static int open_table(TokenInfo *t, fr_error *err) {
    TensorType type = t->form == TOKEN_INFO_Q8 ? TYPE_Q8_0 : TYPE_F16;
    enum { BLOCK = 32 };
    size_t row_bytes = 0;
    (void)tensor_type_row_bytes(type, (t->n + BLOCK - 1) / BLOCK * BLOCK, &row_bytes);
    size_t bytes = (size_t)t->n * row_bytes;
    if (bytes > TOKEN_INFO_MAX_BYTES)
        return error_set(err, FR_ERR_MEMORY,
                         "%s: a table of token info for %d tokens takes %.1f GB; draft with lyanna and "
                         "table=factors, or train with fewer hot tokens or without --rank",
                         t->method, t->n, (double)bytes / 1e9);
    return t->learned->backend->lookup_open(&t->table, t->learned->device, type, t->n, t->n, err);
}

/* Computes the info of n <= TOKEN_INFO_BATCH tokens that have one, into t->wide. */
static void compute(TokenInfo *t, const int32_t *tokens, int32_t n) {
    LearnedDrafter *l = t->learned;
    l->backend->embed(l->weights, tokens, n, t->embeddings);
    learned_linear(l, t->down, LINEAR_SET, t->embeddings, n, t->narrow);
    learned_linear(l, t->up, LINEAR_SET, t->narrow, n, t->wide);
    l->backend->rmsnorm(l->device, t->wide, n, t->n, t->gain, l->target->hparams.rms_eps);
}

/* Computes all rows of the table from the factors. */
static void collapse(TokenInfo *t) {
    int32_t tokens[TOKEN_INFO_BATCH];
    for (int32_t first = 0; first < t->n; first += TOKEN_INFO_BATCH) {
        int32_t n = t->n - first < TOKEN_INFO_BATCH ? t->n - first : TOKEN_INFO_BATCH;
        for (int32_t i = 0; i < n; i++) tokens[i] = t->hot ? t->hot[first + i] : first + i;
        compute(t, tokens, n);
        t->learned->backend->lookup_store(t->learned->device, t->table, first, n, t->wide);
    }
    close_factors(t);
}

int token_info_open(TokenInfo *t, LearnedDrafter *learned, const char *method, TokenInfoForm form, fr_error *err) {
    int32_t rank = 0;
    *t = (TokenInfo){.learned = learned, .method = method, .form = form};
    int status = read_rank(t, &learned->file, &rank, err);
    if (status || rank == 0) return status;
    status = read_hot(t, &learned->file, err);
    if (!status) status = read_factors(t, rank, err);
    if (status || form == TOKEN_INFO_FACTORS) return status;
    status = open_table(t, err);
    if (!status) collapse(t);
    return status;
}

void token_info_close(TokenInfo *t) {
    if (!t->learned) return; /* token_info_open was not called */
    close_factors(t);
    if (t->table) t->learned->backend->lookup_close(t->table);
    mem_free(t->hot);
    mem_free(t->index_of);
    mem_free(t->gain);
}

/* Reads a row of the table into t->wide [n]. */
static void load(TokenInfo *t, int32_t row) {
    memset(t->wide, 0, (size_t)t->n * sizeof *t->wide);
    t->learned->backend->lookup_add(t->learned->device, t->table, row, t->wide);
}

static void add_info(const TokenInfo *t, const float *info, float *logits) {
    for (int32_t i = 0; i < t->n; i++) logits[t->hot ? t->hot[i] : i] += info[i];
}

void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows) {
    int32_t known[TOKEN_INFO_BATCH] = {0}, at[TOKEN_INFO_BATCH],
            n_known = 0; /* tokens that have info, and their rows of logits */
    fr_assert(n <= TOKEN_INFO_BATCH);
    if (t->n == 0) return;
    fr_assert(t->learned && (!t->hot || t->index_of));
    int64_t n_vocab = t->learned->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        if (t->index_of && t->index_of[tokens[i]] < 0) continue;
        at[n_known] = i;
        known[n_known++] = tokens[i];
    }
    if (t->form == TOKEN_INFO_FACTORS) compute(t, known, n_known);
    for (int32_t i = 0; i < n_known; i++) {
        float *logits = rows + at[i] * n_vocab;
        if (t->form == TOKEN_INFO_FACTORS) {
            add_info(t, t->wide + (int64_t)i * t->n, logits);
        } else if (t->hot) {
            load(t, t->index_of[known[i]]);
            add_info(t, t->wide, logits);
        } else {
            t->learned->backend->lookup_add(t->learned->device, t->table, known[i], logits);
        }
    }
}
