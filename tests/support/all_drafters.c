/* all_drafters.c - writes a small target and a file of random weights for each learned method, in the smallest form
 * that has all parts. */
#include "all_drafters.h"

#include "assistant_rig.h"
#include "other_vocab.h"

#include "draft/drafter.h"
#include "research/corpus_build.h"
#include "train/methods.h"

#include <stdio.h>
#include <string.h>

enum {
    H = ALL_DRAFTERS_EMBD,
    V = ALL_DRAFTERS_VOCAB,
    KV = 32,
    FF = 64,
    RANK = 8
}; /* the shape of learned_rig_write_target, and of the drafters' layers */

const char *const all_drafters[] = {
    "ngram-trie",
    "pld",
    "llma",
    "suffix",
    "lookahead-trie",
    "rest:index=build/all-rest.index",
    "recycling",
    "lookahead",
    "grammar",
    "sps:length=3,model=" ALL_DRAFTERS_MODEL,
    "rsd-c:model=" ALL_DRAFTERS_MODEL,
    "rsd-s:width=3,model=" ALL_DRAFTERS_MODEL,
    "spectr:paths=3,length=3,model=" ALL_DRAFTERS_MODEL,
    "specinfer:length=2,models=" ALL_DRAFTERS_MODEL "+" ALL_DRAFTERS_MODEL,
    "sps:length=3,model=" ALL_DRAFTERS_OTHER,
    "redrafter:file=build/all-redrafter.gguf",
    "medusa:file=build/all-medusa.gguf",
    "hydra:file=build/all-hydra.gguf",
    "hydra:file=build/all-hydra-layer.gguf",
    "eagle:file=build/all-eagle.gguf",
    "eagle:file=build/all-eagle-tokens.gguf",
    "lyanna:file=build/all-lyanna.gguf",
    "lyanna:file=build/all-lyanna-gate.gguf",
    "space:file=build/all-space.gguf",
    "eagle3:file=build/all-eagle3.gguf",
    "eagle3:file=build/all-eagle3-blocks.gguf",
    "dflash:file=build/all-dflash.gguf",
    "dflash:file=build/all-dflash-markov.gguf",
    "dflash:file=build/all-dflash-2.gguf",
    NULL,
};

const char *const *trained_methods(void) {
    static const char *names[32];
    int n = 0;
    for (const TrainMethod *const *m = train_methods(); *m; m++) {
        if (!(*m)->needs_model) continue; /* `train target` makes a model */
        assert_true(n + 1 < (int)(sizeof names / sizeof *names));
        names[n++] = (*m)->name;
    }
    return names;
}

static bool is_trained(const char *method) {
    for (const char *const *m = trained_methods(); *m; m++)
        if (strcmp(*m, method) == 0) return true;
    return false;
}

static bool has_spec(const char *method) {
    size_t n = strlen(method);
    for (int i = 0; all_drafters[i]; i++)
        if (strncmp(all_drafters[i], method, n) == 0 && (all_drafters[i][n] == ':' || !all_drafters[i][n])) return true;
    return strcmp(method, ALL_DRAFTERS_MTP) == 0 || strcmp(method, "prediction") == 0 ||
           strcmp(method, "remote") == 0; /* it needs a server */
}

/* Compares the lists with the drafters that the program has. */
static void check_lists(void) {
    int n_with_file = 0, n_trained = 0;
    for (const DrafterClass *const *c = drafter_classes(); *c; c++) {
        bool has_file = drafter_has_option(*c, "file");
        if (!has_spec((*c)->name)) fail_msg("%s has no row in all_drafters", (*c)->name);
        if (has_file && !is_trained((*c)->name)) fail_msg("%s has a file, but 'forerun train' makes none", (*c)->name);
        n_with_file += has_file;
    }
    while (trained_methods()[n_trained]) n_trained++;
    assert_int_equal(n_with_file, n_trained);
}

typedef struct Part {
    const char *name;
    int32_t n_in, n_out; /* n_out 0: a vector */
    double std;
} Part;

static void add_parts(LearnedRig *r, const Part *parts) {
    for (; parts->name; parts++)
        learned_rig_tensor(r, parts->name, parts->n_out ? TYPE_F16 : TYPE_F32, parts->n_in, parts->n_out, parts->std);
}

static void set_int(LearnedRig *r, const char *key, uint32_t value) { gguf_set_u32(r->w, key, value); }
static void set_text(LearnedRig *r, const char *key, const char *text) {
    gguf_set_string(r->w, key, text, strlen(text));
}

static void finish(LearnedRig *r, const char *path) {
    learned_rig_write(r, path);
    learned_rig_free(r);
}

static void write_redrafter(const Weights *target) {
    static const Part parts[] = {
        {"redrafter.w.weight", H, H, 0.25},
        {"redrafter.u.weight", H, H, 0.2},
        {"redrafter.u.bias", H, 0, 0.2},
        {"redrafter.block.0.weight", 2 * H, 2 * H, 0.1},
        {"redrafter.block.0.bias", 2 * H, 0, 0.1},
        {"redrafter.output.weight", 2 * H, V, 0.3},
        {NULL, 0, 0, 0},
    };
    LearnedRig r;
    learned_rig_begin(&r, "redrafter", target, 1);
    set_int(&r, DRAFTER_KEY("redrafter.block_count"), 1);
    set_text(&r, DRAFTER_KEY("redrafter.start"), "embedding");
    add_parts(&r, parts);
    learned_rig_info(&r, "redrafter", TYPE_F16, H, RANK, V);
    finish(&r, "build/all-redrafter.gguf");
}

static void write_medusa(const Weights *target) {
    static const float accuracy[] = {0.5f, 0.2f, 0.4f, 0.1f};
    static const Part parts[] = {
        {"medusa.0.block.0.weight", H, H, 0.15},
        {"medusa.0.block.0.bias", H, 0, 0.1},
        {"medusa.0.output.weight", H, V, 0.3},
        {"medusa.1.block.0.weight", H, H, 0.15},
        {"medusa.1.block.0.bias", H, 0, 0.1},
        {"medusa.1.output.weight", H, V, 0.3},
        {NULL, 0, 0, 0},
    };
    LearnedRig r;
    learned_rig_begin(&r, "medusa", target, 2);
    set_int(&r, DRAFTER_KEY("medusa.head_count"), 2);
    set_int(&r, DRAFTER_KEY("medusa.block_count"), 1);
    set_text(&r, DRAFTER_KEY("medusa.output"), "own");
    add_parts(&r, parts);
    gguf_add_tensor(r.w, "medusa.accuracy", TYPE_F32, 2, (int64_t[]){2, 2}, accuracy);
    finish(&r, "build/all-medusa.gguf");
}

/* The layer of eagle, lyanna and hydra, of which the first two have fc. */
#define LAYER(method) \
    {method ".attn_q.weight", H, H, 0.12}, {method ".attn_k.weight", H, KV, 0.12}, \
        {method ".attn_v.weight", H, KV, 0.12}, {method ".attn_output.weight", H, H, 0.12}, \
        {method ".ffn_norm.weight", H, 0, 1}, {method ".ffn_gate.weight", H, FF, 0.1}, \
        {method ".ffn_up.weight", H, FF, 0.1}, { \
        method ".ffn_down.weight", FF, H, 0.1 \
    }
#define FC(method) \
    {method ".fc.weight", 2 * H, H, 0.07}, { method ".fc.bias", H, 0, 0.1 }

/* With a layer, it is a file of Hydra++. */
static void write_hydra(const Weights *target, bool has_layer, const char *path) {
    static const Part parts[] = {
        {"hydra.0.in.weight", 2 * H, H, 0.12},
        {"hydra.0.in.bias", H, 0, 0.1},
        {"hydra.0.skip.weight", 2 * H, H, 0.1},
        {"hydra.0.block.1.weight", H, H, 0.15},
        {"hydra.0.block.1.bias", H, 0, 0.1},
        {"hydra.0.output.weight", H, V, 0.3},
        {"hydra.1.in.weight", 3 * H, H, 0.12},
        {"hydra.1.in.bias", H, 0, 0.1},
        {"hydra.1.skip.weight", 3 * H, H, 0.1},
        {"hydra.1.block.1.weight", H, H, 0.15},
        {"hydra.1.block.1.bias", H, 0, 0.1},
        {"hydra.1.output.weight", H, V, 0.3},
        {NULL, 0, 0, 0},
    };
    static const Part of_layer[] = {LAYER("hydra.prefix"),
                                    {"hydra.prefix.attn_norm.weight", H, 0, 1},
                                    {"hydra.prefix.output_norm.weight", H, 0, 1},
                                    {NULL, 0, 0, 0}};
    LearnedRig r;
    learned_rig_begin(&r, "hydra", target, 3);
    set_int(&r, DRAFTER_KEY("hydra.head_count"), 2);
    set_int(&r, DRAFTER_KEY("hydra.block_count"), 2);
    set_text(&r, DRAFTER_KEY("hydra.output"), "own");
    add_parts(&r, parts);
    if (has_layer) set_int(&r, DRAFTER_KEY("hydra.prefix.feed_forward_length"), FF);
    if (has_layer) add_parts(&r, of_layer);
    finish(&r, path);
}

/* With logits for two of three tokens, or for all of them. */
static void write_eagle(const Weights *target, bool has_head_tokens, const char *path) {
    static const Part parts[] = {FC("eagle"), LAYER("eagle"), {NULL, 0, 0, 0}};
    static int32_t tokens[2 * V / 3];
    LearnedRig r;
    learned_rig_begin(&r, "eagle", target, 4);
    set_int(&r, DRAFTER_KEY("eagle.feed_forward_length"), FF);
    add_parts(&r, parts);
    learned_rig_info(&r, "eagle", TYPE_F16, H, RANK, V);
    for (int32_t i = 0; i < 2 * V / 3; i++) tokens[i] = i + i / 2;
    if (has_head_tokens) gguf_set_i32s(r.w, DRAFTER_KEY("head_tokens"), tokens, 2 * V / 3);
    finish(&r, path);
}

/* With a gate, the file has a parallel chain, too; without one, a layer for the later steps. */
static void write_lyanna(const Weights *target, bool has_gate, const char *path) {
    static const Part parts[] = {FC("lyanna"), LAYER("lyanna"), {"lyanna.attn_norm.weight", H, 0, 1}, {NULL, 0, 0, 0}};
    static const Part of_gate[] = {{"lyanna.gate.state.weight", H, RANK, 0.1},
                                   {"lyanna.gate.token.weight", H, RANK, 0.3},
                                   {"lyanna.gate.up.weight", RANK, V, 0.2},
                                   {"lyanna.chain.inputs.weight", H, 3, 0.3},
                                   {NULL, 0, 0, 0}};
    static const Part of_later[] = {FC("lyanna.later"),
                                    LAYER("lyanna.later"),
                                    {"lyanna.later.attn_norm.weight", H, 0, 1},
                                    {NULL, 0, 0, 0}};
    LearnedRig r;
    learned_rig_begin(&r, "lyanna", target, 5);
    set_int(&r, DRAFTER_KEY("lyanna.feed_forward_length"), FF);
    set_text(&r, DRAFTER_KEY("lyanna.first_token"), "fused");
    add_parts(&r, parts);
    learned_rig_info(&r, "lyanna", TYPE_F16, H, RANK, V);
    if (has_gate) {
        set_int(&r, DRAFTER_KEY("lyanna.gate.rank"), RANK);
        set_text(&r, DRAFTER_KEY("lyanna.chain"), "parallel");
        set_int(&r, DRAFTER_KEY("lyanna.chain.n_inputs"), 3);
        add_parts(&r, of_gate);
    } else {
        set_int(&r, DRAFTER_KEY("lyanna.later.feed_forward_length"), FF);
        set_text(&r, DRAFTER_KEY("lyanna.later.input"), "token");
        set_int(&r, DRAFTER_KEY("lyanna.token_info.first_step"), 2);
        add_parts(&r, of_later);
    }
    finish(&r, path);
}

/* A file as others publish it; or with two layers, and P-EAGLE. */
static void write_eagle3(const Weights *target, bool has_blocks, const char *path) {
    static const Part parts[] = {
        {"fc.weight", 2 * H, H, 0.07},
        {"blk.0.attn_norm.weight", H, 0, 1},
        {"blk.0.attn_norm_2.weight", H, 0, 1},
        {"blk.0.attn_q.weight", 2 * H, H, 0.12},
        {"blk.0.attn_k.weight", 2 * H, KV, 0.12},
        {"blk.0.attn_v.weight", 2 * H, KV, 0.12},
        {"blk.0.attn_output.weight", H, H, 0.12},
        {"blk.0.ffn_norm.weight", H, 0, 1},
        {"blk.0.ffn_gate.weight", H, FF, 0.1},
        {"blk.0.ffn_up.weight", H, FF, 0.1},
        {"blk.0.ffn_down.weight", FF, H, 0.1},
        {"output_norm.weight", H, 0, 1},
        {"output.weight", H, V / 2, 0.3},
        {NULL, 0, 0, 0},
    };
    static const Part of_blocks[] = {
        {"blk.1.attn_norm.weight", H, 0, 1},
        {"blk.1.attn_q.weight", H, H, 0.12},
        {"blk.1.attn_k.weight", H, KV, 0.12},
        {"blk.1.attn_v.weight", H, KV, 0.12},
        {"blk.1.attn_output.weight", H, H, 0.12},
        {"blk.1.ffn_norm.weight", H, 0, 1},
        {"blk.1.ffn_gate.weight", H, FF, 0.1},
        {"blk.1.ffn_up.weight", H, FF, 0.1},
        {"blk.1.ffn_down.weight", FF, H, 0.1},
        {"mask_hidden.weight", 2 * H, 0, 1},
        {NULL, 0, 0, 0},
    };
    static const int32_t layers[] = {1, 2};
    static int64_t tokens[V / 2];
    LearnedRig r;
    learned_rig_begin(&r, "eagle3", target, 7);
    gguf_writer_free(r.w);
    r.w = gguf_writer_new();
    set_text(&r, "general.architecture", "eagle3");
    set_int(&r, "eagle3.block_count", has_blocks ? 2 : 1);
    set_int(&r, "eagle3.context_length", 2048);
    set_int(&r, "eagle3.embedding_length", H);
    set_int(&r, "eagle3.feed_forward_length", FF);
    set_int(&r, "eagle3.attention.head_count", 4);
    set_int(&r, "eagle3.attention.head_count_kv", 2);
    set_int(&r, "eagle3.target_hidden_size", H);
    gguf_set_f32(r.w, "eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_i32s(r.w, "eagle3.target_layers", layers, 2);
    for (int32_t i = 0; i < V / 2; i++) tokens[i] = 2 * i + 1;
    gguf_add_map(r.w, tokens, V / 2);
    add_parts(&r, parts);
    if (has_blocks) {
        set_int(&r, "eagle3.block_size", 4);
        set_int(&r, "eagle3.mask_token_id", 3);
        add_parts(&r, of_blocks);
    }
    finish(&r, path);
}

/* Adds the convolutions of the layers of DFlash 2, and its selector. */
static void add_selection(LearnedRig *r) {
    enum { TAPS = 2, GROUP = 16 };
    static const Part selector[] = {{"selector_predecessor.weight", RANK, V, 0.5},
                                    {"selector_successor.weight", RANK, V, 0.5},
                                    {"selector_hidden.weight", H, RANK, 0.1},
                                    {NULL, 0, 0, 0}};
    set_int(r, "dflash.conv_kernel_size", TAPS);
    set_int(r, "dflash.conv_group_size", GROUP);
    set_int(r, "dflash.selector_rank", RANK);
    set_int(r, "dflash.selector_top_k", 48);
    gguf_set_bool(r->w, "dflash.sample_from_anchor", true); /* random weights guess well only from the pending token */
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s_conv_proj.weight", i / 2, i % 2 ? "ffn" : "attn");
        learned_rig_tensor(r, name, TYPE_F16, H, 2 * TAPS * H / GROUP, 0.05);
        snprintf(name, sizeof name, "blk.%d.%s_conv_base", i / 2, i % 2 ? "ffn" : "attn");
        learned_rig_cube(r, name, H, TAPS, 2, 0.2);
    }
    add_parts(r, selector);
}

/* A file as others publish it, of two layers, the first of which has a window; or with the heads of DSpark, the Markov
 * head gated; or with what DFlash 2 has. */
typedef enum DflashKind { DFLASH_1, DFLASH_MARKOV, DFLASH_2 } DflashKind;
static void write_dflash(const Weights *target, DflashKind kind, const char *path) {
    static const Part of_markov[] = {{"markov_w1.weight", RANK, V, 1},
                                     {"markov_w2.weight", RANK, V, 0.5},
                                     {"markov_gate.weight", H + RANK, RANK, 0.1},
                                     {"markov_gate.bias", RANK, 0, 0.1},
                                     {"conf_proj.weight", H + RANK, 1, 0.1},
                                     {"conf_proj.bias", 1, 0, 0.1},
                                     {NULL, 0, 0, 0}};
    static const Part around[] = {{"fc.weight", 2 * H, H, 0.07},
                                  {"enc.output_norm.weight", H, 0, 1},
                                  {"output_norm.weight", H, 0, 1},
                                  {NULL, 0, 0, 0}};
    static const Part of_layer[] = {
        {"attn_norm", H, 0, 1},       {"attn_q", H, H, 0.12},      {"attn_k", H, KV, 0.12},
        {"attn_v", H, KV, 0.12},      {"attn_output", H, H, 0.12}, {"attn_q_norm", H / 4, 0, 1},
        {"attn_k_norm", H / 4, 0, 1}, {"ffn_norm", H, 0, 1},       {"ffn_gate", H, FF, 0.1},
        {"ffn_up", H, FF, 0.1},       {"ffn_down", FF, H, 0.1},    {NULL, 0, 0, 0}};
    static const int32_t layers[] = {1, 2}, has_window[] = {1, 0};
    LearnedRig r;
    learned_rig_begin(&r, "dflash", target, 8);
    gguf_writer_free(r.w);
    r.w = gguf_writer_new();
    set_text(&r, "general.architecture", "dflash");
    set_int(&r, "dflash.block_count", 2);
    set_int(&r, "dflash.context_length", 2048);
    set_int(&r, "dflash.embedding_length", H);
    set_int(&r, "dflash.feed_forward_length", FF);
    set_int(&r, "dflash.attention.head_count", 4);
    set_int(&r, "dflash.attention.head_count_kv", 2);
    set_int(&r, "dflash.attention.sliding_window", 8);
    set_int(&r, "dflash.block_size", 4);
    set_int(&r, "tokenizer.ggml.mask_token_id", 3);
    gguf_set_f32(r.w, "dflash.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_i32s(r.w, "dflash.target_layers", layers, 2);
    gguf_set_i32s(r.w, "dflash.attention.sliding_window_pattern", has_window, 2);
    add_parts(&r, around);
    for (int i = 0; i < 2; i++)
        for (const Part *p = of_layer; p->name; p++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, p->name);
            learned_rig_tensor(&r, name, p->n_out ? TYPE_F16 : TYPE_F32, p->n_in, p->n_out, p->std);
        }
    if (kind == DFLASH_MARKOV) add_parts(&r, of_markov);
    if (kind == DFLASH_2) add_selection(&r);
    finish(&r, path);
}

static void write_space(const Weights *target) {
    static const Part parts[] = {
        {"space.masks", H, 2, 0.5},          {"space.0.block.0.weight", H, H, 0.15},
        {"space.0.block.0.bias", H, 0, 0.1}, {"space.1.block.0.weight", H, H, 0.15},
        {"space.1.block.0.bias", H, 0, 0.1}, {NULL, 0, 0, 0},
    };
    LearnedRig r;
    learned_rig_begin(&r, "space", target, 6);
    set_int(&r, DRAFTER_KEY("space.mask_count"), 2);
    set_int(&r, DRAFTER_KEY("space.block_count"), 1);
    add_parts(&r, parts);
    finish(&r, "build/all-space.gguf");
}

static void write_index(const Gguf *vocab) {
    CorpusBuild b = {.n_vocab = V};
    int32_t text[400];
    fr_error err;
    for (int i = 0; i < 400; i++) text[i] = ALL_DRAFTERS_TOKEN(i);
    if (corpus_build_add(&b, text, 400, &err) || corpus_build_end(&b, &err) ||
        corpus_build_write(&b, "build/all-rest.index", vocab, &err))
        fail_msg("%s", err.message);
    corpus_build_free(&b);
}

static void write_nextn(void) {
    const RandomModel m = {.arch = "qwen35",
                           .n_layer = 2,
                           .n_embd = H,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 96,
                           .n_vocab = V,
                           .n_key_heads = 2,
                           .n_value_heads = 4,
                           .delta_dim = 8,
                           .n_conv = 3,
                           .attention_interval = 2,
                           .n_nextn = 2,
                           .nextn_head = true,
                           .seed = 23};
    fr_error err;
    if (random_model_write(&m, ALL_DRAFTERS_NEXTN, &err)) fail_msg("%s", err.message);
}

void all_drafters_write_files(void) {
    check_lists();
    write_nextn();
    assistant_rig_write_first(ALL_DRAFTERS_GEMMA, "build/all-assistant.gguf");
    learned_rig_write_target(ALL_DRAFTERS_TARGET, 21);
    all_drafters_write_for(ALL_DRAFTERS_TARGET);
}

void all_drafters_write_for(const char *path) {
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 32,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .n_ff = 32,
                           .n_vocab = V,
                           .seed = 22};
    fr_error err;
    if (random_model_write(&m, ALL_DRAFTERS_MODEL, &err)) fail_msg("%s", err.message);
    other_vocab_write(ALL_DRAFTERS_MODEL, ALL_DRAFTERS_OTHER, 7);
    Gguf *gguf = rig_gguf(path);
    Weights *target = rig_weights(gguf, NULL);
    write_redrafter(target);
    write_medusa(target);
    write_hydra(target, false, "build/all-hydra.gguf");
    write_hydra(target, true, "build/all-hydra-layer.gguf");
    write_eagle(target, false, "build/all-eagle.gguf");
    write_eagle(target, true, "build/all-eagle-tokens.gguf");
    write_lyanna(target, false, "build/all-lyanna.gguf");
    write_lyanna(target, true, "build/all-lyanna-gate.gguf");
    write_space(target);
    write_eagle3(target, false, "build/all-eagle3.gguf");
    write_eagle3(target, true, "build/all-eagle3-blocks.gguf");
    write_dflash(target, DFLASH_1, "build/all-dflash.gguf");
    write_dflash(target, DFLASH_MARKOV, "build/all-dflash-markov.gguf");
    write_dflash(target, DFLASH_2, "build/all-dflash-2.gguf");
    write_index(gguf);
    rig_weights_close(target);
    gguf_close(gguf);
}
