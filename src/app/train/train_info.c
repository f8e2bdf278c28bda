#include "app/train/train_info.h"

#include "spec/drafters/learned/token_info.h"

#include <stdio.h>
#include <string.h>

enum { KEY_RANK = 1500 };

static const struct argp_option option_table[] = {
    {"rank", KEY_RANK, "N", 0, "rank of Lyanna's token info, what a token by itself says of the next one, added to the logits of each "
     "step (default 0: none)", 6},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    if (key != KEY_RANK) return ARGP_ERR_UNKNOWN;
    *(int32_t *)state->input = (int32_t)train_parse_int(state, "--rank", arg, 0, TRAIN_MAX_RANK);
    return 0;
}

const struct argp train_info_argp = {.options = option_table, .parser = parse};

InfoShape train_info_shape(const char *method, const FrozenTarget *target, int32_t rank) {
    const Hparams *h = &target->model->hparams;
    return (InfoShape){.method = method, .C = h->n_embd, .V = h->n_vocab, .rank = rank, .rms_eps = h->rms_eps};
}

int train_info_check(const InfoShape *s, fr_error *err) {
    double bytes = (double)s->V * s->V * sizeof(uint16_t);
    if (s->rank == 0 || bytes <= (double)TOKEN_INFO_MAX_BYTES) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "--rank %d: the drafter's table of token info would take %.1f GB for the target's %d tokens; "
                     "leave --rank out, or train lyanna, which can do with hot tokens alone", s->rank, bytes / 1e9, s->V);
}

void train_info_signature(const InfoShape *s, char *signature, size_t n_signature) {
    size_t n = strlen(signature);
    if (s->rank) snprintf(signature + n, n_signature - n, " rank=%d", s->rank);
}
