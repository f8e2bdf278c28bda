/* test_make_model.c - tools/make_model as a program: its files have the requested shapes and types. */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[512]; /* the make_model of the same build as this test */
static char path[2][64];

static int make_paths(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) snprintf(path[i], sizeof path[i], "/tmp/forerun-model-%ld-%d.gguf", (long)getpid(), i);
    return 0;
}

static int remove_paths(void **state) {
    (void)state;
    unlink(path[0]);
    unlink(path[1]);
    return 0;
}

/* Returns the exit status; the output goes to `out` unless that is NULL. */
static int run(const char *options, const char *out_path, char *out, size_t n) {
    char command[1024];
    snprintf(command, sizeof command, "%s %s -o %s 2>&1", program, options, out_path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    char text[2048];
    size_t got = fread(text, 1, sizeof text - 1, f);
    text[got] = '\0';
    if (out) snprintf(out, n, "%.500s", text);
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static Gguf *made(const char *options) {
    char said[512];
    Gguf *g;
    fr_error err = {0};
    if (run(options, path[0], said, sizeof said) != 0) fail_msg("make_model %s: %s", options, said);
    if (gguf_open(&g, path[0], &err)) fail_msg("%s", err.message);
    return g;
}

static void assert_tensor(const Gguf *g, const char *name, TensorType type, int64_t columns, int64_t rows) {
    const GgufTensor *t = gguf_find_tensor(g, name);
    if (!t) fail_msg("there is no tensor %s", name);
    if (t->type != type || t->dims[0] != columns || t->dims[1] != rows)
        fail_msg("%s is %s [%lld, %lld], wanted %s [%lld, %lld]", name, tensor_type_info(t->type)->name,
                 (long long)t->dims[0], (long long)t->dims[1], tensor_type_info(type)->name, (long long)columns,
                 (long long)rows);
}

static void shapes_are_as_requested(void **state) {
    (void)state;
    Gguf *g = made("--arch qwen3 --layers 2 --dim 128 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 --vocab 400 "
                   "--ctx 99 --type F16");
    assert_tensor(g, "token_embd.weight", TYPE_F16, 128, 400);
    assert_tensor(g, "output.weight", TYPE_F16, 128, 400);
    assert_tensor(g, "output_norm.weight", TYPE_F32, 128, 1);
    assert_tensor(g, "blk.1.attn_q.weight", TYPE_F16, 128, 256);
    assert_tensor(g, "blk.1.attn_k.weight", TYPE_F16, 128, 128);
    assert_tensor(g, "blk.1.attn_output.weight", TYPE_F16, 256, 128);
    assert_tensor(g, "blk.1.attn_q_norm.weight", TYPE_F32, 64, 1);
    assert_tensor(g, "blk.1.ffn_down.weight", TYPE_F16, 320, 128);
    assert_null(gguf_find_tensor(g, "blk.2.attn_q.weight"));
    assert_null(gguf_find_tensor(g, "blk.0.attn_q.bias"));
    uint32_t v;
    assert_true(gguf_get_u32(g, "qwen3.context_length", &v) && v == 99);
    assert_true(gguf_get_u32(g, "qwen3.attention.key_length", &v) && v == 64);
    assert_int_equal(gguf_kv_count(g, gguf_find_key(g, "tokenizer.ggml.tokens")), 400);
    gguf_close(g);
    g = made("--arch qwen2 --layers 1 --tie --bias-std 3 --rope-scaling yarn:4:1024");
    assert_null(gguf_find_tensor(g, "output.weight"));
    assert_tensor(g, "blk.0.attn_k.bias", TYPE_F32, 256, 1);
    GgufString s;
    assert_true(gguf_get_string(g, "qwen2.rope.scaling.type", &s) && s.n == 4 && memcmp(s.data, "yarn", 4) == 0);
    gguf_close(g);
    g = made(
        "--arch qwen3next --layers 2 --dim 64 --delta-heads 6 --delta-key-heads 3 --delta-dim 16 --attention-every 2 "
        "--type F16");
    assert_tensor(g, "blk.0.attn_qkv.weight", TYPE_F16, 64, 192);
    assert_tensor(g, "blk.0.ssm_conv1d.weight", TYPE_F32, 4, 192);
    assert_tensor(g, "blk.0.ssm_ba.weight", TYPE_F16, 64, 12);
    assert_tensor(g, "blk.0.ssm_out.weight", TYPE_F16, 96, 64);
    assert_tensor(g, "blk.1.attn_q.weight", TYPE_F16, 64, 128);
    assert_true(gguf_get_u32(g, "qwen3next.ssm.time_step_rank", &v) && v == 6);
    gguf_close(g);
    g = made("--arch qwen35 --layers 2 --dim 64 --attention-every 2 --mtp 1 --type F16");
    assert_true(gguf_get_u32(g, "qwen35.block_count", &v) && v == 3);
    assert_true(gguf_get_u32(g, "qwen35.nextn_predict_layers", &v) && v == 1);
    assert_tensor(g, "blk.2.nextn.eh_proj.weight", TYPE_F16, 128, 64);
    assert_tensor(g, "blk.2.nextn.hnorm.weight", TYPE_F32, 64, 1);
    assert_tensor(g, "blk.2.attn_q.weight", TYPE_F16, 64, 128);
    gguf_close(g);
}

static void layers_of_deepseek_and_glm_are_as_requested(void **state) {
    (void)state;
    uint32_t v;
    Gguf *g = made(
        "--arch deepseek2 --layers 2 --dim 64 --heads 4 --head-dim 24 --rope-dim 8 --kv-rank 32 --q-rank 16 --mtp 2 "
        "--experts 4 --expert-ffn 32 --sigmoid-router --type F16");
    assert_true(gguf_get_u32(g, "deepseek2.nextn_predict_layers", &v) && v == 2);
    assert_tensor(g, "blk.2.attn_kv_a_mqa.weight", TYPE_F16, 64, 40);
    assert_tensor(g, "blk.2.nextn.eh_proj.weight", TYPE_F16, 128, 64);
    assert_tensor(g, "blk.2.exp_probs_b.bias", TYPE_F32, 4, 1);
    assert_tensor(g, "blk.3.nextn.eh_proj.weight", TYPE_F16, 128, 64);
    assert_null(gguf_find_tensor(g, "blk.2.ffn_gate.weight"));
    gguf_close(g);
    g = made("--arch glm4moe --layers 2 --dim 64 --heads 4 --head-dim 32 --kv-heads 2 --mtp 1 --experts 4 --expert-ffn "
             "32 --type F16");
    assert_true(gguf_get_u32(g, "glm4moe.rope.dimension_count", &v) && v == 16);
    assert_true(gguf_get_u32(g, "glm4moe.expert_gating_func", &v) && v == 2);
    assert_tensor(g, "blk.0.ffn_gate.weight", TYPE_F16, 64, 192);
    assert_tensor(g, "blk.1.attn_k.bias", TYPE_F32, 64, 1);
    assert_tensor(g, "blk.1.post_attention_norm.weight", TYPE_F32, 64, 1);
    assert_tensor(g, "blk.2.attn_q_norm.weight", TYPE_F32, 32, 1);
    assert_tensor(g, "blk.2.ffn_up_shexp.weight", TYPE_F16, 64, 32);
    gguf_close(g);
}

static void temperatures_are_as_requested(void **state) {
    (void)state;
    uint32_t v;
    float f;
    Gguf *g = made("--arch mistral3 --layers 1 --dim 64 --ctx 4096 --type F16");
    assert_true(gguf_get_u32(g, "mistral3.rope.scaling.original_context_length", &v) && v == 257);
    assert_true(gguf_get_f32(g, "mistral3.attention.temperature_scale", &f) && f > 0);
    gguf_close(g);
    g = made("--arch llama4 --layers 4 --dim 64 --experts 4 --expert-ffn 96 --type F16");
    assert_tensor(g, "blk.0.ffn_gate.weight", TYPE_F16, 64, 192);
    assert_tensor(g, "blk.1.ffn_up_shexp.weight", TYPE_F16, 64, 96);
    assert_null(gguf_find_tensor(g, "blk.1.ffn_gate_inp_shexp.weight"));
    assert_true(gguf_get_u32(g, "llama4.interleave_moe_layer_step", &v) && v == 2);
    gguf_close(g);
}

static void recurrent_layers_are_as_requested(void **state) {
    (void)state;
    int64_t n;
    Gguf *g = made("--arch granitehybrid --layers 2 --dim 64 --ssm-heads 6 --ssm-groups 2 --ssm-dim 16 --ssm-state 10 "
                   "--attention-every 2 --heads 2 --experts 4 --type F16");
    assert_tensor(g, "blk.0.ssm_in.weight", TYPE_F16, 64, 2 * 96 + 2 * 2 * 10 + 6);
    assert_tensor(g, "blk.0.ssm_norm.weight", TYPE_F32, 48, 2);
    assert_tensor(g, "blk.1.attn_q.weight", TYPE_F16, 64, 64);
    assert_null(gguf_find_tensor(g, "blk.0.ffn_gate_inp_shexp.weight"));
    int64_t kv = gguf_find_key(g, "granitehybrid.attention.head_count_kv");
    assert_true(gguf_array_i64(g, kv, 0, &n) && n == 0);
    assert_true(gguf_array_i64(g, kv, 1, &n) && n == 2);
    gguf_close(g);
    g = made("--arch lfm2 --layers 4 --dim 64 --type F16");
    assert_tensor(g, "blk.2.shortconv.in_proj.weight", TYPE_F16, 64, 192);
    assert_tensor(g, "blk.3.attn_q_norm.weight", TYPE_F32, 64, 1);
    assert_tensor(g, "token_embd_norm.weight", TYPE_F32, 64, 1);
    gguf_close(g);
    g = made("--arch lfm2moe --layers 4 --dim 64 --experts 4 --type F16");
    assert_tensor(g, "blk.0.ffn_gate.weight", TYPE_F16, 64, 192);
    assert_tensor(g, "blk.1.exp_probs_b.bias", TYPE_F32, 4, 1);
    gguf_close(g);
    g = made("--arch mamba2 --layers 1 --dim 64 --type F16");
    assert_tensor(g, "blk.0.ssm_out.weight", TYPE_F16, 128, 64);
    assert_null(gguf_find_tensor(g, "blk.0.ffn_norm.weight"));
    gguf_close(g);
}

static void mixes_give_more_bits_where_llama_cpp_does(void **state) {
    (void)state;
    Gguf *g = made("--layers 8 --type Q4_K_M");
    static const TensorType wanted[] = {TYPE_Q6_K, TYPE_Q4_K, TYPE_Q4_K, TYPE_Q6_K, /* layers 0, 3, 6 and 7 */
                                        TYPE_Q4_K, TYPE_Q4_K, TYPE_Q6_K, TYPE_Q6_K};
    for (int l = 0; l < 8; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", l);
        assert_tensor(g, name, wanted[l], 256, 256);
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        assert_tensor(g, name, wanted[l], 768, 256);
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", l);
        assert_tensor(g, name, TYPE_Q4_K, 256, 768);
    }
    assert_tensor(g, "output.weight", TYPE_Q6_K, 256, 4096);
    gguf_close(g);
    g = made("--layers 1 --dim 64 --heads 1 --type Q5_K"); /* rows of 64 are not whole super-blocks */
    assert_tensor(g, "blk.0.attn_q.weight", TYPE_Q5_1, 64, 64);
    gguf_close(g);
}

static void weights_have_their_deviation(void **state) {
    (void)state;
    Gguf *g = made("--layers 1 --type F32 --dim 256");
    static const struct {
        const char *name;
        double mean, std;
    } cases[] = {{"token_embd.weight", 0, 2.5 / 16},
                 {"blk.0.attn_q.weight", 0, 1.7 / 16},
                 {"blk.0.ffn_norm.weight", 1, 0.1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const GgufTensor *t = gguf_find_tensor(g, cases[c].name);
        const float *x = t->data;
        int64_t n = t->dims[0] * t->dims[1];
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) sum += x[i], squares += (double)x[i] * x[i];
        double mean = sum / (double)n, std = sqrt(squares / (double)n - mean * mean);
        if (fabs(mean - cases[c].mean) > 5 * cases[c].std / sqrt((double)n) || fabs(std / cases[c].std - 1) > 0.15)
            fail_msg("%s: mean %g, deviation %g; wanted %g, %g", cases[c].name, mean, std, cases[c].mean, cases[c].std);
    }
    gguf_close(g);
}

static void the_same_options_give_the_same_bytes(void **state) {
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "cmp -s %s %s", path[0], path[1]);
    gguf_close(made("--layers 1 --type Q4_0 --seed 7"));
    char *threads = getenv("OMP_THREAD_LIMIT");
    assert_null(threads);
    setenv("OMP_THREAD_LIMIT", "1", 1);
    assert_int_equal(run("--layers 1 --type Q4_0 --seed 7", path[1], NULL, 0), 0);
    unsetenv("OMP_THREAD_LIMIT");
    assert_int_equal(system(command), 0);
    assert_int_equal(run("--layers 1 --type Q4_0 --seed 8", path[1], NULL, 0), 0);
    assert_int_not_equal(system(command), 0);
}

/* The factors by the three branches of Llama 3.1's rule, with its published numbers: 8, 1, 4, 8192 and base 500000.
 */
static void rope_factors_follow_llama_3(void **state) {
    (void)state;
    Gguf *g = made("--layers 1 --dim 256 --heads 2 --rope-base 500000 --rope-scaling llama3:8:1:4:8192");
    assert_tensor(g, "rope_freqs.weight", TYPE_F32, 64, 1);
    const float *f = gguf_find_tensor(g, "rope_freqs.weight")->data;
    for (int i = 0; i < 64; i++) {
        double frequency = pow(500000, -2.0 * i / 128), wavelength = 8 * atan(1) / frequency, wanted;
        if (wavelength < 8192.0 / 4) wanted = 1;
        else if (wavelength > 8192.0 / 1) wanted = 8;
        else {
            double smooth = (8192.0 / wavelength - 1) / (4.0 - 1.0);
            wanted = frequency / ((1 - smooth) * frequency / 8 + smooth * frequency);
        }
        if (fabs((double)f[i] / wanted - 1) > 1e-6) fail_msg("factor %d is %g, wanted %g", i, (double)f[i], wanted);
    }
    assert_true(f[0] == 1.0f && f[63] == 8.0f);
    gguf_close(g);
}

static void vocabularies_are_taken_cut_and_padded(void **state) {
    (void)state;
    Gguf *from;
    fr_error err = {0};
    if (gguf_open(&from, "models/draft.gguf", &err)) fail_msg("%s", err.message);
    int64_t of_from = gguf_find_key(from, "tokenizer.ggml.tokens"), n_from = gguf_kv_count(from, of_from);
    static const char *options[] = {"--vocab-from models/draft.gguf", "--vocab 1000 --vocab-from models/draft.gguf",
                                    "--vocab 5000 --vocab-from models/draft.gguf"};
    const int64_t wanted[] = {n_from, 1000, 5000};
    for (int c = 0; c < 3; c++) {
        char line[128];
        snprintf(line, sizeof line, "--layers 1 --dim 64 %s", options[c]);
        Gguf *g = made(line);
        int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens");
        assert_int_equal(gguf_kv_count(g, tokens), wanted[c]);
        assert_int_equal(gguf_find_tensor(g, "output.weight")->dims[1], wanted[c]);
        for (int64_t i = 0; i < wanted[c] && i < n_from; i++) {
            GgufString s = {0}, t = {0};
            assert_true(gguf_array_string(from, of_from, i, &s) && gguf_array_string(g, tokens, i, &t));
            if (s.n != t.n || memcmp(s.data, t.data, s.n) != 0) fail_msg("token %lld differs", (long long)i);
        }
        assert_true(gguf_find_key(g, "tokenizer.chat_template") >= 0);
        gguf_close(g);
    }
    gguf_close(from);
}

/* Every piece of a made-up vocabulary is new, and is a single character or two earlier pieces joined. */
static void made_up_pieces_can_be_reached_by_merging(void **state) {
    (void)state;
    Gguf *g = made("--layers 1 --dim 32 --vocab 22000");
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens"), n = gguf_kv_count(g, tokens);
    GgufString *pieces = mem_calloc((size_t)n, sizeof *pieces);
    assert_non_null(pieces);
    for (int64_t i = 0; i < n; i++) assert_true(gguf_array_string(g, tokens, i, &pieces[i]));
    for (int64_t i = 259 + 95; i < n; i += 97) { /* only some tokens, because each is searched for among all tokens
                                                  * before it */
        bool joined = false;
        for (int64_t a = 259; a < i && !joined; a++) {
            if (pieces[a].n == pieces[i].n && memcmp(pieces[a].data, pieces[i].data, pieces[i].n) == 0)
                fail_msg("tokens %lld and %lld are the same", (long long)a, (long long)i);
            if (pieces[a].n >= pieces[i].n || memcmp(pieces[a].data, pieces[i].data, pieces[a].n) != 0) continue;
            size_t rest = pieces[i].n - pieces[a].n;
            for (int64_t b = 259; b < i && !joined; b++)
                joined = pieces[b].n == rest && memcmp(pieces[b].data, pieces[i].data + pieces[a].n, rest) == 0;
        }
        if (!joined) fail_msg("token %lld '%.*s' cannot be merged", (long long)i, (int)pieces[i].n, pieces[i].data);
    }
    mem_free(pieces);
    gguf_close(g);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *options;
        int status;
        const char *says;
    } cases[] = {
        {"--arch bert", 2, "unknown architecture 'bert'"},
        {"--type TQ2_0", 2, "unknown type or mix 'TQ2_0'"},
        {"--delta-dim 16", 2, "architecture llama has no Gated DeltaNet"},
        {"--mtp 1", 2, "architecture llama has no layers for multi-token prediction"},
        {"--arch qwen35 --ssm-dim 16", 2, "architecture qwen35 has no Mamba-2"},
        {"--arch mamba2 --attention-every 2", 2, "mamba2 does not mix attention and recurrent layers"},
        {"--arch mamba2 --ssm-heads 6 --ssm-groups 4", 2, "6 heads cannot be 4 groups of equal size"},
        {"--arch qwen35 --delta-heads 5 --delta-key-heads 2", 2, "5 value heads cannot share 2 key heads evenly"},
        {"--heads 4 --kv-heads 3", 2, "cannot share"},
        {"--head-dim 7", 2, "the width must be even"},
        {"--vocab 100", 2, "--vocab must be from 259"},
        {"--layers zero", 2, "'zero' must be an integer"},
        {"--rope-scaling cubic:2", 2, "unknown rope scaling"},
        {"--preset gpt-5", 2, "unknown preset"},
        {"--vocab-from Makefile", 1, "Makefile: this is not a GGUF file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[512];
        int status = run(cases[i].options, path[0], said, sizeof said);
        if (status != cases[i].status || !strstr(said, cases[i].says))
            fail_msg("make_model %s: status %d \"%s\", wanted %d \"%s\"", cases[i].options, status, said,
                     cases[i].status, cases[i].says);
    }
    char options[200], said[512];
    snprintf(options, sizeof options, "--vocab-from %s", path[0]);
    assert_int_equal(run("--layers 1 --dim 64", path[0], NULL, 0), 0);
    assert_int_equal(run(options, path[0], said, sizeof said), 2);
    assert_non_null(strstr(said, "are the same file"));
    assert_int_equal(run("", "/nowhere/x", said, sizeof said), 1);
    assert_non_null(strstr(said, "its folder does not exist"));
}

int main(int argc, char **argv) {
    (void)argc;
    const char *tests_folder = strstr(argv[0], "tests/test_make_model");
    snprintf(program, sizeof program, "%.*smake_model", tests_folder ? (int)(tests_folder - argv[0]) : 0, argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_as_requested),
        cmocka_unit_test(recurrent_layers_are_as_requested),
        cmocka_unit_test(layers_of_deepseek_and_glm_are_as_requested),
        cmocka_unit_test(temperatures_are_as_requested),
        cmocka_unit_test(mixes_give_more_bits_where_llama_cpp_does),
        cmocka_unit_test(weights_have_their_deviation),
        cmocka_unit_test(the_same_options_give_the_same_bytes),
        cmocka_unit_test(rope_factors_follow_llama_3),
        cmocka_unit_test(vocabularies_are_taken_cut_and_padded),
        cmocka_unit_test(made_up_pieces_can_be_reached_by_merging),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, make_paths, remove_paths);
}
