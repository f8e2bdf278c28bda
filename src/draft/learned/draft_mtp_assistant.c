/* draft_mtp_assistant.c - the drafter `mtp` with an assistant of Gemma 4 (Google 2026), which keeps nothing for the
 * tokens of the text.
 *
 * The problem. A drafter with a layer of its own runs that layer over the whole prompt and keeps keys and values of it,
 * although the target has read the same text and knows more about it.
 *
 * The idea. The layers of an assistant make queries only. Each reads the keys and values of the target's last layer of
 * its own kind, with or without a window. A step reads a token and a state of the target's width T, and makes the next
 * state:
 *
 *     x      = before [sqrt(T) E(x_n) ; h]      E the target's embedding; first h is the target's hidden state before
 *                                               the pending token x_n, after its final norm
 *     f      = norm(layers(x))                  their width H is a fraction of T
 *     distribution of x_{n+1} = softmax(W f)    W the file's embedding, of width H
 *     h'     = after f                          takes the place of h at the next level
 *
 *     target's keys    k0  k1  k2  k3 |                 x4 is the pending token
 *     level 1          x4, h3         |  q at position 4, gives x5 and h'
 *     level 2          x5, h'         |  q at position 4, gives x6
 *
 * All rows of a proposal have one position, that of the pending token, and see the same keys, those that the target has
 * committed. Nothing that is drafted gets a key, so the nodes of a level see neither each other nor their ancestors:
 * what is known of the path is in h'. The assistants were made for that (transformers,
 * SinglePositionMultiTokenCandidateGenerator; llama.cpp's pull request 23398), and it makes trees cheap: each level is
 * one forward over independent rows.
 *
 * Neither transformers nor llama.cpp caps the logits of an assistant, although the target's are capped; nor do we. The
 * assistants of E2B and E4B were published with clusters of tokens, by which only a part of the logits is computed
 * (cluster_head.c). llama.cpp's converter leaves them out; without them all logits are computed.
 *
 * The trees are those of `eagle` (eagle_layer.c): each level expands the `top` nodes of greatest joint probability.
 * Noise, draws and chances are those of all learned drafters (learned_top.c).
 *
 * A request takes over any prefix, and nothing is saved with a slot, because the executor of the layers reads the
 * target's sequences (ExecutorOptions.reads). Ranks keep a part of the KV heads each, so that the layers are divided
 * among them in the same way (compute/ranks/ranks_drafts.c); the matrices around the layers are whole on rank 0.
 *
 * Cost: for each level a forward of the layers, which read the target's keys of that many layers, and the LM head of H
 * numbers for each token. When it loses: after long contexts with a small target, where reading the keys costs as much
 * as in the target's own layers. Proof: tests/draft/test_draft_mtp_assistant.c, against the layers in double precision,
 * which read the target's cache. */
#include "draft/learned/assistant.h"

#include "base/math_functions.h"
#include "base/mem.h"
#include "draft/learned/eagle_layer.h"

#include <string.h>

/* A level has at most this many rows, each of which has logits. */
enum { MAX_ROWS = 64 };

struct AssistantMember {
    int32_t sequence, budget;
    const float *hidden; /* [T] */
    Tree *tree;
    int32_t first;                /* the first node of the last level */
    double log_p[TREE_MAX_NODES]; /* the sum along the path to each node */
    int32_t row[TREE_MAX_NODES];  /* the node's row in the forward that ran last, if it was in it */
};

struct AssistantFront {
    int32_t member, node;
};

/* ---- opening ------------------------------------------------------------------------------------------ */

static LearnedDraftFn draft_together; /* below */

void assistant_close(Drafter *drafter) {
    Assistant *a = (Assistant *)drafter;
    assistant_close_weights(a);
    learned_release(&a->learned);
    mem_free(a);
}

/* Refuses targets whose keys an assistant cannot read. */
static int check_target(const char *path, const DrafterEnv *env, fr_error *err) {
    const Weights *w = env->weights;
    if (w && w->model->hparams.arch != ARCH_GEMMA4)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: is an assistant for a target of the architecture gemma4, and %s has %s; run the target "
                         "that it was trained for",
                         path, gguf_path(w->model->gguf), arch_name(w->model->hparams.arch));
    if (w && !env->executor)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: reads keys and values of the target, which this command does not share with drafters; "
                         "use run or compare",
                         path);
    return FR_OK;
}

static int open_executor(Assistant *a, fr_error *err) {
    LearnedDrafter *l = &a->learned;
    int64_t rows = a->max_rows, H = a->model.hparams.n_embd, T = l->n_embd;
    const ArenaItem items[] = {ARENA_ITEM(&a->group, l->max_group), ARENA_ITEM(&a->front, rows),
                               ARENA_ITEM(&a->rows, rows), ARENA_ITEM(&a->logits, l->n_vocab)};
    const LearnedBuffer buffers[] = {{&a->pairs, rows * 2 * T},
                                     {&a->inputs, rows * H},
                                     {&a->hidden, rows * H},
                                     {&a->states, rows * T}};
    const ExecutorOptions options = {.max_rows = a->max_rows, .reads = l->env.executor};
    int status = executor_open(&a->executor, l->device, a->weights, &options, err);
    if (!status) status = arena_take(&l->arena, items, ARENA_COUNT(items), "mtp", err);
    return status ? status : learned_open_buffers(l, buffers, sizeof buffers / sizeof *buffers, err);
}

int assistant_open(Drafter **out, const AssistantOptions *o, const DrafterEnv *env, fr_error *err) {
    Assistant *a = mem_calloc(1, sizeof *a);
    if (!a) return error_memory(err, "mtp", sizeof *a);
    LearnedDrafter *l = &a->learned;
    int32_t n = MAX_ROWS / o->top, max_group = n < env->max_sequences ? n : env->max_sequences;
    a->depth = o->depth, a->top = o->top, a->max_rows = max_group * o->top;
    l->coupled = o->coupled, l->draws = o->draws;
    int status = eagle_check_tree("mtp", o->depth, o->top, err);
    if (!status) status = check_target(o->file, env, err);
    if (!status) status = learned_open(l, o->file, "mtp", env, err);
    if (!status) status = learned_reserve_group(l, max_group, draft_together, err);
    if (!status) status = assistant_read_weights(a, err);
    if (!status) status = drafter_file_finish(&l->file, err);
    if (!status) status = open_executor(a, err);
    if (!status) learned_note_quantisation(l, o->file, "a target of more bits accepts more");
    if (status) {
        assistant_close(&l->base);
        return status;
    }
    *out = &l->base;
    return FR_OK;
}

/* ---- a level ------------------------------------------------------------------------------------------ */

/* Makes the inputs of n rows of their tokens and the states before these. */
static void set_inputs(Assistant *a, int32_t n) {
    LearnedDrafter *l = &a->learned;
    int64_t H = a->model.hparams.n_embd, T = l->n_embd;
    float scale = l->target->hparams.embedding_scale;
    for (int32_t i = 0; i < n; i++) learned_embed(l, &a->rows[i].token, 1, (Slice){a->pairs, 2 * T * i});
    buffer_pull(a->pairs, 0, n * 2 * T);
    for (int32_t i = 0; i < n; i++) {
        const AssistantMember *m = &a->group[a->front[i].member];
        int32_t node = a->front[i].node;
        float *pair = a->pairs->floats + 2 * T * i;
        const float *state = node ? a->states->floats + T * m->row[m->tree->nodes[node].parent] : m->hidden;
        for (int64_t k = 0; k < T; k++) pair[k] *= scale;
        memcpy(pair + T, state, (size_t)T * sizeof *pair);
    }
    buffer_push(a->pairs, 0, n * 2 * T);
    learned_linear(l, a->before, LINEAR_SET, a->pairs, n, a->inputs);
    buffer_pull(a->inputs, 0, n * H);
    for (int32_t i = 0; i < n; i++) a->rows[i].input = a->inputs->floats + H * i;
}

/* Makes the states that the next level reads of the outputs of n rows. */
static void make_states(Assistant *a, int32_t n) {
    int64_t H = a->model.hparams.n_embd;
    for (int32_t i = 0; i < n; i++) learned_write(a->hidden, H * i, executor_hidden(a->executor, i), H);
    learned_linear(&a->learned, a->after, LINEAR_SET, a->hidden, n, a->states);
    buffer_pull(a->states, 0, n * a->learned.n_embd);
}

static int run_front(Assistant *a, int32_t n, fr_error *err) {
    for (int32_t i = 0; i < n; i++) {
        const AssistantMember *m = &a->group[a->front[i].member];
        a->rows[i] = (Row){.token = m->tree->nodes[a->front[i].node].token,
                           .sequence = m->sequence,
                           .parent = -1,
                           .want_logits = true};
    }
    set_inputs(a, n);
    return executor_forward(a->executor, a->rows, n, err);
}

/* Adds the children of the node on row i: the tokens that the target most probably chooses after it. */
static void add_children(Assistant *a, int32_t i) {
    AssistantMember *m = &a->group[a->front[i].member];
    LearnedDrafter *l = &a->learned;
    int32_t node = a->front[i].node, path[TREE_MAX_NODES], tokens[EAGLE_MAX_TOP];
    double log_p[EAGLE_MAX_TOP];
    int32_t n_path = learned_path(m->tree, node, path);
    const float *logits = executor_logits(a->executor, i);
    if (a->clusters.n) cluster_head_logits(&a->clusters, logits, executor_hidden(a->executor, i), a->logits);
    else memcpy(a->logits, logits, (size_t)l->n_vocab * sizeof *a->logits);
    int32_t n = learned_top(l, m->sequence, path, n_path, a->logits, a->top, tokens, log_p);
    m->row[node] = i;
    for (int32_t k = 0; k < n; k++) {
        double sum = m->log_p[node] + log_p[k];
        m->log_p[tree_add(m->tree, node, tokens[k], (float)math_exp(sum), l->base.source)] = sum;
    }
}

/* Chooses the nodes of the last level that are expanded. Returns their number. */
static int32_t choose_front(Assistant *a, int32_t n_members, int32_t level) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_members; i++) {
        AssistantMember *m = &a->group[i];
        int32_t nodes[EAGLE_MAX_TOP], n_nodes = 0, end = m->tree->n;
        if (level < m->budget) n_nodes = learned_best_nodes(m->log_p, m->first, end, a->top, nodes);
        for (int32_t k = 0; k < n_nodes; k++) a->front[n++] = (AssistantFront){i, nodes[k]};
        m->first = end;
    }
    return n;
}

/* ---- a proposal --------------------------------------------------------------------------------------- */

static int grow_trees(Assistant *a, int32_t n_members, fr_error *err) {
    int32_t n = choose_front(a, n_members, 0);
    int status = FR_OK;
    for (int32_t level = 1; n > 0 && !status; level++) {
        status = run_front(a, n, err);
        for (int32_t i = 0; i < n && !status; i++) add_children(a, i);
        if (level == a->depth || status) break;
        make_states(a, n);
        n = choose_front(a, n_members, level);
    }
    for (int32_t i = 0; i < n_members && !status; i++)
        learned_prune(&a->learned, a->group[i].sequence, a->group[i].tree, a->group[i].budget);
    return status;
}

/* A sequence whose keys the target has given back, to compute them again later, gets no tree. */
static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Assistant *a = (Assistant *)learned;
    int32_t n_members = 0;
    for (int32_t i = 0; i < n; i++) {
        const LearnedMember *from = &members[i];
        AssistantMember *m = &a->group[n_members];
        if (executor_sequence_length(learned->env.executor, from->sequence) !=
            learned->sequences[from->sequence].n_tokens - 1)
            continue;
        m->sequence = from->sequence, m->budget = from->budget, m->hidden = from->hidden, m->tree = from->tree;
        m->first = 0, m->log_p[0] = 0;
        n_members++;
    }
    return grow_trees(a, n_members, err);
}
