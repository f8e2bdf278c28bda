/* eagle.c - `forerun train eagle`: one layer that predicts hidden states from states and tokens. --recipe names a
 * published way to train it:
 *
 *     eagle   one step ahead, so that the layer reads only states of the target, with noise on them (arXiv 2401.15077)
 *     hass    three steps ahead: the layer also learns from its own predictions (arXiv 2408.15766)
 *
 * --steps-ahead and --noise change one part of a recipe. */
#include "train/methods.h"
#include "draft/learned/learned_files.h"
#include "train/import.h"
#include "train/nets.h"

typedef struct EagleSettings {
    UnrollSettings unroll; /* the steps ahead and the noise are those of the recipe unless they are given */
    InfoSettings info;
    int recipe; /* index into recipes */
} EagleSettings;

#define NOT_GIVEN (-1.0) /* noise */

static const struct {
    int32_t n_steps;
    double noise;
} recipes[] = {{1, 0.1}, {3, 0}};

static EagleSettings settings = {.unroll.drafter.noise = NOT_GIVEN};
static UnrollNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "recipe",
     OPT_CHOICE(EagleSettings, recipe, "eagle", "hass"),
     .section = "The drafter",
     .default_value = "hass",
     .help =
         "the published way to train that gives --steps-ahead and --noise their defaults: EAGLE (1 step, noise 0.1) "
         "or HASS (3 steps, no noise)"},
    {.key = "noise",
     OPT_REAL(EagleSettings, unroll.drafter.noise, 0, 100),
     .default_help = "that of --recipe",
     .help = "while training, add uniform noise from -X to X to the target's hidden states that it reads"},
    {.key = NULL},
};

static int open_eagle(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                      fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        net = (UnrollNet){.layer = train_unroll_shape("eagle", &target, &settings.unroll),
                          .info = train_info_shape("eagle", &target, settings.info.rank),
                          .loss = train_drafter_loss(&settings.unroll.drafter, &target, true)};
        net.layer.fuses_each_step = true;
        train_unroll_set_confidence(&net, &settings.unroll);
        status = train_info_check(&net.info, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    snprintf(signature, n_signature, "eagle");
    train_info_signature(&net.info, signature, n_signature);
    return train_unroll_open(out, &target, &eagle_net_class, &net, &settings.unroll, &net.layer, a, signature,
                             n_signature, err);
}

static int check(fr_error *err) {
    DrafterSettings *d = &settings.unroll.drafter;
    if (d->loss.n_steps == 0) d->loss.n_steps = recipes[settings.recipe].n_steps;
    if (d->noise < 0) d->noise = recipes[settings.recipe].noise;
    return train_drafter_check(d, err);
}

const TrainMethod train_eagle = {
    .name = "eagle",
    .summary = "one layer that predicts the target's next hidden states, given each token",
    .about = "Train EAGLE's layer for a target: from the hidden state of a token and the token after it, it predicts "
             "the next hidden state, and "
             "continues from its own prediction.",
    .notes = "--steps-ahead is the number of steps for which it learns to do that (by default 3, as in HASS); with 1 "
             "it only ever sees the target's own "
             "states, as in --recipe eagle. Best trained on the target's own answers (forerun "
             "distill-data). --rank adds Lyanna's "
             "token info to the logits, which costs memory for a table and a row of it for each token of a draft (see "
             "train lyanna).",
    .examples = "  forerun train eagle -m target.gguf --data answers.jsonl -o eagle.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft eagle:file=eagle.gguf\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.unroll.drafter},
                                {train_drafter_options, &settings.unroll.drafter},
                                {train_head_tokens_options, &settings.unroll.drafter},
                                {train_unroll_options, &settings.unroll},
                                {train_info_options, &settings.info},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_eagle,
};

/* EAGLE-1 and EAGLE-2 as SafeAILab publishes them (model/cnets.py, later cnets1.py, of their
 * repository).
 *
 *     embed_tokens.weight                       the target's embedding: checked, not copied
 *     fc.weight [H][2H], fc.bias [H]            the embedding first, as in our files; some files lack the bias
 *     layers.0.self_attn.{q,k,v,o}_proj.weight  q and k rotate halves; made into pairs where the target rotates pairs
 *     layers.0.post_attention_layernorm.weight  the norm before the MLP; there is none before attention
 *     layers.0.mlp.{gate,up,down}_proj.weight
 *
 * EAGLE-3, which reads hidden states of three layers and has a vocabulary of its own, is another method
 * (eagle3.c). It is recognised by its tensors and refused. */

static int refuse_eagle3(const Import *x, fr_error *err) {
    const SafeTensor *fc = published_find(x->from, "fc.weight");
    if (!published_find(x->from, "d2t") && !published_find(x->from, "midlayer.self_attn.q_proj.weight") &&
        !(fc && fc->dims[1] == 3 * (int64_t)x->target->hparams.n_embd))
        return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: is an EAGLE-3 drafter; import it with 'forerun import-drafter eagle3'",
                     published_path(x->from));
}

int import_plan_eagle(Import *x, fr_error *err) {
    int64_t embd = x->target->hparams.n_embd;
    int status = refuse_eagle3(x, err);
    if (!status) status = import_check_embedding(x, "embed_tokens.weight", err);
    if (!status) status = import_add(x, EAGLE LAYER_FC ".weight", "fc.weight", 2 * embd, embd, NULL, err);
    if (!status) status = import_add_layer(x, EAGLE, "layers.0.", false, err);
    if (status) return status;
    bool has_bias = published_find(x->from, "fc.bias") != NULL;
    return has_bias ? import_add(x, EAGLE LAYER_FC ".bias", "fc.bias", embd, 0, NULL, err)
                    : import_add_zeros(x, EAGLE LAYER_FC ".bias", embd, err);
}
