/* cpu_weights.c - the weights of a model, packed in tiles for the kernels, or mapped from a file of packed weights. */
#include "compute/cpu/cpu.h"
#include "compute/cpu/packed_file.h"

#include "base/files.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <stdatomic.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RELEASE_BYTES = 1 << 20 };

/* A matrix to be packed, and where it is in the file. */
typedef struct Packing {
    PackedMatrix *m;
    Share tiles;            /* the tiles that are packed */
    const GgufTensor *from; /* the tensor that errors name */
    const void *data;       /* the matrix: all of the tensor, or one of its experts */
    const char *packed;     /* all of its tiles in a file of packed weights, from which they are copied; NULL: none */
    size_t packed_at;       /* where they begin among all matrices there */
    int64_t n_rows;
    atomic_bool is_not_finite; /* NaN or infinity was found in it */
} Packing;

typedef struct Loader {
    CpuWeights *w;
    Packing *packings; /* [n_packings] in the order in which a forward reads them */
    int64_t n_packings;
    size_t file_bytes; /* the bytes of all tiles, of all ranks */
    fr_error *err;
} Loader;

static ActForm block_form(const CpuWeights *w) {
    return w->base.options.activations == ACT_PRECISION_Q8 ? ACT_Q8 : ACT_Q16;
}

/* Returns rows [begin, end) of a matrix of the file, or fewer if it has fewer. */
static const char *file_rows(const Packing *p, int64_t begin, int64_t end, size_t *bytes) {
    const GgufTensor *t = p->from;
    size_t row_bytes = t->bytes / (size_t)(t->dims[1] * t->dims[2]);
    if (end > p->n_rows) end = p->n_rows;
    *bytes = (size_t)(end - begin) * row_bytes;
    return (const char *)p->data + (size_t)begin * row_bytes;
}

static void check_rows(Packing *p, int64_t begin, int64_t end) {
    size_t bytes;
    const char *rows = file_rows(p, begin, end, &bytes);
    if (end > p->n_rows) end = p->n_rows;
    if (!finite_weights(p->from->type, rows, (end - begin) * p->from->dims[0]))
        atomic_store_explicit(&p->is_not_finite, true, memory_order_relaxed);
}

/* Gives rows [begin, end) back to the system, if they are enough to be worth a system call or are the last ones.
 * Returns the first row that is still to be given back. Pages of a mapped file count as memory of the process once they
 * were read; because they are given back as soon as they are packed, the peak is that of the packed weights
 * (tests/cli/test_load_memory.c). */
static int64_t release_rows(const Packing *p, int64_t begin, int64_t end, bool is_last) {
    size_t bytes;
    const char *rows = file_rows(p, begin, end, &bytes);
    if (bytes < RELEASE_BYTES && !is_last) return begin;
    mapped_file_release(rows, bytes);
    return end;
}

/* Gives back the pages of the other ranks' rows, which the system has mapped together with those next to them. */
static void release_other_rows(const Packing *p) {
    size_t bytes;
    const char *rows = file_rows(p, 0, p->n_rows, &bytes);
    if (share_size(p->tiles) < packed_n_tiles(p->m)) mapped_file_release(rows, bytes);
}

/* Rows are checked and packed tile by tile, so that they are still in the cache when they are packed. */
static void fill_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Packing *p = ctx;
    int64_t begin, end;
    threads_split(share_size(p->tiles), 1, i_part, n_parts, &begin, &end);
    begin += p->tiles.first, end += p->tiles.first;
    int64_t kept = begin * TILE_ROWS;
    for (int64_t i = begin; i < end; i++) {
        check_rows(p, i * TILE_ROWS, (i + 1) * TILE_ROWS);
        packed_fill(p->m, p->data, i, i + 1);
        kept = release_rows(p, kept, (i + 1) * TILE_ROWS, i + 1 == end);
    }
}

static void copy_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Packing *p = ctx;
    int64_t begin, end;
    threads_split(share_size(p->tiles), 1, i_part, n_parts, &begin, &end);
    size_t at = (size_t)(p->tiles.first + begin) * p->m->tile_bytes, n = (size_t)(end - begin) * p->m->tile_bytes;
    memcpy((char *)p->m->data + at, p->packed + at, n);
    mapped_file_release(p->packed + at, n);
}

static void check_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Packing *p = ctx;
    int64_t begin, end;
    threads_split(p->n_rows, 1, i_part, n_parts, &begin, &end);
    check_rows(p, begin, end);
}

/* Checks the rows of a table, which are copied and not packed. */
static int check_table(const CpuWeights *w, const GgufTensor *t, const void *rows, fr_error *err) {
    Packing p = {.from = t, .data = rows, .n_rows = w->n_embedded};
    threads_run_once(w->base.options.n_threads, check_part, &p);
    return p.is_not_finite ? model_refuse_not_finite(w->base.model, t, err) : FR_OK;
}

static size_t own_bytes(const Packing *p) { return (size_t)share_size(p->tiles) * p->m->tile_bytes; }

/* Returns whether this rank computes a head of latent attention. */
static bool has_head(const CpuWeights *w, const LayerSpec *spec, int64_t head) {
    Share units = cpu_share_units(w, spec);
    int64_t unit = head / attention_group(&w->base.model->hparams, spec);
    return unit >= units.first && unit < units.last;
}

/* Sets the shape of a matrix that pack_all will fill with matrix i of the tensor. spec and slot say where it is; the LM
 * head has no spec. */
static int will_pack(Loader *l, const GgufTensor *t, int64_t i, const LayerSpec *spec, LayerMatrix slot,
                     PackedMatrix *out) {
    GgufTensor one = expert_matrix(t, i);
    int status = packed_shape(out, t->type, block_form(l->w), t->dims[1], t->dims[0], l->err);
    if (status) return status;
    Packing *p = &l->packings[l->n_packings++];
    *p = (Packing){.m = out, .from = t, .data = one.data, .packed_at = l->file_bytes, .n_rows = t->dims[1]};
    p->tiles = spec ? cpu_share_tiles(l->w, spec, slot, out) : cpu_share(l->w, packed_n_tiles(out));
    if (spec && layer_matrix_info[slot].count == MATRIX_OF_HEADS && !has_head(l->w, spec, i)) p->tiles = (Share){0, 0};
    if (!size_add(l->w->block_bytes, own_bytes(p), &l->w->block_bytes) ||
        !size_add(l->file_bytes, packed_bytes(out), &l->file_bytes))
        return error_memory(l->err, "the weights", SIZE_MAX);
    return FR_OK;
}

/* Lets pack_all fill other tiles of the matrix that was added last, too: *out is the same matrix with these tiles. */
static int will_pack_more(Loader *l, Share tiles, PackedMatrix *out) {
    const Packing *last = &l->packings[l->n_packings - 1];
    Packing *p = &l->packings[l->n_packings++];
    *out = *last->m;
    *p = *last;
    p->m = out, p->tiles = tiles;
    if (size_add(l->w->block_bytes, own_bytes(p), &l->w->block_bytes)) return FR_OK;
    return error_memory(l->err, "the weights", SIZE_MAX);
}

/* Returns the address of what is `bytes` bytes before p, and may not exist: tile 0 of a matrix, or row 0 of a table,
 * whose first tiles or rows belong to other ranks. */
static void *before(const void *p, size_t bytes) { return (void *)((uintptr_t)p - bytes); }

/* Packs all matrices into one block of memory, so that small ones are in huge pages, too, and no page is left half
 * empty. */
static int pack_all(Loader *l) {
    const WeightsOptions *o = &l->w->base.options;
    size_t done = 0, all = l->w->block_bytes;
    char *at = l->w->block = mem_alloc(all ? all : 1);
    if (!at) return error_memory(l->err, "the weights", all);
    for (int64_t i = 0; i < l->n_packings; i++) {
        Packing *p = &l->packings[i];
        p->m->data = before(at + done, (size_t)p->tiles.first * p->m->tile_bytes);
        threads_run_once(o->n_threads, p->packed ? copy_part : fill_part, p);
        release_other_rows(p);
        if (p->is_not_finite) return model_refuse_not_finite(l->w->base.model, p->from, l->err);
        done += own_bytes(p);
        if (o->progress) o->progress(o->progress_user, (double)done / (double)all);
    }
    return FR_OK;
}

/* Returns the embedding as the weights keep it. It has no data if its rows can be read from the output matrix because
 * the two are the same. BF16 is an exception, because packing replaces its subnormal numbers by zeros. */
static GgufTensor own_embedding(const Model *m) {
    GgufTensor t = *m->token_embd;
    if (m->output == m->token_embd && t.type != TYPE_BF16) t.data = NULL, t.bytes = 0;
    return t;
}

/* Returns the table of per-layer embeddings, which is empty if the model has none. */
static GgufTensor own_ple_table(const Model *m) { return m->ple_table ? *m->ple_table : (GgufTensor){0}; }

/* The two tables are in one block, first the embedding. Returns where the second one begins there. */
static size_t second_table(size_t embedding_bytes) { return (embedding_bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN; }
static size_t tables_bytes(size_t embedding_bytes, size_t ple_bytes) {
    return ple_bytes ? second_table(embedding_bytes) + ple_bytes : embedding_bytes;
}

/* Lists what this rank copies from a file of packed weights. Returns NULL if there is no memory. */
static PackedRange *own_ranges(const Loader *l) {
    PackedRange *ranges = mem_calloc((size_t)l->n_packings + 1, sizeof *ranges);
    for (int64_t i = 0; ranges && i < l->n_packings; i++) {
        const Packing *p = &l->packings[i];
        ranges[i] = (PackedRange){p->packed_at + (size_t)p->tiles.first * p->m->tile_bytes, own_bytes(p)};
    }
    return ranges;
}

/* Opens and checks the file of packed weights. A rank does so together with all others, and tells them if it has none.
 */
static int open_packed(Loader *l, size_t tables_bytes, const void **matrices, const void **tables, fr_error *err) {
    CpuWeights *w = l->w;
    const WeightsOptions *o = &w->base.options;
    PackedRange *ranges = w->base.n_ranks ? own_ranges(l) : NULL;
    const PackedReader reader = {cpu_comm(w), ranges, l->n_packings};
    if (w->base.n_ranks && !ranges) {
        packed_ranks_abstain(cpu_comm(w));
        return error_memory(err, "the places of weights", (size_t)l->n_packings * sizeof *ranges);
    }
    int status = packed_file_open(&w->base.mapped, o->packed_file, w->base.model->gguf, l->file_bytes, tables_bytes,
                                  ranges ? &reader : NULL, o->n_threads, matrices, tables, err);
    mem_free(ranges);
    return status;
}

/* Maps the matrices and the tables from a file of packed weights. Returns false if there is no such file, or if it
 * cannot be used, which packed_error explains. A rank will copy its tiles instead: they are then near its cores, and
 * the tiles of the others take no memory. */
static bool map_packed(Loader *l) {
    CpuWeights *w = l->w;
    const GgufTensor own = own_embedding(w->base.model), ple = own_ple_table(w->base.model);
    const void *matrices, *tables;
    fr_error why;
    if (open_packed(l, tables_bytes(own.bytes, ple.bytes), &matrices, &tables, &why)) {
        snprintf(w->base.packed_error, sizeof w->base.packed_error, "%s", why.message);
        return false;
    }
    for (int64_t i = 0; i < l->n_packings; i++) {
        Packing *p = &l->packings[i];
        const char *at = (const char *)matrices + p->packed_at;
        if (w->base.n_ranks) p->packed = at;
        else p->m->data = (void *)(uintptr_t)at; /* kernels only read it */
    }
    if (w->base.n_ranks) return false;
    w->embedding = own, w->ple_table = ple;
    if (own.bytes) w->embedding.data = tables;
    if (ple.bytes) w->ple_table.data = (const char *)tables + second_table(own.bytes);
    return true;
}

/* Returns whether the weights have been mapped. If not, and the status is good, they must be packed or copied. */
static bool use_packed(Loader *l, int status) {
    const char *path = l->w->base.options.packed_file;
    if (!path) return false;
    if (!status && access(path, F_OK) == 0) return map_packed(l);
    if (l->w->base.n_ranks) packed_ranks_abstain(cpu_comm(l->w));
    return false;
}

/* Copies the rows of a table of this rank to `to`, if there is a table. */
static void copy_table(const CpuWeights *w, GgufTensor *table, char *to) {
    if (!table->data) return;
    size_t row_bytes = table->bytes / (size_t)table->dims[1];
    size_t first = (size_t)cpu_share_tokens(w, cpu_rank(w)).first * row_bytes;
    memcpy(to, (const char *)table->data + first, (size_t)w->n_embedded * row_bytes);
    mapped_file_release(table->data, table->bytes);
    table->data = before(to, first);
}

/* Copies the embedding and the table of per-layer embeddings, of which a row is read for each token, because the file
 * may be overwritten or cut while the model is open. A submodel shares the embedding of its target. */
static int copy_tables(CpuWeights *w, const CpuWeights *target, fr_error *err) {
    const Model *m = w->base.model;
    w->embedding = target ? target->embedding : own_embedding(m);
    w->ple_table = own_ple_table(m);
    if (target || (!w->embedding.data && !w->ple_table.data)) return FR_OK;
    w->n_embedded = share_size(cpu_share_tokens(w, cpu_rank(w)));
    size_t n = (size_t)w->n_embedded, n_vocab = (size_t)m->hparams.n_vocab;
    size_t embedding_bytes = w->embedding.bytes / n_vocab * n;
    size_t bytes = tables_bytes(embedding_bytes, w->ple_table.bytes / n_vocab * n);
    w->tables = mem_alloc(bytes ? bytes : 1);
    if (!w->tables) return error_memory(err, "the embedding", bytes);
    copy_table(w, &w->embedding, w->tables);
    copy_table(w, &w->ple_table, (char *)w->tables + second_table(embedding_bytes));
    return FR_OK;
}

/* Refuses numbers of experts that the arrays of experts.c have no room for. */
static int check_experts(const Model *m, int32_t i, fr_error *err) {
    const LayerSpec *s = &m->layers[i];
    int64_t n = layer_n_experts(s), most = n < MODEL_MAX_EXPERTS_USED ? n : MODEL_MAX_EXPERTS_USED;
    if (n == 0 || (n <= MODEL_MAX_EXPERTS && s->n_expert_used >= 1 && s->n_expert_used <= most)) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: layer %d uses %d of %lld experts at once, but 1 to %lld are possible", gguf_path(m->gguf), i,
                     s->n_expert_used, (long long)n, (long long)most);
}

static int load_matrix(Loader *l, CpuLayer *layer, LayerMatrix m, int64_t i) {
    const LayerSpec *s = layer->spec;
    int status = will_pack(l, s->matrices[m], i, s, m, &layer->matrices[m][i]);
    layer->matrices[m][i].scale = layer_matrix_scale(s, m, i);
    if (!status && m == MATRIX_STATE_INPUTS && cpu_divides_inputs(l->w, s))
        status = will_pack_more(l, cpu_share_value_inputs(l->w, s, layer->matrices[m]), &layer->value_inputs);
    return status;
}

/* Loads the matrices of a layer that do not belong to experts. */
static int load_matrices(Loader *l, CpuLayer *layer) {
    size_t before = l->w->block_bytes;
    int status = FR_OK;
    for (LayerMatrix m = 0; m < LAYER_MATRICES; m++) {
        bool of_experts = layer_matrix_info[m].count == MATRIX_OF_EXPERTS;
        int64_t n = of_experts ? 0 : layer_matrix_count(layer->spec, m);
        for (int64_t i = 0; i < n && !status; i++) status = load_matrix(l, layer, m, i);
    }
    l->w->base.bytes += l->w->block_bytes - before;
    return status;
}

/* Loads the matrices of experts, so that those of one expert are adjacent. */
static int load_experts(Loader *l, CpuLayer *layer) {
    int64_t n = layer_n_experts(layer->spec);
    size_t before = l->w->block_bytes;
    int status = FR_OK;
    for (int64_t i = 0; i < n; i++)
        for (LayerMatrix m = 0; m < LAYER_MATRICES && !status; m++)
            if (layer_matrix_info[m].count == MATRIX_OF_EXPERTS) status = load_matrix(l, layer, m, i);
    if (n) l->w->base.bytes += (l->w->block_bytes - before) / (size_t)n * (size_t)layer->spec->n_expert_used;
    return status;
}

/* Copies the taps of a convolution, in an order in which the same tap of all channels is contiguous. */
static int copy_conv(Loader *l, const float *conv, CpuLayer *layer) {
    const StateShape *d = &l->w->base.model->hparams.state;
    int64_t n = d->n_channels, n_conv = d->n_conv;
    layer->conv = mem_alloc((size_t)(n * n_conv) * sizeof *layer->conv);
    if (!layer->conv) return error_memory(l->err, "a convolution", (size_t)(n * n_conv) * sizeof *layer->conv);
    for (int64_t i = 0; i < n * n_conv; i++) layer->conv[i % n_conv * n + i / n_conv] = conv[i];
    return FR_OK;
}

/* Points to the matrices of a layer among all of them, from `at` on; returns the place after its last one. */
static PackedMatrix *place_matrices(CpuLayer *layer, PackedMatrix *at) {
    for (int m = 0; m < LAYER_MATRICES; m++) {
        int64_t n = layer_matrix_count(layer->spec, (LayerMatrix)m);
        if (n) layer->matrices[m] = at;
        at += n;
    }
    return at;
}

static int load_layers(Loader *l) {
    const Model *m = l->w->base.model;
    PackedMatrix *at = l->w->matrices;
    int status = FR_OK;
    for (int32_t i = 0; i < m->hparams.n_layer && !status; i++) {
        CpuLayer *layer = &l->w->layers[i];
        layer->spec = &m->layers[i];
        layer->place = model_mixer_place(m, i);
        layer->units = cpu_share_units(l->w, layer->spec);
        at = place_matrices(layer, at);
        status = check_experts(m, i, l->err);
        if (!status && layer_has_state(layer->spec)) status = copy_conv(l, layer->spec->conv, layer);
        if (!status) status = load_matrices(l, layer);
        if (!status) status = load_experts(l, layer);
    }
    return status;
}

static size_t count_matrices(const Model *model) {
    size_t n = 0;
    for (int32_t i = 0; i < model->hparams.n_layer; i++)
        for (int m = 0; m < LAYER_MATRICES; m++) n += (size_t)layer_matrix_count(&model->layers[i], (LayerMatrix)m);
    return n;
}

/* Ends the mapping from which a rank has copied its tiles. */
static int leave_packed(CpuWeights *w, int status, fr_error *err) {
    if (!status) status = mapped_file_check(w->base.mapped, err);
    mapped_file_close(w->base.mapped);
    w->base.mapped = NULL;
    return status;
}

static int pack_and_copy(Loader *l, const CpuWeights *target) {
    const Model *m = l->w->base.model;
    CpuWeights *w = l->w;
    int status = copy_tables(w, target, l->err);
    if (!status) status = pack_all(l);
    if (w->base.mapped) status = leave_packed(w, status, l->err);
    if (!status && !target && m->output != m->token_embd) status = check_table(w, m->token_embd, w->tables, l->err);
    if (!status && m->ple_table) {
        size_t row_bytes = w->embedding.bytes / (size_t)m->hparams.n_vocab;
        const char *rows = (const char *)w->tables + second_table(row_bytes * (size_t)w->n_embedded);
        status = check_table(w, m->ple_table, rows, l->err);
    }
    return status;
}

/* Opens weights. If there is a target, they are layers that share its LM head unless they have one of their own. */
static int open_weights(Weights **out, const Model *model, const WeightsOptions *options, const CpuWeights *target,
                        bool is_divided, fr_error *err) {
    *out = NULL;
    CpuWeights *w = mem_calloc(1, sizeof *w);
    if (!w) return error_memory(err, "the weights", sizeof *w);
    w->base = (Weights){.backend = &backend_cpu, .model = model, .options = *options};
    w->base.n_ranks = is_divided ? comm_size(options->ranks->comm) : 0;
    size_t n_layer = (size_t)model->hparams.n_layer;
    size_t n_matrices = count_matrices(model) + 1; /* the LM head is one more */
    Loader l = {.w = w, .err = err, .packings = mem_calloc(n_matrices + n_layer, sizeof *l.packings)};
    w->layers = mem_calloc(n_layer, sizeof *w->layers);
    w->matrices = mem_calloc(n_matrices, sizeof *w->matrices);
    int status = l.packings && w->layers && w->matrices ? kernels_find(options->kernels, &w->kernels, err)
                                                        : error_memory(err, "layers", n_matrices * sizeof *w->matrices);
    if (!status) w->base.options.kernels = w->kernels->name;
    if (!status) status = load_layers(&l);
    if (target && model->output == target->base.model->output) w->output = target->output;
    else if (!status && !(status = will_pack(&l, model->output, 0, NULL, MATRIX_O, &w->output)))
        w->base.bytes += own_bytes(&l.packings[l.n_packings - 1]);
    if (!use_packed(&l, status) && !status) status = pack_and_copy(&l, target);
    if (!status) status = gguf_check(model->gguf, err);
    mem_free(l.packings);
    if (status) {
        cpu_weights_close(&w->base);
        return status;
    }
    *out = &w->base;
    return FR_OK;
}

int cpu_weights_open(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err) {
    return open_weights(out, model, options, NULL, options->ranks != NULL, err);
}

int cpu_submodel(Weights **out, const Weights *target, const Model *layers, bool is_divided, fr_error *err) {
    WeightsOptions options = target->options;
    options.progress = NULL;
    options.packed_file = NULL;
    return open_weights(out, layers, &options, (const CpuWeights *)target, is_divided, err);
}

void cpu_weights_close(Weights *weights) {
    CpuWeights *w = (CpuWeights *)weights;
    mapped_file_close(w->base.mapped);
    for (int32_t i = 0; w->layers && i < weights->model->hparams.n_layer; i++) mem_free(w->layers[i].conv);
    mem_free(w->layers);
    mem_free(w->matrices);
    mem_free(w->block);
    mem_free(w->tables);
    mem_free(w);
}

int cpu_weights_save(const Weights *weights, const char *path, fr_error *err) {
    const CpuWeights *w = (const CpuWeights *)weights;
    fr_assert(w->block); /* weights that were mapped are not saved */
    return packed_file_write(path, weights->model->gguf, w->block, w->block_bytes, w->tables,
                             tables_bytes(w->embedding.bytes, w->ple_table.bytes), weights->options.n_threads, err);
}

void cpu_embedding_row(const CpuWeights *w, int32_t token, float *out) {
    const PackedMatrix *m = &w->output;
    char piece[PACKED_READ * sizeof(float)]; /* a piece of a row in the layout of the file */
    if (w->embedding.data) embedding_row(&w->embedding, token, out);
    else
        for (int64_t k = 0; k < m->n_in; k += PACKED_READ) {
            int64_t n = m->n_in - k < PACKED_READ ? m->n_in - k : PACKED_READ;
            packed_read_row(m, token, k, n, piece);
            blocks_dequantize(m->type, piece, n, out + k);
        }
}

int cpu_pack(const CpuWeights *like, const GgufTensor *t, PackedMatrix *out, fr_error *err) {
    int status = packed_init(out, t->type, block_form(like), t->dims[1], t->dims[0], err);
    if (!status) packed_fill(out, t->data, 0, packed_n_tiles(out)); /* drafter_tensors.c has checked the numbers */
    return status;
}
