/* dataset.c - reads files of training data: lines become records, documents, and sequences in memory.
 *
 * Whether a document is held out depends only on a hash of its tokens, so that the same documents are held out for
 * every seed and order of files, and when more files are added. A fingerprint of all tokens and loss masks lets a
 * checkpoint refuse other data. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/rng.h"
#include "train/dataset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct Loading {
    Dataset *dataset;
    const DatasetOptions *options;
    DocumentForm form;
    bool lacks_chat_format; /* the vocabulary's file names no chat format that is known */
    Progress bar;
    int64_t n_before; /* bytes of the files before the one being read */
    TextLimit limit;
} Loading;

static bool is_held_out(const Document *d, double share) {
    uint64_t h = hash64(d->tokens, (size_t)d->n * sizeof *d->tokens, 0);
    return (double)(h >> 11) * 0x1p-53 < share;
}

static int take_document(Loading *l, const Document *d, bool is_valid, fr_error *err) {
    Dataset *s = l->dataset;
    if (d->n == 0) return FR_OK;
    s->n_documents++;
    s->n_valid_documents += is_valid;
    s->fingerprint = hash64(d->tokens, (size_t)d->n * sizeof *d->tokens, s->fingerprint + is_valid);
    s->fingerprint = hash64(d->loss_mask, (size_t)d->n, s->fingerprint);
    return sequences_add(is_valid ? &s->valid : &s->train, d, err);
}

static int take_record(Loading *l, const Record *record, bool is_valid_file, fr_error *err) {
    Document d;
    int status = document_make(&d, &l->form, record, err);
    if (status) return status;
    bool is_chat = record->kind == RECORD_CHAT || (record->kind == RECORD_PAIR && l->form.pairs_are_chats);
    if (is_chat && l->lacks_chat_format) l->dataset->wrote_plain = true;
    l->dataset->n_lossy += record_is_lossy(record);
    bool is_valid = is_valid_file || (!l->options->valid_file && is_held_out(&d, l->options->valid_share));
    status = take_document(l, &d, is_valid, err);
    document_free(&d);
    return status;
}

static int read_file(Loading *l, const char *path, bool is_valid, fr_error *err) {
    LineReader *r;
    int status = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (status) return status;
    line_reader_limit(r, &l->limit);
    Record record;
    while ((status = record_next(r, &record, err)) == 1) {
        fr_error why;
        status = take_record(l, &record, is_valid, &why);
        record_free(&record);
        if (status) {
            status = line_reader_refuse(r, &why, err);
            break;
        }
        progress_update(&l->bar, l->n_before + line_reader_n_read(r));
    }
    l->n_before += line_reader_n_read(r);
    line_reader_close(r);
    return status;
}

/* One line of the traffic. A line that is no record was cut off by a kill or a full disk, which must not stop the
 * training. */
static int take_traffic_line(Loading *l, const LineReader *r, const char *line, size_t n, fr_error *err) {
    const Traffic *t = l->options->traffic;
    Record record;
    fr_error why;
    if (strspn(line, " \t\r") >= n) return FR_OK;
    int status = record_parse(&record, line, n, &why);
    if (status == FR_ERR_FORMAT) {
        l->dataset->n_broken++;
        return FR_OK;
    }
    int64_t n_before = l->dataset->n_documents;
    bool is_ours = !status && record_is_of_target(&record, t->target);
    if (is_ours) status = take_record(l, &record, false, &why);
    if (!status && !is_ours) l->dataset->n_other_target++;
    if (line_reader_number(r) > t->new_line) l->dataset->n_new += l->dataset->n_documents - n_before;
    record_free(&record);
    return status ? line_reader_refuse(r, &why, err) : FR_OK;
}

static int read_traffic(Loading *l, fr_error *err) {
    const Traffic *t = l->options->traffic;
    LineReader *r;
    const char *line;
    size_t n;
    int status = line_reader_open(&r, t->path, false, LINE_MAX_BYTES, err);
    if (status) return status;
    line_reader_limit(r, &l->limit);
    while (!status && line_reader_number(r) < t->end_line) {
        int got = line_reader_next(r, &line, &n, err);
        if (got != 1) {
            status = got;
            break;
        }
        if (line_reader_number(r) > t->first_line) status = take_traffic_line(l, r, line, n, err);
        progress_update(&l->bar, l->n_before + line_reader_n_read(r));
    }
    l->n_before += line_reader_n_read(r);
    line_reader_close(r);
    return status;
}

static int measure(const char *path, int64_t *n_bytes, fr_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    *n_bytes += st.st_size;
    return FR_OK;
}

static int read_files(Loading *l, fr_error *err) {
    const DatasetOptions *o = l->options;
    int64_t n_bytes = 0;
    int status = o->valid_file ? measure(o->valid_file, &n_bytes, err) : FR_OK;
    for (int i = 0; i < o->n_files && !status; i++) status = measure(o->files[i], &n_bytes, err);
    if (o->traffic && !status) status = measure(o->traffic->path, &n_bytes, err);
    if (status) return status;
    progress_begin(&l->bar, o->progress, "tokenize", n_bytes);
    for (int i = 0; i < o->n_files && !status; i++) status = read_file(l, o->files[i], false, err);
    if (!status && o->traffic) status = read_traffic(l, err);
    if (!status && o->valid_file) status = read_file(l, o->valid_file, true, err);
    progress_end(&l->bar);
    return status;
}

static int finish(Dataset *d, const DatasetOptions *o, fr_error *err) {
    int status = sequences_end(&d->train, err);
    if (!status) status = sequences_end(&d->valid, err);
    const char *first = o->traffic ? o->traffic->path : o->files[0];
    if (status) return status;
    if (o->traffic && d->n_new == 0)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: has no new record of this target, so there is nothing to learn (%lld records of other "
                         "models, %lld lines that are no records)",
                         first, (long long)d->n_other_target, (long long)d->n_broken);
    if (d->train.n > 0) return FR_OK;
    if (d->n_valid_documents > 0 && !o->valid_file)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: every document is held out for validation (%lld in all); pass more data, or --valid 0",
                         first, (long long)d->n_documents);
    return error_set(err, FR_ERR_FORMAT,
                     "%s: holds no text to learn from; see docs/TRAINING.md for the format of training data", first);
}

/* A vocabulary may list more tokens than the model has rows. */
static int32_t n_rows(const Gguf *vocab, int32_t n_vocab) {
    const GgufTensor *embd = gguf_find_tensor(vocab, "token_embd.weight");
    return embd && embd->dims[1] < n_vocab ? (int32_t)embd->dims[1] : n_vocab;
}

int dataset_open(Dataset *d, const DatasetOptions *options, const Gguf *vocab, fr_error *err) {
    *d = (Dataset){0};
    Tokenizer *tokenizer;
    int status = tokenizer_open(&tokenizer, vocab, err);
    if (status) return status;
    ChatFamily family = chat_family_of(vocab);
    Loading l = {.dataset = d, .options = options, .lacks_chat_format = family == CHAT_NONE};
    l.limit.max_bytes = options->max_text;
    int32_t n_vocab = tokenizer_n_vocab(tokenizer);
    l.form = (DocumentForm){tokenizer, family == CHAT_NONE ? CHAT_PLAIN : family, options->pairs_are_chats,
                            n_rows(vocab, n_vocab)};
    sequences_begin(&d->train, n_vocab, options->length, options->packs);
    sequences_begin(&d->valid, n_vocab, options->length, options->packs);
    status = read_files(&l, err);
    if (!status) status = finish(d, options, err);
    tokenizer_close(tokenizer);
    if (status) dataset_close(d);
    return status;
}

void dataset_close(Dataset *d) {
    sequences_free(&d->train);
    sequences_free(&d->valid);
    *d = (Dataset){0};
}

/* Stores tokens with their loss mask in one array, and cuts them into sequences by offset.
 *
 * The mask is the top bit of a token's 16 or 32 bits, so that a corpus costs little more memory than its tokens.
 * Batches are gathered from the array in the order that permutation_at computes. */

enum { MAX_VOCAB_16 = 1 << 15 };
static const uint16_t IN_LOSS_16 = (uint16_t)1 << 15;
static const uint32_t IN_LOSS_32 = (uint32_t)1 << 31;

void sequences_begin(Sequences *s, int32_t n_vocab, int32_t length, bool packs) {
    *s = (Sequences){.length = length, .packs = packs, .is_16_bit = n_vocab <= MAX_VOCAB_16};
}

void sequences_free(Sequences *s) {
    free(s->tokens16);
    free(s->tokens32);
    free(s->spans);
    *s = (Sequences){0};
}

/* Makes room for n elements, at least doubling the capacity. False: no memory, and nothing has changed. */
static bool grow(void **array, int64_t *capacity, int64_t n, size_t bytes_each) {
    if (n <= *capacity) return true;
    int64_t wanted = *capacity * 2 > n ? *capacity * 2 : n + 1024;
    void *bigger = (uint64_t)wanted > SIZE_MAX / bytes_each ? NULL : realloc(*array, (size_t)wanted * bytes_each);
    if (!bigger) return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}

int32_t sequences_token(const Sequences *s, int64_t i) {
    return s->is_16_bit ? s->tokens16[i] & ~IN_LOSS_16 : (int32_t)(s->tokens32[i] & ~IN_LOSS_32);
}

static bool in_loss(const Sequences *s, int64_t i) {
    return s->is_16_bit ? (s->tokens16[i] & IN_LOSS_16) != 0 : (s->tokens32[i] & IN_LOSS_32) != 0;
}

/* Cuts tokens first .. end - 1 into sequences; sequences without a prediction in the loss are left out. */
static int cut(Sequences *s, int64_t first, int64_t end, fr_error *err) {
    for (; first + 1 < end; first += s->length) {
        int32_t n = end - 1 - first < s->length ? (int32_t)(end - 1 - first) : s->length;
        int64_t n_counted = 0;
        for (int64_t i = first + 1; i <= first + n; i++) n_counted += in_loss(s, i);
        if (!n_counted) continue;
        if (!grow((void **)&s->spans, &s->spans_capacity, s->n + 1, sizeof *s->spans))
            return error_memory(err, "the list of sequences", (size_t)s->n * sizeof *s->spans);
        s->spans[s->n++] = (SequenceSpan){first, n};
        s->n_counted += n_counted;
    }
    return FR_OK;
}

int sequences_add(Sequences *s, const Document *d, fr_error *err) {
    int64_t first = s->n_tokens, n = first + d->n;
    size_t bytes_each = s->is_16_bit ? sizeof *s->tokens16 : sizeof *s->tokens32;
    if (!grow(s->is_16_bit ? (void **)&s->tokens16 : (void **)&s->tokens32, &s->capacity, n, bytes_each))
        return error_memory(err, "the tokens of the training data; train on fewer files at once",
                            (size_t)n * bytes_each);
    for (int64_t i = 0; i < d->n; i++) {
        if (s->is_16_bit) s->tokens16[first + i] = (uint16_t)(d->tokens[i] | (d->loss_mask[i] ? IN_LOSS_16 : 0));
        else s->tokens32[first + i] = (uint32_t)d->tokens[i] | (d->loss_mask[i] ? IN_LOSS_32 : 0);
    }
    s->n_tokens = n;
    return s->packs ? FR_OK : cut(s, first, n, err);
}

int sequences_end(Sequences *s, fr_error *err) { return s->packs ? cut(s, 0, s->n_tokens, err) : FR_OK; }

void sequences_get(const Sequences *s, int64_t i, int32_t *tokens, uint8_t *loss_mask) {
    SequenceSpan span = s->spans[i];
    for (int32_t j = 0; j <= s->length; j++) tokens[j] = j <= span.n ? sequences_token(s, span.first + j) : 0;
    for (int32_t j = 0; j < s->length; j++) loss_mask[j] = j < span.n && in_loss(s, span.first + j + 1);
}

void sequences_batch(const Sequences *s, uint64_t seed, int64_t first, int32_t n, int32_t *tokens, uint8_t *loss_mask) {
    for (int64_t j = 0; j < n; j++) {
        int64_t at = first + j;
        int64_t i = permutation_at(seed, (uint32_t)(at / s->n), s->n, at % s->n);
        sequences_get(s, i, tokens + j * (s->length + 1), loss_mask + j * s->length);
    }
}

/* A Feistel network over the indices.
 *
 * A resumed run must find the next sequence from nothing but the number of the training step, so the order of an
 * epoch is computed and not stored. An index is cut into a left and a right half of h bits. A round exchanges the
 * halves and combines one (by exclusive or) with a function of the other, which can be undone, so every round is a
 * permutation of 0 .. 4^h - 1 (Luby and Rackoff 1988). A result outside 0 .. n-1 goes through the network again
 * until it falls inside (cycle walking: Black and Rogaway 2002), which takes fewer than 4 passes on average because
 * 4^h < 4n. Test: test_dataset.c checks that the result is a permutation, and another one for each epoch. */

enum { N_ROUNDS = 6 };

static uint64_t one_pass(uint64_t seed, uint32_t epoch, int n_bits, uint64_t x) {
    uint64_t mask = ((uint64_t)1 << n_bits) - 1, left = x >> n_bits, right = x & mask;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        uint32_t words[4];
        rng_words(seed, RNG_ORDER, (uint64_t)epoch << 32 | right, round, words);
        uint64_t mixed = left ^ (words[0] & mask);
        left = right;
        right = mixed;
    }
    return left << n_bits | right;
}

int64_t permutation_at(uint64_t seed, uint32_t epoch, int64_t n, int64_t i) {
    int n_bits = 1;
    while ((uint64_t)1 << 2 * n_bits < (uint64_t)n) n_bits++;
    uint64_t x = (uint64_t)i;
    do x = one_pass(seed, epoch, n_bits, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Counts tokens and keeps the most frequent ones: the rows and columns of a token-info table (logit_corrections.h) that
 * is restricted to part of a large vocabulary. */

typedef struct Counted {
    int64_t count;
    int32_t token;
} Counted;

static int more_frequent_first(const void *a, const void *b) {
    const Counted *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int hot_tokens_choose(const Sequences *s, int32_t n_vocab, int32_t n, int32_t **out, fr_error *err) {
    Counted *all = mem_calloc((size_t)n_vocab, sizeof *all);
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!all || !*out) {
        mem_free(all);
        return error_memory(err, "the frequencies of tokens", (size_t)n_vocab * sizeof *all);
    }
    for (int32_t k = 0; k < n_vocab; k++) all[k].token = k;
    for (int64_t i = 0; i < s->n_tokens; i++) {
        int32_t token = sequences_token(s, i);
        if (token < n_vocab) all[token].count++; /* a vocabulary may list more tokens than the model has rows */
    }
    qsort(all, (size_t)n_vocab, sizeof *all, more_frequent_first);
    for (int32_t k = 0; k < n; k++) (*out)[k] = all[k].token;
    qsort(*out, (size_t)n, sizeof **out, ascending);
    mem_free(all);
    return FR_OK;
}
