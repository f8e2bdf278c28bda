/* dataset.c - reads files of training data: lines become records, documents, and sequences in memory.
 *
 * Whether a document is held out depends on a hash of its tokens alone, so that the same documents are held out for
 * every seed and order of files, and when more files are added. A fingerprint of all tokens and loss masks lets a
 * checkpoint refuse other data. */
#include "train/data/dataset.h"

#include "base/hash.h"
#include "base/progress.h"

#include <errno.h>
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

/* One line of the traffic. What is no record was cut off by a kill or a full disk, which must not stop the training. */
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
                         "%s: all %lld documents are held out for validation; pass more data, or --valid 0", first,
                         (long long)d->n_documents);
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
