/* test_checkpoint.c - checkpoints and the training loop: a checkpoint that is truncated, damaged or of another run is
 * refused; a run that was stopped, or killed with SIGKILL at any moment, ends with the bytes of an undisturbed one. */
#include "testing.h"

#include "model_rig.h"
#include "toy_trainer.h"
#include "train/loop.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH "build/test-checkpoint.gguf"
#define DATA "build/test-checkpoint.jsonl"
#define LOG "build/test-checkpoint.log"
#define OUT "build/test-checkpoint.out"

enum { N_VOCAB = 300 };

static Dataset data;

static void spill(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static char *slurp(const char *path, size_t *n) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    *n = (size_t)st.st_size;
    char *bytes = malloc(*n + 1);
    FILE *f = fopen(path, "rb");
    assert_true(bytes && f);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    bytes[*n] = '\0';
    return bytes;
}

static void remove_files(void) { unlink(PATH), unlink(PATH ".previous"), unlink(LOG), unlink(OUT); }

/* Some lines of a small language, tokenized with the vocabulary of a random model. */
static int make_data(void **state) {
    (void)state;
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 32,
                           .n_head = 1,
                           .n_head_kv = 1,
                           .n_ff = 32,
                           .n_vocab = N_VOCAB,
                           .seed = 1};
    static char text[40000];
    size_t n = 0;
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"the %s %s a %s\"}\n", i % 2 ? "cat" : "dog",
                              i % 3 ? "sees" : "hears", i % 5 ? "mouse" : "bird");
    spill(DATA, text, n);
    Gguf *g = rig_random_gguf(&m);
    char *files[] = {DATA};
    const DatasetOptions o = {.files = files, .n_files = 1, .valid_share = 0.2, .length = 24, .packs = true};
    int status = dataset_open(&data, &o, g, NULL);
    gguf_close(g);
    return status;
}

static int drop_data(void **state) {
    (void)state;
    dataset_close(&data);
    remove_files();
    unlink(DATA);
    return 0;
}

/* ---- the file ----------------------------------------------------------------------------------- */

typedef struct Arrays {
    float a[1000], b[7];
    CheckpointArray list[2];
    Checkpoint checkpoint;
} Arrays;

static void make_arrays(Arrays *x, float seed) {
    for (int i = 0; i < 1000; i++) x->a[i] = sinf(seed + (float)i);
    for (int i = 0; i < 7; i++) x->b[i] = seed;
    x->list[0] = (CheckpointArray){"a", 1000, x->a, false};
    x->list[1] = (CheckpointArray){"b", 7, x->b, false};
    x->checkpoint = (Checkpoint){.step = 12,
                                 .n_steps = 20,
                                 .data = 0xfedcba9876543210,
                                 .run_signature = "toy seed=1 lr=0.001 clip=1",
                                 .arrays = x->list,
                                 .n_arrays = 2};
}

static void a_written_checkpoint_is_read_back(void **state) {
    (void)state;
    Arrays first, second, got;
    remove_files();
    make_arrays(&first, 1), make_arrays(&second, 2), make_arrays(&got, 3);
    first.b[3] = -0.0f, first.b[4] = 1e-45f;
    assert_int_equal(checkpoint_write(PATH, &first.checkpoint, NULL), 0);
    second.checkpoint.step = 13;
    assert_int_equal(checkpoint_write(PATH, &second.checkpoint, NULL), 0);
    got.checkpoint.step = 0;
    assert_int_equal(checkpoint_read(PATH, &got.checkpoint, NULL), 0);
    assert_true(got.checkpoint.step == 13 && memcmp(got.a, second.a, sizeof got.a) == 0);
    assert_int_equal(checkpoint_read(PATH ".previous", &got.checkpoint, NULL), 0);
    assert_int_equal(got.checkpoint.step, 12);
    assert_memory_equal(got.a, first.a, sizeof got.a);
    assert_memory_equal(got.b, first.b, sizeof got.b);
}

static void expect_refusal(const char *message, Checkpoint *c, int code) {
    fr_error err;
    int status = checkpoint_read(PATH, c, &err);
    if (status != code || !strstr(err.message, message) || !strstr(err.message, PATH))
        fail_msg("want %d '%s', got %d '%s'", code, message, status, status ? err.message : "");
}

/* Truncates the file to many lengths, and flips a bit in every part of it. */
static void a_damaged_file_is_refused(void **state) {
    (void)state;
    Arrays x, got, before;
    remove_files();
    make_arrays(&x, 1), make_arrays(&got, 3), make_arrays(&before, 3);
    assert_int_equal(checkpoint_write(PATH, &x.checkpoint, NULL), 0);
    size_t n;
    char *bytes = slurp(PATH, &n);
    for (size_t length = 0; length < n; length += 37) {
        spill(PATH, bytes, length);
        expect_refusal("start a new run", &got.checkpoint, FR_ERR_FORMAT);
    }
    int n_taken = 0, n_flips = 0;
    for (size_t at = 0; at < n; at += 13) {
        fr_error err;
        bytes[at] ^= 0x10;
        spill(PATH, bytes, n);
        bool taken = checkpoint_read(PATH, &got.checkpoint, &err) == FR_OK;
        n_taken += taken, n_flips++;
        if (taken) make_arrays(&got, 3); /* a flip in the padding between tensors does no harm */
        else if (!strstr(err.message, PATH)) fail_msg("flip at %zu: '%s'", at, err.message);
        bytes[at] ^= 0x10;
    }
    assert_true(n_flips > 300 && n_taken <= 4);
    spill(PATH, bytes, n);
    assert_memory_equal(got.a, before.a, sizeof got.a); /* a refused file leaves them untouched */
    assert_int_equal(checkpoint_read(PATH, &got.checkpoint, NULL), 0);
    free(bytes);
}

static void a_checkpoint_of_another_run_is_refused(void **state) {
    (void)state;
    Arrays x, y;
    remove_files();
    make_arrays(&x, 1);
    assert_int_equal(checkpoint_write(PATH, &x.checkpoint, NULL), 0);
    make_arrays(&y, 1);
    y.checkpoint.data++;
    expect_refusal("other data", &y.checkpoint, FR_ERR_MISMATCH);
    make_arrays(&y, 1);
    y.checkpoint.run_signature = "toy seed=1 lr=0.002 clip=1";
    expect_refusal("other options: lr=0.001 there, lr=0.002 here;", &y.checkpoint, FR_ERR_MISMATCH);
    y.checkpoint.run_signature = "toy seed=1 lr=0.001 clip=10";
    expect_refusal("other options: clip=1 there, clip=10 here;", &y.checkpoint, FR_ERR_MISMATCH);
    make_arrays(&y, 1);
    y.list[1].name = "c";
    expect_refusal("other parameters", &y.checkpoint, FR_ERR_MISMATCH);
    make_arrays(&y, 1);
    y.list[1].n = 6;
    expect_refusal("other parameters", &y.checkpoint, FR_ERR_MISMATCH);
    make_arrays(&y, 1);
    y.checkpoint.n_arrays = 1;
    expect_refusal("other parameters", &y.checkpoint, FR_ERR_MISMATCH);
    remove_files();
    assert_int_equal(checkpoint_read(PATH, &x.checkpoint, NULL), FR_ERR_IO);
    assert_int_equal(checkpoint_write("/nowhere/x", &x.checkpoint, NULL), FR_ERR_IO);
}

/* Files with a correct fingerprint, as a forger could compute it. */
static void forged_numbers_are_refused(void **state) {
    (void)state;
    static const struct {
        float value;
        bool not_negative;
        const char *words;
    } cases[] = {{NAN, false, "numbers that training does not compute"},
                 {INFINITY, false, "numbers that training does not compute"},
                 {-INFINITY, false, "numbers that training does not compute"},
                 {-1, true, "numbers that training does not compute"}};
    Arrays x, got, before;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        remove_files();
        make_arrays(&x, 1), make_arrays(&got, 3), make_arrays(&before, 3);
        x.b[5] = cases[i].value;
        got.list[1].not_negative = cases[i].not_negative;
        assert_int_equal(checkpoint_write(PATH, &x.checkpoint, NULL), 0);
        expect_refusal(cases[i].words, &got.checkpoint, FR_ERR_FORMAT);
        assert_memory_equal(got.a, before.a, sizeof got.a);
    }
    make_arrays(&x, 1);
    x.checkpoint.step = 20;
    assert_int_equal(checkpoint_write(PATH, &x.checkpoint, NULL), 0);
    assert_int_equal(checkpoint_read(PATH, &got.checkpoint, NULL), 0);
    for (int i = 0; i < 2; i++) {
        x.checkpoint.step = i ? INT64_MAX : 21;
        assert_int_equal(checkpoint_write(PATH, &x.checkpoint, NULL), 0);
        expect_refusal("beyond the 20 steps of this run", &got.checkpoint, FR_ERR_MISMATCH);
    }
    x.checkpoint.step = -1;
    assert_int_equal(checkpoint_write(PATH, &x.checkpoint, NULL), 0);
    expect_refusal("lacks the keys", &got.checkpoint, FR_ERR_FORMAT);
    assert_int_equal(got.checkpoint.step, 20);
}

/* ---- the loop ----------------------------------------------------------------------------------- */

static LoopOptions loop_options(void) {
    return (LoopOptions){
        .method = "toy",
        .n_sequences = 4,
        .n_accumulate = 2,
        .seed = 3,
        .clip = 1,
        .checkpoint = PATH,
        .schedule = {.decay = SCHEDULE_COSINE, .peak = 0.05, .final = 0.1, .n_warm_up = 5, .n_steps = 60},
        .adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}};
}

/* One process of a run; writes the table if the run has ended. */
static int train(const LoopOptions *o, LoopResult *result, fr_error *err) {
    Trainer *t = toy_trainer_open(N_VOCAB);
    int status = loop_run(t, &data, o, result, err);
    if (!status) status = t->class->write(t, OUT, NULL, err);
    t->class->close(t);
    return status;
}

/* Returns the bytes that an undisturbed run ends with; the caller frees them. */
static char *undisturbed(const LoopOptions *o, size_t *n) {
    LoopResult result;
    LoopOptions options = *o;
    options.checkpoint = options.log = NULL;
    assert_int_equal(train(&options, &result, NULL), 0);
    assert_int_equal(result.n_steps, o->schedule.n_steps);
    return slurp(OUT, n);
}

static void expect_out(const char *bytes, size_t n) {
    size_t n_got;
    char *got = slurp(OUT, &n_got);
    assert_int_equal(n_got, n);
    assert_memory_equal(got, bytes, n);
    free(got);
}

static void the_loss_falls_and_is_logged(void **state) {
    (void)state;
    remove_files();
    LoopOptions o = loop_options();
    o.log = LOG;
    o.valid_every = 20;
    LoopResult r;
    assert_int_equal(train(&o, &r, NULL), 0);
    double loss = r.train.loss / (double)r.train.n, valid = r.valid.loss / (double)r.valid.n;
    assert_true(loss < 4.5 && valid < 4.5); /* the loss begins at log(300) = 5.7 */
    assert_int_equal(r.valid.n, data.valid.n_counted);
    size_t n, n_steps = 0, n_valid = 0;
    char *log = slurp(LOG, &n);
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        if (json_object_get(object, "loss"))
            assert_int_equal(json_integer_value(json_object_get(object, "step")), ++n_steps);
        else assert_int_equal(json_integer_value(json_object_get(object, "step")), 20 * ++n_valid);
        json_decref(object);
    }
    assert_true(n_steps == 60 && n_valid == 3);
    free(log);
}

/* A loss that is not a number is null in the log, and its line is kept. */
static void a_loss_of_nan_is_null(void **state) {
    (void)state;
    remove_files();
    const TrainSums sums = {.loss = NAN, .n = 4};
    TrainLog log;
    assert_int_equal(train_log_open(&log, LOG, 0, NULL), 0);
    assert_int_equal(train_log_valid(&log, 1, &sums, NULL), 0);
    train_log_close(&log);
    size_t n;
    char *text = slurp(LOG, &n);
    assert_non_null(strstr(text, "\"valid_loss\": null"));
    free(text);
}

/* Two micro-batches of 4 give the bits of a batch of 8, because the gradients of sequences are added in a tree over the
 * whole step. */
static void accumulation_is_a_larger_batch(void **state) {
    (void)state;
    remove_files();
    LoopOptions o = loop_options();
    size_t n;
    char *bytes = undisturbed(&o, &n);
    o.n_sequences = 8, o.n_accumulate = 1;
    free(undisturbed(&o, &n));
    expect_out(bytes, n);
    o.seed++;
    char *other = undisturbed(&o, &n);
    assert_memory_not_equal(bytes, other, n);
    free(bytes), free(other);
}

/* A run that is stopped by the flag after every step and resumed each time; its log has each step once. */
static void a_stopped_run_resumes_exactly(void **state) {
    (void)state;
    remove_files();
    LoopOptions o = loop_options();
    size_t n;
    char *bytes = undisturbed(&o, &n);
    static const volatile sig_atomic_t stop = 1;
    o.stop = &stop;
    o.log = LOG;
    LoopResult r;
    fr_error err;
    int n_runs = 0, status;
    unlink(OUT);
    while ((status = train(&o, &r, &err)) == FR_ERR_CANCELLED) {
        assert_non_null(strstr(err.message, "of 60"));
        assert_int_equal(r.n_steps, ++n_runs);
        o.resumes = true;
    }
    assert_int_equal(n_runs, 60); /* the last step is stopped, too; then no step is left */
    assert_int_equal(status, 0);
    assert_true(r.valid.n > 0);
    expect_out(bytes, n);
    assert_int_equal(r.valid.n, data.valid.n_counted); /* this is needed for the training record in the file */
    free(bytes);
    char *log = slurp(LOG, &n);
    int n_lines = 0;
    for (size_t i = 0; i < n; i++) n_lines += log[i] == '\n';
    assert_int_equal(n_lines, 60 + 1); /* and one validation, at the end */
    free(log);
}

/* A log that continues beyond the checkpoint and ends within a line is truncated to the checkpoint, and its processor
 * time continues from there. */
static void a_resumed_log_has_each_step_once(void **state) {
    (void)state;
    remove_files();
    LoopOptions o = loop_options();
    static volatile sig_atomic_t stop = 1;
    o.stop = &stop, o.log = LOG;
    LoopResult r;
    fr_error err;
    assert_int_equal(train(&o, &r, &err), FR_ERR_CANCELLED);
    FILE *f = fopen(LOG, "wb");
    fputs("{\"step\": 1, \"loss\": 1, \"cpu_seconds\": 1000}\n{\"step\": 2, \"loss\": 1, \"cpu_seconds\": 3000}\n"
          "{\"step\": 3, \"lo",
          f);
    fclose(f);
    stop = 0, o.resumes = true;
    assert_int_equal(train(&o, &r, &err), 0);
    size_t n;
    char *log = slurp(LOG, &n);
    int n_lines = 0;
    double last_seconds = 0;
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(object, "step")), n_lines < 60 ? ++n_lines : 60);
        double seconds = json_number_value(json_object_get(object, "cpu_seconds"));
        assert_true(seconds >= last_seconds && (n_lines > 1 ? seconds > 1000 && seconds < 2000 : seconds == 1000));
        last_seconds = seconds;
        json_decref(object);
    }
    assert_int_equal(n_lines, 60);
    free(log);
}

/* A run that is killed with SIGKILL after a random time and resumed, until a process comes to the end. */
static void a_killed_run_resumes_exactly(void **state) {
    (void)state;
    LoopOptions o = loop_options();
    size_t n;
    char *bytes = undisturbed(&o, &n);
    o.checkpoint_steps = 3;
    uint32_t random = 12345;
    for (int round = 0, n_kills = 0; round < 3 || n_kills < 5; round++) {
        assert_true(round < 50);
        remove_files();
        bool done = false;
        for (uint32_t tries = 0; !done; tries++) { /* the time grows, so that one process finishes */
            o.resumes = access(PATH, F_OK) == 0;
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                LoopResult r;
                fr_error err;
                int status = train(&o, &r, &err);
                if (status) fprintf(stderr, "%s\n", err.message);
                _exit(status ? 1 : 0);
            }
            random = random * 1664525 + 1013904223;
            usleep(2000 + 1000 * tries + (random >> 8) % 40000);
            kill(child, SIGKILL);
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            done = WIFEXITED(status);
            if (done) assert_int_equal(WEXITSTATUS(status), 0);
            else n_kills++;
        }
        expect_out(bytes, n);
    }
    free(bytes);
    int unused = system("rm -f " PATH ".*.tmp"); /* files that were being written when the process was killed */
    (void)unused;
}

static void divergence_is_reported(void **state) {
    (void)state;
    remove_files();
    LoopOptions o = loop_options();
    o.schedule.peak = 1e38, o.clip = 0;
    LoopResult r;
    fr_error err;
    assert_int_equal(train(&o, &r, &err), FR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "--lr"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_checkpoint_is_read_back),
        cmocka_unit_test(a_damaged_file_is_refused),
        cmocka_unit_test(a_checkpoint_of_another_run_is_refused),
        cmocka_unit_test(forged_numbers_are_refused),
        cmocka_unit_test(the_loss_falls_and_is_logged),
        cmocka_unit_test(a_loss_of_nan_is_null),
        cmocka_unit_test(accumulation_is_a_larger_batch),
        cmocka_unit_test(a_stopped_run_resumes_exactly),
        cmocka_unit_test(a_resumed_log_has_each_step_once),
        cmocka_unit_test(a_killed_run_resumes_exactly),
        cmocka_unit_test(divergence_is_reported),
    };
    return cmocka_run_group_tests(tests, make_data, drop_data);
}
