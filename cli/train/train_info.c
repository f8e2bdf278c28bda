/* train_info.c - token info for the methods that can add it to their logits: --rank, and the shape that follows the
 * target. */
#include "cli/train/train_info.h"

#include "draft/learned/token_info.h"

#include <stdio.h>
#include <string.h>

const Option train_info_options[] = {
    {.key = "rank",
     OPT_INT(InfoSettings, rank, 0, TRAIN_MAX_RANK),
     .section = "The drafter",
     .default_value = "0",
     .help = "rank of Lyanna's token info, which predicts the next token from the last one alone and is added to the "
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
