/* test_packed_file.c - packed weights from a file give the same bits of logits as weights that are packed when the
 * model is opened; the file has the documented format; and a file that is damaged or was made for another model is not
 * used. */
#include "model_rig.h"
#include "testing.h"

#include "compute/cpu/packed_file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_TOKENS = 9, N_VOCAB = 300, HEAD = 4096 };

static char folder[] = "build/packed-XXXXXX", model_path[64], packed_path[64];

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    snprintf(packed_path, sizeof packed_path, "%s/model.packed", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    unlink(model_path);
    unlink(packed_path);
    return rmdir(folder);
}

static void write_model(TensorType a, TensorType b, TensorType c, bool tied, uint64_t seed) {
    const RandomModel m = {.arch = tied ? "qwen2" : "llama",
                           .n_layer = 2,
                           .n_embd = 256,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 512,
                           .n_vocab = N_VOCAB,
                           .tied = tied,
                           .types = {a, b, c},
                           .n_types = 3,
                           .seed = seed};
    fr_error err;
    if (random_model_write(&m, model_path, &err)) fail_msg("%s", err.message);
}

/* ---- models with and without packed weights --------------------------------------------------------------- */

typedef struct Opened {
    Gguf *gguf;
    Model *model;
    Weights *weights;
} Opened;

static Opened open_model(const char *packed, const char *kernels) {
    Opened o = {.gguf = rig_gguf(model_path)};
    const WeightsOptions options = {.packed_file = packed, .kernels = kernels, .n_threads = 2};
    const Backend *cpu;
    fr_error err;
    if (model_open(&o.model, o.gguf, &err) || backend_find("cpu", &cpu, &err) ||
        cpu->weights_open(&o.weights, o.model, &options, &err))
        fail_msg("%s", err.message);
    return o;
}

static void close_model(Opened *o) {
    weights_close(o->weights);
    model_close(o->model);
    gguf_close(o->gguf);
}

static void save(void) {
    Opened o = open_model(NULL, NULL);
    fr_error err;
    if (o.weights->backend->weights_save(o.weights, packed_path, &err)) fail_msg("%s", err.message);
    close_model(&o);
}

static void run(const Opened *o, float *logits) {
    int32_t tokens[N_TOKENS];
    const RigOptions options = rig_options(16, N_TOKENS);
    Executor *e = rig_executor(o->weights, &options);
    rig_tokens(3, N_VOCAB, tokens, N_TOKENS);
    rig_append(e, rig_sequence(e), tokens, N_TOKENS, 4, N_VOCAB, logits);
    rig_executor_close(e);
}

static float expected[N_TOKENS][N_VOCAB];

/* Opens the model with the packed file, which must be used, or refused with a message that contains `why`; the logits
 * must be the expected ones in both cases. */
static void expect(const char *why, const char *kernels) {
    static float logits[N_TOKENS][N_VOCAB];
    Opened o = open_model(packed_path, kernels);
    if (why ? !strstr(o.weights->packed_error, why) : o.weights->packed_error[0])
        fail_msg("want '%s', got '%s'", why ? why : "", o.weights->packed_error);
    if ((o.weights->mapped == NULL) != (why != NULL)) fail_msg("'%s', and mapped: %d", why ? why : "", why == NULL);
    run(&o, logits[0]);
    close_model(&o);
    assert_memory_equal(logits, expected, sizeof expected);
}

static void save_with_logits(void) {
    Opened o = open_model(NULL, NULL);
    run(&o, expected[0]);
    close_model(&o);
    save();
}

static void prepare(TensorType a, TensorType b, TensorType c, bool tied) {
    write_model(a, b, c, tied, 1);
    save_with_logits();
}

static void logits_are_the_same_to_the_bit(void **state) {
    (void)state;
    static const TensorType types[][3] = {{TYPE_F32, TYPE_F16, TYPE_BF16},
                                          {TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_1},
                                          {TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0},
                                          {TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K}};
    for (int i = 0; i < 8; i++) {
        prepare(types[i / 2][0], types[i / 2][1], types[i / 2][2], i % 2);
        expect(NULL, NULL);
        expect(NULL, "ref"); /* the file was made with the best table of this machine */
    }
}

/* The table of per-layer embeddings follows the embedding, or the matrices if the embedding is the LM head. */
static void both_tables_are_kept(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        const RandomModel m = {.arch = "gemma4",
                               .n_layer = 4,
                               .n_embd = 64,
                               .n_head = 4,
                               .n_head_kv = 2,
                               .head_dim = 24,
                               .local_head_dim = 16,
                               .n_ff = 96,
                               .n_vocab = N_VOCAB,
                               .window = 5,
                               .n_shared_kv = 2,
                               .attention_interval = 2,
                               .n_ple = 32,
                               .tied = tied,
                               .types = {TYPE_Q8_0},
                               .n_types = 1,
                               .seed = 2};
        fr_error err;
        if (random_model_write(&m, model_path, &err)) fail_msg("%s", err.message);
        save_with_logits();
        expect(NULL, NULL);
    }
}

static void without_a_file_the_weights_are_packed(void **state) {
    (void)state;
    prepare(TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0, false);
    unlink(packed_path);
    Opened o = open_model(packed_path, NULL);
    assert_string_equal(o.weights->packed_error, "");
    assert_null(o.weights->mapped);
    close_model(&o);
}

/* ---- files ------------------------------------------------------------------------------------------------ */

static unsigned char *read_packed(size_t *n) {
    struct stat st;
    FILE *f = fopen(packed_path, "rb");
    assert_true(f && fstat(fileno(f), &st) == 0);
    unsigned char *bytes = malloc((size_t)st.st_size + 64);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    fclose(f);
    return bytes;
}

static void write_packed(const unsigned char *bytes, size_t n) {
    FILE *f = fopen(packed_path, "wb");
    assert_true(f && fwrite(bytes, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

static size_t append_matrix(unsigned char *out, const Gguf *g, const char *name) {
    const GgufTensor *t = gguf_find_tensor(g, name);
    PackedMatrix m;
    fr_error err;
    assert_non_null(t);
    if (packed_init(&m, t->type, ACT_Q16, t->dims[1], t->dims[0], &err)) fail_msg("%s", err.message);
    packed_fill(&m, t->data, 0, packed_n_tiles(&m));
    size_t n = packed_bytes(&m);
    memcpy(out, m.data, n);
    packed_free(&m);
    return n;
}

/* The matrices of layer 0, those of layer 1, the output matrix, and the embedding. */
static void the_file_holds_the_matrices_in_order(void **state) {
    (void)state;
    static const char *const names[] = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
    size_t n, at = HEAD;
    prepare(TYPE_Q8_0, TYPE_Q6_K, TYPE_F16, false);
    unsigned char *bytes = read_packed(&n), *own = calloc(1, n);
    Gguf *g = rig_gguf(model_path);
    assert_non_null(own);
    for (int layer = 0; layer < 2; layer++)
        for (int i = 0; i < 7; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, names[i]);
            at += append_matrix(own + at, g, name);
        }
    at += append_matrix(own + at, g, "output.weight");
    const GgufTensor *embedding = gguf_find_tensor(g, "token_embd.weight");
    memcpy(own + at, embedding->data, embedding->bytes);
    at += (embedding->bytes + 63) / 64 * 64;
    assert_int_equal(at, n);
    assert_memory_equal(bytes + HEAD, own + HEAD, n - HEAD);
    assert_memory_equal(bytes, "FRPACKED", 8);
    gguf_close(g);
    free(own);
    free(bytes);
}

/* Hashes of the layout of tiles: if one of these numbers changes, PACKED_FILE_VERSION must change, too. */
static void the_version_belongs_to_this_layout(void **state) {
    (void)state;
    enum { N_OUT = 19, N_IN = 768 };
    uint64_t all = 0;
    for (int type = 0; type < TYPE_COUNT; type++) {
        size_t row_bytes;
        PackedMatrix m;
        if (!tensor_type_row_bytes((TensorType)type, N_IN, &row_bytes)) continue;
        size_t n = N_OUT * row_bytes;
        unsigned char *rows = malloc(n);
        assert_non_null(rows);
        for (size_t i = 0; i < n; i += 16) {
            uint32_t words[4];
            rng_words(5, RNG_TEST, (uint64_t)type, (uint32_t)i, words);
            memcpy(rows + i, words, n - i < 16 ? n - i : 16);
        }
        assert_int_equal(packed_init(&m, (TensorType)type, ACT_Q16, N_OUT, N_IN, NULL), FR_OK);
        packed_fill(&m, rows, 0, packed_n_tiles(&m));
        all = hash64(m.data, packed_bytes(&m), all);
        packed_free(&m);
        free(rows);
        if (type == TYPE_Q6_K) assert_int_equal(all, UINT64_C(0xa013baa421f2e413)); /* all types of the first files */
        if (type == TYPE_MXFP4) assert_int_equal(all, UINT64_C(0xb9242b57fd82e0a1));
    }
    assert_int_equal(PACKED_FILE_VERSION, 1);
    assert_int_equal(all, UINT64_C(0xd0f17e7e44eff706));
}

/* ---- files that are refused --------------------------------------------------------------------------------- */

static void damaged_files_are_not_used(void **state) {
    (void)state;
    size_t n;
    prepare(TYPE_Q4_K, TYPE_Q8_0, TYPE_Q4_0, false);
    unsigned char *bytes = read_packed(&n);
    for (size_t i = 0; i < 72; i++) { /* every byte of the header */
        bytes[i] ^= 0x10;
        write_packed(bytes, n);
        expect("so they are not used; run 'forerun repack' again", NULL);
        bytes[i] ^= 0x10;
    }
    for (size_t i = HEAD; i < n; i += n / 50) {
        bytes[i] ^= 1;
        write_packed(bytes, n);
        expect("are damaged (the content)", NULL);
        bytes[i] ^= 1;
    }
    bytes[n - 1] ^= 1;
    write_packed(bytes, n);
    expect("are damaged (the content)", NULL);
    bytes[n - 1] ^= 1;
    static const size_t cuts[] = {0, 1, 71, HEAD - 1, HEAD, HEAD + 1, 100000};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        write_packed(bytes, cuts[i]);
        expect("are damaged", NULL);
    }
    write_packed(bytes, n - 1);
    expect("are damaged (the size)", NULL);
    memset(bytes + n, 0, 64);
    write_packed(bytes, n + 64);
    expect("are damaged (the size)", NULL);
    write_packed(bytes, n);
    expect(NULL, NULL);
    free(bytes);
    unlink(packed_path);
    assert_int_equal(mkdir(packed_path, 0700), 0);
    expect("is not a regular file but a folder", NULL);
    assert_int_equal(rmdir(packed_path), 0);
}

static void another_version_is_not_used(void **state) {
    (void)state;
    size_t n;
    prepare(TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0, true);
    unsigned char *bytes = read_packed(&n);
    uint32_t version = PACKED_FILE_VERSION + 1;
    memcpy(bytes + 8, &version, 4);
    uint64_t hash = hash64(bytes, 64, 0);
    memcpy(bytes + 64, &hash, 8);
    write_packed(bytes, n);
    expect("were made by another version of forerun", NULL);
    free(bytes);
}

static void set_time(const struct timespec *time) {
    assert_int_equal(utimensat(AT_FDCWD, model_path, (const struct timespec[]){*time, *time}, 0), 0);
}

/* A model of the same shape and size; if its time of modification is the same, too, only the fingerprint differs. */
static void weights_of_another_model_are_not_used(void **state) {
    (void)state;
    struct stat st;
    for (int keeps_time = 0; keeps_time < 2; keeps_time++) {
        prepare(TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0, false);
        assert_int_equal(stat(model_path, &st), 0);
        write_model(TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0, false, 2);
        if (keeps_time) set_time(&st.st_mtim);
        Opened o = open_model(NULL, NULL);
        run(&o, expected[0]);
        close_model(&o);
        expect("are those of another or an earlier model file", NULL);
    }
    prepare(TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0, false);
    set_time(&(struct timespec){.tv_sec = 1});
    expect("are those of another or an earlier model file", NULL);
}

static void a_file_that_changes_while_it_is_mapped_ends_the_forward(void **state) {
    (void)state;
    prepare(TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0, false);
    Opened o = open_model(packed_path, NULL);
    assert_non_null(o.weights->mapped);
    const RigOptions options = rig_options(16, N_TOKENS);
    Executor *e = rig_executor(o.weights, &options);
    const Row row = {.token = 5, .sequence = rig_sequence(e), .parent = -1, .want_logits = true};
    fr_error err;
    assert_int_equal(executor_reserve(e, row.sequence, 1, &err), FR_OK);
    assert_int_equal(executor_forward(e, &row, 1, &err), FR_OK);
    usleep(20000); /* one tick of the file system's clock */
    int fd = open(packed_path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, HEAD + 5000), 1);
    close(fd);
    assert_int_equal(executor_forward(e, &row, 1, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "changed while it was being read"));
    rig_executor_close(e);
    close_model(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_the_same_to_the_bit),
        cmocka_unit_test(both_tables_are_kept),
        cmocka_unit_test(without_a_file_the_weights_are_packed),
        cmocka_unit_test(the_file_holds_the_matrices_in_order),
        cmocka_unit_test(the_version_belongs_to_this_layout),
        cmocka_unit_test(damaged_files_are_not_used),
        cmocka_unit_test(another_version_is_not_used),
        cmocka_unit_test(weights_of_another_model_are_not_used),
        cmocka_unit_test(a_file_that_changes_while_it_is_mapped_ends_the_forward),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
