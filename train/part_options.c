/* part_options.c - the options of parts that several drafters of `forerun train` have: the layers of the target that
 * they read, heads, token info, and a layer that continues from its own predictions. */
#include "train/methods.h"

#include "draft/learned/logit_corrections.h"
#include "train/drafter_trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the layers of the target that eagle3 and dflash read ------------------------------------------------------- */

static int parse_layers(void *to, const char *text, fr_error *err) {
    StreamSettings *s = to;
    const char *at = text;
    for (s->n = 0; s->n < TRAIN_MAX_STREAMS; at++) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 0 || n > 1 << 16) break;
        s->layers[s->n++] = (int32_t)n;
        at = end;
        if (!*at) return FR_OK;
        if (*at != ',') break;
    }
    return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d numbers of layers joined by commas", TRAIN_MAX_STREAMS);
}

const Option train_stream_options[] = {
    {.key = "layers",
     OPT_CUSTOM(parse_layers),
     .section = "The drafter",
     .metavar = "N1,N2,...",
     .default_help = "those of --init; else 2, n / 2 and n - 3 of n layers, and n / 4, n / 2 and n of fewer than 12",
     .help = "read the target's hidden states after these numbers of layers"},
    {.key = NULL},
};

/* Adds a layer that is read, unless it is read already. */
static void add_stream(StreamList *list, int32_t after) {
    for (int32_t i = 0; i < list->n; i++)
        if (list->layers[i] == after) return;
    list->layers[list->n++] = after;
}

int train_streams_choose(const StreamSettings *s, const Model *target, StreamList *out, fr_error *err) {
    int32_t n = target->hparams.n_layer;
    const int32_t usual[] = {n < 12 ? n / 4 : 2, n / 2, n < 12 ? n : n - 3};
    for (int32_t i = 0; i < 3 && s->n == 0; i++) add_stream(out, usual[i]);
    for (int32_t i = 0; i < s->n; i++) {
        if (s->layers[i] > n)
            return error_set(err, FR_ERR_ARGUMENT, "--layers: the target has %d layers, not %d", n, s->layers[i]);
        add_stream(out, s->layers[i]);
    }
    return FR_OK;
}

bool train_streams_fit(const StreamSettings *s, const StreamList *list) {
    bool is_same = s->n == 0 || s->n == list->n;
    for (int32_t i = 0; i < s->n && is_same; i++) is_same = s->layers[i] == list->layers[i];
    return is_same;
}

int train_streams_keep(FrozenTarget *target, const StreamList *list, fr_error *err) {
    KeptLayers kept = {.n = list->n};
    memcpy(kept.after, list->layers, sizeof list->layers);
    return frozen_keep_layers(target, &kept, err);
}

/* ---- heads: medusa and hydra ------------------------------------------------------------------------------------ */

enum { MOST_BLOCKS = 8 };

const Option train_heads_options[] = {
    {.key = "blocks",
     OPT_INT(HeadsSettings, n_blocks, 1, MOST_BLOCKS),
     .section = "The drafter",
     .default_help = "those of --init; else 1",
     .help = "residual blocks of each head"},
    {.key = "lm-head",
     OPT_CHOICE(HeadsSettings, output, "target", "own"),
     .default_help = "that of --init; else own",
     .help = "matrix for the logits of each head: its own, or the target's"},
    {.key = NULL},
};

int train_heads_check(HeadsSettings *s, fr_error *err) {
    if (s->drafter.loss.n_steps == 0) s->drafter.loss.n_steps = s->drafter.n_step_weights;
    return train_drafter_check(&s->drafter, err);
}

static int read_heads(const char *method, const char *init, const Model *target, HeadsShape *out, fr_error *err) {
    static const char *const outputs[] = {"target", "own", NULL};
    DrafterFile f;
    int output = 0;
    int status = drafter_file_open(&f, init, method, target, err);
    if (!status)
        status = drafter_file_int(&f, learned_name(method, "head_count").text, 1, TRAIN_MAX_STEPS_AHEAD, &out->n_heads,
                                  err);
    if (!status)
        status = drafter_file_int(&f, learned_name(method, "block_count").text, 1, MOST_BLOCKS, &out->n_blocks, err);
    if (!status) status = drafter_file_choice(&f, learned_name(method, "output").text, outputs, &output, err);
    out->has_own_output = output == 1;
    drafter_file_close(&f);
    return status;
}

int train_heads_choose(HeadsSettings *s, const char *method, const char *init, const Model *target, HeadsShape *out,
                       fr_error *err) {
    enum { USUAL_HEADS = 4 };
    int32_t *n_heads = &s->drafter.loss.n_steps;
    *out = (HeadsShape){.n_heads = *n_heads ? *n_heads : USUAL_HEADS,
                        .n_blocks = s->n_blocks ? s->n_blocks : 1,
                        .has_own_output = s->output != 0};
    int status = init ? read_heads(method, init, target, out, err) : FR_OK;
    const char *other = *n_heads && *n_heads != out->n_heads                 ? "steps-ahead"
                        : s->n_blocks && s->n_blocks != out->n_blocks        ? "blocks"
                        : s->output >= 0 && s->output != out->has_own_output ? "lm-head"
                                                                             : NULL;
    *n_heads = out->n_heads;
    if (status || !other) return status;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be continued with these options: its --%s is another; leave that option out", init,
                     other);
}

/* ---- token info, which several methods can add to their logits -------------------------------------------------- */

const Option train_info_options[] = {
    {.key = "rank",
     OPT_INT(InfoSettings, rank, 0, TRAIN_MAX_RANK),
     .section = "The drafter",
     .default_value = "0",
     .help =
         "rank of Lyanna's token info, which predicts the next token from nothing but the last one and is added to the "
         "logits of each step; 0: none"},
    {.key = NULL},
};

InfoShape train_info_shape(const char *method, const FrozenTarget *target, int32_t rank) {
    const Hparams *h = &target->model->hparams;
    return (InfoShape){.method = method, .C = h->n_embd, .V = h->n_vocab, .rank = rank, .rms_eps = h->rms_eps};
}

int train_info_check(const InfoShape *s, fr_error *err) {
    double bytes = (double)s->V * s->V * sizeof(uint16_t);
    if (s->rank == 0 || bytes <= (double)TOKEN_INFO_MAX_BYTES) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "--rank %d: the drafter's table of token info would take %.1f GB for the target's %d tokens; "
                     "leave out --rank, or train lyanna, which can restrict it to hot tokens",
                     s->rank, bytes / 1e9, s->V);
}

void train_info_signature(const InfoShape *s, char *signature, size_t n_signature) {
    size_t n = strlen(signature);
    if (s->rank) snprintf(signature + n, n_signature - n, " rank=%d", s->rank);
}

/* ---- one layer: eagle and lyanna -------------------------------------------------------------------------------- */

static const char *const regressions[] = {[REGRESSION_MSE] = "mse", [REGRESSION_SMOOTH_L1] = "smooth-l1"};

const Option train_unroll_options[] = {
    {.key = "ff",
     OPT_INT(UnrollSettings, n_ff, 1, 1 << 18),
     .section = "The drafter",
     .default_help = "the target's",
     .help = "width of the layer's feed-forward"},
    {.key = "hidden-loss-weight",
     OPT_REAL(UnrollSettings, drafter.loss.hidden_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the loss of the hidden states against the target's"},
    {.key = "hidden-steps",
     OPT_INT(UnrollSettings, drafter.loss.n_hidden_steps, 1, 8),
     .default_help = "all",
     .help = "only the first N steps ahead learn the target's hidden states; the later ones learn the tokens"},
    {.key = "regression",
     OPT_CHOICE(UnrollSettings, drafter.loss.regression, "smooth-l1", "mse"),
     .values = (const int32_t[]){REGRESSION_SMOOTH_L1, REGRESSION_MSE},
     .default_value = "smooth-l1",
     .help = "loss between hidden states"},
    {.key = "anchors",
     OPT_INT(UnrollSettings, n_anchors, 1, 1 << 20),
     .default_help = "all",
     .help = "places of a sequence, drawn at random each time, from which the steps after the first are learned; fewer "
             "of them make a training step shorter"},
    {.key = "confidence",
     OPT_FLAG(UnrollSettings, has_confidence),
     .help = "also train a head that predicts from each state whether the best token will be accepted; drafts are then "
             "shorter where it is unsure"},
    {.key = NULL},
};

UnrollShape train_unroll_shape(const char *method, const FrozenTarget *target, const UnrollSettings *s) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    return (UnrollShape){.method = method,
                         .C = h->n_embd,
                         .n_ff = s->n_ff ? s->n_ff : h->n_ff,
                         .n_head = h->n_head,
                         .n_head_kv = h->n_head_kv,
                         .head_dim = h->head_dim,
                         .rms_eps = h->rms_eps,
                         .rope = &m->ropes[0],
                         .n_steps = s->drafter.loss.n_steps,
                         .n_anchors = s->n_anchors,
                         .fuses_token = true,
                         .state_gradient = 1,
                         .fc_std = start_token_std(target->embd, h->n_vocab, h->n_embd),
                         .qk_start_anew = m->layers[h->n_layer - 1].q_norm != NULL};
}

void train_unroll_set_confidence(UnrollNet *net, const UnrollSettings *s) {
    net->confidence = (ConfidenceShape){.method = net->layer.method, .C = net->layer.C, .exists = s->has_confidence};
    net->loss.has_margins = s->has_confidence;
}

int train_unroll_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                      const UnrollSettings *s, const UnrollShape *shape, const TrainArgs *a, char *signature,
                      size_t n_signature, fr_error *err) {
    size_t n = strlen(signature);
    if (s->n_anchors && shape->n_steps == 1) {
        frozen_close(target);
        return error_set(err, FR_ERR_ARGUMENT,
                         "--anchors has no effect with one step ahead: pass --steps-ahead=N or leave it out");
    }
    snprintf(signature + n, n_signature - n, " ff=%d regression=%s%s", shape->n_ff,
             regressions[s->drafter.loss.regression], s->has_confidence ? " confidence=on" : "");
    n = strlen(signature);
    if (s->n_anchors) snprintf(signature + n, n_signature - n, " anchors=%d", s->n_anchors);
    return train_drafter_open(out, target, class, net, &s->drafter, a, signature, n_signature, err);
}
