/* plain_mtp.h - a layer for multi-token prediction of qwen35 in double precision, for one row at a time. */
#ifndef TESTS_PLAIN_MTP_H
#define TESTS_PLAIN_MTP_H

#include "plain_layer.h"
#include "random_model.h"

#include "gguf/gguf.h"

/* The shape of the models that it reads, and of similar ones, for a RandomModel. */
enum { MTP_EMBD = 64, MTP_VOCAB = 300, MTP_LAYERS = 4, MTP_FF = 96 };
enum { MTP_HEADS = 4, MTP_KV_HEADS = 2, MTP_DIM = 24, MTP_ROT = 8, MTP_Q = MTP_HEADS * MTP_DIM };
#define MTP_SHAPE(a) \
    .arch = a, .n_layer = MTP_LAYERS, .n_embd = MTP_EMBD, .n_head = MTP_HEADS, .n_head_kv = MTP_KV_HEADS, \
    .head_dim = MTP_DIM, .n_ff = MTP_FF, .n_vocab = MTP_VOCAB, .n_rot = MTP_ROT, .n_key_heads = 2, .n_value_heads = 4, \
    .delta_dim = 16, .n_conv = 4, .attention_interval = 2

typedef struct PlainMtp {
    const Rope *rope;
    float *embedding, *head, *eh_proj, *enorm, *hnorm, *head_norm;
    float *attn_norm, *q, *k, *v, *o, *q_norm, *k_norm, *ffn_norm, *gate, *up, *down;
} PlainMtp;

/* An entry, or a node of a tree. */
typedef struct PlainMtpRow {
    double log_p[MTP_VOCAB], feature[MTP_EMBD];
    PlainKv kv; /* after the row before */
} PlainMtpRow;

/* Reads layer `index` (from 0) of the layers after the model's. */
PlainMtp plain_mtp_read(const Gguf *g, const Model *m, int32_t index);
void plain_mtp_free(PlainMtp *p);
/* Runs the row of a token and the hidden state [MTP_EMBD] before it. before: NULL: it is the first row. */
void plain_mtp_run(const PlainMtp *p, const PlainMtpRow *before, int32_t token, const double *hidden, PlainMtpRow *out);

#endif
