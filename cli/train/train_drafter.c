/* train_drafter.c - the options of all drafters of `forerun train`, and the trainer they lead to. */
#include "cli/train/train_drafter.h"

#include "train/loop/init_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_step_weights(void *to, const char *text, fr_error *err) {
    DrafterSettings *s = to;
    const char *at = text;
    for (s->n_step_weights = 0; s->n_step_weights < TRAIN_MAX_STEPS; at++) {
        char *end;
        double w = strtod(at, &end);
        if (end == at || !(w >= 0 && w <= 1e6)) break;
        s->step_weights[s->n_step_weights++] = w;
        at = end;
        if (!*at) return FR_OK;
        if (*at != ',') break;
    }
    return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d numbers from 0 to 1e6 joined by commas", TRAIN_MAX_STEPS);
}

const Option train_drafter_options[] = {
    {.key = "steps-ahead",
     OPT_INT(DrafterSettings, loss.n_steps, 1, 8),
     .section = "The drafter",
     .default_help = "lyanna, eagle and space 3, medusa and hydra 4, redrafter 5",
     .help = "number of tokens that it learns to predict one after another"},
    {.key = "step-weights",
     OPT_CUSTOM(parse_step_weights),
     .metavar = "W1,W2,...",
     .default_help = "all 1",
     .help = "weight of each step ahead in the loss"},
    {.key = "labels",
     OPT_CHOICE(DrafterSettings, loss.hard_labels, "soft", "hard"),
     .default_value = "soft",
     .help = "learn the target's distribution of each token (soft), or the tokens of the data (hard)"},
    {.key = "token-loss-weight",
     OPT_REAL(DrafterSettings, loss.token_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the loss of the tokens"},
    {.key = "type",
     OPT_CHOICE(DrafterSettings, type, "f16", "f32", "q8_0"),
     .values = (const int32_t[]){TYPE_F16, TYPE_F32, TYPE_Q8_0},
     .default_value = "f16",
     .help = "type of the matrices in the file"},
    {.key = NULL},
};

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
    if (s->loss.token_weight > 0 || s->loss.hidden_weight > 0) return check_step_weights(s, err);
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

static void write_signature(const DrafterSettings *s, uint64_t target, int n_threads, char *signature,
                            size_t n_signature) {
    append(signature, n_signature,
           " target=%016llx steps-ahead=%d labels=%s token-loss-weight=%.17g hidden-loss-weight=%.17g threads=%d",
           (unsigned long long)target, s->loss.n_steps, s->loss.hard_labels ? "hard" : "soft", s->loss.token_weight,
           s->loss.hidden_weight, n_threads);
    if (s->noise > 0) append(signature, n_signature, " noise=%.17g", s->noise);
    for (int32_t i = 0; i < s->n_step_weights; i++)
        append(signature, n_signature, "%s%.17g", i ? "," : " step-weights=", s->step_weights[i]);
}

/* The parameters of --init, and their fingerprint in the signature. */
static int read_init(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                     char *signature, size_t n_signature, fr_error *err) {
    uint64_t fingerprint;
    int status = init_file_read(t, class, net, target, path, &fingerprint, err);
    if (!status) append(signature, n_signature, " init=%016llx", (unsigned long long)fingerprint);
    return status;
}

int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                       const DrafterSettings *s, const TrainArgs *a, char *signature, size_t n_signature,
                       fr_error *err) {
    const Model *model = target->model; /* the trainer's, from now on */
    write_signature(s, drafter_target_fingerprint(model), a->n_threads, signature, n_signature);
    const DrafterTrainerOptions o = {.class = class,
                                     .net = net,
                                     .max_length = a->data.length,
                                     .type = s->type,
                                     .seed = a->loop.seed,
                                     .noise = s->noise,
                                     .n_threads = a->n_threads};
    int status = drafter_trainer_open(out, target, &o, err);
    if (status || !a->init) return status;
    status = read_init(*out, class, net, model, a->init, signature, n_signature, err);
    if (status) {
        (*out)->class->close(*out);
        *out = NULL;
    }
    return status;
}
