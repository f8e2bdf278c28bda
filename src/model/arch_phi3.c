/* arch_phi3.c - architecture "phi3": Phi-3 and Phi-4. Queries, keys and values are one matrix, and so are gate and up; all
 * layers see a window, where the file names one. */
#include "model/arch.h"

static void keys(KeyReader *r, Hparams *h) { h->window = key_int(r, "attention.sliding_window", 0, 0, 1 << 28); }

static int attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t embd = h->n_embd, q = hparams_q_dim(h), kv = hparams_kv_dim(h);
    const GgufTensor *qkv;
    int status = arch_vector(r, i_layer, "attn_norm.weight", embd, false, &out->attn_norm);
    if (!status) status = arch_matrix(r, i_layer, "attn_qkv.weight", embd, q + 2 * kv, false, &qkv);
    if (!status) status = arch_matrix_rows(r, qkv, 0, q, &out->matrices[MATRIX_Q]);
    if (!status) status = arch_matrix_rows(r, qkv, q, kv, &out->matrices[MATRIX_K]);
    if (!status) status = arch_matrix_rows(r, qkv, q + kv, kv, &out->matrices[MATRIX_V]);
    return status ? status : arch_matrix(r, i_layer, "attn_output.weight", q, embd, false, &out->matrices[MATRIX_O]);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const GgufTensor *gate_up;
    int status = attention(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "ffn_norm.weight", h->n_embd, false, &out->ffn_norm);
    if (!status) status = arch_matrix(r, i_layer, "ffn_up.weight", h->n_embd, 2 * (int64_t)h->n_ff, false, &gate_up);
    if (!status) status = arch_matrix_rows(r, gate_up, 0, h->n_ff, &out->matrices[MATRIX_GATE]);
    if (!status) status = arch_matrix_rows(r, gate_up, h->n_ff, h->n_ff, &out->matrices[MATRIX_UP]);
    if (!status)
        status = arch_matrix(r, i_layer, "ffn_down.weight", h->n_ff, h->n_embd, false, &out->matrices[MATRIX_DOWN]);
    arch_window(r, out);
    return status;
}

const Architecture arch_phi3 = {.name = "phi3", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
