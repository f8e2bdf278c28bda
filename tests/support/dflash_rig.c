/* dflash_rig.c - writes files of the drafter dflash. */
#include "dflash_rig.h"

#include <stdio.h>
#include <string.h>

const DflashFile dflash_files[N_DFLASH_FILES] = {
    {.path = "build/dflash-0.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .block = 5,
     .mask = 7,
     .has_head_norms = true,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-1.gguf",
     .layout = OLD,
     .type = TYPE_F16,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .n_layer = 2,
     .block = 4,
     .mask = 299,
     .window = 6,
     .has_head_norms = true,
     .has_sinks = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-2.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 3,
     .dim = 16,
     .ff = 80,
     .n_layer = 1,
     .n_tokens = 200,
     .block = 6,
     .mask = 0,
     .has_embedding = true,
     .is_causal = true,
     .from_anchor = true,
     .n_streams = 3,
     .streams = {2, 0, 1}},
    {.path = "build/dflash-3.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 4,
     .mask = 12,
     .rank = 8,
     .has_head_norms = true,
     .from_anchor = true, /* without a key */
     .n_streams = 2,
     .streams = {0, 2}},
    {.path = "build/dflash-4.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 32,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 4,
     .mask = 12,
     .rank = 8,
     .is_gated = true,
     .from_anchor = true,
     .n_streams = 1,
     .streams = {1}},
    {.path = "build/dflash-5.gguf", /* wider than a published one: three taps, and a reduced vocabulary */
     .layout = OWN,
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 1,
     .dim = 16,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 6,
     .mask = 12,
     .taps = 3,
     .group = 8,
     .selector = 4,
     .selector_top = 16,
     .has_embedding = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-6.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .block = 5,
     .mask = 7,
     .taps = 2,
     .group = 16,
     .selector = 6,
     .selector_top = 7,
     .has_head_norms = true,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-7.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 32,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 5,
     .mask = 12,
     .rank = 6,
     .is_recurrent = true,
     .from_anchor = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-8.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 1,
     .dim = 16,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 5,
     .mask = 12,
     .rank = 8,
     .has_embedding = true,
     .from_anchor = true, /* without a key */
     .is_narrow = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-9.gguf", /* one of two layers has a window, and only its slots do not see later ones */
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .block = 6,
     .mask = 7,
     .window = 7,
     .has_head_norms = true,
     .has_sinks = true,
     .has_biases = true,
     .windows_are_causal = true,
     .embedding_scale = 1.5f,
     .logit_scale = 0.5f,
     .cap = 3,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-10.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .n_layer = 1,
     .block = 4,
     .mask = 3,
     .is_confident = true,
     .from_anchor = true,
     .n_streams = 1,
     .streams = {1}},
    {.path = "build/dflash-11.gguf",
     .layout = LUCEBOX,
     .type = TYPE_F16,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 64,
     .n_layer = 2,
     .block = 4,
     .mask = 11,
     .window = 6,
     .has_head_norms = true,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-12.gguf", /* DSpark for Gemma 4, as llama.cpp converts it */
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .n_tokens = 150,
     .block = 5,
     .mask = 4,
     .rank = 8,
     .has_head_norms = true,
     .from_anchor = true, /* without a key */
     .is_gemma = true,
     .embedding_scale = 8,
     .cap = 5,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-13.gguf",
     .layout = OWN,
     .type = TYPE_F16,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .n_layer = 2,
     .block = 4,
     .mask = 3,
     .window = 7,
     .has_head_norms = true,
     .is_gemma = true,
     .has_values = true,
     .n_streams = 1,
     .streams = {1}},
    {.path = "build/dflash-14.gguf", /* the convolutions of DFlash 2 in layers of Gemma's form with biases */
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 64,
     .n_layer = 2,
     .block = 5,
     .mask = 3,
     .taps = 2,
     .group = 16,
     .has_head_norms = true,
     .has_biases = true,
     .is_gemma = true,
     .n_streams = 2,
     .streams = {1, 2}},
};

static bool is_old(const DflashFile *f) { return f->layout == OLD || f->layout == LUCEBOX; }

/* The name of a key; old files have some of them after "dflash.". */
static const char *key_of(const DflashFile *f, const char *name, bool is_after_dflash) {
    static char key[128];
    const char *const prefixes[] = {"dflash.", "dflash-draft.", DRAFTER_KEY("dflash."), "qwen35-dflash-draft."};
    snprintf(key, sizeof key, "%s%s%s", prefixes[f->layout], is_old(f) && is_after_dflash ? "dflash." : "", name);
    return key;
}

static void set_int(const DflashFile *f, LearnedRig *r, const char *name, int32_t value) {
    gguf_set_u32(r->w, key_of(f, name, false), (uint32_t)value);
}

void dflash_rig_set_mask(const DflashFile *f, LearnedRig *r) {
    const char *key = f->layout == PUBLISHED ? "tokenizer.ggml.mask_token_id" : key_of(f, "mask_token_id", true);
    gguf_set_u32(r->w, key, (uint32_t)f->mask);
}

void dflash_rig_set_keys(const DflashFile *f, LearnedRig *r) {
    int32_t list[MAX_STREAMS], flags[] = {1, 0}, none[] = {0, 0};
    for (int32_t i = 0; i < f->n_streams; i++) list[i] = f->streams[i] - is_old(f);
    set_int(f, r, "block_count", f->n_layer);
    set_int(f, r, "context_length", 2048);
    set_int(f, r, "embedding_length", f->H);
    set_int(f, r, "feed_forward_length", f->ff);
    set_int(f, r, "attention.head_count", f->n_head);
    if (!f->is_gemma) set_int(f, r, "attention.head_count_kv", f->n_kv);
    set_int(f, r, "attention.key_length", f->dim);
    set_int(f, r, "attention.value_length", f->dim);
    gguf_set_f32(r->w, key_of(f, "rope.freq_base", false), 50000);
    gguf_set_f32(r->w, key_of(f, "attention.layer_norm_rms_epsilon", false), 1e-6f);
    gguf_set_u32(r->w, key_of(f, "block_size", true), (uint32_t)f->block);
    gguf_set_i32s(r->w, key_of(f, is_old(f) ? "target_layer_ids" : "target_layers", true), list, f->n_streams);
    if (f->layout == OLD) gguf_set_u32(r->w, key_of(f, "n_target_features", true), (uint32_t)(f->n_streams * T));
    if (f->layout == OLD) gguf_set_bool(r->w, key_of(f, "attention.causal", false), false);
    if (f->layout == PUBLISHED) /* of a target with M-RoPE: the position in the text only */
        gguf_set_i32s(r->w, "dflash.rope.dimension_sections", (int32_t[]){f->dim / 2, 0, 0, 0}, 4);
    if (f->layout == LUCEBOX) gguf_set_u32(r->w, key_of(f, "n_target_layers", true), (uint32_t)f->n_streams);
    if (f->layout == LUCEBOX) set_int(f, r, "vocab_size", V);
    if (f->is_causal) gguf_set_bool(r->w, key_of(f, "attention.causal", false), true);
    if (f->from_anchor && !f->rank) gguf_set_bool(r->w, key_of(f, "sample_from_anchor", false), true);
    if (f->taps) set_int(f, r, "conv_kernel_size", f->taps);
    if (f->taps) set_int(f, r, "conv_group_size", f->group);
    if (f->selector) set_int(f, r, "selector_rank", f->selector);
    if (f->selector) set_int(f, r, "selector_top_k", f->selector_top);
    if (f->layout == PUBLISHED && f->rank) gguf_set_bool(r->w, "dflash.has_confidence_head", true);
    if (f->windows_are_causal) gguf_set_bool(r->w, key_of(f, "attention.causal_window", false), true);
    if (f->embedding_scale > 0) gguf_set_f32(r->w, key_of(f, "embedding_scale", false), f->embedding_scale);
    if (f->logit_scale > 0) gguf_set_f32(r->w, key_of(f, "logit_scale", false), f->logit_scale);
    if (f->cap > 0) gguf_set_f32(r->w, key_of(f, "final_logit_softcapping", false), f->cap);
    if (f->is_gemma) gguf_set_f32(r->w, key_of(f, "attention.scale", false), 1);
    if (f->is_gemma)
        gguf_set_i32s(r->w, key_of(f, "attention.head_count_kv", false), (int32_t[]){f->n_kv, f->n_kv}, f->n_layer);
    if (f->is_gemma && f->layout == PUBLISHED) { /* these describe layers with a window, which it has not */
        set_int(f, r, "attention.key_length_swa", 8);
        set_int(f, r, "attention.value_length_swa", 8);
        set_int(f, r, "rope.dimension_count_swa", 8);
        gguf_set_f32(r->w, "dflash.rope.freq_base_swa", 10000);
        set_int(f, r, "attention.shared_kv_layers", 0);
        set_int(f, r, "embedding_length_per_layer_input", 0);
    }
    if (f->window) set_int(f, r, "attention.sliding_window", f->window);
    if (f->window || f->is_gemma)
        gguf_set_i32s(r->w, key_of(f, "attention.sliding_window_pattern", false), f->window ? flags : none, f->n_layer);
}

static float *add_to_layer(DflashWeights *w, int32_t i, const char *name, TensorType type, int64_t n_in, int64_t n_out,
                           double std) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", i, name);
    return learned_rig_tensor(&w->rig, full, type, n_in, n_out, std);
}

/* Adds the convolution around part 0 (attention) or 1 (feed-forward) of a layer. */
static void add_conv(const DflashFile *f, DflashWeights *w, int32_t i, int part) {
    DflashLayerWeights *l = &w->layers[i];
    char name[64];
    l->kernels[part] = add_to_layer(w, i, part ? "ffn_conv_proj" : "attn_conv_proj", f->type, f->H,
                                    2 * f->taps * (f->H / f->group), 0.05);
    snprintf(name, sizeof name, "blk.%d.%s_conv_base", i, part ? "ffn" : "attn");
    l->base[part] = learned_rig_cube(&w->rig, name, f->H, f->taps, 2, 0.7);
}

static float *add_bias(DflashWeights *w, int32_t i, const char *name, int64_t n) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.bias", i, name);
    return learned_rig_tensor(&w->rig, full, TYPE_F32, n, 0, 1);
}

static void add_layer(const DflashFile *f, DflashWeights *w, int32_t i) {
    DflashLayerWeights *l = &w->layers[i];
    int32_t H = f->H, q = f->n_head * f->dim, kv = f->n_kv * f->dim;
    l->norm = add_to_layer(w, i, "attn_norm", TYPE_F32, H, 0, 1);
    l->q = add_to_layer(w, i, "attn_q", f->type, H, q, 0.2);
    l->k = add_to_layer(w, i, "attn_k", f->type, H, kv, 0.2);
    l->v = f->is_gemma && !f->has_values ? l->k : add_to_layer(w, i, "attn_v", f->type, H, kv, 0.2);
    l->o = add_to_layer(w, i, "attn_output", f->type, q, H, 0.2);
    if (f->has_head_norms) l->q_norm = add_to_layer(w, i, "attn_q_norm", TYPE_F32, f->dim, 0, 1);
    if (f->has_head_norms) l->k_norm = add_to_layer(w, i, "attn_k_norm", TYPE_F32, f->dim, 0, 1);
    if (f->has_biases) {
        l->q_bias = add_bias(w, i, "attn_q", q);
        l->k_bias = add_bias(w, i, "attn_k", kv);
        l->v_bias = add_bias(w, i, "attn_v", kv);
        l->o_bias = add_bias(w, i, "attn_output", H);
    }
    if (f->is_gemma) {
        l->post_attn_norm = add_to_layer(w, i, "post_attention_norm", TYPE_F32, H, 0, 1);
        l->post_ffn_norm = add_to_layer(w, i, "post_ffw_norm", TYPE_F32, H, 0, 1);
    }
    if (f->is_gemma && !f->has_values) l->out_scale = add_to_layer(w, i, "layer_output_scale", TYPE_F32, 1, 0, 1);
    if (f->has_sinks) l->sinks = add_to_layer(w, i, "attn_sinks", TYPE_F32, f->n_head, 0, 1);
    l->ffn_norm = add_to_layer(w, i, f->layout == OLD ? "post_attention_norm" : "ffn_norm", TYPE_F32, H, 0, 1);
    l->gate = add_to_layer(w, i, "ffn_gate", f->type, H, f->ff, 0.1);
    l->up = add_to_layer(w, i, "ffn_up", f->type, H, f->ff, 0.1);
    l->down = add_to_layer(w, i, "ffn_down", f->type, f->ff, H, 0.1);
    for (int part = 0; f->taps && part < 2; part++) add_conv(f, w, i, part);
}

void dflash_rig_add_tensors(const DflashFile *f, DflashWeights *w) {
    LearnedRig *r = &w->rig;
    static const char *const names[][2] = {[PUBLISHED] = {"fc.weight", "enc.output_norm.weight"},
                                           [OLD] = {"dflash_fc.weight", "dflash_hidden_norm.weight"},
                                           [OWN] = {"fc.weight", "enc.output_norm.weight"},
                                           [LUCEBOX] = {"dflash.fc.weight", "dflash.hidden_norm.weight"}};
    w->fc = learned_rig_tensor(r, names[f->layout][0], f->type, f->n_streams * T, f->H, 0.05);
    w->context_norm = learned_rig_tensor(r, names[f->layout][1], TYPE_F32, f->H, 0, 1);
    for (int32_t i = 0; i < f->n_layer; i++) add_layer(f, w, i);
    w->output_norm = learned_rig_tensor(r, "output_norm.weight", TYPE_F32, f->H, 0, 1);
    if (f->is_gemma && !f->has_values) { /* the second half does not rotate */
        w->factors = learned_rig_tensor(r, "rope_freqs.weight", TYPE_F32, f->dim / 2, 0, 0);
        for (int32_t i = 0; i < f->dim / 2; i++)
            w->factors[i] = ((float *)r->kept[r->n_kept - 1])[i] = i < f->dim / 4 ? 1
                                                                                  : 1e30f; /* an F32 tensor's bytes */
    }
    if (f->n_tokens) w->output = learned_rig_tensor(r, "output.weight", f->type, f->H, f->n_tokens, 0.3);
    if (f->has_embedding) w->embedding = learned_rig_tensor(r, "token_embd.weight", f->type, f->H, V, 1);
    if (f->n_tokens) gguf_add_map(r->w, w->map, f->n_tokens);
    if (f->selector) {
        w->predecessor = learned_rig_tensor(r, "selector_predecessor.weight", f->type, f->selector, V, 1);
        w->successor = learned_rig_tensor(r, "selector_successor.weight", f->type, f->selector, V, 0.5);
        w->selector_hidden = learned_rig_tensor(r, "selector_hidden.weight", f->type, f->H, f->selector, 0.1);
    }
    if (dflash_has_confidence(f))
        w->confidence = learned_rig_tensor(r, "conf_proj.weight", TYPE_F32, dflash_n_confident(f), 1, 0.2);
    if (dflash_has_confidence(f)) w->confidence_bias = learned_rig_tensor(r, "conf_proj.bias", TYPE_F32, 1, 0, 1);
    if (f->rank == 0) return;
    w->before = learned_rig_tensor(r, "markov_w1.weight", f->type, f->rank, V, 1);
    w->markov = learned_rig_tensor(r, "markov_w2.weight", f->type, f->rank, f->n_tokens, 1);
    if (f->is_gated) {
        w->gate = learned_rig_tensor(r, "markov_gate.weight", TYPE_F32, f->H + f->rank, f->rank, 0.3);
        w->gate_bias = learned_rig_tensor(r, "markov_gate.bias", TYPE_F32, f->rank, 0, 1);
    }
    if (f->is_recurrent) {
        w->joint = learned_rig_tensor(r, "markov_joint.weight", TYPE_F32, 2 * f->rank + f->H, 3 * f->rank, 0.3);
        w->joint_bias = learned_rig_tensor(r, "markov_joint.bias", TYPE_F32, 3 * f->rank, 0, 1);
    }
}

void dflash_rig_begin(DflashWeights *w, const DflashFile *f, const Weights *target, uint64_t seed) {
    LearnedRig *r = &w->rig;
    w->file = f;
    learned_rig_begin(r, "dflash", target, seed);
    for (int32_t i = 0; i < f->n_tokens; i++) w->map[i] = (7 * i + 5) % V;
    if (f->layout == OWN) return;
    const char *name = f->layout == OLD ? "dflash-draft" : f->layout == LUCEBOX ? "qwen35-dflash-draft" : "dflash";
    gguf_writer_free(r->w);
    r->w = gguf_writer_new();
    gguf_set_string(r->w, "general.architecture", name, strlen(name));
}

void dflash_rig_write(DflashWeights *w, int i, const Weights *target) {
    const DflashFile *f = &dflash_files[i];
    dflash_rig_begin(w, f, target, 60 + (uint64_t)i);
    dflash_rig_set_keys(f, &w->rig);
    dflash_rig_set_mask(f, &w->rig);
    dflash_rig_add_tensors(f, w);
    const RopeParams rope = {.style = ROPE_HALVES, .n_rot = f->dim, .base = 50000, .factor = 1, .magnitude = 1};
    fr_error err;
    if (rope_init(&w->rope, &rope, w->factors, &err)) fail_msg("%s", err.message);
    learned_rig_write(&w->rig, f->path);
}
void dflash_rig_free(DflashWeights *w) {
    learned_rig_free(&w->rig);
    rope_free(&w->rope);
}
