/* dflash_weights.c - the weights of a drafter `dflash`: its layers, which become a model between the target's embedding
 * and an LM head, and what is around them, by the names of the architecture dflash and of the older dflash-draft
 * and qwen35-dflash-draft (learned_files.h). Proof: tests/draft/test_draft_dflash.c. */
#include "draft/learned/dflash.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"

#include <stdio.h>

void dflash_close_weights(Dflash *d) {
    learned_linear_close(&d->learned, d->fc);
    markov_head_close(&d->markov);
    token_selector_close(&d->selector);
    one_layer_close(&d->layers);
    for (int32_t i = 0; i < DFLASH_MAX_LAYERS; i++) {
        DflashVectors *v = &d->vectors[i];
        float *const all[] = {v->attn_norm, v->q_norm, v->k_norm, v->sinks,  v->ffn_norm, v->attn_conv,
                              v->ffn_conv,  v->q_bias, v->k_bias, v->v_bias, v->o_bias};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) mem_free(all[k]);
        gemma_layer_close(&v->gemma);
    }
    mem_free(d->context_norm);
    mem_free(d->output_norm);
    rope_free(&d->rope);
    own_embedding_close(&d->embedding);
}

/* Returns the first of two names that the file has as a tensor, or the first name. */
static const char *tensor_named(const LearnedDrafter *l, const char *name, const char *old) {
    return !drafter_file_has(&l->file, name) && drafter_file_has(&l->file, old) ? old : name;
}

/* The same for a tensor with two old names. */
static const char *tensor_of(const LearnedDrafter *l, const char *name, const char *old, const char *lucebox) {
    return tensor_named(l, name, tensor_named(l, old, lucebox));
}

/* Reads the norms of a layer, and the biases and sinks of its attention, if it has them. */
static int read_layer_vectors(Dflash *d, int32_t i, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    const Hparams *h = &d->layers.model.hparams;
    DflashVectors *v = &d->vectors[i];
    const struct {
        const char *name; /* printf format */
        int64_t n;
        bool is_optional;
        float **out;
    } vectors[] = {{DFLASH_WEIGHT(DFLASH_ATTN_NORM), h->n_embd, false, &v->attn_norm},
                   {DFLASH_WEIGHT(DFLASH_Q_NORM), h->head_dim, true, &v->q_norm},
                   {DFLASH_WEIGHT(DFLASH_K_NORM), h->head_dim, true, &v->k_norm},
                   {DFLASH_WEIGHT(DFLASH_SINKS), h->n_head, true, &v->sinks},
                   {DFLASH_WEIGHT(DFLASH_FFN_NORM), h->n_embd, false, &v->ffn_norm},
                   {DFLASH_BIAS(DFLASH_ATTN_Q), hparams_q_dim(h), true, &v->q_bias},
                   {DFLASH_BIAS(DFLASH_ATTN_K), hparams_kv_dim(h), true, &v->k_bias},
                   {DFLASH_BIAS(DFLASH_ATTN_V), hparams_kv_dim(h), true, &v->v_bias},
                   {DFLASH_BIAS(DFLASH_ATTN_OUTPUT), h->n_embd, true, &v->o_bias}};
    int status = FR_OK;
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors && !status; k++) {
        char name[64], old[64];
        snprintf(name, sizeof name, vectors[k].name, i);
        snprintf(old, sizeof old, DFLASH_LAYER, i, "post_attention_norm");
        const char *found = vectors[k].out == &v->ffn_norm ? tensor_named(l, name, old) : name;
        if (vectors[k].is_optional && !drafter_file_has(&l->file, found)) continue;
        status = drafter_file_vector(&l->file, found, vectors[k].n, vectors[k].out, err);
    }
    return status;
}

/* Reads the convolution around a part of a layer, `part` being attn or ffn, and the matrix that makes its kernels. */
static int read_conv(Dflash *d, int32_t i, const char *part, const char *kernels, const GgufTensor **matrix,
                     float **base, BlockConv *out, fr_error *err) {
    const DflashKeys *k = &d->keys;
    int64_t n = d->layers.model.hparams.n_embd;
    const int64_t dims[] = {n, k->conv_taps, 2};
    char name[64];
    if (k->conv_taps == 0) return FR_OK;
    if (n % k->conv_group)
        return error_set(err, FR_ERR_FORMAT, "%s: groups of %d channels do not divide a width of %lld evenly",
                         gguf_path(d->learned.file.gguf), k->conv_group, (long long)n);
    snprintf(name, sizeof name, DFLASH_CONV_BASE, i, part);
    int status = drafter_file_cube(&d->learned.file, name, dims, base, err);
    if (status) return status;
    *out = (BlockConv){.n_taps = k->conv_taps, .group = k->conv_group, .base = *base};
    snprintf(name, sizeof name, DFLASH_LAYER, i, kernels);
    return drafter_file_matrix(&d->learned.file, name, n, block_conv_kernels(out, n), matrix, err);
}

static int read_layer(Dflash *d, int32_t i, fr_error *err) {
    const Hparams *h = &d->layers.model.hparams;
    DflashVectors *v = &d->vectors[i];
    LayerSpec *spec = &d->specs[i];
    int64_t n = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        LayerMatrix to;
    } matrices[] = {
        {DFLASH_ATTN_Q, n, q_dim, MATRIX_Q},        {DFLASH_ATTN_K, n, kv_dim, MATRIX_K},
        {DFLASH_ATTN_V, n, kv_dim, MATRIX_V},       {DFLASH_ATTN_OUTPUT, q_dim, n, MATRIX_O},
        {DFLASH_FFN_GATE, n, h->n_ff, MATRIX_GATE}, {DFLASH_FFN_UP, n, h->n_ff, MATRIX_UP},
        {DFLASH_FFN_DOWN, h->n_ff, n, MATRIX_DOWN},
    };
    int status = read_layer_vectors(d, i, err);
    for (size_t k = 0; k < sizeof matrices / sizeof *matrices && !status; k++) {
        char name[64];
        snprintf(name, sizeof name, DFLASH_LAYER, i, matrices[k].name);
        bool is_optional = matrices[k].to == MATRIX_V && gemma_layer_in(&d->learned.file, i);
        if (is_optional && !drafter_file_has(&d->learned.file, name)) continue;
        status = drafter_file_matrix(&d->learned.file, name, matrices[k].n_in, matrices[k].n_out,
                                     &spec->matrices[matrices[k].to], err);
    }
    if (!status)
        status = read_conv(d, i, "attn", DFLASH_ATTN_CONV, &spec->matrices[MATRIX_ATTN_CONV], &v->attn_conv,
                           &spec->attn_conv, err);
    if (!status)
        status = read_conv(d, i, "ffn", DFLASH_FFN_CONV, &spec->matrices[MATRIX_FFN_CONV], &v->ffn_conv,
                           &spec->ffn_conv, err);
    if (!status) status = gemma_layer_read(&v->gemma, &d->learned.file, i, h, spec, err);
    spec->attn_scale = h->attn_scale;
    spec->attn_norm = v->attn_norm;
    spec->q_norm = v->q_norm;
    spec->k_norm = v->k_norm;
    spec->sinks = v->sinks;
    spec->q_bias = v->q_bias, spec->k_bias = v->k_bias, spec->v_bias = v->v_bias, spec->o_bias = v->o_bias;
    spec->ffn_norm = v->ffn_norm;
    spec->mixer = d->keys.has_window[i] ? MIXER_WINDOW : MIXER_ATTENTION;
    spec->window = d->keys.has_window[i] ? d->keys.window : 0;
    spec->is_causal = d->keys.has_window[i] && d->keys.windows_are_causal;
    return status;
}

int dflash_read_shape(Dflash *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    Hparams h;
    int status = dflash_read_keys(&h, &d->keys, &l->file, l->target, err);
    if (status) return status;
    d->layers.model = (Model){.gguf = l->file.gguf, .hparams = h, .n_ropes = 1, .token_embd = l->target->token_embd};
    return FR_OK;
}

int dflash_read_weights(Dflash *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    Model *m = &d->layers.model;
    const Hparams *h = &m->hparams;
    int64_t n_streams = d->keys.streams.n * (int64_t)l->n_embd;
    const char *fc_name = tensor_of(l, DFLASH_FC, "dflash_fc.weight", "dflash.fc.weight"),
               *norm = tensor_of(l, DFLASH_CONTEXT_NORM, "hidden_norm.weight",
                                 tensor_named(l, "dflash_hidden_norm.weight", "dflash.hidden_norm.weight"));
    const GgufTensor *fc;
    int status = drafter_file_vector(&l->file, norm, h->n_embd, &d->context_norm, err);
    if (!status) status = drafter_file_vector(&l->file, DFLASH_OUTPUT_NORM, h->n_embd, &d->output_norm, err);
    for (int32_t i = 0; i < h->n_layer && !status; i++) status = read_layer(d, i, err);
    if (!status) status = own_head_read(l, m, DFLASH_OUTPUT, err);
    if (d->keys.logit_scale > 0) m->hparams.logit_scale = d->keys.logit_scale;
    if (d->keys.logit_cap >= 0) m->hparams.logit_cap = d->keys.logit_cap;
    if (!status) status = own_embedding_read(&d->embedding, l, DFLASH_EMBEDDING, h->n_embd, err);
    if (!status) status = markov_head_open(&d->markov, l, h->n_embd, h->n_vocab, err);
    if (!status) status = token_selector_open(&d->selector, l, h->n_embd, d->keys.selector_top, err);
    if (!status) status = drafter_file_matrix(&l->file, fc_name, n_streams, h->n_embd, &fc, err);
    if (!status) status = l->backend->linear_open(&d->fc, l->device, l->weights, fc, NULL, d->max_rows, err);
    if (!status) status = own_rope_open(&d->rope, &l->file, &h->rope, DFLASH_ROPE_FACTORS, err);
    if (status) return status;
    m->layers = d->specs;
    m->ropes[0] = d->rope;
    m->output_norm = d->output_norm;
    return learned_layers_open(l, m, &d->layers.weights, err);
}
