/* layer_ends.c - what the file of a drafter with layers may bring along around them: the list of the target's streams
 * that they read, a rope, and an embedding. `eagle3` and `dflash` have these. */
#include "draft/learned/layer_entries.h"

#include "base/mem.h"
#include "model/arch.h"

#include <math.h>
#include <string.h>

/* ---- streams ---------------------------------------------------------------------------------------- */

void stream_width_check(KeyReader *r, const Model *target, const char *what) {
    int32_t n_embd = target->hparams.n_embd, n = key_int(r, what, n_embd, 1, 1 << 18);
    if (n == n_embd) return;
    key_fail(r, FR_ERR_MISMATCH,
             "was trained for a target with hidden states of %d numbers, and those of this target have %d; run the "
             "target that it was trained for",
             n, n_embd);
}

void stream_list_read(KeyReader *r, const Gguf *g, const Model *target, const char *what, const char *name,
                      int32_t shift, StreamList *out) {
    int64_t kv = key_index(r, what), n = kv < 0 ? 0 : gguf_kv_count(g, kv);
    if (!key_is_list(r, what) || n < 1 || n > MAX_KEPT_LAYERS) {
        key_fail(r, FR_ERR_FORMAT, "the key %s is missing, or is not a list of 1 to %d layers", name, MAX_KEPT_LAYERS);
        return;
    }
    key_check_list(r, what, (int32_t)n, 0, target->hparams.n_layer - shift);
    out->n = (int32_t)n;
    for (int32_t i = 0; i < n; i++) out->layers[i] = (int32_t)key_number_of_layer(r, what, i, 0) + shift;
}

int stream_list_ask(const StreamList *list, bool counts_outputs, const LearnedDrafter *d, EntryStreams *out,
                    fr_error *err) {
    for (int32_t i = 0; i < list->n; i++) {
        int32_t after = list->layers[i] + counts_outputs;
        if (after > d->target->hparams.n_layer)
            return error_set(
                err, FR_ERR_ARGUMENT,
                "%s: reads layer %d, and the target has no output of such a layer; leave layers=outputs out",
                gguf_path(d->file.gguf), list->layers[i]);
        int32_t at = d->env.kept ? kept_layers_add(d->env.kept, after) : -1;
        if (at < 0)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: the target keeps the streams of at most %d layers for all drafters; use fewer of "
                             "them at once",
                             gguf_path(d->file.gguf), MAX_KEPT_LAYERS);
        out->at[out->n++] = at;
    }
    return FR_OK;
}

/* ---- rope ------------------------------------------------------------------------------------------- */

int own_rope_open(Rope *rope, DrafterFile *f, const RopeParams *params, const char *name, fr_error *err) {
    float *factors = NULL;
    int64_t n = params->n_rot / 2;
    int status = drafter_file_has(f, name) ? drafter_file_vector(f, name, n, &factors, err) : FR_OK;
    for (int64_t i = 0; factors && i < n && !status; i++)
        if (!(factors[i] > 0))
            status = error_set(err, FR_ERR_FORMAT, "%s: tensor %s has a number that is not above 0", gguf_path(f->gguf),
                               name);
    if (!status) status = rope_init(rope, params, factors, err);
    mem_free(factors);
    return status;
}

/* ---- embedding ------------------------------------------------------------------------------------- */

int own_embedding_read(OwnEmbedding *e, LearnedDrafter *d, const char *name, int64_t n_embd, fr_error *err) {
    const GgufTensor *t;
    if (!drafter_file_has(&d->file, name)) {
        if (n_embd == d->n_embd) return FR_OK;
        return error_set(err, FR_ERR_FORMAT,
                         "%s: has no %s, and its width of %lld is not the target's, whose embedding it would use",
                         gguf_path(d->file.gguf), name, (long long)n_embd);
    }
    int status = drafter_file_matrix(&d->file, name, n_embd, d->n_vocab, &t, err);
    if (status) return status;
    e->tensor = *t;
    e->tensor.data = e->memory = mem_alloc(t->bytes);
    if (!e->memory) return error_memory(err, "the embedding of a drafter", t->bytes);
    memcpy(e->memory, t->data, t->bytes);
    return FR_OK;
}

void own_embedding_close(OwnEmbedding *e) { mem_free(e->memory); }
