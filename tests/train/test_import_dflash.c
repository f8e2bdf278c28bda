/* test_import_dflash.c - `forerun import-drafter dflash`: the same weights as llama.cpp's GGUF file and as a folder of
 * safetensors, in the layouts of z-lab, speculators and DeepSpec, draft the same; checkpoints that do not fit are
 * refused. */
#include "learned_rig.h"

#include "cli_rig.h"
#include "safetensors_build.h"
#include "train/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    H = 64,
    V = 300,
    N_HEAD = 4,
    N_KV = 2,
    DIM = 24,
    FF = 80,
    D = 100,
    S = 2,
    N_LAYER = 2,
    RANK = 8,
    TAPS = 2,
    GROUP = 8
};

#define TARGET "build/import-block-target.gguf"
#define FOLDER "build/import-block"
#define DIRECT "build/import-block-direct.gguf"
#define IMPORTED "build/import-block-imported.gguf"

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

/* speculators' layout, with a head over D tokens and the heads of DSpark; else z-lab's, with a window in layer 0. */
typedef struct Layout {
    bool is_speculators;
    const char *list, *block, *types; /* parts of config.json */
    const char *extra;                /* a tensor more; NULL: none */
    const char *head;                 /* markov_head_type of speculators' layout; NULL: vanilla */
    bool has_gate, has_joint;
    bool is_narrow;         /* the confidence head does not read the vector of the token before; an older key */
    bool selects;           /* z-lab's layout: DFlash 2 */
    const char *candidates; /* its selector_top_k */
    const char *causal;     /* z-lab's layout: keys that say which slots see each other; NULL: "is_causal": false */
    bool windows_are_causal, all_windows; /* all_windows: each layer has one, and all attention is causal */
    bool is_early;      /* speculators' layout before sample_from_anchor: the first slot predicts nothing */
    bool is_later;      /* z-lab's layout: names, biases, sinks and factors that later or rarer files have */
    bool rotates_pairs; /* z-lab's layout: neighbours rotate, and rows of q and k are as they need */
    bool is_bare;       /* z-lab's layout: DSpark without a Markov head */
    bool is_partial;    /* z-lab's layout: half of a head rotates */
    bool has_window;    /* speculators' layout: layer 0 has a window, which the top of config.json says */
    bool is_gemma; /* DeepSpec's layout: DSpark with layers of Gemma 4's form, and the target's head and embedding */
    const char *gemma; /* its keys in config.json that describe these layers */
} Layout;

typedef struct Pair {
    LearnedRig direct;
    SafeTensorsBuild published;
    int64_t tokens[D];
} Pair;

static void add(Pair *p, const char *name, const char *published, int64_t n_in, int64_t n_out, double std) {
    float *x = learned_rig_tensor(&p->direct, name, TYPE_F32, n_in, n_out, std);
    safetensors_build_add(&p->published, published, x, n_in, n_out);
}

/* The same for a tensor of the heads of q or k, whose rows (or numbers, if it is a vector) are those of halves in our
 * file and of neighbours in the published one. */
static void add_paired(Pair *p, const char *name, const char *published, int64_t n_in, int64_t n_out, double std) {
    const float *x = learned_rig_tensor(&p->direct, name, TYPE_F32, n_in, n_out, std);
    int64_t n = n_out ? n_out : n_in, width = n_out ? n_in : 1;
    float *pairs = malloc((size_t)(n * width) * sizeof *pairs);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i % DIM, to = i - k + (k < DIM / 2 ? 2 * k : 2 * (k - DIM / 2) + 1);
        memcpy(pairs + to * width, x + i * width, (size_t)width * sizeof *x);
    }
    safetensors_build_add(&p->published, published, pairs, n_in, n_out);
    free(pairs);
}

/* Adds what the attention of some published drafters has in addition. */
static void add_vectors(Pair *p, const Layout *l, int i) {
    static const struct {
        const char *name, *published;
        int64_t n;
    } tensors[] = {{"attn_q.bias", "q_proj.bias", N_HEAD * DIM},
                   {"attn_k.bias", "k_proj.bias", N_KV * DIM},
                   {"attn_v.bias", "v_proj.bias", N_KV * DIM},
                   {"attn_output.bias", "o_proj.bias", H},
                   {"attn_sinks.weight", "attention_sink_bias", N_HEAD}};
    for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
        char name[64], published[96];
        snprintf(name, sizeof name, "blk.%d.%s", i, tensors[k].name);
        snprintf(published, sizeof published, "model.layers.%d.self_attn.%s", i, tensors[k].published);
        (l->rotates_pairs && k < 2 ? add_paired : add)(p, name, published, tensors[k].n, 0, 1);
    }
}

static void add_layer(Pair *p, const Layout *l, int i) {
    static const struct {
        const char *name, *published;
        int64_t n_in, n_out;
    } tensors[] = {{"attn_norm", "input_layernorm", H, 0},
                   {"attn_q", "self_attn.q_proj", H, N_HEAD * DIM},
                   {"attn_k", "self_attn.k_proj", H, N_KV * DIM},
                   {"attn_v", "self_attn.v_proj", H, N_KV * DIM},
                   {"attn_output", "self_attn.o_proj", N_HEAD * DIM, H},
                   {"attn_q_norm", "self_attn.q_norm", DIM, 0},
                   {"attn_k_norm", "self_attn.k_norm", DIM, 0},
                   {"ffn_norm", "post_attention_layernorm", H, 0},
                   {"ffn_gate", "mlp.gate_proj", H, FF},
                   {"ffn_up", "mlp.up_proj", H, FF},
                   {"ffn_down", "mlp.down_proj", FF, H}};
    for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
        char name[64], published[96];
        bool is_ffn_norm = strcmp(tensors[k].name, "ffn_norm") == 0;
        if (l->is_gemma && strcmp(tensors[k].name, "attn_v") == 0) continue;
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, tensors[k].name);
        snprintf(published, sizeof published, "layers.%d.%s.weight", i,
                 l->is_gemma && is_ffn_norm ? "pre_feedforward_layernorm" : tensors[k].published);
        bool is_paired = l->rotates_pairs && (strstr(published, "q_") || strstr(published, "k_"));
        (is_paired ? add_paired : add)(p, name, published, tensors[k].n_in, tensors[k].n_out,
                                       tensors[k].n_out ? 0.15 : 1);
    }
}

/* What layers of Gemma 4's form have in addition. */
static void add_gemma_parts(Pair *p, int i) {
    static const char *const norms[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                           {"post_ffw_norm", "post_feedforward_layernorm"}};
    char name[64], published[96];
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, norms[k][0]);
        snprintf(published, sizeof published, "layers.%d.%s.weight", i, norms[k][1]);
        add(p, name, published, H, 0, 1);
    }
    snprintf(name, sizeof name, "blk.%d.layer_output_scale.weight", i);
    snprintf(published, sizeof published, "layers.%d.layer_scalar", i);
    add(p, name, published, 1, 0, 1);
}

/* A quarter of the components rotates. The head and the embedding are the target's, so that they are left out. */
static void add_gemma(Pair *p) {
    float *factors = learned_rig_tensor(&p->direct, "rope_freqs.weight", TYPE_F32, DIM / 2, 0, 0),
          *rows = malloc(sizeof *rows * V * H);
    for (int i = 0; i < DIM / 2; i++)
        factors[i] = ((float *)p->direct.kept[p->direct.n_kept - 1])[i] = i < DIM / 8 ? 1 : 1e30f;
    for (int i = 0; i < N_LAYER; i++) add_gemma_parts(p, i);
    add(p, "markov_w1.weight", "markov_head.markov_w1.weight", RANK, V, 1);
    add(p, "markov_w2.weight", "markov_head.markov_w2.weight", RANK, V, 0.5);
    for (int32_t v = 0; v < V; v++) embedding_row(target->model->output, v, rows + v * H);
    safetensors_build_add(&p->published, "lm_head.weight", rows, H, V);
    for (int32_t v = 0; v < V; v++) model_embedding(target->model, v, rows + v * H);
    safetensors_build_add(&p->published, "embed_tokens.weight", rows, H, V);
    free(rows);
}

static void set_keys(const Layout *l, GgufWriter *w) {
    static const int32_t streams[] = {1, 2};
    const int32_t has_window[] = {1, l->all_windows};
    gguf_set_string(w, "general.architecture", "dflash", 6);
    gguf_set_u32(w, "dflash.block_count", N_LAYER);
    gguf_set_u32(w, "dflash.context_length", 2048);
    gguf_set_u32(w, "dflash.embedding_length", H);
    gguf_set_u32(w, "dflash.feed_forward_length", FF);
    gguf_set_u32(w, "dflash.attention.head_count", N_HEAD);
    gguf_set_u32(w, "dflash.attention.head_count_kv", N_KV);
    gguf_set_u32(w, "dflash.attention.key_length", DIM);
    gguf_set_u32(w, "dflash.attention.value_length", DIM);
    gguf_set_f32(w, "dflash.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_f32(w, "dflash.rope.freq_base", 20000);
    gguf_set_u32(w, "dflash.block_size", 5);
    gguf_set_u32(w, "tokenizer.ggml.mask_token_id", 9);
    gguf_set_i32s(w, "dflash.target_layers", streams, S);
    if (l->selects) {
        gguf_set_u32(w, "dflash.conv_kernel_size", TAPS);
        gguf_set_u32(w, "dflash.conv_group_size", GROUP);
        gguf_set_u32(w, "dflash.selector_rank", RANK);
        gguf_set_u32(w, "dflash.selector_top_k", 7);
    }
    if (l->is_early) gguf_set_bool(w, "dflash.sample_from_anchor", false);
    if (l->is_partial) gguf_set_u32(w, "dflash.rope.dimension_count", DIM / 2);
    if (l->is_bare) gguf_set_bool(w, "dflash.sample_from_anchor", true);
    if (l->is_gemma) {
        gguf_set_f32(w, "dflash.attention.scale", 1);
        gguf_set_f32(w, "dflash.embedding_scale", 8);
        gguf_set_f32(w, "dflash.final_logit_softcapping", 4);
    }
    if (l->has_window) {
        gguf_set_bool(w, "dflash.attention.causal_window", true);
        gguf_set_u32(w, "dflash.attention.sliding_window", 6);
        gguf_set_i32s(w, "dflash.attention.sliding_window_pattern", (int32_t[]){1, 0}, N_LAYER);
    }
    if (l->is_speculators || l->is_gemma) return;
    if (l->all_windows) gguf_set_bool(w, "dflash.attention.causal", true);
    if (l->is_later) gguf_set_f32(w, "dflash.embedding_scale", 2);
    if (l->is_later) gguf_set_f32(w, "dflash.logit_scale", 0.5f);
    if (l->is_later) gguf_set_f32(w, "dflash.final_logit_softcapping", 4);
    if (l->windows_are_causal) gguf_set_bool(w, "dflash.attention.causal_window", true);
    gguf_set_u32(w, "dflash.attention.sliding_window", 6);
    gguf_set_i32s(w, "dflash.attention.sliding_window_pattern", has_window, N_LAYER);
}

static void write_config(const Layout *l) {
    FILE *f = fopen(FOLDER "/config.json", "w");
    assert_non_null(f);
    const char *shape = "\"hidden_size\": 64, \"intermediate_size\": 80, \"num_attention_heads\": 4, "
                        "\"num_key_value_heads\": 2, \"head_dim\": 24, \"rms_norm_eps\": 1e-5, \"rope_theta\": "
                        "20000.0, \"num_hidden_layers\": 2";
    if (l->is_speculators)
        fprintf(f,
                "{\"transformer_layer_config\": {%s}, \"aux_hidden_state_layer_ids\": %s, \"mask_token_id\": 9, "
                "\"target_hidden_size\": null, %s\"block_size\": %s, \"markov_head_type\": \"%s\"}",
                shape, l->list,
                l->is_early    ? ""
                : l->is_narrow ? "\"shift_label\": true, "
                               : "\"sample_from_anchor\": true, ",
                l->block, l->head ? l->head : "vanilla");
    else if (l->is_gemma)
        fprintf(f,
                "{\"architectures\": [\"Gemma4DSparkModel\"], \"model_type\": \"gemma4_text\", \"hidden_size\": 64, "
                "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 12, "
                "\"rms_norm_eps\": 1e-5, \"num_hidden_layers\": 2, \"sliding_window\": 512, \"target_layer_ids\": %s, "
                "\"block_size\": %s, \"mask_token_id\": 9, \"markov_rank\": 8, \"markov_head_type\": \"vanilla\", "
                "\"final_logit_softcapping\": 4, \"layer_types\": %s, %s}",
                l->list, l->block, l->types, l->gemma);
    else
        fprintf(f,
                "{\"architectures\": [\"DFlashDraftModel\"], %s, \"sliding_window\": 6, \"layer_types\": %s, "
                "\"block_size\": %s, %s, \"dflash_config\": {\"mask_token_id\": 9, \"target_layer_ids\": %s%s%s%s}}",
                shape, l->types, l->block, l->causal ? l->causal : "\"is_causal\": false", l->list,
                l->is_later ? ", \"input_embedding_scale\": 2, \"output_multiplier\": 0.5, "
                              "\"final_logit_softcapping\": 4"
                            : "",
                l->selects ? ", \"conv_kernel_size\": 2, \"conv_group_size\": 8, \"selector_rank\": 8, "
                             "\"selector_top_k\": "
                           : "",
                l->selects ? l->candidates : "");
    assert_int_equal(fclose(f), 0);
}

static void add_head(Pair *p, const Layout *l) {
    int64_t offsets[D];
    add(p, "output.weight", "lm_head.weight", H, D, 0.3);
    for (int64_t i = 0; i < D; i++) p->tokens[i] = 3 * i + 1, offsets[i] = 2 * i + 1;
    gguf_add_map(p->direct.w, p->tokens, D);
    safetensors_build_add_i64s(&p->published, "d2t", offsets, D);
    add(p, "markov_w1.weight", "markov_head.markov_w1.weight", RANK, V, 1);
    add(p, "markov_w2.weight", "markov_head.markov_w2.weight", RANK, D, 0.5);
    if (l->has_joint) {
        add(p, "markov_joint.weight", "markov_head.joint_proj.weight", H + 2 * RANK, 3 * RANK, 0.3);
        add(p, "markov_joint.bias", "markov_head.joint_proj.bias", 3 * RANK, 0, 1);
    }
    if (l->has_gate) {
        add(p, "markov_gate.weight", "markov_head.gate_proj.weight", H + RANK, RANK, 0.3);
        add(p, "markov_gate.bias", "markov_head.gate_proj.bias", RANK, 0, 1);
    }
    add(p, "conf_proj.weight", "confidence_head.proj.weight", H + (l->is_narrow ? 0 : RANK), 1, 0.1);
    add(p, "conf_proj.bias", "confidence_head.proj.bias", 1, 0, 0.1);
}

static void add_convs(Pair *p, int i) {
    static const char *const parts[][2] = {{"attn", "attention"}, {"ffn", "mlp"}};
    const int64_t dims[] = {2, TAPS, H};
    for (int k = 0; k < 2; k++) {
        char name[64], published[96];
        snprintf(name, sizeof name, "blk.%d.%s_conv_proj.weight", i, parts[k][0]);
        snprintf(published, sizeof published, "layers.%d.%s_conv.kernel_projection.weight", i, parts[k][1]);
        add(p, name, published, H, 2 * TAPS * H / GROUP, 0.05);
        snprintf(name, sizeof name, "blk.%d.%s_conv_base", i, parts[k][0]);
        snprintf(published, sizeof published, "layers.%d.%s_conv.base_kernel", i, parts[k][1]);
        const float *base = learned_rig_cube(&p->direct, name, H, TAPS, 2, 0.7);
        safetensors_build_add_shaped(&p->published, published, base, dims, 3);
    }
}

static void add_selection(Pair *p) {
    for (int i = 0; i < N_LAYER; i++) add_convs(p, i);
    add(p, "selector_predecessor.weight", "candidate_selector.predecessor_codebook", RANK, V, 1);
    add(p, "selector_successor.weight", "candidate_selector.successor_codebook", RANK, V, 0.5);
    add(p, "selector_hidden.weight", "candidate_selector.hidden_projection.weight", H, RANK, 0.1);
}

static void write_both(const Layout *l) {
    static Pair p;
    p = (Pair){.tokens = {0}};
    learned_rig_begin(&p.direct, "dflash", target, 17);
    gguf_writer_free(p.direct.w);
    p.direct.w = gguf_writer_new();
    safetensors_build_begin(&p.published, TYPE_F32);
    set_keys(l, p.direct.w);
    add(&p, "fc.weight", l->is_later ? "encoder.fc.weight" : "fc.weight", S * H, H, 0.07);
    add(&p, "enc.output_norm.weight", l->is_later ? "encoder.output_norm_enc.weight" : "hidden_norm.weight", H, 0, 1);
    add(&p, "output_norm.weight", "norm.weight", H, 0, 1);
    for (int i = 0; i < N_LAYER; i++) add_layer(&p, l, i);
    for (int i = 0; l->is_later && i < N_LAYER; i++) add_vectors(&p, l, i);
    if (l->is_speculators) add_head(&p, l);
    if (l->is_gemma) add_gemma(&p);
    if (l->selects) add_selection(&p);
    if (l->is_bare) add(&p, "conf_proj.weight", "confidence_head.proj.weight", H, 1, 0.1);
    if (l->is_bare) add(&p, "conf_proj.bias", "confidence_head.proj.bias", 1, 0, 0.1);
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

static int try_import_as(ImportReading reading, fr_error *err) {
    Published c;
    const char *path = FOLDER;
    int status = published_open(&c, &path, 1, err);
    if (!status)
        status = import_drafter(import_find("dflash"), target->model, &c,
                                &(ImportOptions){.type = TYPE_F32, .reading = reading}, IMPORTED, err);
    published_close(&c);
    return status;
}

static int try_import(bool counts_outputs, fr_error *err) {
    return try_import_as((ImportReading){.counts_outputs = counts_outputs}, err);
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

#define GEMMA \
    "\"hidden_activation\": \"gelu_pytorch_tanh\", \"global_head_dim\": 24, \"num_global_key_value_heads\": 2, " \
    "\"attention_k_eq_v\": true, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", " \
    "\"partial_rotary_factor\": 0.25, \"rope_theta\": 20000.0}, \"sliding_attention\": {\"rope_theta\": 10000.0}}"
#define TYPES "[\"sliding_attention\", \"full_attention\"]"

static const Layout of_zlab = {.list = "[0, 1]", .block = "5", .types = TYPES},
                    of_speculators = {.is_speculators = true, .list = "[1, 2]", .block = "5"},
                    second = {.list = "[0, 1]", .block = "5", .types = TYPES, .selects = true, .candidates = "7"},
                    gated = {.is_speculators = true, .list = "[1, 2]", .block = "5", .head = "gated", .has_gate = true},
                    recurrent = {.is_speculators = true,
                                 .list = "[1, 2]",
                                 .block = "5",
                                 .head = "rnn",
                                 .has_joint = true},
                    later = {.list = "[0, 1]",
                             .block = "5",
                             .types = TYPES,
                             .causal = "\"head_dim\": 24",
                             .windows_are_causal = true,
                             .is_later = true},
                    windows = {.list = "[0, 1], \"use_swa\": true, \"swa_window_size\": 6, \"causal\": true",
                               .block = "null, \"sliding_window\": null",
                               .types = "null",
                               .causal = "\"block_size\": 5",
                               .all_windows = true},
                    early = {.is_speculators = true, .list = "[1, 2]", .block = "5", .is_early = true},
                    narrow = {.is_speculators = true, .list = "[1, 2]", .block = "5", .is_narrow = true},
                    paired = {.list = "[0, 1]",
                              .block = "5",
                              .types = TYPES,
                              .causal = "\"rope_is_neox_style\": false",
                              .windows_are_causal = true,
                              .is_later = true,
                              .rotates_pairs = true},
                    bare = {.list = "[0, 1]",
                            .block = "5",
                            .types = TYPES,
                            .causal = "\"markov_rank\": 0, \"confidence_head_with_markov\": false",
                            .is_bare = true},
                    windowed = {.is_speculators = true,
                                .list = "[1, 2], \"layer_types\": " TYPES ", \"sliding_window\": 6",
                                .block = "5",
                                .has_window = true},
                    partial = {.list = "[0, 1]",
                               .block = "5",
                               .types = TYPES,
                               .causal = "\"partial_rotary_factor\": 0.5",
                               .windows_are_causal = true,
                               .is_partial = true},
                    gemma = {.list = "[0, 1]",
                             .block = "5",
                             .types = "[\"full_attention\", \"full_attention\"]",
                             .is_gemma = true,
                             .gemma = GEMMA};

static void both_files_draft_the_same(void **state) {
    (void)state;
    static Tree trees[2];
    static const Layout *const layouts[] = {&of_zlab, &second,         &later, &windows,   &paired, &bare,   &partial,
                                            &gemma,   &of_speculators, &gated, &recurrent, &early,  &narrow, &windowed};
    enum { N = sizeof layouts / sizeof *layouts, N_OF_OUTPUTS = 8 }; /* z-lab's and DeepSpec's lists name outputs */
    for (int i = 0; i < N; i++) {
        fr_error err = {0};
        LearnedReader reader;
        write_both(layouts[i]);
        if (try_import(i < N_OF_OUTPUTS, &err)) fail_msg("%s", err.message);
        learned_rig_open_reader(&reader, target);
        propose(&reader, "dflash:file=" DIRECT, &trees[0]);
        propose(&reader, "dflash:file=" IMPORTED, &trees[1]);
        assert_true(trees[0].n > 5);
        rig_assert_same_tree(&trees[0], &trees[1], "dflash");
        Gguf *g = rig_gguf(IMPORTED);
        assert_null(gguf_find_tensor(g, "token_embd.weight"));
        assert_true(!gguf_find_tensor(g, "output.weight") ==
                    (i < N_OF_OUTPUTS)); /* speculators' has a vocabulary of its own */
        gguf_close(g);
        learned_rig_close_reader(&reader);
    }
}

static void checkpoints_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        Layout layout;
        const char *message;
    } bad[] = {
        {{.list = "[0, 2]", .block = "5", .types = TYPES}, "names a layer that the target, with 2 layers"},
        {{.list = "[0, 1, 1]", .block = "5", .types = TYPES}, "tensor fc.weight is 64 x 128"},
        {{.list = "[]", .block = "5", .types = TYPES}, "the target_layer_ids in its config.json"},
        {{.list = "[0, 1]", .block = "1", .types = TYPES}, "the block_size in its config.json"},
        {{.list = "[0, 1]", .block = "5", .types = "[\"full_attention\"]"}, "the layer_types in its config.json"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .extra = "candidate_selector.weight"}, "candidate_selector"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .selects = true, .candidates = "0"}, "the selector_top_k in"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .selects = true, .candidates = "7, \"conv_group_size\": 10"},
         "the conv_group_size in"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .selects = true, .candidates = "7, \"conv_kernel_size\": 3"},
         "tensor layers.0.attention_conv.kernel_projection.weight is 32 x 64, but the target needs 48 x 64"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .is_gemma = true, .gemma = GEMMA},
         "have a window and others have none"},
        {{.list = "[0, 1]",
          .block = "5",
          .types = "[\"full_attention\", \"full_attention\"]",
          .is_gemma = true,
          .gemma = GEMMA ", \"hidden_activation\": \"silu\""},
         "gelu_pytorch_tanh is"},
        {{.list = "[0, 1]",
          .block = "5",
          .types = "[\"full_attention\", \"full_attention\"]",
          .is_gemma = true,
          .gemma = GEMMA ", \"rope_parameters\": {\"rope_theta\": 20000.0}"},
         "the rope_parameters in its config.json is missing"},
        {{.is_speculators = true, .list = "[0, 1]", .block = "5", .head = "fir"}, "vanilla, gated and rnn are"},
        {{.is_speculators = true, .list = "[0, 1]", .block = "5", .head = "rnn"}, "joint_proj.weight"},
        {{.is_speculators = true, .list = "[0, 1]", .block = "5", .head = "gated"}, "gate_proj.weight"},
        {{.is_speculators = true, .list = "[0, 1]", .block = "5", .has_gate = true}, "gate_proj"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .causal = "\"markov_rank\": 8"},
         "tensor markov_head.markov_w1.weight is missing"},
        {{.list = "[0, 1]", .block = "5", .types = TYPES, .causal = "\"is_causal\": \"yes\""},
         "the is_causal in its config.json must be true or false"},
        {{.list = "[0, 1], \"output_multiplier\": -1", .block = "5", .types = TYPES},
         "the output_multiplier in its config.json must be a number from 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fr_error err = {0};
        write_both(&bad[i].layout);
        assert_int_not_equal(try_import(true, &err), FR_OK);
        if (!strstr(err.message, bad[i].message)) fail_msg("'%s' does not contain '%s'", err.message, bad[i].message);
    }
}

/* Returns whether the first slot of a block predicts in the imported file. */
static bool first_slot_predicts(const Layout *layout, bool is_other) {
    fr_error err = {0};
    bool predicts = false;
    write_both(layout);
    if (try_import_as((ImportReading){.is_other_anchor = is_other}, &err)) fail_msg("%s", err.message);
    Gguf *g = rig_gguf(IMPORTED);
    assert_true(gguf_get_bool(g, DRAFTER_KEY("dflash.sample_from_anchor"), &predicts));
    gguf_close(g);
    return predicts;
}

/* The option `anchor` reads a file in the other way. */
static void the_option_anchor(void **state) {
    (void)state;
    static const char *const other[] = {"dflash:file=" IMPORTED ",anchor=predicts",
                                        "dflash:file=" IMPORTED ",anchor=silent"};
    static Tree trees[4];
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (int i = 0; i < 2; i++) { /* a file whose first slot is silent, then one where it predicts */
        assert_true(first_slot_predicts(&early, i) == i);
        propose(&reader, "dflash:file=" IMPORTED, &trees[i]);
        propose(&reader, other[i], &trees[3 - i]);
    }
    rig_assert_same_tree(&trees[0], &trees[2], "silent");
    rig_assert_same_tree(&trees[1], &trees[3], "predicts");
    bool differ = trees[0].n != trees[1].n;
    for (int32_t i = 0; i < trees[0].n && !differ; i++) differ = trees[0].nodes[i].token != trees[1].nodes[i].token;
    assert_true(differ);
    learned_rig_close_reader(&reader);
}

/* What config.json says holds, and the command tries what it does not say. */
static void the_first_slot(void **state) {
    (void)state;
    assert_true(first_slot_predicts(&gemma, false));
    assert_false(first_slot_predicts(&gemma, true));
    assert_false(first_slot_predicts(&early, false));
    assert_true(first_slot_predicts(&early, true));
    assert_true(first_slot_predicts(&of_speculators, true));
    write_both(&early);
    cli_expect("import-drafter dflash -m " TARGET " " FOLDER " -o " IMPORTED, 0, "does not say whether the first slot");
    assert_int_not_equal(system("ls " IMPORTED ".trial* > /dev/null 2>&1"), 0);
    cli_expect("inspect " IMPORTED, 0, "dflash: a few layers");
}

static void the_command_tries_both_readings(void **state) {
    (void)state;
    write_both(&of_zlab);
    /* Its lists name outputs as a rule, and drafters with random weights accept hardly anything in either reading. */
    cli_expect("import-drafter dflash -m " TARGET " " FOLDER " -o " IMPORTED, 0, "the file has outputs");
    assert_int_not_equal(system("ls " IMPORTED ".trial* > /dev/null 2>&1"), 0);
    cli_expect("import-drafter dflash -m " TARGET " " FOLDER " -o " IMPORTED " --layers outputs", 0,
               "use it with --draft dflash:file=" IMPORTED);
    cli_expect("inspect " IMPORTED, 0, "dflash: a few layers");
    cli_expect("inspect " DIRECT, 0, "dflash: a few layers");
    cli_expect("run -m " DIRECT " -p abc", 1, "is a drafter, not a model");
    cli_expect("compare -m " TARGET " -p abc -n 20 --ignore-eos --runs 1 --no-text --draft dflash:file=" DIRECT, 0,
               "identical");
    cli_expect("run -m " TARGET " -p abc -n 4 -md " DIRECT, 0, "");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_files_draft_the_same),
        cmocka_unit_test(checkpoints_that_do_not_fit_are_refused),
        cmocka_unit_test(the_first_slot),
        cmocka_unit_test(the_option_anchor),
        cmocka_unit_test(the_command_tries_both_readings),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}
