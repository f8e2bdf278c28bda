/* train_target.c - `forerun train target`: a small Llama from scratch, with the vocabulary of a file. */
#include "app/train/train_methods.h"

#include "train/nets/llama.h"

#include <string.h>

enum { KEY_LAYERS = 1024, KEY_WIDTH, KEY_HEADS, KEY_KV_HEADS, KEY_FF, KEY_CTX, KEY_TYPE, KEY_NAME };

typedef struct TargetSettings {
    int32_t n_layer, width, n_head, n_head_kv; /* n_head_kv 0: n_head */
    int32_t n_ff;                              /* 0: 3 * width */
    int32_t n_ctx;                             /* 0: the length of the sequences */
    TensorType type;
    const char *name;
} TargetSettings;

static TargetSettings target_settings = {.n_layer = 4, .width = 128, .n_head = 4, .type = TYPE_F16, .name = "trained by forerun"};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Shape of the new model:", 5},
    {"layers", KEY_LAYERS, "N", 0, "layers (default 4)", 5},
    {"width", KEY_WIDTH, "N", 0, "width of the residual stream, an even multiple of the heads (default 128)", 5},
    {"heads", KEY_HEADS, "N", 0, "attention heads (default 4)", 5},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "heads of keys and values, a divisor of the heads (default: as many)", 5},
    {"ff", KEY_FF, "N", 0, "width of the feed-forward (default: 3 times --width)", 5},
    {"ctx", KEY_CTX, "N", 0, "context that the file promises, at least --length (default: --length)", 5},
    {"type", KEY_TYPE, "TYPE", 0, "of the matrices in the file: f16 (default), f32 or q8_0", 5},
    {"name", KEY_NAME, "TEXT", 0, "name of the model in the file", 5},
    {0},
};

static void check_shape(struct argp_state *state, TargetSettings *s) {
    if (s->width % s->n_head || s->width / s->n_head % 2)
        argp_error(state, "--width %d is no even multiple of --heads %d", s->width, s->n_head);
    if (!s->n_head_kv) s->n_head_kv = s->n_head;
    if (s->n_head % s->n_head_kv) argp_error(state, "--kv-heads %d is no divisor of --heads %d", s->n_head_kv, s->n_head);
    if (!s->n_ff) s->n_ff = 3 * s->width;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    TargetSettings *s = state->input;
    switch (key) {
    case KEY_LAYERS: s->n_layer = (int32_t)train_parse_int(state, "--layers", arg, 1, 1024); return 0;
    case KEY_WIDTH: s->width = (int32_t)train_parse_int(state, "--width", arg, 2, 1 << 16); return 0;
    case KEY_HEADS: s->n_head = (int32_t)train_parse_int(state, "--heads", arg, 1, 1024); return 0;
    case KEY_KV_HEADS: s->n_head_kv = (int32_t)train_parse_int(state, "--kv-heads", arg, 1, 1024); return 0;
    case KEY_FF: s->n_ff = (int32_t)train_parse_int(state, "--ff", arg, 1, 1 << 18); return 0;
    case KEY_CTX: s->n_ctx = (int32_t)train_parse_int(state, "--ctx", arg, 2, 1 << 20); return 0;
    case KEY_TYPE: s->type = train_parse_type(state, arg); return 0;
    case KEY_NAME: s->name = arg; return 0;
    case ARGP_KEY_END: check_shape(state, s); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The number of threads is among the words: it decides in which order gradients are added. */
static int open_target(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature, fr_error *err) {
    const TargetSettings *s = &target_settings;
    int32_t length = a->data.length, n_ctx = s->n_ctx ? s->n_ctx : length;
    if (n_ctx < length) return error_set(err, FR_ERR_ARGUMENT, "--ctx %d is less than --length %d", n_ctx, length);
    LlamaOptions o = {.max_length = length, .n_ctx = n_ctx, .type = s->type, .name = s->name, .vocabulary = source,
                      .seed = a->loop.seed, .n_threads = a->n_threads};
    o.shape = (LlamaShape){.n_layer = s->n_layer, .n_embd = s->width, .n_head = s->n_head, .n_head_kv = s->n_head_kv,
                           .head_dim = s->width / s->n_head, .n_ff = s->n_ff, .rms_eps = 1e-5f, .rope_base = 10000};
    snprintf(signature, n_signature, "target layers=%d width=%d heads=%d kv-heads=%d ff=%d threads=%d", s->n_layer, s->width, s->n_head,
             s->n_head_kv, s->n_ff, a->n_threads);
    return llama_trainer_open(out, &o, err);
}

static const struct argp target_argp = {.options = option_table, .parser = parse};

const TrainMethod train_target = {
    .name = "target",
    .summary = "a small Llama from scratch",
    .help = "Train a small Llama-style model from scratch, with the vocabulary and chat format of another GGUF file.\v"
            "Data is JSON lines: {\"text\": ...}; {\"prompt\": ..., \"response\": ...}, of which the response is learned; or "
            "{\"messages\": [{\"role\": \"user\", \"content\": ...}, {\"role\": \"assistant\", ...}]}, of which the assistant's are. "
            "Ctrl-C writes OUTPUT.checkpoint; so does time. The same command with --resume goes on, and ends with "
            "the same bytes as if it had never been stopped.\n\n"
            "  forerun train target --vocab models/target.gguf --data stories.jsonl.zst -o small.gguf --plot loss.svg\n"
            "  forerun train target --vocab models/target.gguf --data stories.jsonl.zst -o small.gguf --resume\n"
            "  forerun run -m small.gguf -p \"Once upon a time\"\n",
    .argp = &target_argp,
    .settings = &target_settings,
    .open = open_target,
};
