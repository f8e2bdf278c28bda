/* draft_mtp.c - the drafter `mtp`: multi-token prediction by a layer that the target's makers trained with it (Gloeckle
 * et al. 2024, arXiv 2404.19737; in the form of DeepSeek-V3, arXiv 2412.19437, section 2.2, which Qwen 3.5, Qwen3-Next
 * and GLM use as well).
 *
 * The problem. A learned drafter has to be trained for its target. The makers of some models have done so: they trained
 * a further layer to predict the token after the next one, and published its weights, as part of the model's file or in
 * a file beside it (mtp-NAME.gguf), which has the architecture of the target, this layer, and copies of the embedding
 * and the LM head. The target's own embedding and LM head are used in both cases.
 *
 * The idea. That layer f is EAGLE's (draft_eagle.c) with three norms (model/model.h):
 *
 *     f_t = norm(f(fc [norm E(x_{t+1}) ; norm h_t]))        h_t the target's hidden state after its final norm
 *     distribution of x_{t+2} = softmax(W_head f_t)
 *
 * It has a KV entry for each token that the target has read, so that the whole prompt passes through it, and below the
 * pending token f_t takes the place of h_t, level by level. Such a layer was trained for one step. In later steps it
 * reads its own output and is right less often, so trees are flatter here than EAGLE's by default. Entries, trees,
 * noise, draws and calibrated chances are those of `eagle` (eagle_layer.c).
 *
 *     entry      0            1            2
 *     input   E(x1) h0     E(x2) h1     E(x3) h2        x3 is the pending token
 *                                        gives f_2, the distribution of x4
 *
 * h_t is the target's hidden state at the token x_t, not at x_{t+1}. A mistake by one position would not fail anywhere;
 * it would only lower the acceptance (tests/draft/test_draft_mtp.c has a layer that is right with h_t and another that
 * would be right with h_{t+1}).
 *
 * Cost: as for `eagle`; the layer is as large as one of the target's, and the LM head is the target's, which for a
 * large vocabulary costs more than the layer. When it loses: with small targets that have large vocabularies; and with
 * experts, where a row of the draft reads as many weights as a row in one of the target's layers. Proof:
 * tests/draft/test_draft_mtp.c and, with latent attention and experts, tests/draft/test_draft_mtp_routed.c. */
#include "base/mem.h"
#include "model/model.h"
#include "draft/drafter_file.h"
#include "draft/learned/eagle_layer.h"
#include "text/vocab.h"

#include <string.h>

typedef struct MtpOptions {
    const char *file;
    bool coupled, draws;
    int32_t depth, top;
} MtpOptions;

static const Option option_table[] = {
    {.key = "file",
     OPT_FILE(MtpOptions, file),
     .default_help = "the target's own file",
     .help = "GGUF file with the layer, mtp-NAME.gguf, if the target's own file lacks it"},
    {.key = "depth",
     OPT_INT(MtpOptions, depth, 1, EAGLE_MAX_DEPTH),
     .default_value = "3",
     .help = "maximal length of a path"},
    {.key = "top",
     OPT_INT(MtpOptions, top, 1, EAGLE_MAX_TOP),
     .default_value = "4",
     .help = "children of a node, and nodes expanded at each level"},
    LEARNED_OPTION_COUPLED(MtpOptions),
    LEARNED_OPTION_DRAW(MtpOptions),
    {.key = NULL},
};

typedef struct Mtp {
    Eagle eagle;
    Gguf *companion; /* NULL: the target's file has the layer */
    Nextn nextn;
    GgufTensor embedding; /* a copy of nextn.embed_tokens, whose file may be changed while the drafter is open */
    void *embedding_memory;
} Mtp;

static void close_mtp(Drafter *drafter) {
    Mtp *m = (Mtp *)drafter;
    eagle_release(&m->eagle);
    nextn_close(&m->nextn);
    mem_free(m->embedding_memory);
    gguf_close(m->companion);
    mem_free(m);
}

static int copy_embedding(Mtp *m, fr_error *err) {
    const GgufTensor *t = m->nextn.embed_tokens;
    if (!t) return FR_OK;
    m->embedding = *t;
    m->embedding.data = m->embedding_memory = mem_alloc(t->bytes);
    if (!m->embedding_memory) return error_memory(err, "the embedding of mtp", t->bytes);
    memcpy(m->embedding_memory, t->data, t->bytes);
    return FR_OK;
}

/* Reads the description of the layer. The message of a failure is that of nextn_open and, where another file would
 * help, the remedy. */
static int read_description(Mtp *m, fr_error *err) {
    const Model *target = m->eagle.learned.target;
    fr_error why;
    int status = nextn_open(&m->nextn, target, m->companion, &why);
    if (!status && m->companion && gguf_find_key(m->companion, "tokenizer.ggml.tokens") >= 0)
        status = vocab_match(m->companion, target->gguf, &why);
    const char *remedy = "; take a file that was converted with this layer, or another drafter";
    if (!status) return FR_OK;
    return error_set(err, status, "mtp: %s%s", why.message, status == FR_ERR_MEMORY ? "" : remedy);
}

static int read_weights(Mtp *m, fr_error *err) {
    LearnedDrafter *l = &m->eagle.learned;
    int status = read_description(m, err);
    if (!status) status = copy_embedding(m, err);
    if (!status)
        status = l->backend->linear_open(&m->eagle.fc, l->device, l->weights, m->nextn.eh_proj, NULL, m->eagle.max_rows,
                                         err);
    if (!status) status = l->backend->submodel(&m->eagle.layer.weights, l->weights, &m->nextn.model, err);
    if (!status && m->companion) status = gguf_check(m->companion, err);
    return status ? status : gguf_check(l->target->gguf, err);
}

static int open_mtp(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const MtpOptions *o = options;
    Mtp *m = mem_calloc(1, sizeof *m);
    if (!m) return error_memory(err, "mtp", sizeof *m);
    Eagle *d = &m->eagle;
    int status = eagle_plan(d, "mtp", &(EaglePlan){.depth = o->depth, .top = o->top}, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open_target(&d->learned, "mtp", env, err);
    if (!status && o->file) status = gguf_open(&m->companion, o->file, err);
    if (m->companion) d->learned.weights_mark = drafter_weights_mark(m->companion);
    if (!status) status = read_weights(m, err);
    const EntryQueueOptions input = {.reads_tokens = true,
                                     .token_norm = m->nextn.enorm,
                                     .hidden_norm = m->nextn.hnorm,
                                     .embedding = m->embedding_memory ? &m->embedding : NULL};
    if (!status) status = eagle_open_layer(d, "mtp", &input, err);
    if (!status && m->companion) learned_note_quantisation(&d->learned, o->file, "a target of more bits accepts more");
    if (status) {
        close_mtp(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

extern const DrafterClass draft_mtp_class;
const DrafterClass draft_mtp_class = {
    .name = "mtp",
    .summary = "the layer for multi-token prediction of the target's own file (nextn), or of a file beside it",
    .option_table = option_table,
    .options_size = sizeof(MtpOptions),
    .open = open_mtp,
    .close = close_mtp,
    EAGLE_CALLS,
};
