/* import_redrafter.c - Recurrent Drafter as Apple's code writes it (recurrent_drafting/modeling_drafter.py).
 *
 *     rnn_w.weight [H][H], rnn_u.weight [H][H], rnn_u.bias [H]     s_t = SiLU(W E(x_t) + U s_{t-1} + b), s_0 = 0
 *     lm_head.<k>.linear.weight [2H][2H], .bias [2H]               the blocks
 *     lm_head.<n>.weight [V][2H]                                   the output
 *
 * Their blocks read [h ; s], ours [s ; h]. With P the exchange of the halves, f(P x) = P f'(x) holds for the blocks P A
 * P and P a and the output O P. Two kinds of checkpoints are refused: those with a projection before the blocks
 * (input_proj), which our drafter does not have, and those without a recurrence (rnn = false), which have no rnn_u. */
#include "train/import/import.h"

#include "draft/learned/redrafter.h"

#include <stdio.h>

static int add_block(Import *x, int32_t k, int64_t n, fr_error *err) {
    char name[64], from[64];
    ImportTensor *t;
    snprintf(name, sizeof name, REDRAFTER_BLOCK ".weight", k);
    snprintf(from, sizeof from, "lm_head.%d.linear.weight", k);
    int status = import_add(x, name, from, n, n, &t, err);
    if (status) return status;
    t->rows = IMPORT_ROWS_SWAPPED;
    t->swaps_columns = true;
    snprintf(name, sizeof name, REDRAFTER_BLOCK ".bias", k);
    snprintf(from, sizeof from, "lm_head.%d.linear.bias", k);
    status = import_add(x, name, from, n, 0, &t, err);
    if (!status) t->swaps_columns = true;
    return status;
}

int import_plan_redrafter(Import *x, fr_error *err) {
    char from[64];
    int64_t h = x->target->hparams.n_embd;
    int32_t n_blocks = 0;
    for (; n_blocks < REDRAFTER_MAX_BLOCKS; n_blocks++) {
        snprintf(from, sizeof from, "lm_head.%d.linear.weight", n_blocks);
        if (!published_find(x->from, from)) break;
    }
    import_set_int(x, REDRAFTER_KEY_BLOCK_COUNT, n_blocks);
    import_set_text(x, REDRAFTER_KEY_START, "zero");
    int status = import_add(x, REDRAFTER_W ".weight", "rnn_w.weight", h, h, NULL, err);
    if (!status) status = import_add(x, REDRAFTER_U ".weight", "rnn_u.weight", h, h, NULL, err);
    if (!status) status = import_add(x, REDRAFTER_U ".bias", "rnn_u.bias", h, 0, NULL, err);
    for (int32_t k = 0; k < n_blocks && !status; k++) status = add_block(x, k, 2 * h, err);
    ImportTensor *output;
    snprintf(from, sizeof from, "lm_head.%d.weight", n_blocks);
    if (!status)
        status = import_add(x, REDRAFTER_OUTPUT ".weight", from, 2 * h, x->target->hparams.n_vocab, &output, err);
    if (!status) output->swaps_columns = true;
    return status;
}
