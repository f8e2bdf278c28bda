/* test_train_init_cli.c - `forerun train METHOD --init FILE` continues from a drafter: nothing is lost, a curriculum
 * takes more steps ahead, files that do not fit are refused, and --resume checks the initial file. Also tests
 * --step-weights, with which a curriculum is tuned. */
#define DIR "build/test-train-init"
#include "model_patch.h"
#include "random_model.h"
#include "train_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST DIR "/first.gguf"
#define OPTIONS " -m " VOCAB " --data " DATA " --valid 0.1 --length 16 --batch 4 --threads 2 --force "
#define LYANNA "train lyanna" OPTIONS "--rank 32 --steps 30 "

static int make_files(void **state) {
    (void)state;
    return train_rig_make_files(DIR);
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

static void train(const char *command, const char *more) {
    char args[2000];
    snprintf(args, sizeof args, "%s %s", command, more);
    cli_expect(args, 0, " tokens/s");
}

/* Returns the held-out loss in line i of a log; *n_steps: the number of steps ahead that have an accuracy. */
static double valid_loss(const char *log, int i, size_t *n_steps) {
    json_t *line = train_rig_line(log, i), *loss = json_object_get(line, "valid_loss");
    assert_non_null(loss);
    double x = json_number_value(loss);
    *n_steps = json_array_size(json_object_get(line, "valid_accuracy"));
    json_decref(line);
    return x;
}

/* After a step that is too small to matter, the loss on held-out texts is that at the end of the first run, up to the
 * rounding of the types in the file, and far below that of a new drafter. */
static void training_continues_from_the_file(void **state) {
    (void)state;
    static const char *const methods[] = {"lyanna --rank 32",
                                          "lyanna --form paper --rank 32 --hot-tokens 64 --ff 64",
                                          "eagle",
                                          "eagle --rank 32",
                                          "eagle3 --hot-tokens 64 --stream-norm each",
                                          "eagle3 --depth 2 --chain parallel --anchors 6",
                                          "dflash --depth 1 --block 4",
                                          "redrafter",
                                          "redrafter --start embedding --blocks 1",
                                          "medusa --lm-head target",
                                          "medusa",
                                          "hydra --blocks 2",
                                          "hydra --lm-head target --prefix"};
    static const struct {
        const char *name;
        double error;
    } types[] = {{"f32", 1e-6}, {"f16", 2e-3}, {"q8_0", 5e-2}};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            char command[500];
            size_t n_steps;
            snprintf(command, sizeof command, "train %s" OPTIONS "--type %s", methods[i], types[k].name);
            train(command, "--steps 30 --lr 0.01 --valid-every 1 -o " FIRST);
            double fresh = valid_loss(FIRST ".log.jsonl", 1, &n_steps),
                   before = valid_loss(FIRST ".log.jsonl", 59, &n_steps);
            train(command, "--steps 1 --lr 1e-12 --init " FIRST " -o " OUT);
            double after = valid_loss(OUT ".log.jsonl", 1, &n_steps);
            if (!(fabs(after - before) < types[k].error && before < fresh - 0.1))
                fail_msg("%s: the loss was %.9g at first, %.9g at the end, and is %.9g", command, fresh, before, after);
        }
}

/* The layer of lyanna and eagle is the same for any number of steps ahead. */
static void a_curriculum_takes_more_steps_ahead(void **state) {
    (void)state;
    size_t n_steps;
    train(LYANNA, "--steps-ahead 2 -o " FIRST);
    train(LYANNA, "--steps-ahead 4 --step-weights 1,1,2,0.5 --valid-every 100 --init " FIRST " -o " OUT);
    valid_loss(OUT ".log.jsonl", 30, &n_steps);
    assert_int_equal(n_steps, 4);
    cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft lyanna:file=" OUT, 0, "");
}

/* The form, the rank and the input of the later layer, and the layer of Hydra++, are those of the file, which would
 * otherwise be refused. */
static void what_is_not_given_comes_from_the_file(void **state) {
    (void)state;
    static const char *const forms[] = {"--form paper --rank 8", "--later-input state --rank 0",
                                        "--rank 8 --later-ff 48"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        train("train lyanna" OPTIONS "--steps 1 -o " FIRST, forms[i]);
        train("train lyanna" OPTIONS "--steps 1 -o " OUT " --init " FIRST, i == 2 ? "--later-ff 48" : "");
    }
    train("train hydra" OPTIONS "--steps 1 -o " FIRST, "--prefix");
    train("train hydra" OPTIONS "--steps 1 -o " OUT, "--init " FIRST);
    cli_expect("inspect --tensors " OUT, 0, "hydra.prefix.output_norm.weight");
    train("train redrafter" OPTIONS "--steps 1 -o " FIRST, "--start embedding --blocks 1");
    train("train redrafter" OPTIONS "--steps 1 -o " OUT, "--init " FIRST);
    cli_expect("inspect --json " OUT, 0, "redrafter.start\": \"embedding\"");
}

static double first_accuracy(const char *log, int i) {
    json_t *line = train_rig_line(log, i), *of_step = json_array_get(json_object_get(line, "valid_accuracy"), 0);
    double x = json_number_value(of_step);
    json_decref(line);
    return x;
}

/* Lyanna's first step begins with exactly what EAGLE's predicts. What follows goes on from a file of lyanna. */
static void lyanna_begins_from_an_eagle(void **state) {
    (void)state;
    static const char *const forms[] = {"", "--form paper --rank 0"};
    train("train eagle" OPTIONS "--type f32", "--steps 30 --lr 0.01 --valid-every 100 -o " FIRST);
    double of_eagle = first_accuracy(FIRST ".log.jsonl", 30);
    assert_true(of_eagle > 0.1);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char args[500];
        snprintf(args, sizeof args, "train lyanna" OPTIONS "--type f32 %s", forms[i]);
        train(args, "--steps 1 --lr 1e-12 --init " FIRST " -o " OUT);
        if (first_accuracy(OUT ".log.jsonl", 1) != of_eagle) fail_msg("%s: another accuracy at the first step", args);
        train(args, "--steps 1 --lr 1e-12 --init " OUT " -o " OUT "2");
        if (first_accuracy(OUT "2.log.jsonl", 1) != of_eagle) fail_msg("%s: another one from its own file", args);
        cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft lyanna:file=" OUT "2", 0, "");
    }
    cli_expect("train lyanna" OPTIONS "--steps 1 --chain parallel -o " OUT " --init " FIRST " 2>&1", 2,
               "--chain=parallel cannot continue an EAGLE drafter");
    train("train eagle" OPTIONS "--rank 8", "--steps 1 -o " FIRST);
    cli_expect("train lyanna" OPTIONS "--steps 1 -o " OUT " --init " FIRST " 2>&1", 1, "has token info");
}

/* Changes the number of heads that a file of medusa names. */
static void set_head_count(const char *path, uint32_t n) {
    static const char key[] = "medusa.head_count";
    ModelPatch p;
    model_patch_open(&p, path);
    char *at = memmem(p.bytes, p.n, key, strlen(key));
    assert_non_null(at);
    memcpy(at + strlen(key) + sizeof(uint32_t), &n, sizeof n); /* after the type of the value */
    model_patch_write(&p, path);
    model_patch_close(&p);
}

static void files_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *args, *words;
    } cases[] = {
        {"eagle", "is a drafter for the method 'lyanna', not for eagle"},
        {"lyanna --rank 16",
         "its lyanna.token_info.rank differs; pass those that it was trained with: forerun train lyanna"},
        {"lyanna --rank 0", "its lyanna.token_info.rank differs"},
        {"lyanna --rank 32 --form paper", "its lyanna.token_info.first_step differs"},
        {"lyanna --rank 32 --later-input state", "its lyanna.later.input differs"},
        {"lyanna --rank 32 --later-ff 24", "its lyanna.later.feed_forward_length differs"},
        {"lyanna --rank 32 --ff 24", "its lyanna.feed_forward_length differs"},
        {"lyanna --rank 32 --first-token none", "its lyanna.first_token differs"},
        {"lyanna --rank 32 --hot-tokens 20", "its lyanna.hot_tokens differs"},
        {"lyanna --rank 32 --init " VOCAB, "is not a learned drafter"},
        {"lyanna --rank 32 --init " DATA, DATA},
        {"lyanna --rank 32 --init /nowhere.gguf", "/nowhere.gguf: cannot be opened"},
    };
    train(LYANNA, "--steps 1 -o " FIRST);
    char args[1000];
    train_rig_shell("rm -f " OUT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool has_own = strstr(cases[i].args, "--init") != NULL;
        snprintf(args, sizeof args, "train %s" OPTIONS "--steps 1 -o " OUT " %s 2>&1", cases[i].args,
                 has_own ? "" : "--init " FIRST);
        cli_expect(args, 1, cases[i].words);
    }
    cli_expect("train lyanna -m models/target.gguf --data " DATA " --steps 1 -o " OUT " --init " FIRST " 2>&1", 1,
               "was trained for the target");
    cli_expect(LYANNA "-o " FIRST " --init " FIRST " 2>&1", 2, FIRST);
    train("train medusa" OPTIONS "--lm-head target", "--steps 1 -o " FIRST);
    cli_expect("train medusa" OPTIONS "--lm-head target --steps-ahead 5 -o " OUT " --init " FIRST " 2>&1", 1,
               "its --steps-ahead is another; leave that option out");
    set_head_count(FIRST, 9);
    cli_expect("train medusa" OPTIONS "-o " OUT " --init " FIRST " 2>&1", 1, "medusa.head_count");
    train("train redrafter" OPTIONS, "--steps 1 -o " FIRST);
    cli_expect("train redrafter" OPTIONS "--start embedding -o " OUT " --init " FIRST " 2>&1", 1,
               "its --start is another; leave that option out");
    cli_expect("train redrafter" OPTIONS "--blocks 3 -o " OUT " --init " FIRST " 2>&1", 1,
               "its --blocks is another; leave that option out");
    cli_expect("train eagle" OPTIONS "--recipe eagle --anchors 4 -o " OUT " 2>&1", 2,
               "--anchors has no effect with one step ahead");
    assert_false(train_rig_exists(OUT));
}

static void a_run_with_init_resumes_exactly(void **state) {
    (void)state;
    train(LYANNA, "-o " FIRST);
    train(LYANNA, "--init " FIRST " -o " DIR "/whole.gguf --seed 3 --steps 60");
    const char *command = LYANNA "--init " FIRST " -o " OUT " --seed 3 --steps 60 --checkpoint-every 4";
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    /* a file ends with the tensors; the command before them differs */
    train_rig_shell("tail -c 20000 " OUT " > " DIR "/a && tail -c 20000 " DIR "/whole.gguf | cmp - " DIR "/a");
    pid_t child = train_rig_start(DIR, LYANNA "--init " FIRST " -o " OUT " --steps 100000 --checkpoint-every 1");
    train_rig_interrupt(child, OUT ".checkpoint");
    train_rig_shell("cp " DIR "/whole.gguf " FIRST);
    cli_expect(LYANNA "--init " FIRST " -o " OUT " --steps 100000 --resume 2>&1", 1, "run with other options: init=");
    cli_expect(LYANNA "-o " OUT " --steps 100000 --resume 2>&1", 1, "run with other options: ");
    train_rig_shell("rm -f " OUT " " OUT ".*");
}

/* The same for a target: a step that changes nothing writes the initial weights, and --resume checks them. */
#define TARGET "train target --vocab " VOCAB " --data " DATA " --valid 0.1 --length 16 --batch 4 --threads 2 --force "
#define SMALL TARGET "--layers 2 --width 32 --heads 2 --ff 64 --type f32 "

static void a_target_goes_on_from_a_file(void **state) {
    (void)state;
    size_t n_steps;
    train(SMALL, "--steps 30 --lr 0.01 --valid-every 1 -o " FIRST);
    double fresh = valid_loss(FIRST ".log.jsonl", 1, &n_steps), before = valid_loss(FIRST ".log.jsonl", 59, &n_steps);
    train(SMALL, "--steps 1 --lr 1e-12 --init " FIRST " -o " OUT);
    double after = valid_loss(OUT ".log.jsonl", 1, &n_steps);
    assert_true(fabs(after - before) < 1e-6 && before < fresh - 0.1);
    train(SMALL, "--init " FIRST " -o " DIR "/whole.gguf --seed 3 --steps 60 --optimizer muon");
    const char *command = SMALL "--init " FIRST " -o " OUT " --seed 3 --steps 60 --optimizer muon --checkpoint-every 4";
    train_rig_shell("rm -f " OUT " " OUT ".*");
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    pid_t child = train_rig_start(DIR, SMALL "--init " FIRST " -o " OUT " --steps 100000 --checkpoint-every 1");
    train_rig_interrupt(child, OUT ".checkpoint");
    cli_expect(SMALL "--init " DIR "/whole.gguf -o " OUT " --steps 100000 --resume 2>&1", 1,
               "run with other options: ");
    cli_expect(SMALL "--init " FIRST " --optimizer muon -o " OUT " --steps 100000 --resume 2>&1", 1,
               "run with other options: ");
    train_rig_shell("rm -f " OUT " " OUT ".*");
}

/* Models with one layer that the trainer does not train. */
static void write_odd_models(void) {
    RandomModel m = {.arch = "llama", .n_layer = 1, .n_embd = 32, .n_head = 2, .n_head_kv = 2, .n_ff = 32, .seed = 1};
    m.n_vocab = 300;
    assert_int_equal(random_model_write(&m, DIR "/untied.gguf", NULL), 0);
    m.tied = true;
    m.rope_base = 500000;
    assert_int_equal(random_model_write(&m, DIR "/far.gguf", NULL), 0);
}

static void models_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *args, *words;
    } cases[] = {
        {"--layers 3 --width 32 --heads 2 --ff 64 --init " FIRST,
         "pass its own: --layers 2 --width 32 --heads 2 --kv-heads 2 --ff 64"},
        {"--layers 2 --width 32 --heads 4 --ff 64 --init " FIRST, "pass its own: --layers 2"},
        {"--layers 2 --width 32 --heads 2 --kv-heads 1 --ff 64 --init " FIRST, "--kv-heads 2"},
        {"--init models/eagle.gguf", "cannot be trained further: 'train target' trains the architecture llama"},
        {"--layers 8 --width 256 --heads 4 --kv-heads 2 --ff 768 --init models/target.gguf", "vocabular"},
        {"--init " DATA, DATA},
        {"--init /nowhere.gguf", "/nowhere.gguf: cannot be opened"},
        {"--layers 2 --width 32 --heads 2 --ff 64 --init " DIR "/nan.gguf", "holds NaN or infinity"},
        {"--init " DIR "/untied.gguf --layers 1 --width 32 --heads 2 --ff 32", "with a tied embedding and no biases"},
        {"--init " DIR "/far.gguf --layers 1 --width 32 --heads 2 --ff 32", "its RoPE or the epsilon of its norms"},
    };
    train(SMALL, "--steps 1 -o " FIRST);
    train_rig_shell("head -c -4 " FIRST " > " DIR "/nan.gguf && printf '\\0\\0\\300\\177' >> " DIR "/nan.gguf");
    write_odd_models();
    char args[1000];
    train_rig_shell("rm -f " OUT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(args, sizeof args, TARGET "--steps 1 -o " OUT " %s 2>&1", cases[i].args);
        cli_expect(args, 1, cases[i].words);
    }
    cli_expect(SMALL "-o " FIRST " --init " FIRST " 2>&1", 2, FIRST);
    assert_false(train_rig_exists(OUT));
}

/* Equal weights have no effect; others change the result; a list that does not fit is refused. */
static void steps_have_weights(void **state) {
    (void)state;
    train(LYANNA, "-o " OUT);
    train_rig_shell("tail -c 20000 " OUT " > " DIR "/a");
    train(LYANNA, "--step-weights 1,1,1 -o " OUT);
    train_rig_shell("tail -c 20000 " OUT " | cmp - " DIR "/a");
    train(LYANNA, "--step-weights 1,0.5,0.25 -o " OUT);
    assert_int_not_equal(system("tail -c 20000 " OUT " | cmp -s - " DIR "/a"), 0);
    static const char *const refused[][2] = {
        {"1,2", "--step-weights lists 2 weights for 3 steps ahead: pass one for each"},
        {"0,0,0", "one of them must be more than 0"},
        {"1,-1,1", "must be 1 to 8 numbers from 0 to 1e6 joined by commas"},
        {"1,,1", "joined by commas"},
        {"1,1,1,", "joined by commas"},
        {"1,1,1,1,1,1,1,1,1", "joined by commas"},
        {"nan,1,1", "joined by commas"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char args[1000];
        snprintf(args, sizeof args, LYANNA "-o " OUT " --step-weights=%s 2>&1", refused[i][0]);
        cli_expect(args, 2, refused[i][1]);
    }
}

/* A confidence head is trained together with the layer, may be added to a drafter that has none, and is in the file. */
static void a_confidence_head_may_be_added(void **state) {
    (void)state;
    static const char *const methods[] = {"lyanna", "eagle"};
    for (int i = 0; i < 2; i++) {
        char args[1000], said[20000];
        size_t n_steps;
        snprintf(args, sizeof args, "train %s" OPTIONS "--type f32", methods[i]);
        train(args, "--steps 30 -o " FIRST);
        double before = valid_loss(FIRST ".log.jsonl", 30 + 14, &n_steps);
        train(args, "--steps 1 --lr 1e-12 --confidence --init " FIRST " -o " OUT);
        assert_true(valid_loss(OUT ".log.jsonl", 1, &n_steps) > before); /* the head has a loss of its own */
        cli_expect("inspect --tensors " OUT, 0, ".confidence");
        assert_int_equal(cli_run("inspect --tensors " FIRST, said, sizeof said), 0);
        assert_null(strstr(said, ".confidence"));
        snprintf(args, sizeof args, "run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft %s:file=" OUT, methods[i]);
        cli_expect(args, 0, "");
        snprintf(args, sizeof args, "train %s" OPTIONS "--steps 1 -o " FIRST "2 --init " OUT " 2>&1", methods[i]);
        cli_expect(args, 1, "holds the tensor");
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_continues_from_the_file),      cmocka_unit_test(a_curriculum_takes_more_steps_ahead),
        cmocka_unit_test(what_is_not_given_comes_from_the_file), cmocka_unit_test(files_that_do_not_fit_are_refused),
        cmocka_unit_test(a_run_with_init_resumes_exactly),       cmocka_unit_test(a_target_goes_on_from_a_file),
        cmocka_unit_test(models_that_do_not_fit_are_refused),    cmocka_unit_test(steps_have_weights),
        cmocka_unit_test(a_confidence_head_may_be_added),        cmocka_unit_test(lyanna_begins_from_an_eagle),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
