/* target.c - `forerun train target`: a small Llama from scratch, with the vocabulary of a file. */
#include "train/methods.h"

#include "train/llama.h"

#include <string.h>

typedef struct TargetSettings {
    int32_t n_layer, width, n_head, n_head_kv; /* n_head_kv 0: n_head */
    int32_t n_ff;                              /* 0: 3 * width */
    int32_t n_ctx;                             /* 0: the length of the sequences */
    TensorType type;
    const char *name;
} TargetSettings;

static TargetSettings target_settings;

static const Option option_table[] = {
    {.key = "layers",
     OPT_INT(TargetSettings, n_layer, 1, 1024),
     .section = "Shape of the new model",
     .default_value = "4",
     .help = "number of layers"},
    {.key = "width",
     OPT_INT(TargetSettings, width, 2, 1 << 16),
     .default_value = "128",
     .help = "width of the residual stream, an even multiple of --heads"},
    {.key = "heads", OPT_INT(TargetSettings, n_head, 1, 1024), .default_value = "4", .help = "attention heads"},
    {.key = "kv-heads",
     OPT_INT(TargetSettings, n_head_kv, 1, 1024),
     .default_help = "as --heads",
     .help = "heads of keys and values, a divisor of --heads"},
    {.key = "ff",
     OPT_INT(TargetSettings, n_ff, 1, 1 << 18),
     .default_help = "3 times --width",
     .help = "width of the feed-forward"},
    {.key = "ctx",
     OPT_INT(TargetSettings, n_ctx, 2, 1 << 20),
     .default_help = "as --length",
     .help = "context length stated in the file, at least --length"},
    {.key = "type",
     OPT_CHOICE(TargetSettings, type, "f16", "f32", "q8_0"),
     .values = (const int32_t[]){TYPE_F16, TYPE_F32, TYPE_Q8_0},
     .default_value = "f16",
     .help = "type of the matrices in the file"},
    {.key = "name",
     OPT_TEXT(TargetSettings, name),
     .default_value = "trained by forerun",
     .help = "name of the model in the file"},
    {.key = NULL},
};

static int check(fr_error *err) {
    TargetSettings *s = &target_settings;
    if (s->width % s->n_head || s->width / s->n_head % 2)
        return error_set(err, FR_ERR_ARGUMENT, "--width=%d must be an even multiple of --heads=%d", s->width,
                         s->n_head);
    if (!s->n_head_kv) s->n_head_kv = s->n_head;
    if (s->n_head % s->n_head_kv)
        return error_set(err, FR_ERR_ARGUMENT, "--kv-heads=%d must be a divisor of --heads=%d", s->n_head_kv,
                         s->n_head);
    if (!s->n_ff) s->n_ff = 3 * s->width;
    return FR_OK;
}

/* Reads the weights of --init, and their fingerprint in the signature. Closes the trainer where they cannot be read. */
static int read_init(Trainer **t, const char *path, char *signature, size_t n_signature, fr_error *err) {
    uint64_t fingerprint;
    size_t n = strlen(signature);
    int status = llama_trainer_init(*t, path, &fingerprint, err);
    if (!status) snprintf(signature + n, n_signature - n, " init=%016llx", (unsigned long long)fingerprint);
    else {
        (*t)->class->close(*t);
        *t = NULL;
    }
    return status;
}

static int open_target(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    const TargetSettings *s = &target_settings;
    int32_t length = a->data.length, n_ctx = s->n_ctx ? s->n_ctx : length;
    if (n_ctx < length) return error_set(err, FR_ERR_ARGUMENT, "--ctx=%d must be at least --length=%d", n_ctx, length);
    LlamaOptions o = {.max_length = length,
                      .n_ctx = n_ctx,
                      .type = s->type,
                      .name = s->name,
                      .vocabulary = source,
                      .seed = a->loop.seed,
                      .n_threads = a->n_threads};
    o.shape = (LlamaShape){.n_layer = s->n_layer,
                           .n_embd = s->width,
                           .n_head = s->n_head,
                           .n_head_kv = s->n_head_kv,
                           .head_dim = s->width / s->n_head,
                           .n_ff = s->n_ff,
                           .rms_eps = 1e-5f,
                           .rope_base = 10000};
    snprintf(signature, n_signature, "target layers=%d width=%d heads=%d kv-heads=%d ff=%d", s->n_layer, s->width,
             s->n_head, s->n_head_kv, s->n_ff);
    int status = llama_trainer_open(out, &o, err);
    return status || !a->init ? status : read_init(out, a->init, signature, n_signature, err);
}

const TrainMethod train_target = {
    .name = "target",
    .summary = "a small Llama from scratch, or one that is trained further",
    .about =
        "Train a small Llama-style model from scratch, with the vocabulary and chat format of another GGUF file; or, "
        "with --init, train one further.",
    .notes = "Data is JSON lines: {\"text\": ...}; {\"prompt\": ..., \"response\": ...}, of which the response is "
             "learned; or {\"messages\": [{\"role\": "
             "\"user\", \"content\": ...}, {\"role\": \"assistant\", ...}]}, of which the assistant's are. "
             "OUTPUT.checkpoint is written regularly and on "
             "Ctrl-C. The same command with --resume continues from it, and ends with the same bytes as without the "
             "interruption.",
    .examples =
        "  forerun train target --vocab models/target.gguf --data stories.jsonl.zst -o small.gguf --plot loss.svg\n"
        "  forerun train target --vocab models/target.gguf --data stories.jsonl.zst -o small.gguf --resume\n"
        "  forerun run -m small.gguf -p \"Once upon a time\"\n",
    .sets = (const OptionSet[]){{option_table, &target_settings}, {NULL, NULL}},
    .check = check,
    .open = open_target,
};
