#include "backend/cpu/model.h"

#include "base/mem.h"
#include "base/threads.h"
#include "format/blocks.h"

#include <stdio.h>
#include <string.h>

/* A matrix, and where it comes from. */
typedef struct Packing {
    PackedMatrix *m;
    const GgufTensor *from;
} Packing;

typedef struct Loader {
    Model *m;
    const ModelOptions *options;
    const GgufTensor **taken; /* [n_taken] so far; room for every tensor of the file */
    int64_t n_taken;
    Packing *packings;        /* [n_packings], as many as tensors and one more at most: the output may be the embedding again */
    int64_t n_packings;
    fr_error *err;
} Loader;

/* The tensor with exactly that shape (n_out 0: a vector). A missing one is an error unless optional. */
static int take(Loader *l, const char *name, int64_t n_in, int64_t n_out, bool optional, const GgufTensor **out) {
    const GgufTensor *t = gguf_find_tensor(l->m->gguf, name);
    const char *path = gguf_path(l->m->gguf);
    *out = t;
    if (!t)
        return optional ? FR_OK : error_set(l->err, FR_ERR_FORMAT, "%s: tensor %s is missing", path, name);
    if (t->n_dims != (n_out ? 2 : 1) || t->dims[0] != n_in || (n_out && t->dims[1] != n_out))
        return error_set(l->err, FR_ERR_FORMAT, "%s: tensor %s has the wrong shape: %lld x %lld where %lld x %lld fits",
                         path, name, (long long)t->dims[0], (long long)t->dims[1], (long long)n_in,
                         (long long)(n_out ? n_out : 1));
    l->taken[l->n_taken++] = t;
    return FR_OK;
}

static int take_vector(Loader *l, const char *name, int64_t n, bool optional, float **out) {
    const GgufTensor *t;
    int status = take(l, name, n, 0, optional, &t);
    if (status || !t) return status;
    size_t row_bytes;
    if (!tensor_type_row_bytes(t->type, n, &row_bytes))
        return error_set(l->err, FR_ERR_FORMAT, "%s: tensor %s is not whole blocks", gguf_path(l->m->gguf), name);
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!*out) return error_memory(l->err, name, (size_t)n * sizeof **out);
    blocks_dequantize(t->type, t->data, n, *out);
    return FR_OK;
}

static void fill_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Packing *p = ctx;
    int64_t begin, end;
    threads_split(packed_n_tiles(p->m), 1, i_part, n_parts, &begin, &end);
    packed_fill(p->m, p->from->data, begin, end);
}

/* Sets the shape of a matrix that pack_all will fill. */
static int will_pack(Loader *l, const GgufTensor *t, PackedMatrix *out) {
    int status = packed_shape(out, t->type, l->options->activations, t->dims[1], t->dims[0], l->err);
    if (status) return status;
    l->packings[l->n_packings++] = (Packing){out, t};
    if (!size_add(l->m->weight_bytes, packed_bytes(out), &l->m->weight_bytes)) return error_memory(l->err, "the weights", SIZE_MAX);
    return FR_OK;
}

/* All matrices into one block: small ones too then lie in huge pages, and no page is left half empty. */
static int pack_all(Loader *l) {
    char *at = l->m->weights = mem_alloc(l->m->weight_bytes);
    if (!at) return error_memory(l->err, "the weights", l->m->weight_bytes);
    size_t done = 0;
    for (int64_t i = 0; i < l->n_packings; i++) {
        PackedMatrix *m = l->packings[i].m;
        m->data = at + done;
        threads_run_once(l->options->n_threads, fill_part, &l->packings[i]);
        done += packed_bytes(m);
        if (l->options->progress) l->options->progress(l->options->progress_user, (double)done / (double)l->m->weight_bytes);
    }
    return FR_OK;
}

static int take_matrix(Loader *l, const char *name, int64_t n_in, int64_t n_out, PackedMatrix *out) {
    const GgufTensor *t;
    int status = take(l, name, n_in, n_out, false, &t);
    return status ? status : will_pack(l, t, out);
}

static int load_layer(Loader *l, int32_t i) {
    const Hparams *h = &l->m->hparams;
    LayerWeights *w = &l->m->layers[i];
    int64_t q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    const struct { const char *name; int64_t n; bool optional; float **out; } vectors[] = {
        {"attn_norm.weight", h->n_embd, false, &w->attn_norm},
        {"ffn_norm.weight", h->n_embd, false, &w->ffn_norm},
        {"attn_q.bias", q_dim, true, &w->q_bias},
        {"attn_k.bias", kv_dim, true, &w->k_bias},
        {"attn_v.bias", kv_dim, true, &w->v_bias},
        {"attn_q_norm.weight", h->head_dim, h->arch != ARCH_QWEN3, &w->q_norm},
        {"attn_k_norm.weight", h->head_dim, h->arch != ARCH_QWEN3, &w->k_norm},
    };
    const struct { const char *name; int64_t n_in, n_out; PackedMatrix *out; } matrices[] = {
        {"attn_q.weight", h->n_embd, q_dim, &w->q},
        {"attn_k.weight", h->n_embd, kv_dim, &w->k},
        {"attn_v.weight", h->n_embd, kv_dim, &w->v},
        {"attn_output.weight", q_dim, h->n_embd, &w->o},
        {"ffn_gate.weight", h->n_embd, h->n_ff, &w->gate},
        {"ffn_up.weight", h->n_embd, h->n_ff, &w->up},
        {"ffn_down.weight", h->n_ff, h->n_embd, &w->down},
    };
    char name[64];
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors; k++) {
        snprintf(name, sizeof name, "blk.%d.%s", i, vectors[k].name);
        int status = take_vector(l, name, vectors[k].n, vectors[k].optional, vectors[k].out);
        if (status) return status;
    }
    for (size_t k = 0; k < sizeof matrices / sizeof *matrices; k++) {
        snprintf(name, sizeof name, "blk.%d.%s", i, matrices[k].name);
        int status = take_matrix(l, name, matrices[k].n_in, matrices[k].n_out, matrices[k].out);
        if (status) return status;
    }
    return FR_OK;
}

static int load_rope(Loader *l) {
    const RopeParams *p = &l->m->hparams.rope;
    float *factors = NULL;
    int status = take_vector(l, "rope_freqs.weight", p->n_rot / 2, true, &factors);
    for (int32_t i = 0; !status && factors && i < p->n_rot / 2; i++)
        if (!(factors[i] > 0))
            status = error_set(l->err, FR_ERR_FORMAT, "%s: rope_freqs.weight holds %g where only positive factors "
                               "make sense", gguf_path(l->m->gguf), (double)factors[i]);
    if (!status) status = rope_init(&l->m->rope, p, factors, l->err);
    mem_free(factors);
    return status;
}

/* A tensor that nobody took would be silently ignored, and the model run wrongly: name it instead. */
static int refuse_unknown_tensors(Loader *l) {
    const Gguf *g = l->m->gguf;
    for (int64_t i = 0; l->n_taken < gguf_n_tensors(g) && i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        bool is_taken = false;
        for (int64_t k = 0; k < l->n_taken && !is_taken; k++) is_taken = l->taken[k] == t;
        if (!is_taken)
            return error_set(l->err, FR_ERR_UNSUPPORTED,
                             "%s: tensor %s is not part of architecture %s as forerun knows it; the model would be "
                             "run wrongly", gguf_path(g), t->name, arch_name(l->m->hparams.arch));
    }
    return FR_OK;
}

static int load(Loader *l) {
    Model *m = l->m;
    int status = hparams_read(&m->hparams, m->gguf, l->err);
    if (status) return status;
    const Hparams *h = &m->hparams;
    if ((status = load_rope(l))) return status;
    if ((status = take(l, "token_embd.weight", h->n_embd, h->n_vocab, false, &m->token_embd))) return status;
    if ((status = take_vector(l, "output_norm.weight", h->n_embd, false, &m->output_norm))) return status;
    const GgufTensor *output;
    if ((status = take(l, "output.weight", h->n_embd, h->n_vocab, true, &output))) return status;
    m->layers = mem_calloc((size_t)h->n_layer, sizeof *m->layers);
    if (!m->layers) return error_memory(l->err, "layers", (size_t)h->n_layer * sizeof *m->layers);
    for (int32_t i = 0; i < h->n_layer; i++)
        if ((status = load_layer(l, i))) return status;
    if ((status = will_pack(l, output ? output : m->token_embd, &m->output))) return status;
    status = refuse_unknown_tensors(l);
    return status ? status : pack_all(l);
}

int model_open(Model **out, const Gguf *g, const ModelOptions *options, fr_error *err) {
    *out = NULL;
    Model *m = mem_calloc(1, sizeof *m);
    if (!m) return error_memory(err, "a model", sizeof *m);
    m->gguf = g;
    m->activations = options->activations;
    m->kernels = options->kernels ? options->kernels : kernels_select(NULL);
    Loader l = {.m = m, .options = options, .err = err};
    l.taken = mem_calloc((size_t)gguf_n_tensors(g), sizeof *l.taken);
    l.packings = mem_calloc((size_t)gguf_n_tensors(g) + 1, sizeof *l.packings);
    int status = l.taken && l.packings ? load(&l) : error_memory(err, "a list of tensors", (size_t)gguf_n_tensors(g) * sizeof *l.packings);
    mem_free(l.taken);
    mem_free(l.packings);
    if (status) {
        model_close(m);
        return status;
    }
    *out = m;
    return FR_OK;
}

void model_embedding(const Model *m, int32_t token, float *out) {
    const GgufTensor *t = m->token_embd;
    size_t row_bytes = t->bytes / (size_t)m->hparams.n_vocab;
    blocks_dequantize(t->type, (const char *)t->data + (size_t)token * row_bytes, m->hparams.n_embd, out);
}

static void free_layer(LayerWeights *w) {
    float *vectors[] = {w->attn_norm, w->ffn_norm, w->q_norm, w->k_norm, w->q_bias, w->k_bias, w->v_bias};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) mem_free(vectors[i]);
}

void model_close(Model *m) {
    if (!m) return;
    for (int32_t i = 0; m->layers && i < m->hparams.n_layer; i++) free_layer(&m->layers[i]);
    mem_free(m->layers);
    mem_free(m->output_norm);
    mem_free(m->weights);
    rope_free(&m->rope);
    mem_free(m);
}
