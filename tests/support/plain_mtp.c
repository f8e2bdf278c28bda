/* plain_mtp.c - see plain_mtp.h. */
#include "plain_mtp.h"

#include "learned_rig.h"

#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { H = MTP_EMBD, V = MTP_VOCAB, KV = MTP_KV_HEADS * MTP_DIM };

static const double EPS = 1e-6;
static const PlainHeads heads = {.n_head = MTP_HEADS, .n_kv = MTP_KV_HEADS, .dim = MTP_DIM};

/* A tensor of the layer or, if it has none of that name, of the model. */
static float *read_floats(const Gguf *g, int32_t index, const char *name, const char *of_model) {
    char of_layer[64];
    snprintf(of_layer, sizeof of_layer, "blk.%d.%s", MTP_LAYERS + index, name);
    const GgufTensor *t = gguf_find_tensor(g, of_layer);
    if (!t && of_model) t = gguf_find_tensor(g, of_model);
    assert_non_null(t);
    int64_t n = t->dims[0] * t->dims[1];
    float *x = malloc((size_t)n * sizeof *x);
    blocks_dequantize(t->type, t->data, n, x);
    return x;
}

PlainMtp plain_mtp_read(const Gguf *g, const Model *m, int32_t index) {
    PlainMtp p = {.rope = &m->ropes[0]};
    const char *head = gguf_find_tensor(g, "output.weight") ? "output.weight" : "token_embd.weight";
    const struct {
        float **out;
        const char *name, *of_model;
    } tensors[] = {{&p.embedding, "nextn.embed_tokens.weight", "token_embd.weight"},
                   {&p.head, "nextn.shared_head_head.weight", head},
                   {&p.eh_proj, "nextn.eh_proj.weight", NULL},
                   {&p.enorm, "nextn.enorm.weight", NULL},
                   {&p.hnorm, "nextn.hnorm.weight", NULL},
                   {&p.head_norm, "nextn.shared_head_norm.weight", NULL},
                   {&p.attn_norm, "attn_norm.weight", NULL},
                   {&p.q, "attn_q.weight", NULL},
                   {&p.k, "attn_k.weight", NULL},
                   {&p.v, "attn_v.weight", NULL},
                   {&p.o, "attn_output.weight", NULL},
                   {&p.q_norm, "attn_q_norm.weight", NULL},
                   {&p.k_norm, "attn_k_norm.weight", NULL},
                   {&p.ffn_norm, "post_attention_norm.weight", NULL},
                   {&p.gate, "ffn_gate.weight", NULL},
                   {&p.up, "ffn_up.weight", NULL},
                   {&p.down, "ffn_down.weight", NULL}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        *tensors[i].out = read_floats(g, index, tensors[i].name, tensors[i].of_model);
    return p;
}

void plain_mtp_free(PlainMtp *p) {
    float *const all[] = {p->embedding, p->head,     p->eh_proj, p->enorm, p->hnorm, p->head_norm,
                          p->attn_norm, p->q,        p->k,       p->v,     p->o,     p->q_norm,
                          p->k_norm,    p->ffn_norm, p->gate,    p->up,    p->down};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Normalises and rotates heads, in halves of the first MTP_ROT components. */
static void finish_heads(const PlainMtp *p, const float *gain, double *x, int32_t n_heads, int32_t position) {
    float cos_sin[MTP_ROT];
    rope_angles(p->rope, position, cos_sin);
    for (int32_t h = 0; h < n_heads; h++) {
        double *head = x + h * MTP_DIM;
        plain_norm(gain, head, MTP_DIM, EPS, head);
        for (int32_t i = 0; i < MTP_ROT / 2; i++) {
            double c = (double)cos_sin[2 * i], s = (double)cos_sin[2 * i + 1], a = head[i], b = head[i + MTP_ROT / 2];
            head[i] = a * c - b * s;
            head[i + MTP_ROT / 2] = a * s + b * c;
        }
    }
}

void plain_mtp_run(const PlainMtp *p, const PlainMtpRow *before, int32_t token, const double *hidden,
                   PlainMtpRow *out) {
    double pair[2 * H], x[H], n[H], y[H], both[2 * MTP_Q], q[MTP_Q], attended[MTP_Q];
    plain_kv_begin(&out->kv, before ? &before->kv : NULL);
    for (int32_t i = 0; i < H; i++) pair[i] = (double)p->embedding[token * H + i];
    plain_norm(p->enorm, pair, H, EPS, pair);
    plain_norm(p->hnorm, hidden, H, EPS, pair + H);
    learned_rig_linear(p->eh_proj, NULL, pair, 2 * H, H, x);
    plain_norm(p->attn_norm, x, H, EPS, n);
    learned_rig_linear(p->q, NULL, n, H, 2 * MTP_Q, both);
    learned_rig_linear(p->k, NULL, n, H, KV, out->kv.k);
    learned_rig_linear(p->v, NULL, n, H, KV, out->kv.v);
    for (int32_t i = 0; i < MTP_Q; i++) q[i] = both[i / MTP_DIM * 2 * MTP_DIM + i % MTP_DIM];
    finish_heads(p, p->q_norm, q, MTP_HEADS, out->kv.position);
    finish_heads(p, p->k_norm, out->kv.k, MTP_KV_HEADS, out->kv.position);
    plain_kv_round(&out->kv, heads);
    plain_attend(heads, &out->kv, q, attended);
    for (int32_t i = 0; i < MTP_Q; i++)
        attended[i] /= 1 + exp(-both[i / MTP_DIM * 2 * MTP_DIM + MTP_DIM + i % MTP_DIM]);
    learned_rig_linear(p->o, NULL, attended, MTP_Q, H, y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(p->ffn_norm, x, H, EPS, n);
    plain_feed_forward((PlainFeedForward){.gate = p->gate, .up = p->up, .down = p->down, .n_embd = H, .n_ff = MTP_FF},
                       n, y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(p->head_norm, x, H, EPS, out->feature);
    learned_rig_linear(p->head, NULL, out->feature, H, V, out->log_p);
    learned_rig_log_softmax(out->log_p, V);
}
