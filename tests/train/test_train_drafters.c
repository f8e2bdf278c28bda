/* test_train_drafters.c - the networks of all drafters in double: compares the gradient of every tensor with finite
 * differences, on shapes with grouped queries in which no two widths are equal, and with predictions outside the loss
 * mask. test_train_heads.c has more cases of medusa, hydra and redrafter. */
#include "double_nets.h"

#include "all_drafters.h"
#include "base/rng.h"
#include "net_check.h"
#include "testing.h"

/* ---- the networks ------------------------------------------------------------------------------- */

enum { C = 10, V = 13 };

static Rope rope; /* rotates pairs (i, i + n_rot / 2) of a part of each head */
static const int32_t hot[] = {1, 3, 4, 8, 12};

static const HeadLossOptions soft_labels = {.token_weight = 1, .n_steps = 3};
/* MSE, because its derivative has no kinks that would disturb finite differences; test_train_ops.c tests SmoothL1. */
static const HeadLossOptions both_losses = {
    .token_weight = 0.3, .hidden_weight = 0.8, .regression = REGRESSION_MSE, .n_steps = 3};
static const HeadLossOptions first_hidden = {
    .token_weight = 0.3, .hidden_weight = 0.8, .regression = REGRESSION_MSE, .n_steps = 3, .n_hidden_steps = 1};
static const double rising[] = {0.25, 0, 3};
static const HeadLossOptions weighted_steps = {
    .token_weight = 0.3, .hidden_weight = 0.8, .regression = REGRESSION_MSE, .n_steps = 3, .step_weights = rising};
static const HeadLossOptions hard_labels = {
    .token_weight = 1, .hidden_weight = 0.5, .hard_labels = true, .regression = REGRESSION_MSE, .n_steps = 1};

static const HeadLossOptions near_tokens = {.token_weight = 0.2, .tv_weight = 1.7, .n_steps = 3};
static const HeadLossOptions one_step = {.token_weight = 1, .n_steps = 1};
static const HeadLossOptions weighted_tokens = {.token_weight = 0.6, .n_steps = 3, .step_weights = rising};
static const HeadLossOptions hard_tokens = {.token_weight = 1, .hard_labels = true, .n_steps = 1};

static const UnrollShape layer = {.C = C,
                                  .n_ff = 7,
                                  .n_head = 4,
                                  .n_head_kv = 2,
                                  .head_dim = 6,
                                  .rms_eps = 1e-5f,
                                  .rope = &rope,
                                  .n_steps = 3,
                                  .fuses_token = true,
                                  .state_gradient = 1};

static NetCase cases[64];
static int n_cases;
static MedusaNet medusas[2];
static HydraNet hydras[2];
static RedrafterNet redrafter;
static UnrollNet eagles[6], lyannas[18];
static SpaceNet spaces[3];
static Eagle3Net eagle3s[9];
static DflashNet dflashes[16];
static MtpNet mtps[4];
static const Model mtp_target = {.hparams = {.n_layer = 2}};

static void add_case(const char *what, const NetClass *class, const void *net) {
    cases[n_cases++] = (NetCase){what, class, net, C, V};
}

static void add_eagle(UnrollNet *net, const char *what, const HeadLossOptions *loss, int32_t rank) {
    *net = (UnrollNet){.layer = layer,
                       .info = {.method = "eagle", .C = C, .V = V, .rank = rank, .rms_eps = 1e-5f},
                       .loss = *loss};
    net->layer.method = "eagle";
    net->layer.fuses_each_step = true;
    net->layer.n_steps = loss->n_steps;
    add_case(what, &eagle_net_class, net);
}

static void add_lyanna(UnrollNet *net, const char *what, const HeadLossOptions *loss, int32_t rank, int32_t n_hot,
                       bool fused) {
    *net = (UnrollNet){.layer = layer, .info = {"lyanna", C, V, rank, n_hot, hot, 1e-5f}, .loss = *loss};
    net->layer.method = "lyanna";
    net->layer.has_attn_norm = true;
    net->layer.fuses_token = fused;
    net->layer.n_steps = loss->n_steps;
    add_case(what, &lyanna_net_class, net);
}

/* A share of the gradient that flows into the state before a step is the derivative of a loss in which the step reads
 *
 *     share f + (1 - share) f0        f0: the state that the unchanged weights give
 *
 * A pass with gradients keeps the states of its steps as f0, and a pass without them computes that loss. */
enum { MAX_STATES = 200 * C };
static double kept_states[UNROLL_MAX_STEPS][MAX_STATES];

static void keep_states(const UnrollShape *s, const UnrollActs *a, int32_t T) {
    assert_true(T * C <= MAX_STATES);
    for (int32_t i = 0; i < s->n_steps; i++) memcpy(kept_states[i], a->steps[i].f, (size_t)(T * C) * sizeof(double));
}

static void forward_from_kept_states(const UnrollShape *s, double *const *w, UnrollActs *a, const TrainSequence *seq) {
    static double mixed[MAX_STATES];
    unroll_choose_rows(s, a, seq);
    for (int32_t step = 0; step < s->n_steps && a->steps[step].n; step++) {
        double *const *of_layer = layer_of_step(s, w, step), *state = step ? a->steps[step - 1].f : NULL;
        for (int32_t i = 0; step && i < seq->T * C; i++)
            mixed[i] = s->state_gradient * state[i] + (1 - s->state_gradient) * kept_states[step - 1][i];
        if (step) a->steps[step - 1].f = mixed;
        make_input(s, w, a, seq, step);
        if (step) a->steps[step - 1].f = state;
        attention_block(s, of_layer, a, step);
        feed_forward_block(s, of_layer, a, step);
    }
}

static void learn_from_kept_states(const void *net, double *const *w, double *const *dw, void *acts,
                                   const TrainSequence *seq, double weight, TrainSums *sums) {
    const UnrollNet *n = net;
    UnrollNetActs *a = acts;
    if (dw) {
        unroll_net_learn(net, w, dw, acts, seq, weight, sums);
        keep_states(&n->layer, &a->layer, seq->T);
        return;
    }
    forward_from_kept_states(&n->layer, w, &a->layer, seq);
    int32_t last = n->layer.n_anchors ? 0 : n->layer.n_steps - 1;
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        learn_positions(n, w, NULL, a, seq, 0, last, weight, sums);
    if (n->layer.n_anchors) learn_drawn(n, w, NULL, a, seq, weight, sums);
}

static NetClass kept_states_class; /* lyanna, with that loss */

/* Lyanna with a layer for the later steps. */
static void add_separate(UnrollNet *net, const char *what, const HeadLossOptions *loss, int32_t rank, double share) {
    add_lyanna(net, what, loss, rank, 0, true);
    net->layer.n_ff_later = 9;
    net->layer.state_gradient = share;
    net->info_skips_first = rank > 0;
    kept_states_class = lyanna_net_class;
    kept_states_class.learn = learn_from_kept_states;
    if (share < 1) cases[n_cases - 1].class = &kept_states_class;
}

/* Returns the next n of some random numbers. */
static const double *take_numbers(int64_t n) {
    static double numbers[16384];
    static int64_t n_taken;
    const double *first = numbers + n_taken;
    for (; n > 0; n--, n_taken++) numbers[n_taken] = 0.8 * (rng_uniform(7, RNG_TEST, (uint64_t)n_taken, 0) - 0.5);
    assert_true(n_taken <= 16384);
    return first;
}

/* Two layers of a target with random weights, the second with biases. */
static MaskTarget make_target(void) {
    enum { F = 7, Q = 4 * 6, K = 2 * 6 };
    static MaskLayer layers[2];
    for (int i = 0; i < 2; i++) {
        MaskLayer *l = &layers[i];
        *l = (MaskLayer){.attn_norm = take_numbers(C), .ffn_norm = take_numbers(C)};
        l->q = take_numbers(Q * C), l->k = take_numbers(K * C), l->v = take_numbers(K * C);
        l->o = take_numbers(C * Q);
        l->gate = take_numbers(F * C), l->up = take_numbers(F * C), l->down = take_numbers(C * F);
        if (i == 1) l->q_bias = take_numbers(Q), l->k_bias = take_numbers(K), l->v_bias = take_numbers(K);
    }
    return (MaskTarget){C, F, 4, 2, 6, 2, 1e-5f, &rope, layers, take_numbers(C)};
}

static void add_space(SpaceNet *net, const char *what, const HeadLossOptions *loss, int32_t n_blocks) {
    *net = (SpaceNet){make_target(), V, n_blocks, 0.5, *loss};
    add_case(what, &space_net_class, net);
}

static void add_eagle3(Eagle3Net *net, const char *what, const HeadLossOptions *loss, int32_t width) {
    *net = (Eagle3Net){.layer = layer,
                       .V = V,
                       .n_target = C,
                       .n_streams = NET_CHECK_STREAMS,
                       .has_own_output = true,
                       .loss = *loss};
    net->layer.method = "eagle3";
    net->layer.reads_pairs = true;
    net->layer.C = width;
    net->layer.n_steps = loss->n_steps;
    if (width != C) net->own.embd = take_numbers(V * width);
    add_case(what, &eagle3_net_class, net);
}

/* A vocabulary of n tokens, in another order than the target's. */
static void set_own_vocabulary(OwnVocabulary *v, HeadLossOptions *loss, int32_t n) {
    static const int32_t tokens[] = {8, 1, 12, 4, 3, 0, 10, 11, 9};
    static int32_t own_of[V + 1][V]; /* by the number of tokens */
    for (int32_t i = 0; i < V; i++) own_of[n][i] = -1;
    for (int32_t i = 0; i < n; i++) own_of[n][tokens[i]] = i;
    v->tokens = tokens;
    loss->own_of = own_of[n];
    loss->n_own = n;
}

static void add_own_vocabulary(Eagle3Net *net, const char *what, const HeadLossOptions *loss) {
    add_eagle3(net, what, loss, C);
    set_own_vocabulary(&net->own, &net->loss, 5);
}

/* P-EAGLE. */
static void add_blocks(Eagle3Net *net, const char *what, const HeadLossOptions *loss, int32_t width, int32_t n_later,
                       int32_t n_anchors) {
    add_eagle3(net, what, loss, width);
    net->n_later = n_later;
    net->block = loss->n_steps;
    net->mask = 5;
    net->layer.n_anchors = n_anchors;
}

/* With two layers; a block predicts at three places. */
static void add_dflash(DflashNet *net, const char *what, const HeadLossOptions *loss, bool from_anchor) {
    *net = (DflashNet){.C = C,
                       .V = V,
                       .n_layer = 2,
                       .n_ff = 7,
                       .n_head = 4,
                       .n_head_kv = 2,
                       .head_dim = 6,
                       .n_streams = NET_CHECK_STREAMS,
                       .block = loss->n_steps + !from_anchor,
                       .mask = 5,
                       .n_anchors = 20,
                       .from_anchor = from_anchor,
                       .has_head_norms = true,
                       .rms_eps = 1e-5f,
                       .embedding_scale = 1.5f,
                       .rope = &rope,
                       .loss = *loss};
    add_case(what, &dflash_net_class, net);
}

/* With the parts of DFlash 2. */
static void add_dflash_2(DflashNet *net, const char *what, const HeadLossOptions *loss, bool from_anchor, int32_t taps,
                         int32_t rank) {
    add_dflash(net, what, loss, from_anchor);
    net->conv_taps = taps;
    net->conv_group = C / 2;
    net->selector_rank = rank;
    net->selector_top = 5;
    net->selector_weight = 0.7;
}

/* With a Markov head. */
static void add_dspark(DflashNet *net, const char *what, const HeadLossOptions *loss, bool from_anchor, MarkovKind kind,
                       int32_t rank) {
    add_dflash(net, what, loss, from_anchor);
    net->markov = kind;
    net->markov_rank = rank;
}

/* With an embedding, an LM head and a vocabulary of its own. */
static void give_own_vocabulary(DflashNet *net) {
    set_own_vocabulary(&net->own, &net->loss, 9);
    net->own.embd = take_numbers(V * C);
    net->has_own_output = true;
    net->selector_top = 9;
}

/* Bounds logits where it matters. */
static void bound_logits(HeadLossOptions *loss, double factor) {
    loss->target_cap = 1.5;
    loss->logit_cap = 1;
    loss->logit_factor = factor;
}

static void add_mtp(MtpNet *net, const char *what, const HeadLossOptions *loss, int32_t n_layers) {
    *net = (MtpNet){.layer = layer,
                    .V = V,
                    .n_layers = n_layers,
                    .loss = *loss,
                    .target = &mtp_target,
                    .ffn_norm = "ffn_norm.weight"};
    net->layer.has_attn_norm = true;
    add_case(what, &mtp_net_class, net);
}

static int make_cases(void **state) {
    (void)state;
    const RopeParams params = {.style = ROPE_HALVES, .n_rot = 4, .base = 100, .factor = 1};
    if (rope_init(&rope, &params, NULL, NULL)) return -1;
    medusas[0] = (MedusaNet){C, V, 3, 2, true, soft_labels};
    medusas[1] = (MedusaNet){C, V, 3, 1, false, soft_labels};
    add_case("medusa", &medusa_net_class, &medusas[0]);
    add_case("medusa, the target's head, bounded logits", &medusa_net_class, &medusas[1]);
    bound_logits(&medusas[1].loss, 0);
    hydras[0] = (HydraNet){.C = C, .V = V, .n_heads = 3, .n_blocks = 2, .has_own_output = true, .loss = soft_labels};
    hydras[1] = (HydraNet){.C = C, .V = V, .n_heads = 3, .n_blocks = 2, .loss = soft_labels, .has_prefix = true};
    hydras[0].has_skip_bias = hydras[0].has_output_bias = true;
    hydras[1].prefix = layer;
    hydras[1].prefix.method = "hydra.prefix";
    hydras[1].prefix.n_steps = 1, hydras[1].prefix.has_attn_norm = true, hydras[1].prefix.fuses_token = false;
    redrafter = (RedrafterNet){.C = C, .V = V, .n_blocks = 1, .starts_at_embedding = true, .loss = soft_labels};
    add_case("hydra, biases", &hydra_net_class, &hydras[0]);
    add_case("hydra, a layer before the heads, the target's head", &hydra_net_class, &hydras[1]);
    add_case("redrafter", &redrafter_net_class, &redrafter);
    add_eagle(&eagles[0], "eagle", &both_losses, 0);
    add_eagle(&eagles[1], "eagle, one step, hard labels", &hard_labels, 0);
    add_eagle(&eagles[2], "eagle, token info", &both_losses, 3);
    add_eagle(&eagles[3], "eagle, one step, hard labels, token info", &hard_labels, 2);
    add_eagle(&eagles[4], "eagle, weighted steps", &weighted_steps, 0);
    add_eagle(&eagles[5], "eagle, token info, drawn chains", &both_losses, 3);
    eagles[5].layer.n_anchors = 4;
    add_lyanna(&lyannas[0], "lyanna", &both_losses, 3, 0, true);
    add_lyanna(&lyannas[1], "lyanna, hot tokens", &soft_labels, 3, sizeof hot / sizeof *hot, true);
    add_lyanna(&lyannas[2], "lyanna, no token info", &soft_labels, 0, 0, true);
    add_lyanna(&lyannas[3], "lyanna, no first token", &soft_labels, 2, 0, false);
    add_lyanna(&lyannas[4], "lyanna, one step, hard labels", &hard_labels, 2, 0, true);
    add_lyanna(&lyannas[5], "lyanna, gate", &both_losses, 3, sizeof hot / sizeof *hot, true);
    add_lyanna(&lyannas[6], "lyanna, gate and a parallel chain, no token info", &both_losses, 0, 0, true);
    add_lyanna(&lyannas[7], "lyanna, a parallel chain", &soft_labels, 2, 0, false);
    lyannas[5].gate = lyannas[6].gate = (GateShape){.method = "lyanna", .C = C, .V = V, .rank = 4};
    lyannas[6].layer.is_parallel = lyannas[7].layer.is_parallel = true;
    add_lyanna(&lyannas[8], "lyanna, weighted steps", &weighted_steps, 2, 0, true);
    add_separate(&lyannas[9], "lyanna, a later layer that reads the first token", &first_hidden, 3, 1);
    add_separate(&lyannas[10], "lyanna, the same with a gate and a share of the gradient", &weighted_steps, 3, 0.3);
    add_separate(&lyannas[11], "lyanna, a later layer without that gradient", &soft_labels, 0, 0);
    add_separate(&lyannas[12], "lyanna, a later layer and a parallel chain", &both_losses, 0, 1);
    lyannas[9].layer.later_fuses = lyannas[10].layer.later_fuses = true;
    lyannas[10].gate = (GateShape){.method = "lyanna", .C = C, .V = V, .rank = 4};
    lyannas[12].layer.is_parallel = true;
    add_separate(&lyannas[13], "lyanna, a first layer without a norm", &both_losses, 0, 1);
    add_separate(&lyannas[16], "lyanna, a later layer and drawn chains", &weighted_steps, 3, 0.3);
    lyannas[16].layer.n_anchors = 5;
    add_lyanna(&lyannas[17], "lyanna, a gate and drawn chains", &both_losses, 3, 0, true);
    lyannas[17].gate = (GateShape){.method = "lyanna", .C = C, .V = V, .rank = 4};
    lyannas[17].layer.n_anchors = 3;
    add_lyanna(&lyannas[14], "lyanna, all steps without a norm", &both_losses, 2, 0, true);
    lyannas[13].layer.has_attn_norm = lyannas[14].layer.has_attn_norm = false;
    add_space(&spaces[0], "space", &soft_labels, 0);
    add_space(&spaces[1], "space, two blocks", &soft_labels, 2);
    add_space(&spaces[2], "space, one mask", &hard_labels, 1);
    add_eagle3(&eagle3s[0], "eagle3, a norm before fc, the residual stream normed, biases", &weighted_tokens, C);
    eagle3s[0].layer.has_biases = eagle3s[0].layer.has_output_bias = true;
    add_eagle3(&eagle3s[1], "eagle3, a width of its own, norms of streams and of outputs", &soft_labels, 8);
    add_eagle3(&eagle3s[2], "eagle3, the target's LM head, a bias of fc", &one_step, C);
    add_own_vocabulary(&eagle3s[3], "eagle3, a vocabulary of its own", &soft_labels);
    add_own_vocabulary(&eagle3s[4], "eagle3, the same with hard labels", &hard_tokens);
    add_eagle3(&eagle3s[5], "eagle3, two layers with norms of heads and biases", &weighted_tokens, C);
    eagle3s[5].layer.has_head_norms = eagle3s[5].layer.has_biases = eagle3s[5].layer.has_output_bias = true;
    add_blocks(&eagle3s[6], "eagle3, blocks", &soft_labels, C, 0, 1000);
    add_blocks(&eagle3s[7], "eagle3, blocks, two layers, drawn anchors, a width of its own", &weighted_tokens, 8, 1, 4);
    add_eagle3(&eagle3s[8], "eagle3, two layers of Gemma's form, norms of heads and biases", &weighted_tokens, C);
    eagle3s[8].layer.has_head_norms = eagle3s[8].layer.has_biases = eagle3s[8].layer.has_output_bias = true;
    eagle3s[8].n_later = 1;
    eagle3s[8].form = (OwnForm){.is_gemma = true, .attn_scale = 0.3, .out_scales = {1.5f, 1.25f}};
    eagle3s[4].loss.tv_weight = 0.4;
    eagle3s[5].n_later = 1, eagle3s[5].continues_normed = true;
    add_dflash(&dflashes[0], "dflash", &soft_labels, true);
    add_dflash(&dflashes[1], "dflash, drawn anchors, masks that predict their own place", &weighted_tokens, false);
    add_dflash(&dflashes[2], "dflash, causal, one layer, no norms of heads, hard labels", &hard_tokens, false);
    dflashes[1].n_anchors = 4;
    dflashes[2].is_causal = true, dflashes[2].n_layer = 1, dflashes[2].has_head_norms = false;
    dflashes[2].n_anchors = 1000; /* more than HEAD_LOSS_ROWS predictions of a step */
    add_dflash_2(&dflashes[3], "dflash, convolutions", &soft_labels, true, 2, 0);
    add_dflash_2(&dflashes[4], "dflash, convolutions over whole blocks, a selector", &weighted_tokens, false, 4, 4);
    add_dflash_2(&dflashes[5], "dflash, a selector, no norms of heads, hard labels", &hard_tokens, true, 0, 3);
    add_dspark(&dflashes[6], "dflash, a Markov head", &hard_tokens, true, MARKOV_VANILLA, 3);
    add_dspark(&dflashes[7], "dflash, a gated Markov head", &weighted_tokens, false, MARKOV_GATED, 4);
    add_dspark(&dflashes[8], "dflash, a recurrent Markov head, drawn anchors, total variation", &near_tokens, true,
               MARKOV_RECURRENT, 3);
    add_dflash(&dflashes[9], "dflash, a window in the first layer, sinks", &soft_labels, true);
    dflashes[9].has_sinks = true;
    dflashes[9].window = dflashes[9].block + 1, dflashes[9].has_window[0] = dflashes[9].windows_are_causal = true;
    add_dflash(&dflashes[10], "dflash, an LM head of its own, bounded logits with a factor, sinks, biases",
               &weighted_tokens, true);
    dflashes[10].has_sinks = dflashes[10].has_biases = dflashes[10].has_output_bias = true;
    dflashes[10].has_own_output = true;
    bound_logits(&dflashes[10].loss, 1.7);
    add_dspark(&dflashes[11], "dflash, a vocabulary of its own, a gated Markov head, bounded logits", &weighted_tokens,
               false, MARKOV_GATED, 4);
    give_own_vocabulary(&dflashes[11]);
    bound_logits(&dflashes[11].loss, 0);
    add_dflash_2(&dflashes[12], "dflash, a vocabulary of its own, a selector", &soft_labels, true, 0, 4);
    add_dflash_2(&dflashes[13], "dflash, the same with hard labels", &hard_tokens, true, 0, 4);
    give_own_vocabulary(&dflashes[12]);
    give_own_vocabulary(&dflashes[13]);
    add_dflash(&dflashes[14], "dflash, Gemma's form, values made of keys", &soft_labels, true);
    dflashes[14].form = (OwnForm){.is_gemma = true, .values_are_keys = true, .attn_scale = 1, .out_scales = {0.7f}};
    add_dflash_2(&dflashes[15], "dflash, Gemma's form, values of their own, biases, convolutions", &weighted_tokens,
                 false, 2, 0);
    dflashes[15].form = (OwnForm){.is_gemma = true, .out_scales = {0, 1.3f}};
    dflashes[15].has_biases = dflashes[15].has_output_bias = true;
    add_lyanna(&lyannas[15], "lyanna, a gate and bounded logits", &both_losses, 3, sizeof hot / sizeof *hot, true);
    lyannas[15].gate = lyannas[5].gate;
    bound_logits(&lyannas[15].loss, 0);
    add_mtp(&mtps[0], "mtp", &soft_labels, 1);
    add_mtp(&mtps[1], "mtp, two layers, norms of heads and gates", &weighted_tokens, 2);
    add_mtp(&mtps[2], "mtp, three layers with biases", &soft_labels, 3);
    add_mtp(&mtps[3], "mtp, one step, gates, hard labels", &hard_tokens, 1);
    mtps[1].layer.has_head_norms = mtps[1].layer.gates_output = mtps[3].layer.gates_output = true;
    mtps[2].layer.has_biases = true;
    dflashes[3].has_head_norms = dflashes[5].has_head_norms = false;
    dflashes[4].selector_top = V; /* candidates that come and go would have no derivative */
    dflashes[5].selector_top = 11;
    dflashes[6].n_anchors = 1000, dflashes[8].n_anchors = 4;
    eagle3s[0].norms_streams = eagle3s[0].keeps_normed = true;
    eagle3s[1].norms_each = eagle3s[1].continues_normed = true;
    eagle3s[2].has_own_output = false, eagle3s[2].has_fc_bias = true;
    eagle3s[6].norms_streams = eagle3s[6].has_fc_bias = true;
    eagle3s[7].norms_each = eagle3s[7].keeps_normed = true;
    return 0;
}

static int free_cases(void **state) {
    (void)state;
    rope_free(&rope);
    return 0;
}

static bool has_case(const char *method) {
    for (int i = 0; i < n_cases; i++)
        if (strcmp(cases[i].class->method, method) == 0) return true;
    return false;
}

static void every_method_has_a_case(void **state) {
    (void)state;
    for (const char *const *m = trained_methods(); *m; m++)
        if (!has_case(*m)) fail_msg("the network of %s has no case here", *m);
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    for (int i = 0; i < n_cases; i++) net_check_gradients(&cases[i]);
}

static void a_wrong_sign_is_detected(void **state) {
    (void)state;
    for (int i = 0; i < n_cases; i++) net_check_wrong_signs(&cases[i]);
}

static void positions_outside_the_mask_change_nothing(void **state) {
    (void)state;
    for (int i = 0; i < n_cases; i++) net_check_mask(&cases[i]);
}

static void noise_changes_the_input_and_not_the_loss_target(void **state) {
    (void)state;
    for (int i = 0; i < n_cases; i++)
        if (cases[i].class == &eagle_net_class) net_check_noise(&cases[i]);
}

static void the_confidence_head_does_not_change_the_layer(void **state) {
    (void)state;
    const UnrollNet *const nets[] = {&eagles[0], &eagles[4], &lyannas[0], &lyannas[5]};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        UnrollNet with = *nets[i];
        const NetClass *class = i < 2 ? &eagle_net_class : &lyanna_net_class;
        with.confidence = (ConfidenceShape){with.layer.method, C, true};
        with.loss.has_margins = true;
        net_check_addition(&(NetCase){"with confidence", class, &with, C, V}, &(NetCase){"", class, nets[i], C, V}, 1);
    }
    for (int i = 6; i < 10; i++) { /* the last one has no Markov head */
        DflashNet with = dflashes[i];
        with.has_confidence = true;
        with.confidence_is_vector = i == 7;
        with.confidence_is_narrow = i >= 8;
        net_check_addition(&(NetCase){"dflash with confidence", &dflash_net_class, &with, C, V},
                           &(NetCase){"", &dflash_net_class, &dflashes[i], C, V}, CONFIDENCE_TENSORS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_has_a_case),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(a_wrong_sign_is_detected),
        cmocka_unit_test(positions_outside_the_mask_change_nothing),
        cmocka_unit_test(the_confidence_head_does_not_change_the_layer),
        cmocka_unit_test(noise_changes_the_input_and_not_the_loss_target),
    };
    return cmocka_run_group_tests(tests, make_cases, free_cases);
}
