/* ranks_backend.c - the table of the backend on rank 0. A call that concerns divided weights is sent to the other ranks
 * before it is made; all other calls go straight to the CPU backend. */
#include "compute/ranks/ranks.h"

#include <pthread.h>
#include <string.h>

/* ---- calls ------------------------------------------------------------------------------------------------ */

enum { BODY_MAX = 1 << 30 };

static void append(Ranks *r, Buf *to, const void *bytes, size_t n) {
    to->max_bytes = BODY_MAX;
    if (n && !buf_append(to, bytes, n)) comm_abort(r->comm, "out of memory: a call does not fit that ranks repeat");
}

void ranks_put(Ranks *r, const void *bytes, size_t n) { append(r, &r->body, bytes, n); }

void ranks_send(Ranks *r, Call call) {
    call.bytes = r->body.n;
    call.n_copies = r->copies.n / sizeof(SlotCopy);
    append(r, &r->body, r->copies.data, r->copies.n);
    comm_broadcast(r->comm, &call, sizeof call);
    if (r->body.n) comm_broadcast(r->comm, r->body.data, r->body.n);
    buf_clear(&r->body);
    buf_clear(&r->copies);
}

Call ranks_receive(Ranks *r) {
    Call call = {.kind = CALL_END};
    fr_error err;
    comm_broadcast(r->comm, &call, sizeof call);
    r->body.max_bytes = BODY_MAX;
    buf_clear(&r->body);
    if (comm_check(r->comm, &err)) return (Call){.kind = CALL_END};
    size_t bytes = call.bytes + call.n_copies * sizeof(SlotCopy);
    if (bytes && !buf_reserve(&r->body, bytes)) {
        comm_abort(r->comm, "out of memory: a call does not fit that ranks repeat");
        return (Call){.kind = CALL_END};
    }
    if (bytes) comm_broadcast(r->comm, r->body.data, bytes);
    return comm_check(r->comm, &err) ? (Call){.kind = CALL_END} : call;
}

/* How a call ended on a rank. */
typedef struct Outcome {
    int status;
    char message[sizeof((fr_error *)0)->message];
} Outcome;

static char *outcome_of(const void *outcomes, int rank, int64_t i) {
    (void)i;
    Outcome *all;
    memcpy(&all, outcomes, sizeof all);
    return (char *)&all[rank];
}

int ranks_agree(Ranks *r, int status, fr_error *err) {
    Outcome all[COMM_MAX_RANKS], *p = all;
    CommPart parts[COMM_MAX_RANKS] = {{0}};
    int own = comm_rank(r->comm), n = comm_size(r->comm), ended;
    all[own] = (Outcome){.status = status};
    if (status && err) memcpy(all[own].message, err->message, sizeof err->message);
    for (int i = 0; i < n; i++) parts[i] = (CommPart){1, sizeof *all};
    comm_gather(r->comm, parts, outcome_of, &p, true);
    if ((ended = comm_check(r->comm, err))) return ended;
    for (int i = 0; i < n; i++)
        if (all[i].status) return error_set(err, all[i].status, "rank %d: %.480s", i, all[i].message);
    return FR_OK;
}

/* ---- weights ---------------------------------------------------------------------------------------------- */

static Ranks *ranks_of(const Weights *w) { return w->n_ranks ? w->options.ranks : NULL; }
static bool are_layers(const Weights *w) { return w->options.ranks && !w->n_ranks; }

static int weights_open(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err) {
    int status = backend_cpu.weights_open(out, model, options, err);
    if (!status) (*out)->backend = ranks_backend();
    return status;
}

static int submodel(Weights **out, const Weights *target, const Model *layers, bool is_divided, fr_error *err) {
    int status = backend_cpu.submodel(out, target, layers, is_divided, err);
    if (!status) (*out)->backend = ranks_backend();
    return status;
}

static void close_weights(Weights *w) {
    if (w->number) ranks_draft_close(w);
    backend_cpu.weights_close(w);
}

/* ---- devices and contexts ---------------------------------------------------------------------------------- */

static int device_open(Device **out, const DeviceOptions *options, fr_error *err) {
    int status = backend_cpu.device_open(out, options, err);
    if (!status) (*out)->backend = ranks_backend();
    return status;
}

/* Notes on the device if the group has ended. */
static void check_group(const Ranks *r, Device *d) {
    fr_error err;
    if (comm_check(r->comm, &err)) device_fail(d, err.code, err.message);
}

/* Returns the number of a context (NULL: a number that none has), or -1. */
static int number_of(const Ranks *r, const Context *c) {
    for (int i = 0; i < RANKS_MAX_CONTEXTS; i++)
        if (r->contexts[i] == c) return i;
    return -1;
}

static void send_of_context(const Context *c, Call call) {
    Ranks *r = ranks_of(c->weights);
    call.context = number_of(r, c);
    ranks_send(r, call);
}

static int context_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err) {
    Ranks *r = ranks_of(w);
    if (are_layers(w)) return ranks_layers_open(out, d, w, options, err);
    if (!r) return backend_cpu.context_open(out, d, w, options, err);
    int number = number_of(r, NULL);
    *out = NULL;
    if (number < 0)
        return error_set(err, FR_ERR_MEMORY, "a model that is divided among ranks can have %d engines",
                         RANKS_MAX_CONTEXTS);
    const int32_t reads = options->reads ? number_of(r, options->reads) : -1;
    ranks_put(r, options, sizeof *options);
    ranks_put(r, &reads, sizeof reads);
    ranks_send(r, (Call){.kind = CALL_OPEN_CONTEXT, .context = number, .numbers = {d->n_threads, w->number}});
    int opened = backend_cpu.context_open(out, d, w, options, err), status = ranks_agree(r, opened, err);
    if (!status) r->contexts[number] = *out;
    else if (!opened) {
        backend_cpu.context_close(*out);
        *out = NULL;
    }
    return status;
}

static void context_close(Context *c) {
    Ranks *r = ranks_of(c->weights);
    if (r) {
        send_of_context(c, (Call){.kind = CALL_CLOSE_CONTEXT});
        r->contexts[number_of(r, c)] = NULL;
    }
    if (are_layers(c->weights)) ranks_layers_close(c);
    else backend_cpu.context_close(c);
}

static void forward(Context *c, const RowPlace *rows, int32_t n_rows) {
    Ranks *r = ranks_of(c->weights);
    if (are_layers(c->weights)) {
        ranks_layers_forward(c, rows, n_rows);
        return;
    }
    if (r) {
        ranks_put_rows(r, rows, n_rows, model_input_width(c->weights->model));
        send_of_context(c, (Call){.kind = CALL_FORWARD, .numbers = {n_rows, 2 * c->layer + c->only_stores}});
    }
    backend_cpu.forward(c, rows, n_rows);
    if (r) check_group(r, c->device);
}

static const float *read_result(Context *c, ResultKind kind, int32_t i) {
    return are_layers(c->weights) ? ranks_layers_read(c, kind, i) : backend_cpu.read(c, kind, i);
}

static int reserve_logits(Context *c, int32_t n, fr_error *err) {
    Ranks *r = ranks_of(c->weights);
    if (are_layers(c->weights)) return ranks_layers_reserve_logits(c, n, err);
    if (r) send_of_context(c, (Call){.kind = CALL_RESERVE_LOGITS, .numbers = {n}});
    int status = backend_cpu.reserve_logits(c, n, err);
    return r ? ranks_agree(r, status, err) : status;
}

static void advance_states(Context *c, const StateStep *steps, int32_t n) {
    Ranks *r = ranks_of(c->weights);
    for (int32_t i = 0; r && i < n; i++) {
        const StateStep *s = &steps[i];
        const int32_t numbers[] = {s->from, s->to, s->length, s->n_rows};
        ranks_put(r, numbers, sizeof numbers);
        ranks_put(r, s->rows, (size_t)s->n_rows * sizeof *s->rows);
    }
    if (r) send_of_context(c, (Call){.kind = CALL_ADVANCE_STATES, .numbers = {n}});
    backend_cpu.advance_states(c, steps, n);
}

static void copy_slots(Context *c, KvGroup group, int32_t from, int32_t to, int32_t n) {
    Ranks *r = ranks_of(c->weights);
    const SlotCopy copy = {r ? number_of(r, c) : -1, (int32_t)group, from, to, n};
    if (r) append(r, &r->copies, &copy, sizeof copy);
    backend_cpu.copy_slots(c, group, from, to, n);
}

static void fill_slot(Context *c, KvGroup group, int32_t slot) {
    Ranks *r = ranks_of(c->weights);
    const SlotCopy fill = {r ? number_of(r, c) : -1, (int32_t)group, slot, slot, 0};
    if (r) append(r, &r->copies, &fill, sizeof fill);
    backend_cpu.fill_slot(c, group, slot);
}

/* ---- the embedding and the LM head, for drafters ------------------------------------------------------------ */

static int head_reserve(Device *d, const Weights *w, int32_t max_rows, fr_error *err) {
    Ranks *r = ranks_of(w);
    if (r) ranks_send(r, (Call){.kind = CALL_RESERVE_HEAD, .context = -1, .numbers = {max_rows, d->n_threads}});
    int status = backend_cpu.head_reserve(d, w, max_rows, err);
    return r ? ranks_agree(r, status, err) : status;
}

static void head(Device *d, const Weights *w, Slice x, int32_t n_rows, Slice y) {
    Ranks *r = ranks_of(w);
    if (n_rows < 1) return;
    if (r) {
        ranks_put(r, x.buffer->floats + x.first, (size_t)n_rows * (size_t)w->model->hparams.n_embd * sizeof(float));
        ranks_send(r, (Call){.kind = CALL_HEAD, .context = -1, .numbers = {n_rows}});
    }
    backend_cpu.head(d, w, x, n_rows, y);
    if (r) check_group(r, d);
}

static void embed(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out) {
    Ranks *r = ranks_of(w);
    if (r) {
        ranks_put(r, tokens, (size_t)n * sizeof *tokens);
        ranks_send(r, (Call){.kind = CALL_EMBED, .context = -1, .numbers = {n}});
    }
    backend_cpu.embed(d, w, tokens, n, out);
    if (r) check_group(r, d);
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static Backend table;

static void fill_table(void) {
    table = backend_cpu;
    table.weights_open = weights_open;
    table.submodel = submodel;
    table.draft_weights = ranks_draft_weights;
    table.weights_close = close_weights;
    table.device_open = device_open;
    table.context_open = context_open;
    table.context_close = context_close;
    table.forward = forward;
    table.read = read_result;
    table.reserve_logits = reserve_logits;
    table.advance_states = advance_states;
    table.copy_slots = copy_slots;
    table.fill_slot = fill_slot;
    table.head_reserve = head_reserve;
    table.head = head;
    table.embed = embed;
    table.read_weights = NULL; /* a rank has only some tiles of each matrix */
}

const Backend *ranks_backend(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &table;
}
