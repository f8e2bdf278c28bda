/* test_model.c - the files that model_open and executor_open accept; those that they refuse, with which messages; and
 * that a failing allocation, wherever it happens, neither leaks nor crashes. */
#include "testing.h"

#include "gguf/gguf_write.h"
#include "compute/backend.h"
#include "model_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- allocations (the Makefile links this program with --wrap) --------------------------------------- */

static struct {
    bool counting;
    int fail_at; /* 1: the next one; 0: never */
    int n_live;
} allocations;

void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

void *__wrap_aligned_alloc(size_t align, size_t n) {
    if (allocations.fail_at > 0 && --allocations.fail_at == 0) return NULL;
    void *p = __real_aligned_alloc(align, n);
    if (p && allocations.counting) allocations.n_live++;
    return p;
}

void __wrap_free(void *p) {
    if (p && allocations.counting) allocations.n_live--;
    __real_free(p);
}

/* ---- a valid file with one thing changed -------------------------------------------------------------- */

static const RandomModel sound = {
    .arch = "llama", .n_layer = 2, .n_embd = 24, .n_head = 4, .n_head_kv = 2, .n_ff = 40, .n_vocab = 33, .seed = 1};

typedef enum What {
    NOTHING,
    SET_U32,      /* name: key, number */
    SET_F32,      /* name: key, number */
    SET_STRING,   /* name: key, text */
    SET_BOOL,     /* name: key, number */
    SET_LIST,     /* name: key, n0, n1, n2 (negative: it has two numbers) */
    DROP_KEY,     /* name */
    DROP_TENSOR,  /* name */
    ADD_VECTOR,   /* name, n0 elements, all of them `number` */
    SHAPE_TENSOR, /* name, n0, n1 (0: a vector), n2 (0: a matrix) */
} What;

typedef struct Change {
    What what;
    const char *name;
    double number;
    const char *text;
    int64_t n0, n1, n2;
} Change;

#define U32(key, v) \
    { .what = SET_U32, .name = key, .number = v }
#define F32(key, v) \
    { .what = SET_F32, .name = key, .number = (double)(v) }
#define BOOL(key, v) \
    { .what = SET_BOOL, .name = key, .number = v }
#define TEXT(key, v) \
    { .what = SET_STRING, .name = key, .text = v }
#define LIST(key, a, b, c) \
    { .what = SET_LIST, .name = key, .n0 = a, .n1 = b, .n2 = c }
#define NO_KEY(key) \
    { .what = DROP_KEY, .name = key }
#define NO_TENSOR(tensor) \
    { .what = DROP_TENSOR, .name = tensor }
#define VECTOR(tensor, v, n) \
    { .what = ADD_VECTOR, .name = tensor, .number = (double)(v), .n0 = n }
#define SHAPE(tensor, a, b, c) \
    { .what = SHAPE_TENSOR, .name = tensor, .n0 = a, .n1 = b, .n2 = c }

static Gguf *changed(const Gguf *g, const Change *c) {
    GgufWriter *w = gguf_writer_new();
    assert_non_null(w);
    if (c->what == SET_U32) gguf_set_u32(w, c->name, (uint32_t)c->number);
    if (c->what == SET_F32) gguf_set_f32(w, c->name, (float)c->number);
    if (c->what == SET_BOOL) gguf_set_bool(w, c->name, c->number != 0);
    if (c->what == SET_STRING) gguf_set_string(w, c->name, c->text, strlen(c->text));
    const int32_t list[] = {(int32_t)c->n0, (int32_t)c->n1, (int32_t)c->n2};
    if (c->what == SET_LIST) gguf_set_i32s(w, c->name, list, c->n2 < 0 ? 2 : 3);
    gguf_copy_kvs(w, g, c->what == DROP_KEY ? c->name : NULL);
    float *data = calloc(100000, sizeof *data);
    for (int i = 0; i < 100000; i++) data[i] = (float)c->number;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        bool it = c->name && strcmp(t->name, c->name) == 0;
        if (it && c->what == DROP_TENSOR) continue;
        if (it && c->what == SHAPE_TENSOR)
            gguf_add_tensor(w, t->name, TYPE_F32, c->n2 ? 3 : c->n1 ? 2 : 1, (int64_t[]){c->n0, c->n1, c->n2}, data);
        else gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    if (c->what == ADD_VECTOR) gguf_add_tensor(w, c->name, TYPE_F32, 1, &c->n0, data);
    char path[] = "build/changed-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    fr_error err = {0};
    if (gguf_writer_finish(w, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    free(data);
    Gguf *out = rig_gguf(path);
    unlink(path);
    return out;
}

/* Opens the changed file; *m is NULL if it is refused. */
static int try_open(const RandomModel *from, const Change *c, Gguf **g, Model **m, fr_error *err) {
    Gguf *base = rig_random_gguf(from);
    *g = changed(base, c);
    gguf_close(base);
    return model_open(m, *g, err);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static const struct {
    Change c;
    fr_code code;
    const char *says;
} refusals[] = {
    {NO_KEY("general.architecture"), FR_ERR_FORMAT, "there is no general.architecture"},
    {TEXT("general.architecture", "gpt2"), FR_ERR_UNSUPPORTED, "architecture 'gpt2' is not supported"},
    {TEXT("general.architecture", "llam"), FR_ERR_UNSUPPORTED, "architecture 'llam' is not"},
    {TEXT("general.architecture", "qwen3"), FR_ERR_FORMAT, "key qwen3.block_count is missing"},
    {NO_KEY("llama.block_count"), FR_ERR_FORMAT, "key llama.block_count is missing"},
    {NO_KEY("llama.embedding_length"), FR_ERR_FORMAT, "key llama.embedding_length is missing"},
    {NO_KEY("llama.feed_forward_length"), FR_ERR_FORMAT, "key llama.feed_forward_length is missing"},
    {NO_KEY("llama.context_length"), FR_ERR_FORMAT, "key llama.context_length is missing"},
    {NO_KEY("llama.attention.layer_norm"), FR_ERR_FORMAT, "layer_norm_rms_epsilon is missing"},
    {TEXT("llama.block_count", "two"), FR_ERR_FORMAT, "llama.block_count is missing or no single whole"},
    {F32("llama.attention.head_count_kv", 2), FR_ERR_FORMAT, "head_count_kv is missing or no single whole"},
    {U32("llama.block_count", 0), FR_ERR_FORMAT, "llama.block_count is 0, but must lie between 1 and 1024"},
    {U32("llama.block_count", 4e9), FR_ERR_FORMAT, "llama.block_count is 4000000000, but"},
    {U32("llama.block_count", 1), FR_ERR_UNSUPPORTED, "tensor blk.1.attn_norm.weight is not part of"},
    {U32("llama.block_count", 3), FR_ERR_FORMAT, "tensor blk.2.attn_norm.weight is missing"},
    {U32("llama.embedding_length", 0), FR_ERR_FORMAT, "llama.embedding_length is 0, but"},
    {U32("llama.embedding_length", 32), FR_ERR_FORMAT, "token_embd.weight has the wrong shape: 24 x 33 where 32 x 33"},
    {U32("llama.attention.head_count", 0), FR_ERR_FORMAT, "head_count is 0, but"},
    {U32("llama.attention.head_count", 3), FR_ERR_FORMAT, "3 heads cannot share 2 key-value heads evenly"},
    {U32("llama.attention.head_count_kv", 0), FR_ERR_FORMAT, "head_count_kv is 0, but"},
    {U32("llama.attention.head_count_kv", 5), FR_ERR_FORMAT, "head_count_kv is 5, but must lie between 1 and 4"},
    {U32("llama.attention.head_count_kv", 1), FR_ERR_FORMAT, "blk.0.attn_k.weight has the wrong shape"},
    {U32("llama.attention.key_length", 0), FR_ERR_FORMAT, "key_length is 0, but"},
    {U32("llama.attention.key_length", 8), FR_ERR_FORMAT, "blk.0.attn_q.weight has the wrong shape"},
    {U32("llama.attention.value_length", 8), FR_ERR_UNSUPPORTED, "value heads of 8 beside key heads of 6"},
    {F32("llama.attention.layer_norm_rms_epsilon", NAN), FR_ERR_FORMAT, "layer_norm_rms_epsilon is "},
    {F32("llama.attention.layer_norm_rms_epsilon", -1), FR_ERR_FORMAT, "layer_norm_rms_epsilon is -1, but"},
    {U32("llama.expert_count", 8), FR_ERR_FORMAT, "llama.expert_used_count is missing"},
    {U32("llama.expert_count", 513), FR_ERR_FORMAT, "llama.expert_count is 513, but must lie between 0 and 512"},
    {U32("llama.rope.dimension_count", 5), FR_ERR_FORMAT, "rope.dimension_count is 5, but must be even"},
    {U32("llama.rope.dimension_count", 8), FR_ERR_FORMAT, "rope.dimension_count is 8, but must lie between 2 and 6"},
    {F32("llama.rope.freq_base", 0), FR_ERR_FORMAT, "rope.freq_base is 0, but"},
    {F32("llama.rope.freq_base", INFINITY), FR_ERR_FORMAT, "rope.freq_base is inf, but"},
    {U32("llama.attention.glance", 1), FR_ERR_UNSUPPORTED,
     "key llama.attention.glance is not part of architecture llama"},
    {U32("llama.window", 0), FR_ERR_UNSUPPORTED, "key llama.window is not part of"},
    {F32("llama.attention.clamp_kqv", 8), FR_ERR_UNSUPPORTED,
     "this value of key llama.attention.clamp_kqv is not part of"},
    {BOOL("llama.attention.causal", 0), FR_ERR_UNSUPPORTED, "this value of key llama.attention.causal is not"},
    {F32("llama.logit_scale", 2), FR_ERR_UNSUPPORTED, "this value of key llama.logit_scale is not"},
    {TEXT("llama.logit_scale", "1"), FR_ERR_UNSUPPORTED, "this value of key llama.logit_scale is not"},
    {LIST("llama.attention.head_count", 4, 2, -1), FR_ERR_FORMAT, "tensor blk.1.attn_q.weight has the wrong shape"},
    {LIST("llama.attention.head_count", 4, 0, -1), FR_ERR_FORMAT, "has 0 for layer 1, but must have 1 to 4096"},
    {LIST("llama.attention.head_count", 4, 4, 4), FR_ERR_FORMAT, "head_count has 3 numbers for 2 layers"},
    {LIST("llama.attention.head_count_kv", 2, 1, -1), FR_ERR_FORMAT, "tensor blk.1.attn_k.weight has the wrong shape"},
    {LIST("llama.attention.head_count_kv", 0, 2, -1), FR_ERR_FORMAT, "has 0 for layer 0, but must have 1 to 4"},
    {LIST("llama.attention.head_count_kv", -1, 2, -1), FR_ERR_FORMAT, "has -1 for layer 0, but must have 1 to 4"},
    {LIST("llama.feed_forward_length", 40, 41, -1), FR_ERR_FORMAT, "tensor blk.1.ffn_gate.weight has the wrong shape"},
    {VECTOR("blk.0.ffn_down.bias", 1, 40), FR_ERR_FORMAT, "tensor blk.0.ffn_down.bias has the wrong shape"},
    {VECTOR("output.bias", NAN, 33), FR_ERR_FORMAT, "tensor output.bias holds NaN"},
    {LIST("llama.attention.sliding_window_pattern", 1, 0, 1), FR_ERR_FORMAT, "has 3 numbers for 2 layers"},
    {LIST("llama.attention.sliding_window_pattern", 1, 2, -1), FR_ERR_FORMAT,
     "has 2 for layer 1, but must have 0 to 1"},
    {TEXT("llama.rope.scaling.type", "dynamic"), FR_ERR_UNSUPPORTED, "rope scaling 'dynamic' is not"},
    {VECTOR("rope_freqs.weight", NAN, 3), FR_ERR_FORMAT, "rope_freqs.weight holds NaN"},
    {VECTOR("rope_freqs.weight", 0, 3), FR_ERR_FORMAT, "rope_freqs.weight holds 0"},
    {VECTOR("rope_freqs.weight", 1, 4), FR_ERR_FORMAT, "rope_freqs.weight has the wrong shape: 4 x 1 where 3"},
    {VECTOR("blk.0.attn_sinks.weight", 1, 4), FR_ERR_UNSUPPORTED, "tensor blk.0.attn_sinks.weight is not part"},
    {VECTOR("blk.0.attn_q.bias", 1, 23), FR_ERR_FORMAT, "tensor blk.0.attn_q.bias has the wrong shape"},
    {NO_TENSOR("token_embd.weight"), FR_ERR_FORMAT, "tensor token_embd.weight is missing"},
    {NO_TENSOR("output_norm.weight"), FR_ERR_FORMAT, "tensor output_norm.weight is missing"},
    {NO_TENSOR("blk.1.ffn_down.weight"), FR_ERR_FORMAT, "tensor blk.1.ffn_down.weight is missing"},
    {NO_TENSOR("blk.0.attn_norm.weight"), FR_ERR_FORMAT, "tensor blk.0.attn_norm.weight is missing"},
    {SHAPE("token_embd.weight", 24, 11, 3), FR_ERR_FORMAT, "token_embd.weight is no matrix"},
    {SHAPE("token_embd.weight", 24, 0, 0), FR_ERR_FORMAT, "token_embd.weight is no matrix"},
    {SHAPE("output.weight", 24, 32, 0), FR_ERR_FORMAT, "output.weight has the wrong shape: 24 x 32 where"},
    {SHAPE("blk.0.ffn_up.weight", 40, 24, 0), FR_ERR_FORMAT, "ffn_up.weight has the wrong shape: 40 x 24"},
    {SHAPE("blk.1.ffn_norm.weight", 25, 0, 0), FR_ERR_FORMAT, "blk.1.ffn_norm.weight has the wrong shape: 25 x 1"},
    {SHAPE("blk.1.ffn_norm.weight", 24, 1, 0), FR_ERR_FORMAT, "blk.1.ffn_norm.weight has the wrong shape"},
    {SHAPE("blk.0.attn_v.weight", 24, 12, 1), FR_ERR_FORMAT, "blk.0.attn_v.weight has the wrong"},
};

static void unfit_files_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        int status = try_open(&sound, &refusals[i].c, &g, &m, &err);
        if (status != refusals[i].code || m || !strstr(err.message, refusals[i].says) ||
            strncmp(err.message, gguf_path(g), strlen(gguf_path(g))) != 0)
            fail_msg("the error should contain '%s' (%d); status %d: '%s'", refusals[i].says, refusals[i].code, status,
                     err.message);
        model_close(m);
        gguf_close(g);
    }
}

#define SMALL(a) .arch = a, .n_embd = 24, .n_head = 4, .n_head_kv = 2, .n_ff = 40, .n_vocab = 33, .seed = 1

enum { QWEN, LFM2, GRANITE, MAMBA2, N_RECURRENT };
static const RandomModel recurrent[] = {{SMALL("qwen35moe"), .n_layer = 4, .n_expert = 3, .n_expert_used = 2,
                                         .n_ff_expert = 8, .n_ff_shared = 10, .n_key_heads = 2, .n_value_heads = 4,
                                         .delta_dim = 6, .n_conv = 3, .attention_interval = 2},
                                        {SMALL("lfm2"), .n_layer = 3, .n_conv = 3, .attention_interval = 3},
                                        {SMALL("granitehybrid"), .n_layer = 3, .n_key_heads = 1, .n_value_heads = 4,
                                         .delta_dim = 6, .n_ssm_state = 5, .n_conv = 3, .attention_interval = 3},
                                        {SMALL("mamba2"), .n_layer = 2, .n_key_heads = 2, .n_value_heads = 4,
                                         .delta_dim = 6, .n_ssm_state = 5, .n_conv = 3}};

/* Changes of a model with recurrent layers; code 0: it is opened, with n_layer layers. */
static const struct {
    Change c;
    fr_code code;
    const char *says;
    int n_layer, of; /* of: index in `recurrent` */
} hybrid_changes[] = {
    {{.what = NOTHING}, FR_OK, "", 4, QWEN},
    {U32("qwen35moe.nextn_predict_layers", 1), FR_OK, "", 3, QWEN}, /* the last layer has attention, as layers for
                                                                     * multi-token prediction have */
    {U32("qwen35moe.nextn_predict_layers", 4), FR_ERR_FORMAT, "nextn_predict_layers is 4, but", 0, QWEN},
    {NO_KEY("qwen35moe.feed_forward_length"), FR_OK, "", 4, QWEN},
    {U32("qwen35moe.full_attention_interval", 4), FR_ERR_FORMAT, "tensor blk.1.attn_qkv.weight is missing", 0, QWEN},
    {NO_KEY("qwen35moe.full_attention_interval"), FR_ERR_FORMAT, "tensor blk.1.attn_qkv.weight is missing", 0, QWEN},
    {U32("qwen35moe.ssm.conv_kernel", 4), FR_ERR_FORMAT, "ssm_conv1d.weight has the wrong shape", 0, QWEN},
    {U32("qwen35moe.ssm.conv_kernel", 17), FR_ERR_FORMAT, "ssm.conv_kernel is 17, but", 0, QWEN},
    {U32("qwen35moe.ssm.state_size", 513), FR_ERR_FORMAT, "ssm.state_size is 513, but", 0, QWEN},
    {U32("qwen35moe.ssm.group_count", 3), FR_ERR_FORMAT, "ssm.time_step_rank is 4, but must lie between 3 and 3", 0,
     QWEN},
    {U32("qwen35moe.ssm.inner_size", 25), FR_ERR_FORMAT, "ssm.inner_size is 25, but must lie between 24 and 24", 0,
     QWEN},
    {NO_KEY("qwen35moe.ssm.group_count"), FR_ERR_FORMAT, "ssm.group_count is missing", 0, QWEN},
    {NO_TENSOR("blk.0.ssm_a"), FR_ERR_FORMAT, "tensor blk.0.ssm_a is missing", 0, QWEN},
    {NO_TENSOR("blk.2.post_attention_norm.weight"), FR_ERR_FORMAT, "post_attention_norm.weight is missing", 0, QWEN},
    {SHAPE("blk.1.attn_q.weight", 24, 24, 0), FR_ERR_FORMAT, "attn_q.weight has the wrong shape: 24 x 24 where 24 x 48",
     0, QWEN},
    {SHAPE("blk.0.ssm_dt.bias", 5, 0, 0), FR_ERR_FORMAT, "ssm_dt.bias has the wrong shape", 0, QWEN},
    {{.what = NOTHING}, FR_OK, "", 3, LFM2},
    {U32("lfm2.shortconv.l_cache", 1), FR_ERR_FORMAT, "shortconv.l_cache is 1, but", 0, LFM2},
    {NO_KEY("lfm2.shortconv.l_cache"), FR_ERR_FORMAT, "shortconv.l_cache is missing", 0, LFM2},
    {U32("lfm2.attention.head_count_kv", 2), FR_ERR_FORMAT, "blk.0.attn_q.weight is missing", 0, LFM2},
    {LIST("lfm2.attention.head_count_kv", 0, 0, 0), FR_ERR_FORMAT, "blk.2.shortconv.in_proj.weight is", 0, LFM2},
    {NO_TENSOR("blk.0.shortconv.conv.weight"), FR_ERR_FORMAT, "blk.0.shortconv.conv.weight is missing", 0, LFM2},
    {SHAPE("blk.1.shortconv.in_proj.weight", 24, 48, 0), FR_ERR_FORMAT, "24 x 48 where 24 x 72 fits", 0, LFM2},
    {NO_TENSOR("token_embd_norm.weight"), FR_ERR_FORMAT, "token_embd_norm.weight is missing", 0, LFM2},
    {SHAPE("blk.0.ssm_norm.weight", 24, 0, 0), FR_OK, "", 3, GRANITE}, /* a group; such a dimension of 1 is dropped by
                                                                        * the programs */
    {SHAPE("blk.0.ssm_norm.weight", 12, 2, 0), FR_ERR_FORMAT, "ssm_norm.weight has the wrong shape", 0, GRANITE},
    {LIST("granitehybrid.attention.head_count_kv", 0, 1, 2), FR_ERR_FORMAT, "blk.1.attn_q.weight is missing", 0,
     GRANITE},
    {LIST("granitehybrid.attention.head_count_kv", 0, 0, 5), FR_ERR_FORMAT, "has 5 for layer 2, but must have 0 to 4",
     0, GRANITE},
    {LIST("granitehybrid.attention.head_count_kv", 0, 0, 3), FR_ERR_FORMAT, "4 heads cannot share 3 key-value heads", 0,
     GRANITE},
    {LIST("granitehybrid.attention.head_count_kv", 0, 2, -1), FR_ERR_FORMAT, "2 numbers for 3 layers", 0, GRANITE},
    {U32("granitehybrid.ssm.inner_size", 25), FR_ERR_FORMAT, "inner_size is 25, but must lie between 24", 0, GRANITE},
    {U32("granitehybrid.ssm.group_count", 3), FR_ERR_FORMAT, "time_step_rank is 4, but must lie", 0, GRANITE},
    {U32("granitehybrid.rope.scaling.finetuned", 1), FR_ERR_FORMAT, "finetuned is neither true nor", 0, GRANITE},
    {NO_TENSOR("blk.1.ssm_d"), FR_ERR_FORMAT, "tensor blk.1.ssm_d is missing", 0, GRANITE},
    {U32("mamba2.rope.dimension_count", 64), FR_OK, "", 2, MAMBA2}, /* a number of heads, which it does not have */
    {LIST("mamba2.attention.head_count", 1 << 30, -5, -1), FR_OK, "", 2, MAMBA2}, /* likewise */
    {U32("mamba2.ssm.group_count", 0), FR_ERR_FORMAT, "group_count is 0, but", 0, MAMBA2},
};

static void recurrent_layers_are_read_or_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hybrid_changes / sizeof *hybrid_changes; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        int status = try_open(&recurrent[hybrid_changes[i].of], &hybrid_changes[i].c, &g, &m, &err);
        if (status != hybrid_changes[i].code || !strstr(err.message, hybrid_changes[i].says))
            fail_msg("the error should contain '%s'; status %d: '%s'", hybrid_changes[i].says, status, err.message);
        if (m) assert_int_equal(m->hparams.n_layer, hybrid_changes[i].n_layer);
        model_close(m);
        gguf_close(g);
    }
}

static void missing_head_norms_are_refused(void **state) {
    (void)state;
    RandomModel qwen3 = sound;
    qwen3.arch = "qwen3";
    Gguf *g;
    Model *m = NULL;
    fr_error err = {0};
    assert_int_equal(try_open(&qwen3, &(Change)NO_TENSOR("blk.0.attn_q_norm.weight"), &g, &m, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tensor blk.0.attn_q_norm.weight is missing"));
    gguf_close(g);
}

/* ---- values that are read -------------------------------------------------------------------------------
 */

static const struct {
    Change c;
    RopeScaling scaling;
    double factor;
} ropes[] = {
    {{.what = NOTHING}, ROPE_SCALING_NONE, 1},
    {TEXT("llama.rope.scaling.type", "none"), ROPE_SCALING_NONE, 1},
    {TEXT("llama.rope.scaling.type", "linear"), ROPE_SCALING_LINEAR, 1},
    {TEXT("llama.rope.scaling.type", "yarn"), ROPE_SCALING_YARN, 1},
    {F32("llama.rope.scale_linear", 4), ROPE_SCALING_LINEAR, 4},
    {F32("llama.rope.scaling.factor", 4), ROPE_SCALING_LINEAR, 4}, /* a factor without a type means linear */
};

static void rope_keys_are_understood(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        if (try_open(&sound, &ropes[i].c, &g, &m, &err)) fail_msg("case %zu: %s", i, err.message);
        const RopeParams *p = &m->hparams.rope;
        if (p->scaling != ropes[i].scaling || p->factor != ropes[i].factor)
            fail_msg("case %zu: scaling %d by %g, should be %d by %g", i, p->scaling, p->factor, ropes[i].scaling,
                     ropes[i].factor);
        model_close(m);
        gguf_close(g);
    }
}

/* Keys that change nothing, in files of llama. */
static const Change idle[] = {U32("llama.vocab_size", 99),
                              TEXT("llama.tensor_data_layout", "Meta AI original pth"),
                              BOOL("llama.rope.scaling.finetuned", 0),
                              LIST("llama.rope.dimension_sections", 1, 2, 0),
                              U32("llama.pooling_type", 3),
                              BOOL("llama.attention.causal", 1),
                              F32("llama.logit_scale", 0),
                              F32("llama.logit_scale", 1),
                              F32("llama.expert_weights_scale", 2.5), /* there are no experts */
                              U32("llama.expert_used_count", 0),
                              U32("llama.rope.scaling.yarn_beta_fast", 8), /* nothing is scaled */
                              U32("llama4.attention.glance", 1),
                              U32("glance", 1)};

static void keys_that_change_nothing_are_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        if (try_open(&sound, &idle[i], &g, &m, &err)) fail_msg("%s: %s", idle[i].name, err.message);
        model_close(m);
        gguf_close(g);
    }
}

static const RandomModel gemma4 = {
    SMALL("gemma4"),  .n_layer = 3, .head_dim = 8,        .local_head_dim = 6,       .window = 6,
    .n_shared_kv = 1, .n_ple = 5,   .rope_factors = true, .ff_widths = {40, 40, 20}, .attention_interval = 2};

/* Layer 0 has a window, layer 1 has none, and layer 2 reads the keys of layer 0. Code 0: the model is opened. */
static const struct {
    Change c;
    fr_code code;
    const char *says;
} gemma4_changes[] = {
    {{.what = NOTHING}, FR_OK, ""},
    {NO_KEY("gemma4.rope.dimension_count_swa"), FR_OK, ""},
    {NO_KEY("gemma4.final_logit_softcapping"), FR_OK, ""},
    {NO_TENSOR("blk.1.layer_output_scale.weight"), FR_OK, ""},
    {NO_TENSOR("blk.1.attn_v.weight"), FR_OK, ""},
    {U32("gemma4.expert_count", 0), FR_OK, ""},
    {U32("gemma4.expert_count", 8), FR_ERR_FORMAT, "gemma4.expert_used_count is missing"},
    {VECTOR("blk.0.ffn_gate_inp.weight", 1, 24), FR_ERR_FORMAT, "layer 0 has experts, but gemma4.expert_count is 0"},
    {NO_KEY("gemma4.attention.sliding_window_pattern"), FR_ERR_FORMAT, "sliding_window_pattern is missing or no list"},
    {U32("gemma4.attention.sliding_window_pattern", 2), FR_ERR_FORMAT, "sliding_window_pattern is missing or no list"},
    {LIST("gemma4.attention.sliding_window_pattern", 1, 0, -1), FR_ERR_FORMAT, "has 2 numbers for 3 layers"},
    {LIST("gemma4.attention.sliding_window_pattern", 0, 0, 1), FR_ERR_FORMAT,
     "blk.0.attn_q.weight has the wrong shape"},
    {NO_KEY("gemma4.attention.key_length_swa"), FR_ERR_UNSUPPORTED, "value heads of 6 beside key heads of 8 are not"},
    {U32("gemma4.attention.key_length_swa", 10), FR_ERR_FORMAT, "key_length_swa is 10, but must lie between 2 and 8"},
    {U32("gemma4.attention.value_length_swa", 4), FR_ERR_UNSUPPORTED, "value heads of 4 beside key heads of 6 are not"},
    {U32("gemma4.rope.dimension_count_swa", 8), FR_ERR_FORMAT, "count_swa is 8, but must lie between 2 and 6"},
    {U32("gemma4.rope.dimension_count_swa", 5), FR_ERR_FORMAT, "rope.dimension_count_swa is 5, but must be even"},
    {U32("gemma4.attention.shared_kv_layers", 3), FR_ERR_FORMAT, "shared_kv_layers is 3, but must lie between 0 and 2"},
    {U32("gemma4.attention.shared_kv_layers", 2), FR_ERR_FORMAT,
     "layer 1 reads the keys of an earlier layer of its kind, but there is none"},
    {U32("gemma4.attention.shared_kv_layers", 0), FR_ERR_FORMAT, "tensor blk.2.attn_k.weight is missing"},
    {LIST("gemma4.attention.head_count_kv", 2, 2, 1), FR_ERR_FORMAT,
     "layer 2 reads the keys of layer 0, which has another number of KV heads"},
    {NO_TENSOR("blk.0.attn_k_norm.weight"), FR_ERR_FORMAT, "tensor blk.0.attn_k_norm.weight is missing"},
    {NO_TENSOR("blk.2.inp_gate.weight"), FR_ERR_FORMAT, "tensor blk.2.inp_gate.weight is missing"},
    {NO_TENSOR("per_layer_token_embd.weight"), FR_ERR_FORMAT, "tensor per_layer_token_embd.weight is missing"},
    {NO_TENSOR("per_layer_proj_norm.weight"), FR_ERR_FORMAT, "tensor per_layer_proj_norm.weight is missing"},
    {SHAPE("per_layer_model_proj.weight", 24, 10, 0), FR_ERR_FORMAT, "24 x 10 where 24 x 15 fits"},
    {SHAPE("blk.0.layer_output_scale.weight", 1, 0, 0), FR_ERR_FORMAT, "layer 0 is multiplied by 0"},
    {U32("gemma4.embedding_length_per_layer_input", 0), FR_ERR_UNSUPPORTED, "is not part of architecture gemma4"},
};

static void gemma4_files_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof gemma4_changes / sizeof *gemma4_changes; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        int status = try_open(&gemma4, &gemma4_changes[i].c, &g, &m, &err);
        if (status != gemma4_changes[i].code || !strstr(err.message, gemma4_changes[i].says))
            fail_msg("case %zu: the error should contain '%s' (%d); status %d: '%s'", i, gemma4_changes[i].says,
                     gemma4_changes[i].code, status, err.message);
        if (m) {
            assert_true(m->layers[0].mixer == MIXER_WINDOW && m->layers[1].mixer == MIXER_ATTENTION);
            assert_int_equal(m->layers[2].shares_kv, 1);
            assert_true(layer_head_dim(&m->hparams, &m->layers[0]) == 6 && m->ropes[1].params.n_rot == 6);
            assert_true(layer_head_dim(&m->hparams, &m->layers[1]) == 8 && m->ropes[0].params.n_rot == 8);
            assert_true(model_n_attention(m) == 2 && model_mixer_place(m, 2) == model_mixer_place(m, 0));
        }
        model_close(m);
        gguf_close(g);
    }
}

static const RandomModel gemma3 = {SMALL("gemma3"), .n_layer = 7, .window = 6},
                         gemma3_of_3 = {SMALL("gemma3"), .n_layer = 3, .window = 6},
                         gemma2 = {SMALL("gemma2"), .n_layer = 3, .window = 6},
                         gpt_oss = {SMALL("gpt-oss"), .n_layer = 3,       .window = 6,
                                    .n_expert = 3,    .n_expert_used = 2, .n_ff_expert = 8},
                         llama4 = {SMALL("llama4"),    .n_layer = 3,     .window = 6,      .n_expert = 3,
                                   .n_expert_used = 1, .n_ff_expert = 8, .n_ff_shared = 8, .expert_interval = 1};

/* Some layers have a window (w), and the others see all positions (a). */
static const struct {
    const RandomModel *m;
    Change c;
    const char *layers;
    int32_t window;
} windows[] = {
    {&gemma3, {.what = NOTHING}, "wwwwwaw", 6},
    {&gemma3, U32("gemma3.attention.sliding_window_pattern", 3), "wwawwaw", 6},
    {&gemma3, U32("gemma3.attention.sliding_window_pattern", 1), "aaaaaaa", 0},
    {&gemma3, U32("gemma3.attention.sliding_window_pattern", 0), "wwwwwww", 6},
    {&gemma3, NO_KEY("gemma3.attention.sliding_window"), "wwwwwaw", 4096},
    {&gemma3, U32("gemma3.attention.sliding_window", 0), "aaaaaaa", 0},
    {&gemma3_of_3, LIST("gemma3.attention.sliding_window_pattern", 0, 1, 1), "aww", 6},
    {&gemma2, {.what = NOTHING}, "waw", 6},
    {&gemma2, NO_KEY("gemma2.attention.sliding_window"), "waw", 4096},
    {&gemma2, LIST("gemma2.attention.sliding_window_pattern", 0, 0, 1), "aaw", 6},
    {&gpt_oss, {.what = NOTHING}, "waw", 6},
    {&gpt_oss, NO_KEY("gpt-oss.attention.sliding_window"), "waw", 128},
    {&gpt_oss, U32("gpt-oss.attention.sliding_window_pattern", 3), "wwa", 6},
    {&gpt_oss, LIST("gpt-oss.attention.sliding_window_pattern", 0, 1, 0), "awa", 6},
    {&llama4, LIST("llama4.attention.sliding_window_pattern", 0, 1, 0), "awa", 6},
    {&sound, U32("llama.attention.sliding_window", 9), "ww", 9},
    {&sound, LIST("llama.attention.sliding_window_pattern", 1, 1, -1), "aa",
     0}, /* the pattern of a window that is not there */
};

static void the_file_says_which_layers_have_a_window(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        char found[8] = "";
        if (try_open(windows[i].m, &windows[i].c, &g, &m, &err)) fail_msg("case %zu: %s", i, err.message);
        for (int32_t k = 0; k < m->hparams.n_layer; k++) {
            const LayerSpec *l = &m->layers[k];
            found[k] = l->mixer == MIXER_WINDOW ? 'w' : 'a';
            if (windows[i].m == &gemma3) assert_int_equal(l->i_rope, l->mixer == MIXER_WINDOW);
            if (windows[i].m == &llama4) assert_int_equal(l->i_rope, l->mixer == MIXER_WINDOW ? 0 : -1);
        }
        if (strcmp(found, windows[i].layers) != 0 || model_window(m) != windows[i].window)
            fail_msg("case %zu: %s with a window of %d, should be %s with %d", i, found, model_window(m),
                     windows[i].layers, windows[i].window);
        model_close(m);
        gguf_close(g);
    }
}

static const RandomModel yarn = {SMALL("llama"), .n_layer = 2, .rope_scaling = "yarn", .rope_factor = 4,
                                 .rope_n_ctx_orig = 512},
                         shrunk = {SMALL("llama"), .n_layer = 2, .rope_scaling = "yarn", .rope_factor = 0.5,
                                   .rope_n_ctx_orig = 512};

/* The factor of cos and sin, and the second frequency relative to that without scaling. */
static const struct {
    const RandomModel *m;
    Change c;
    double magnitude, slower;
} yarns[] = {
    {&yarn, {.what = NOTHING}, 1.1386294361, 1 / (0.5 + 0.5 / 4)},
    {&yarn, F32("llama.rope.scaling.yarn_ext_factor", 0), 1.1386294361, 4}, /* as the published code of YaRN does */
    {&yarn, F32("llama.rope.scaling.yarn_ext_factor", -1), 1.1386294361, 1 / (0.5 + 0.5 / 4)},
    {&yarn, F32("llama.rope.scaling.yarn_attn_factor", 1.5), 1.5, 1 / (0.5 + 0.5 / 4)}, /* as in transformers */
    {&yarn, F32("llama.rope.scaling.attn_factor", 2), 2 * 1.1386294361, 1 / (0.5 + 0.5 / 4)},
    {&yarn, F32("llama.rope.scaling.yarn_beta_fast", 1e-2), 1.1386294361, 1},
    {&shrunk, {.what = NOTHING}, 1, 1 / (0.5 + 0.5 / 0.5)},
};

static void yarn_keys_are_followed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof yarns / sizeof *yarns; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        if (try_open(yarns[i].m, &yarns[i].c, &g, &m, &err)) fail_msg("case %zu: %s", i, err.message);
        const Rope *rope = &m->ropes[0];
        double slower = pow(10000, -2.0 / 6) / rope->freqs[1];
        print_message("case %zu: magnitude %.9g, pair 1 is slowed down by %.9g\n", i, rope->magnitude, slower);
        if (fabs(rope->magnitude - yarns[i].magnitude) > 1e-6 || fabs(slower - yarns[i].slower) > 1e-6)
            fail_msg("case %zu: should be %.9g and %.9g", i, yarns[i].magnitude, yarns[i].slower);
        model_close(m);
        gguf_close(g);
    }
}

static void granite_may_have_no_rotation(void **state) {
    (void)state;
    RandomModel granite = sound;
    granite.arch = "granite";
    for (int rotates = 0; rotates < 2; rotates++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        const Change c = BOOL("granite.rope.scaling.finetuned", rotates);
        if (try_open(&granite, &c, &g, &m, &err)) fail_msg("%s", err.message);
        for (int32_t i = 0; i < 2; i++) assert_int_equal(m->layers[i].i_rope, rotates ? 0 : -1);
        model_close(m);
        gguf_close(g);
    }
}

/* A router follows the keys of the file, and without them the models that have this shape. */
static void routers_are_those_of_the_file(void **state) {
    (void)state;
#define LATENT_MODEL(n) \
    { \
        SMALL("deepseek2"), .n_layer = 1, .kv_rank = 12, .plain_dim = 10, .n_rot = 6, .value_dim = 14, .n_expert = n, \
                            .n_expert_used = 2, .n_ff_expert = 2, .n_ff_shared = 2 \
    }
#define MOE(a) \
    { SMALL(a), .n_layer = 1, .n_expert = 4, .n_expert_used = 2, .n_ff_expert = 6, .n_ff_shared = 6 }
    static const RandomModel v2 = LATENT_MODEL(160), v3 = LATENT_MODEL(256), qwen2 = MOE("qwen2moe"),
                             qwen3 = MOE("qwen3moe");
    static const struct {
        const RandomModel *m;
        Change c;
        RouterGate gate;
        bool keeps;
        float scale;
    } cases[] = {{&v2, NO_KEY("deepseek2.expert_gating_func"), ROUTER_SOFTMAX, true, 1},
                 {&v3, NO_KEY("deepseek2.expert_gating_func"), ROUTER_SIGMOID, true, 1},
                 {&v3, {.what = NOTHING}, ROUTER_SOFTMAX, true, 1},
                 {&qwen2, {.what = NOTHING}, ROUTER_SOFTMAX, true, 1},
                 {&qwen2, BOOL("qwen2moe.expert_weights_norm", 1), ROUTER_SOFTMAX, false, 1},
                 {&qwen3, {.what = NOTHING}, ROUTER_SOFTMAX, false, 1},
                 {&qwen3, BOOL("qwen3moe.expert_weights_norm", 0), ROUTER_SOFTMAX, true, 1},
                 {&qwen3, F32("qwen3moe.expert_weights_scale", 2.5), ROUTER_SOFTMAX, false, 2.5f},
                 {&qwen3, U32("qwen3moe.expert_gating_func", 2), ROUTER_SIGMOID, false, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Gguf *g;
        Model *m = NULL;
        fr_error err = {0};
        RandomModel of = *cases[i].m;
        if (of.arch[0] == 'q' && of.arch[4] == '3') of.n_ff_shared = 0;
        if (try_open(&of, &cases[i].c, &g, &m, &err)) fail_msg("case %zu: %s", i, err.message);
        const LayerSpec *l = &m->layers[0];
        if (l->router_gate != cases[i].gate || l->keeps_probabilities != cases[i].keeps ||
            l->expert_scale != cases[i].scale)
            fail_msg("case %zu: gate %d, probabilities kept %d, scale %g", i, l->router_gate, l->keeps_probabilities,
                     (double)l->expert_scale);
        model_close(m);
        gguf_close(g);
    }
}

static void shapes_are_read_from_the_file(void **state) {
    (void)state;
    Gguf *g;
    Model *m = NULL;
    fr_error err = {0};
    if (try_open(&sound, &(Change)NO_KEY("llama.attention.head_count_kv"), &g, &m, &err) == FR_OK)
        fail_msg("as many key-value heads as heads do not fit these tensors");
    gguf_close(g);
    if (try_open(&sound, &(Change)NO_TENSOR("output.weight"), &g, &m, &err)) fail_msg("%s", err.message);
    const Hparams *h = &m->hparams;
    const int32_t found[] = {(int32_t)h->arch, h->n_layer,   h->n_embd,   h->n_ff,       h->n_vocab,
                             h->n_head,        h->n_head_kv, h->head_dim, h->rope.n_rot, h->n_ctx_train};
    const int32_t wanted[] = {ARCH_LLAMA, 2, 24, 40, 33, 4, 2, 6, 6, 2048};
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        if (found[i] != wanted[i]) fail_msg("number %zu is %d, should be %d", i, found[i], wanted[i]);
    assert_ptr_equal(m->output, m->token_embd); /* tied */
    assert_true(m->output->dims[1] == 33 && m->output->dims[0] == 24);
    model_close(m);
    gguf_close(g);
}

static double last_part;
static void note_progress(void *user, double part) {
    ++*(int64_t *)user;
    assert_true(part > last_part && part <= 1);
    last_part = part;
}

static void progress_steps_to_one_with_each_matrix(void **state) {
    (void)state;
    Gguf *g = rig_random_gguf(&sound);
    Model *m = NULL;
    Weights *w = NULL;
    int64_t n_steps = 0;
    last_part = 0;
    const WeightsOptions o = {.n_threads = 2, .progress = note_progress, .progress_user = &n_steps};
    assert_int_equal(model_open(&m, g, NULL), FR_OK);
    assert_int_equal(backend_cpu.weights_open(&w, m, &o, NULL), FR_OK);
    assert_true(last_part == 1 && n_steps == 2 * 7 + 1); /* the parts of two layers, and the output */
    weights_close(w);
    model_close(m);
    gguf_close(g);
}

/* ---- memory ----------------------------------------------------------------------------------------------
 */

enum { MOST_ALLOCATIONS = 500 };

/* Runs `attempt` with the k-th allocation refused, k = 1, 2, ..., until it succeeds. Returns that k. */
static int fail_each_allocation(const char *what, int (*attempt)(void *ctx, fr_error *err), void *ctx) {
    for (int k = 1; k < MOST_ALLOCATIONS; k++) {
        fr_error err = {0};
        allocations.n_live = 0, allocations.fail_at = k, allocations.counting = true;
        int status = attempt(ctx, &err);
        allocations.counting = false, allocations.fail_at = 0;
        if (allocations.n_live) fail_msg("%s, allocation %d refused: %d blocks are lost", what, k, allocations.n_live);
        if (status == FR_OK) return k;
        if (status != FR_ERR_MEMORY || !strstr(err.message, "out of memory"))
            fail_msg("%s, allocation %d refused: status %d: '%s'", what, k, status, err.message);
    }
    fail_msg("%s never succeeds", what);
    return 0;
}

static int open_model(void *g, fr_error *err) {
    Model *m = NULL;
    int status = model_open(&m, g, err);
    if (status) assert_null(m);
    model_close(m);
    return status;
}

static int open_weights(void *m, fr_error *err) {
    Weights *w = NULL;
    int status = backend_cpu.weights_open(&w, m, &(WeightsOptions){.n_threads = 1}, err);
    if (status) assert_null(w);
    weights_close(w);
    return status;
}

static int open_executor(void *w, fr_error *err) {
    Executor *e = NULL;
    Device *d = NULL;
    const ExecutorOptions o = {.kv_type = KV_F32, .page_size = 16, .n_ctx = 32, .max_sequences = 3, .max_rows = 4};
    int status = ((Weights *)w)->backend->device_open(&d, &(DeviceOptions){.n_threads = 1}, err);
    if (!status) status = executor_open(&e, d, w, &o, err);
    if (status) assert_null(e);
    executor_close(e);
    device_close(d);
    return status;
}

static void refuse_memory(const RandomModel *of, const Backend *backend) {
    Gguf *g = rig_random_gguf(of);
    int n = fail_each_allocation("model_open", open_model, g);
    assert_true(n > 18); /* 2 layers of 7 vectors, and a few more */
    Model *m = NULL;
    assert_int_equal(model_open(&m, g, NULL), FR_OK);
    n = fail_each_allocation("weights_open", open_weights, m);
    assert_true(n > 3);
    model_close(m);
    Weights *w = rig_weights_in(backend, g);
    n = fail_each_allocation("executor_open", open_executor, w);
    assert_true(n > 20);
    rig_weights_close(w);
    gguf_close(g);
}

static void refused_memory_is_an_error_and_no_leak(void **state) {
    (void)state;
    RandomModel rich = sound;
    rich.rope_factors = rich.biases = true;
    rich.arch = "qwen3";
    refuse_memory(&rich, &backend_cpu);
    for (int i = 0; i < N_RECURRENT; i++) refuse_memory(&recurrent[i], &backend_cpu);
    refuse_memory(&recurrent[QWEN], &backend_reference);
}

/* The forward allocates nothing: it also runs when every allocation is refused. */
static void run_without_memory(const RandomModel *of) {
    Gguf *g = rig_random_gguf(of);
    Weights *m = rig_weights(g, NULL);
    RigOptions o = rig_options(32, 4);
    Executor *e = rig_executor(m, &o);
    int32_t s = rig_sequence(e);
    Row rows[2] = {{.token = 1, .sequence = s, .parent = -1, .want_logits = true},
                   {.token = 2, .sequence = s, .parent = 0, .want_logits = true}};
    allocations.n_live = 0, allocations.counting = true;
    for (int i = 0; i < 3; i++) {
        allocations.fail_at = 1;
        assert_int_equal(executor_reserve(e, s, 2, NULL), FR_OK);
        assert_int_equal(executor_forward(e, rows, 2, NULL), FR_OK);
        executor_commit(e, s, (int32_t[]){0, 1}, 2);
        assert_int_equal(allocations.fail_at, 1);
    }
    allocations.fail_at = 0, allocations.counting = false;
    assert_int_equal(allocations.n_live, 0);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
}

static void a_forward_allocates_nothing(void **state) {
    (void)state;
    run_without_memory(&sound);
    for (int i = 0; i < N_RECURRENT; i++) run_without_memory(&recurrent[i]);
}

static void too_many_slots_are_refused(void **state) {
    (void)state;
    Gguf *g = rig_random_gguf(&sound);
    Weights *m = rig_weights(g, NULL);
    Device *d = rig_device(m, 1);
    const ExecutorOptions o = {.kv_type = KV_F32,
                               .page_size = 16,
                               .n_ctx = 1 << 24,
                               .max_sequences = 1 << 10,
                               .max_rows = 1};
    Executor *e = NULL;
    fr_error err = {0};
    assert_int_equal(executor_open(&e, d, m, &o, &err), FR_ERR_MEMORY);
    assert_non_null(strstr(err.message, "more KV slots than can be numbered"));
    assert_null(e);
    device_close(d);
    rig_weights_close(m);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unfit_files_are_refused_by_name),
        cmocka_unit_test(recurrent_layers_are_read_or_refused),
        cmocka_unit_test(missing_head_norms_are_refused),
        cmocka_unit_test(rope_keys_are_understood),
        cmocka_unit_test(keys_that_change_nothing_are_accepted),
        cmocka_unit_test(gemma4_files_are_refused_by_name),
        cmocka_unit_test(the_file_says_which_layers_have_a_window),
        cmocka_unit_test(yarn_keys_are_followed),
        cmocka_unit_test(granite_may_have_no_rotation),
        cmocka_unit_test(routers_are_those_of_the_file),
        cmocka_unit_test(shapes_are_read_from_the_file),
        cmocka_unit_test(progress_steps_to_one_with_each_matrix),
        cmocka_unit_test(refused_memory_is_an_error_and_no_leak),
        cmocka_unit_test(a_forward_allocates_nothing),
        cmocka_unit_test(too_many_slots_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
