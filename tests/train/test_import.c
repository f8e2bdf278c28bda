/* test_import.c - train/import.c and `forerun import-drafter`: a checkpoint in its authors' layout becomes the same
 * drafter as the same weights written directly; checkpoints of another target or method are refused. */
#include "learned_rig.h"

#include "cli_rig.h"
#include "gguf/tensor_type.h"
#include "train/import.h"
#include "safetensors_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { H = 64, V = 300, N_HEAD = 4, N_KV = 2, DIM = 16, FF = 80 };

#define TARGET "build/import-target.gguf"
#define CHECKPOINT "build/import.safetensors"
#define DIRECT "build/import-direct.gguf"
#define IMPORTED "build/import-imported.gguf"

typedef struct Target {
    Gguf *gguf;
    Weights *model;
} Target;

static Target open_target(const char *path, const char *arch, TensorType type, int32_t n_vocab, uint64_t seed) {
    const RandomModel m = {.arch = arch,
                           .n_layer = 1,
                           .n_embd = H,
                           .n_head = N_HEAD,
                           .n_head_kv = N_KV,
                           .n_ff = 96,
                           .n_vocab = n_vocab,
                           .types = {type},
                           .n_types = 1,
                           .seed = seed};
    fr_error err;
    if (random_model_write(&m, path, &err)) fail_msg("%s", err.message);
    Target t = {.gguf = rig_gguf(path)};
    t.model = rig_weights(t.gguf, NULL);
    return t;
}

static void close_target(Target *t) {
    rig_weights_close(t->model);
    gguf_close(t->gguf);
}

static float *embedding_of(const Target *t) {
    float *x = malloc(sizeof *x * V * H);
    for (int32_t v = 0; v < V; v++) model_embedding(t->model->model, v, x + v * H);
    return x;
}

/* ---- the same weights twice -------------------------------------------------------------------------- */

/* A drafter file and a checkpoint with the same weights. */
typedef struct Pair {
    LearnedRig direct;
    SafeTensorsBuild published;
    TensorType type; /* the type of the tensors of both */
} Pair;

static void begin(Pair *p, const char *method, const Target *t, TensorType type) {
    learned_rig_begin(&p->direct, method, t->model, 17);
    safetensors_build_begin(&p->published, type);
    p->type = type;
}

/* Adds a tensor under both its names; n_out 0: a vector. published NULL: the checkpoint does not have it. */
static float *add(Pair *p, const char *name, const char *published, int64_t n_in, int64_t n_out, double std) {
    float *x = learned_rig_tensor(&p->direct, name, p->type, n_in, n_out, std);
    if (published) safetensors_build_add(&p->published, published, x, n_in, n_out);
    return x;
}

static void finish(Pair *p, const char *checkpoint) {
    learned_rig_write(&p->direct, DIRECT);
    learned_rig_free(&p->direct);
    safetensors_build_write(&p->published, checkpoint);
}

/* Adds the rows of q and k as Hugging Face orders them: the first components of all pairs of a head, then the second
 * ones. */
static void add_halved(Pair *p, const char *name, const char *published, int64_t n_heads, bool pairs) {
    float *x = learned_rig_tensor(&p->direct, name, p->type, H, n_heads * DIM, 0.12),
          *y = malloc(sizeof *y * (size_t)(n_heads * DIM * H));
    for (int64_t head = 0; head < n_heads; head++)
        for (int64_t i = 0; i < DIM / 2; i++)
            for (int64_t s = 0; s < 2; s++)
                memcpy(y + (head * DIM + s * DIM / 2 + i) * H,
                       x + (head * DIM + (pairs ? 2 * i + s : s * DIM / 2 + i)) * H, H * sizeof *y);
    safetensors_build_add(&p->published, published, y, H, n_heads * DIM);
    free(y);
}

static void make_eagle(Pair *p, const Target *t, const Target *embedding, bool pairs) {
    begin(p, "eagle", t, TYPE_F32);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("eagle.feed_forward_length"), FF);
    add(p, "eagle.fc.weight", "fc.weight", 2 * H, H, 0.07);
    add(p, "eagle.fc.bias", "fc.bias", H, 0, 0.1);
    add_halved(p, "eagle.attn_q.weight", "layers.0.self_attn.q_proj.weight", N_HEAD, pairs);
    add_halved(p, "eagle.attn_k.weight", "layers.0.self_attn.k_proj.weight", N_KV, pairs);
    add(p, "eagle.attn_v.weight", "layers.0.self_attn.v_proj.weight", H, N_KV * DIM, 0.12);
    add(p, "eagle.attn_output.weight", "layers.0.self_attn.o_proj.weight", H, H, 0.12);
    add(p, "eagle.ffn_norm.weight", "layers.0.post_attention_layernorm.weight", H, 0, 1);
    add(p, "eagle.ffn_gate.weight", "layers.0.mlp.gate_proj.weight", H, FF, 0.1);
    add(p, "eagle.ffn_up.weight", "layers.0.mlp.up_proj.weight", H, FF, 0.1);
    add(p, "eagle.ffn_down.weight", "layers.0.mlp.down_proj.weight", FF, H, 0.1);
    float *e = embedding_of(embedding);
    safetensors_build_add(&p->published, "embed_tokens.weight", e, H, V);
    free(e);
}

/* Two equal blocks, of which the checkpoint contains only the first; with a prefix, it contains the whole model. */
static void make_medusa(Pair *p, const Target *t, const char *prefix) {
    static char names[16][64];
    begin(p, "medusa", t, TYPE_F16);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("medusa.head_count"), 3);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("medusa.block_count"), 2);
    gguf_set_string(p->direct.w, DRAFTER_KEY("medusa.output"), "own", 3);
    for (int i = 0; i < 3; i++) {
        char name[64], from[64];
        static const char *const kinds[] = {"weight", "bias"};
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "medusa.%d.block.0.%s", i, kinds[k]);
            snprintf(from, sizeof from, "%s%d.0.linear.%s", prefix, i, kinds[k]);
            add(p, name, from, H, k ? 0 : H, 0.15);
            snprintf(names[2 * i + k], sizeof names[0], "medusa.%d.block.1.%s", i, kinds[k]);
            gguf_add_tensor(p->direct.w, names[2 * i + k], TYPE_F16, k ? 1 : 2, (int64_t[]){H, H},
                            p->direct.kept[p->direct.n_kept - 1]);
        }
        snprintf(name, sizeof name, "medusa.%d.output.weight", i);
        snprintf(from, sizeof from, "%s%d.2.weight", prefix, i);
        add(p, name, from, H, V, 0.3);
    }
    if (!*prefix) return;
    float *e = embedding_of(t);
    safetensors_build_add(&p->published, "model.embed_tokens.weight", e, H, V);
    safetensors_build_add(&p->published, "model.layers.0.mlp.up_proj.weight", e, H, V);
    safetensors_build_add(&p->published, "lm_head.weight", e, H, V);
    free(e);
}

/* vLLM's layout: its blocks may have no biases, and the first LM head may be that of all heads. n_rows: the rows of an
 * LM head. */
static void make_vllm_medusa(Pair *p, const Target *t, const char *prefix, bool is_bare, int n_rows) {
    static const float zeros[H];
    static const int64_t map[] = {1, 2, 3};
    static char names[9][64];
    void *first_head = NULL;
    begin(p, "medusa", t, TYPE_F16);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("medusa.head_count"), 3);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("medusa.block_count"), 2);
    gguf_set_string(p->direct.w, DRAFTER_KEY("medusa.output"), "own", 3);
    for (int i = 0; i < 3; i++) {
        char name[64], from[64], *output = names[6 + i];
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "medusa.%d.block.%d.weight", i, k);
            snprintf(from, sizeof from, "%sblocks.%d.layers.%d.weight", prefix, i, k);
            add(p, name, from, H, H, 0.15);
            snprintf(names[2 * i + k], sizeof names[0], "medusa.%d.block.%d.bias", i, k);
            snprintf(from, sizeof from, "%sblocks.%d.layers.%d.bias", prefix, i, k);
            if (is_bare) gguf_add_tensor(p->direct.w, names[2 * i + k], TYPE_F32, 1, (int64_t[]){H}, zeros);
            else add(p, names[2 * i + k], from, H, 0, 0.15);
        }
        snprintf(output, sizeof names[0], "medusa.%d.output.weight", i);
        snprintf(from, sizeof from, "%slm_heads.%d.weight", prefix, i);
        if (i == 0 || !is_bare) add(p, output, from, H, n_rows, 0.3);
        else gguf_add_tensor(p->direct.w, output, TYPE_F16, 2, (int64_t[]){H, n_rows}, first_head);
        if (i == 0) first_head = p->direct.kept[p->direct.n_kept - 1];
    }
    safetensors_build_add_i64s(&p->published, "token_map", map, 3);
}

/* The layer of Hydra++, with what a published file has besides and its authors' code does not use. */
static void add_hydra_layer(Pair *p, const Target *t) {
    static const char layer[] = "hydra_head.prefix_embeding_layer.layers.0.";
    const struct {
        const char *name, *from;
        int64_t n_in, n_out;
    } parts[] = {
        {"attn_v", "self_attn.v_proj", H, N_KV * DIM},
        {"attn_output", "self_attn.o_proj", H, H},
        {"ffn_norm", "post_attention_layernorm", H, 0},
        {"ffn_gate", "mlp.gate_proj", H, FF},
        {"ffn_up", "mlp.up_proj", H, FF},
        {"ffn_down", "mlp.down_proj", FF, H},
        {"attn_norm", "input_layernorm", H, 0},
    };
    char name[64], from[96];
    float *e = embedding_of(t);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("hydra.prefix.feed_forward_length"), FF);
    snprintf(from, sizeof from, "%sself_attn.q_proj.weight", layer);
    add_halved(p, "hydra.prefix.attn_q.weight", from, N_HEAD, true);
    snprintf(from, sizeof from, "%sself_attn.k_proj.weight", layer);
    add_halved(p, "hydra.prefix.attn_k.weight", from, N_KV, true);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(name, sizeof name, "hydra.prefix.%s.weight", parts[i].name);
        snprintf(from, sizeof from, "%s%s.weight", layer, parts[i].from);
        add(p, name, from, parts[i].n_in, parts[i].n_out, 0.12);
    }
    add(p, "hydra.prefix.output_norm.weight", "hydra_head.prefix_embeding_layer.norm.weight", H, 0, 1);
    for (int i = 0; i < V * H; i++) e[i] += 1; /* it is not the target's */
    safetensors_build_add(&p->published, "hydra_head.prefix_embeding_layer.embed_tokens.weight", e, H, V);
    snprintf(from, sizeof from, "%sself_attn.rotary_emb.inv_freq", layer);
    safetensors_build_add(&p->published, from, e, DIM / 2, 0);
    free(e);
}

/* Blocks after dropout layers; the second and the third are equal; all tensors have biases. `prefix`: before all names
 * of the checkpoint. */
static void make_hydra(Pair *p, const Target *t, const char *prefix) {
    static char names[16][64];
    begin(p, "hydra", t, TYPE_BF16);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("hydra.head_count"), 2);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("hydra.block_count"), 3);
    gguf_set_string(p->direct.w, DRAFTER_KEY("hydra.output"), "own", 3);
    for (int i = 0; i < 2; i++) {
        const struct {
            const char *name, *before, *behind;
            int64_t n_in, n_out;
        } parts[] = {
            {"in.weight", "mlp", "1.linear.weight", (i + 2) * H, H},
            {"in.bias", "mlp", "1.linear.bias", H, 0},
            {"skip.weight", "mlp", "1.res_connection.weight", (i + 2) * H, H},
            {"skip.bias", "mlp", "1.res_connection.bias", H, 0},
            {"block.1.weight", "mlp", "3.linear.weight", H, H},
            {"block.1.bias", "mlp", "3.linear.bias", H, 0},
            {"output.weight", "lm_head", "1.weight", H, V},
            {"output.bias", "lm_head", "1.bias", V, 0},
        };
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            char name[64], from[64];
            snprintf(name, sizeof name, "hydra.%d.%s", i, parts[k].name);
            snprintf(from, sizeof from, "%shydra_%s.%d.%s", prefix, parts[k].before, i, parts[k].behind);
            add(p, name, from, parts[k].n_in, parts[k].n_out, 0.15);
            if (strncmp(parts[k].name, "block.1", 7) != 0) continue;
            char *again = names[2 * i + (parts[k].n_out == 0)];
            snprintf(again, sizeof names[0], "hydra.%d.block.2.%s", i, parts[k].name + 8);
            gguf_add_tensor(p->direct.w, again, TYPE_BF16, parts[k].n_out ? 2 : 1, (int64_t[]){H, H},
                            p->direct.kept[p->direct.n_kept - 1]);
        }
    }
}

/* Adds a tensor for which the checkpoint has the hidden state first, in its columns, its rows, or both. */
static void add_swapped(Pair *p, const char *name, const char *published, int64_t n_out, bool rows) {
    enum { N = 2 * H };
    float *x = learned_rig_tensor(&p->direct, name, p->type, N, n_out, 0.1),
          *y = malloc(sizeof *y * (size_t)((n_out ? n_out : 1) * N));
    for (int64_t o = 0; o < (n_out ? n_out : 1); o++)
        for (int64_t i = 0; i < N; i++) y[(rows ? (o + H) % N : o) * N + (i + H) % N] = x[o * N + i];
    safetensors_build_add(&p->published, published, y, N, n_out);
    free(y);
}

static void make_redrafter(Pair *p, const Target *t) {
    begin(p, "redrafter", t, TYPE_F32);
    gguf_set_u32(p->direct.w, DRAFTER_KEY("redrafter.block_count"), 2);
    gguf_set_string(p->direct.w, DRAFTER_KEY("redrafter.start"), "zero", 4);
    add(p, "redrafter.w.weight", "rnn_w.weight", H, H, 0.12);
    add(p, "redrafter.u.weight", "rnn_u.weight", H, H, 0.12);
    add(p, "redrafter.u.bias", "rnn_u.bias", H, 0, 0.1);
    add_swapped(p, "redrafter.block.0.weight", "lm_head.0.linear.weight", 2 * H, true);
    add_swapped(p, "redrafter.block.0.bias", "lm_head.0.linear.bias", 0, false);
    add_swapped(p, "redrafter.block.1.weight", "lm_head.1.linear.weight", 2 * H, true);
    add_swapped(p, "redrafter.block.1.bias", "lm_head.1.linear.bias", 0, false);
    add_swapped(p, "redrafter.output.weight", "lm_head.2.weight", V, false);
}

/* ---- comparisons ------------------------------------------------------------------------------------- */

static int try_import(const char *method, const Target *t, const char *path, TensorType type, fr_error *err) {
    Published c;
    int status = published_open(&c, &path, 1, err);
    if (!status)
        status = import_drafter(import_find(method), t->model->model, &c, &(ImportOptions){.type = type}, IMPORTED,
                                err);
    published_close(&c);
    return status;
}

static void assert_same_file(const char *method) {
    Gguf *want = rig_gguf(DIRECT), *got = rig_gguf(IMPORTED);
    char prefix[64];
    snprintf(prefix, sizeof prefix, DRAFTER_KEY("%s."), method);
    for (int64_t i = 0; i < gguf_n_kv(want); i++) {
        const char *key = gguf_key(want, i);
        int64_t a = 0, b = 1;
        GgufString s = {0}, g = {0};
        if (strncmp(key, prefix, strlen(prefix)) != 0 && !strstr(key, ".target.") && !strstr(key, "general.")) continue;
        if (gguf_get_i64(want, key, &a)) assert_true(gguf_get_i64(got, key, &b) && a == b);
        else
            assert_true(gguf_get_string(want, key, &s) && gguf_get_string(got, key, &g) && s.n == g.n &&
                        memcmp(s.data, g.data, s.n) == 0);
    }
    assert_int_equal(gguf_n_tensors(want), gguf_n_tensors(got));
    for (int64_t i = 0; i < gguf_n_tensors(want); i++) {
        const GgufTensor *w = gguf_tensor(want, i), *g = gguf_find_tensor(got, w->name);
        if (!g) fail_msg("%s is missing", w->name);
        int64_t n = w->dims[0] * w->dims[1];
        assert_true(g->n_dims == w->n_dims && g->dims[0] == w->dims[0] && g->dims[1] == w->dims[1]);
        float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
        blocks_dequantize(w->type, w->data, n, a);
        blocks_dequantize(g->type, g->data, n, b);
        for (int64_t k = 0; k < n; k++)
            if (a[k] != b[k]) fail_msg("%s: number %d is %g, want %g", w->name, (int)k, (double)b[k], (double)a[k]);
        free(a);
        free(b);
    }
    gguf_close(want);
    gguf_close(got);
}

static void assert_same_drafts(const char *method, const Target *t) {
    LearnedReader reader;
    learned_rig_open_reader(&reader, t->model);
    static Tree trees[2];
    for (int i = 0; i < 2; i++) {
        char spec[128];
        int32_t text[20];
        snprintf(spec, sizeof spec, "%s:file=%s", method, i ? IMPORTED : DIRECT);
        Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
        rig_tokens(5, V, text, 20);
        learned_rig_feed(&reader, d, 0, text, 20, 7);
        rig_propose(d, 0, text[19], 30, V, &trees[i]);
        d->class->end(d, 0);
        drafter_close(d);
    }
    assert_true(trees[0].n > 5);
    rig_assert_same_tree(&trees[0], &trees[1], method);
    learned_rig_close_reader(&reader);
}

static void must_import(const char *method, const Target *t, const char *path, TensorType type, bool is_exact) {
    fr_error err = {0};
    if (try_import(method, t, path, type, &err)) fail_msg("%s", err.message);
    if (is_exact) assert_same_file(method);
    if (is_exact) assert_same_drafts(method, t);
}

static void an_imported_eagle_equals_the_direct_one(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        bool pairs;
    } archs[] = {{"llama", true}, {"qwen2", false}};
    for (int i = 0; i < 2; i++) {
        Target t = open_target(TARGET, archs[i].arch, TYPE_F32, V, 3);
        Pair p;
        make_eagle(&p, &t, &t, archs[i].pairs);
        finish(&p, CHECKPOINT);
        must_import("eagle", &t, CHECKPOINT, TYPE_F32, true);
        close_target(&t);
    }
}

static void an_imported_medusa_equals_the_direct_one(void **state) {
    (void)state;
    static const char *const prefixes[] = {"", "medusa_head."};
    Target t = open_target(TARGET, "llama", TYPE_F16, V, 3);
    for (int i = 0; i < 2; i++) {
        Pair p;
        make_medusa(&p, &t, prefixes[i]);
        finish(&p, CHECKPOINT);
        must_import("medusa", &t, CHECKPOINT, TYPE_F16, true);
        make_vllm_medusa(&p, &t, i ? "medusa_heads." : "", i == 0, V);
        finish(&p, CHECKPOINT);
        must_import("medusa", &t, CHECKPOINT, TYPE_F16, true);
    }
    close_target(&t);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Imports from a folder with config.json; bfloat16 becomes F32 without loss. */
static void an_imported_hydra_equals_the_direct_one(void **state) {
    (void)state;
    Target t = open_target(TARGET, "llama", TYPE_F16, V, 3);
    Pair p;
    mkdir("build/import-hydra", 0755);
    write_text("build/import-hydra/config.json", "{\"hydra_num_layers\": 3}");
    for (int i = 0; i < 2; i++) {
        make_hydra(&p, &t, i ? "hydra_head." : "");
        if (i) add_hydra_layer(&p, &t);
        finish(&p, "build/import-hydra/model.safetensors");
        fr_error err = {0};
        if (try_import("hydra", &t, "build/import-hydra", TYPE_F32, &err)) fail_msg("%s", err.message);
        assert_same_file("hydra");
    }
    close_target(&t);
}

static void an_imported_redrafter_equals_the_direct_one(void **state) {
    (void)state;
    Target t = open_target(TARGET, "llama", TYPE_F16, V, 3);
    Pair p;
    make_redrafter(&p, &t);
    finish(&p, CHECKPOINT);
    must_import("redrafter", &t, CHECKPOINT, TYPE_F32, true);
    must_import("redrafter", &t, CHECKPOINT, TYPE_Q8_0, false);
    Gguf *g = rig_gguf(IMPORTED);
    assert_int_equal(gguf_find_tensor(g, "redrafter.output.weight")->type, TYPE_Q8_0);
    assert_int_equal(gguf_find_tensor(g, "redrafter.u.bias")->type, TYPE_F32);
    gguf_close(g);
    close_target(&t);
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void expect_refusal(const char *method, const Target *t, TensorType type, int code, const char *message) {
    fr_error err = {0};
    remove(IMPORTED);
    int status = try_import(method, t, CHECKPOINT, type, &err);
    if (status != code || !strstr(err.message, message))
        fail_msg("%s: %d '%s', want '%s'", method, status, err.message, message);
    struct stat st;
    assert_int_equal(stat(IMPORTED, &st), -1);
}

/* Four heads of 16 and eight of 8 have matrices of the same shape; only config.json shows the difference. */
static void head_counts_of_config_json_must_match(void **state) {
    (void)state;
    static const char folder[] = "build/import-eagle";
    Target t = open_target(TARGET, "llama", TYPE_F32, V, 3);
    Pair p;
    fr_error err = {0};
    mkdir(folder, 0755);
    make_eagle(&p, &t, &t, true);
    finish(&p, "build/import-eagle/model.safetensors");
    write_text("build/import-eagle/config.json", "{\"num_attention_heads\": 4, \"num_key_value_heads\": 2}");
    if (try_import("eagle", &t, folder, TYPE_F32, &err)) fail_msg("%s", err.message);
    write_text("build/import-eagle/config.json", "{\"num_attention_heads\": 8, \"num_key_value_heads\": 2}");
    assert_int_equal(try_import("eagle", &t, folder, TYPE_F32, &err), FR_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "has 8 for num_attention_heads, the target 4"));
    close_target(&t);
}

/* The drafter of another target is refused; that of this target is accepted even if the target is quantised to four
 * bits. */
static void the_embedding_must_be_the_targets(void **state) {
    (void)state;
    Target t = open_target(TARGET, "llama", TYPE_F32, V, 3),
           other = open_target("build/import-other.gguf", "llama", TYPE_F32, V, 4);
    Target small = open_target("build/import-small.gguf", "llama", TYPE_Q4_0, V, 3),
           wide = open_target("build/import-wide.gguf", "llama", TYPE_F32, V + 20, 3);
    Pair p;
    make_eagle(&p, &t, &t, true);
    finish(&p, CHECKPOINT);
    must_import("eagle", &small, CHECKPOINT, TYPE_F32, false);
    expect_refusal("eagle", &other, TYPE_F32, FR_ERR_MISMATCH, "was trained for another target");
    expect_refusal("eagle", &wide, TYPE_F32, FR_ERR_MISMATCH,
                   "tensor embed_tokens.weight is 300 x 64, but the target needs 320 x 64");
    close_target(&t);
    close_target(&other);
    close_target(&small);
    close_target(&wide);
}

static void heads_of_some_tokens_are_refused(void **state) {
    (void)state;
    Target t = open_target(TARGET, "llama", TYPE_F16, V, 3);
    Pair p;
    make_vllm_medusa(&p, &t, "", false, V / 2);
    finish(&p, CHECKPOINT);
    expect_refusal("medusa", &t, TYPE_F16, FR_ERR_UNSUPPORTED, "only the 150 tokens of its token_map");
    close_target(&t);
}

static void unknown_and_missing_tensors_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *method, *extra;
        int64_t n_in, n_out;
        int code;
        const char *message;
    } bad[] = {
        {"eagle", "layers.0.input_layernorm.weight", H, 0, FR_ERR_UNSUPPORTED,
         "holds the tensor layers.0.input_layernorm.weight, which the method eagle does not have"},
        {"eagle", "midlayer.self_attn.q_proj.weight", H, H, FR_ERR_UNSUPPORTED, "is an EAGLE-3 drafter"},
        {"redrafter", "input_proj.weight", 2 * H, 2 * H, FR_ERR_UNSUPPORTED, "holds the tensor input_proj.weight"},
        {"hydra", "prefix_embeding_layer.norm.weight", H, 0, FR_ERR_FORMAT,
         "tensor prefix_embeding_layer.layers.0.self_attn.q_proj.weight is missing"},
        {"hydra", "prefix_embeding_layer.layers.0.input_layernorm.weight", H, 0, FR_ERR_UNSUPPORTED,
         "holds the tensor prefix_embeding_layer.layers.0.input_layernorm.weight"},
        {"medusa", "3.0.linear.weight", H, H, FR_ERR_UNSUPPORTED, "holds the tensor 3.0.linear.weight"},
    };
    static float zeros[4 * H * H];
    Target t = open_target(TARGET, "llama", TYPE_F32, V, 3);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Pair p;
        if (strcmp(bad[i].method, "eagle") == 0) make_eagle(&p, &t, &t, true);
        else if (strcmp(bad[i].method, "hydra") == 0) make_hydra(&p, &t, "");
        else if (strcmp(bad[i].method, "medusa") == 0) make_medusa(&p, &t, "");
        else make_redrafter(&p, &t);
        safetensors_build_add(&p.published, bad[i].extra, zeros, bad[i].n_in, bad[i].n_out);
        finish(&p, CHECKPOINT);
        expect_refusal(bad[i].method, &t, TYPE_F32, bad[i].code, bad[i].message);
    }
    expect_refusal("eagle", &t, TYPE_F32, FR_ERR_FORMAT, "tensor fc.weight is missing");
    expect_refusal("hydra", &t, TYPE_F32, FR_ERR_FORMAT, "holds no Hydra heads");
    expect_refusal("redrafter", &t, TYPE_F32, FR_ERR_FORMAT, "tensor rnn_w.weight is missing");
    close_target(&t);
}

static void numbers_out_of_range_are_refused(void **state) {
    (void)state;
    static float x[H * V];
    static const struct {
        float value;
        TensorType type;
        const char *message;
    } bad[] = {
        {NAN, TYPE_F32, "tensor 0.0.weight holds NaN or infinity"},
        {70000, TYPE_F16, "tensor 0.0.weight holds 70000, which is too large for F16; choose --type F32"},
    };
    Target t = open_target(TARGET, "llama", TYPE_F32, V, 3);
    for (int i = 0; i < 2; i++) {
        SafeTensorsBuild b;
        safetensors_build_begin(&b, TYPE_F32);
        x[H * V - 1] = bad[i].value;
        safetensors_build_add(&b, "0.0.weight", x, H, V);
        safetensors_build_write(&b, CHECKPOINT);
        expect_refusal("medusa", &t, bad[i].type, i ? FR_ERR_UNSUPPORTED : FR_ERR_FORMAT, bad[i].message);
    }
    fr_error err = {0};
    if (try_import("medusa", &t, CHECKPOINT, TYPE_F32, &err)) fail_msg("%s", err.message);
    close_target(&t);
}

/* Tests the command: import, inspect, and a text that equals plain decoding. */
static void the_command_imports_and_runs(void **state) {
    (void)state;
    Target t = open_target(TARGET, "llama", TYPE_F16, V, 3);
    Pair p;
    make_eagle(&p, &t, &t, true);
    finish(&p, CHECKPOINT);
    close_target(&t);
    cli_expect("import-drafter eagle -m " TARGET " " CHECKPOINT " -o " IMPORTED, 0,
               "use it with --draft eagle:file=" IMPORTED);
    cli_expect("inspect " IMPORTED, 0, "imported from " CHECKPOINT);
    cli_expect("inspect " IMPORTED, 0, "F16 ");
    cli_expect("compare -m " TARGET " -p abc -n 20 --ignore-eos --runs 1 --no-text --draft eagle:file=" IMPORTED, 0,
               "identical");
    cli_expect("import-drafter --help-all", 0, "redrafter: Recurrent Drafter");
    cli_expect("import-drafter sps -m " TARGET " " CHECKPOINT " -o " IMPORTED, 2,
               "'sps': drafters of this method cannot be imported");
    cli_expect("import-drafter eagle -m " TARGET " -o " IMPORTED, 2, "missing weights");
    cli_expect("import-drafter eagle -m " TARGET " " CHECKPOINT, 2, "missing output file: pass -o FILE");
    cli_expect("import-drafter eagle " CHECKPOINT " -o " IMPORTED, 2, "missing target: pass -m FILE");
    cli_expect("import-drafter eagle -m " TARGET " --type Q4_K " CHECKPOINT " -o " IMPORTED, 2,
               "must be F16, Q8_0 or F32");
    cli_expect("import-drafter eagle -m " TARGET " man -o " IMPORTED, 1, "there is no *.safetensors in this folder");
    FILE *f = fopen("build/import.bin", "wb");
    assert_non_null(f);
    fwrite("PK\x03\x04 and so on", 1, 14, f);
    fclose(f);
    cli_expect("import-drafter eagle -m " TARGET " build/import.bin -o " IMPORTED, 1, "is a pickle of PyTorch");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_imported_eagle_equals_the_direct_one),
        cmocka_unit_test(an_imported_medusa_equals_the_direct_one),
        cmocka_unit_test(heads_of_some_tokens_are_refused),
        cmocka_unit_test(an_imported_hydra_equals_the_direct_one),
        cmocka_unit_test(an_imported_redrafter_equals_the_direct_one),
        cmocka_unit_test(head_counts_of_config_json_must_match),
        cmocka_unit_test(the_embedding_must_be_the_targets),
        cmocka_unit_test(unknown_and_missing_tensors_are_refused),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(the_command_imports_and_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
