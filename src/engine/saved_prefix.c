/* saved_prefix.c - what the prefix cache keeps of an ended request, as bytes that another process can take over.
 *
 * The bytes have everything on which later tokens and drafts depend: keys and values, recurrent states and marks
 * (compute/sequence_saving.c), and what drafters keep for the same tokens (DrafterClass.save). So a request that begins
 * with these tokens continues as it would have continued in the process that saved them, bit for bit, and with the same
 * drafts. They are of use only for the same function of the tokens: the same weights, KV type, activations and version
 * of the library. All of this is compared first, then the checksum, and then every number is checked before anything
 * in the engine changes.
 *
 *     SavedHead
 *     tokens         [n_known] int32, of which the sequence holds the first n_tokens
 *     the sequence   executor_sequence_save
 *     n_drafts times:
 *         SavedDraft, the spec of the drafter, what it keeps
 *     checksum       uint64: hash64 of all bytes before it
 *
 * Numbers are in the byte order of the machine, by which another order is recognised. What drafters with other specs
 * or weights kept is passed over. A drafter that has learned from the text (DrafterClass.remembers) is shown it again,
 * as that of a request that has just ended. Only `recycling`, which learns from logits, saves all that it remembers.
 *
 * A checksum finds damage, not intent: somebody who can write such bytes can give a prefix other keys and thus other
 * answers, as with the file of the model. Proof: tests/engine/test_saved_prefix.c, tests/fuzz/fuzz_prefix.c. */
#include "base/bytes.h"
#include "base/hash.h"
#include "draft/drafter_file.h"
#include "engine/engine.h"
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, ORDER = 0x01020304, NAME_BYTES = 16 };
static const char magic[8] = "FRPREFIX";

typedef struct SavedHead {
    char magic[8];
    uint32_t order, version;
    uint64_t n_bytes;              /* of everything, the checksum included */
    uint64_t fingerprint, library; /* hashes of the model file and of the version of this library */
    char backend[NAME_BYTES], activations[NAME_BYTES];
    int32_t kv_type, n_drafts;
    int32_t n_tokens, n_known, n_prompt, padding;
} SavedHead;
_Static_assert(sizeof(SavedHead) == 96, "no padding that the compiler adds");

typedef struct SavedDraft {
    uint64_t n_spec, n_bytes;
} SavedDraft;

/* ---- what the bytes are bound to --------------------------------------------------------------------- */

static int fill_head(fr_engine *e, SavedHead *head, fr_error *err) {
    const Weights *w = e->model->weights;
    *head = (SavedHead){.order = ORDER,
                        .version = VERSION,
                        .library = hash64(FORERUN_VERSION, sizeof FORERUN_VERSION, 0),
                        .kv_type = (int32_t)e->options.kv_type};
    memcpy(head->magic, magic, sizeof magic);
    strncpy(head->backend, w->backend->name, NAME_BYTES - 1);
    strncpy(head->activations, weights_activations(w), NAME_BYTES - 1);
    if (!e->fingerprint) {
        int status = fr_model_fingerprint(e->model, &e->fingerprint, err);
        if (status) return status;
    }
    head->fingerprint = e->fingerprint;
    return FR_OK;
}

/* Compares a head that was read with that of this engine. */
static int check_head(const SavedHead *head, const SavedHead *own, fr_error *err) {
    static const char *const kv_types[] = {"f16", "f32", "q8"};
    _Static_assert(sizeof kv_types / sizeof *kv_types == KV_TYPE_COUNT, "all types");
    if (memcmp(head->magic, magic, sizeof magic) != 0) return error_set(err, FR_ERR_FORMAT, "it is no saved prefix");
    if (head->order != ORDER)
        return error_set(err, FR_ERR_MISMATCH, "it was saved by a machine with another byte order");
    if (head->version != VERSION)
        return error_set(err, FR_ERR_MISMATCH, "it has version %u of the format, and this is version %d", head->version,
                         VERSION);
    if (head->fingerprint != own->fingerprint)
        return error_set(err, FR_ERR_MISMATCH,
                         "it was saved for another model, with fingerprint %016llx instead of %016llx",
                         (unsigned long long)head->fingerprint, (unsigned long long)own->fingerprint);
    if (head->kv_type != own->kv_type)
        return error_set(err, FR_ERR_MISMATCH, "its keys and values have the type %s, and this engine has %s",
                         head->kv_type >= 0 && head->kv_type < KV_TYPE_COUNT ? kv_types[head->kv_type] : "?",
                         kv_types[own->kv_type]);
    if (memcmp(head->backend, own->backend, NAME_BYTES) != 0 ||
        memcmp(head->activations, own->activations, NAME_BYTES) != 0)
        return error_set(err, FR_ERR_MISMATCH, "it was not saved with the backend %s and the activations %s",
                         own->backend, own->activations);
    if (head->library != own->library)
        return error_set(err, FR_ERR_MISMATCH, "it was saved by another version of forerun");
    return FR_OK;
}

/* ---- saving ------------------------------------------------------------------------------------------- */

/* Appends what a drafter keeps, if it keeps anything; or its name, if it has learned from the text. */
static bool save_draft(const EngineDrafter *d, int32_t sequence, bool has_learned, int32_t *n_drafts, Buf *out) {
    const DrafterClass *class = d->spec ? d->drafter->class : NULL;
    if (!class) return true;
    has_learned = has_learned && class->remembers;
    bool keeps = class->save && (class->n_held ? class->n_held(d->drafter, sequence) > 0 : has_learned);
    if (!keeps && !has_learned) return true;
    SavedDraft head = {.n_spec = strlen(d->spec)};
    size_t at = out->n;
    if (!buf_append(out, &head, sizeof head) || !buf_append(out, d->spec, head.n_spec)) return false;
    size_t begin = out->n;
    if (keeps && !class->save(d->drafter, sequence, out)) return false;
    head.n_bytes = out->n - begin;
    memcpy(out->data + at, &head, sizeof head);
    ++*n_drafts;
    return true;
}

static int save(fr_engine *e, const CachedPrefix *c, Buf *out, fr_error *err) {
    SavedHead head;
    int status = fill_head(e, &head, err);
    if (status) return status;
    head.n_tokens = c->n_tokens, head.n_known = c->n_known, head.n_prompt = c->n_prompt;
    bool fits = buf_append(out, &head, sizeof head) &&
                buf_append(out, c->tokens, (size_t)c->n_known * sizeof *c->tokens) &&
                executor_sequence_save(e->executor, c->sequence, out);
    for (int i = 0; i < ENGINE_MAX_DRAFTERS && fits; i++)
        fits = save_draft(&e->drafters[i], c->sequence, c->learners >> i & 1, &head.n_drafts, out);
    uint64_t checksum = 0;
    if (fits) {
        head.n_bytes = out->n + sizeof checksum;
        memcpy(out->data, &head, sizeof head);
        checksum = hash64(out->data, out->n, 0);
        fits = buf_append(out, &checksum, sizeof checksum);
    }
    return fits ? FR_OK : error_memory(err, "a saved prefix", out->n);
}

static int check_tokens(const fr_engine *e, const char *function, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = engine_check_call(e, function, err);
    if (!status) status = check_given(tokens, function, "tokens", err);
    return status ? status : check_array(tokens, n, function, "tokens", err);
}

/* Each rank of a divided model has keys and values of its own heads only. */
static int refuse_ranks(const fr_engine *e, const char *function, fr_error *err) {
    if (!e->model->ranks) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: prefixes of a model that is divided among processes cannot be saved or restored; open the "
                     "model in one process",
                     function);
}

int fr_engine_save_prefix(fr_engine *e, const int32_t *tokens, int64_t n_tokens, void **data, size_t *n_bytes,
                          fr_error *err) {
    static const char function[] = "fr_engine_save_prefix";
    int status = check_given(data, function, "data", err);
    if (!status) status = check_given(n_bytes, function, "n_bytes", err);
    if (status) return status;
    *data = NULL;
    *n_bytes = 0;
    if ((status = check_tokens(e, function, tokens, n_tokens, err))) return status;
    if ((status = refuse_ranks(e, function, err))) return status;
    const CachedPrefix *c = prefix_cache_find(e, tokens, n_tokens);
    if (!c)
        return error_set(err, FR_ERR_ARGUMENT, "the prefix cache does not hold these %lld tokens", (long long)n_tokens);
    FpEnv caller_env = fp_env_enter();
    Buf out = {.max_bytes = SIZE_MAX / 2};
    status = save(e, c, &out, err);
    fp_env_leave(&caller_env);
    if (status) {
        buf_free(&out);
        return status;
    }
    *data = out.data;
    *n_bytes = out.n;
    return FR_OK;
}

/* ---- restoring ---------------------------------------------------------------------------------------- */

typedef struct SavedPrefix {
    SavedHead head;
    int32_t *tokens;             /* [head.n_known] owned */
    ByteReader sequence, drafts; /* where they begin */
} SavedPrefix;

static EngineDrafter *find_drafter(fr_engine *e, const char *spec, size_t n) {
    for (EngineDrafter *d = e->drafters; d < e->drafters + ENGINE_MAX_DRAFTERS; d++)
        if (d->spec && (d->drafter->class->load || d->drafter->class->remembers) && strlen(d->spec) == n &&
            memcmp(d->spec, spec, n) == 0)
            return d;
    return NULL;
}

/* Reads the next drafter. *d is NULL if it is not open. */
static bool take_draft(fr_engine *e, ByteReader *in, EngineDrafter **d, ByteReader *kept) {
    SavedDraft head;
    const char *spec = NULL, *bytes = NULL;
    if (!bytes_read(in, &head, sizeof head) || !(spec = bytes_take(in, head.n_spec)) ||
        !(bytes = bytes_take(in, head.n_bytes)))
        return false;
    *kept = (ByteReader){bytes, bytes + head.n_bytes};
    *d = find_drafter(e, spec, head.n_spec);
    return true;
}

/* Checks what the drafters kept, without changing anything. */
static int check_drafts(fr_engine *e, const SavedPrefix *p, fr_error *err) {
    ByteReader in = p->drafts;
    for (int32_t i = 0; i < p->head.n_drafts; i++) {
        EngineDrafter *d;
        ByteReader kept;
        if (!take_draft(e, &in, &d, &kept)) return error_set(err, FR_ERR_FORMAT, "it is cut short");
        int status = d && d->drafter->class->load ? d->drafter->class->load(d->drafter, -1, &kept, err) : FR_OK;
        if (status && status != FR_ERR_MISMATCH && status != FR_ERR_CONTEXT) return status;
        if (d && !status && kept.at != kept.end)
            return error_set(err, FR_ERR_FORMAT, "what a drafter kept has bytes after its end");
    }
    return in.at == in.end ? FR_OK : error_set(err, FR_ERR_FORMAT, "it has bytes after its end");
}

static int check_text(const fr_engine *e, const SavedHead *h, const int32_t *tokens, fr_error *err) {
    for (int32_t i = 0; i < h->n_known; i++)
        if (tokens[i] < 0 || tokens[i] >= e->model->model->hparams.n_vocab)
            return error_set(err, FR_ERR_FORMAT, "it has the token %d, which is not in the vocabulary", tokens[i]);
    return FR_OK;
}

/* Checks everything. *p borrows the bytes, and its tokens are malloc'ed even after a failure. */
static int read_saved(fr_engine *e, SavedPrefix *p, const void *data, size_t n_bytes, fr_error *err) {
    ByteReader in = {data, (const char *)data + n_bytes};
    SavedHead own;
    uint64_t checksum;
    int status = fill_head(e, &own, err);
    if (status) return status;
    if (!bytes_read(&in, &p->head, sizeof p->head)) return error_set(err, FR_ERR_FORMAT, "it is no saved prefix");
    const SavedHead *h = &p->head;
    if ((status = check_head(h, &own, err))) return status;
    if (h->n_bytes != n_bytes || n_bytes < sizeof *h + sizeof checksum)
        return error_set(err, FR_ERR_FORMAT, "it should have %llu bytes, but has %zu", (unsigned long long)h->n_bytes,
                         n_bytes);
    in.end -= sizeof checksum;
    memcpy(&checksum, in.end, sizeof checksum);
    if (hash64(data, n_bytes - sizeof checksum, 0) != checksum)
        return error_set(err, FR_ERR_FORMAT, "it is damaged: its checksum is wrong");
    bool fits = h->n_tokens > 0 && h->n_known >= h->n_tokens && h->n_known - h->n_tokens <= 1 && h->n_prompt >= 0 &&
                h->n_prompt <= h->n_known && h->n_drafts >= 0;
    const char *tokens = fits ? bytes_take(&in, (size_t)h->n_known * sizeof *p->tokens) : NULL;
    if (!tokens) return error_set(err, FR_ERR_FORMAT, "its tokens are damaged");
    if (!(p->tokens = malloc((size_t)h->n_known * sizeof *p->tokens))) return error_memory(err, "a saved prefix", 0);
    memcpy(p->tokens, tokens, (size_t)h->n_known * sizeof *p->tokens);
    status = check_text(e, h, p->tokens, err);
    p->sequence = in;
    if (!status) status = executor_sequence_load(e->executor, -1, &in, err);
    p->drafts = in;
    return status ? status : check_drafts(e, p, err);
}

/* Fails if even an empty prefix cache would leave too few pages. */
static int check_room(const fr_engine *e, int32_t n_tokens, fr_error *err) {
    int32_t size = e->options.kv_page_size, n = (n_tokens + size - 1) / size,
            n_free = executor_n_pages(e->executor) - executor_n_pages_of(e->executor, e->options.max_requests);
    if (n <= n_free) return FR_OK;
    return error_set(err, FR_ERR_MEMORY,
                     "it needs %d pages of the KV cache, and running requests leave %d; try again when they have ended",
                     n, n_free);
}

/* Shows the text to a drafter that learns from texts, as that of a request which has ended. A place of a running
 * request is needed for it; if there is none, it learns nothing. */
static void teach(fr_engine *e, Drafter *d, const SavedPrefix *p) {
    int sequence = 0;
    int64_t n_prompt = p->head.n_prompt, n_answer = p->head.n_known - n_prompt;
    while (sequence < e->options.max_requests && e->running[sequence]) sequence++;
    if (sequence == e->options.max_requests || n_prompt == 0) return;
    int status = d->class->begin(d, sequence, p->tokens, n_prompt, NULL);
    if (!status && n_answer) (void)d->class->observe(d, sequence, p->tokens + n_prompt, n_answer, NULL);
    d->class->end(d, sequence);
}

/* Gives the drafters what they kept. Returns which of them have learned from the text. */
static uint32_t restore_drafts(fr_engine *e, const SavedPrefix *p, int32_t sequence) {
    ByteReader in = p->drafts;
    uint32_t learners = 0;
    for (int32_t i = 0; i < p->head.n_drafts; i++) {
        EngineDrafter *d;
        ByteReader kept;
        if (!take_draft(e, &in, &d, &kept) || !d) continue;
        if (d->drafter->class->load) (void)d->drafter->class->load(d->drafter, sequence, &kept, NULL);
        else teach(e, d->drafter, p);
        if (d->drafter->class->remembers) learners |= UINT32_C(1) << (d - e->drafters);
    }
    return learners;
}

static int restore(fr_engine *e, SavedPrefix *p, CachedPrefix **out, fr_error *err) {
    const SavedHead *h = &p->head;
    ByteReader in = p->sequence;
    int status = check_room(e, h->n_tokens, err);
    if (status) return status;
    CachedPrefix *c = prefix_cache_make_place(e, p->tokens, h->n_known);
    while ((status = executor_sequence_load(e->executor, c->sequence, &in, err)) == FR_ERR_MEMORY &&
           prefix_cache_drop(e))
        in = p->sequence;
    if (!status && executor_sequence_length(e->executor, c->sequence) != h->n_tokens)
        status = error_set(err, FR_ERR_FORMAT, "its tokens and its sequence have different lengths");
    uint32_t learners = status ? 0 : restore_drafts(e, p, c->sequence);
    if (!status && !prefix_cache_set(e, c, p->tokens, h->n_tokens, h->n_known, h->n_prompt, learners))
        status = error_memory(err, "a saved prefix", (size_t)h->n_known * sizeof *p->tokens);
    if (status) {
        prefix_cache_empty(e, c);
        return status;
    }
    *out = c;
    return FR_OK;
}

int fr_engine_restore_prefix(fr_engine *e, const void *data, size_t n_bytes, const int32_t **tokens, int64_t *n_tokens,
                             fr_error *err) {
    static const char function[] = "fr_engine_restore_prefix";
    int status = engine_check_call(e, function, err);
    if (!status) status = refuse_ranks(e, function, err);
    if (!status) status = check_given(data, function, "data", err);
    if (tokens) *tokens = NULL;
    if (n_tokens) *n_tokens = 0;
    if (status) return status;
    if (e->prefixes.n == 0)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: the engine has no prefix cache, into which it could be restored",
                         function);
    SavedPrefix p = {.tokens = NULL};
    CachedPrefix *c = NULL;
    fr_error why;
    FpEnv caller_env = fp_env_enter();
    status = read_saved(e, &p, data, n_bytes, &why);
    if (!status) status = restore(e, &p, &c, &why);
    free(p.tokens);
    fp_env_leave(&caller_env);
    if (status) return error_set(err, (fr_code)status, "the saved prefix cannot be restored: %s", why.message);
    if (tokens) *tokens = c->tokens;
    if (n_tokens) *n_tokens = c->n_known;
    return FR_OK;
}

/* ---- the entries of the prefix cache -------------------------------------------------------------------- */

int fr_engine_get_prefix(const fr_engine *e, int i, const int32_t **tokens, int64_t *n_tokens) {
    const CachedPrefix *found = NULL;
    for (int k = 0; e && i >= 0 && k <= i; k++) { /* the least recently used one of those that were used later */
        const CachedPrefix *next = NULL;
        for (const CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++)
            if (c->n_tokens && (!found || c->last_use > found->last_use) && (!next || c->last_use < next->last_use))
                next = c;
        found = next;
        if (!found) break;
    }
    if (tokens) *tokens = found ? found->tokens : NULL;
    if (n_tokens) *n_tokens = found ? found->n_known : 0;
    return found != NULL;
}

int fr_engine_forget_prefix(fr_engine *e, const int32_t *tokens, int64_t n_tokens, fr_error *err) {
    int status = check_tokens(e, "fr_engine_forget_prefix", tokens, n_tokens, err);
    if (status) return status;
    FpEnv caller_env = fp_env_enter();
    CachedPrefix *c = prefix_cache_find(e, tokens, n_tokens);
    if (c) prefix_cache_empty(e, c);
    fp_env_leave(&caller_env);
    return FR_OK;
}
