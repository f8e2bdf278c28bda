/* assistant_weights.c - the weights of an assistant of Gemma 4: its layers become a model between the target's
 * embedding and an LM head of its own, whose layers read keys and values of the target (Model.kv_model). A file whose
 * layers do not fit the target's keys is refused; the message names the first difference.
 *
 * The queries are rotated as the keys were when the target stored them, so that the ropes are the target's. The numbers
 * in the file are only compared with them. Proof: tests/draft/test_draft_mtp_assistant.c. */
#include "draft/learned/assistant.h"

#include "base/mem.h"
#include "draft/feedback.h"
#include "draft/learned/layer_entries.h"
#include "draft/learned/learned_files.h"
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

bool assistant_is_file(const char *path) {
    Gguf *g = NULL;
    fr_error ignored;
    GgufString is = {"", 0};
    static const char name[] = ASSISTANT_ARCHITECTURE;
    if (gguf_open(&g, path, &ignored) == FR_OK) gguf_get_string(g, "general.architecture", &is);
    bool found = is.n == sizeof name - 1 && memcmp(is.data, name, is.n) == 0;
    gguf_close(g);
    return found;
}

void assistant_close_weights(Assistant *a) {
    learned_linear_close(&a->learned, a->before);
    learned_linear_close(&a->learned, a->after);
    cluster_head_close(&a->clusters);
    executor_close(a->executor);
    weights_close(a->weights);
    for (int32_t i = 0; i < ASSISTANT_MAX_LAYERS; i++) {
        AssistantVectors *v = &a->vectors[i];
        float *const all[] = {v->attn_norm, v->q_norm, v->post_attn_norm, v->ffn_norm, v->post_ffn_norm};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) mem_free(all[k]);
    }
    mem_free(a->output_norm);
}

/* ---- keys ------------------------------------------------------------------------------------------- */

/* The layers of the file with or without a window. */
typedef struct LayerKind {
    int32_t head_dim, n_rot, window; /* window 0: they see everything */
    double rope_base;
} LayerKind;

typedef struct Keys {
    const Model *target;
    LayerKind kinds[KV_GROUPS];
    KvGroup kind[ASSISTANT_MAX_LAYERS];
    int32_t n_clusters, n_top_clusters;
    bool uses_clusters;
    int64_t n_head[ASSISTANT_MAX_LAYERS], n_head_kv[ASSISTANT_MAX_LAYERS], n_ff[ASSISTANT_MAX_LAYERS]; /* 0: as all */
} Keys;

static void read_keys(KeyReader *r, void *user) {
    Keys *k = user;
    LayerKind *local = &k->kinds[KV_WINDOW];
    int32_t n_layer = key_int(r, "block_count", -1, 1, ASSISTANT_MAX_LAYERS);
    stream_width_check(r, k->target, ASSISTANT_KEY_TARGET_WIDTH);
    key_int(r, ASSISTANT_KEY_LAYERS, n_layer, 1, n_layer); /* all layers run */
    key_int(r, "attention.shared_kv_layers", n_layer, 0, n_layer);
    if (key_int(r, "embedding_length_per_layer_input", 0, 0, 1 << 16) > 0)
        key_fail(r, FR_ERR_UNSUPPORTED, "per-layer embeddings of an assistant are not supported");
    k->uses_clusters = key_bool(r, ASSISTANT_KEY_USES_CLUSTERS, true);
    k->n_clusters = key_int(r, ASSISTANT_KEY_CLUSTERS, 0, 0, k->target->hparams.n_vocab);
    k->n_top_clusters = key_int(r, ASSISTANT_KEY_TOP_CLUSTERS, 32, 1, TOP_K_MAX);
    local->window = key_int(r, "attention.sliding_window", 0, 0, 1 << 28);
    local->head_dim = key_int(r, "attention.key_length_swa", 0, 0, 1 << 12);
    if (key_int(r, "attention.value_length_swa", local->head_dim, 0, 1 << 12) != local->head_dim)
        key_fail(r, FR_ERR_UNSUPPORTED, "attention.value_length_swa is not attention.key_length_swa");
    local->n_rot = key_int(r, "rope.dimension_count_swa", local->head_dim, 0, 1 << 12);
    local->rope_base = key_float(r, "rope.freq_base_swa", 10000, 1, 1e12);
    if (key_is_list(r, ASSISTANT_KEY_WINDOWS)) key_check_list(r, ASSISTANT_KEY_WINDOWS, n_layer, 0, 1);
    else
        key_fail(r, FR_ERR_FORMAT, "the key %s is missing, or is no list with a flag for each layer",
                 ASSISTANT_KEY_WINDOWS);
    for (int32_t i = 0; i < n_layer; i++) {
        k->kind[i] = key_number_of_layer(r, ASSISTANT_KEY_WINDOWS, i, 0) ? KV_WINDOW : KV_ALL;
        if (k->kind[i] == KV_WINDOW && local->window < 2) /* a row has no key of its own */
            key_fail(r, FR_ERR_FORMAT, "attention.sliding_window is %d, but must be at least 2", local->window);
        k->n_head[i] = key_number_of_layer(r, "attention.head_count", i, 0);
        k->n_head_kv[i] = key_number_of_layer(r, "attention.head_count_kv", i, 0);
        k->n_ff[i] = key_number_of_layer(r, "feed_forward_length", i, 0);
    }
}

static int read_shape(Assistant *a, Keys *k, fr_error *err) {
    Hparams *h = &a->model.hparams;
    int status = hparams_read_drafter(h, a->learned.file.gguf, ASSISTANT_ARCHITECTURE, read_keys, k, err);
    k->kinds[KV_ALL] = (LayerKind){.head_dim = h->head_dim, .n_rot = h->rope.n_rot, .rope_base = h->rope.base};
    for (int32_t i = 0; i < h->n_layer && !status; i++) {
        if (!k->n_head[i]) k->n_head[i] = h->n_head;
        if (!k->n_head_kv[i]) k->n_head_kv[i] = h->n_head_kv;
        if (!k->n_ff[i]) k->n_ff[i] = h->n_ff;
    }
    return status;
}

/* ---- the layers of the target ----------------------------------------------------------------------- */

/* Returns the last layer of the target of that kind that has keys of its own; -1: there is none. */
static int32_t last_of_kind(const Model *target, KvGroup kind) {
    int32_t i = target->hparams.n_layer - 1;
    while (i >= 0 && (kv_group_of(&target->layers[i]) != kind || target->layers[i].shares_kv)) i--;
    return i;
}

/* Binds layer i to a layer of the target: sets what follows from the keys that it reads. */
static int bind_layer(Assistant *a, const Keys *k, int32_t i, fr_error *err) {
    const Model *target = a->learned.target;
    const char *path = gguf_path(a->learned.file.gguf);
    const LayerKind *kind = &k->kinds[k->kind[i]];
    int32_t from = last_of_kind(target, k->kind[i]);
    if (from < 0)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: layer %d reads a layer of the target %s a window, and there is none", path, i,
                         k->kind[i] == KV_WINDOW ? "with" : "without");
    const LayerSpec *t = &target->layers[from];
    const RopeParams *rope = &target->ropes[t->i_rope].params;
    int32_t n_kv = layer_n_head_kv(&target->hparams, t);
    const struct {
        const char *name;
        double of_file, of_target;
    } numbers[] = {{"numbers in a key", kind->head_dim, layer_head_dim(&target->hparams, t)},
                   {"KV heads", (double)k->n_head_kv[i], n_kv},
                   {"rotated numbers in a key", kind->n_rot, rope->n_rot},
                   {"as the base of rope", kind->rope_base, rope->base}};
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
        if (numbers[n].of_file != numbers[n].of_target)
            return error_set(err, FR_ERR_MISMATCH,
                             "%s: belongs to another target: its layer %d reads a layer with %g %s, but layer %d of %s "
                             "has %g",
                             path, i, numbers[n].of_file, numbers[n].name, from, gguf_path(target->gguf),
                             numbers[n].of_target);
    if (kind->window > t->window)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: belongs to another target: its layer %d sees %d positions, but layer %d of %s keeps %d",
                         path, i, kind->window, from, gguf_path(target->gguf), t->window);
    float scale = a->model.hparams.attn_scale;
    a->specs[i] = (LayerSpec){.n_head = (int32_t)k->n_head[i],
                              .n_head_kv = n_kv,
                              .head_dim = kind->head_dim,
                              .mixer = t->mixer,
                              .window = kind->window,
                              .i_rope = t->i_rope,
                              .shares_kv = from + 1,
                              .attn_scale = scale > 0 ? scale : 1,
                              .ffn = FFN_DENSE,
                              .activation = ACTIVATION_GELU};
    return FR_OK;
}

/* Refuses a file whose divisors of the frequencies turn queries at other angles than the target's keys. */
static int check_rope(Assistant *a, fr_error *err) {
    LearnedDrafter *l = &a->learned;
    const Rope *of_target = &l->target->ropes[0];
    const RopeParams *p = &a->model.hparams.rope;
    Rope own = {.freqs = NULL};
    bool is_same = true;
    if (!drafter_file_has(&l->file, ASSISTANT_ROPE_FACTORS)) return FR_OK;
    int status = own_rope_open(&own, &l->file, p, ASSISTANT_ROPE_FACTORS, err);
    for (int32_t i = 0; i < p->n_rot / 2 && !status; i++)
        is_same = is_same && p->n_rot == of_target->params.n_rot && own.freqs[i] == of_target->freqs[i];
    rope_free(&own);
    if (status || is_same) return status;
    return error_set(
        err, FR_ERR_MISMATCH,
        "%s: belongs to another target: its tensor %s turns queries at other angles than the target's keys",
        gguf_path(l->file.gguf), ASSISTANT_ROPE_FACTORS);
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

typedef struct TensorName {
    char text[64];
} TensorName;

static TensorName name_in_layer(int32_t i, const char *what) {
    TensorName out;
    snprintf(out.text, sizeof out.text, ASSISTANT_LAYER, i, what);
    return out;
}

static int read_out_scale(Assistant *a, int32_t i, fr_error *err) {
    float *scale = NULL;
    int status = drafter_file_vector(&a->learned.file, name_in_layer(i, ASSISTANT_OUT_SCALE).text, 1, &scale, err);
    if (!status && *scale == 0)
        status = error_set(err, FR_ERR_FORMAT, "%s: layer %d is multiplied by 0", gguf_path(a->learned.file.gguf), i);
    if (!status) a->specs[i].out_scale = *scale;
    mem_free(scale);
    return status;
}

static int read_vectors(Assistant *a, int32_t i, fr_error *err) {
    LayerSpec *s = &a->specs[i];
    AssistantVectors *v = &a->vectors[i];
    int32_t n = a->model.hparams.n_embd;
    const struct {
        const char *name;
        int32_t n;
        float **out;
    } vectors[] = {{LAYER_ATTN_NORM, n, &v->attn_norm},
                   {NEXTN_Q_NORM, s->head_dim, &v->q_norm},
                   {ASSISTANT_POST_ATTN_NORM, n, &v->post_attn_norm},
                   {LAYER_FFN_NORM, n, &v->ffn_norm},
                   {ASSISTANT_POST_FFN_NORM, n, &v->post_ffn_norm}};
    int status = FR_OK;
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors && !status; k++)
        status = drafter_file_vector(&a->learned.file, name_in_layer(i, vectors[k].name).text, vectors[k].n,
                                     vectors[k].out, err);
    s->attn_norm = v->attn_norm;
    s->q_norm = v->q_norm;
    s->post_attn_norm = v->post_attn_norm;
    s->ffn_norm = v->ffn_norm;
    s->post_ffn_norm = v->post_ffn_norm;
    return status ? status : read_out_scale(a, i, err);
}

static int read_matrices(Assistant *a, int32_t i, int64_t n_ff, fr_error *err) {
    LayerSpec *s = &a->specs[i];
    int64_t n = a->model.hparams.n_embd, q_dim = layer_q_dim(&a->model.hparams, s);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        LayerMatrix to;
    } matrices[] = {{LAYER_ATTN_Q, n, q_dim, MATRIX_Q},
                    {LAYER_ATTN_OUTPUT, q_dim, n, MATRIX_O},
                    {LAYER_FFN_GATE, n, n_ff, MATRIX_GATE},
                    {LAYER_FFN_UP, n, n_ff, MATRIX_UP},
                    {LAYER_FFN_DOWN, n_ff, n, MATRIX_DOWN}};
    int status = FR_OK;
    for (size_t k = 0; k < sizeof matrices / sizeof *matrices && !status; k++)
        status = drafter_file_matrix(&a->learned.file, name_in_layer(i, matrices[k].name).text, matrices[k].n_in,
                                     matrices[k].n_out, &s->matrices[matrices[k].to], err);
    return status;
}

/* Reads the embedding of the file, which is only its LM head. With clusters the model's logits are their scores. */
static int read_head(Assistant *a, const Keys *k, fr_error *err) {
    LearnedDrafter *l = &a->learned;
    bool has_clusters = k->uses_clusters && drafter_file_has(&l->file, ASSISTANT_CENTROIDS);
    const GgufTensor *t = gguf_find_tensor(l->file.gguf, ASSISTANT_EMBEDDING);
    if (t && t->n_dims == 2 && t->dims[1] != l->n_vocab)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: was trained for a target with %lld tokens, and %s has %d; run the target that it was "
                         "trained for",
                         gguf_path(l->file.gguf), (long long)t->dims[1], gguf_path(l->target->gguf), l->n_vocab);
    int status = drafter_file_matrix(&l->file, ASSISTANT_EMBEDDING, a->model.hparams.n_embd, l->n_vocab,
                                     &a->model.output, err);
    if (!status && has_clusters)
        status = cluster_head_open(&a->clusters, l, a->model.output, k->n_top_clusters, &a->model.output, err);
    if (!status && has_clusters && k->n_clusters && k->n_clusters != a->clusters.n)
        status = error_set(err, FR_ERR_FORMAT, "%s: has %d clusters, but its key %s.%s is %d", gguf_path(l->file.gguf),
                           a->clusters.n, ASSISTANT_ARCHITECTURE, ASSISTANT_KEY_CLUSTERS, k->n_clusters);
    return status;
}

/* ---- all of them ------------------------------------------------------------------------------------ */

/* Sets what the model has of its target, and the greatest sizes of its layers. */
static void complete_model(Assistant *a) {
    const Model *target = a->learned.target;
    Model *m = &a->model;
    Hparams *h = &m->hparams;
    h->n_vocab = (int32_t)m->output->dims[1];
    h->rope = target->hparams.rope;
    h->local_n_rot = target->hparams.local_n_rot;
    h->n_head_kv = 1;
    for (int32_t i = 0; i < h->n_layer; i++) {
        if (a->specs[i].head_dim > h->head_dim) h->head_dim = a->specs[i].head_dim;
        if (a->specs[i].n_head_kv > h->n_head_kv) h->n_head_kv = a->specs[i].n_head_kv;
    }
    m->gguf = a->learned.file.gguf;
    memcpy(m->ropes, target->ropes, sizeof m->ropes);
    m->n_ropes = target->n_ropes;
    m->token_embd = target->token_embd;
    m->output_norm = a->output_norm;
    m->layers = a->specs;
    m->kv_model = target;
}

int assistant_read_weights(Assistant *a, fr_error *err) {
    LearnedDrafter *l = &a->learned;
    Keys keys = {.target = l->target};
    int64_t width = l->n_embd;
    int status = read_shape(a, &keys, err);
    if (!status) status = read_head(a, &keys, err);
    for (int32_t i = 0; i < a->model.hparams.n_layer && !status; i++) status = bind_layer(a, &keys, i, err);
    if (!status) status = check_rope(a, err);
    for (int32_t i = 0; i < a->model.hparams.n_layer && !status; i++) {
        status = read_vectors(a, i, err);
        if (!status) status = read_matrices(a, i, keys.n_ff[i], err);
    }
    if (status) return status;
    int64_t n = a->model.hparams.n_embd;
    status = drafter_file_vector(&l->file, ASSISTANT_OUTPUT_NORM, n, &a->output_norm, err);
    if (!status) status = learned_linear_open(l, ASSISTANT_BEFORE, 2 * width, n, false, a->max_rows, &a->before, err);
    if (!status) status = learned_linear_open(l, ASSISTANT_AFTER, n, width, false, a->max_rows, &a->after, err);
    if (status) return status;
    complete_model(a);
    return learned_layers_open(l, &a->model, &a->weights, err);
}
