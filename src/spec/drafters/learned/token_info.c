/* token_info.c - the token-info embedding of Lyanna (section 5.1 and 6.1).
 *
 * The problem. Lyanna's hidden states are guessed without the tokens between them, so that they stay good when a token turns out
 * wrong. Their logits know the place and not the token before it, and a text is mostly a matter of the token before it. A
 * map from token to logits has V x V numbers: too many to train, and for large V too many to hold.
 *
 * The idea. Trained is a product of three factors, of which the first is the target's embedding and fixed:
 *
 *     E'(t) = g * RMSNorm(E[t] W1 W2)      W1 [H][d], W2 [d][V]; g a gain for each token, as a norm has it
 *     l'    = l + E'(t)                    the norm keeps the sum in the range of logits, whatever t is
 *
 * The file keeps the factors. At open all rows are computed once (W_collapsed of the paper): V^2 numbers, of which a
 * draft reads one row for each token that it goes on from.
 *
 *     V = 4096     F16  34 MB, Q8  18 MB
 *     V = 32000    F16 2.0 GB, Q8 1.1 GB
 *
 * `eagle` and `redrafter` do know the token before, through their state; a file of theirs may hold the factors all the same, and
 * then each says it at their logits too (docs/METHODS.md).
 *
 * Hot tokens. Most of what is ever written are few of the tokens. With <method>.hot_tokens rows and columns are those alone,
 * the norm runs over them, and other tokens neither give nor get info: a quarter of the vocabulary is a sixteenth of the table.
 *
 *     hot 3 7 9:  table [3][3];  E'(7) is added to the logits of 3, 7 and 9;  E'(8) = 0
 *
 * Where even that does not fit, the factors are multiplied when they are asked for: all tokens of one level of a tree in one
 * product. All three forms give the same numbers but for the rounding of the table.
 *
 * Cost: n d (H + n) multiplications at open, by all threads (docs/METHODS.md has times); a row of n numbers read and added a token. Proof:
 * tests/test_token_info.c, against the formula in double precision. */
#include "spec/drafters/learned/token_info.h"

#include "base/mem.h"

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

/* Stays 0 where the file has no such key. */
static int read_rank(const TokenInfo *t, const DrafterFile *f, int32_t *rank, fr_error *err) {
    char key[128];
    Name name = name_of(t, "token_info.rank");
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name.text);
    if (gguf_find_key(f->gguf, key) < 0) return FR_OK;
    return drafter_file_int(f, name.text, 0, TOKEN_INFO_MAX_RANK, rank, err);
}

/* Which tokens: those of the file's list, or all. */
static int read_hot(TokenInfo *t, const DrafterFile *f, fr_error *err) {
    int32_t n_vocab = t->learned->target->hparams.n_vocab;
    t->n = n_vocab;
    int status = drafter_file_tokens(f, name_of(t, "hot_tokens").text, n_vocab, &t->hot, &t->n, err);
    if (status || !t->hot) return status;
    t->place_of = mem_alloc((size_t)n_vocab * sizeof *t->place_of);
    if (!t->place_of) return error_memory(err, "token info", (size_t)n_vocab * sizeof *t->place_of);
    for (int32_t i = 0; i < n_vocab; i++) t->place_of[i] = -1;
    for (int32_t i = 0; i < t->n; i++) t->place_of[t->hot[i]] = i;
    return FR_OK;
}

static int read_factors(TokenInfo *t, int32_t rank, fr_error *err) {
    LearnedDrafter *l = t->learned;
    int64_t batch = TOKEN_INFO_BATCH;
    int status = learned_linear_open(l, name_of(t, "token_info.down").text, l->n_embd, rank, false, batch, &t->down, err);
    if (!status) status = learned_linear_open(l, name_of(t, "token_info.up").text, rank, t->n, false, batch, &t->up, err);
    if (!status) status = drafter_file_vector(&l->file, name_of(t, "token_info.gain").text, t->n, &t->gain, err);
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
        return error_set(err, FR_ERR_MEMORY, "%s: a table of token info for %d tokens takes %.1f GB; draft with lyanna and "
                         "table=factors, or train with fewer hot tokens or without --rank", t->method, t->n, (double)bytes / 1e9);
    return t->learned->backend->lookup_open(&t->table, t->learned->device, type, t->n, t->n, err);
}

/* The infos of n tokens that have one, at most a batch, into t->wide. */
static void compute(TokenInfo *t, const int32_t *tokens, int32_t n) {
    LearnedDrafter *l = t->learned;
    l->backend->embed(l->weights, tokens, n, t->embeddings);
    learned_linear(l, t->down, LINEAR_SET, t->embeddings, n, t->narrow);
    learned_linear(l, t->up, LINEAR_SET, t->narrow, n, t->wide);
    l->backend->rmsnorm(l->device, t->wide, n, t->n, t->gain, l->target->hparams.rms_eps);
}

/* All rows of the table, from the factors. */
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
    if (t->learned) close_factors(t);
    if (t->table) t->learned->backend->lookup_close(t->table);
    mem_free(t->hot);
    mem_free(t->place_of);
    mem_free(t->gain);
}

/* The info of a token at that place of the tables, into t->wide [n]. */
static void load(TokenInfo *t, int32_t place) {
    memset(t->wide, 0, (size_t)t->n * sizeof *t->wide);
    t->learned->backend->lookup_add(t->learned->device, t->table, place, t->wide);
}

static void add_info(const TokenInfo *t, const float *info, float *logits) {
    for (int32_t i = 0; i < t->n; i++) logits[t->hot ? t->hot[i] : i] += info[i];
}

void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows) {
    int64_t n_vocab = t->n > 0 ? t->learned->n_vocab : 0;
    int32_t known[TOKEN_INFO_BATCH] = {0}, at[TOKEN_INFO_BATCH], n_known = 0; /* tokens that have info, and their rows */
    fr_assert(n <= TOKEN_INFO_BATCH);
    if (t->n == 0) return;
    for (int32_t i = 0; i < n; i++) {
        if (t->place_of && t->place_of[tokens[i]] < 0) continue;
        at[n_known] = i;
        known[n_known++] = tokens[i];
    }
    if (t->form == TOKEN_INFO_FACTORS) compute(t, known, n_known);
    for (int32_t i = 0; i < n_known; i++) {
        float *logits = rows + at[i] * n_vocab;
        if (t->form == TOKEN_INFO_FACTORS) {
            add_info(t, t->wide + (int64_t)i * t->n, logits);
        } else if (t->hot) {
            load(t, t->place_of[known[i]]);
            add_info(t, t->wide, logits);
        } else {
            t->learned->backend->lookup_add(t->learned->device, t->table, known[i], logits);
        }
    }
}
