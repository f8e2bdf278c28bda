/* draft_mtp.c - the drafter `mtp`: multi-token prediction by layers that the target's makers trained with it (Gloeckle
 * et al. 2024, arXiv 2404.19737; in the form of DeepSeek-V3, arXiv 2412.19437, section 2.2, which Qwen 3.5, Qwen3-Next
 * and GLM use as well).
 *
 * The problem. A learned drafter has to be trained for its target. The makers of some models have done so: they trained
 * a further layer, or several, to predict the tokens after the next one, and published the weights, as part of the
 * model's file or in a file beside it (mtp-NAME.gguf), which has the architecture of the target, these layers, and
 * copies of the embedding and the LM head. The target's own embedding and LM head are used in both cases.
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
 * Several layers. A model that was trained with n of them has one for each depth of the tree, and the tokens at depth d
 * come from layer min(d, n). Layer k reads what layer k - 1 makes at the same position, and a later token:
 *
 *     f^k_t = norm^k(f^k(fc^k [norm E(x_{t+k}) ; norm f^{k-1}_t]))     equations 21 to 23 of DeepSeek-V3; f^0_t = h_t
 *     distribution of x_{t+k+1} = softmax(W^k f^k_t)
 *
 * Each layer was trained on the whole context, so each runs over all of it and has KV entries of its own
 * (layer_entries.c). Below depth n, layer n continues from its own output as a single layer does, and f^k is read after
 * its norm as a single layer's output is. Of the makers who published several layers, StepFun trained them in this way
 * (SGLang's pull request 18564); Xiaomi gave h_t to each layer of MiMo-V2 (sglang-jax, 1256), an architecture that
 * forerun does not run.
 *
 * A file of the architecture gemma4-assistant has layers of another kind, which draft_mtp_assistant.c runs.
 *
 * Cost: as for `eagle`; a layer is as large as one of the target's, and the LM head is the target's, which for a
 * large vocabulary costs more than the layer. Each of n layers runs over the prompt, and each proposal runs the last
 * n - 1 tokens again. Layers that the option `depth` does not reach are not read. When it loses: with small targets
 * that have large vocabularies; and with experts, where a row of the draft reads as many weights as a row in one of the
 * target's layers. Proof: tests/draft/test_draft_mtp.c; with latent attention and experts,
 * tests/draft/test_draft_mtp_routed.c; with several layers, tests/draft/test_draft_mtp_layers.c. */
#include "base/mem.h"
#include "model/model.h"
#include "draft/drafter_file.h"
#include "draft/learned/assistant.h"
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
     .help = "GGUF file with the layers, mtp-NAME.gguf, if the target's own file lacks them; or an assistant of "
             "Gemma 4"},
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

/* A layer with what is around it. */
typedef struct MtpLayer {
    Nextn nextn;
    OneLayer layer; /* layers after the first; that one is eagle.layer, and its fc is eagle.fc */
    Linear *fc;
    GgufTensor embedding; /* a copy of nextn.embed_tokens, whose file may be changed while the drafter is open */
    void *embedding_memory;
} MtpLayer;

typedef struct Mtp {
    Eagle eagle;
    Gguf *companion; /* NULL: the target's file has the layers */
    int32_t n_layers;
    MtpLayer *layers; /* [n_layers], with room for one for each depth */
} Mtp;

static void close_mtp(Drafter *drafter) {
    Mtp *m = (Mtp *)drafter;
    for (int32_t i = 1; i < m->n_layers; i++) {
        learned_linear_close(&m->eagle.learned, m->layers[i].fc);
        one_layer_close(&m->layers[i].layer);
    }
    eagle_release(&m->eagle);
    for (int32_t i = 0; i < m->n_layers; i++) {
        nextn_close(&m->layers[i].nextn);
        mem_free(m->layers[i].embedding_memory);
    }
    mem_free(m->layers);
    gguf_close(m->companion);
    mem_free(m);
}

static int copy_embedding(MtpLayer *l, fr_error *err) {
    const GgufTensor *t = l->nextn.embed_tokens;
    if (!t) return FR_OK;
    l->embedding = *t;
    l->embedding.data = l->embedding_memory = mem_alloc(t->bytes);
    if (!l->embedding_memory) return error_memory(err, "the embedding of mtp", t->bytes);
    memcpy(l->embedding_memory, t->data, t->bytes);
    return FR_OK;
}

/* Reads the list of tokens of a companion that forerun wrote, and leaves the heads of the layers these rows. */
static int read_head_tokens(Mtp *m, fr_error *err) {
    LearnedDrafter *l = &m->eagle.learned;
    int status = m->companion ? head_tokens_read(l, &(DrafterFile){.gguf = m->companion}, err) : FR_OK;
    for (int32_t i = 0; i < m->n_layers && !status; i++) status = head_tokens_set(l, &m->layers[i].nextn.model, err);
    return status;
}

/* Reads the descriptions of the layers for at most `depth` depths. The message of a failure is that of nextn_open and,
 * where another file would help, the remedy. */
static int read_descriptions(Mtp *m, int32_t depth, fr_error *err) {
    const Model *target = m->eagle.learned.target;
    fr_error why;
    int status = FR_OK;
    m->layers = mem_calloc((size_t)depth, sizeof *m->layers);
    if (!m->layers) return error_memory(err, "the layers of mtp", (size_t)depth * sizeof *m->layers);
    for (int32_t i = 0, n = 1; i < n && !status; i++) {
        m->n_layers = i + 1;
        status = nextn_open(&m->layers[i].nextn, target, m->companion, i, &why);
        if (i == 0) n = m->layers[0].nextn.model.hparams.n_nextn;
        if (n > depth) n = depth;
    }
    if (!status && m->companion && gguf_find_key(m->companion, "tokenizer.ggml.tokens") >= 0)
        status = vocab_match(m->companion, target->gguf, &why);
    const char *remedy = target->hparams.arch == ARCH_GEMMA4
                             ? "; pass the model's assistant, mtp:file=FILE, or take another drafter"
                             : "; take a file that was converted with this layer, or another drafter";
    if (!status) return FR_OK;
    return error_set(err, status, "mtp: %s%s", why.message, status == FR_ERR_MEMORY ? "" : remedy);
}

static int read_weights(Mtp *m, int32_t depth, fr_error *err) {
    Eagle *d = &m->eagle;
    LearnedDrafter *l = &d->learned;
    int status = read_descriptions(m, depth, err);
    if (!status) status = read_head_tokens(m, err);
    for (int32_t i = 0; i < m->n_layers && !status; i++) {
        MtpLayer *x = &m->layers[i];
        Linear **fc = i ? &x->fc : &d->fc;
        Weights **weights = i ? &x->layer.weights : &d->layer.weights;
        status = copy_embedding(x, err);
        if (!status)
            status = l->backend->linear_open(fc, l->device, l->weights, x->nextn.eh_proj, NULL, d->max_rows, err);
        if (!status) status = learned_layers_open(l, &x->nextn.model, weights, err);
    }
    if (!status && m->companion) status = gguf_check(m->companion, err);
    return status ? status : gguf_check(l->target->gguf, err);
}

static int open_layers(Mtp *m, fr_error *err) {
    LaterLayer later[EAGLE_MAX_DEPTH];
    for (int32_t i = 0; i < m->n_layers; i++) {
        MtpLayer *x = &m->layers[i];
        later[i] = (LaterLayer){.layer = &x->layer,
                                .fc = x->fc,
                                .token_norm = x->nextn.enorm,
                                .hidden_norm = x->nextn.hnorm,
                                .embedding = x->embedding_memory ? &x->embedding : NULL};
    }
    const EntryQueueOptions input = {.reads_tokens = true,
                                     .token_norm = later[0].token_norm,
                                     .hidden_norm = later[0].hidden_norm,
                                     .embedding = later[0].embedding,
                                     .later = later + 1,
                                     .n_later = m->n_layers - 1};
    return eagle_open_layer(&m->eagle, "mtp", &input, err);
}

static int32_t usable(const Drafter *drafter, int32_t sequence, int32_t n_common) {
    return entry_queue_usable(&((const Mtp *)drafter)->eagle.entries, sequence, n_common);
}

static const DrafterClass assistant_class;

static int open_assistant(Drafter **out, const MtpOptions *o, const DrafterEnv *env, fr_error *err) {
    const AssistantOptions options = {.file = o->file,
                                      .depth = o->depth,
                                      .top = o->top,
                                      .coupled = o->coupled,
                                      .draws = o->draws};
    int status = assistant_open(out, &options, env, err);
    if (!status) (*out)->class = &assistant_class;
    return status;
}

static int open_mtp(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const MtpOptions *o = options;
    if (o->file && assistant_is_file(o->file)) return open_assistant(out, o, env, err);
    Mtp *m = mem_calloc(1, sizeof *m);
    if (!m) return error_memory(err, "mtp", sizeof *m);
    Eagle *d = &m->eagle;
    int status = eagle_plan(d, "mtp", &(EaglePlan){.depth = o->depth, .top = o->top}, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open_target(&d->learned, "mtp", env, err);
    if (!status && o->file) status = gguf_open(&m->companion, o->file, err);
    if (!status && m->companion) status = drafter_file_check_companion(m->companion, d->learned.target, err);
    if (m->companion) d->learned.weights_mark = gguf_weights_mark(m->companion);
    if (!status) status = read_weights(m, o->depth, err);
    if (!status) status = open_layers(m, err);
    if (!status && m->companion && gguf_find_key(m->companion, DRAFTER_KEY("target.fingerprint")) < 0)
        learned_note_quantisation(&d->learned, o->file, "a target of more bits accepts more");
    if (status) {
        close_mtp(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

#define MTP_DESCRIPTION \
    .name = "mtp", \
    .summary = "the layers for multi-token prediction of the target's own file (nextn), or of a file beside it", \
    .option_table = option_table, .options_size = sizeof(MtpOptions), .open = open_mtp

static const DrafterClass assistant_class = {MTP_DESCRIPTION, ASSISTANT_CALLS};

extern const DrafterClass draft_mtp_class;
const DrafterClass draft_mtp_class = {
    MTP_DESCRIPTION,
    .close = close_mtp,
    .usable = usable,
    ENTRY_CALLS,
};
