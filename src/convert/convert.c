/* convert.c - the weights of a published model, streamed into a GGUF file.
 *
 * Rotary embeddings. A head of queries or keys is rotated in pairs of components. Published weights have the first
 * components of all pairs, then the second ones: component i and i + head_dim / 2 are a pair. Architecture llama in GGUF
 * files has the pairs side by side: 2 i and 2 i + 1. So its rows are put into that order; since queries and keys are
 * reordered alike, their products stay the same. */
#include "convert/convert.h"

#include "base/mapped_file.h"
#include "base/mem.h"
#include "convert/convert_arch.h"
#include "convert/convert_vocab.h"
#include "format/blocks.h"
#include "format/finite.h"
#include "format/printable.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TENSORS_OF_LAYER = 32 };

typedef struct Job Job;

typedef struct Item {
    Job *job;
    const SafeTensor *from, **experts; /* experts: NULL, or [n_expert], and from is the first */
    TensorType type;
    int64_t n_in,
        n_out; /* of an expert; n_out 1: a vector; one that is rotated has head_dim numbers in the place of rows */
    bool pairs;
    float shift; /* is added to the numbers */
} Item;

struct Job {
    HubFolder *c;
    const ConvertOptions *o;
    const ConvertArch *arch;
    ConvertShape shape;
    GgufWriter *w;
    Item *items; /* [n_layer * MAX_TENSORS_OF_LAYER] */
    int64_t n_items;
    float *row, *rope_factors;
    int64_t widest;
    size_t done, total;
};

/* ---- rows -------------------------------------------------------------------------------------------- */

/* Where component o of the pairs comes from. */
static int64_t source_of(int64_t o, int64_t dim) { return o / dim * dim + o % 2 * (dim / 2) + o % dim / 2; }

static const SafeTensor *source(const Item *t, int64_t o) { return t->experts ? t->experts[o / t->n_out] : t->from; }

static void read_row(const Item *t, int64_t o, float *row) {
    const SafeTensor *source_tensor = source(t, o);
    size_t each = tensor_type_info(source_tensor->type)->block_bytes;
    int64_t dim = t->job->shape.head_dim;
    bool is_vector = source_tensor->n_dims == 1;
    int64_t from = t->pairs && !is_vector ? source_of(o, dim) : o % t->n_out;
    const char *at = (const char *)source_tensor->data + (size_t)(from * t->n_in) * each;
    if (!t->pairs || !is_vector) {
        blocks_dequantize(source_tensor->type, at, t->n_in, row);
        for (int64_t i = 0; i < t->n_in && t->shift != 0; i++) row[i] += t->shift;
        return;
    }
    for (int64_t i = 0; i < t->n_in; i++)
        blocks_dequantize(source_tensor->type, at + (size_t)source_of(i, dim) * each, 1, row + i);
}

static void refuse(const Item *t, int64_t o, const char *why) {
    char sentence[500];
    Printable p;
    snprintf(sentence, sizeof sentence, "tensor %s %s", printable(&p, source(t, o)->name, strlen(source(t, o)->name)),
             why);
    gguf_writer_refuse(t->job->w, FR_ERR_FORMAT, sentence);
}

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const Item *t = ctx;
    Job *job = t->job;
    size_t row_bytes = 0;
    (void)tensor_type_row_bytes(t->type, t->n_in, &row_bytes);
    for (int64_t i = 0; i < n_rows; i++) {
        char *out = (char *)dst + (size_t)i * row_bytes;
        read_row(t, first_row + i, job->row);
        if (!finite_floats(job->row, t->n_in)) {
            refuse(t, first_row + i, "holds NaN or infinity; the file is damaged, or its training went wrong");
            return;
        }
        blocks_quantize(t->type, job->row, t->n_in, out);
        if (!finite_weights(t->type, out, t->n_in)) {
            refuse(t, first_row + i, "holds numbers that are too large for F16; choose --type BF16 or F32");
            return;
        }
        const SafeTensor *read = source(t, first_row + i);
        if ((first_row + i + 1) % t->n_out == 0) mapped_file_release(read->data, read->bytes); /* read once */
    }
    job->done += (size_t)(n_rows * t->n_in);
    if (job->o->progress) job->o->progress(job->o->user, (double)job->done / (double)job->total);
}

/* ---- the plan ---------------------------------------------------------------------------------------- */

static TensorType type_of(const Job *job, const ConvertTensor *t, int64_t n_in, const char *name) {
    size_t bytes;
    char sentence[300];
    if (t->n_out == SIZE_NONE || t->n_out == SIZE_ONE) return TYPE_F32;
    if (tensor_type_row_bytes(job->o->type, n_in, &bytes)) return job->o->type;
    snprintf(sentence, sizeof sentence, "%s has rows of %lld numbers, which are not whole blocks of %s: F16 instead",
             name, (long long)n_in, tensor_type_info(job->o->type)->name);
    if (job->o->note) job->o->note(job->o->user, sentence);
    return TYPE_F16;
}

/* Puts numbers into a name with "%d", as many as there are. */
static void write_name(const char *form, int64_t layer, int64_t expert, char out[160]) {
    int64_t numbers[2] = {layer, expert};
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; *form && n < 140; form++) {
        bool is_number = i < 2 && form[0] == '%' && form[1] == 'd';
        if (is_number) n += (size_t)snprintf(out + n, 160 - n, "%lld", (long long)numbers[i++]), form++;
        else out[n++] = *form, out[n] = '\0';
    }
}

static bool is_of_experts(const ConvertTensor *t) {
    const char *first = strstr(t->from, "%d");
    return first && strstr(first + 1, "%d");
}

/* The matrices of all experts. */
static int take_experts(Job *job, const ConvertTensor *t, int64_t layer, Item *item, fr_error *err) {
    char from[160];
    item->experts = mem_calloc((size_t)job->shape.n_expert, sizeof *item->experts);
    if (!item->experts) return error_memory(err, "a list of experts", (size_t)job->shape.n_expert);
    for (int64_t i = 0; i < job->shape.n_expert; i++) {
        write_name(t->from, layer, i, from);
        int status = hub_take(job->c, from, item->n_in, item->n_out, &item->experts[i], err);
        if (status) return status;
        if (!item->experts[i]) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", job->c->folder, from);
    }
    item->from = item->experts[0];
    return FR_OK;
}

static int plan_experts(Job *job, const ConvertTensor *t, int64_t layer, fr_error *err) {
    char to[160];
    Item *item = &job->items[job->n_items++];
    write_name(t->to, layer, 0, to);
    int64_t n_in = convert_size(&job->shape, t->n_in), n_out = convert_size(&job->shape, t->n_out);
    *item = (Item){.job = job, .type = type_of(job, t, n_in, to), .n_in = n_in, .n_out = n_out};
    int status = take_experts(job, t, layer, item, err);
    if (status) return status;
    gguf_add_tensor_filled(job->w, to, item->type, 3, (int64_t[]){n_in, n_out, job->shape.n_expert}, fill, item);
    job->total += (size_t)(n_in * n_out * job->shape.n_expert);
    job->widest = n_in > job->widest ? n_in : job->widest;
    return FR_OK;
}

static bool is_norm(const char *name) {
    static const char end[] = "norm.weight";
    size_t n = strlen(name);
    return n >= sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0;
}

static int plan_tensor(Job *job, const ConvertTensor *t, int64_t layer, fr_error *err) {
    char from[160], to[160];
    int64_t n_in = convert_size(&job->shape, t->n_in), n_out = convert_size(&job->shape, t->n_out);
    const SafeTensor *found;
    if (is_of_experts(t)) return plan_experts(job, t, layer, err);
    write_name(t->from, layer, 0, from);
    write_name(t->to, layer, 0, to);
    int status = hub_take(job->c, from, n_in, n_out, &found, err);
    if (status) return status;
    if (!found && t->optional) return FR_OK;
    if (!found) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", job->c->folder, from);
    bool is_vector = t->n_out == SIZE_NONE || t->n_out == SIZE_ONE;
    Item *item = &job->items[job->n_items++];
    *item = (Item){.job = job,
                   .from = found,
                   .type = type_of(job, t, n_in, to),
                   .n_in = n_in,
                   .n_out = n_out ? n_out : 1,
                   .pairs = t->rotated && job->arch->rotates_pairs,
                   .shift = job->arch->adds_1_to_norms && is_norm(from) ? 1 : 0};
    gguf_add_tensor_filled(job->w, to, item->type, is_vector ? 1 : 2, (int64_t[]){n_in, item->n_out}, fill, item);
    job->total += (size_t)(n_in * item->n_out);
    job->widest = n_in > job->widest ? n_in : job->widest;
    return FR_OK;
}

/* Whether the LM head is the embedding: config.json says so, or says nothing and there is none. */
static int check_tied(Job *job, fr_error *err) {
    const SafeTensor *head;
    int status = hub_take(job->c, "lm_head.weight", job->shape.n_embd, job->shape.n_vocab, &head, err);
    if (status || head || job->shape.tied != 0) return status;
    return error_set(err, FR_ERR_FORMAT,
                     "%s: tensor lm_head.weight is missing, and config.json does not tie the embedding",
                     job->c->folder);
}

static int plan_tensors(Job *job, fr_error *err) {
    int status = check_tied(job, err);
    for (const ConvertTensor *t = job->arch->tensors; t->from && !status; t++) {
        bool of_layer = strstr(t->from, "%d") != NULL, is_head = strcmp(t->to, "output.weight") == 0;
        if (is_head && job->shape.tied == 1) continue; /* a copy of the embedding, if it is there */
        for (int64_t i = 0; i < (of_layer ? job->shape.n_layer : 1) && !status; i++)
            status = plan_tensor(job, t, i, err);
    }
    for (int64_t i = 0; i < job->shape.n_layer; i++) { /* old files have what follows from rope_theta */
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

/* Llama 3's scaling of rope is a tensor. */
static void plan_rope_factors(Job *job) {
    int64_t n = job->shape.head_dim / 2;
    if (convert_rope_factors(&job->shape, job->rope_factors))
        gguf_add_tensor(job->w, "rope_freqs.weight", TYPE_F32, 1, &n, job->rope_factors);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static void write_general(const Job *job) {
    static const struct {
        TensorType type;
        uint32_t number;
    } file_types[] = {{TYPE_F32, 0}, {TYPE_F16, 1}, {TYPE_BF16, 32}, {TYPE_Q8_0, 7}};
    const char *slash = strrchr(job->c->folder, '/'), *name = slash ? slash + 1 : job->c->folder;
    gguf_set_string(job->w, "general.architecture", job->arch->name, strlen(job->arch->name));
    gguf_set_string(job->w, "general.type", "model", strlen("model"));
    gguf_set_string(job->w, "general.name", name, strlen(name));
    for (size_t i = 0; i < sizeof file_types / sizeof *file_types; i++)
        if (file_types[i].type == job->o->type) gguf_set_u32(job->w, "general.file_type", file_types[i].number);
    if (job->o->type == TYPE_Q8_0) gguf_set_u32(job->w, "general.quantization_version", 2);
}

/* The sampling that the publisher recommends, under the keys that llama.cpp gave it; `forerun chat` follows it. */
static void write_sampling(const Job *job) {
    static const struct {
        const char *from, *to;
    } reals[] = {
        {"temperature", "general.sampling.temp"},
        {"top_p", "general.sampling.top_p"},
        {"min_p", "general.sampling.min_p"},
        {"repetition_penalty", "general.sampling.penalty_repeat"},
    };
    const json_t *o = job->c->generation, *top_k = json_object_get(o, "top_k");
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const json_t *v = json_object_get(o, reals[i].from);
        if (json_is_number(v)) gguf_set_f32(job->w, reals[i].to, (float)json_number_value(v));
    }
    if (json_is_integer(top_k) && json_integer_value(top_k) >= 0 && json_integer_value(top_k) <= INT32_MAX)
        gguf_set_u32(job->w, "general.sampling.top_k", (uint32_t)json_integer_value(top_k));
}

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
    job->items = mem_calloc((size_t)job->shape.n_layer * MAX_TENSORS_OF_LAYER, sizeof *job->items);
    job->rope_factors = mem_calloc((size_t)job->shape.head_dim, sizeof *job->rope_factors);
    return job->items && job->rope_factors ? FR_OK : (int)error_memory(err, "a list of tensors", sizeof *job->items);
}

static int write_file(Job *job, const char *path, fr_error *err) {
    job->row = mem_calloc((size_t)job->widest + 1, sizeof *job->row);
    if (!job->row) return error_memory(err, "a row", (size_t)job->widest * sizeof *job->row);
    int status = hub_check(job->c, err);
    return status ? status : gguf_writer_finish(job->w, path, err);
}

static int convert(Job *job, const char *path, fr_error *err) {
    ConvertVocab vocab = {.n = 0};
    job->arch = convert_arch_find(job->c, err);
    if (!job->arch) return FR_ERR_UNSUPPORTED;
    int status = convert_shape_read(&job->shape, job->c, &job->arch->usual, err);
    if (!status && job->arch->experts)
        status = convert_experts_read(&job->shape, job->c, job->arch->experts == EXPERTS_SUM_TO_1, err);
    if (!status) status = take_memory(job, err);
    if (!status) status = convert_vocab_read(&vocab, job->c, job->shape.n_vocab, err);
    if (!status) {
        write_general(job);
        write_sampling(job);
        convert_shape_write(&job->shape, job->arch->name, job->arch->rotates_pairs, job->w);
        if (job->arch->experts) convert_experts_write(&job->shape, job->arch->name, job->w);
        status = convert_vocab_write(&vocab, job->c, job->w, err);
    }
    if (!status && job->arch->keys) status = job->arch->keys(&job->shape, job->c, job->w, err);
    if (!status) status = plan_tensors(job, err);
    if (!status) plan_rope_factors(job);
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
