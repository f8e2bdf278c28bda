/* ranks_work.c - what the ranks after 0 do: they repeat the calls of rank 0 with their parts of the weights. */
#include "compute/ranks/ranks.h"

#include <string.h>

typedef struct Worker {
    Ranks *ranks;
    const Weights *weights; /* of the target */
    const Backend *backend; /* that of the weights */
    Device *device;         /* for all contexts and products; opened by the first call that needs it */
    DraftPart drafts[RANKS_MAX_DRAFTS];
    RankRows rows[RANKS_MAX_CONTEXTS];
    Buffer *x, *y; /* [max_rows of the head] inputs and outputs of the LM head */
    fr_error why;  /* of a call whose status rank 0 wants to know */
} Worker;

static void open_draft(Worker *w, const Call *call) {
    DraftPart *p = &w->drafts[call->numbers[0]];
    int status = draft_part_open(p, w->ranks, call, &w->why);
    if (ranks_agree(w->ranks, status, &w->why)) draft_part_close(p);
}

static int open_device(Worker *w, int n_threads) {
    if (w->device) return FR_OK;
    const DeviceOptions options = {.kernels = w->weights->options.kernels, .n_threads = n_threads};
    return w->backend->device_open(&w->device, &options, &w->why);
}

static int open_context(Worker *w, const Call *call) {
    Context **c = &w->ranks->contexts[call->context];
    const Weights *weights = call->numbers[1] ? w->drafts[call->numbers[1]].weights : w->weights;
    ContextOptions options;
    int32_t reads; /* the number of the context whose keys and values it reads, or -1 */
    memcpy(&options, w->ranks->body.data, sizeof options);
    memcpy(&reads, w->ranks->body.data + sizeof options, sizeof reads);
    options.reads = reads >= 0 ? w->ranks->contexts[reads] : NULL;
    int status = open_device(w, (int)call->numbers[0]);
    if (!status) status = rank_rows_open(&w->rows[call->context], options.max_rows, &w->why);
    if (!status) status = w->backend->context_open(c, w->device, weights, &options, &w->why);
    return status;
}

static void close_context(Worker *w, int number) {
    if (w->ranks->contexts[number]) w->backend->context_close(w->ranks->contexts[number]);
    w->ranks->contexts[number] = NULL;
    rank_rows_close(&w->rows[number]);
}

static void repeat_forward(Worker *w, const Call *call) {
    Context *c = w->ranks->contexts[call->context];
    int32_t n_rows = (int32_t)call->numbers[0];
    const RowPlace *rows = rank_rows_take(&w->rows[call->context], w->ranks, n_rows,
                                          model_input_width(c->weights->model));
    c->layer = (int32_t)call->numbers[1] / 2, c->only_stores = call->numbers[1] % 2;
    if (rows) w->backend->forward(c, rows, n_rows);
    else comm_abort(w->ranks->comm, "out of memory: the rows of a forward do not fit");
}

static void advance_states(Worker *w, const Call *call) {
    const char *at = w->ranks->body.data;
    int32_t n = (int32_t)call->numbers[0];
    StateStep *steps = mem_calloc((size_t)n + 1, sizeof *steps);
    if (!steps) {
        comm_abort(w->ranks->comm, "out of memory: the recurrent states cannot be advanced");
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t numbers[4];
        memcpy(numbers, at, sizeof numbers);
        steps[i] = (StateStep){numbers[0], numbers[1], numbers[2], numbers[3], (const void *)(at + sizeof numbers)};
        at += sizeof numbers + (size_t)numbers[3] * sizeof(int32_t);
    }
    w->backend->advance_states(w->ranks->contexts[call->context], steps, n);
    mem_free(steps);
}

/* Makes room for the LM head over max_rows rows. */
static int reserve_head(Worker *w, int32_t max_rows, int n_threads) {
    const Hparams *h = &w->weights->model->hparams;
    int status = open_device(w, n_threads);
    if (!status) status = w->backend->head_reserve(w->device, w->weights, max_rows, &w->why);
    if (status || (w->x && w->x->n >= (int64_t)max_rows * h->n_embd)) return status;
    buffer_close(w->x);
    buffer_close(w->y);
    w->x = w->y = NULL;
    status = w->backend->buffer_open(&w->x, w->device, (int64_t)max_rows * h->n_embd, &w->why);
    return status ? status : w->backend->buffer_open(&w->y, w->device, (int64_t)max_rows * h->n_vocab, &w->why);
}

static void repeat_head(Worker *w, int32_t n_rows) {
    size_t bytes = (size_t)n_rows * (size_t)w->weights->model->hparams.n_embd * sizeof(float);
    fr_assert(w->x && w->y); /* CALL_RESERVE_HEAD has opened them */
    memcpy(w->x->floats, w->ranks->body.data, bytes);
    w->backend->head(w->device, w->weights, (Slice){w->x, 0}, n_rows, (Slice){w->y, 0});
}

static void repeat_embed(Worker *w, int32_t n) {
    Buffer *out;
    if (open_device(w, 1) ||
        w->backend->buffer_open(&out, w->device, (int64_t)n * w->weights->model->hparams.n_embd, &w->why)) {
        comm_abort(w->ranks->comm, w->why.message);
        return;
    }
    w->backend->embed(w->device, w->weights, (const void *)w->ranks->body.data, n, (Slice){out, 0});
    buffer_close(out);
}

static void copy_slots(Worker *w, const Call *call) {
    for (size_t i = 0; i < call->n_copies; i++) {
        SlotCopy s;
        memcpy(&s, w->ranks->body.data + call->bytes + i * sizeof s, sizeof s);
        Context *c = w->ranks->contexts[s.context];
        if (s.n) w->backend->copy_slots(c, (KvGroup)s.group, s.from, s.to, s.n);
        else w->backend->fill_slot(c, (KvGroup)s.group, s.to);
    }
}

static void repeat(Worker *w, const Call *call) {
    Ranks *r = w->ranks;
    const int64_t *numbers = call->numbers;
    Context *c = call->context >= 0 ? r->contexts[call->context] : NULL;
    copy_slots(w, call);
    switch (call->kind) {
    case CALL_OPEN_DRAFT: open_draft(w, call); break;
    case CALL_CLOSE_DRAFT: draft_part_close(&w->drafts[numbers[0]]); break;
    case CALL_OPEN_CONTEXT:
        if (ranks_agree(r, open_context(w, call), &w->why)) close_context(w, call->context);
        break;
    case CALL_CLOSE_CONTEXT: close_context(w, call->context); break;
    case CALL_FORWARD: repeat_forward(w, call); break;
    case CALL_RESERVE_LOGITS:
        ranks_agree(r, w->backend->reserve_logits(c, (int32_t)numbers[0], &w->why), &w->why);
        break;
    case CALL_ADVANCE_STATES: advance_states(w, call); break;
    case CALL_RESERVE_HEAD: ranks_agree(r, reserve_head(w, (int32_t)numbers[0], (int)numbers[1]), &w->why); break;
    case CALL_HEAD: repeat_head(w, (int32_t)numbers[0]); break;
    case CALL_EMBED: repeat_embed(w, (int32_t)numbers[0]); break;
    case CALL_END: break;
    }
}

void ranks_work(Ranks *r) {
    Worker w = {.ranks = r, .weights = r->weights, .backend = &backend_cpu};
    for (Call call = ranks_receive(r); call.kind != CALL_END; call = ranks_receive(r)) repeat(&w, &call);
    for (int i = 0; i < RANKS_MAX_CONTEXTS; i++) close_context(&w, i);
    for (int i = 0; i < RANKS_MAX_DRAFTS; i++) draft_part_close(&w.drafts[i]);
    buffer_close(w.x);
    buffer_close(w.y);
    device_close(w.device);
}
