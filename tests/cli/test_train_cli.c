/* test_train_cli.c - `forerun train` from the command line, with a vocabulary of 300 tokens and models that train in a
 * second: the files that it writes, the arguments that it refuses, and that kill -9 and --resume change no byte of the
 * result. */
#define DIR "build/test-train"
#include "train_rig.h"

#include "model_rig.h"
#include "train/gemm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHAPE \
    "train target --vocab " VOCAB " --data " DATA \
    " --valid 0.1 --layers 1 --width 16 --heads 2 --length 16 --batch 4 " \
    "--steps 120 --threads 2 --force "
#define LYANNA "train lyanna -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --rank 4 --force "

static int make_files(void **state) {
    (void)state;
    return train_rig_make_files(DIR);
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

/* ---- train -------------------------------------------------------------------------------------- */

static void it_trains_a_model_that_runs(void **state) {
    (void)state;
    bool plots = system("gnuplot --version >/dev/null 2>&1") == 0;
    char args[1000];
    snprintf(args, sizeof args, SHAPE "-o " OUT " --lr 0.02 --valid-every 40 %s",
             plots ? "--plot " DIR "/loss.svg" : "");
    cli_expect(SHAPE "-o " OUT " --steps 1 --precision f32", 0, "products in float");
    cli_expect(SHAPE "-o " OUT " --steps 1 --precision bf16", 0, "products in BF16");
    cli_expect(args, 0, " tokens/s");
    assert_true(train_rig_exists(OUT) && train_rig_exists(OUT ".log.jsonl"));
    if (plots)
        train_rig_shell("grep -q 'held out' " DIR "/loss.svg && ! grep -q '>[^<]*-[0-9]' " DIR
                        "/loss.svg"); /* no step is below 0 */
    assert_false(train_rig_exists(OUT ".checkpoint") || train_rig_exists(OUT ".checkpoint.previous"));
    json_t *last = NULL, *first = NULL;
    int n_lines = 0;
    FILE *log = fopen(OUT ".log.jsonl", "rb");
    char line[1000];
    while (fgets(line, sizeof line, log)) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        if (!first) first = json_incref(object);
        json_decref(last);
        last = object;
        n_lines++;
    }
    fclose(log);
    assert_int_equal(n_lines, 120 + 3);
    double before = json_number_value(json_object_get(first, "loss")),
           after = json_number_value(json_object_get(last, "valid_loss"));
    assert_true(before > 5 && after < 3); /* the loss begins at log(300) = 5.7 */
    json_decref(first), json_decref(last);
    cli_expect("run -m " OUT " -p 'the cat' -n 8 --ctx 16", 0, "");
    cli_expect("inspect " OUT, 0, "300 tokens");
}

/* Without --force. */
static void a_finished_file_is_kept(void **state) {
    (void)state;
#define TINY \
    "train target --vocab " VOCAB " --data " DATA \
    " --valid 0 --layers 1 --width 16 --heads 2 --length 16 --batch 4 --steps 1 -o " DIR "/kept.gguf "
    train_rig_write(DIR "/kept.gguf", "an unfinished file");
    cli_expect(TINY, 0, "1 step in ");
    train_rig_shell("cp " DIR "/kept.gguf " DIR "/before.gguf");
    cli_expect(TINY "--seed 2", 2, "kept.gguf: is a finished model or drafter: pass --force to replace it");
    train_rig_shell("cmp " DIR "/kept.gguf " DIR "/before.gguf");
    cli_expect(TINY "--seed 2 --force", 0, "1 step in ");
    assert_int_not_equal(system("cmp -s " DIR "/kept.gguf " DIR "/before.gguf"), 0);
    cli_expect(TINY "--force", 0, "1 step in ");
    train_rig_shell("cmp " DIR "/kept.gguf " DIR "/before.gguf"); /* --force changes no byte */
}

static void a_chat_without_a_template_names_the_remedy(void **state) {
    (void)state;
    cli_expect("run -m " VOCAB " --chat -p a -n 1 --ctx 16 2>&1", 1,
               "forerun: the model has no chat template: pass --chat-template=NAME, such as chatml");
    cli_expect("run -m " VOCAB " --chat --chat-template chatml -p a -n 1", 0, "");
}

static void kill_and_resume_change_no_byte(void **state) {
    (void)state;
    cli_expect(SHAPE "-o " DIR "/whole.gguf", 0, " tokens/s");
    int n_kills = train_rig_run_with_kills(DIR, SHAPE "-o " OUT " --checkpoint-every 4", OUT ".checkpoint", "--resume");
    assert_true(n_kills > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect(SHAPE "-o " OUT " --seed 2", 0, " tokens/s");
    assert_int_not_equal(system("cmp -s " OUT " " DIR "/whole.gguf"), 0);
}

/* Starts a training of 1000 steps and interrupts it; it leaves a checkpoint. */
static void interrupt(const char *args) {
    struct stat st;
    int status;
    unlink(OUT ".log.jsonl");
    pid_t child = train_rig_start(DIR, args);
    for (int i = 0; i < 2000 && (stat(OUT ".log.jsonl", &st) != 0 || st.st_size < 2000); i++)
        usleep(1000); /* by then it is training */
    kill(child, SIGINT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    train_rig_shell("grep -q -- '--resume continues from " OUT ".checkpoint' " DIR "/stderr");
}

/* A run is continued with its own precision, whatever this machine would choose now. */
static void a_resumed_run_keeps_its_precision(void **state) {
    (void)state;
    const char *name = gemm_precision_name(gemm_best_precision() == GEMM_BF16 ? GEMM_F32 : GEMM_BF16);
    char args[1000], words[100];
    snprintf(args, sizeof args, SHAPE "-o " OUT " --steps 1000 --precision %s", name);
    interrupt(args);
    cli_expect(SHAPE "-o " OUT " --steps 1000 --resume", 0, " tokens/s");
    snprintf(words, sizeof words, "\"forerun.training.precision\": \"%s\"", name);
    cli_expect("inspect --json " OUT, 0, words);
}

static void ctrl_c_leaves_a_checkpoint(void **state) {
    (void)state;
    cli_expect(SHAPE "-o " DIR "/whole.gguf --steps 1000", 0, " tokens/s");
    interrupt(SHAPE "-o " OUT " --steps 1000");
    cli_expect(SHAPE "-o " OUT " --steps 1000 2>&1", 2, "pass --resume to continue it");
    cli_expect(SHAPE "-o " OUT " --steps 1000 --resume --lr 0.5 2>&1", 1,
               "run with other options: lr=0.001 there, lr=0.5 here");
    cli_expect(SHAPE "-o " OUT " --steps 1000 --resume --length 17 2>&1", 1, "restore the option");
    cli_expect(SHAPE "-o " OUT " --steps 1000 --resume --valid 0.2 2>&1", 1, "run on other data");
    const char *other = gemm_precision_name(gemm_best_precision() == GEMM_BF16 ? GEMM_F32 : GEMM_BF16);
    char args[1000];
    snprintf(args, sizeof args, SHAPE "-o " OUT " --steps 1000 --resume --precision %s 2>&1", other);
    cli_expect(args, 1, "run with other options: precision=");
    cli_expect(SHAPE "-o " OUT " --steps 1000 --resume", 0, " tokens/s");
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
}

static void it_refuses_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *args;
        int status;
        const char *words;
    } cases[] = {
        {"train", 2, "missing method"},
        {"train --help", 0, "target "},
        {"train nothing", 2, "unknown method 'nothing'"},
        {"train", 2, "forerun train: missing method\n\nMethods:\n  auto "},
        {"train medusa --data " DATA " -o " OUT, 2, "missing target: pass -m FILE"},
        {"train medusa -m models/target.gguf --data " DATA " -o " OUT " --hidden-loss-weight 1", 2,
         "unknown option '--hidden-loss-weight'"},
        {"train medusa -m models/target.gguf --data " DATA " -o " OUT " --token-loss-weight 0", 2, "nothing to learn"},
        {"train eagle -m models/target.gguf --data " DATA " -o " OUT " --regression l1", 2,
         "'--regression=l1' must be smooth-l1 or mse"},
        {"train eagle -m models/target.gguf --data " DATA " -o " OUT " --noise -1", 2,
         "'--noise=-1' must be a number from 0 to 100"},
        {"train lyanna -m models/target.gguf --data " DATA " -o " OUT " --first-token some", 2,
         "'--first-token=some' must be none or fused"},
        {"train lyanna -m " VOCAB " --data " DATA " -o " OUT " --hot-tokens 300", 2,
         "--hot-tokens=300 must be less than the 300 tokens"},
        {"train medusa -m " VOCAB " --data " DATA " -o " OUT " --head-tokens 301", 2,
         "--head-tokens=301 is more than the 300 tokens"},
        {LYANNA "-o " OUT " --steps-ahead 1", 2, "would not train the later layer"},
        {LYANNA "-o " OUT " --form paper --later-ff 8", 2, "the paper's form has no later layer"},
        {LYANNA "-o " OUT " --frequencies " DATA, 2, "no effect because all tokens are hot: pass --hot-tokens=N"},
        {LYANNA "-o " OUT " --rank 0 --hot-tokens 9 --frequencies " DATA, 2,
         "no effect without token info: pass --rank=N"},
        {LYANNA "-o " OUT " --hot-tokens 9 --frequencies /nowhere.jsonl", 1, "/nowhere.jsonl: cannot be opened"},
        {LYANNA "-o " OUT " --hot-tokens 9 --frequencies " VOCAB, 1, VOCAB ": line 1 is not JSON"},
        {LYANNA "-o " OUT " --hot-tokens 9 --frequencies /dev/null", 1, "/dev/null: holds no text"},
        {"train hydra -m models/target.gguf --data " DATA " -o " OUT " --blocks 0", 2,
         "'--blocks=0' must be an integer from 1 to 8"},
        {"train redrafter -m models/target.gguf --data " DATA " -o " OUT " --start one", 2,
         "must be zero or embedding"},
        {"train redrafter -m models/target.gguf --data " DATA " -o " OUT " --hidden-loss-weight 1", 2,
         "unknown option '--hidden-loss-weight'"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --layers 1,x", 2, "joined by commas"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --layers 90", 2, "layers, not 90"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --mask-token 300", 2, "has 300 tokens, counted from 0"},
        {"train mtp -m " VOCAB " --data " DATA " -o " OUT " --layers 3 --steps-ahead 2", 2,
         "each of the 3 layers predicts another step"},
        {"train mtp -m " VOCAB " --data " DATA " -o " OUT " --layers 5", 2, "must be an integer from 1 to 4"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --conv-taps 2 --conv-group 7", 2,
         "groups must divide the width of"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --conv-taps 5 --conv-group 4 --block 4", 2,
         "a block has only 4 slots"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --conv-group 4", 2, "pass --conv-taps as well"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --selector-top 4", 2, "pass --selector-rank as well"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --markov lstm", 2, "must be vanilla, gated or rnn"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --markov gated --markov-rank 0", 2,
         "'--markov-rank=0' must be an integer from 1 to 4096"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --markov-rank 4", 2, "pass --markov as well"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --confidence --selector-rank 4", 2,
         "leave out --confidence or --selector-rank"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --markov rnn --selector-rank 4", 2,
         "leave out --markov or --selector-rank"},
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --tv-loss-weight -1", 2, "must be a number from 0 to"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --hot-tokens 300", 2,
         "--hot-tokens=300 must be less than the 300 tokens"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --hot-tokens 30 --lm-head target", 2, "has no effect"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --anchors 30", 2,
         "--anchors has no effect without --chain parallel"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --mask-token 7 --chain serial", 2,
         "--mask-token has no effect without --chain parallel"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --mask-token 300 --chain parallel", 2,
         "has 300 tokens, counted from 0"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --depth 17", 2, "must be an integer from 1 to 16"},
        {"train eagle3 -m " VOCAB " --data " DATA " -o " OUT " --step-weights 1,1", 2, "2 weights for 3 steps ahead"},
        {"train redrafter --help", 0, "recurrent head for a target"},
        {"train hydra --help", 0, "Hydra's heads for a target"},
        {"train space --help", 0, "SPACE's mask tokens for a target"},
        {"train target --help", 0, "--resume"},
        {"train target --vocab " VOCAB " -o " OUT, 2, "missing training data: pass --data=FILE"},
        {"train target --data " DATA " -o " OUT, 2, "missing vocabulary: pass --vocab=FILE"},
        {"train target --vocab " VOCAB " --data " DATA, 2, "missing output file: pass -o FILE"},
        {SHAPE "-m " VOCAB " -o " OUT, 2, "unknown option '-m'"},
        {SHAPE "-o /nowhere/x.gguf", 1, "/nowhere/x.gguf: cannot be written"},
        {SHAPE "-o " OUT " --log /nowhere/x", 1, "/nowhere/x: cannot be written"},
        {SHAPE "-o " OUT " --resume", 2, "leave out --resume"},
        {SHAPE "-o " OUT " --valid /nowhere.jsonl", 1, "/nowhere.jsonl: cannot be opened"},
        {SHAPE "-o " OUT " --ctx 8", 2, "--ctx=8 must be at least --length=16"},
        {SHAPE "-o " OUT " --width 18 --heads 4", 2, "must be an even multiple"},
        {SHAPE "-o " OUT " --kv-heads 3", 2, "must be a divisor"},
        {SHAPE "-o " OUT " --warm-up 120", 2, "--warm-up=120 must be less than"},
        {SHAPE "-o " OUT " --lr fast", 2, "'--lr=fast' must be a number"},
        {SHAPE "-o " OUT " --precision f16", 2, "'--precision=f16' must be bf16, f32 or bf16-tiles"},
        {"train target --vocab /nowhere.gguf --data " DATA " -o " OUT, 1, "/nowhere.gguf"},
        {"train target --vocab " VOCAB " --data " VOCAB " -o " OUT, 1, "line 1 is not JSON"},
    };
    unlink(OUT), unlink(OUT ".checkpoint");
    char args[2000];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(args, sizeof args, "%s 2>&1", cases[i].args);
        cli_expect(args, cases[i].status, cases[i].words);
    }
    assert_false(train_rig_exists(OUT)); /* no file remains after a refusal */
}

/* Returns a value of held-out texts in a line of the log: the loss, or the accuracy of a step ahead. */
static double valid_of(int line, const char *what, size_t step) {
    json_t *object = train_rig_line(OUT ".log.jsonl", line), *value = json_object_get(object, what);
    assert_non_null(value);
    double x = json_number_value(json_is_array(value) ? json_array_get(value, step) : value);
    json_decref(object);
    return x;
}

/* On held-out texts the loss is lower and the accuracy higher after some steps than after the first one. */
static void layers_learn(void **state) {
    (void)state;
    static const char *const commands[] = {
        "train eagle",
        "train eagle --steps-ahead 1 --regression mse",
        "train eagle --rank 8",
        "train lyanna --rank 8",
        "train lyanna --form paper --rank 8 --hot-tokens 50 --first-token none --ff 24",
        "train lyanna --rank 8 --gate-rank 4 --chain parallel"};
    train_rig_shell("rm -f " OUT " " OUT ".*");
    cli_expect(SHAPE "--steps 400 --lr 0.02 -o " DIR "/teacher.gguf", 0, "400 steps");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "%s -m " DIR "/teacher.gguf --data " DATA " --valid 0.1 --length 16 --batch 4 --steps 60 "
                 "--lr 0.003 --warm-up 0 --valid-every 1 --threads 2 -o " OUT,
                 commands[i]);
        cli_expect(command, 0, "60 steps");
        double before = valid_of(1, "valid_loss", 0), after = valid_of(119, "valid_loss", 0);
        double accuracy_before = valid_of(1, "valid_accuracy", 0), accuracy_after = valid_of(119, "valid_accuracy", 0);
        if (!(after < 0.8 * before && accuracy_after > accuracy_before))
            fail_msg("%s: loss %g, then %g; accuracy %g, then %g", commands[i], before, after, accuracy_before,
                     accuracy_after);
        train_rig_shell("rm -f " OUT " " OUT ".*");
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_trains_a_model_that_runs),
        cmocka_unit_test(a_finished_file_is_kept),
        cmocka_unit_test(a_chat_without_a_template_names_the_remedy),
        cmocka_unit_test(kill_and_resume_change_no_byte),
        cmocka_unit_test(ctrl_c_leaves_a_checkpoint),
        cmocka_unit_test(a_resumed_run_keeps_its_precision),
        cmocka_unit_test(it_refuses_with_a_reason),
        cmocka_unit_test(layers_learn),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
