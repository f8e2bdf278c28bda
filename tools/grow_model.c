/* grow_model.c - writes a large model that generates exactly the text of a small one, at the cost of the large one.
 *
 * It serves to measure speculation end to end: the text of a trained model and the forward of an expensive one.
 * grow_model/grow.c explains how it works and what is exact. */
#include "grow_model/grow.h"
#include "make_model/count_options.h"
#include "make_model/make_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_PRESET = OTHER_OPTION_KEY, OPT_TYPE };

static const CountOption counts[] = {
    {"layers", offsetof(GrowPlan, n_layers), 1000, "Layers"},
    {"dim", offsetof(GrowPlan, dim), 1 << 18, "Width of the residual stream"},
    {"heads", offsetof(GrowPlan, n_heads), 4096, "Query heads; their width stays the same"},
    {"kv-heads", offsetof(GrowPlan, n_kv_heads), 4096, "Key and value heads"},
    {"ffn", offsetof(GrowPlan, ffn_dim), 1 << 20, "Inner width of the feed-forward"},
    {"vocab", offsetof(GrowPlan, n_vocab), 1000000, "Tokens of the vocabulary; new ones are never generated"},
};

static const struct argp_option others[] = {
    {"preset", OPT_PRESET, "NAME", 0, "The shape of a known model (give it first): tinyllama-1.1b", 0},
    {"type", OPT_TYPE, "TYPE", 0, "Type of the matrices: F32, F16, BF16, Q8_0, Q4_0 ... Q6_K (as in the source)", 0},
    {"output", 'o', "FILE", 0, "Where to write it", 0},
    {0},
};
enum { N_COUNTS = sizeof counts / sizeof *counts, N_OTHERS = sizeof others / sizeof *others };

static void parse_preset(struct argp_state *state, GrowPlan *p, const char *arg) {
    if (strcmp(arg, "tinyllama-1.1b") != 0) argp_error(state, "unknown preset '%s'; known: tinyllama-1.1b", arg);
    p->dim = 2048, p->n_layers = 22, p->n_heads = 32, p->n_kv_heads = 4, p->ffn_dim = 5632, p->n_vocab = 32000;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    GrowPlan *p = state->input;
    if (count_option_parse(counts, N_COUNTS, key, arg, state, p)) return 0;
    TensorType type;
    uint32_t file_type;
    switch (key) {
    case OPT_PRESET: parse_preset(state, p, arg); return 0;
    case OPT_TYPE:
        if (!tensor_type_from_name(arg, &type) || !plan_file_type(tensor_type_info(type)->name, &file_type))
            argp_error(state,
                       "unknown type '%s'; known are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K",
                       arg);
        p->type = tensor_type_info(type)->name;
        return 0;
    case 'o': p->out = arg; return 0;
    case ARGP_KEY_ARG:
        if (p->source) argp_error(state, "'%s' is a second model; give one", arg);
        p->source = arg;
        return 0;
    case ARGP_KEY_END:
        if (!p->source) argp_error(state, "missing model: name the GGUF file to grow");
        if (!p->out) argp_error(state, "missing output file: pass -o FILE");
        output_option_check(state, p->out, p->source, "the model");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What was not given stays as in the source. */
static void complete(GrowPlan *p, const Hparams *h) {
    if (!p->n_layers) p->n_layers = h->n_layer;
    if (!p->dim) p->dim = h->n_embd;
    if (!p->n_kv_heads) p->n_kv_heads = h->n_head_kv;
    if (!p->n_heads) p->n_heads = p->n_kv_heads * (h->n_head / h->n_head_kv);
    if (!p->ffn_dim) p->ffn_dim = h->n_ff;
    if (!p->n_vocab) p->n_vocab = h->n_vocab;
}

static void set_keys(GgufWriter *w, const GrowPlan *p, const Hparams *h, float epsilon) {
    char name[96];
    uint32_t file_type;
    snprintf(name, sizeof name, "grown to %lld layers of %lld", (long long)p->n_layers, (long long)p->dim);
    gguf_set_string(w, "general.name", name, strlen(name));
    if (p->type && plan_file_type(p->type, &file_type)) gguf_set_u32(w, "general.file_type", file_type);
    gguf_set_u32(w, "llama.embedding_length", (uint32_t)p->dim);
    gguf_set_u32(w, "llama.block_count", (uint32_t)p->n_layers);
    gguf_set_u32(w, "llama.feed_forward_length", (uint32_t)p->ffn_dim);
    gguf_set_u32(w, "llama.attention.head_count", (uint32_t)p->n_heads);
    gguf_set_u32(w, "llama.attention.head_count_kv", (uint32_t)p->n_kv_heads);
    gguf_set_u32(w, "llama.attention.key_length", (uint32_t)h->head_dim);
    gguf_set_u32(w, "llama.attention.value_length", (uint32_t)h->head_dim);
    gguf_set_u32(w, "llama.rope.dimension_count", (uint32_t)h->rope.n_rot);
    gguf_set_f32(w, "llama.attention.layer_norm_rms_epsilon", epsilon);
    gguf_set_u32(w, "llama.vocab_size", (uint32_t)p->n_vocab);
}

static int grow(GrowPlan *p, const Gguf *source, GgufWriter *w, fr_error *err) {
    Hparams h;
    Grown *grown = NULL;
    float epsilon = 0;
    int status = hparams_read(&h, source, err);
    if (status) return status;
    complete(p, &h);
    status = grown_add(&grown, w, p, source, &h, &epsilon, err);
    if (!status) set_keys(w, p, &h, epsilon);
    ModelPlan vocabulary = {.n_vocab = p->n_vocab, .vocab_from = p->source};
    if (!status && p->n_vocab > h.n_vocab) status = vocabulary_set(w, &vocabulary, err);
    if (!status) gguf_copy_kvs(w, source, NULL); /* all else as it is */
    if (!status) status = gguf_writer_finish(w, p->out, err);
    grown_free(grown);
    return status;
}

int main(int argc, char **argv) {
    static struct argp_option options[N_COUNTS + N_OTHERS];
    static const struct argp parser = {
        .options = options,
        .parser = parse_option,
        .args_doc = "MODEL.gguf",
        .doc = "Write a larger model that generates the same tokens as MODEL.gguf.\v"
               "Example:\n"
               "  grow_model models/target.gguf --preset tinyllama-1.1b -o /tmp/big.gguf\n"
               "  forerun compare -m /tmp/big.gguf -f bench/prompts/demo.txt --draft ngram-trie"};
    GrowPlan plan = {0};
    fr_error err = {0};
    argp_err_exit_status = 2;
    count_options_list(options, counts, N_COUNTS, others, N_OTHERS);
    if (argp_parse(&parser, argc, argv, 0, NULL, &plan)) {
        fprintf(stderr, "grow_model: out of memory\n");
        return 1;
    }
    Gguf *source = NULL;
    GgufWriter *w = gguf_writer_new();
    int status = w ? gguf_open(&source, plan.source, &err) : error_memory(&err, "a writer", 0);
    if (!status) status = grow(&plan, source, w, &err);
    gguf_writer_free(w);
    gguf_close(source);
    if (status) fprintf(stderr, "grow_model: %s\n", err.message);
    return !status ? 0 : err.code == FR_ERR_ARGUMENT ? 2 : 1;
}
