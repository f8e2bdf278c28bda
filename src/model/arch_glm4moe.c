/* arch_glm4moe.c - architecture "glm4moe": GLM-4.5, 4.5-Air, 4.6 and 4.7. Part of each head is rotated, queries, keys and values
 * have biases, and some of these models (GLM-4.5, not Air) norms of query and key heads; leading dense layers, then experts by
 * sigmoids with a bias of choices and shared ones beside them. The norm before the feed-forward part is called
 * post_attention_norm. A file that does not name the router's gate has sigmoids. */
#include "model/arch.h"

static void keys(KeyReader *r, Hparams *h) {
    arch_nextn_keys(r, h);
    arch_routed_keys(r, h);
    if (!h->has_router_gate) h->has_router_gate = true, h->router_gate = ROUTER_SIGMOID;
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, true, out);
    if (!status)
        status = arch_vector(r, i_layer, "post_attention_norm.weight", arch_hparams(r)->n_embd, false, &out->ffn_norm);
    return status ? status : arch_routed_ffn(r, i_layer, out);
}

const Architecture arch_glm4moe = {.name = "glm4moe", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
