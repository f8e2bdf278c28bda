/* arch.c - the table of architectures, and the parts of a layer that most of them share. */
#include "model/arch.h"

#include <string.h>

static const Architecture *const architectures[ARCH_COUNT] = {
    [ARCH_LLAMA] = &arch_llama, [ARCH_QWEN2] = &arch_qwen2, [ARCH_QWEN3] = &arch_qwen3};

const Architecture *arch_find(Arch arch) { return architectures[arch]; }
const char *arch_name(Arch arch) { return architectures[arch]->name; }

bool arch_from_name(const char *name, size_t n, Arch *out) {
    for (int i = 0; i < ARCH_COUNT; i++)
        if (n == strlen(architectures[i]->name) && memcmp(name, architectures[i]->name, n) == 0) {
            *out = (Arch)i;
            return true;
        }
    return false;
}

int arch_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t embd = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    out->mixer = MIXER_ATTENTION;
    int status = arch_vector(r, i_layer, "attn_norm.weight", embd, false, &out->attn_norm);
    if (!status) status = arch_matrix(r, i_layer, "attn_q.weight", embd, q_dim, false, &out->q);
    if (!status) status = arch_matrix(r, i_layer, "attn_k.weight", embd, kv_dim, false, &out->k);
    if (!status) status = arch_matrix(r, i_layer, "attn_v.weight", embd, kv_dim, false, &out->v);
    return status ? status : arch_matrix(r, i_layer, "attn_output.weight", q_dim, embd, false, &out->o);
}

int arch_qkv_biases(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_vector(r, i_layer, "attn_q.bias", hparams_q_dim(h), true, &out->q_bias);
    if (!status) status = arch_vector(r, i_layer, "attn_k.bias", hparams_kv_dim(h), true, &out->k_bias);
    return status ? status : arch_vector(r, i_layer, "attn_v.bias", hparams_kv_dim(h), true, &out->v_bias);
}

int arch_head_norms(ArchReader *r, int32_t i_layer, bool optional, LayerSpec *out) {
    int32_t n = arch_hparams(r)->head_dim;
    int status = arch_vector(r, i_layer, "attn_q_norm.weight", n, optional, &out->q_norm);
    return status ? status : arch_vector(r, i_layer, "attn_k_norm.weight", n, optional, &out->k_norm);
}

int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    out->ffn = FFN_DENSE;
    int status = arch_vector(r, i_layer, "ffn_norm.weight", h->n_embd, false, &out->ffn_norm);
    if (!status) status = arch_matrix(r, i_layer, "ffn_gate.weight", h->n_embd, h->n_ff, false, &out->gate);
    if (!status) status = arch_matrix(r, i_layer, "ffn_up.weight", h->n_embd, h->n_ff, false, &out->up);
    return status ? status : arch_matrix(r, i_layer, "ffn_down.weight", h->n_ff, h->n_embd, false, &out->down);
}
