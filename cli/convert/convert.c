/* convert.c - plans the tensors of a GGUF file and streams the published weights into it.
 *
 * Rotary embeddings. A head of queries or keys is rotated in pairs of components. Published weights have the first
 * components of all pairs, then the second ones: components i and i + head_dim / 2 are a pair. In GGUF files of some
 * architectures, such as llama, components 2 i and 2 i + 1 are a pair, so the rows are reordered. Queries and keys are
 * reordered alike, so their products stay the same. */
#include "cli/convert/convert.h"

#include "base/files.h"
#include "base/math_functions.h"
#include "base/mem.h"
#include "cli/convert/convert_arch.h"
#include "cli/convert/convert_vocab.h"
#include "gguf/tensor_type.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TENSORS_OF_LAYER = 32 };

typedef struct Job Job;

/* A tensor of the GGUF file. */
typedef struct Item {
    Job *job;
    const SafeTensor *from, **experts; /* experts: NULL, or [n_expert], and `from` is the first */
    const SafeTensor *scales;          /* NULL, or those of a packed tensor */
    TensorType type;
    ConvertForm form;
    int64_t n_in, n_out; /* [n_out][n_in], for each expert; n_out 1: a vector */
    float shift;         /* is added to each number */
} Item;

struct Job {
    HubFolder *c;
    const ConvertOptions *o;
    const ConvertArch *arch;
    const ConvertTensor *tensors;
    ConvertShape shape;
    Hparams hparams; /* `shape` as the sizes of tensors depend on it */
    GgufWriter *w;
    Item *items; /* [max_items(shape)] */
    int64_t n_items;
    float *row, *rope_factors;
    int64_t widest;
    size_t done, total;
};

/* The tensors that are not of a layer are fewer than those of one. */
static int64_t max_items(const ConvertShape *s) { return (s->n_layer + s->n_nextn + 1) * MAX_TENSORS_OF_LAYER; }

/* ---- rows -------------------------------------------------------------------------------------------- */

/* Returns the published row that becomes row o of a tensor with neighbouring pairs. */
static int64_t source_of(int64_t o, int64_t dim) { return o / dim * dim + o % 2 * (dim / 2) + o % dim / 2; }

static const SafeTensor *source(const Item *t, int64_t o) { return t->experts ? t->experts[o / t->n_out] : t->from; }

/* Reads a row of queries or keys, or their bias, for an architecture that rotates neighbours. */
static void read_pairs(const Item *t, int64_t o, float *row) {
    size_t each = tensor_type_info(t->from->type)->block_bytes;
    int64_t dim = t->job->shape.head_dim;
    const char *at = t->from->data;
    if (t->from->n_dims == 2) {
        blocks_dequantize(t->from->type, at + (size_t)(source_of(o, dim) * t->n_in) * each, t->n_in, row);
        return;
    }
    for (int64_t i = 0; i < t->n_in; i++)
        blocks_dequantize(t->from->type, at + (size_t)source_of(i, dim) * each, 1, row + i);
}

static void read_row(const Item *t, int64_t o, float *row) {
    const SafeTensor *from = source(t, o);
    const ConvertShape *s = &t->job->shape;
    if (t->form == FORM_ROTATED) {
        read_pairs(t, o, row);
        return;
    }
    size_t each = tensor_type_info(from->type)->block_bytes;
    RowPlaces places = convert_row_places(s, t->form, t->n_in, t->n_out, t->experts ? o % t->n_out : o);
    const char *data = from->data;
    if (places.stride == 1 && places.width == 0)
        blocks_dequantize(from->type, data + (size_t)places.first * each, t->n_in, row);
    else
        for (int64_t i = 0; i < t->n_in; i++)
            blocks_dequantize(from->type, data + (size_t)convert_place(s, &places, i) * each, 1, row + i);
    for (int64_t i = 0; i < t->n_in && t->shift != 0; i++) row[i] += t->shift;
    for (int64_t i = 0; i < t->n_in && convert_form_is_decay(t->form); i++) row[i] = (float)-math_exp((double)row[i]);
}

static void refuse(const Item *t, int64_t o, const char *why) {
    char sentence[500];
    Printable p;
    snprintf(sentence, sizeof sentence, "tensor %s %s", printable(&p, source(t, o)->name, strlen(source(t, o)->name)),
             why);
    gguf_writer_refuse(t->job->w, FR_ERR_FORMAT, sentence);
}

static bool fill_row(const Item *t, int64_t o, void *out) {
    float *row = t->job->row;
    read_row(t, o, row);
    if (!finite_floats(row, t->n_in)) {
        refuse(t, o, "holds NaN or infinity; the file is damaged, or its training went wrong");
        return false;
    }
    blocks_quantize(t->type, row, t->n_in, out);
    if (finite_weights(t->type, out, t->n_in)) return true;
    refuse(t, o, "holds numbers that are too large for F16; choose --type BF16 or F32");
    return false;
}

static bool fill_packed(const Item *t, int64_t o, void *out) {
    convert_packed_row(t->form, t->from->data, t->scales->data, t->n_in, o, out);
    if (finite_weights(t->type, out, t->n_in)) return true;
    refuse(t, o, "has a scale whose numbers are too large for a float; the file is damaged");
    return false;
}

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const Item *t = ctx;
    Job *job = t->job;
    size_t row_bytes = 0;
    (void)tensor_type_row_bytes(t->type, t->n_in, &row_bytes);
    for (int64_t i = 0; i < n_rows; i++) {
        char *out = (char *)dst + (size_t)i * row_bytes;
        if (!(t->scales ? fill_packed(t, first_row + i, out) : fill_row(t, first_row + i, out))) return;
        const SafeTensor *read = source(t, first_row + i);
        if ((first_row + i + 1) % t->n_out == 0)
            mapped_file_release(read->data, read->bytes); /* its pages are not read again */
    }
    job->done += (size_t)(n_rows * t->n_in);
    if (job->o->progress) job->o->progress(job->o->user, (double)job->done / (double)job->total);
}

/* ---- the plan ---------------------------------------------------------------------------------------- */

static TensorType type_of(const Job *job, const ConvertTensor *t, int64_t n_in, const char *name) {
    size_t bytes;
    char sentence[300];
    if (tensor_table[t->to].n_out == SIZE_NONE || convert_form_is_table(t->form)) return TYPE_F32;
    if (convert_form_is_packed(t->form)) return TYPE_MXFP4;
    if (tensor_type_row_bytes(job->o->type, n_in, &bytes)) return job->o->type;
    snprintf(sentence, sizeof sentence, "%s has rows of %lld numbers, which are not whole blocks of %s: F16 instead",
             name, (long long)n_in, tensor_type_info(job->o->type)->name);
    if (job->o->note) job->o->note(job->o->user, sentence);
    return TYPE_F16;
}

/* Finds the matrices of all experts. */
static int take_experts(Job *job, const ConvertTensor *t, int64_t layer, Item *item, fr_error *err) {
    char from[CONVERT_MAX_NAME];
    item->experts = mem_calloc((size_t)job->shape.n_expert, sizeof *item->experts);
    if (!item->experts) return error_memory(err, "a list of experts", (size_t)job->shape.n_expert);
    for (int64_t i = 0; i < job->shape.n_expert; i++) {
        convert_name_from(t, &job->shape, layer, i, from);
        int status = hub_take(job->c, from, item->n_in, item->n_out, &item->experts[i], err);
        if (status) return status;
        if (!item->experts[i]) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", job->c->folder, from);
    }
    item->from = item->experts[0];
    return FR_OK;
}

static int plan_experts(Job *job, const ConvertTensor *t, int64_t layer, fr_error *err) {
    char to[CONVERT_MAX_NAME];
    Item *item = &job->items[job->n_items++];
    convert_name_to(t, layer, to);
    int64_t n_in = tensor_size(&job->hparams, tensor_table[t->to].n_in),
            n_out = tensor_size(&job->hparams, tensor_table[t->to].n_out);
    *item = (Item){.job = job, .type = type_of(job, t, n_in, to), .n_in = n_in, .n_out = n_out};
    int status = take_experts(job, t, layer, item, err);
    if (status) return status;
    gguf_add_tensor_filled(job->w, to, item->type, 3, (int64_t[]){n_in, n_out, job->shape.n_expert}, fill, item);
    job->total += (size_t)(n_in * n_out * job->shape.n_expert);
    job->widest = n_in > job->widest ? n_in : job->widest;
    return FR_OK;
}

/* Takes the tensor of that name, or of the name that it has in a model that has other parts than the text model. */
static int take(Job *job, const char *name, const int64_t *dims, int n_dims, bool bytes, const SafeTensor **out,
                fr_error *err) {
    static const char text[] = "model.";
    char in_part[200];
    int status = hub_take_shaped(job->c, name, dims, n_dims, bytes, out, err);
    if (status || *out || !job->arch->has_text_part) return status;
    snprintf(in_part, sizeof in_part, "language_model.%s", name);
    status = hub_take_shaped(job->c, in_part, dims, n_dims, bytes, out, err);
    if (status || *out || strncmp(name, text, sizeof text - 1) != 0) return status;
    snprintf(in_part, sizeof in_part, "model.language_model.%s", name + sizeof text - 1);
    return hub_take_shaped(job->c, in_part, dims, n_dims, bytes, out, err);
}

/* Finds the tensors of an item: one, or blocks and scales. item->from stays NULL if the folder has none. */
static int take_sources(Job *job, Item *item, const char *name, int64_t n_out, fr_error *err) {
    char blocks[200], scales[200];
    int64_t dims[4];
    int n_dims = convert_form_dims(&job->shape, item->form, item->n_in, n_out, dims);
    if (!convert_form_is_packed(item->form)) return take(job, name, dims, n_dims, false, &item->from, err);
    size_t row_bytes;
    if (!tensor_type_row_bytes(TYPE_MXFP4, item->n_in, &row_bytes))
        return error_set(err, FR_ERR_FORMAT, "%s: %s has rows of %lld numbers, which are not whole blocks of MXFP4",
                         job->c->folder, name, (long long)item->n_in);
    snprintf(blocks, sizeof blocks, "%s_blocks", name);
    snprintf(scales, sizeof scales, "%s_scales", name);
    int status = take(job, blocks, dims, n_dims, true, &item->from, err);
    if (!status && item->from) status = take(job, scales, dims, n_dims - 1, true, &item->scales, err);
    if (!status && item->from && !item->scales)
        status = error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", job->c->folder, scales);
    return status;
}

/* Returns whether it is a norm whose weight is 1 plus the published number. */
static bool is_less_1(const ConvertArch *arch, const char *name) {
    static const char end[] = "norm.weight";
    size_t n = strlen(name);
    bool is_norm = n >= sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0 && !strstr(name, "linear_attn");
    return arch->adds_1_to_norms && (is_norm || strstr(name, "pre_fc_norm"));
}

static int plan_tensor(Job *job, const ConvertTensor *t, int64_t layer, fr_error *err) {
    char from[CONVERT_MAX_NAME], to[CONVERT_MAX_NAME];
    int64_t n_in = tensor_size(&job->hparams, tensor_table[t->to].n_in),
            n_out = tensor_size(&job->hparams, tensor_table[t->to].n_out);
    fr_assert(job->n_items < max_items(&job->shape)); /* no table is longer */
    if (convert_is_of_experts(t)) return plan_experts(job, t, layer, err);
    convert_name_from(t, &job->shape, layer, 0, from);
    convert_name_to(t, layer, to);
    Item *item = &job->items[job->n_items];
    *item = (Item){.job = job, .n_in = n_in, .n_out = n_out ? n_out : 1, .shift = is_less_1(job->arch, from) ? 1 : 0};
    item->form = t->form == FORM_ROTATED && !job->arch->rotates_pairs ? FORM_SAME : t->form;
    int status = take_sources(job, item, from, n_out, err);
    if (status) return status;
    if (!item->from && t->optional) return FR_OK;
    if (!item->from) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", job->c->folder, from);
    job->n_items++;
    item->type = type_of(job, t, n_in, to);
    int64_t n = convert_form_count(&job->shape, t->form);
    int n_dims = n_out == 0 ? 1 : n ? 3 : 2;
    const int64_t dims[] = {n_in, item->n_out, n};
    gguf_add_tensor_filled(job->w, to, item->type, n_dims, dims, fill, item);
    job->total += (size_t)(n_in * item->n_out * (n_dims == 3 ? n : 1));
    job->widest = n_in > job->widest ? n_in : job->widest;
    return FR_OK;
}

/* The LM head may be missing only if config.json ties it to the embedding, or does not have the key. */
static int check_tied(Job *job, fr_error *err) {
    const SafeTensor *head;
    const int64_t dims[] = {job->shape.n_vocab, job->shape.n_embd};
    int status = take(job, "lm_head.weight", dims, 2, false, &head, err);
    if (status || head || job->shape.tied != 0) return status;
    return error_set(err, FR_ERR_FORMAT,
                     "%s: tensor lm_head.weight is missing, and config.json does not tie the embedding",
                     job->c->folder);
}

/* Returns whether layer i has the tensor. In hybrid models some layers have attention, and the others are recurrent. */
static bool layer_has(const Job *job, const ConvertTensor *t, int64_t i) {
    if (job->arch->has) return job->arch->has(&job->shape, t, i);
    return !job->arch->recurrent || !strstr(t->from, job->shape.recurrent[i] ? ".self_attn." : job->arch->recurrent);
}

/* Leaves out the vision tensors, for which a GGUF file of the text model has no place. */
static void pass_over_parts(Job *job) {
    static const char *const parts[] = {
        "model.visual.",       "vision_tower.",          "model.vision_tower.",         "vision_model.",
        "model.vision_model.", "multi_modal_projector.", "model.multi_modal_projector."};
    int64_t n = 0;
    for (size_t i = 0; job->arch->has_text_part && i < sizeof parts / sizeof *parts; i++)
        n += hub_pass_over_all(job->c, parts[i]);
    if (n && job->o->note) job->o->note(job->o->user, "the vision part of the model is left out");
}

static int plan_tensors(Job *job, fr_error *err) {
    int64_t n_layer = job->shape.n_layer + job->shape.n_nextn;
    int status = check_tied(job, err);
    job->hparams = convert_hparams(&job->shape);
    for (const ConvertTensor *t = job->tensors; t->from && !status; t++) {
        bool of_layer = strstr(t->from, "%d") != NULL, is_head = t->to == TENSOR_OUTPUT;
        if (is_head && job->shape.tied == 1) continue; /* if it is there, it is a copy of the embedding */
        for (int64_t i = 0; i < (of_layer ? n_layer : 1) && !status; i++)
            if (!of_layer || layer_has(job, t, i)) status = plan_tensor(job, t, i, err);
    }
    bool has_mtp = job->shape.n_nextn && !job->shape.nextn_in_layers;
    for (const ConvertTensor *t = convert_nextn_tensors; has_mtp && t->from && !status; t++)
        status = plan_tensor(job, t, job->shape.n_layer, err);
    pass_over_parts(job);
    for (int64_t i = 0; i < job->shape.n_layer; i++) { /* old files have the frequencies that follow from rope_theta */
        char name[80];
        snprintf(name, sizeof name, "model.layers.%lld.self_attn.rotary_emb.inv_freq", (long long)i);
        hub_pass_over(job->c, name);
    }
    const SafeTensor *left = status ? NULL : hub_left_over(job->c);
    Printable p;
    if (left)
        status = error_set(err, FR_ERR_UNSUPPORTED,
                           "%s: holds the tensor %s, which the architecture %s does not have; the model would compute "
                           "something else without it",
                           job->c->folder, printable(&p, left->name, strlen(left->name)), job->arch->name);
    return status;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static void note_windows(const Job *job) {
    const json_t *window = json_object_get(job->c->config, "sliding_window"),
                 *used = json_object_get(job->c->config, "use_sliding_window");
    if (!job->o->note || job->arch->has_window || !json_is_integer(window) || json_is_false(used) ||
        json_integer_value(window) >= job->shape.n_ctx)
        return;
    job->o->note(
        job->o->user,
        "the model was trained with a sliding window, which GGUF files of this architecture do not have: texts "
        "that are longer than it are continued otherwise");
}

static int take_memory(Job *job, fr_error *err) {
    job->items = mem_calloc((size_t)max_items(&job->shape), sizeof *job->items);
    job->rope_factors = mem_calloc((size_t)job->shape.head_dim, sizeof *job->rope_factors);
    return job->items && job->rope_factors ? FR_OK : (int)error_memory(err, "a list of tensors", sizeof *job->items);
}

static int write_file(Job *job, const char *path, fr_error *err) {
    job->row = mem_calloc((size_t)job->widest + 1, sizeof *job->row);
    if (!job->row) return error_memory(err, "a row", (size_t)job->widest * sizeof *job->row);
    int status = hub_check(job->c, err);
    return status ? status : gguf_writer_finish(job->w, path, err);
}

static bool is_packed(const Job *job) { return job->tensors == job->arch->packed; }

/* Weights that are published quantised can be converted only if the architecture has a table for them. */
static int choose_tensors(Job *job, fr_error *err) {
    const json_t *how = json_object_get(job->c->config, "quantization_config");
    const char *method = config_text(how, "quant_method");
    Printable p;
    job->tensors = job->arch->tensors;
    if (job->arch->dense && json_integer_value(json_object_get(job->c->config, "num_local_experts")) == 0)
        job->tensors = job->arch->dense;
    if (!method) return FR_OK;
    bool is_mxfp4 = strcmp(method, "mxfp4") == 0;
    if (is_mxfp4 && job->arch->packed) job->tensors = job->arch->packed;
    if (is_packed(job) && job->o->note) job->o->note(job->o->user, "the experts stay in MXFP4, as they were published");
    if (is_packed(job)) return FR_OK;
    return error_set(
        err, FR_ERR_UNSUPPORTED,
        "%s/config.json: weights quantised by '%s' cannot be converted; choose the model in BF16 or F16, or cast it "
        "to BF16 and remove quantization_config from config.json",
        job->c->folder, printable(&p, method, strlen(method)));
}

/* Counts the layers for multi-token prediction by their tensors: config.json has several keys for them. Layers under
 * "mtp." share one matrix, and no model has been published with several of them. */
static int find_nextn(Job *job, fr_error *err) {
    ConvertShape *s = &job->shape;
    const SafeTensor *joined;
    int status;
    s->nextn_in_layers = job->arch->nextn_in_layers;
    do {
        char name[80];
        snprintf(name, sizeof name, "model.layers.%lld.eh_proj.weight", (long long)(s->n_layer + s->n_nextn));
        status = hub_take(job->c, s->nextn_in_layers ? name : "mtp.fc.weight", 2 * s->n_embd, s->n_embd, &joined, err);
        s->n_nextn += !status && joined;
    } while (!status && joined && s->nextn_in_layers);
    return status;
}

static bool has_experts(const Job *job) { return job->arch->experts && job->tensors != job->arch->dense; }

static int convert(Job *job, const char *path, fr_error *err) {
    ConvertVocab vocab = {.n = 0};
    job->arch = convert_arch_find(job->c, err);
    if (!job->arch) return FR_ERR_UNSUPPORTED;
    job->shape.arch = job->arch->name;
    if (job->arch->has_text_part) hub_enter_part(job->c, "text_config");
    int status = choose_tensors(job, err);
    if (!status) status = convert_shape_read(&job->shape, job->c, &job->arch->usual, err);
    if (!status && has_experts(job)) status = convert_experts_read(&job->shape, job->c, job->arch->experts, err);
    if (!status && job->arch->read) status = job->arch->read(&job->shape, job->c, err);
    if (!status && (job->arch->has_mtp || job->arch->nextn_in_layers)) status = find_nextn(job, err);
    if (!status) status = take_memory(job, err);
    if (!status) status = convert_vocab_read(&vocab, job->c, job->shape.n_vocab, err);
    if (!status) {
        convert_general_write(job->c, job->arch->name, is_packed(job) ? TYPE_MXFP4 : job->o->type, job->w);
        convert_shape_write(&job->shape, job->arch->name, job->arch->rotates_pairs, job->w);
        if (has_experts(job)) convert_experts_write(&job->shape, job->arch->name, job->w);
        status = convert_vocab_write(&vocab, job->c, job->w, err);
    }
    if (!status && job->arch->keys) status = job->arch->keys(&job->shape, job->c, job->w, err);
    if (!status) status = plan_tensors(job, err);
    if (!status) convert_rope_tensors(&job->shape, job->rope_factors, job->w);
    if (!status) note_windows(job);
    if (!status) status = write_file(job, path, err);
    convert_vocab_close(&vocab);
    return status;
}

int convert_folder(const char *folder, const char *path, const ConvertOptions *options, fr_error *err) {
    HubFolder c;
    Job job = {.c = &c, .o = options, .w = gguf_writer_new()};
    int status = hub_folder_open(&c, folder, err);
    if (!status && !job.w) status = error_memory(err, "a writer of GGUF files", 0);
    if (!status) status = convert(&job, path, err);
    for (int64_t i = 0; i < job.n_items; i++) mem_free(job.items[i].experts);
    mem_free(job.items);
    mem_free(job.row);
    mem_free(job.rope_factors);
    gguf_writer_free(job.w);
    hub_folder_close(&c);
    return status;
}
