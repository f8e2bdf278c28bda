/* test_import_eagle3.c - `forerun import-drafter eagle3`: the same weights as llama.cpp's GGUF file and as a folder of
 * safetensors, in the layouts of SafeAILab, speculators and DeepSpec, draft the same, with further layers and P-EAGLE's
 * blocks as well; checkpoints that do not fit are refused. */
#include "learned_rig.h"

#include "base/math_functions.h"
#include "cli_rig.h"
#include "safetensors_build.h"
#include "train/import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { H = 64, V = 300, N_HEAD = 4, N_KV = 2, DIM = 24, FF = 80, D = 100, S = 2 };

#define TARGET "build/import3-target.gguf"
#define FOLDER "build/import3"
#define DIRECT "build/import3-direct.gguf"
#define IMPORTED "build/import3-imported.gguf"

static Gguf *target_gguf;
static Weights *target;

static int open_target(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 7);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    mkdir(FOLDER, 0755);
    return 0;
}

static int close_target(void **state) {
    (void)state;
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the same weights twice -------------------------------------------------------------------------- */

/* speculators' layout; else SafeAILab's. */
typedef struct Layout {
    bool is_speculators;
    const char *list; /* of the target's layers; NULL: there is none */
    int32_t streams[S];
    bool has_far_token;   /* an offset in d2t leads out of the vocabulary */
    bool has_token_twice; /* two offsets in d2t lead to the same token */
    bool lacks_flags;     /* speculators' layout without norm_before_residual, which is set then */
    const char *extra;    /* a tensor more; NULL: none */
    int32_t n_more;       /* layers after the first */
    int32_t block;        /* P-EAGLE; 0: none */
    const char *of_block; /* its keys in config.json, or others */
    bool has_vectors;     /* biases, and norms of heads; half of a head rotates */
    bool is_gemma;        /* DeepSpec's layout, for Gemma 4 */
    bool is_unrounded;    /* YaRN with "truncate": false */
} Layout;

typedef struct Pair {
    LearnedRig direct;
    SafeTensorsBuild published;
    const Layout *layout;
    int64_t tokens[D];
} Pair;

static float *add(Pair *p, const char *name, const char *published, int64_t n_in, int64_t n_out, double std) {
    float *x = learned_rig_tensor(&p->direct, name, TYPE_F32, n_in, n_out, std);
    safetensors_build_add(&p->published, published, x, n_in, n_out);
    return x;
}

/* Returns the place of component o of the heads in the checkpoint. */
static int64_t half_of(const Layout *l, int64_t o) {
    int64_t n_rot = l->has_vectors ? DIM / 2 : DIM, i = o % DIM;
    return i < n_rot ? o / DIM * DIM + i % 2 * (n_rot / 2) + i / 2 : o;
}

static void name_in_checkpoint(const Layout *l, int32_t layer, const char *what, const char *kind, char out[96]) {
    if (layer == 0 && !l->is_speculators && !l->is_gemma) snprintf(out, 96, "midlayer.%s.%s", what, kind);
    else snprintf(out, 96, "layers.%d.%s.%s", (int)layer, what, kind);
}

/* A tensor of a layer. The rows of q and k are those of Hugging Face in the checkpoint: the first components of all
 * pairs of a head, then the second ones. */
static float *add_of_layer(Pair *p, int32_t layer, const char *what, const char *published, int64_t n_in, int64_t n_out,
                           bool is_halved) {
    char name[96], from[96];
    snprintf(name, sizeof name, "blk.%d.%s.weight", (int)layer, what);
    float *x = learned_rig_tensor(&p->direct, name, TYPE_F32, n_in, n_out, n_out ? 0.1 : 1),
          *y = malloc(sizeof *y * (size_t)(n_in * (n_out ? n_out : 1)));
    memcpy(y, x, sizeof *y * (size_t)(n_in * (n_out ? n_out : 1)));
    for (int64_t o = 0; is_halved && o < n_out; o++)
        memcpy(y + half_of(p->layout, o) * n_in, x + o * n_in, (size_t)n_in * sizeof *y);
    name_in_checkpoint(p->layout, layer, published, "weight", from);
    safetensors_build_add(&p->published, from, y, n_in, n_out);
    free(y);
    return x;
}

/* A vector of heads, which is rearranged like the rows of their matrix. */
static void add_vector(Pair *p, int32_t layer, const char *what, const char *published, const char *kind, int64_t n,
                       bool is_halved) {
    char name[96], from[96];
    float y[N_HEAD * DIM];
    snprintf(name, sizeof name, "blk.%d.%s.%s", (int)layer, what, kind);
    float *x = learned_rig_tensor(&p->direct, name, TYPE_F32, n, 0, 1);
    for (int64_t i = 0; i < n; i++) y[is_halved ? half_of(p->layout, i) : i] = x[i];
    name_in_checkpoint(p->layout, layer, published, kind, from);
    safetensors_build_add(&p->published, from, y, n, 0);
}

static void add_vectors(Pair *p, int32_t i) {
    add_vector(p, i, "attn_q", "self_attn.q_proj", "bias", N_HEAD * DIM, true);
    add_vector(p, i, "attn_k", "self_attn.k_proj", "bias", N_KV * DIM, true);
    add_vector(p, i, "attn_v", "self_attn.v_proj", "bias", N_KV * DIM, false);
    add_vector(p, i, "attn_output", "self_attn.o_proj", "bias", H, false);
    add_vector(p, i, "attn_q_norm", "self_attn.q_norm", "weight", DIM, true);
    add_vector(p, i, "attn_k_norm", "self_attn.k_norm", "weight", DIM, true);
}

/* The values are made of the keys, whose rows the file has in the checkpoint's order for that. */
static void add_values(Pair *p, const float *k) {
    int64_t n = 2 * H;
    float *v = learned_rig_tensor(&p->direct, "blk.0.attn_v.weight", TYPE_F32, n, N_KV * DIM, 0.1),
          *bytes = p->direct.kept[p->direct.n_kept - 1];
    for (int64_t o = 0; o < N_KV * DIM; o++)
        memcpy(bytes + half_of(p->layout, o) * n, k + o * n, (size_t)n * sizeof *k);
    memcpy(v, bytes, (size_t)(n * N_KV * DIM) * sizeof *v);
}

/* What a layer of Gemma 4's form has in addition, and the head, which is the target's, so that it is left out. */
static void add_gemma(Pair *p) {
    float *factors = learned_rig_tensor(&p->direct, "rope_freqs.weight", TYPE_F32, DIM / 2, 0, 0),
          *rows = malloc(sizeof *rows * V * H);
    for (int i = 0; i < DIM / 2; i++)
        factors[i] = ((float *)p->direct.kept[p->direct.n_kept - 1])[i] = i < DIM / 8 ? 1 : 1e30f;
    add_vector(p, 0, "attn_q_norm", "self_attn.q_norm", "weight", DIM, true);
    add_vector(p, 0, "attn_k_norm", "self_attn.k_norm", "weight", DIM, true);
    add_of_layer(p, 0, "post_attention_norm", "post_attention_layernorm", H, 0, false);
    add_of_layer(p, 0, "post_ffw_norm", "post_feedforward_layernorm", H, 0, false);
    add(p, "blk.0.layer_output_scale.weight", "layers.0.layer_scalar", 1, 0, 1);
    for (int32_t v = 0; v < V; v++) embedding_row(target->model->output, v, rows + v * H);
    safetensors_build_add(&p->published, "lm_head.weight", rows, H, V);
    free(rows);
}

static void add_layer(Pair *p, int32_t i) {
    int64_t in = i ? H : 2 * H;
    add_of_layer(p, i, "attn_norm", "input_layernorm", H, 0, false);
    add_of_layer(p, i, "attn_q", "self_attn.q_proj", in, N_HEAD * DIM, true);
    const float *k = add_of_layer(p, i, "attn_k", "self_attn.k_proj", in, N_KV * DIM, true);
    if (p->layout->is_gemma) add_values(p, k);
    else add_of_layer(p, i, "attn_v", "self_attn.v_proj", in, N_KV * DIM, false);
    add_of_layer(p, i, "attn_output", "self_attn.o_proj", N_HEAD * DIM, H, false);
    add_of_layer(p, i, "ffn_norm", p->layout->is_gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm", H, 0,
                 false);
    add_of_layer(p, i, "ffn_gate", "mlp.gate_proj", H, FF, false);
    add_of_layer(p, i, "ffn_up", "mlp.up_proj", H, FF, false);
    add_of_layer(p, i, "ffn_down", "mlp.down_proj", FF, H, false);
}

/* As speculators write it: with two dimensions of 1. */
static void add_mask_hidden(Pair *p) {
    float *x = learned_rig_tensor(&p->direct, "mask_hidden.weight", TYPE_F32, S * H, 0, 1);
    safetensors_build_add_shaped(&p->published, "mask_hidden", x, (int64_t[]){1, 1, S * H}, 3);
}

static void add_head(Pair *p) {
    char t2d[V] = {0};
    int64_t offsets[D];
    if (p->layout->is_speculators) {
        add(p, "output.weight", "lm_head.weight", H, V, 0.2);
        return;
    }
    add(p, "output.weight", "lm_head.weight", H, D, 0.2);
    for (int64_t i = 0; i < D; i++) {
        p->tokens[i] = 3 * i + 1;
        offsets[i] = 2 * i + 1;
        t2d[p->tokens[i]] = 1;
    }
    if (p->layout->has_far_token) offsets[D - 1] = V;
    if (p->layout->has_token_twice) offsets[D - 1] = offsets[D - 2] - 1;
    gguf_add_map(p->direct.w, p->tokens, D);
    safetensors_build_add_i64s(&p->published, "d2t", offsets, D);
    safetensors_build_add_bytes(&p->published, "t2d", t2d, (int64_t[]){V}, 1);
}

#define UNROUNDED \
    ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64, " \
    "\"truncate\": false}"

/* The factors of that rope, by the formulas of YaRN's paper: pairs that turn more than 32 times over the original
 * context stay, those that turn less than once are divided by the factor, and the others are blended. */
static void add_factors(Pair *p) {
    float *factors = learned_rig_tensor(&p->direct, "rope_freqs.weight", TYPE_F32, DIM / 2, 0, 0),
          *bytes = p->direct.kept[p->direct.n_kept - 1];
    double fast = DIM * math_log(64 / (32 * 2 * M_PI)) / (2 * math_log(20000)),
           slow = DIM * math_log(64 / (2 * M_PI)) / (2 * math_log(20000));
    if (fast < 0) fast = 0;
    for (int i = 0; i < DIM / 2; i++) {
        double part = i <= fast ? 0 : i >= slow ? 1 : (i - fast) / (slow - fast);
        factors[i] = bytes[i] = (float)(1 / (part / 4 + 1 - part));
    }
}

static void set_keys(Pair *p) {
    GgufWriter *w = p->direct.w = gguf_writer_new();
    gguf_set_string(w, "general.architecture", "eagle3", 6);
    gguf_set_u32(w, "eagle3.block_count", (uint32_t)(1 + p->layout->n_more));
    if (p->layout->block) gguf_set_u32(w, "eagle3.block_size", (uint32_t)p->layout->block);
    if (p->layout->block) gguf_set_u32(w, "eagle3.mask_token_id", 9);
    gguf_set_u32(w, "eagle3.context_length", 2048);
    gguf_set_u32(w, "eagle3.embedding_length", H);
    gguf_set_u32(w, "eagle3.feed_forward_length", FF);
    gguf_set_u32(w, "eagle3.attention.head_count", N_HEAD);
    gguf_set_u32(w, "eagle3.attention.head_count_kv", N_KV);
    gguf_set_u32(w, "eagle3.attention.key_length", DIM);
    gguf_set_u32(w, "eagle3.attention.value_length", DIM);
    gguf_set_u32(w, "eagle3.target_hidden_size", H);
    gguf_set_f32(w, "eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_f32(w, "eagle3.rope.freq_base", 20000);
    if (p->layout->has_vectors) gguf_set_u32(w, "eagle3.rope.dimension_count", DIM / 2);
    gguf_set_i32s(w, "eagle3.target_layers", p->layout->streams, S);
    if (p->layout->is_gemma) gguf_set_f32(w, "eagle3.attention.scale", 1);
    if (p->layout->is_unrounded) gguf_set_f32(w, "eagle3.rope.scaling.attn_factor", (float)(1 + 0.1 * math_log(4)));
    if (!p->layout->is_speculators) return;
    gguf_set_bool(w, "eagle3.norm_before_fc", true);
    gguf_set_bool(w, "eagle3.norm_before_residual", true);
}

static void write_config(const Layout *l) {
    char list[120] = "";
    FILE *f = fopen(FOLDER "/config.json", "w");
    assert_non_null(f);
    if (l->list) snprintf(list, sizeof list, "\"eagle_aux_hidden_state_layer_ids\": %s", l->list);
    if (l->is_gemma) {
        fprintf(f,
                "{\"architectures\": [\"Gemma4Eagle3Model\"], \"model_type\": \"gemma4_text\", \"hidden_size\": 64, "
                "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 12, "
                "\"global_head_dim\": 24, \"num_global_key_value_heads\": 2, \"attention_k_eq_v\": true, "
                "\"rms_norm_eps\": 1e-5, \"hidden_activation\": \"gelu_pytorch_tanh\", \"num_hidden_layers\": 1, "
                "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 20000.0, "
                "\"partial_rotary_factor\": 0.25}}, \"target_layer_ids\": %s}",
                l->list);
        assert_int_equal(fclose(f), 0);
        return;
    }
    const char *of_block = l->of_block ? l->of_block : "";
    const char *shape = "\"hidden_size\": 64, \"intermediate_size\": 80, \"num_attention_heads\": 4, "
                        "\"num_key_value_heads\": 2, \"head_dim\": 24, \"rms_norm_eps\": 1e-5, \"rope_theta\": 20000.0";
    if (l->is_speculators)
        fprintf(f, "{\"transformer_layer_config\": {%s%s}, %s\"norm_before_fc\": true, %s%s}", shape,
                l->has_vectors ? ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}" : "",
                l->lacks_flags ? "" : "\"norm_before_residual\": true, ", list, of_block);
    else
        fprintf(f, "{\"architectures\": [\"LlamaForCausalLMEagle3\"], %s, \"eagle_config\": {%s}%s}", shape, list,
                of_block);
    assert_int_equal(fclose(f), 0);
}

static void write_both(const Layout *l) {
    static Pair p;
    p = (Pair){.layout = l};
    learned_rig_begin(&p.direct, "eagle3", target, 17);
    gguf_writer_free(p.direct.w);
    safetensors_build_begin(&p.published, TYPE_F32);
    set_keys(&p);
    add(&p, "fc.weight", "fc.weight", S * H, H, 0.07);
    if (l->is_speculators) add(&p, "enc.output_norm.weight", "input_norm.weight", S * H, 0, 1);
    add_of_layer(&p, 0, "attn_norm_2", "hidden_norm", H, 0, false);
    for (int32_t i = 0; i <= l->n_more; i++) {
        add_layer(&p, i);
        if (l->has_vectors) add_vectors(&p, i);
    }
    if (l->block) add_mask_hidden(&p);
    add(&p, "output_norm.weight", "norm.weight", H, 0, 1);
    if (l->is_unrounded) add_factors(&p);
    if (l->is_gemma) add_gemma(&p);
    else add_head(&p);
    if (l->is_speculators) { /* the target's embedding, which is left out */
        float *e = malloc(sizeof *e * V * H);
        for (int32_t v = 0; v < V; v++) model_embedding(target->model, v, e + v * H);
        safetensors_build_add(&p.published, "embed_tokens.weight", e, H, V);
        free(e);
    }
    if (l->extra) safetensors_build_add(&p.published, l->extra, p.direct.kept[0], H, 0);
    learned_rig_write(&p.direct, DIRECT);
    learned_rig_free(&p.direct);
    safetensors_build_write(&p.published, FOLDER "/model.safetensors");
    write_config(l);
}

static int try_import(bool counts_outputs, fr_error *err) {
    Published c;
    const char *path = FOLDER;
    int status = published_open(&c, &path, 1, err);
    if (!status)
        status = import_drafter(import_find("eagle3"), target->model, &c,
                                &(ImportOptions){.type = TYPE_F32, .reading.counts_outputs = counts_outputs}, IMPORTED,
                                err);
    published_close(&c);
    return status;
}

static void propose(LearnedReader *reader, const char *spec, Tree *out) {
    int32_t text[20];
    Drafter *d = learned_rig_open_drafter(reader, spec, 1);
    rig_tokens(5, V, text, 20);
    learned_rig_feed(reader, d, 0, text, 20, 7);
    rig_propose(d, 0, text[19], 30, V, out);
    d->class->end(d, 0);
    drafter_close(d);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void both_files_draft_the_same(void **state) {
    (void)state;
    static const Layout layouts[] = {
        {.list = "[1, 2]", .streams = {1, 2}},
        {.is_speculators = true, .list = "[0, 1]", .streams = {0, 1}},
        {.is_speculators = true, .list = "[0, 1]", .streams = {0, 1}, .lacks_flags = true},
        {.list = "[1, 2]", .streams = {1, 2}, .n_more = 2},
        {.is_speculators = true,
         .list = "[0, 1]",
         .streams = {0, 1},
         .n_more = 1,
         .block = 5,
         .of_block = ", \"mask_token_id\": 9, \"speculators_config\": "
                     "{\"proposal_methods\": [{\"speculative_tokens\": 5}]}"},
        {.list = "[1, 2]", .streams = {1, 2}, .block = 8, .of_block = ", \"ptd_token_id\": 9"},
        {.is_speculators = true,
         .list = "[0, 1]",
         .streams = {0, 1},
         .n_more = 1,
         .of_block = ", \"target_hidden_size\": null, \"mask_token_id\": null",
         .has_vectors = true},
        {.list = "[1, 2]", .streams = {1, 2}, .of_block = UNROUNDED, .is_unrounded = true},
        {.list = "[0, 1]", .streams = {1, 2}, .is_gemma = true}};
    static Tree trees[2];
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        fr_error err = {0};
        LearnedReader reader;
        write_both(&layouts[i]);
        if (try_import(layouts[i].is_gemma, &err)) fail_msg("%s", err.message); /* only DeepSpec's list names outputs */
        learned_rig_open_reader(&reader, target);
        propose(&reader, "eagle3:file=" DIRECT, &trees[0]);
        propose(&reader, "eagle3:file=" IMPORTED, &trees[1]);
        assert_true(trees[0].n > 5);
        rig_assert_same_tree(&trees[0], &trees[1], "eagle3");
        Gguf *g = rig_gguf(IMPORTED);
        assert_null(gguf_find_tensor(g, "token_embd.weight"));
        assert_true(!gguf_find_tensor(g, "output.weight") == layouts[i].is_gemma);
        gguf_close(g);
        learned_rig_close_reader(&reader);
    }
}

/* A list of outputs becomes the numbers of the layers after them. */
static void a_list_of_outputs_is_shifted(void **state) {
    (void)state;
    static const Layout inputs = {.list = "[1, 2]", .streams = {1, 2}}, outputs = {.list = "[0, 1]", .streams = {1, 2}},
                        too_deep = {.list = "[1, 2]", .streams = {1, 2}};
    static Tree trees[2];
    fr_error err = {0};
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    write_both(&inputs);
    propose(&reader, "eagle3:file=" DIRECT, &trees[0]);
    write_both(&outputs);
    if (try_import(true, &err)) fail_msg("%s", err.message);
    propose(&reader, "eagle3:file=" IMPORTED, &trees[1]);
    rig_assert_same_tree(&trees[0], &trees[1], "outputs");
    write_both(&too_deep);
    assert_int_equal(try_import(true, &err), FR_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "names a layer that the target, with 2 layers, does not have"));
    learned_rig_close_reader(&reader);
}

/* A checkpoint with another key in its config.json, and the error. */
#define KEY(text, error) \
    { {.list = "[1, 2]", .streams = {1, 2}, .of_block = ", " text}, error }

static void checkpoints_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        Layout layout;
        const char *message;
    } bad[] = {
        {{.list = "[1, 2]", .streams = {1, 2}, .of_block = ", \"hidden_act\": \"gelu\""}, "the hidden_act in"},
        {{.list = "[1, 2]", .streams = {1, 2}, .of_block = ", \"partial_rotary_factor\": 0.15"},
         "partial_rotary_factor"},
        {{.list = "[1, 2]", .streams = {1, 2}, .extra = "midlayer.self_attn.k_norm.weight"}, "k_norm.weight is 64"},
        {{.list = "[1, 2]", .streams = {1, 2}, .has_far_token = true}, "item 99 of tensor d2t"},
        {{.list = "[1, 2]", .streams = {1, 2}, .has_token_twice = true}, "item 99 of tensor d2t"},
        {{.list = "[1, 2]", .streams = {1, 2}, .extra = "midlayer.mlp.up_proj.bias"}, "up_proj.bias"},
        {{.list = "[1, 2, 2]", .streams = {1, 2}}, "tensor fc.weight is 64 x 128"},
        {{.list = "[]", .streams = {1, 2}}, "missing or out of range"},
        {{.list = "[1, \"two\"]", .streams = {1, 2}}, "names a layer"},
        {{.streams = {1, 2}}, "too few layers"},
        {{.list = "[1, 2]", .streams = {1, 2}, .extra = "layers.2.input_layernorm.weight"}, "layers.2.input_layernorm"},
        {{.list = "[1, 2]", .streams = {1, 2}, .block = 4}, "mask_token_id in its config.json is missing"},
        {{.list = "[1, 2]", .streams = {1, 2}, .block = 4, .of_block = ", \"pard_token\": 300"}, "out of range"},
        {{.list = "[1, 2]", .streams = {1, 2}, .block = 4, .of_block = ", \"pard_token\": 9, \"num_depths\": 17"},
         "num_depths in its config.json is missing or out of range"},
        KEY("\"rope_theta\": \"500000\"", "the rope_theta in its config.json must be a number from 1 to 1e+12"),
        KEY("\"rope_theta\": 0", "the rope_theta in its config.json must be a number"),
        KEY("\"rms_norm_eps\": -1", "the rms_norm_eps in its config.json must be a number from 0 to 1"),
        KEY("\"max_position_embeddings\": 1e30", "the max_position_embeddings in its config.json must be an integer"),
        KEY("\"rope_scaling\": {\"rope_type\": 7}", "the rope_type in its config.json must be a text"),
        KEY("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}",
            "the factor in its config.json must be a number"),
        KEY("\"rope_parameters\": 4", "the rope_parameters in its config.json must be an object"),
        KEY("\"hidden_act\": [\"silu\"]", "the hidden_act in its config.json must be a text"),
        KEY("\"norm_before_residual\": 1", "the norm_before_residual in its config.json must be true or false"),
        KEY("\"eagle_aux_hidden_state_layer_ids\": \"0,1\"", "_layer_ids in its config.json must be a list"),
        KEY("\"num_hidden_layers\": 2", "has tensors of 1 layers, and its config.json has 2 for num_hidden_layers"),
        KEY("\"layer_types\": [\"full_attention\", \"sliding_attention\"], \"rope_parameters\": {\"full_attention\": "
            "{\"rope_theta\": 1e6}, \"sliding_attention\": {\"rope_theta\": 1e4}}",
            "give its layers different ropes"),
        KEY("\"rope_scaling\": {\"rope_type\": \"yarn\", \"truncate\": 0}",
            "the truncate in its config.json must be true"),
        KEY("\"fc_norm\": true", "its config.json sets fc_norm, but tensor fc_norm.0.weight is missing"),
        KEY("\"norm_before_fc\": true", "its config.json sets norm_before_fc, but tensor input_norm.weight is missing"),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fr_error err = {0};
        write_both(&bad[i].layout);
        assert_int_not_equal(try_import(false, &err), FR_OK);
        if (!strstr(err.message, bad[i].message)) fail_msg("'%s' does not contain '%s'", err.message, bad[i].message);
    }
}

/* A target's number of layers, which some files have, means nothing. */
static void other_numbers_of_layers_are_ignored(void **state) {
    (void)state;
    static const Layout layout = {.list = "[1, 2]", .streams = {1, 2}, .of_block = ", \"num_hidden_layers\": 32"};
    fr_error err = {0};
    write_both(&layout);
    if (try_import(false, &err)) fail_msg("%s", err.message);
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    static const Layout layout = {.list = "[1, 2]", .streams = {1, 2}};
    static const char index[] = FOLDER "/model.safetensors.index.json";
    fr_error err = {0};
    write_both(&layout);
    for (int i = 1; i <= 2; i++) {
        FILE *f = fopen(index, "w");
        assert_non_null(f);
        fprintf(f, "{\"weight_map\": {\"fc.weight\": \"model.safetensors\", \"norm.weight\": \"model%s.safetensors\"}}",
                i == 1 ? "" : "-2");
        assert_int_equal(fclose(f), 0);
        assert_int_equal(try_import(false, &err), i == 1 ? FR_OK : FR_ERR_FORMAT);
    }
    assert_non_null(strstr(err.message, "names the file model-2.safetensors, which is not in the folder"));
    unlink(index);
}

static void the_command_tries_both_readings(void **state) {
    (void)state;
    static const Layout layout = {.list = "[0, 1]", .streams = {0, 1}};
    write_both(&layout);
    /* Its lists name inputs as a rule, and drafters with random weights accept hardly anything in either reading. */
    cli_expect("import-drafter eagle3 -m " TARGET " " FOLDER " -o " IMPORTED, 0, "the file has inputs");
    assert_int_not_equal(system("ls " IMPORTED ".trial* > /dev/null 2>&1"), 0);
    cli_expect("import-drafter eagle3 -m " TARGET " " FOLDER " -o " IMPORTED " --layers outputs", 0,
               "use it with --draft eagle3:file=" IMPORTED);
    cli_expect("inspect " IMPORTED, 0, "eagle3: one layer reads several layers");
    cli_expect("inspect " DIRECT, 0, "eagle3: one layer reads several layers");
    cli_expect("inspect --tensors " DIRECT, 0, "I64");
    cli_expect("inspect --json " DIRECT, 0, "\"method\": \"eagle3\"");
    cli_expect("run -m " DIRECT " -p abc", 1, "is a drafter, not a model");
    cli_expect("compare -m " TARGET " -p abc -n 20 --ignore-eos --runs 1 --no-text --draft eagle3:file=" DIRECT, 0,
               "identical");
    cli_expect("run -m " TARGET " -p abc -n 4 -md " DIRECT, 0, "");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_files_draft_the_same),
        cmocka_unit_test(a_list_of_outputs_is_shifted),
        cmocka_unit_test(checkpoints_that_do_not_fit_are_refused),
        cmocka_unit_test(other_numbers_of_layers_are_ignored),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(the_command_tries_both_readings),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}
