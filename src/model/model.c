/* model.c - reads a model file into its description. The architecture describes the layers (arch.h), and model_reader.c
 * takes their tensors. Every tensor of the file must be used. */
#include "model/model.h"

#include "base/error.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "model/model_reader.h"

#include <stdio.h>
#include <string.h>

int model_refuse_not_finite(const Model *m, const GgufTensor *t, fr_error *err) {
    return error_set(
        err, FR_ERR_FORMAT,
        "%s: tensor %s holds NaN or infinity; the file is damaged, or its training or conversion went wrong",
        gguf_path(m->gguf), t->name);
}

/* Makes the rope of the layers with a window, if they have one of their own. */
static int load_local_rope(ArchReader *r) {
    const Hparams *h = &r->m->hparams;
    if (h->local_rope_base <= 0) return FR_OK;
    const RopeParams p = {.style = h->rope.style,
                          .n_rot = h->local_n_rot ? h->local_n_rot : h->rope.n_rot,
                          .base = h->local_rope_base,
                          .factor = 1};
    int status = rope_init(&r->m->ropes[1], &p, NULL, r->err);
    if (!status) r->m->n_ropes = 2;
    return status;
}

/* Takes divisors of the frequencies; *out is NULL if the file has none. */
static int take_rope_factors(ArchReader *r, const char *name, const float **out) {
    int32_t n = r->m->hparams.rope.n_rot / 2;
    int status = model_reader_take_vector(r, name, n, true, out);
    for (int32_t i = 0; !status && *out && i < n; i++)
        if (!((*out)[i] > 0))
            status = error_set(r->err, FR_ERR_FORMAT, "%s: %s holds %g where only positive factors make sense",
                               gguf_path(r->m->gguf), name, (double)(*out)[i]);
    return status;
}

/* There may be one set of factors, or the two of LongRoPE. */
static int load_rope(ArchReader *r) {
    Model *m = r->m;
    const RopeParams *p = &m->hparams.rope;
    const float *factors = NULL, *short_factors = NULL, *long_factors = NULL;
    int status = take_rope_factors(r, "rope_freqs.weight", &factors);
    if (!status) status = take_rope_factors(r, "rope_factors_short.weight", &short_factors);
    if (!status) status = take_rope_factors(r, "rope_factors_long.weight", &long_factors);
    if (!status && (!short_factors != !long_factors || (factors && short_factors)))
        status = error_set(
            r->err, FR_ERR_FORMAT,
            "%s: LongRoPE has the tensors rope_factors_short.weight and rope_factors_long.weight, and no "
            "other factors",
            gguf_path(m->gguf));
    if (!status) status = rope_init(&m->ropes[0], p, short_factors ? short_factors : factors, r->err);
    if (!status) m->n_ropes = 1;
    if (!status && long_factors) status = rope_init(&m->long_rope, p, long_factors, r->err);
    return status ? status : load_local_rope(r);
}

/* Returns whether the tensor belongs to a layer after those that are run. */
static bool is_of_nextn(const ArchReader *r, const char *name) {
    const Hparams *h = &r->m->hparams;
    int layer;
    return h->n_nextn && sscanf(name, "blk.%d.", &layer) == 1 && layer >= h->n_layer && layer < h->n_layer + h->n_nextn;
}

static int refuse_unknown_tensors(const ArchReader *r) {
    const Gguf *g = r->m->gguf;
    for (int64_t i = 0; r->n_taken < gguf_n_tensors(g) && i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        if (!r->taken[i] && !is_of_nextn(r, t->name)) return model_reader_refuse(r, t);
    }
    return FR_OK;
}

/* Returns the name "NAME.scale" or "NAME.input_scale" that belongs to a tensor "NAME.weight". */
static TensorName name_beside(const GgufTensor *t, const char *suffix) {
    TensorName out;
    const char *dot = strrchr(t->name, '.');
    snprintf(out.text, sizeof out.text, "%.*s.%s", dot ? (int)(dot - t->name) : 0, t->name, suffix);
    return out;
}

/* Takes the factors of the matrices of a layer. attn_kv_b is not used as it is in the file, so its factors are
 * refused. */
static int take_scales(ArchReader *r, LayerSpec *l) {
    for (int m = 0; m < LAYER_MATRICES; m++) {
        const GgufTensor *t = l->matrices[m], *any;
        if (!t || t->type != TYPE_NVFP4 || strstr(t->name, "attn_kv_b")) continue;
        TensorName scale = name_beside(t, "scale"), of_inputs = name_beside(t, "input_scale");
        int status = model_reader_take_vector(r, scale.text, t->dims[2], true, &l->scales[m]);
        if (!status) status = model_reader_take(r, of_inputs.text, t->dims[2], 0, true, &any);
        if (status) return status;
    }
    return FR_OK;
}

int model_read_layer(ArchReader *r, int32_t i, LayerSpec *out) {
    const Hparams *h = &r->m->hparams;
    Hparams *of = &r->of_layer;
    *of = *h;
    of->n_ff = (int32_t)arch_number_of_layer(r, "feed_forward_length", i, h->n_ff);
    if (!h->latent.rank && !arch_find(h->arch)->has_no_attention) {
        of->n_head = (int32_t)arch_number_of_layer(r, "attention.head_count", i, h->n_head);
        of->n_head_kv = (int32_t)arch_number_of_layer(r, "attention.head_count_kv", i, h->n_head_kv);
        if (of->n_head != h->n_head) out->n_head = of->n_head;
        if (of->n_head_kv != h->n_head_kv) out->n_head_kv = of->n_head_kv;
    }
    int status = arch_find(h->arch)->layer(r, i, out);
    return status ? status : take_scales(r, out);
}

static int load(ArchReader *r) {
    Model *m = r->m;
    int status = hparams_read(&m->hparams, m->gguf, r->err);
    if (status) return status;
    const Hparams *h = &m->hparams;
    r->of_layer = *h;
    if ((status = load_rope(r))) return status;
    const Architecture *arch = arch_find(h->arch);
    TensorId norm = arch->has_embd_norm ? TENSOR_EMBD_NORM : TENSOR_OUTPUT_NORM;
    if ((status = arch_tensor(r, 0, TENSOR_TOKEN_EMBD, false, &m->token_embd))) return status;
    if ((status = arch_vector(r, 0, norm, false, &m->output_norm))) return status;
    if ((status = arch_tensor(r, 0, TENSOR_OUTPUT, true, &m->output))) return status;
    if (!m->output) m->output = m->token_embd;
    if (h->n_ple && (status = arch_tensor(r, 0, TENSOR_PLE_TABLE, false, &m->ple_table))) return status;
    if ((status = arch_vector(r, 0, TENSOR_OUTPUT_BIAS, true, &m->output_bias))) return status;
    LayerSpec *layers = mem_calloc((size_t)h->n_layer, sizeof *layers);
    if (!layers) return error_memory(r->err, "layers", (size_t)h->n_layer * sizeof *layers);
    m->layers = m->memory->layers = layers;
    for (int32_t i = 0; i < h->n_layer; i++)
        if ((status = model_read_layer(r, i, &layers[i]))) return status;
    return refuse_unknown_tensors(r);
}

int model_open(Model **out, const Gguf *g, fr_error *err) {
    *out = NULL;
    Model *m = mem_calloc(1, sizeof *m);
    if (!m) return error_memory(err, "a model", sizeof *m);
    m->gguf = g;
    ArchReader r = {.m = m, .err = err};
    int status = model_reader_open(&r, (size_t)gguf_n_tensors(g));
    if (!status) status = load(&r);
    mem_free(r.taken);
    if (status) {
        model_close(m);
        return status;
    }
    *out = m;
    return FR_OK;
}

void model_close(Model *m) {
    if (!m) return;
    model_memory_free(m->memory);
    for (int i = 0; i < m->n_ropes; i++) rope_free(&m->ropes[i]);
    rope_free(&m->long_rope);
    mem_free(m);
}
