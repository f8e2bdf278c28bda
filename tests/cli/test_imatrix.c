/* test_imatrix.c - importance matrices: all matrices of layers with experts or a recurrent state have sums, each expert
 * has those of its own rows, on both backends and with any number of threads, and `forerun quantize --imatrix` weights
 * each expert by them. */
#include "cli_rig.h"
#include "model_rig.h"

#include "gguf/tensor_type.h"
#include "gguf/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DIR "build/test-imatrix"
#define MODEL DIR "/model.gguf"
#define TEXT DIR "/text.txt"
#define MATRIX DIR "/model.imatrix"
#define OTHER DIR "/other.imatrix"
#define OUT DIR "/out.gguf"

enum { N_LAYER = 2, N_EMBD = 64, N_ROWS = 192 };

#define SHAPE(name) \
    .arch = (name), .n_layer = N_LAYER, .n_embd = N_EMBD, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = 300

#define HYBRID(keys, values, dim) \
    .n_key_heads = (keys), .n_value_heads = (values), .delta_dim = (dim), .n_conv = 3, .attention_interval = 2

static const RandomModel models[] = {
    {SHAPE("llama"), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 96, .seed = 300}, /* as Mixtral */
    {SHAPE("qwen2moe"), .n_expert = 9, .n_expert_used = 4, .n_ff_expert = 32, .n_ff_shared = 160, .seed = 301},
    {SHAPE("qwen3moe"), .head_dim = 32, .n_expert = 8, .n_expert_used = 2, .n_ff_expert = 64, .seed = 302},
    {SHAPE("gpt-oss"), .n_expert = 6, .n_expert_used = 2, .n_ff_expert = 64, .window = 9, .seed = 304},
    {SHAPE("qwen35"), HYBRID(2, 4, 12), .n_rot = 8, .seed = 305},
    {SHAPE("qwen35moe"), HYBRID(2, 2, 32), .n_expert = 7, .n_expert_used = 3, .n_ff_expert = 32, .n_ff_shared = 40,
     .seed = 306},
    {SHAPE("qwen3next"), HYBRID(1, 3, 20), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24, .n_ff_shared = 48,
     .seed = 307},
    {SHAPE("deepseek2"), .q_rank = 20, .kv_rank = 36, .plain_dim = 10, .n_rot = 6, .value_dim = 14, .n_expert = 6,
     .n_expert_used = 2, .n_ff_expert = 24, .n_ff_shared = 48, .has_sigmoid_router = true, .seed = 308},
    {SHAPE("deepseek2"), .kv_rank = 28, .plain_dim = 12, .n_rot = 4, .value_dim = 10, .joins_kv_b = true, .seed = 309},
    {SHAPE("gemma4"), .head_dim = 24, .local_head_dim = 16, .window = 9, .attention_interval = 2, .n_ple = 40,
     .values_of_keys = true, .seed = 310},
};
static const int n_entries[] = {16, 22, 16, 16, 15, 23, 22, 26, 14, 18}; /* matrices of both layers */

static int begin(void **state) {
    (void)state;
    mkdir(DIR, 0777);
    FILE *f = fopen(TEXT, "w");
    if (!f) return -1;
    for (int i = 0; i < 40; i++) fprintf(f, "the %d toads read %d old stories in the rain\n", i % 7, i * i % 31);
    return fclose(f);
}

static int end(void **state) {
    (void)state;
    return system("rm -rf " DIR);
}

static void make_model(const RandomModel *m) { assert_int_equal(random_model_write(m, MODEL, NULL), 0); }

static void make_matrix(const char *path, const char *how) {
    char args[300];
    snprintf(args, sizeof args, "imatrix -m " MODEL " " TEXT " -o %s -c 96 --windows 2 --kv f32 %s", path, how);
    cli_expect(args, 0, "over 192 tokens");
}

static const float *numbers(const Importance *im, int layer, const char *matrix, const char *which, int64_t n,
                            int64_t n_matrices) {
    char name[100];
    snprintf(name, sizeof name, "blk.%d.%s.weight%s", layer, matrix, which);
    const GgufTensor *t = gguf_find_tensor(im->gguf, name);
    if (!t) fail_msg("no %s", name);
    assert_int_equal(t->dims[0], n);
    assert_int_equal(t->dims[1], n_matrices);
    return t->data;
}

/* ---- the sums ---------------------------------------------------------------------------------------- */

static void both_backends_sum_the_same_squares_of_each_expert(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        Importance fast, slow;
        make_model(&models[k]);
        make_matrix(MATRIX, "");
        make_matrix(OTHER, "--backend reference");
        assert_int_equal(importance_open(&fast, MATRIX, NULL), 0);
        assert_int_equal(importance_open(&slow, OTHER, NULL), 0);
        assert_int_equal(fast.n_entries, n_entries[k]);
        for (int64_t i = 0; i < gguf_n_tensors(fast.gguf); i++) {
            const GgufTensor *a = gguf_tensor(fast.gguf, i), *b = gguf_find_tensor(slow.gguf, a->name);
            assert_non_null(b);
            assert_int_equal(a->dims[1], b->dims[1]);
            for (int64_t e = 0; e < a->dims[1]; e++) {
                const float *x = (const float *)a->data + e * a->dims[0], *y = (const float *)b->data + e * a->dims[0];
                double rms = memcmp(x, y, (size_t)a->dims[0] * sizeof *x) == 0 ? 0 : rig_rel_rms(x, y, a->dims[0]);
                if (!(rms < 1e-3)) fail_msg("%s, %s of matrix %d: %g", models[k].arch, a->name, (int)e, rms);
            }
        }
        importance_close(&fast);
        importance_close(&slow);
    }
}

/* Each row reaches n_used experts, which all have the same input as the router. */
static void experts_together_read_each_row_as_often_as_it_chooses(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        const RandomModel *m = &models[k];
        Importance im;
        if (!m->n_expert) continue;
        make_model(m);
        make_matrix(MATRIX, "");
        assert_int_equal(importance_open(&im, MATRIX, NULL), 0);
        for (int i = 0; i < N_LAYER; i++) {
            const float *router = numbers(&im, i, "ffn_gate_inp", IMPORTANCE_SUMS, N_EMBD, 1);
            const float *gate = numbers(&im, i, "ffn_gate_exps", IMPORTANCE_SUMS, N_EMBD, m->n_expert);
            const float *up = numbers(&im, i, "ffn_up_exps", IMPORTANCE_SUMS, N_EMBD, m->n_expert);
            const float *counts = numbers(&im, i, "ffn_gate_exps", IMPORTANCE_COUNTS, 1, m->n_expert);
            const float *down = numbers(&im, i, "ffn_down_exps", IMPORTANCE_COUNTS, 1, m->n_expert);
            double rows = 0;
            for (int e = 0; e < m->n_expert; e++) rows += (double)counts[e];
            assert_int_equal((int)rows, N_ROWS * m->n_expert_used);
            assert_memory_equal(counts, down, (size_t)m->n_expert * sizeof *down);
            assert_memory_equal(gate, up, (size_t)(m->n_expert * N_EMBD) * sizeof *up);
            assert_true(*numbers(&im, i, "ffn_gate_inp", IMPORTANCE_COUNTS, 1, 1) == (float)N_ROWS);
            for (int j = 0; j < N_EMBD; j++) {
                double sum = 0, wanted = (double)router[j] * m->n_expert_used;
                for (int e = 0; e < m->n_expert; e++) sum += (double)gate[e * N_EMBD + j];
                if (fabs(sum / wanted - 1) > 1e-5) fail_msg("%s, input %d: %g, not %g", m->arch, j, sum, wanted);
            }
        }
        importance_close(&im);
    }
}

static void threads_make_no_difference(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        make_model(&models[k]);
        make_matrix(MATRIX, "-t 1");
        make_matrix(OTHER, "-t 3");
        assert_int_equal(system("cmp -s " MATRIX " " OTHER), 0);
    }
}

enum { MOST_SUMS = 9 * 64, MOST_EXPERTS = 9, N_SUMMED = 37 };

/* The sums over forwards of `chunk` rows. */
typedef struct Sums {
    double sums[INPUT_KINDS][N_LAYER * MOST_SUMS];
    int64_t expert_rows[N_LAYER * MOST_EXPERTS];
    InputSquares squares;
} Sums;

static void sum_in_chunks(Sums *s, const Weights *w, const RandomModel *m, int32_t chunk) {
    enum { N = N_SUMMED };
    RigOptions options = rig_options(N, N);
    int32_t tokens[N];
    options.n_threads = 2;
    Executor *e = rig_executor(w, &options);
    memset(s, 0, sizeof *s);
    s->squares.expert_rows = s->expert_rows;
    for (int k = 0; k < INPUT_KINDS; k++) s->squares.sums[k] = s->sums[k];
    rig_tokens(m->seed, m->n_vocab, tokens, N);
    w->backend->sum_inputs(executor_context(e), &s->squares);
    rig_append(e, rig_sequence(e), tokens, N, chunk, m->n_vocab, NULL);
    assert_int_equal(s->squares.n_rows, N);
    rig_executor_close(e);
}

/* The sums are equal bit for bit, because each sum runs over the rows in their order. */
static void batches_make_no_difference(void **state) {
    (void)state;
    static Sums whole, parts;
    static const int32_t chunks[] = {1, 5, 16};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        Gguf *g = rig_random_gguf(&models[k]);
        Weights *w = rig_weights(g, NULL);
        sum_in_chunks(&whole, w, &models[k], N_SUMMED);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            sum_in_chunks(&parts, w, &models[k], chunks[i]);
            assert_memory_equal(whole.sums, parts.sums, sizeof whole.sums);
            assert_memory_equal(whole.expert_rows, parts.expert_rows, sizeof whole.expert_rows);
        }
        rig_weights_close(w);
        gguf_close(g);
    }
}

/* The inputs of the matrices of the first layer are normalised embeddings, which are summed here without a forward, for
 * each of the names. */
static void the_first_layer_reads_norms_of_embeddings(void **state) {
    (void)state;
    static Sums sums;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        Gguf *g = rig_random_gguf(&models[k]);
        Weights *w = rig_weights(g, NULL);
        const Model *m = w->model;
        int32_t tokens[N_SUMMED];
        double wanted[N_EMBD] = {0};
        sum_in_chunks(&sums, w, &models[k], 8);
        rig_tokens(models[k].seed, models[k].n_vocab, tokens, N_SUMMED);
        for (int t = 0; t < N_SUMMED; t++) {
            float x[N_EMBD];
            double mean = 0;
            model_embedding(m, tokens[t], x);
            for (int i = 0; i < N_EMBD; i++) mean += (double)x[i] * (double)x[i] / N_EMBD;
            for (int i = 0; i < N_EMBD; i++) {
                double normed = (double)x[i] / sqrt(mean + (double)m->hparams.rms_eps) *
                                (double)m->layers[0].attn_norm[i];
                wanted[i] += normed * normed;
            }
        }
        for (int i = 0; i < N_EMBD; i++)
            if (fabs(sums.sums[INPUT_QKV][i] / wanted[i] - 1) > 1e-4)
                fail_msg("%s, input %d: %g, not %g", models[k].arch, i, sums.sums[INPUT_QKV][i], wanted[i]);
        rig_weights_close(w);
        gguf_close(g);
    }
}

/* ---- quantize ---------------------------------------------------------------------------------------- */

/* importance [n_experts][n]: the mean squares of the file, raised to at least a thousandth of their mean, or 1 for
 * experts that read no row. */
static void check_importances(const Importance *im, const char *matrix, const float *importance, int64_t n,
                              int64_t n_experts) {
    char name[100];
    snprintf(name, sizeof name, "%s" IMPORTANCE_SUMS, matrix);
    const float *sums = gguf_find_tensor(im->gguf, name)->data;
    snprintf(name, sizeof name, "%s" IMPORTANCE_COUNTS, matrix);
    const float *counts = gguf_find_tensor(im->gguf, name)->data;
    for (int64_t e = 0; e < n_experts; e++) {
        double total = 0;
        for (int64_t k = 0; k < n; k++) total += (double)sums[e * n + k];
        for (int64_t k = 0; k < n; k++) {
            double floor = 1e-3 * total / (double)n, sum = fmax(floor, (double)sums[e * n + k]);
            double wanted = counts[e] > 0 ? sum / (double)counts[e] : 1;
            if (!(fabs((double)importance[e * n + k] / wanted - 1) < 1e-5))
                fail_msg("%s, expert %d: %g, not %g", matrix, (int)e, (double)importance[e * n + k], wanted);
        }
    }
}

/* Returns the number of experts that no row reached; fails unless every row is quantised with the importances of its
 * own expert. */
static int check_matrix(const GgufTensor *t, const GgufTensor *exact, const Importance *im) {
    enum { WIDEST = 96, N_EXPERT = 16 };
    float importance[WIDEST * N_EXPERT];
    char bytes[WIDEST * sizeof(float)];
    int64_t n = t->dims[0], unread;
    size_t row_bytes = t->bytes / (size_t)(t->dims[1] * t->dims[2]);
    assert_int_equal(importance_of(im, t->name, n, t->dims[2], importance, &unread, NULL), 1);
    check_importances(im, t->name, importance, n, t->dims[2]);
    for (int64_t i = 0; i < t->dims[1] * t->dims[2]; i++) {
        quant_row(t->type, (const float *)exact->data + i * n, importance + i / t->dims[1] * n, n, bytes);
        if (memcmp(bytes, (const char *)t->data + (size_t)i * row_bytes, row_bytes) != 0)
            fail_msg("%s: row %d has other importances than its expert", t->name, (int)i);
    }
    return (int)unread;
}

static void quantize_weights_each_expert_by_its_own_rows(void **state) {
    (void)state;
    Importance im;
    RandomModel m = models[2];
    m.n_expert = 16, m.n_expert_used = 1;
    make_model(&m);
    cli_expect("imatrix -m " MODEL " " TEXT " -o " MATRIX " -c 8 --windows 1 2>&1", 0, "of 32 experts");
    assert_int_equal(importance_open(&im, MATRIX, NULL), 0);
    cli_expect("quantize " MODEL " " OUT " --type Q4_0 --imatrix " MATRIX, 0, "bits a weight");
    Gguf *exact = rig_gguf(MODEL), *g = rig_gguf(OUT);
    int n_unread = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        if (t->n_dims == 3) n_unread += check_matrix(t, gguf_find_tensor(exact, t->name), &im);
    }
    char warning[100];
    snprintf(warning, sizeof warning, "reached %d matrices of experts", n_unread);
    assert_true(n_unread >= N_LAYER * 3 * 8); /* eight rows cannot reach more than eight of sixteen */
    cli_expect("quantize " MODEL " " OUT " --type Q4_0 --imatrix " MATRIX " 2>&1", 0, warning);
    gguf_close(exact);
    gguf_close(g);
    importance_close(&im);
}

/* ---- other shapes ------------------------------------------------------------------------------------- */

static void a_matrix_of_several_products_has_one_entry(void **state) {
    (void)state;
    static const RandomModel fused = {SHAPE("phi3"), .seed = 303};
    Importance im;
    make_model(&fused);
    make_matrix(MATRIX, "");
    assert_int_equal(importance_open(&im, MATRIX, NULL), 0);
    assert_true(numbers(&im, 1, "attn_qkv", IMPORTANCE_SUMS, N_EMBD, 1)[0] > 0);
    assert_true(numbers(&im, 0, "ffn_up", IMPORTANCE_SUMS, N_EMBD, 1)[0] > 0);
    importance_close(&im);
    cli_expect("quantize " MODEL " " OUT " --type Q4_0 --imatrix " MATRIX, 0, "Q4_0");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_backends_sum_the_same_squares_of_each_expert),
        cmocka_unit_test(experts_together_read_each_row_as_often_as_it_chooses),
        cmocka_unit_test(threads_make_no_difference),
        cmocka_unit_test(batches_make_no_difference),
        cmocka_unit_test(the_first_layer_reads_norms_of_embeddings),
        cmocka_unit_test(quantize_weights_each_expert_by_its_own_rows),
        cmocka_unit_test(a_matrix_of_several_products_has_one_entry),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
