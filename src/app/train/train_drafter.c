/* train_drafter.c - the options of all drafters of `forerun train`, and the trainer they lead to. */
#include "app/train/train_drafter.h"

#include <string.h>

const Option train_drafter_options[] = {
    {.key = "steps-ahead",
     OPT_INT(DrafterSettings, loss.n_steps, 1, 8),
     .section = "The drafter",
     .default_help = "lyanna, eagle and space 3, medusa and hydra 4, redrafter 5",
     .help = "number of tokens that it learns to predict one after another"},
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

int train_drafter_check(const DrafterSettings *s, fr_error *err) {
    if (s->loss.token_weight > 0 || s->loss.hidden_weight > 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "all weights of the loss are 0, so there is nothing to learn: pass --token-loss-weight=1");
}

int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                       const DrafterSettings *s, const TrainArgs *a, char *signature, size_t n_signature,
                       fr_error *err) {
    size_t n = strlen(signature);
    snprintf(signature + n, n_signature - n,
             " target=%016llx steps-ahead=%d labels=%s token-loss-weight=%.17g hidden-loss-weight=%.17g threads=%d",
             (unsigned long long)drafter_target_fingerprint(target->model), s->loss.n_steps,
             s->loss.hard_labels ? "hard" : "soft", s->loss.token_weight, s->loss.hidden_weight, a->n_threads);
    n = strlen(signature);
    if (s->noise > 0) snprintf(signature + n, n_signature - n, " noise=%.17g", s->noise);
    const DrafterTrainerOptions o = {.class = class,
                                     .net = net,
                                     .max_length = a->data.length,
                                     .type = s->type,
                                     .seed = a->loop.seed,
                                     .noise = s->noise,
                                     .n_threads = a->n_threads};
    return drafter_trainer_open(out, target, &o, err);
}
