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
#include "base/threads.h"
#include "format/blocks.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 32 };

static int64_t in_blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

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
    int32_t n_vocab = t->target->hparams.n_vocab;
    t->n = n_vocab;
    int status = drafter_file_tokens(f, name_of(t, "hot_tokens").text, n_vocab, &t->hot, &t->n, err);
    if (status || !t->hot) return status;
    t->place_of = mem_alloc((size_t)n_vocab * sizeof *t->place_of);
    if (!t->place_of) return error_memory(err, "token info", (size_t)n_vocab * sizeof *t->place_of);
    for (int32_t i = 0; i < n_vocab; i++) t->place_of[i] = -1;
    for (int32_t i = 0; i < t->n; i++) t->place_of[t->hot[i]] = i;
    return FR_OK;
}

static int open_worker(const TokenInfo *t, TokenInfoWorker *w, int32_t rank, int n_threads, fr_error *err) {
    int32_t n_embd = t->target->hparams.n_embd;
    size_t batch = TOKEN_INFO_BATCH, wide = (size_t)in_blocks(t->n);
    w->embeddings = mem_calloc(batch * (size_t)n_embd, sizeof *w->embeddings);
    w->narrow = mem_calloc(batch * (size_t)rank, sizeof *w->narrow);
    w->wide = mem_calloc(batch * wide, sizeof *w->wide);
    if (!w->embeddings || !w->narrow || !w->wide) return error_memory(err, "token info", batch * wide * sizeof *w->wide);
    return multiplier_open(&w->multiplier, t->target->kernels, n_threads, rank > n_embd ? rank : n_embd, TOKEN_INFO_BATCH, err);
}

static void close_worker(TokenInfoWorker *w) {
    multiplier_close(w->multiplier);
    mem_free(w->embeddings);
    mem_free(w->narrow);
    mem_free(w->wide);
    *w = (TokenInfoWorker){0};
}

/* A table is made by workers of one thread each, a product by one worker of all threads. */
static int open_workers(TokenInfo *t, int32_t rank, int n_threads, fr_error *err) {
    if (n_threads < 1) n_threads = 1;
    int n = t->form == TOKEN_INFO_FACTORS ? 1 : n_threads, status = FR_OK;
    t->workers = mem_calloc((size_t)n, sizeof *t->workers);
    if (!t->workers) return error_memory(err, "token info", (size_t)n * sizeof *t->workers);
    for (; t->n_workers < n && !status; t->n_workers++) status = open_worker(t, &t->workers[t->n_workers], rank, n_threads / n, err);
    return status;
}

static int allocate_table(TokenInfo *t, fr_error *err) {
    t->row_bytes = (size_t)t->n * sizeof(uint16_t);
    if (t->form == TOKEN_INFO_Q8) tensor_type_row_bytes(TYPE_Q8_0, in_blocks(t->n), &t->row_bytes);
    size_t bytes = (size_t)t->n * t->row_bytes;
    if (bytes > TOKEN_INFO_MAX_BYTES)
        return error_set(err, FR_ERR_MEMORY, "%s: a table of token info for %d tokens takes %.1f GB; draft with lyanna and "
                         "table=factors, or train with fewer hot tokens or without --rank", t->method, t->n, (double)bytes / 1e9);
    t->table = mem_alloc(bytes);
    return t->table ? FR_OK : error_memory(err, "a table of token info", bytes);
}

/* The infos of n tokens that have one, at most a batch, into w->wide. */
static void compute(const TokenInfo *t, TokenInfoWorker *w, const int32_t *tokens, int32_t n) {
    int64_t n_embd = t->target->hparams.n_embd;
    for (int32_t i = 0; i < n; i++) model_embedding(t->target, tokens[i], w->embeddings + i * n_embd);
    multiplier_run(w->multiplier, &t->down, w->embeddings, n, w->narrow);
    multiplier_run(w->multiplier, &t->up, w->narrow, n, w->wide);
    for (int32_t i = 0; i < n; i++) {
        float *row = w->wide + (int64_t)i * t->n;
        t->target->kernels->rmsnorm(row, row, t->gain, t->n, t->target->hparams.rms_eps);
    }
}

static void store(TokenInfo *t, int32_t place, const float *row) {
    char *out = t->table + (size_t)place * t->row_bytes;
    if (t->form == TOKEN_INFO_F16) {
        t->target->kernels->kv_store(KV_F16, row, t->n, out);
        return;
    }
    int64_t whole = t->n / BLOCK * BLOCK;
    float last[BLOCK] = {0}; /* what is left of a row, filled up with zeros */
    blocks_quantize(TYPE_Q8_0, row, whole, out);
    if (whole == t->n) return;
    memcpy(last, row + whole, (size_t)(t->n - whole) * sizeof *row);
    blocks_quantize(TYPE_Q8_0, last, BLOCK, out + t->row_bytes - tensor_type_info(TYPE_Q8_0)->block_bytes);
}

/* Part i_part of the table's rows. */
static void collapse_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    TokenInfo *t = ctx;
    TokenInfoWorker *w = &t->workers[i_part];
    int64_t begin, end;
    int32_t tokens[TOKEN_INFO_BATCH];
    threads_split(t->n, TOKEN_INFO_BATCH, i_part, n_parts, &begin, &end);
    for (int32_t first = (int32_t)begin; first < end; first += TOKEN_INFO_BATCH) {
        int32_t n = end - first < TOKEN_INFO_BATCH ? (int32_t)end - first : TOKEN_INFO_BATCH;
        for (int32_t i = 0; i < n; i++) tokens[i] = t->hot ? t->hot[first + i] : first + i;
        compute(t, w, tokens, n);
        for (int32_t i = 0; i < n; i++) store(t, first + i, w->wide + (int64_t)i * t->n);
    }
}

static void collapse(TokenInfo *t) {
    threads_run_once(t->n_workers, collapse_part, t);
    while (t->n_workers > 1) close_worker(&t->workers[--t->n_workers]);
    packed_free(&t->down);
    packed_free(&t->up);
}

static int read_factors(TokenInfo *t, DrafterFile *f, int32_t rank, fr_error *err) {
    int status = drafter_file_matrix(f, name_of(t, "token_info.down.weight").text, t->target->hparams.n_embd, rank, &t->down, err);
    if (!status) status = drafter_file_matrix(f, name_of(t, "token_info.up.weight").text, rank, t->n, &t->up, err);
    return status ? status : drafter_file_vector(f, name_of(t, "token_info.gain").text, t->n, &t->gain, err);
}

int token_info_open(TokenInfo *t, DrafterFile *f, const char *method, const Model *target, TokenInfoForm form, int n_threads,
                    fr_error *err) {
    int32_t rank = 0;
    *t = (TokenInfo){.target = target, .method = method, .form = form};
    int status = read_rank(t, f, &rank, err);
    if (status || rank == 0) return status;
    status = read_hot(t, f, err);
    if (!status) status = read_factors(t, f, rank, err);
    if (!status) status = open_workers(t, rank, n_threads, err);
    if (status || form == TOKEN_INFO_FACTORS) return status;
    status = allocate_table(t, err);
    if (!status) collapse(t);
    return status;
}

void token_info_close(TokenInfo *t) {
    while (t->n_workers > 0) close_worker(&t->workers[--t->n_workers]);
    packed_free(&t->down);
    packed_free(&t->up);
    void *all[] = {t->hot, t->place_of, t->gain, t->table, t->workers};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
}

/* out += the row of halves at `place`, by the kernel that mixes values: out + 1 * row, rounded once, as a sum is. */
static void add_halves(const TokenInfo *t, int32_t place, float *out) {
    static const float one = 1;
    static const int32_t first = 0;
    t->target->kernels->attn_mix(KV_F16, &one, 1, 1, t->n, t->table + (size_t)place * t->row_bytes, 0, &first, 1, out);
}

/* The row of the table at `place`, into `out`. */
static void load(const TokenInfo *t, int32_t place, float *out) {
    if (t->form == TOKEN_INFO_Q8) {
        blocks_dequantize(TYPE_Q8_0, t->table + (size_t)place * t->row_bytes, in_blocks(t->n), out);
        return;
    }
    memset(out, 0, (size_t)t->n * sizeof *out);
    add_halves(t, place, out);
}

static void add_info(const TokenInfo *t, const float *info, float *logits) {
    if (!t->hot) t->target->kernels->add(logits, info, t->n);
    else for (int32_t i = 0; i < t->n; i++) logits[t->hot[i]] += info[i];
}

void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows) {
    int64_t n_vocab = t->target->hparams.n_vocab;
    int32_t asked[TOKEN_INFO_BATCH] = {0}, at[TOKEN_INFO_BATCH], n_asked = 0; /* those that have info, and their rows */
    fr_assert(n <= TOKEN_INFO_BATCH);
    if (t->n == 0) return;
    for (int32_t i = 0; i < n; i++) {
        if (t->place_of && t->place_of[tokens[i]] < 0) continue;
        at[n_asked] = i;
        asked[n_asked++] = tokens[i];
    }
    TokenInfoWorker *w = &t->workers[0];
    if (t->form == TOKEN_INFO_FACTORS) compute(t, w, asked, n_asked);
    for (int32_t i = 0; i < n_asked; i++) {
        if (t->form == TOKEN_INFO_F16 && !t->hot) {
            add_halves(t, asked[i], rows + at[i] * n_vocab);
            continue;
        }
        float *info = w->wide;
        if (t->form == TOKEN_INFO_FACTORS) info += (int64_t)i * t->n;
        else load(t, t->place_of ? t->place_of[asked[i]] : asked[i], info);
        add_info(t, info, rows + at[i] * n_vocab);
    }
}
