#include "app/train/train_heads.h"

#include <string.h>

enum { KEY_BLOCKS = 1200, KEY_LM_HEAD };

static const struct argp_option option_table[] = {
    {"blocks", KEY_BLOCKS, "N", 0, "residual blocks of each head, 1 to 8 (default 1)", 6},
    {"lm-head", KEY_LM_HEAD, "own|target", 0, "matrix of each head's logits: its own (default), or the target's", 6},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    HeadsSettings *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &s->drafter; return 0;
    case KEY_BLOCKS: s->n_blocks = (int32_t)train_parse_int(state, "--blocks", arg, 1, 8); return 0;
    case KEY_LM_HEAD:
        s->has_own_output = strcmp(arg, "own") == 0;
        if (!s->has_own_output && strcmp(arg, "target") != 0) argp_error(state, "--lm-head: '%s' is neither own nor target", arg);
        return 0;
    case ARGP_KEY_END:
        if (s->drafter.loss.hidden_weight > 0) argp_error(state, "--hidden-loss-weight: these heads guess no hidden states");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&train_drafter_argp, 0, NULL, 0}, {0}};
const struct argp train_heads_argp = {.options = option_table, .parser = parse, .children = children};
