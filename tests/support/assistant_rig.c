/* assistant_rig.c - writes targets of gemma4 and assistants for them with random weights. */
#include "assistant_rig.h"

#include "compute/executor.h"
#include "gguf/tensor_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of assistant_rig.h. */
enum {
    T = ASSISTANT_WIDTH,
    V = ASSISTANT_VOCAB,
    DIM = ASSISTANT_DIM,
    LOCAL_DIM = ASSISTANT_LOCAL_DIM,
    WINDOW = ASSISTANT_WINDOW,
    FULL = ASSISTANT_FULL,
    LOCAL = ASSISTANT_LOCAL,
};

#define GEMMA4(layers) \
    .arch = "gemma4", .n_layer = layers, .n_embd = T, .n_head = 4, .n_ff = 96, .n_vocab = V, .head_dim = DIM, \
    .local_head_dim = LOCAL_DIM, .window = WINDOW, .attention_interval = 3, .rope_factors = true, .rope_base = 20000

AssistantTarget assistant_targets[ASSISTANT_TARGETS] = {
    {.path = "build/assistant-target-0.gguf",
     .model = {GEMMA4(6), .n_head_kv = 2, .kv_head_counts = {2, 2, 1, 2, 2, 1}, .values_of_keys = true, .seed = 31},
     .place = {1, 3},
     .n_kv = {1, 2}},
    {.path = "build/assistant-target-1.gguf", /* layers 3 to 6 read the keys of layers 1 and 2 */
     .model = {GEMMA4(7), .n_head_kv = 1, .n_shared_kv = 4, .n_ple = 32, .types = {TYPE_Q8_0}, .n_types = 1,
               .seed = 32},
     .place = {0, 1},
     .n_kv = {1, 1}},
};

const AssistantFile assistant_files[ASSISTANT_FILES] = {
    {"build/assistant-0.gguf", TYPE_F32, 0, 48, 4, 3, WINDOW, {80, 80, 80}, {true, true, false}, false, 0, 0},
    {"build/assistant-1.gguf", TYPE_F16, 1, 32, 2, 2, WINDOW - 3, {64, 96}, {false, true}, true, 0, 0},
    {"build/assistant-2.gguf", TYPE_Q8_0, 0, 64, 4, 1, WINDOW, {96}, {true}, false, 0, 0},
    {"build/assistant-3.gguf", TYPE_F32, 0, 48, 4, 2, WINDOW, {80, 80}, {true, false}, false, 12, 3},
    {"build/assistant-4.gguf", TYPE_Q8_0, 1, 32, 2, 1, WINDOW, {64}, {false}, false, 50, 0},
};

AssistantRig assistants[ASSISTANT_FILES];

/* ---- files -------------------------------------------------------------------------------------------- */

void assistant_set_int(GgufWriter *w, const char *name, int32_t value) {
    char key[128];
    snprintf(key, sizeof key, ASSISTANT_ARCHITECTURE ".%s", name);
    gguf_set_u32(w, key, (uint32_t)value);
}

void assistant_set_list(GgufWriter *w, const char *name, const int32_t *list, int32_t n) {
    char key[128];
    snprintf(key, sizeof key, ASSISTANT_ARCHITECTURE ".%s", name);
    gguf_set_i32s(w, key, list, n);
}

void assistant_set_float(GgufWriter *w, const char *name, float value) {
    char key[128];
    snprintf(key, sizeof key, ASSISTANT_ARCHITECTURE ".%s", name);
    gguf_set_f32(w, key, value);
}

static void set_keys(const AssistantFile *f, GgufWriter *w) {
    const AssistantTarget *t = &assistant_targets[f->target];
    int32_t windows[ASSISTANT_LAYERS], n_kv[ASSISTANT_LAYERS];
    for (int32_t i = 0; i < f->n_layer; i++) windows[i] = f->is_local[i], n_kv[i] = t->n_kv[f->is_local[i]];
    assistant_set_int(w, "block_count", f->n_layer);
    assistant_set_int(w, "nextn_predict_layers", f->n_layer);
    assistant_set_int(w, "embedding_length_out", T);
    assistant_set_int(w, "context_length", 2048);
    assistant_set_int(w, "embedding_length", f->H);
    if (f->lists_ff) assistant_set_list(w, "feed_forward_length", f->ff, f->n_layer);
    else assistant_set_int(w, "feed_forward_length", f->ff[0]);
    assistant_set_int(w, "attention.head_count", f->n_head);
    assistant_set_list(w, "attention.head_count_kv", n_kv, f->n_layer);
    assistant_set_float(w, "attention.layer_norm_rms_epsilon", 1e-6f);
    assistant_set_int(w, "attention.key_length", DIM);
    assistant_set_int(w, "attention.value_length", DIM);
    assistant_set_int(w, "attention.key_length_swa", LOCAL_DIM);
    assistant_set_int(w, "attention.value_length_swa", LOCAL_DIM);
    assistant_set_int(w, "attention.sliding_window", f->window);
    assistant_set_list(w, "attention.sliding_window_pattern", windows, f->n_layer);
    assistant_set_int(w, "attention.shared_kv_layers", f->n_layer);
    assistant_set_int(w, "embedding_length_per_layer_input", 0);
    assistant_set_int(w, "rope.dimension_count", DIM);
    assistant_set_int(w, "rope.dimension_count_swa", LOCAL_DIM);
    assistant_set_float(w, "rope.freq_base", 20000);
    assistant_set_float(w, "rope.freq_base_swa", 5000);
    assistant_set_float(w, "final_logit_softcapping", 30);
}

/* Adds the clusters of the LM head, whose tokens are not neighbours. */
static void add_clusters(const AssistantFile *f, AssistantRig *w) {
    w->centroids = learned_rig_tensor(&w->rig, "masked_embd_centroids.weight", TYPE_F32, f->H, f->n_clusters, 0.5);
    for (int32_t i = 0; i < V; i++) w->listed[i] = (float)(w->clusters[i] = (7 * i + 11) % V);
    if (f->n_top) gguf_add_clusters(w->rig.w, w->clusters, V);
    else gguf_add_tensor(w->rig.w, "masked_embd_ordering", TYPE_F32, 1, (int64_t[]){V}, w->listed);
    if (f->n_top) assistant_set_int(w->rig.w, "centroid_top_k", f->n_top);
}

static float *add_to_layer(LearnedRig *r, int32_t i, const char *name, TensorType type, int64_t n_in, int64_t n_out,
                           double std) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", i, name);
    return learned_rig_tensor(r, full, type, n_in, n_out, std);
}

static void add_layer(const AssistantFile *f, AssistantRig *w, int32_t i) {
    AssistantLayer *l = &w->layers[i];
    LearnedRig *r = &w->rig;
    int32_t dim = f->is_local[i] ? LOCAL_DIM : DIM, q_dim = f->n_head * dim;
    l->attn_norm = add_to_layer(r, i, "attn_norm", TYPE_F32, f->H, 0, 1);
    l->q = add_to_layer(r, i, "attn_q", f->type, f->H, q_dim, 0.2);
    l->q_norm = add_to_layer(r, i, "attn_q_norm", TYPE_F32, dim, 0, 0.3);
    l->o = add_to_layer(r, i, "attn_output", f->type, q_dim, f->H, 0.2);
    l->post_attn_norm = add_to_layer(r, i, "post_attention_norm", TYPE_F32, f->H, 0, 1);
    l->ffn_norm = add_to_layer(r, i, "ffn_norm", TYPE_F32, f->H, 0, 1);
    l->gate = add_to_layer(r, i, "ffn_gate", f->type, f->H, f->ff[i], 0.1);
    l->up = add_to_layer(r, i, "ffn_up", f->type, f->H, f->ff[i], 0.1);
    l->down = add_to_layer(r, i, "ffn_down", f->type, f->ff[i], f->H, 0.1);
    l->post_ffn_norm = add_to_layer(r, i, "post_ffw_norm", TYPE_F32, f->H, 0, 1);
    l->scale = add_to_layer(r, i, "layer_output_scale", TYPE_F32, 1, 0, 1);
}

static void add_tensors(const AssistantFile *f, AssistantRig *w) {
    LearnedRig *r = &w->rig;
    const GgufTensor *factors = gguf_find_tensor(assistant_targets[f->target].gguf, "rope_freqs.weight");
    w->before = learned_rig_tensor(r, "nextn.pre_projection.weight", f->type, 2 * T, f->H, 0.1);
    w->after = learned_rig_tensor(r, "nextn.post_projection.weight", f->type, f->H, T, 0.3);
    w->head = learned_rig_tensor(r, "token_embd.weight", f->type, f->H, V, 0.3);
    w->output_norm = learned_rig_tensor(r, "output_norm.weight", TYPE_F32, f->H, 0, 1);
    if (factors) gguf_add_tensor(r->w, factors->name, TYPE_F32, 1, factors->dims, factors->data);
    for (int32_t i = 0; i < f->n_layer; i++) add_layer(f, w, i);
    if (f->n_clusters) add_clusters(f, w);
}

static void open_rope(Rope *out, int32_t n_rot, double base, const float *factors) {
    const RopeParams p = {.style = ROPE_HALVES, .n_rot = n_rot, .base = base, .factor = 1, .magnitude = 1};
    fr_error err;
    if (rope_init(out, &p, factors, &err)) fail_msg("%s", err.message);
}

void assistant_rig_write(const AssistantFile *f, AssistantRig *w, uint64_t seed) {
    w->file = f;
    learned_rig_begin(&w->rig, "mtp", assistant_targets[f->target].weights, seed);
    gguf_writer_free(w->rig.w);
    w->rig.w = gguf_writer_new();
    gguf_set_string(w->rig.w, "general.architecture", ASSISTANT_ARCHITECTURE, strlen(ASSISTANT_ARCHITECTURE));
    set_keys(f, w->rig.w);
    add_tensors(f, w);
    learned_rig_write(&w->rig, f->path);
    open_rope(&w->ropes[FULL], DIM, 20000,
              gguf_find_tensor(assistant_targets[f->target].gguf, "rope_freqs.weight")->data);
    open_rope(&w->ropes[LOCAL], LOCAL_DIM, 5000, NULL);
}

void assistant_rig_free(AssistantRig *w) {
    learned_rig_free(&w->rig);
    rope_free(&w->ropes[FULL]);
    rope_free(&w->ropes[LOCAL]);
}

static void open_target(AssistantTarget *t, const char *path) {
    fr_error err;
    if (random_model_write(&t->model, path, &err)) fail_msg("%s", err.message);
    t->gguf = rig_gguf(path);
    t->weights = rig_weights(t->gguf, NULL);
    t->exact = rig_weights_in(&backend_reference, t->gguf);
    t->embedding = malloc(sizeof(float) * V * T);
    for (int32_t v = 0; v < V; v++) model_embedding(t->exact->model, v, t->embedding + v * T);
}

static void close_target(AssistantTarget *t) {
    free(t->embedding);
    rig_weights_close(t->exact);
    rig_weights_close(t->weights);
    gguf_close(t->gguf);
}

void assistant_rig_write_first(const char *target, const char *path) {
    static AssistantRig w;
    AssistantFile f = assistant_files[0];
    f.path = path;
    open_target(&assistant_targets[0], target);
    assistant_rig_write(&f, &w, 80);
    assistant_rig_free(&w);
    close_target(&assistant_targets[0]);
}

int assistant_rig_open(void **state) {
    (void)state;
    for (int i = 0; i < ASSISTANT_TARGETS; i++) open_target(&assistant_targets[i], assistant_targets[i].path);
    for (int i = 0; i < ASSISTANT_FILES; i++)
        assistant_rig_write(&assistant_files[i], &assistants[i], 80 + (uint64_t)i);
    return 0;
}

int assistant_rig_close(void **state) {
    (void)state;
    for (int i = 0; i < ASSISTANT_FILES; i++) assistant_rig_free(&assistants[i]);
    for (int i = 0; i < ASSISTANT_TARGETS; i++) close_target(&assistant_targets[i]);
    return 0;
}

/* ---- a target that reads texts -------------------------------------------------------------------------- */

Executor *assistant_rig_reader(const Weights *w, KvType kv_type) {
    RigOptions o = rig_options(64, 64);
    o.n_threads = 2, o.kv_type = kv_type, o.page_size = 4, o.max_sequences = ASSISTANT_SEQUENCES;
    Executor *e = rig_executor(w, &o);
    for (int32_t i = 0; i < ASSISTANT_SEQUENCES; i++) assert_int_equal(rig_sequence(e), i);
    return e;
}

DrafterEnv assistant_rig_env(const Executor *e) {
    return (DrafterEnv){.n_vocab = V,
                        .max_sequences = ASSISTANT_SEQUENCES,
                        .target = executor_weights(e)->model->gguf,
                        .weights = executor_weights(e),
                        .device = executor_context(e)->device,
                        .n_ctx = 64,
                        .executor = e};
}
