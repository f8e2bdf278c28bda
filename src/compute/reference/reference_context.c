/* reference_context.c - the memory of a forward of the reference backend. */
#include "compute/reference/reference.h"

#include "base/mem.h"

#include <string.h>

/* The most experts of any layer, and the longest row of any matrix. */
static void measure(const Model *m, int64_t *n_expert, int64_t *widest) {
    const Hparams *h = &m->hparams;
    *n_expert = 1;
    *widest = max_i64(max_i64(h->n_embd, hparams_max_ff(h)), max_i64(hparams_q_dim(h), h->state.n_values));
    *widest = max_i64(*widest, max_i64(h->latent.q_rank, max_i64(h->latent.plain_dim, latent_values_dim(h))));
    for (int32_t i = 0; i < h->n_layer; i++) *n_expert = max_i64(*n_expert, layer_n_experts(&m->layers[i]));
}

static int allocate(RefContext *c, fr_error *err) {
    const Hparams *h = &c->model->hparams;
    int64_t rows = c->options.max_rows, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h), n_expert, widest;
    measure(c->model, &n_expert, &widest);
    const struct {
        void *out;
        int64_t n;
        size_t each;
    } wants[] = {
        {&c->kv[KV_ALL], reference_n_planes(c, KV_ALL) * (int64_t)c->options.n_slots[KV_ALL] * kv_dim, sizeof(double)},
        {&c->kv[KV_WINDOW], reference_n_planes(c, KV_WINDOW) * (int64_t)c->options.n_slots[KV_WINDOW] * kv_dim,
         sizeof(double)},
        {&c->x, rows * h->n_embd, sizeof(double)},
        {&c->normed, rows * h->n_embd, sizeof(double)},
        {&c->q, 2 * rows * q_dim, sizeof(double)}, /* with gates, before they are taken out */
        {&c->output_gates, rows * q_dim, sizeof(double)},
        {&c->attended, rows * max_i64(q_dim, h->state.n_values), sizeof(double)},
        {&c->k, rows * kv_dim, sizeof(double)},
        {&c->v, rows * kv_dim, sizeof(double)},
        {&c->queries, rows * latent_query_dim(h), sizeof(double)},
        {&c->q_latent, rows * h->latent.q_rank, sizeof(double)},
        {&c->head_values, rows * latent_values_dim(h), sizeof(double)},
        {&c->gate, max_i64(rows * hparams_max_ff(h), h->n_vocab), sizeof(double)},
        {&c->up, rows * hparams_max_ff(h), sizeof(double)},
        {&c->delta, rows * h->n_embd, sizeof(double)},
        {&c->scores, c->options.n_ctx, sizeof(double)},
        {&c->experts, n_expert, sizeof(double)},
        {&c->expert_in, h->n_embd, sizeof(double)},
        {&c->expert_out, h->n_embd, sizeof(double)},
        {&c->weight_row, widest, sizeof(float)},
        {&c->hidden, rows * h->n_embd, sizeof(float)},
    };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        size_t bytes;
        void *p = size_mul((size_t)wants[i].n, wants[i].each, &bytes) ? mem_alloc(bytes ? bytes : 1) : NULL;
        if (!p) return error_memory(err, "a context of the reference backend", bytes);
        memcpy(wants[i].out, &p, sizeof p);
    }
    return reference_states_open(c, err);
}

int reference_context_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err) {
    *out = NULL;
    RefContext *c = mem_calloc(1, sizeof *c);
    if (!c) return error_memory(err, "a context", sizeof *c);
    c->base = (Context){.weights = w, .device = d};
    c->model = w->model;
    c->options = *options;
    int status = allocate(c, err);
    if (status) {
        reference_context_close(&c->base);
        return status;
    }
    *out = &c->base;
    return FR_OK;
}

void reference_context_close(Context *context) {
    RefContext *c = (RefContext *)context;
    reference_states_close(c);
    void *const all[] = {c->output_gates,
                         c->kv[KV_ALL],
                         c->kv[KV_WINDOW],
                         c->x,
                         c->normed,
                         c->q,
                         c->attended,
                         c->k,
                         c->v,
                         c->gate,
                         c->up,
                         c->delta,
                         c->scores,
                         c->experts,
                         c->expert_in,
                         c->expert_out,
                         c->weight_row,
                         c->logits,
                         c->hidden,
                         c->queries,
                         c->q_latent,
                         c->head_values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    mem_free(c);
}

int reference_reserve_logits(Context *context, int32_t n, fr_error *err) {
    RefContext *c = (RefContext *)context;
    return backend_reserve_logits(&c->logits, &c->max_logits, c->model->hparams.n_vocab, n, err);
}

const float *reference_read(Context *context, ResultKind kind, int32_t i) {
    const RefContext *c = (const RefContext *)context;
    const Hparams *h = &c->model->hparams;
    return kind == RESULT_LOGITS ? c->logits + (int64_t)i * h->n_vocab : c->hidden + (int64_t)i * h->n_embd;
}

void reference_copy_slots(Context *context, KvGroup group, int32_t from, int32_t to, int32_t n) {
    const RefContext *c = (const RefContext *)context;
    int64_t kv_dim = hparams_kv_dim(&c->model->hparams);
    for (int32_t i = 0; i < reference_n_planes(c, group); i++) {
        double *slots = c->kv[group] + i * (int64_t)c->options.n_slots[group] * kv_dim;
        memmove(slots + to * kv_dim, slots + from * kv_dim, (size_t)(n * kv_dim) * sizeof *slots);
    }
}

void reference_fill_slot(Context *context, KvGroup group, int32_t slot) {
    const RefContext *c = (const RefContext *)context;
    int64_t kv_dim = hparams_kv_dim(&c->model->hparams);
    for (int32_t i = 0; i < reference_n_planes(c, group); i++)
        for (int64_t k = 0; k < kv_dim; k++)
            c->kv[group][((int64_t)i * c->options.n_slots[group] + slot) * kv_dim + k] = 1;
}
