/* test_drafter_file.c - unit tests of drafter_file.c: a file is read back as it was written, and a file for another
 * target or a damaged file is refused with a message that names it. The files are those of redrafter; they are opened
 * through the registry, as the engine opens them. */
#include "learned_rig.h"

#include "base/rng.h"
#include "cli_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/drafter-file-target.gguf"
#define OTHER "build/drafter-file-other.gguf"
#define DRAFTER "build/drafter-file.gguf"

enum { H = 64, V = 300 };

static Gguf *target_gguf, *other_gguf;
static Weights *target, *other;

static int open_targets(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 1);
    learned_rig_write_target(OTHER, 2);
    target_gguf = rig_gguf(TARGET), other_gguf = rig_gguf(OTHER);
    target = rig_weights(target_gguf, NULL), other = rig_weights(other_gguf, NULL);
    return 0;
}

static int close_targets(void **state) {
    (void)state;
    rig_weights_close(target);
    rig_weights_close(other);
    gguf_close(target_gguf);
    gguf_close(other_gguf);
    return 0;
}

/* The fault of a file. */
typedef enum Fault {
    SOUND,
    MISSING_TENSOR,
    WRONG_SHAPE,
    A_VECTOR_WITH_ROWS,
    NOT_A_NUMBER,
    INFINITE,
    ONE_TENSOR_MORE,
    MISSING_KEY,
    KEY_TOO_LARGE,
    KEY_IS_TEXT,
    UNKNOWN_START,
    OTHER_METHOD,
} Fault;

static void write_drafter(Fault fault) {
    LearnedRig r;
    learned_rig_begin(&r, fault == OTHER_METHOD ? "medusa" : "redrafter", target, 3);
    if (fault == KEY_IS_TEXT) gguf_set_string(r.w, DRAFTER_KEY("redrafter.block_count"), "1", 1);
    else if (fault != MISSING_KEY)
        gguf_set_u32(r.w, DRAFTER_KEY("redrafter.block_count"), fault == KEY_TOO_LARGE ? 4000000000u : 1);
    gguf_set_string(r.w, DRAFTER_KEY("redrafter.start"), fault == UNKNOWN_START ? "middle" : "zero",
                    fault == UNKNOWN_START ? 6 : 4);
    learned_rig_tensor(&r, "redrafter.w.weight", TYPE_F16, H, fault == WRONG_SHAPE ? H - 1 : H, 0.1);
    if (fault != MISSING_TENSOR) learned_rig_tensor(&r, "redrafter.u.weight", TYPE_F16, H, H, 0.1);
    float *bias = learned_rig_tensor(&r, "redrafter.u.bias", TYPE_F32, H, fault == A_VECTOR_WITH_ROWS ? 1 : 0, 0.1);
    float *written = r.kept[r.n_kept - 1]; /* the bytes of an F32 tensor are floats */
    assert_ptr_not_equal(written, bias);
    if (fault == NOT_A_NUMBER) written[H - 1] = NAN;
    learned_rig_tensor(&r, "redrafter.block.0.weight", TYPE_F32, 2 * H, 2 * H, 0.1);
    if (fault == INFINITE) ((float *)r.kept[r.n_kept - 1])[2 * H * 2 * H - 1] = -INFINITY;
    learned_rig_tensor(&r, "redrafter.block.0.bias", TYPE_F32, 2 * H, 0, 0.1);
    learned_rig_tensor(&r, "redrafter.output.weight", TYPE_Q8_0, 2 * H, V, 0.1);
    if (fault == ONE_TENSOR_MORE) learned_rig_tensor(&r, "redrafter.block.1.bias", TYPE_F32, 2 * H, 0, 0.1);
    learned_rig_write(&r, DRAFTER);
    learned_rig_free(&r);
}

static int try_open(const char *path, const Weights *m, const char *method, fr_error *err) {
    Device *device = rig_device(m, 1);
    const DrafterEnv env = {.n_vocab = V, .max_sequences = 2, .target = m->model->gguf, .weights = m, .device = device};
    char spec[160];
    Drafter *d;
    snprintf(spec, sizeof spec, "%s:file=%s", method, path);
    int status = drafter_open(&d, spec, &env, 0, err);
    if (!status) drafter_close(d);
    device_close(device);
    return status;
}

/* The error message must contain all of these. */
static void assert_refused(const char *path, const Weights *m, const char *method, fr_code code,
                           const char *const *message) {
    fr_error err = {0};
    assert_int_equal(try_open(path, m, method, &err), code);
    for (; *message; message++)
        if (!strstr(err.message, *message)) fail_msg("'%s' does not contain '%s'", err.message, *message);
}
#define refused(path, m, method, code, ...) \
    assert_refused(path, m, method, code, (const char *const[]){__VA_ARGS__, NULL})

static void what_is_written_is_read_again(void **state) {
    (void)state;
    fr_error err;
    write_drafter(SOUND);
    if (try_open(DRAFTER, target, "redrafter", &err)) fail_msg("%s", err.message);
    Gguf *g = rig_gguf(DRAFTER);
    char print[17];
    GgufString s;
    uint32_t v;
    snprintf(print, sizeof print, "%016llx", (unsigned long long)drafter_target_fingerprint(target->model));
    assert_true(gguf_get_string(g, "forerun-drafter.target.fingerprint", &s) && s.n == 16 &&
                memcmp(s.data, print, 16) == 0);
    assert_true(gguf_get_string(g, "forerun-drafter.training.command", &s) && s.n == 20);
    assert_true(gguf_get_u32(g, "forerun-drafter.training.steps", &v) && v == 7);
    assert_true(gguf_get_u32(g, "forerun-drafter.target.vocabulary_size", &v) && v == V);
    assert_null(gguf_find_tensor(g, "token_embd.weight")); /* the target's embedding is shared, not copied */
    gguf_close(g);
}

static void a_drafter_for_another_target_is_refused_by_name(void **state) {
    (void)state;
    char ours[17], theirs[17];
    snprintf(ours, sizeof ours, "%016llx", (unsigned long long)drafter_target_fingerprint(target->model));
    snprintf(theirs, sizeof theirs, "%016llx", (unsigned long long)drafter_target_fingerprint(other->model));
    write_drafter(SOUND);
    refused(DRAFTER, other, "redrafter", FR_ERR_MISMATCH, DRAFTER, "drafter-file-target.gguf", ours,
            "drafter-file-other.gguf", theirs);
    refused(DRAFTER, target, "medusa", FR_ERR_MISMATCH, "'redrafter'", "not for medusa",
            "use this one as redrafter:file=");
    refused(TARGET, target, "redrafter", FR_ERR_MISMATCH, "not a learned drafter", "'llama'",
            "forerun train redrafter");
    refused("build/no-such-file.gguf", target, "redrafter", FR_ERR_IO, "no-such-file");
    /* the engine refuses the request, too */
    fr_model *model = rig_open_model(OTHER, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    fr_request *request;
    fr_error err;
    const char *draft = "redrafter:file=" DRAFTER;
    const int32_t prompt[] = {5, 6};
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 2,
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = 1};
    assert_int_equal(rig_open_request(&request, e, &o, &err), FR_ERR_MISMATCH);
    fr_engine_close(e);
    fr_model_close(model);
}

static void damaged_files_are_refused(void **state) {
    (void)state;
    static const struct {
        Fault fault;
        fr_code code;
        const char *message;
    } cases[] = {
        {MISSING_TENSOR, FR_ERR_FORMAT, "redrafter.u.weight is missing"},
        {WRONG_SHAPE, FR_ERR_FORMAT, "64 x 63 instead of 64 x 64"},
        {A_VECTOR_WITH_ROWS, FR_ERR_FORMAT, "redrafter.u.bias has the wrong shape"},
        {NOT_A_NUMBER, FR_ERR_FORMAT, "redrafter.u.bias holds NaN"},
        {INFINITE, FR_ERR_FORMAT, "redrafter.block.0.weight holds NaN or infinity"},
        {ONE_TENSOR_MORE, FR_ERR_UNSUPPORTED, "tensor redrafter.block.1.bias, which its method does not read"},
        {MISSING_KEY, FR_ERR_FORMAT, "redrafter.block_count is missing"},
        {KEY_TOO_LARGE, FR_ERR_FORMAT, "4000000000 but must be from 0 to 16"},
        {KEY_IS_TEXT, FR_ERR_FORMAT, "not an integer"},
        {UNKNOWN_START, FR_ERR_FORMAT, "'middle'"},
        {OTHER_METHOD, FR_ERR_MISMATCH, "'medusa'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_drafter(cases[i].fault);
        refused(DRAFTER, target, "redrafter", cases[i].code, cases[i].message, DRAFTER);
    }
}

/* Random bytes changed, and truncated files: they are refused or opened, and do no harm. */
static void hostile_files_do_no_harm(void **state) {
    (void)state;
    enum { N_ROUNDS = 400, MAX_BYTES = 1 << 20 };
    static unsigned char sound[MAX_BYTES], bytes[MAX_BYTES];
    write_drafter(SOUND);
    FILE *f = fopen(DRAFTER, "rb");
    size_t n = fread(sound, 1, MAX_BYTES, f);
    fclose(f);
    assert_true(n > 1000 && n < MAX_BYTES);
    int n_opened = 0;
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        uint32_t dice[4];
        memcpy(bytes, sound, n);
        rng_words(9, RNG_TEST, round, 0, dice);
        for (uint32_t k = 0; k < 1 + dice[0] % 4; k++) { /* most of the important bytes are in the first 2 KiB */
            uint32_t word[4];
            rng_words(9, RNG_TEST, round, 1 + k, word);
            bytes[word[0] % (word[1] % 4 ? 2048 : n)] ^= (unsigned char)(1 + word[2] % 255);
        }
        f = fopen("build/drafter-file-hostile.gguf", "wb");
        assert_int_equal(fwrite(bytes, 1, dice[1] % 8 ? n : dice[2] % n, f), dice[1] % 8 ? n : dice[2] % n);
        fclose(f);
        fr_error err;
        n_opened += try_open("build/drafter-file-hostile.gguf", target, "redrafter", &err) == FR_OK;
    }
    assert_in_range(n_opened, 1, N_ROUNDS - 100);
}

/* ---- the fingerprint ------------------------------------------------------------------------------- */

static uint64_t fingerprint_of(const char *path) {
    Gguf *g = rig_gguf(path);
    Weights *m = rig_weights(g, NULL);
    uint64_t print = drafter_target_fingerprint(m->model);
    rig_weights_close(m);
    gguf_close(g);
    return print;
}

/* Returns a copy of the target with one bit of a tensor flipped, or another rope base. */
static uint64_t fingerprint_with(const char *tensor, size_t at, float rope_base) {
    static char changed[1 << 20];
    GgufWriter *w = gguf_writer_new();
    fr_error err;
    if (rope_base > 0) gguf_set_f32(w, "llama.rope.freq_base", rope_base);
    gguf_copy_kvs(w, target_gguf, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(target_gguf); i++) {
        const GgufTensor *t = gguf_tensor(target_gguf,
                                          tensor ? i : gguf_n_tensors(target_gguf) - 1 - i); /* any order */
        const void *data = t->data;
        if (tensor && strcmp(t->name, tensor) == 0) {
            assert_true(t->bytes <= sizeof changed);
            memcpy(changed, data, t->bytes);
            changed[at == SIZE_MAX ? t->bytes - 1 : at] ^= 1;
            data = changed;
        }
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, data);
    }
    if (gguf_writer_finish(w, "build/drafter-file-copy.gguf", &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    return fingerprint_of("build/drafter-file-copy.gguf");
}

static void the_fingerprint_identifies_the_target(void **state) {
    (void)state;
    uint64_t print = drafter_target_fingerprint(target->model);
    assert_int_equal(fingerprint_of(TARGET), print);
    assert_int_equal(fingerprint_with(NULL, 0, 0), print); /* the order of tensors does not matter */
    assert_int_not_equal(drafter_target_fingerprint(other->model), print);
    assert_int_not_equal(fingerprint_with("token_embd.weight", 8000, 0), print);
    assert_int_not_equal(fingerprint_with("output.weight", SIZE_MAX, 0), print);
    assert_int_not_equal(fingerprint_with("output_norm.weight", 0, 0), print);
    assert_int_not_equal(fingerprint_with("blk.1.ffn_down.weight", 2, 0), print);
    assert_int_not_equal(fingerprint_with(NULL, 0, 20000), print);
}

/* ---- inspect --------------------------------------------------------------------------------------- */

static void inspect_explains_the_file(void **state) {
    (void)state;
    write_drafter(SOUND);
    static const char *const message[] = {"redrafter: a recurrent head", "drafter-file-target.gguf, fingerprint ",
                                          "the target's embedding", "none: random weights", NULL};
    static const char *const json[] = {"\"method\": \"redrafter\"", "\"target_fingerprint\"", NULL};
    for (int i = 0; message[i]; i++) cli_expect("inspect " DRAFTER, 0, message[i]);
    for (int i = 0; json[i]; i++) cli_expect("inspect --json " DRAFTER, 0, json[i]);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(a_drafter_for_another_target_is_refused_by_name),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(hostile_files_do_no_harm),
        cmocka_unit_test(the_fingerprint_identifies_the_target),
        cmocka_unit_test(inspect_explains_the_file),
    };
    return cmocka_run_group_tests(tests, open_targets, close_targets);
}
