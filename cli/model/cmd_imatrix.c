/* cmd_imatrix.c - `forerun imatrix -m MODEL TEXT -o FILE`: measures how much each input of each matrix matters, for
 * quantize.
 *
 * The model reads the text in windows, and the backend sums the squares of the inputs of each matrix
 * (Backend.sum_inputs). For a tensor with the matrices of all experts, or of all heads of latent attention, there are
 * sums and a number of rows for each one. gguf/quantize.h has the format of the file. */
#include "cli/model/text_windows.h"
#include "compute/executor.h"
#include "base/mem.h"
#include "base/progress.h"
#include "gguf/gguf_write.h"
#include "gguf/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 };

typedef struct ImatrixArgs {
    CliModel model;
    const char *text, *out;
    int32_t n_ctx, n_windows;
} ImatrixArgs;

static ImatrixArgs args;

static const Option option_table[] = {
    {.key = "TEXT",
     OPT_FILE(ImatrixArgs, text),
     .is_argument = true,
     .required = "text",
     .help = "text like those that the model will be used for; 50,000 tokens are plenty; -: standard input"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(ImatrixArgs, out),
     .required = "output file",
     .section = "Output and measurement",
     .help = "importance matrix to write; an existing file is replaced when the new one is complete"},
    {.key = "ctx",
     .letter = 'c',
     OPT_INT(ImatrixArgs, n_ctx, 8, 1 << 20),
     .default_help = "512, or less if the model was trained for less",
     .help = "tokens in a window"},
    {.key = "windows",
     OPT_INT(ImatrixArgs, n_windows, 1, 1 << 30),
     .default_help = "all",
     .help = "stop after N windows"},
    {.key = NULL},
};

static void set_defaults(void) {
    args = (ImatrixArgs){.n_ctx = 0};
    cli_model_defaults(&args.model);
}

/* ---- the sums ---------------------------------------------------------------------------------------- */

static int take_sums(Arena *arena, InputSquares *s, const Hparams *h, fr_error *err) {
    ArenaItem items[INPUT_KINDS + 1] = {[INPUT_KINDS] = ARENA_ITEM(&s->expert_rows, (int64_t)h->n_layer * h->n_expert)};
    for (int k = 0; k < INPUT_KINDS; k++)
        items[k] = (ArenaItem)ARENA_ITEM(&s->sums[k], h->n_layer * input_width(h, (InputKind)k));
    return arena_take(arena, items, INPUT_KINDS + 1, "sums of squares", err);
}

static int run_window(Executor *e, const TextWindows *t, int64_t window, fr_error *err) {
    Row rows[CHUNK];
    int32_t sequence, kept[CHUNK];
    int status = executor_sequence_open(e, &sequence, err);
    for (int32_t first = 0; first < t->n_ctx && !status; first += CHUNK) {
        int32_t n = t->n_ctx - first < CHUNK ? t->n_ctx - first : CHUNK;
        for (int32_t i = 0; i < n; i++) {
            rows[i] = (Row){.token = text_windows_token(t, window, first + i), .sequence = sequence, .parent = i - 1};
            kept[i] = i;
        }
        status = executor_reserve(e, sequence, n, err);
        if (!status) status = executor_forward(e, rows, n, err);
        if (!status) executor_commit(e, sequence, kept, n);
    }
    if (!status) executor_sequence_close(e, sequence);
    return status;
}

static int run_windows(const CliModel *m, const TextWindows *t, InputSquares *squares, fr_error *err) {
    Executor *executor = NULL;
    const ExecutorOptions options = {.kv_type = m->kv,
                                     .page_size = 16,
                                     .n_ctx = t->n_ctx,
                                     .max_sequences = 1,
                                     .max_rows = CHUNK};
    Progress bar;
    int status = executor_open(&executor, m->device, m->weights, &options, err);
    if (status) return status;
    m->weights->backend->sum_inputs(executor_context(executor), squares);
    progress_begin(&bar, stderr, "reading", t->n_windows);
    for (int64_t i = 0; i < t->n_windows && !status; i++) {
        status = run_window(executor, t, i, err);
        progress_update(&bar, i + 1);
    }
    progress_end(&bar);
    executor_close(executor);
    return status;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

/* The sums of one tensor: a matrix, or the matrices of all experts or heads. They must last until the file is
 * written. */
typedef struct Entry {
    float *sums, *counts;
} Entry;

/* Adds a tensor's entry. The sums of its matrix i begin at sums[i * stride]. counts: one for each matrix if has_counts,
 * else one. */
static int add_matrix(GgufWriter *w, const GgufTensor *t, const double *sums, int64_t stride, const int64_t *counts,
                      bool has_counts, Entry *entry, fr_error *err) {
    int64_t n_matrices = t->dims[2], n = t->dims[0] * n_matrices;
    char name[300];
    entry->sums = calloc((size_t)n, sizeof *entry->sums);
    entry->counts = calloc((size_t)n_matrices, sizeof *entry->counts);
    if (!entry->sums || !entry->counts)
        return error_memory(err, "an importance matrix", (size_t)n * sizeof *entry->sums);
    for (int64_t i = 0; i < n; i++) {
        entry->sums[i] = (float)sums[i / t->dims[0] * stride + i % t->dims[0]];
        if (!isfinite(entry->sums[i]))
            return error_set(err, FR_ERR_FORMAT, "the inputs of %s are not finite: the model file is damaged", t->name);
    }
    for (int64_t i = 0; i < n_matrices; i++) entry->counts[i] = (float)counts[has_counts ? i : 0];
    snprintf(name, sizeof name, "%s%s", t->name, IMPORTANCE_SUMS);
    gguf_add_tensor(w, name, TYPE_F32, 2, (int64_t[]){t->dims[0], n_matrices}, entry->sums);
    snprintf(name, sizeof name, "%s%s", t->name, IMPORTANCE_COUNTS);
    gguf_add_tensor(w, name, TYPE_F32, 2, (int64_t[]){1, n_matrices}, entry->counts);
    return FR_OK;
}

/* The tensor that the sums of a matrix are written for, and its inputs. */
typedef struct Reader {
    const GgufTensor *matrix; /* NULL: there is nothing to write */
    InputKind inputs;
} Reader;

/* If the matrices of the heads of latent attention were made from one tensor of the file, attn_kv_b, that tensor gets
 * the sums of the latents that it reads. The matrices MATRIX_PLE_INPUT of all layers are one tensor, and read the same
 * inputs. */
static Reader reader_of(const Model *m, const LayerSpec *l, LayerMatrix k) {
    Reader r = {.matrix = l->matrices[k], .inputs = layer_matrix_inputs(l, k)};
    if (r.matrix && layer_matrix_info[k].count == MATRIX_OF_HEADS && strstr(r.matrix->name, "attn_kv_b"))
        r = (Reader){.matrix = gguf_find_tensor(m->gguf, r.matrix->name), .inputs = INPUT_LATENT};
    if (k == MATRIX_PLE_INPUT && l != m->layers) r.matrix = NULL;
    if (k == MATRIX_ROUTER && l->router_norm) r.matrix = NULL; /* the sums are those of another norm */
    return r;
}

static void list_readers(const Model *m, const LayerSpec *l, Reader out[LAYER_MATRICES]) {
    for (int k = 0; k < LAYER_MATRICES; k++) {
        out[k] = reader_of(m, l, (LayerMatrix)k);
        for (int i = 0; i < k && out[k].matrix; i++) /* a tensor with several matrices, as in phi3, has one entry */
            if (out[i].matrix && strcmp(out[i].matrix->name, out[k].matrix->name) == 0) out[k].matrix = NULL;
    }
}

static int add_layer(GgufWriter *w, const Model *m, int32_t i, const InputSquares *s, Entry *entries, fr_error *err) {
    Reader readers[LAYER_MATRICES];
    int status = FR_OK;
    list_readers(m, &m->layers[i], readers);
    for (int k = 0; k < LAYER_MATRICES && !status; k++) {
        const Reader *r = &readers[k];
        bool of_experts = r->inputs == INPUT_EXPERT_GATE_UP || r->inputs == INPUT_EXPERT_DOWN;
        const int64_t *counts = of_experts ? s->expert_rows + (int64_t)i * m->hparams.n_expert : &s->n_rows;
        if (!r->matrix) continue;
        int64_t width = input_width(&m->hparams, r->inputs);
        int64_t stride = r->inputs == INPUT_LATENT_QUERIES ? width / m->hparams.n_head : r->matrix->dims[0];
        status = add_matrix(w, r->matrix, s->sums[r->inputs] + i * width, stride, counts, of_experts, &entries[k], err);
    }
    return status;
}

static int write_file(const ImatrixArgs *a, const TextWindows *t, const InputSquares *s, fr_error *err) {
    const Model *m = a->model.model;
    size_t n_entries = (size_t)m->hparams.n_layer * LAYER_MATRICES;
    Entry *entries = calloc(n_entries, sizeof *entries);
    GgufWriter *w = gguf_writer_new();
    int status = entries && w ? FR_OK : (int)error_memory(err, "an importance matrix", n_entries * sizeof *entries);
    if (!status) {
        gguf_set_string(w, "general.type", "imatrix", strlen("imatrix"));
        gguf_set_strings(w, "imatrix.datasets", &(GgufString){a->text, strlen(a->text)}, 1);
        gguf_set_u32(w, "imatrix.chunk_count", (uint32_t)t->n_windows);
        gguf_set_u32(w, "imatrix.chunk_size", (uint32_t)t->n_ctx);
    }
    for (int32_t i = 0; i < m->hparams.n_layer && !status; i++)
        status = add_layer(w, m, i, s, entries + (size_t)i * LAYER_MATRICES, err);
    if (!status) status = gguf_writer_finish(w, a->out, err);
    gguf_writer_free(w);
    for (size_t i = 0; entries && i < n_entries; i++) free(entries[i].sums), free(entries[i].counts);
    free(entries);
    return status;
}

static void print_result(const ImatrixArgs *a, const InputSquares *s) {
    const Model *m = a->model.model;
    int n_matrices = 0, n_experts = 0, n_unread = 0;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        Reader readers[LAYER_MATRICES];
        list_readers(m, &m->layers[i], readers);
        for (int k = 0; k < LAYER_MATRICES; k++) n_matrices += readers[k].matrix != NULL;
        for (int32_t e = 0; m->layers[i].ffn == FFN_EXPERTS && e < m->hparams.n_expert; e++, n_experts++)
            n_unread += s->expert_rows[(int64_t)i * m->hparams.n_expert + e] == 0;
    }
    printf("%s: the inputs of %d matrices over %lld tokens; use it with forerun quantize --imatrix %s\n", a->out,
           n_matrices, (long long)s->n_rows, a->out);
    if (n_unread)
        fprintf(
            stderr,
            "forerun imatrix: no token of the text reached %d of %d experts, so their inputs will all have the same "
            "weight; a longer text may reach them\n",
            n_unread, n_experts);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    ImatrixArgs *a = &args;
    fr_error err = {0};
    Arena arena = {0};
    InputSquares squares = {.n_rows = 0};
    TextWindows text = {.tokens = NULL};
    int status = cli_model_open(&a->model, &err);
    if (!status)
        status = text_windows_open(&text, a->model.gguf, a->text,
                                   text_windows_ctx(a->n_ctx, a->model.model->hparams.n_ctx_train), a->n_windows, &err);
    if (!status) status = take_sums(&arena, &squares, &a->model.model->hparams, &err);
    if (!status) status = run_windows(&a->model, &text, &squares, &err);
    if (!status) status = write_file(a, &text, &squares, &err);
    if (!status) print_result(a, &squares);
    text_windows_close(&text);
    arena_free(&arena);
    cli_model_close(&a->model);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_imatrix = {
    .name = "imatrix",
    .summary = "measure how much each input of each matrix matters, for quantize --imatrix",
    .about =
        "Run a model over a text and write an importance matrix: the mean squares of the inputs of each matrix, for "
        "experts over the tokens that reach them. 'forerun quantize --imatrix' weights errors by them, which helps "
        "most "
        "at 4 bits and below. The file is GGUF with llama.cpp's names, so that each program can read the other's.",
    .sets = (const OptionSet[]){{option_table, &args},
                                {cli_model_options, &args.model},
                                {cli_model_threads, &args.model},
                                {NULL, NULL}},
    .examples = "  forerun imatrix -m model-f16.gguf text.txt -o model.imatrix\n"
                "  forerun quantize model-f16.gguf model-q4_k_m.gguf --type Q4_K_M --imatrix model.imatrix\n",
    .defaults = set_defaults,
    .run = run,
};
