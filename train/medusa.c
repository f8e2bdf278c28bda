/* medusa.c - `forerun train medusa`: heads that each predict one place ahead. */
#include "train/methods.h"
#include "draft/learned/learned_files.h"
#include "train/import.h"
#include "train/nets.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static MedusaNet net; /* used by the trainer; its shape follows the target */

static int open_medusa(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    FrozenTarget target = {0};
    HeadsShape heads;
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    status = train_heads_choose(&settings, "medusa", a->init, target.model, &heads, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    net = (MedusaNet){.C = target.model->hparams.n_embd,
                      .V = target.model->hparams.n_vocab,
                      .n_heads = heads.n_heads,
                      .n_blocks = heads.n_blocks,
                      .has_own_output = heads.has_own_output,
                      .loss = train_drafter_loss(&settings.drafter, &target, !heads.has_own_output)};
    snprintf(signature, n_signature, "medusa blocks=%d lm-head=%s", net.n_blocks,
             net.has_own_output ? "own" : "target");
    return train_drafter_open(out, &target, &medusa_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_heads_check(&settings, err); }

const TrainMethod train_medusa = {
    .name = "medusa",
    .summary = "heads on the target's hidden state, each for one place ahead",
    .about =
        "Train Medusa's heads for a target: each predicts the token at one place ahead from the target's hidden state.",
    .notes = "Best trained on the target's own answers (forerun distill-data). The file records how often the token of "
             "each rank is right on the "
             "held-out texts; the tree of --draft medusa:tree=static is built from that.",
    .examples = "  forerun train medusa -m target.gguf --data answers.jsonl -o medusa.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft medusa:file=medusa.gguf\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.drafter},
                                {train_drafter_options, &settings.drafter},
                                {train_head_tokens_options, &settings.drafter},
                                {train_heads_options, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_medusa,
};

/* Medusa heads as FasterDecoding publishes them (medusa/model/medusa_model.py of their repository).
 *
 *     [medusa_head.]<head>.<k>.linear.weight [H][H], .bias [H]      the blocks x + SiLU(A x + a)
 *     [medusa_head.]<head>.<n>.weight [V][H]                        after n blocks: the head's own output
 *
 * In the released code all blocks of a head are the same module, which safetensors store once: a missing block equals
 * the first. A file that holds the whole model has the target's weights too: its embedding is checked, and none of them
 * are copied.
 *
 * vLLM's layout (vllm/model_executor/models/medusa.py) has the same heads under other names:
 *
 *     [medusa_heads.]blocks.<head>.layers.<k>.weight [H][H], .bias [H] (optional)
 *     [medusa_heads.]lm_heads.<head>.weight [V][H]      or the first of them, or lm_head.weight, for all heads
 *     [medusa_heads.]token_map                          the tokens that vLLM computes logits for
 *
 * A token_map is not needed where the matrices have rows for all tokens. Where they have only its rows, the checkpoint
 * is refused. */

/* Writes "<prefix><head>.<k><end>" into `name`; returns whether the checkpoint has that tensor. */
static bool has(const Import *x, char name[96], const char *prefix, int32_t head, int32_t k, const char *end) {
    snprintf(name, 96, "%s%d.%d%s", prefix, head, k, end);
    return published_find(x->from, name) != NULL;
}

static int add_block(Import *x, const char *prefix, int32_t head, int32_t k, fr_error *err) {
    char from[96], name[64];
    int64_t h = x->target->hparams.n_embd;
    int32_t is_at = has(x, from, prefix, head, k, ".linear.weight") ? k : 0;
    has(x, from, prefix, head, is_at, ".linear.weight");
    snprintf(name, sizeof name, MEDUSA_BLOCK ".weight", head, k);
    int status = import_add(x, name, from, h, h, NULL, err);
    has(x, from, prefix, head, is_at, ".linear.bias");
    snprintf(name, sizeof name, MEDUSA_BLOCK ".bias", head, k);
    return status ? status : import_add(x, name, from, h, 0, NULL, err);
}

/* ---- vLLM's layout ------------------------------------------------------------------------------------- */

static const char *vllm_name(char out[96], const char *prefix, const char *format, int32_t head, int32_t k) {
    char end[64];
    snprintf(end, sizeof end, format, head, k);
    snprintf(out, 96, "%s%s", prefix, end);
    return out;
}

static bool vllm_has(const Import *x, const char *prefix, const char *format, int32_t head, int32_t k) {
    char name[96];
    return published_find(x->from, vllm_name(name, prefix, format, head, k)) != NULL;
}

#define VLLM_BLOCK "blocks.%d.layers.%d.weight"
#define VLLM_BIAS "blocks.%d.layers.%d.bias"
#define VLLM_OUTPUT "lm_heads.%d.weight"

static int vllm_add_block(Import *x, const char *prefix, int32_t head, int32_t k, fr_error *err) {
    char from[96], name[64];
    int64_t h = x->target->hparams.n_embd;
    snprintf(name, sizeof name, MEDUSA_BLOCK ".weight", head, k);
    int status = import_add(x, name, vllm_name(from, prefix, VLLM_BLOCK, head, k), h, h, NULL, err);
    snprintf(name, sizeof name, MEDUSA_BLOCK ".bias", head, k);
    if (status) return status;
    return vllm_has(x, prefix, VLLM_BIAS, head, k)
               ? import_add(x, name, vllm_name(from, prefix, VLLM_BIAS, head, k), h, 0, NULL, err)
               : import_add_zeros(x, name, h, err);
}

static int vllm_add_output(Import *x, const char *prefix, int32_t head, fr_error *err) {
    char from[96], name[64];
    const Hparams *h = &x->target->hparams;
    int32_t is_at = vllm_has(x, prefix, VLLM_OUTPUT, head, 0) ? head : 0;
    bool is_numbered = vllm_has(x, prefix, VLLM_OUTPUT, is_at, 0);
    if (is_numbered) vllm_name(from, prefix, VLLM_OUTPUT, is_at, 0);
    else snprintf(from, sizeof from, "%slm_head.weight", prefix);
    const SafeTensor *t = published_find(x->from, from);
    if (t && t->n_dims == 2 && t->dims[0] < h->n_vocab && published_find(x->from, "token_map"))
        return error_set(
            err, FR_ERR_UNSUPPORTED,
            "%s: its LM heads have only the %lld tokens of its token_map, which is not supported; import a "
            "checkpoint whose heads have all tokens",
            published_path(x->from), (long long)t->dims[0]);
    snprintf(name, sizeof name, MEDUSA_OUTPUT ".weight", head);
    return import_add(x, name, from, h->n_embd, h->n_vocab, NULL, err);
}

static int plan_vllm(Import *x, const char *prefix, fr_error *err) {
    int32_t n_heads = 0, n_blocks = 0;
    while (n_blocks < MEDUSA_MAX_BLOCKS && vllm_has(x, prefix, VLLM_BLOCK, 0, n_blocks)) n_blocks++;
    while (n_heads < MEDUSA_MAX_HEADS && vllm_has(x, prefix, VLLM_BLOCK, n_heads, 0)) n_heads++;
    import_set_int(x, MEDUSA_KEY_HEAD_COUNT, n_heads);
    import_set_int(x, MEDUSA_KEY_BLOCK_COUNT, n_blocks);
    import_set_text(x, MEDUSA_KEY_OUTPUT, "own");
    int status = FR_OK;
    for (int32_t i = 0; i < n_heads && !status; i++) {
        for (int32_t k = 0; k < n_blocks && !status; k++) status = vllm_add_block(x, prefix, i, k, err);
        if (!status) status = vllm_add_output(x, prefix, i, err);
    }
    published_pass_over(x->from, "token_map");
    published_pass_over(x->from, "medusa_heads.token_map");
    return status;
}

/* ---- FasterDecoding's layout --------------------------------------------------------------------------- */

int import_plan_medusa(Import *x, fr_error *err) {
    char from[96], name[64];
    const char *prefix = "";
    int32_t n_heads = 0, n_blocks = 0;
    if (vllm_has(x, "", VLLM_BLOCK, 0, 0)) return plan_vllm(x, "", err);
    if (vllm_has(x, "medusa_heads.", VLLM_BLOCK, 0, 0)) return plan_vllm(x, "medusa_heads.", err);
    if (has(x, from, "medusa_head.", 0, 0, ".linear.weight") || has(x, from, "medusa_head.", 0, 0, ".weight"))
        prefix = "medusa_head.";
    while (n_blocks <= MEDUSA_MAX_BLOCKS && !has(x, from, prefix, 0, n_blocks, ".weight")) n_blocks++;
    if (n_blocks > MEDUSA_MAX_BLOCKS)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: holds no Medusa heads: there is no tensor 0.<n>.weight or medusa_head.0.<n>.weight",
                         published_path(x->from));
    while (n_heads < MEDUSA_MAX_HEADS && has(x, from, prefix, n_heads, n_blocks, ".weight")) n_heads++;
    import_set_int(x, MEDUSA_KEY_HEAD_COUNT, n_heads);
    import_set_int(x, MEDUSA_KEY_BLOCK_COUNT, n_blocks);
    import_set_text(x, MEDUSA_KEY_OUTPUT, "own");
    int status = import_check_embedding(x, "model.embed_tokens.weight", err);
    if (*prefix) published_pass_over(x->from, "model.");
    if (*prefix) published_pass_over(x->from, "lm_head.");
    for (int32_t i = 0; i < n_heads && !status; i++) {
        for (int32_t k = 0; k < n_blocks && !status; k++) status = add_block(x, prefix, i, k, err);
        has(x, from, prefix, i, n_blocks, ".weight");
        snprintf(name, sizeof name, MEDUSA_OUTPUT ".weight", i);
        if (!status)
            status = import_add(x, name, from, x->target->hparams.n_embd, x->target->hparams.n_vocab, NULL, err);
    }
    return status;
}
