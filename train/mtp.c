/* mtp.c - `forerun train mtp`: layers for multi-token prediction, for a target whose makers published none, or from
 * those that they published.
 *
 * A layer has the form of the target's own layers, because it is read as one of them. So a target is supported if
 * forerun reads such layers for its architecture, and if its layers with attention consist of what unroll_layer.c and
 * unroll_heads.c compute.
 *
 * The file is a companion of the target, as others publish it: mtp-NAME.gguf. It has copies of the embedding and of the
 * LM head, because every file of a model has them. */
#include "draft/learned/learned_files.h"
#include "train/methods.h"

#include <stdio.h>
#include <string.h>

typedef struct MtpSettings {
    DrafterSettings drafter;
    int32_t n_layers; /* 0: not given */
} MtpSettings;

static MtpSettings settings;
static MtpNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "layers",
     OPT_INT(MtpSettings, n_layers, 1, MTP_MAX_LAYERS),
     .section = "The drafter",
     .default_help = "those of --init; else 1",
     .help = "number of layers: layer k predicts k tokens ahead, and the last one continues from its own output"},
    {.key = NULL},
};

/* ---- what targets are supported ---- */

static const LayerSpec *last_attention(const Model *m) {
    int32_t i = m->hparams.n_layer - 1;
    while (i > 0 && m->layers[i].mixer != MIXER_ATTENTION) i--;
    return &m->layers[i];
}

/* Returns what a layer has that the network does not compute; NULL: nothing. */
static const char *find_unsupported(const LayerSpec *l) {
    if (l->mixer != MIXER_ATTENTION) return "attention of another kind";
    if (l->ffn != FFN_DENSE) return "experts";
    if (l->activation != ACTIVATION_SILU || l->gate_bias || l->up_bias || l->down_bias)
        return "a feed-forward part of another kind";
    if (l->post_attn_norm || l->post_ffn_norm) return "norms after its parts";
    if (l->sinks || l->soft_cap != 0 || l->attn_scale != 0 || l->temperature.scale != 0)
        return "attention scores of another kind";
    if (l->o_bias || (l->q_bias != NULL) != (l->k_bias != NULL) || (l->q_bias != NULL) != (l->v_bias != NULL) ||
        (l->q_bias && l->gates_output))
        return "biases of another kind";
    if ((l->q_norm != NULL) != (l->k_norm != NULL)) return "norms of only some heads";
    if ((l->residual_scale != 0 && l->residual_scale != 1) || l->i_rope != 0) return "a form of its own";
    return NULL;
}

/* Returns the first key that lists a number for each layer; NULL: there is none. The list would have to be longer. */
static const char *find_list(const Model *m, char key[96]) {
    static const char *const lists[] = {"attention.head_count", "attention.head_count_kv", "feed_forward_length",
                                        "attention.sliding_window_pattern", "attention.recurrent_layers"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        snprintf(key, 96, "%s.%s", arch_name(m->hparams.arch), lists[i]);
        int64_t at = gguf_find_key(m->gguf, key);
        if (at >= 0 && gguf_kv_type(m->gguf, at) == GGUF_ARRAY) return key;
    }
    return NULL;
}

static int check_target(const Model *m, fr_error *err) {
    char key[96];
    const Hparams *h = &m->hparams;
    if (h->latent.rank)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: a drafter with a layer of its own cannot be trained for a model with latent attention "
                         "(MLA), whose cache has no keys and values of heads; train medusa, hydra or redrafter",
                         gguf_path(m->gguf));
    if (!h->may_have_nextn)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: forerun reads no layers for multi-token prediction for the architecture %s; train "
                         "another drafter, such as eagle",
                         gguf_path(m->gguf), arch_name(h->arch));
    const char *what = find_unsupported(last_attention(m));
    if (what)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: a layer of its own form has %s, which forerun train mtp does not support; train another "
                         "drafter, such as eagle",
                         gguf_path(m->gguf), what);
    if (!find_list(m, key)) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: lists a number for each layer (%s), and forerun train mtp cannot say which one a further "
                     "layer has; train another drafter, such as eagle",
                     gguf_path(m->gguf), key);
}

/* ---- the shape ---- */

/* The norm before the feed-forward part has one of two names. */
static const char *name_of_ffn_norm(const Model *m) {
    static const char other[] = "post_attention_norm.weight";
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", m->hparams.n_layer - 1, other);
    return gguf_find_tensor(m->gguf, name) ? other : LAYER_FFN_NORM;
}

static void set_shape(const FrozenTarget *target) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    const LayerSpec *l = last_attention(m);
    net = (MtpNet){.layer = {.method = "mtp",
                             .C = h->n_embd,
                             .n_ff = h->n_ff,
                             .n_head = h->n_head,
                             .n_head_kv = h->n_head_kv,
                             .head_dim = h->head_dim,
                             .rms_eps = h->rms_eps,
                             .rope = &m->ropes[0],
                             .has_attn_norm = true,
                             .has_head_norms = l->q_norm != NULL,
                             .has_biases = l->q_bias != NULL,
                             .gates_output = l->gates_output},
                   .V = h->n_vocab,
                   .n_layers = settings.n_layers ? settings.n_layers : 1,
                   .loss = train_drafter_loss(&settings.drafter, target, true),
                   .norm_start = start_norm(m),
                   .target = m,
                   .ffn_norm = name_of_ffn_norm(m)};
}

/* Takes the number of layers from the file that the training goes on from, and checks that they fit the target. */
static int plan_init(const Model *target, const char *path, fr_error *err) {
    Gguf *g = NULL;
    char name[96];
    int status = gguf_open(&g, path, err);
    for (int32_t i = 0, n = 1; i < n && !status; i++) {
        Nextn layer;
        status = nextn_open(&layer, target, g, i, err);
        n = net.n_layers = layer.model.hparams.n_nextn;
        nextn_close(&layer);
        if (n > MTP_MAX_LAYERS && !status)
            status = error_set(err, FR_ERR_UNSUPPORTED, "%s: has %d layers, of which forerun train mtp supports %d",
                               path, n, MTP_MAX_LAYERS);
    }
    snprintf(name, sizeof name, "blk.%d." NEXTN_OUTPUT_NORM, target->hparams.n_layer);
    net.takes_norm = !status && !gguf_find_tensor(g, name);
    gguf_close(g);
    if (status || !settings.n_layers || settings.n_layers == net.n_layers) return status;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be continued with these options: its --layers is another; leave that option out",
                     path);
}

static int plan(const TrainArgs *a, const FrozenTarget *target, fr_error *err) {
    int status = check_target(target->model, err);
    if (status) return status;
    set_shape(target);
    if (a->init) status = plan_init(target->model, a->init, err);
    if (net.loss.n_steps == 0) net.loss.n_steps = net.n_layers > 3 ? net.n_layers : 3;
    if (!status && net.loss.n_steps < net.n_layers)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--steps-ahead=%d: each of the %d layers predicts another step; pass --steps-ahead=%d or more",
                         net.loss.n_steps, net.n_layers, net.n_layers);
    return status;
}

static int open_mtp(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                    fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    status = plan(a, &target, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    DrafterSettings drafter = settings.drafter;
    drafter.loss = net.loss;
    snprintf(signature, n_signature, "mtp layers=%d", net.n_layers);
    return train_drafter_open(out, &target, &mtp_net_class, &net, &drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) {
    DrafterSettings *d = &settings.drafter;
    if (d->loss.n_steps == 0) d->loss.n_steps = d->n_step_weights; /* else the number follows from that of the layers */
    return train_drafter_check(d, err);
}

const TrainMethod train_mtp = {
    .name = "mtp",
    .summary = "layers for multi-token prediction, as a companion of the target's file",
    .about =
        "Train layers for multi-token prediction for a target, in the form of DeepSeek-V3: each has the form of the "
        "target's own layers, and reads the hidden state of a token and the token after it.",
    .notes = "For targets of the architectures llama, qwen2, qwen3 and qwen35 whose layers have no experts. "
             "--steps-ahead is the number of tokens that are learned: beyond the last layer, that layer learns to read "
             "its own output. --init takes a file of this method, or one with published layers, such as the target's "
             "own. The file is laid out as a published companion (mtp-NAME.gguf).",
    .examples = "  forerun train mtp -m target.gguf --data answers.jsonl -o mtp-target.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft mtp:file=mtp-target.gguf\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.drafter},
                                {train_drafter_options, &settings.drafter},
                                {train_head_tokens_options, &settings.drafter},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_mtp,
};
