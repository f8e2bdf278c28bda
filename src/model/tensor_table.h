/* tensor_table.h - the tensors that model files may have: names, shapes, and where a LayerSpec has them.
 *
 * The files of architectures name the tensors that they read (arch.h), and conversion names those that it writes
 * (cli/convert/convert_arch.h). Both take names and shapes from this table, so that what one writes the other can
 * read. */
#ifndef MODEL_TENSOR_TABLE_H
#define MODEL_TENSOR_TABLE_H

#include "model/model.h"

/* What the size of a dimension is. */
typedef enum TensorSize {
    SIZE_NONE, /* there is no such dimension */
    SIZE_ONE,
    SIZE_EMBD,
    SIZE_TWO_EMBD,
    SIZE_THREE_EMBD,
    SIZE_VOCAB,
    SIZE_Q,
    SIZE_KV,
    SIZE_QKV,         /* queries, keys and values */
    SIZE_Q_AND_GATES, /* for each head its queries, then the gates of what it reads */
    SIZE_HEADS,
    SIZE_HEAD,
    SIZE_FF,
    SIZE_GATE_UP, /* the inner rows of gate and of up */
    SIZE_EXPERTS,
    SIZE_EXPERT_FF,
    SIZE_EXPERT_GATE_UP, /* the inner rows of gate and of up of an expert */
    SIZE_SHARED_FF,
    SIZE_CONV,           /* positions that a convolution sees */
    SIZE_CHANNELS,       /* channels of that convolution */
    SIZE_VALUES,         /* what a layer with a recurrent state reads for its output projection */
    SIZE_STATE_HEADS,    /* heads of a recurrent state */
    SIZE_TWO_HEADS,      /* two numbers for each of these heads */
    SIZE_DELTA_HEAD,     /* components of a head of Gated DeltaNet */
    SIZE_MAMBA_IN,       /* z, channels and gates of Mamba-2 */
    SIZE_MAMBA_GROUPS,   /* groups of heads of Mamba-2 */
    SIZE_MAMBA_GROUP,    /* values of a group */
    SIZE_Q_RANK,         /* the latent of queries; this and all that follow belong to latent attention */
    SIZE_KV_RANK,        /* the latent of keys and values */
    SIZE_CACHED,         /* what is cached: that latent and the rotated key */
    SIZE_LATENT_QUERIES, /* the queries of all heads */
    SIZE_LATENT_VALUES,  /* the values of all heads */
    SIZE_PLAIN,          /* components of a query head that are not rotated */
    SIZE_VALUE,          /* components of a value head */
    SIZE_KV_B,           /* the plain keys and the values of all heads */
    SIZE_PLE,            /* the per-layer embedding of a layer */
    SIZE_ALL_PLE,        /* those of all layers */
} TensorSize;

/* X(id, name, n_in, n_out, place). n_out NONE: a vector. place is where a LayerSpec has it: MATRIX(slot),
 * FLOATS(field), or ELSEWHERE if it is no part of a layer, or the layer has only views of its rows. Tensors of layers
 * are called "blk.N.<name>". */
#define TENSORS_OF_MODEL(X) \
    X(TOKEN_EMBD, "token_embd.weight", EMBD, VOCAB, ELSEWHERE) \
    X(OUTPUT_NORM, "output_norm.weight", EMBD, NONE, ELSEWHERE) \
    X(EMBD_NORM, "token_embd_norm.weight", EMBD, NONE, ELSEWHERE) /* the output norm of LFM2 */ \
    X(OUTPUT, "output.weight", EMBD, VOCAB, ELSEWHERE) \
    X(OUTPUT_BIAS, "output.bias", VOCAB, NONE, ELSEWHERE) \
    X(PLE_TABLE, "per_layer_token_embd.weight", ALL_PLE, VOCAB, ELSEWHERE) \
    X(PLE_INPUT, "per_layer_model_proj.weight", EMBD, ALL_PLE, ELSEWHERE) \
    X(PLE_INPUT_NORM, "per_layer_proj_norm.weight", PLE, NONE, ELSEWHERE)
#define TENSORS_OF_LAYERS(X) \
    X(ATTN_NORM, "attn_norm.weight", EMBD, NONE, FLOATS(attn_norm)) \
    X(ATTN_Q, "attn_q.weight", EMBD, Q, MATRIX(Q)) \
    X(ATTN_Q_GATED, "attn_q.weight", EMBD, Q_AND_GATES, MATRIX(Q)) \
    X(ATTN_K, "attn_k.weight", EMBD, KV, MATRIX(K)) \
    X(ATTN_V, "attn_v.weight", EMBD, KV, MATRIX(V)) \
    X(ATTN_QKV, "attn_qkv.weight", EMBD, QKV, ELSEWHERE) \
    X(ATTN_OUTPUT, "attn_output.weight", Q, EMBD, MATRIX(O)) \
    X(ATTN_Q_BIAS, "attn_q.bias", Q, NONE, FLOATS(q_bias)) \
    X(ATTN_K_BIAS, "attn_k.bias", KV, NONE, FLOATS(k_bias)) \
    X(ATTN_V_BIAS, "attn_v.bias", KV, NONE, FLOATS(v_bias)) \
    X(ATTN_QKV_BIAS, "attn_qkv.bias", QKV, NONE, ELSEWHERE) \
    X(ATTN_OUTPUT_BIAS, "attn_output.bias", EMBD, NONE, FLOATS(o_bias)) \
    X(ATTN_Q_NORM, "attn_q_norm.weight", HEAD, NONE, FLOATS(q_norm)) \
    X(ATTN_K_NORM, "attn_k_norm.weight", HEAD, NONE, FLOATS(k_norm)) \
    X(ATTN_SINKS, "attn_sinks.weight", HEADS, NONE, FLOATS(sinks)) \
    X(POST_ATTN_NORM, "post_attention_norm.weight", EMBD, NONE, FLOATS(post_attn_norm)) \
    X(POST_FFN_NORM, "post_ffw_norm.weight", EMBD, NONE, FLOATS(post_ffn_norm)) \
    /* latent attention */ \
    X(LATENT_Q, "attn_q.weight", EMBD, LATENT_QUERIES, MATRIX(Q)) \
    X(LATENT_Q_A, "attn_q_a.weight", EMBD, Q_RANK, MATRIX(Q_A)) \
    X(LATENT_Q_A_NORM, "attn_q_a_norm.weight", Q_RANK, NONE, FLOATS(latent.q_a_norm)) \
    X(LATENT_Q_B, "attn_q_b.weight", Q_RANK, LATENT_QUERIES, MATRIX(Q)) \
    X(LATENT_KV_A, "attn_kv_a_mqa.weight", EMBD, CACHED, MATRIX(KV_A)) \
    X(LATENT_KV_A_NORM, "attn_kv_a_norm.weight", KV_RANK, NONE, FLOATS(latent.kv_a_norm)) \
    X(LATENT_KV_B, "attn_kv_b.weight", KV_RANK, KV_B, ELSEWHERE) \
    X(LATENT_K_B, "attn_k_b.weight", PLAIN, KV_RANK, MATRIX(K_B)) \
    X(LATENT_V_B, "attn_v_b.weight", KV_RANK, VALUE, MATRIX(V_B)) \
    X(LATENT_OUTPUT, "attn_output.weight", LATENT_VALUES, EMBD, MATRIX(O)) \
    /* layers with a recurrent state */ \
    X(STATE_CONV, "ssm_conv1d.weight", CONV, CHANNELS, FLOATS(conv)) \
    X(STATE_OUT, "ssm_out.weight", VALUES, EMBD, MATRIX(O)) \
    X(DELTA_QKV, "attn_qkv.weight", EMBD, CHANNELS, MATRIX(STATE_INPUTS)) \
    X(DELTA_Z, "attn_gate.weight", EMBD, VALUES, MATRIX(STATE_Z)) \
    X(DELTA_BETA, "ssm_beta.weight", EMBD, STATE_HEADS, MATRIX(STATE_GATES)) \
    X(DELTA_ALPHA, "ssm_alpha.weight", EMBD, STATE_HEADS, MATRIX(STATE_MORE_GATES)) \
    X(DELTA_BETA_ALPHA, "ssm_ba.weight", EMBD, TWO_HEADS, MATRIX(STATE_GATES)) \
    X(DELTA_DT, "ssm_dt.bias", STATE_HEADS, NONE, FLOATS(delta.dt)) \
    X(DELTA_A, "ssm_a", STATE_HEADS, NONE, FLOATS(delta.a)) \
    X(DELTA_NORM, "ssm_norm.weight", DELTA_HEAD, NONE, FLOATS(delta.norm)) \
    X(MAMBA_IN, "ssm_in.weight", EMBD, MAMBA_IN, ELSEWHERE) \
    X(MAMBA_CONV_BIAS, "ssm_conv1d.bias", CHANNELS, NONE, FLOATS(mamba.conv_bias)) \
    X(MAMBA_DT, "ssm_dt.bias", STATE_HEADS, NONE, FLOATS(mamba.dt_bias)) \
    X(MAMBA_A, "ssm_a", ONE, STATE_HEADS, FLOATS(mamba.a)) \
    X(MAMBA_D, "ssm_d", ONE, STATE_HEADS, FLOATS(mamba.skip)) \
    X(MAMBA_NORM, "ssm_norm.weight", MAMBA_GROUP, MAMBA_GROUPS, FLOATS(mamba.norm)) \
    X(SHORT_CONV_IN, "shortconv.in_proj.weight", EMBD, THREE_EMBD, ELSEWHERE) \
    X(SHORT_CONV, "shortconv.conv.weight", CONV, EMBD, FLOATS(conv)) \
    X(SHORT_CONV_OUT, "shortconv.out_proj.weight", EMBD, EMBD, MATRIX(O)) \
    /* the feed-forward part */ \
    X(FFN_NORM, "ffn_norm.weight", EMBD, NONE, FLOATS(ffn_norm)) \
    X(FFN_NORM_POST_ATTN, "post_attention_norm.weight", EMBD, NONE, FLOATS(ffn_norm)) /* another name for the same */ \
    X(FFN_GATE, "ffn_gate.weight", EMBD, FF, MATRIX(GATE)) \
    X(FFN_UP, "ffn_up.weight", EMBD, FF, MATRIX(UP)) \
    X(FFN_GATE_UP, "ffn_up.weight", EMBD, GATE_UP, ELSEWHERE) \
    X(FFN_DOWN, "ffn_down.weight", FF, EMBD, MATRIX(DOWN)) \
    X(FFN_GATE_BIAS, "ffn_gate.bias", FF, NONE, FLOATS(gate_bias)) \
    X(FFN_UP_BIAS, "ffn_up.bias", FF, NONE, FLOATS(up_bias)) \
    X(FFN_DOWN_BIAS, "ffn_down.bias", EMBD, NONE, FLOATS(down_bias)) \
    X(ROUTER, "ffn_gate_inp.weight", EMBD, EXPERTS, MATRIX(ROUTER)) \
    X(ROUTER_BIAS, "ffn_gate_inp.bias", EXPERTS, NONE, FLOATS(router_bias)) \
    X(CHOICE_BIAS, "exp_probs_b.bias", EXPERTS, NONE, FLOATS(choice_bias)) \
    X(EXPERT_GATE, "ffn_gate_exps.weight", EMBD, EXPERT_FF, MATRIX(EXPERT_GATE)) \
    X(EXPERT_UP, "ffn_up_exps.weight", EMBD, EXPERT_FF, MATRIX(EXPERT_UP)) \
    X(EXPERT_GATE_UP, "ffn_gate_up_exps.weight", EMBD, EXPERT_GATE_UP, ELSEWHERE) \
    X(EXPERT_DOWN, "ffn_down_exps.weight", EXPERT_FF, EMBD, MATRIX(EXPERT_DOWN)) \
    X(EXPERT_GATE_BIAS, "ffn_gate_exps.bias", EXPERT_FF, EXPERTS, FLOATS(gate_bias)) \
    X(EXPERT_UP_BIAS, "ffn_up_exps.bias", EXPERT_FF, EXPERTS, FLOATS(up_bias)) \
    X(EXPERT_DOWN_BIAS, "ffn_down_exps.bias", EMBD, EXPERTS, FLOATS(down_bias)) \
    X(SHARED_GATE, "ffn_gate_shexp.weight", EMBD, SHARED_FF, MATRIX(SHARED_GATE)) \
    X(SHARED_UP, "ffn_up_shexp.weight", EMBD, SHARED_FF, MATRIX(SHARED_UP)) \
    X(SHARED_DOWN, "ffn_down_shexp.weight", SHARED_FF, EMBD, MATRIX(SHARED_DOWN)) \
    X(SHARED_ROUTER, "ffn_gate_inp_shexp.weight", EMBD, NONE, FLOATS(shared_router)) \
    /* experts of Gemma 4, whose shared expert has the names of a dense feed-forward part */ \
    X(JOINT_GATE, "ffn_gate.weight", EMBD, SHARED_FF, MATRIX(SHARED_GATE)) \
    X(JOINT_UP, "ffn_up.weight", EMBD, SHARED_FF, MATRIX(SHARED_UP)) \
    X(JOINT_DOWN, "ffn_down.weight", SHARED_FF, EMBD, MATRIX(SHARED_DOWN)) \
    X(ROUTER_SCALE, "ffn_gate_inp.scale", EMBD, NONE, ELSEWHERE) \
    X(EXPERT_NORM, "pre_ffw_norm_2.weight", EMBD, NONE, FLOATS(expert_norm)) \
    X(POST_SHARED_NORM, "post_ffw_norm_1.weight", EMBD, NONE, FLOATS(post_shared_norm)) \
    X(POST_EXPERT_NORM, "post_ffw_norm_2.weight", EMBD, NONE, FLOATS(post_expert_norm)) \
    X(EXPERT_DOWN_SCALE, "ffn_down_exps.scale", EXPERTS, NONE, ELSEWHERE) \
    /* the per-layer embedding, and the factor of a layer */ \
    X(PLE_GATE, "inp_gate.weight", EMBD, PLE, MATRIX(PLE_GATE)) \
    X(PLE_OUT, "proj.weight", PLE, EMBD, MATRIX(PLE_OUT)) \
    X(PLE_NORM, "post_norm.weight", EMBD, NONE, FLOATS(ple_norm)) \
    X(OUT_SCALE, "layer_output_scale.weight", ONE, NONE, ELSEWHERE) \
    /* the layer for multi-token prediction (Nextn in model.h) */ \
    X(NEXTN_EH_PROJ, "nextn.eh_proj.weight", TWO_EMBD, EMBD, ELSEWHERE) \
    X(NEXTN_ENORM, "nextn.enorm.weight", EMBD, NONE, ELSEWHERE) \
    X(NEXTN_HNORM, "nextn.hnorm.weight", EMBD, NONE, ELSEWHERE) \
    X(NEXTN_HEAD_NORM, "nextn.shared_head_norm.weight", EMBD, NONE, ELSEWHERE) \
    X(NEXTN_HEAD, "nextn.shared_head_head.weight", EMBD, VOCAB, ELSEWHERE) \
    X(NEXTN_EMBD, "nextn.embed_tokens.weight", EMBD, VOCAB, ELSEWHERE)

#define X(id, name, n_in, n_out, place) TENSOR_##id,
typedef enum TensorId { TENSORS_OF_MODEL(X) TENSORS_OF_LAYERS(X) TENSOR_COUNT } TensorId;
#undef X

typedef struct TensorInfo {
    const char *name;
    TensorSize n_in, n_out;
    LayerMatrix matrix; /* LAYER_MATRICES: the tensor is not one of the layer's matrices */
    size_t floats;      /* the offset of the field in a LayerSpec; SIZE_MAX: there is none */
} TensorInfo;
extern const TensorInfo tensor_table[TENSOR_COUNT];

static inline bool tensor_is_of_layer(TensorId id) { return id >= TENSOR_ATTN_NORM; }
/* Returns the size of a dimension in a model of this shape. */
int64_t tensor_size(const Hparams *h, TensorSize size);

/* Each returns what a layer with a recurrent state of this shape keeps. */
StateShape delta_net_state(const DeltaNetShape *d, int32_t n_conv);
StateShape mamba2_state(const Mamba2Shape *m, int32_t n_conv);
StateShape short_conv_state(int32_t n_embd, int32_t n_conv);

#endif
