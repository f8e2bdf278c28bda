/* draft_eagle.c - the drafter `eagle`: EAGLE-2 (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking
 * Feature Uncertainty", arXiv 2401.15077, and "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
 * arXiv 2406.16858).
 *
 * The problem. Tokens are hard to predict for a small model. The target's next hidden state is easier, because hidden
 * states change more regularly than tokens; but it depends on which token was chosen.
 *
 * The idea. One transformer layer f with a KV cache of its own predicts hidden states, given the chosen token:
 *
 *     f_t = f(fc [E(x_{t+1}) ; h_t])        E(x) the target's embedding, h_t its hidden state after the final norm
 *     distribution of x_{t+2} = softmax(W_head f_t)  the target's own LM head
 *
 * The cache holds an entry for each token that the target has read. Below the pending token the layer continues with
 * its own f in place of h, as a tree (eagle_layer.c): a node's row attends to its ancestors.
 *
 *     entry      0            1            2                      tree
 *     input   E(x1) h0     E(x2) h1     E(x3) h2        x3 pending ── cat: E(cat) f_2 ── sat: E(sat) f_cat
 *                                        gives f_2                 └─ dog: E(dog) f_2
 *
 * After a step, the rows of the tree are discarded, and the accepted tokens get entries from the target's hidden
 * states, before the next proposal and for all sequences together (layer_entries.c). Under the ratio rules `recursive`
 * and `transport` the children of a node are drawn at random (learned_top.c), and all ranking is by psi.
 *
 * EAGLE's layer has no norm before its attention and none at its end. If the drafter was trained with token info
 * (logit_corrections.h), the info of a token is added to the logits after it.
 *
 * The code that `mtp` uses as well is in eagle_layer.c.
 *
 * Cost: a forward of the layer for the accepted tokens, then one for each level of the tree. Each is for all sequences
 * together and runs the LM head on up to `top` rows of each sequence. When it loses: if the target has few layers.
 * Proof: tests/draft/test_draft_eagle.c, against the layer in double precision, each path by itself. */
#include "base/mem.h"
#include "draft/learned/eagle_layer.h"
#include "draft/learned/learned_files.h"

typedef struct EagleOptions {
    const char *file;
    bool coupled, draws;
    int32_t depth, top;
    bool is_static;
} EagleOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(EagleOptions),
    {.key = "depth",
     OPT_INT(EagleOptions, depth, 1, EAGLE_MAX_DEPTH),
     .default_value = "5",
     .help = "maximal length of a path"},
    {.key = "top",
     OPT_INT(EagleOptions, top, 1, EAGLE_MAX_TOP),
     .default_value = "8",
     .help = "children of a node, and nodes expanded at each level"},
    {.key = "tree",
     OPT_CHOICE(EagleOptions, is_static, "dynamic", "static"),
     .default_value = "dynamic",
     .help = "dynamic: EAGLE-2's tree; static: EAGLE-1's, whose shape is fixed in advance"},
    LEARNED_OPTION_COUPLED(EagleOptions),
    LEARNED_OPTION_DRAW(EagleOptions),
    {.key = NULL},
};

static void close_eagle(Drafter *drafter) {
    eagle_release((Eagle *)drafter);
    mem_free(drafter);
}

static int read_weights(Eagle *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t embd = l->n_embd;
    int status = learned_linear_open(l, EAGLE LAYER_FC, 2 * embd, embd, true, d->max_rows, &d->fc, err);
    return status ? status
                  : one_layer_open(&d->layer, l, &(OneLayerParts){.first = "eagle", .wants_logits = true}, err);
}

static int open_eagle(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const EagleOptions *o = options;
    Eagle *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "eagle", sizeof *d);
    const EaglePlan plan = {.depth = o->depth, .top = o->top, .is_static = o->is_static};
    int status = eagle_plan(d, "eagle", &plan, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "eagle", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = token_info_open(&d->info, &d->learned, "eagle", TOKEN_INFO_F16, err);
    if (!status) status = confidence_open(&d->confidence, &d->learned, "eagle", err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = eagle_open_layer(d, "eagle", &(EntryQueueOptions){.reads_tokens = true}, err);
    if (status) {
        close_eagle(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

extern const DrafterClass draft_eagle_class;
const DrafterClass draft_eagle_class = {
    .name = "eagle",
    .summary = "one layer trained for the target predicts its next hidden states: EAGLE-2 and EAGLE-1",
    .option_table = option_table,
    .options_size = sizeof(EagleOptions),
    .open = open_eagle,
    .close = close_eagle,
    ENTRY_CALLS,
};
