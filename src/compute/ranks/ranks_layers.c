/* ranks_layers.c - the layers of a drafter that uses the target's embedding and LM head, which are divided among ranks.
 *
 * The layers are small, so rank 0 runs them by itself. Before that it asks all ranks for the embeddings of the tokens,
 * and gives them to the rows as inputs; afterwards it asks for the logits of the hidden states. The numbers go through
 * the same operations as in a forward of the CPU backend. */
#include "compute/ranks/ranks.h"

#include <string.h>

typedef struct DrafterLayers {
    struct DrafterLayers *next;
    Context *context;
    bool shares_head; /* the LM head is the target's */
    RowPlace *rows;   /* [max_rows] since executor_forward */
    int32_t *tokens;  /* [max_rows] */
    Buffer *x;        /* [max_rows][n_embd] embeddings, then hidden states whose logits are wanted */
    Buffer *logits;   /* [max_logits][n_vocab]; only with shares_head */
    int32_t max_logits;
} DrafterLayers;

static DrafterLayers *layers_of(const Context *c) {
    DrafterLayers *l = c->weights->options.ranks->layers;
    while (l->context != c) l = l->next;
    return l;
}

static int take_memory(DrafterLayers *l, Device *d, const Weights *w, size_t max_rows, fr_error *err) {
    l->rows = mem_calloc(max_rows, sizeof *l->rows);
    l->tokens = mem_calloc(max_rows, sizeof *l->tokens);
    if (!l->rows || !l->tokens) return error_memory(err, "the rows of a drafter", max_rows * sizeof *l->rows);
    return d->backend->buffer_open(&l->x, d, (int64_t)max_rows * w->model->hparams.n_embd, err);
}

int ranks_layers_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err) {
    Ranks *r = w->options.ranks;
    DrafterLayers *l = mem_calloc(1, sizeof *l);
    *out = NULL;
    if (!l) return error_memory(err, "a context", sizeof *l);
    int status = backend_cpu.context_open(&l->context, d, w, options, err);
    if (status) {
        mem_free(l);
        return status;
    }
    l->next = r->layers, r->layers = l;
    l->shares_head = w->model->output == r->weights->model->output;
    status = take_memory(l, d, w, (size_t)options->max_rows, err);
    if (status) ranks_layers_close(l->context);
    else *out = l->context;
    return status;
}

void ranks_layers_close(Context *c) {
    DrafterLayers *l = layers_of(c), **link = &c->weights->options.ranks->layers;
    while (*link != l) link = &(*link)->next;
    *link = l->next;
    buffer_close(l->x);
    buffer_close(l->logits);
    mem_free(l->rows);
    mem_free(l->tokens);
    mem_free(l);
    backend_cpu.context_close(c);
}

int ranks_layers_reserve_logits(Context *c, int32_t n, fr_error *err) {
    DrafterLayers *l = layers_of(c);
    const Weights *target = c->weights->options.ranks->weights;
    Buffer *wider = NULL;
    if (!l->shares_head) return backend_cpu.reserve_logits(c, n, err);
    if (n <= l->max_logits) return FR_OK;
    int status = c->device->backend->head_reserve(c->device, target, n, err);
    if (!status)
        status = c->device->backend->buffer_open(&wider, c->device, (int64_t)n * target->model->hparams.n_vocab, err);
    if (status) return status;
    buffer_close(l->logits);
    l->logits = wider, l->max_logits = n;
    return FR_OK;
}

/* Gives rows [n_rows] that have no input the embedding of their token. */
static void embed_rows(DrafterLayers *l, RowPlace *rows, int32_t n_rows) {
    const Context *c = l->context;
    const Hparams *h = &c->weights->model->hparams;
    float *x = l->x->floats;
    int32_t n = 0;
    for (int32_t i = 0; i < n_rows; i++)
        if (!rows[i].input) l->tokens[n++] = rows[i].token;
    if (n) c->device->backend->embed(c->device, c->weights->options.ranks->weights, l->tokens, n, (Slice){l->x, 0});
    for (int64_t i = 0; h->embedding_scale != 1 && i < (int64_t)n * h->n_embd; i++) x[i] *= h->embedding_scale;
    for (int32_t i = 0; i < n_rows; i++) {
        if (rows[i].input) continue;
        rows[i].input = x;
        x += h->n_embd;
    }
}

void ranks_layers_forward(Context *c, const RowPlace *given, int32_t n_rows) {
    DrafterLayers *l = layers_of(c);
    RowPlace *rows = l->rows + given[0].row;
    int64_t n_embd = c->weights->model->hparams.n_embd;
    int32_t n_logits = 0;
    memcpy(rows, given, (size_t)n_rows * sizeof *rows);
    embed_rows(l, rows, n_rows);
    for (int32_t i = 0; l->shares_head && i < n_rows; i++) rows[i].i_logits = -1;
    backend_cpu.forward(c, rows, n_rows);
    for (int32_t i = 0; l->shares_head && i < n_rows; i++) {
        if (given[i].i_logits < 0) continue;
        memcpy(l->x->floats + given[i].i_logits * n_embd, backend_cpu.read(c, RESULT_HIDDEN, given[i].i_hidden),
               (size_t)n_embd * sizeof(float));
        n_logits++;
    }
    if (n_logits)
        c->device->backend->head(c->device, c->weights->options.ranks->weights, (Slice){l->x, 0}, n_logits,
                                 (Slice){l->logits, 0});
}

const float *ranks_layers_read(Context *c, ResultKind kind, int32_t i) {
    const DrafterLayers *l = layers_of(c);
    if (kind != RESULT_LOGITS || !l->shares_head) return backend_cpu.read(c, kind, i);
    return l->logits->floats + (int64_t)i * c->weights->model->hparams.n_vocab;
}
