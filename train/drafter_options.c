/* drafter_options.c - the options that all drafters of `forerun train` share: the steps that they predict, their loss,
 * and the type of their file; and the trainer that they are trained with. */
#include "train/methods.h"

#include "draft/drafter_file.h"
#include "train/drafter_trainer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_step_weights(void *to, const char *text, fr_error *err) {
    DrafterSettings *s = to;
    const char *at = text;
    for (s->n_step_weights = 0; s->n_step_weights < TRAIN_MAX_STEPS_AHEAD; at++) {
        char *end;
        double w = strtod(at, &end);
        if (end == at || !(w >= 0 && w <= 1e6)) break;
        s->step_weights[s->n_step_weights++] = w;
        at = end;
        if (!*at) return FR_OK;
        if (*at != ',') break;
    }
    return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d numbers from 0 to 1e6 joined by commas",
                     TRAIN_MAX_STEPS_AHEAD);
}

const Option train_steps_options[] = {
    {.key = "steps-ahead",
     OPT_INT(DrafterSettings, loss.n_steps, 1, TRAIN_MAX_STEPS_AHEAD),
     .section = "The drafter",
     .default_help = "lyanna, space, eagle3 and mtp 3, medusa and hydra 4, redrafter 5, eagle by its --recipe",
     .help = "number of tokens that it learns to predict one after another"},
    {.key = "step-weights",
     OPT_CUSTOM(parse_step_weights),
     .metavar = "W1,W2,...",
     .default_help = "all 1",
     .help = "weight of each step ahead in the loss"},
    {.key = NULL},
};

static int parse_state_memory(void *to, const char *text, fr_error *err) {
    DrafterSettings *s = to;
    s->state_memory = 0;
    return strcmp(text, "0") == 0 ? (int)FR_OK : corpus_parse_size(text, &s->state_memory, err);
}

const Option train_drafter_options[] = {
    {.key = "labels",
     OPT_CHOICE(DrafterSettings, loss.hard_labels, "soft", "hard"),
     .section = "The drafter",
     .default_value = "soft",
     .help = "learn the target's distribution of each token (soft), or the tokens of the data (hard)"},
    {.key = "token-loss-weight",
     OPT_REAL(DrafterSettings, loss.token_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the loss of the tokens"},
    {.key = "tv-loss-weight",
     OPT_REAL(DrafterSettings, loss.tv_weight, 0, 1e6),
     .default_value = "0",
     .help = "weight of a further loss: the total variation distance between the distributions of target and drafter, "
             "which is the probability that a token drawn by the drafter is rejected"},
    {.key = "type",
     OPT_CHOICE(DrafterSettings, type, "f16", "f32", "q8_0"),
     .values = (const int32_t[]){TYPE_F16, TYPE_F32, TYPE_Q8_0},
     .default_value = "f16",
     .help = "type of the matrices in the file"},
    {.key = "state-memory",
     OPT_CUSTOM(parse_state_memory),
     .metavar = "SIZE",
     .section = "The run",
     .default_value = "1G",
     .help = "keep up to SIZE of the target's hidden states, so that later epochs and validations need not run the "
             "target again; 0: none; it does not change the result"},
    {.key = NULL},
};

const Option train_head_tokens_options[] = {
    {.key = "head-tokens",
     OPT_INT(DrafterSettings, n_head_tokens, 1, 1 << 24),
     .section = "The drafter",
     .default_help = "those of --init; else all",
     .help =
         "compute logits only for the N most frequent tokens of the data when drafting (FR-Spec), which makes a large "
         "vocabulary cheap; the others are never drafted"},
    {.key = NULL},
};

/* Chooses the tokens of --head-tokens. */
static int choose_head_tokens(const DrafterSettings *s, const TrainArgs *a, int32_t n_vocab, DrafterTrainerOptions *o,
                              fr_error *err) {
    o->n_head_tokens = s->n_head_tokens;
    if (s->n_head_tokens > n_vocab)
        return error_set(err, FR_ERR_ARGUMENT, "--head-tokens=%d is more than the %d tokens of the target",
                         s->n_head_tokens, n_vocab);
    if (s->n_head_tokens == 0 || s->n_head_tokens == n_vocab) return FR_OK;
    return hot_tokens_choose(&a->dataset->train, n_vocab, s->n_head_tokens, &o->head_tokens, err);
}

static int check_step_weights(DrafterSettings *s, fr_error *err) {
    double sum = 0;
    if (s->n_step_weights == 0) return FR_OK;
    if (s->n_step_weights != s->loss.n_steps)
        return error_set(err, FR_ERR_ARGUMENT, "--step-weights lists %d weights for %d steps ahead: pass one for each",
                         s->n_step_weights, s->loss.n_steps);
    for (int32_t i = 0; i < s->n_step_weights; i++) sum += s->step_weights[i];
    if (sum <= 0) return error_set(err, FR_ERR_ARGUMENT, "--step-weights: one of them must be more than 0");
    s->loss.step_weights = s->step_weights;
    return FR_OK;
}

int train_drafter_check(DrafterSettings *s, fr_error *err) {
    if (s->loss.token_weight > 0 || s->loss.tv_weight > 0 || s->loss.hidden_weight > 0)
        return check_step_weights(s, err);
    return error_set(err, FR_ERR_ARGUMENT,
                     "all weights of the loss are 0, so there is nothing to learn: pass --token-loss-weight=1");
}

/* Appends to a run signature. Words that do not fit are left out, but it has room for all options. */
__attribute__((format(printf, 3, 4))) static void append(char *signature, size_t n_signature, const char *format, ...) {
    size_t n = strlen(signature);
    va_list args;
    va_start(args, format);
    vsnprintf(signature + n, n_signature - n, format, args);
    va_end(args);
}

static void write_signature(const DrafterSettings *s, uint64_t target, char *signature, size_t n_signature) {
    append(signature, n_signature,
           " target=%016llx steps-ahead=%d labels=%s token-loss-weight=%.17g hidden-loss-weight=%.17g",
           (unsigned long long)target, s->loss.n_steps, s->loss.hard_labels ? "hard" : "soft", s->loss.token_weight,
           s->loss.hidden_weight);
    if (s->loss.tv_weight > 0) append(signature, n_signature, " tv-loss-weight=%.17g", s->loss.tv_weight);
    if (s->loss.n_hidden_steps) append(signature, n_signature, " hidden-steps=%d", s->loss.n_hidden_steps);
    if (s->n_head_tokens) append(signature, n_signature, " head-tokens=%d", s->n_head_tokens);
    if (s->noise > 0) append(signature, n_signature, " noise=%.17g", s->noise);
    for (int32_t i = 0; i < s->n_step_weights; i++)
        append(signature, n_signature, "%s%.17g", i ? "," : " step-weights=", s->step_weights[i]);
}

HeadLossOptions train_drafter_loss(const DrafterSettings *s, const FrozenTarget *target, bool uses_targets_head) {
    HeadLossOptions loss = s->loss;
    loss.target_cap = target->model->hparams.logit_cap;
    loss.logit_cap = uses_targets_head ? loss.target_cap : 0;
    return loss;
}

/* Reads the parameters of --init, and their fingerprint in the signature. */
static int read_init(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                     char *signature, size_t n_signature, fr_error *err) {
    uint64_t fingerprint;
    int status = init_file_read(t, class, net, target, path, &fingerprint, err);
    if (!status) append(signature, n_signature, " init=%016llx", (unsigned long long)fingerprint);
    return status;
}

bool train_has_epochs(const TrainArgs *a) {
    const LoopOptions *o = &a->loop;
    return a->dataset && o->schedule.n_steps > a->dataset->train.n / ((int64_t)o->n_sequences * o->n_accumulate);
}

int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                       const DrafterSettings *s, const TrainArgs *a, char *signature, size_t n_signature,
                       fr_error *err) {
    const Model *model = target->model; /* the trainer's, from now on */
    write_signature(s, drafter_target_fingerprint(model), signature, n_signature);
    DrafterTrainerOptions o = {.class = class,
                               .net = net,
                               .max_length = a->data.length,
                               .type = s->type,
                               .seed = a->loop.seed,
                               .state_memory = (size_t)s->state_memory,
                               .has_epochs = train_has_epochs(a),
                               .noise = s->noise,
                               .n_threads = a->n_threads};
    int status = choose_head_tokens(s, a, model->hparams.n_vocab, &o, err);
    if (status) {
        frozen_close(target);
        return status;
    }
    status = drafter_trainer_open(out, target, &o, err);
    if (status || !a->init) return status;
    status = read_init(*out, class, net, model, a->init, signature, n_signature, err);
    if (status) {
        (*out)->class->close(*out);
        *out = NULL;
    }
    return status;
}
