/* test_quantize_cli.c - `forerun quantize`, `imatrix` and `perplexity` as programs: every type runs and is as close to
 * F16 as its bits allow, on both backends; some files must not be quantised, and none may be lost. */
#include "cli_rig.h"
#include "model_rig.h"

#include "gguf/tensor_type.h"
#include "gguf/gguf_write.h"
#include "gguf/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR "build/test-quantize"
#define F16 DIR "/f16.gguf"
#define SHALLOW DIR "/shallow.gguf"
#define OUT DIR "/out.gguf"
#define TEXT DIR "/text.txt"
#define MATRIX DIR "/model.imatrix"

static int begin(void **state) {
    (void)state;
    mkdir(DIR, 0777);
    FILE *f = fopen(TEXT, "w");
    if (!f) return -1;
    for (int i = 0; i < 400; i++) fprintf(f, "The %d toads read %d old stories in the rain.\n", i % 7, i * i % 31);
    fclose(f);
    return 0;
}

static int end(void **state) {
    (void)state;
    return system("rm -rf " DIR);
}

/* Returns the number after `label` in the output of a command. */
static double figure(const char *args, const char *label) {
    char text[8000];
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    const char *at = strstr(text, label);
    if (!at) fail_msg("forerun %s: no '%s' in %s", args, label, text);
    return strtod(at + strlen(label), NULL);
}

/* ---- every type -------------------------------------------------------------------------------------- */

/* Writes the shipped target is of Q8_0; as F16 it is the model that is quantised here. */
static void make_f16(void) {
    cli_expect("quantize models/target.gguf " F16 " --type F16 --requantize 2>&1", 0, "57 F16");
}

/* Only its first layer, for the types of three bits and less, whose search takes two microseconds per weight. */
static void make_shallow(void) {
    Gguf *g = rig_gguf(F16);
    GgufWriter *w = gguf_writer_new();
    gguf_set_u32(w, "llama.block_count", 1);
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        if (strncmp(t->name, "blk.", 4) == 0 && strncmp(t->name, "blk.0.", 6) != 0) continue;
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    assert_int_equal(gguf_writer_finish(w, SHALLOW, NULL), 0);
    gguf_writer_free(w);
    gguf_close(g);
}

static void types_are_as_close_as_their_bits_promise(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double kl; /* the greatest mean divergence from F16 */
    } cases[] = {{"F32", 1e-6},      {"Q8_0", 2e-4},   {"Q6_K", 1e-3}, {"Q5_K_M", 2e-3},
                 {"Q5_K_S", 2.5e-3}, {"Q5_1", 2.5e-3}, {"Q5_0", 4e-3}, {"Q4_K_M", 9e-3},
                 {"Q4_K_S", 14e-3},  {"Q4_1", 20e-3},  {"Q4_0", 14e-3}};
    double before = 0;
    make_f16();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[300];
        snprintf(args, sizeof args, "quantize " F16 " " OUT " --type %s", cases[i].type);
        cli_expect(args, 0, "bits a weight");
        double kl = figure("perplexity -m " OUT " --base " F16 " " TEXT " --windows 2 -c 96", "mean KL divergence ");
        print_message("%s: %g\n", cases[i].type, kl);
        if (kl > cases[i].kl) fail_msg("%s: divergence %g, at most %g", cases[i].type, kl, cases[i].kl);
        if (kl < 0.4 * before) fail_msg("%s: divergence %g, and %g with more bits", cases[i].type, kl, before);
        before = kl;
    }
}

/* Compares the packed kernels with plain double precision, on a file with every block type. */
static void backends_agree_on_quantised_files(void **state) {
    (void)state;
    static const struct {
        const char *model, *type;
    } cases[] = {{F16, "Q4_K_M"}, {F16, "Q5_K_M"},      {F16, "Q4_0"},
                 {F16, "Q5_1"},   {SHALLOW, "IQ3_XXS"}, {SHALLOW, "IQ2_M"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[300];
        snprintf(args, sizeof args, "quantize %s " OUT " --type %s", cases[i].model, cases[i].type);
        cli_expect(args, 0, "bits a weight");
        double fast = figure("perplexity -m " OUT " " TEXT " --windows 1 -c 64 --kv f32", "perplexity "),
               slow = figure("perplexity -m " OUT " " TEXT " --windows 1 -c 64 --kv f32 --backend reference",
                             "perplexity ");
        if (fabs(fast / slow - 1) > 1e-3) fail_msg("%s: %g and %g", cases[i].type, fast, slow);
    }
}

/* The types run and are not worse than their bits allow; those of two bits need an importance matrix. */
static void types_of_three_bits_and_less(void **state) {
    (void)state;
    static const struct {
        const char *type;
        bool needs_importance;
        double kl;
    } cases[] = {{"IQ3_M", false, 0.03},  {"IQ3_XXS", false, 0.04}, {"IQ2_M", false, 0.06},
                 {"IQ2_XXS", true, 0.17}, {"IQ1_S", true, 0.4},     {"IQ2_S", true, 0.09}};
    make_shallow();
    cli_expect("imatrix -m " SHALLOW " " TEXT " -o " MATRIX " -c 64 --windows 3", 0, "7 matrices");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[300];
        snprintf(args, sizeof args, "quantize " SHALLOW " " OUT " --type %s 2>&1", cases[i].type);
        if (cases[i].needs_importance) {
            unlink(OUT);
            cli_expect(args, 2, "needs an importance matrix: make one with 'forerun imatrix', and pass --imatrix=FILE");
            assert_int_not_equal(access(OUT, F_OK), 0);
            snprintf(args, sizeof args, "quantize " SHALLOW " " OUT " --type %s --imatrix " MATRIX, cases[i].type);
        }
        cli_expect(args, 0, "bits a weight");
        double kl = figure("perplexity -m " OUT " --base " SHALLOW " " TEXT " --windows 2 -c 96",
                           "mean KL divergence ");
        print_message("%s: %g\n", cases[i].type, kl);
        if (kl > cases[i].kl) fail_msg("%s: divergence %g, at most %g", cases[i].type, kl, cases[i].kl);
    }
}

/* The weights of real models are too small for only the scales of blocks. */
static void nvfp4_has_a_scale_for_each_matrix(void **state) {
    (void)state;
    cli_expect("quantize " F16 " " OUT " --type NVFP4", 0, "73 F32, 1 Q8_0, 56 NVFP4");
    Gguf *g = rig_gguf(OUT);
    const GgufTensor *matrix = gguf_find_tensor(g, "blk.3.ffn_up.weight"),
                     *scale = gguf_find_tensor(g, "blk.3.ffn_up.scale");
    assert_true(matrix && matrix->type == TYPE_NVFP4 && scale && scale->type == TYPE_F32 && scale->dims[0] == 1);
    Gguf *exact = rig_gguf(F16);
    const GgufTensor *t = gguf_find_tensor(exact, "blk.3.ffn_up.weight");
    static float x[256 * 768];
    float most = 0;
    blocks_dequantize(t->type, t->data, t->dims[0] * t->dims[1], x);
    for (int64_t i = 0; i < t->dims[0] * t->dims[1]; i++) most = fmaxf(most, fabsf(x[i]));
    assert_true(fabsf(*(const float *)scale->data / (most / 2688) - 1) < 1e-6f);
    assert_int_equal(gguf_find_tensor(g, "token_embd.weight")->type, TYPE_Q8_0);
    assert_null(gguf_find_tensor(g, "token_embd.scale"));
    gguf_close(g);
    gguf_close(exact);
    double kl = figure("perplexity -m " OUT " --base " F16 " " TEXT " --windows 2 -c 96", "mean KL divergence ");
    print_message("NVFP4: %g\n", kl);
    if (kl > 20e-3) fail_msg("divergence %g", kl); /* the divergence of Q4_1 */
    cli_expect("quantize " OUT " " DIR "/other.gguf --type Q8_0 --requantize 2>&1", 1, "has a scale of its own");
}

static void threads_make_no_difference(void **state) {
    (void)state;
    cli_expect("quantize " F16 " " OUT " --type Q4_K_M -t 1", 0, "bits a weight");
    cli_expect("quantize " F16 " " DIR "/other.gguf --type Q4_K -t 3", 0, "bits a weight");
    assert_int_equal(system("cmp -s " OUT " " DIR "/other.gguf"), 0);
    cli_expect("imatrix -m " F16 " " TEXT " -o " MATRIX " -t 1 -c 64 --windows 3", 0,
               "the inputs of 56 matrices over 192 tokens");
    cli_expect("imatrix -m " F16 " " TEXT " -o " DIR "/other.imatrix -t 3 -c 64 --windows 3", 0, "192 tokens");
    assert_int_equal(system("cmp -s " MATRIX " " DIR "/other.imatrix"), 0);
}

/* ---- importance matrices ----------------------------------------------------------------------------- */

static void both_backends_sum_the_same_squares(void **state) {
    (void)state;
    Importance fast, slow;
    cli_expect("imatrix -m " F16 " " TEXT " -o " MATRIX " -c 64 --windows 1 --kv f32", 0, "64 tokens");
    cli_expect("imatrix -m " F16 " " TEXT " -o " DIR "/slow.imatrix -c 64 --windows 1 --kv f32 --backend reference", 0,
               "64 tokens");
    assert_int_equal(importance_open(&fast, MATRIX, NULL), 0);
    assert_int_equal(importance_open(&slow, DIR "/slow.imatrix", NULL), 0);
    assert_int_equal(fast.n_entries, 56);
    for (int64_t i = 0; i < gguf_n_tensors(fast.gguf); i++) {
        const GgufTensor *a = gguf_tensor(fast.gguf, i), *b = gguf_find_tensor(slow.gguf, a->name);
        assert_non_null(b);
        double rms = rig_rel_rms(a->data, b->data, a->dims[0]);
        if (rms > 2e-3) fail_msg("%s: %g", a->name, rms);
    }
    importance_close(&fast);
    importance_close(&slow);
}

/* Inputs of the first layer's queries are the norms of embeddings: their mean square is about that of the norm's
 * gain. */
static void sums_are_those_of_the_inputs(void **state) {
    (void)state;
    Importance im;
    Gguf *g = rig_gguf(F16);
    float got[256];
    int64_t unread;
    assert_int_equal(importance_open(&im, MATRIX, NULL), 0);
    assert_int_equal(importance_of(&im, "blk.0.attn_q.weight", 256, 1, got, &unread, NULL), 1);
    const float *gain = gguf_find_tensor(g, "blk.0.attn_norm.weight")->data;
    double ours = 0, theirs = 0;
    for (int i = 0; i < 256; i++) ours += (double)got[i] / ((double)gain[i] * (double)gain[i]), theirs += 1;
    assert_true(fabs(ours / theirs - 1) < 0.05); /* a row that is divided by its rms has the mean square 1 */
    assert_int_equal(importance_of(&im, "blk.0.nothing.weight", 256, 1, got, &unread, NULL), 0);
    assert_true(importance_of(&im, "blk.0.attn_q.weight", 128, 1, got, &unread, NULL) < 0);
    importance_close(&im);
    gguf_close(g);
}

/* Returns the error of the outputs of a file's layer matrices, as predicted by the mean squares of their inputs. */
static double predicted_error(const char *path, const Gguf *exact, const Importance *im) {
    static float importance[4096], x[4096], y[4096];
    Gguf *g = rig_gguf(path);
    double sum = 0;
    int64_t unread;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i), *u = gguf_find_tensor(exact, t->name);
        int64_t n = t->dims[0];
        if (importance_of(im, t->name, n, 1, importance, &unread, NULL) != 1) continue;
        for (int64_t row = 0; row < t->dims[1]; row++) {
            blocks_dequantize(t->type, (const char *)t->data + (size_t)row * (t->bytes / (size_t)t->dims[1]), n, x);
            blocks_dequantize(u->type, (const char *)u->data + (size_t)row * (u->bytes / (size_t)u->dims[1]), n, y);
            for (int64_t k = 0; k < n; k++)
                sum += (double)importance[k] * ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
        }
    }
    gguf_close(g);
    return sum;
}

static void an_importance_matrix_helps(void **state) {
    (void)state;
    Importance im;
    Gguf *exact = rig_gguf(F16);
    cli_expect("imatrix -m " F16 " " TEXT " -o " MATRIX " -c 128 --windows 4", 0, "56 matrices");
    assert_int_equal(importance_open(&im, MATRIX, NULL), 0);
    cli_expect("quantize " F16 " " OUT " --type Q4_K_S", 0, "Q4_K");
    double without = predicted_error(OUT, exact, &im);
    cli_expect("quantize " F16 " " OUT " --type Q4_K_S --imatrix " MATRIX, 0, "Q4_K");
    double with = predicted_error(OUT, exact, &im);
    print_message("error %g with, %g without\n", with, without);
    assert_true(with < 0.95 * without);
    Gguf *g = rig_gguf(OUT);
    GgufString file;
    assert_true(gguf_get_string(g, "quantize.imatrix.file", &file));
    gguf_close(g);
    gguf_close(exact);
    importance_close(&im);
}

/* ---- perplexity -------------------------------------------------------------------------------------- */

/* Compares with the raw logits, with the same windows and sums computed here. */
static void perplexity_is_that_of_the_logits(void **state) {
    (void)state;
    enum { N = 32, V = 4096 };
    char ids[2000], args[3000];
    static float logits[N * V];
    assert_int_equal(cli_run("tokenize -m models/target.gguf --bos -f " TEXT " | cut -d' ' -f1-32", ids, sizeof ids),
                     0);
    int32_t tokens[N];
    char *at = ids;
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)strtol(at, &at, 10);
    for (char *p = ids; *p; p++)
        if (*p == ' ') *p = ',';
    ids[strcspn(ids, "\n")] = '\0';
    snprintf(args, sizeof args, "logits -m models/target.gguf --tokens %s -o " DIR "/logits.f32", ids);
    cli_expect(args, 0, "");
    FILE *f = fopen(DIR "/logits.f32", "rb");
    assert_non_null(f);
    assert_int_equal(fread(logits, sizeof *logits, N * V, f), N * V);
    fclose(f);
    double sum = 0;
    for (int i = N / 2; i < N - 1; i++) {
        double all = 0;
        for (int v = 0; v < V; v++) all += exp((double)logits[i * V + v]);
        sum += log(all) - (double)logits[i * V + tokens[i + 1]];
    }
    double expected = exp(sum / (N / 2 - 1));
    double got = figure("perplexity -m models/target.gguf " TEXT " -c 32 --windows 1", "perplexity ");
    if (fabs(got / expected - 1) > 1e-4) fail_msg("%g, expected %g", got, expected);
    cli_expect("perplexity -m models/target.gguf " TEXT " -c 32 --windows 1", 0,
               "15 predictions in 1 windows of 32 tokens");
}

static void a_model_does_not_differ_from_itself(void **state) {
    (void)state;
    const char *args = "perplexity -m models/target.gguf --base models/target.gguf " TEXT " -c 64 --windows 2";
    assert_true(figure(args, "mean KL divergence ") == 0);
    assert_true(figure(args, "ratio of the two ") == 1);
    assert_true(figure(args, "same best token ") == 100);
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void wrong_usages_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *args;
        int status;
        const char *words;
    } cases[] = {
        {"quantize models/target.gguf " OUT " --type Q4_K_M", 2,
         "is of type Q8_0 already, and quantising it again makes it worse: start from the F16 or BF16 file, or pass "
         "--requantize"},
        {"quantize " F16 " " F16 " --type Q8_0", 2, "OUT and IN are the same file"},
        {"quantize " F16 " " OUT " --type Q8_0 --imatrix " OUT, 2, "OUT and --imatrix are the same file"},
        {"quantize " F16 " " OUT, 2, "missing type: pass --type=TYPE, for example Q4_K_M"},
        {"quantize " F16 " " OUT " --type Q9", 2, "there is no such type; 'forerun quantize --help-all' lists them"},
        {"quantize " F16, 2, "missing output file: pass OUT"},
        {"quantize models/eagle.gguf " OUT " --type Q8_0", 1, "drafter"},
        {"quantize " TEXT " " OUT " --type Q8_0", 1, "this is not a GGUF file"},
        {"quantize " F16 " " DIR "/none/out.gguf --type Q8_0", 1, "none"},
        {"quantize " F16 " " OUT " --type Q4_0 --imatrix " F16, 1, "holds no importance matrix"},
        {"quantize " F16 " " OUT " --type Q4_0 --imatrix " DIR "/wrong.imatrix", 1, "it was made for another model"},
        {"quantize " F16 " " OUT " --type Q4_0 --imatrix " DIR "/negative.imatrix", 1,
         "hold no negative number or NaN"},
        {"imatrix -m " F16 " " TEXT " -o " TEXT, 2, "are the same file"},
        {"imatrix -m " F16 " " TEXT, 2, "missing output file: pass -o FILE"},
        {"perplexity -m " F16 " " DIR "/nothing.txt", 1, "cannot be opened"},
        {"perplexity -m " F16 " " TEXT " -c 1000000", 2,
         "but one window has 1000000: give a longer text, or a smaller --ctx"},
        {"perplexity -m " F16 " --base " DIR "/small.gguf " TEXT, 1, "they cannot be compared"},
        {"perplexity " TEXT, 2, "missing model: pass -m FILE"},
    };
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 32,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .n_ff = 48,
                           .n_vocab = 300,
                           .seed = 5};
    assert_int_equal(random_model_write(&m, DIR "/small.gguf", NULL), 0);
    for (int i = 0; i < 2; i++) { /* the second has a number below zero */
        GgufWriter *w = gguf_writer_new();
        float sums[256] = {0}, count = 1;
        sums[7] = i ? -1 : 1;
        gguf_add_tensor(w, "blk.0.attn_q.weight.in_sum2", TYPE_F32, 2, (int64_t[]){i ? 256 : 128, 1}, sums);
        gguf_add_tensor(w, "blk.0.attn_q.weight.counts", TYPE_F32, 2, (int64_t[]){1, 1}, &count);
        assert_int_equal(gguf_writer_finish(w, i ? DIR "/negative.imatrix" : DIR "/wrong.imatrix", NULL), 0);
        gguf_writer_free(w);
    }
    assert_int_equal(system("echo old > " OUT), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[400];
        snprintf(args, sizeof args, "%s 2>&1", cases[i].args);
        cli_expect(args, cases[i].status, cases[i].words);
    }
    assert_int_equal(system("test \"$(cat " OUT ")\" = old"), 0);
}

static void rows_without_whole_blocks_are_reported(void **state) {
    (void)state;
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 96,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .n_ff = 100,
                           .n_vocab = 300,
                           .seed = 5};
    assert_int_equal(random_model_write(&m, DIR "/odd.gguf", NULL), 0);
    cli_expect("quantize " DIR "/odd.gguf " OUT " --type Q4_K_M 2>&1", 0,
               "forerun quantize: blk.0.attn_q.weight has rows of 96 numbers, which are not whole blocks of Q4_K: Q5_0 "
               "instead");
    cli_expect("quantize " DIR "/odd.gguf " OUT " --type Q4_K_M 2>&1", 0,
               "blk.0.ffn_down.weight has rows of 100 numbers, which "
               "are not whole blocks of Q6_K: F16 instead");
    cli_expect("run -m " OUT " -p a -n 3 --draft none", 0, "");
    cli_expect("inspect -t " OUT, 0, "blk.0.ffn_down.weight             F16");
}

/* Damage is found while the file is streamed; the old output stays, and no other file. */
static void damaged_models_leave_the_old_file(void **state) {
    (void)state;
    Gguf *g = rig_gguf(DIR "/odd.gguf");
    GgufWriter *w = gguf_writer_new();
    float bad[96 * 2] = {0};
    bad[100] = NAN;
    gguf_copy_kvs(w, g, NULL);
    gguf_add_tensor(w, "blk.0.attn_q.weight", TYPE_F32, 2, (int64_t[]){96, 2}, bad);
    assert_int_equal(gguf_writer_finish(w, DIR "/bad.gguf", NULL), 0);
    gguf_writer_free(w);
    gguf_close(g);
    assert_int_equal(system("echo old > " OUT), 0);
    cli_expect("quantize " DIR "/bad.gguf " OUT " --type Q8_0 2>&1", 1,
               "tensor blk.0.attn_q.weight holds NaN or infinity");
    bad[100] = 1e9f;
    w = gguf_writer_new();
    gguf_add_tensor(w, "blk.0.attn_q.weight", TYPE_F32, 2, (int64_t[]){96, 2}, bad);
    assert_int_equal(gguf_writer_finish(w, DIR "/bad.gguf", NULL), 0);
    gguf_writer_free(w);
    cli_expect("quantize " DIR "/bad.gguf " OUT " --type F16 2>&1", 1,
               "are too large for this type; choose BF16 or F32");
    assert_int_equal(system("test \"$(cat " OUT ")\" = old"), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_as_close_as_their_bits_promise),
        cmocka_unit_test(types_of_three_bits_and_less),
        cmocka_unit_test(backends_agree_on_quantised_files),
        cmocka_unit_test(nvfp4_has_a_scale_for_each_matrix),
        cmocka_unit_test(threads_make_no_difference),
        cmocka_unit_test(both_backends_sum_the_same_squares),
        cmocka_unit_test(sums_are_those_of_the_inputs),
        cmocka_unit_test(an_importance_matrix_helps),
        cmocka_unit_test(perplexity_is_that_of_the_logits),
        cmocka_unit_test(a_model_does_not_differ_from_itself),
        cmocka_unit_test(wrong_usages_are_refused),
        cmocka_unit_test(rows_without_whole_blocks_are_reported),
        cmocka_unit_test(damaged_models_leave_the_old_file),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
