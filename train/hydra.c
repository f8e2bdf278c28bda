/* hydra.c - `forerun train hydra`: heads that also read the tokens predicted before them. */
#include "train/methods.h"
#include "draft/learned/learned_files.h"
#include "train/import.h"
#include "train/nets.h"
#include "train/drafter_trainer.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static HydraNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "prefix",
     OPT_FLAG(HeadsSettings, has_prefix),
     .section = "The drafter",
     .help = "put a transformer layer before the heads, as in Hydra++: they then read what it makes of the target's "
             "hidden states of the whole context"},
    {.key = NULL},
};

static void set_prefix(const FrozenTarget *target, int32_t n_ff) {
    const UnrollSettings of_layer = {.drafter.loss.n_steps = 1, .n_ff = n_ff};
    net.has_prefix = true;
    net.prefix = train_unroll_shape("hydra.prefix", target, &of_layer);
    net.prefix.has_attn_norm = true;
    net.norm_start = start_norm(target->model);
}

/* Takes over from a file what no option says: the biases of an imported one, and the layer of Hydra++. */
static int plan_init(const char *path, const FrozenTarget *target, fr_error *err) {
    DrafterFile f;
    int32_t n_ff = 0;
    int status = drafter_file_open(&f, path, "hydra", target->model, err);
    if (!status) net.has_skip_bias = drafter_file_has_printed(&f, HYDRA_HEAD HYDRA_SKIP ".bias", 0);
    if (!status) net.has_output_bias = drafter_file_has_printed(&f, HYDRA_HEAD HYDRA_OUTPUT ".bias", 0);
    if (!status && drafter_file_has(&f, HYDRA_PREFIX LAYER_OUTPUT_NORM)) {
        status = drafter_file_int(&f, HYDRA_PREFIX LAYER_KEY_FEED_FORWARD, 1, 1 << 20, &n_ff, err);
        set_prefix(target, n_ff);
    }
    drafter_file_close(&f);
    return status;
}

static int plan(const TrainArgs *a, const FrozenTarget *target, fr_error *err) {
    const Hparams *h = &target->model->hparams;
    HeadsShape heads;
    int status = train_heads_choose(&settings, "hydra", a->init, target->model, &heads, err);
    if (status) return status;
    net = (HydraNet){.C = h->n_embd,
                     .V = h->n_vocab,
                     .n_heads = heads.n_heads,
                     .n_blocks = heads.n_blocks,
                     .has_own_output = heads.has_own_output,
                     .token_std = start_token_std(target->embd, h->n_vocab, h->n_embd),
                     .loss = train_drafter_loss(&settings.drafter, target, !heads.has_own_output)};
    if (settings.has_prefix) set_prefix(target, 0);
    return a->init ? plan_init(a->init, target, err) : FR_OK;
}

static int open_hydra(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                      fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    status = plan(a, &target, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    snprintf(signature, n_signature, "hydra blocks=%d lm-head=%s%s", net.n_blocks,
             net.has_own_output ? "own" : "target", net.has_prefix ? " prefix" : "");
    return train_drafter_open(out, &target, &hydra_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_heads_check(&settings, err); }

const TrainMethod train_hydra = {
    .name = "hydra",
    .summary = "heads on the target's hidden state and the tokens predicted so far, each for one place ahead",
    .about = "Train Hydra's heads for a target: each predicts the token at one place ahead, from the target's hidden "
             "state and the tokens that the "
             "heads before it predicted.",
    .notes =
        "Best trained on the target's own answers (forerun distill-data). With --init a drafter keeps its shape, and "
        "the biases that an imported one has.",
    .examples = "  forerun train hydra -m t.gguf --data answers.jsonl -o hydra.gguf\n"
                "  forerun run -m t.gguf -p Once --draft hydra:file=hydra.gguf\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.drafter},
                                {train_drafter_options, &settings.drafter},
                                {train_head_tokens_options, &settings.drafter},
                                {train_heads_options, &settings},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_hydra,
};

/* Hydra heads as their authors' code writes them (hydra/model/hydra_heads of zankner/Hydra), also after "hydra_head.".
 *
 *     hydra_mlp.<head>.<j>.linear.weight, .bias           the blocks, j = 1, 3, ...; dropout has a number
 *     hydra_mlp.<head>.<j>.res_connection.weight, .bias   the skip connection of the first block
 *     hydra_lm_head.<head>[.<j>].weight, .bias            the head's own output
 *     prefix_embeding_layer.layers.0.*, .norm.weight      the layer of Hydra++, as the published files have it; q and k
 *                                                         rotate halves
 *     prefix_embeding_layer.embed_tokens.weight           not used by their code
 *
 * The biases of res_connection and of the output go into tensors that exist in drafter files only for this purpose.
 * In the released code all blocks after the first are the same module, which safetensors store once; config.json
 * (hydra_num_layers) has their number. Heads that do not read the path, which have no res_connection, are refused. */

enum { MAX_LAYERS = 32 };

typedef struct Source {
    Import *import;
    const char *prefix;
    int32_t stored[HYDRA_MAX_BLOCKS], n_stored, n_blocks; /* j of the stored blocks; blocks of the drafter */
} Source;

/* "<prefix>hydra_mlp.<head>.<j>.<end>" in name. */
static const char *mlp_name(const Source *s, int32_t head, int32_t j, const char *end, char name[128]) {
    snprintf(name, 128, "%shydra_mlp.%d.%d.%s", s->prefix, head, j, end);
    return name;
}

static bool has(const Source *s, const char *name) { return published_find(s->import->from, name) != NULL; }

static int add(const Source *s, int32_t head, const char *end, const char *from, int64_t n_in, int64_t n_out,
               fr_error *err) {
    char name[64];
    snprintf(name, sizeof name, HYDRA_HEAD "%s", head, end);
    return import_add(s->import, name, from, n_in, n_out, NULL, err);
}

/* Like add, if the checkpoint has the tensor. */
static int add_optional(const Source *s, int32_t head, const char *end, const char *from, int64_t n, fr_error *err) {
    return has(s, from) ? add(s, head, end, from, n, 0, err) : FR_OK;
}

static int find_blocks(Source *s, fr_error *err) {
    char name[128];
    for (int32_t j = 0; j < MAX_LAYERS && s->n_stored < HYDRA_MAX_BLOCKS; j++)
        if (has(s, mlp_name(s, 0, j, "linear.weight", name))) s->stored[s->n_stored++] = j;
    const char *path = published_path(s->import->from);
    if (s->n_stored == 0)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: holds no Hydra heads: there is no tensor hydra_mlp.0.<j>.linear.weight", path);
    if (!has(s, mlp_name(s, 0, s->stored[0], "res_connection.weight", name)))
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: its heads do not read the tokens predicted before them (there is no tensor %s), so they "
                         "are Medusa heads: import them with the method medusa",
                         path, name);
    int64_t n_layers = 0;
    s->n_blocks = s->n_stored;
    if (published_config(s->import->from, "hydra_num_layers", &n_layers) && n_layers > s->n_stored &&
        s->n_stored == 2 && n_layers <= HYDRA_MAX_BLOCKS)
        s->n_blocks = (int32_t)n_layers;
    return FR_OK;
}

static int add_first(const Source *s, int32_t head, fr_error *err) {
    char from[128];
    int64_t h = s->import->target->hparams.n_embd, wide = (head + 2) * h;
    int32_t j = s->stored[0];
    int status = add(s, head, HYDRA_IN ".weight", mlp_name(s, head, j, "linear.weight", from), wide, h, err);
    if (!status) status = add(s, head, HYDRA_IN ".bias", mlp_name(s, head, j, "linear.bias", from), h, 0, err);
    if (!status)
        status = add(s, head, HYDRA_SKIP ".weight", mlp_name(s, head, j, "res_connection.weight", from), wide, h, err);
    return status
               ? status
               : add_optional(s, head, HYDRA_SKIP ".bias", mlp_name(s, head, j, "res_connection.bias", from), h, err);
}

static int add_block(const Source *s, int32_t head, int32_t k, fr_error *err) {
    char from[128], end[32];
    int64_t h = s->import->target->hparams.n_embd;
    int32_t j = s->stored[k < s->n_stored ? k : 1];
    snprintf(end, sizeof end, HYDRA_BLOCK ".weight", k);
    int status = add(s, head, end, mlp_name(s, head, j, "linear.weight", from), h, h, err);
    snprintf(end, sizeof end, HYDRA_BLOCK ".bias", k);
    return status ? status : add(s, head, end, mlp_name(s, head, j, "linear.bias", from), h, 0, err);
}

static int add_output(const Source *s, int32_t head, fr_error *err) {
    static const char *const infixes[] = {"", ".0", ".1"}; /* after a dropout layer it has the number 1 */
    const Hparams *h = &s->import->target->hparams;
    char from[128];
    int i = 0;
    do snprintf(from, sizeof from, "%shydra_lm_head.%d%s.weight", s->prefix, head, infixes[i]);
    while (!has(s, from) && ++i < 3);
    int status = add(s, head, HYDRA_OUTPUT ".weight", from, h->n_embd, h->n_vocab, err);
    if (status) return status;
    snprintf(from, sizeof from, "%shydra_lm_head.%d%s.bias", s->prefix, head, infixes[i < 3 ? i : 0]);
    return add_optional(s, head, HYDRA_OUTPUT ".bias", from, h->n_vocab, err);
}

/* Adds the layer of Hydra++, if the checkpoint has it. */
static int add_prefix(const Source *s, fr_error *err) {
    static const char *const unused[] = {"embed_tokens.", "layers.0.self_attn.rotary_emb."};
    char name[128];
    snprintf(name, sizeof name, "%sprefix_embeding_layer.norm.weight", s->prefix);
    if (!has(s, name)) return FR_OK;
    int64_t n = s->import->target->hparams.n_embd;
    int status = import_add(s->import, HYDRA_PREFIX LAYER_OUTPUT_NORM, name, n, 0, NULL, err);
    snprintf(name, sizeof name, "%sprefix_embeding_layer.layers.0.", s->prefix);
    if (!status) status = import_add_layer(s->import, HYDRA_PREFIX, name, true, err);
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
        snprintf(name, sizeof name, "%sprefix_embeding_layer.%s", s->prefix, unused[i]);
        published_pass_over(s->import->from, name);
    }
    return status;
}

int import_plan_hydra(Import *x, fr_error *err) {
    char name[128];
    Source s = {.import = x, .prefix = ""};
    for (int32_t j = 0; j < 2; j++)
        if (published_find(x->from, mlp_name(&(Source){.prefix = "hydra_head."}, 0, j, "linear.weight", name)))
            s.prefix = "hydra_head.";
    int status = find_blocks(&s, err);
    int32_t n_heads = 0;
    while (!status && n_heads < HYDRA_MAX_HEADS && has(&s, mlp_name(&s, n_heads, s.stored[0], "linear.weight", name)))
        n_heads++;
    import_set_int(x, HYDRA_KEY_HEAD_COUNT, n_heads);
    import_set_int(x, HYDRA_KEY_BLOCK_COUNT, s.n_blocks);
    import_set_text(x, HYDRA_KEY_OUTPUT, "own");
    for (int32_t i = 0; i < n_heads && !status; i++) {
        status = add_first(&s, i, err);
        for (int32_t k = 1; k < s.n_blocks && !status; k++) status = add_block(&s, i, k, err);
        if (!status) status = add_output(&s, i, err);
    }
    return status ? status : add_prefix(&s, err);
}
