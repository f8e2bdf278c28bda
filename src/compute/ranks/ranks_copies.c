/* ranks_copies.c - the layers of a learned drafter as bytes, from which another rank makes the same Model.
 *
 * A draft model can be opened anew by its file. The layers of a learned drafter are described by the method that reads
 * the file, which only rank 0 runs. So rank 0 sends the description: the structs as they are, because all ranks run the
 * same program, the names of the matrices, which each rank finds in its own copy of the file, and the numbers of the
 * vectors, which are small. Pointers within the structs only say what is there. The embedding is always the target's,
 * and so are keys and values that the layers read without having any of their own.
 *
 * Layers that have more than attention and a dense feed-forward part cannot be sent, and neither can matrices that are
 * not in the file, such as a selection of rows of the target's LM head. They are whole. */
#include "compute/ranks/ranks.h"

#include <stddef.h>
#include <string.h>

enum { ALIGNMENT = 8 };

/* How many numbers a vector has. */
typedef enum VectorSize { OF_EMBD, OF_Q, OF_KV, OF_HEAD, OF_HEADS, OF_FF } VectorSize;

static const struct {
    size_t at; /* in a LayerSpec */
    VectorSize size;
} vectors[] = {
    {offsetof(LayerSpec, attn_norm), OF_EMBD}, {offsetof(LayerSpec, q_bias), OF_Q},
    {offsetof(LayerSpec, k_bias), OF_KV},      {offsetof(LayerSpec, v_bias), OF_KV},
    {offsetof(LayerSpec, o_bias), OF_EMBD},    {offsetof(LayerSpec, q_norm), OF_HEAD},
    {offsetof(LayerSpec, k_norm), OF_HEAD},    {offsetof(LayerSpec, v_norm), OF_HEAD},
    {offsetof(LayerSpec, sinks), OF_HEADS},    {offsetof(LayerSpec, post_attn_norm), OF_EMBD},
    {offsetof(LayerSpec, ffn_norm), OF_EMBD},  {offsetof(LayerSpec, post_ffn_norm), OF_EMBD},
    {offsetof(LayerSpec, gate_bias), OF_FF},   {offsetof(LayerSpec, up_bias), OF_FF},
    {offsetof(LayerSpec, down_bias), OF_EMBD},
};
enum { N_VECTORS = sizeof vectors / sizeof *vectors };

static size_t vector_bytes(const Hparams *h, const LayerSpec *l, VectorSize size) {
    const int64_t n[] = {[OF_EMBD] = h->n_embd,           [OF_Q] = layer_q_dim(h, l),
                         [OF_KV] = layer_kv_dim(h, l),    [OF_HEAD] = layer_head_dim(h, l),
                         [OF_HEADS] = layer_n_head(h, l), [OF_FF] = h->n_ff};
    return (size_t)n[size] * sizeof(float);
}

static const float *vector_of(const LayerSpec *l, int i) {
    const float *v;
    memcpy(&v, (const char *)l + vectors[i].at, sizeof v);
    return v;
}

static size_t freqs_bytes(const Rope *r) { return (size_t)r->params.n_rot / 2 * sizeof *r->freqs; }
static bool is_in_file(const Gguf *g, const GgufTensor *t) { return gguf_find_tensor(g, t->name) == t; }

/* ---- what can be sent ------------------------------------------------------------------------------------- */

static bool can_send_layer(const Model *m, const LayerSpec *l) {
    bool can = (l->mixer == MIXER_ATTENTION || l->mixer == MIXER_WINDOW) && l->ffn == FFN_DENSE;
    can = can && !l->attn_conv.base && !l->ffn_conv.base && !l->ple_norm && (!l->shares_kv || m->kv_model);
    for (int k = 0; k < LAYER_MATRICES && can; k++)
        can = !l->scales[k] && (!l->matrices[k] || is_in_file(m->gguf, l->matrices[k]));
    return can;
}

bool ranks_can_send(const Model *m, const Model *target) {
    bool can = m->hparams.n_layer > 0 && m->token_embd == target->token_embd && !m->ple_table;
    can = can && (!m->kv_model || m->kv_model == target);
    can = can && (m->output == target->output || is_in_file(m->gguf, m->output));
    can = can && (!m->output_bias || m->output_bias == target->output_bias);
    for (int32_t i = 0; i < m->hparams.n_layer && can; i++) can = can_send_layer(m, &m->layers[i]);
    return can;
}

/* ---- on rank 0 -------------------------------------------------------------------------------------------- */

static void put(Ranks *r, const void *bytes, size_t n) {
    static const char zeros[ALIGNMENT];
    ranks_put(r, bytes, n);
    ranks_put(r, zeros, (ALIGNMENT - n % ALIGNMENT) % ALIGNMENT);
}

static void put_name(Ranks *r, const GgufTensor *t) { put(r, t->name, strlen(t->name) + 1); }

void ranks_put_layers(Ranks *r, const Model *m, const Model *target) {
    const Hparams *h = &m->hparams;
    put(r, m, sizeof *m);
    put(r, m->layers, (size_t)h->n_layer * sizeof *m->layers);
    for (int i = 0; i < m->n_ropes; i++) put(r, m->ropes[i].freqs, freqs_bytes(&m->ropes[i]));
    if (m->long_rope.freqs) put(r, m->long_rope.freqs, freqs_bytes(&m->long_rope));
    if (m->output_norm) put(r, m->output_norm, (size_t)h->n_embd * sizeof(float));
    if (m->output == target->output) put(r, "", 1);
    else put_name(r, m->output);
    for (int32_t i = 0; i < h->n_layer; i++) {
        const LayerSpec *l = &m->layers[i];
        for (int k = 0; k < LAYER_MATRICES; k++)
            if (l->matrices[k]) put_name(r, l->matrices[k]);
        for (int k = 0; k < N_VECTORS; k++)
            if (vector_of(l, k)) put(r, vector_of(l, k), vector_bytes(h, l, vectors[k].size));
    }
}

/* ---- on the other ranks ----------------------------------------------------------------------------------- */

/* Returns the next n bytes of what was put. */
static void *take(char **at, size_t n) {
    char *bytes = *at;
    *at += (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return bytes;
}

static const GgufTensor *take_matrix(char **at, const Gguf *g) {
    const char *name = take(at, strlen(*at) + 1);
    return gguf_find_tensor(g, name);
}

static void take_layer(char **at, const Model *m, LayerSpec *l) {
    for (int k = 0; k < LAYER_MATRICES; k++)
        if (l->matrices[k]) l->matrices[k] = take_matrix(at, m->gguf);
    for (int k = 0; k < N_VECTORS; k++) {
        if (!vector_of(l, k)) continue;
        const float *v = take(at, vector_bytes(&m->hparams, l, vectors[k].size));
        memcpy((char *)l + vectors[k].at, &v, sizeof v);
    }
}

Model *ranks_take_layers(char *bytes, const Gguf *g, const Model *target) {
    char *at = bytes;
    Model *m = take(&at, sizeof *m);
    LayerSpec *layers = take(&at, (size_t)m->hparams.n_layer * sizeof *layers);
    m->gguf = g, m->layers = layers, m->token_embd = target->token_embd;
    for (int i = 0; i < m->n_ropes; i++) m->ropes[i].freqs = take(&at, freqs_bytes(&m->ropes[i]));
    if (m->long_rope.freqs) m->long_rope.freqs = take(&at, freqs_bytes(&m->long_rope));
    if (m->output_norm) m->output_norm = take(&at, (size_t)m->hparams.n_embd * sizeof(float));
    const GgufTensor *own = take_matrix(&at, g); /* there is none with the name "" */
    m->output = own ? own : target->output;
    if (m->output_bias) m->output_bias = target->output_bias;
    if (m->kv_model) m->kv_model = target;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) take_layer(&at, m, &layers[i]);
    return m;
}
