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
#define DRAFTER \
    "train redrafter -m " VOCAB " --data " DATA " --valid 0.1 --length 16 --batch 4 --steps 60 --threads 2 --force "
#define LYANNA "train lyanna -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --rank 4 --force "
#define PLAIN DIR "/plain.jsonl"

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

static void a_drafter_resumes_too_and_drafts(void **state) {
    (void)state;
    cli_expect(DRAFTER "-o " OUT " --checkpoint-every 4", 0, "of held-out texts");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    int n_kills = train_rig_run_with_kills(DIR, DRAFTER "-o " OUT " --checkpoint-every 4", OUT ".checkpoint",
                                           "--resume");
    assert_true(n_kills > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf"); /* the command in it is the one without --resume */
    cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft redrafter:file=" OUT, 0, "");
    cli_expect("run -m models/target.gguf -p 'the cat' -n 8 --draft redrafter:file=" OUT " 2>&1", 1,
               "was trained for the target");
    cli_expect("train hydra -m " VOCAB " --data " DATA
               " --valid 0 --length 16 --batch 4 --steps 2 --lm-head target --force -o " OUT,
               0, " tokens/s");
    cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft hydra:file=" OUT, 0, "");
    cli_expect("train space -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 2 --force -o " OUT, 0,
               " tokens/s");
    cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft space:file=" OUT, 0, "");
}

#define EAGLE3 \
    "train eagle3 -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 40 --threads 2 --force -o " OUT \
    " "

/* A vocabulary of its own is chosen again from the data when a run is resumed. The file of a finished one has the
 * target's vocabulary, and runs with this target only. */
static void eagle3_resumes_exactly_and_drafts(void **state) {
    (void)state;
    const char *command = EAGLE3 "--hot-tokens 50 --layers 0,1 --stream-norm off --checkpoint-every 4";
    cli_expect(command, 0, " tokens/s");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect("inspect " OUT, 0, "architecture    eagle3");
    cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft eagle3:file=" OUT, 0, "");
    cli_expect("run -m models/target.gguf -p 'the cat' -n 8 --draft eagle3:file=" OUT " 2>&1", 1,
               "was trained for a target with 300 tokens");
    cli_expect("train eagle3 -m " VOCAB " --data " DATA " -o " DIR "/other.gguf --steps 1 --hot-tokens 51 --init " OUT
               " 2>&1",
               1, "cannot be continued with these options: its --hot-tokens is another");
}

/* The same with blocks, whose anchors a resumed run draws again. A file that goes on has the block of the first one. */
static void eagle3_with_blocks_resumes_exactly_and_drafts(void **state) {
    (void)state;
    const char *command = EAGLE3 "--chain parallel --depth 2 --steps-ahead 4 --anchors 3 --mask-token 9 "
                                 "--checkpoint-every 4",
               *next = "train eagle3 -m " VOCAB " --data " DATA " --valid 0 --length 16 --force -o " DIR
                       "/blocks.gguf --steps 1 --init " OUT " 2>&1 ";
    cli_expect(command, 0, " tokens/s");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect("inspect --tensors " OUT, 0, "mask_hidden.weight");
    cli_expect("compare -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft eagle3:file=" OUT, 0, "identical");
    cli_expect(next, 0, " tokens/s");
    train_rig_shell("mv " DIR "/blocks.gguf " OUT);
    cli_expect("compare -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft eagle3:file=" OUT, 0, "identical");
    static const char *const options[][2] = {{"--chain serial", "its --chain is another"},
                                             {"--depth 3", "its --depth is another"},
                                             {"--mask-token 8", "its --mask-token is another"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char line[512];
        snprintf(line, sizeof line, "%s%s", next, options[i][0]);
        cli_expect(line, 1, options[i][1]);
    }
}

/* A file without its target's fingerprint is one that others published. The program notes once that the target is
 * quantised. */
static void a_published_file_notes_a_quantised_target(void **state) {
    (void)state;
    static const char *const targets[] = {DIR "/q8.gguf", VOCAB};
    cli_expect("train eagle3 -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 1 --force -o " OUT, 0,
               " tokens/s");
    train_rig_shell("LC_ALL=C sed s/target.fingerprint/target.fingerprunt/ " OUT " >" DIR "/published.gguf");
    cli_expect("quantize " VOCAB " " DIR "/q8.gguf --type Q8_0", 0, "");
    for (int is_float = 0; is_float < 2; is_float++) {
        char command[512], text[4096];
        snprintf(command, sizeof command,
                 "run -m %s -p 'the cat' -n 8 --ctx 16 --draft eagle3:file=" DIR "/published.gguf 2>&1",
                 targets[is_float]);
        assert_int_equal(cli_run(command, text, sizeof text), 0);
        const char *note = strstr(text, "forerun: " DIR "/published.gguf: was published for 16-bit weights");
        if (is_float ? note != NULL : !note || strstr(note + 9, "forerun: ") || !strstr(note, "--init"))
            fail_msg("'%s'", text);
    }
}

#define DFLASH \
    "train dflash -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 40 --threads 2 --force -o " OUT \
    " "

/* A resumed run draws the same anchors; with the parts of DFlash 2. */
static void dflash_resumes_exactly_and_drafts(void **state) {
    (void)state;
    const char *command = DFLASH "--depth 1 --block 4 --anchors 3 --mask-token 9 --conv-taps 2 --conv-group 8 "
                                 "--selector-rank 5 --selector-top 6 --checkpoint-every 4";
    cli_expect(command, 0, " tokens/s");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect("inspect " OUT, 0, "architecture    dflash");
    cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    cli_expect("train dflash -m " VOCAB " --data " DATA " -o " DIR "/other.gguf --steps 1 --block 5 --init " OUT
               " 2>&1",
               1, "cannot be continued with these options: its --block is another");
    cli_expect("train dflash -m " VOCAB " --data " DATA " -o " DIR "/other.gguf --steps 1 --selector-rank 4 --init " OUT
               " 2>&1",
               1, "cannot be continued with these options: its --selector-rank is another");
}

/* The same with the heads of DSpark, which are those of the file when training goes on. */
static void dspark_resumes_exactly_and_drafts(void **state) {
    (void)state;
    const char *command = DFLASH
        "--depth 1 --block 4 --anchors 3 --markov rnn --markov-rank 5 --confidence --tv-loss-weight 0.5 "
        "--checkpoint-every 4",
               *next = "train dflash -m " VOCAB " --data " DATA " --valid 0 --length 16 --force -o " DIR
                       "/dspark.gguf --steps 1 --init " OUT " 2>&1 ";
    char line[512];
    cli_expect(command, 0, " tokens/s");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect("inspect --tensors " OUT, 0, "markov_joint.weight");
    cli_expect("compare -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    cli_expect(next, 0, " tokens/s");
    cli_expect("inspect --tensors " DIR "/dspark.gguf", 0, "conf_proj.weight");
    static const char *const options[][2] = {{"--markov gated", "its --markov is another"},
                                             {"--markov-rank 4", "its --markov-rank is another"},
                                             {"--selector-rank 4", "either a Markov head or a selector"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        snprintf(line, sizeof line, "%s%s", next, options[i][0]);
        cli_expect(line, i < 2 ? 1 : 2, options[i][1]);
    }
}

#define PUBLISHED "tests/fuzz/corpus/drafter_file/" /* files after a byte */

/* A file as others publish it keeps its shape and its parts, and can get those of DFlash 2 or the heads of DSpark. One
 * with an unknown tensor is refused. */
static void dflash_goes_on_from_a_published_file(void **state) {
    (void)state;
    const char *const train = "train dflash -m tests/fuzz/target.gguf --data " DATA
                              " --valid 0 --length 16 --batch 4 --steps 2 --force -o " OUT " --init " DIR
                              "/init.gguf 2>&1";
    train_rig_shell("tail -c +2 " PUBLISHED "dflash > " DIR "/init.gguf");
    cli_expect(train, 0, " tokens/s");
    cli_expect("run -m tests/fuzz/target.gguf -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    char with_parts[512];
    snprintf(with_parts, sizeof with_parts, "%s --selector-rank 3 --conv-taps 2 --conv-group 4", train);
    cli_expect(with_parts, 0, " tokens/s");
    cli_expect("inspect --tensors " OUT, 0, "blk.0.ffn_conv_base");
    snprintf(with_parts, sizeof with_parts, "%s --markov gated --markov-rank 3 --confidence", train);
    cli_expect(with_parts, 0, " tokens/s");
    cli_expect("inspect --tensors " OUT, 0, "markov_gate.weight");
    train_rig_shell("tail -c +2 " PUBLISHED "dflash-2 > " DIR "/init.gguf");
    cli_expect(train, 0, " tokens/s");
    cli_expect("compare -m tests/fuzz/target.gguf -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    train_rig_shell("tail -c +2 " PUBLISHED "dflash-markov > " DIR "/init.gguf");
    cli_expect(train, 0, " tokens/s");
    cli_expect("inspect --tensors " OUT, 0, "conf_proj.bias");
    cli_expect("compare -m tests/fuzz/target.gguf -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    train_rig_shell("LC_ALL=C sed -i s/markov_gate.weight/markov_goat.weight/ " DIR "/init.gguf");
    cli_expect(train, 1, "holds the tensor markov_goat.weight, which these options do not train");
}

#define MTP \
    "train mtp -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 40 --threads 2 --force -o " OUT " "

/* The file is a companion of the target, and is refused for another one. */
static void mtp_resumes_exactly_and_drafts(void **state) {
    (void)state;
    const char *command = MTP "--layers 2 --step-weights 1,0.5,0.2 --checkpoint-every 4", *next = DIR "/other.gguf";
    char line[512];
    cli_expect(command, 0, " tokens/s");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    assert_true(train_rig_run_with_kills(DIR, command, OUT ".checkpoint", "--resume") > 0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect("inspect --tensors " OUT, 0, "nextn.eh_proj.weight");
    cli_expect("compare -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft mtp:file=" OUT, 0, "");
    cli_expect("run -m models/target.gguf -p 'the cat' -n 2 --draft mtp:file=" OUT " 2>&1", 1,
               "was trained for the target");
    snprintf(line, sizeof line,
             "train mtp -m " VOCAB " --data " DATA " --valid 0 --length 16 --steps 2 -o %s --init " OUT " 2>&1", next);
    cli_expect(line, 0, " tokens/s");
    cli_expect("train mtp -m " VOCAB " --data " DATA " -o " DIR "/third.gguf --steps 1 --layers 1 --init " OUT " 2>&1",
               1, "cannot be continued with these options: its --layers is another");
    cli_expect("train mtp -m " VOCAB " --data " DATA " -o " DIR "/third.gguf --steps 1 --init " VOCAB " 2>&1", 1,
               "has no layer for multi-token prediction");
}

#define EAGLE \
    "train eagle -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 60 --threads 2 --force -o " OUT \
    " "

/* Noise is a function of the step and position, so a run with noise resumes exactly; --noise 0 is the same as no
 * option. */
static void noise_resumes_exactly(void **state) {
    (void)state;
    cli_expect(EAGLE "--noise 0.1 --checkpoint-every 4", 0, " tokens/s");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    assert_true(train_rig_run_with_kills(DIR, EAGLE "--noise 0.1 --checkpoint-every 4", OUT ".checkpoint", "--resume") >
                0);
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    /* a file ends with the tensors; the command before them differs */
    cli_expect(EAGLE "--noise 0", 0, " tokens/s");
    train_rig_shell("tail -c 10000 " OUT " > " DIR "/a");
    cli_expect(EAGLE, 0, " tokens/s");
    train_rig_shell("tail -c 10000 " OUT " | cmp - " DIR "/a");
    assert_int_not_equal(system("tail -c 10000 " DIR "/whole.gguf | cmp -s - " DIR "/a"), 0);
}

/* The file of a drafter names the precision of the products that trained it. */
static void a_drafter_names_its_precision(void **state) {
    (void)state;
    for (GemmPrecision p = GEMM_F32; p <= GEMM_BF16_TILES; p++) {
        char args[1000], words[100];
        const char *name = gemm_precision_name(p);
        snprintf(args, sizeof args, DRAFTER "-o " OUT " --steps 1 --precision %s", name);
        cli_expect(args, 0, " tokens/s");
        snprintf(words, sizeof words, "%s matrix products", name);
        cli_expect("inspect " OUT, 0, words);
        snprintf(words, sizeof words, "\"trained_in\": \"%s\"", name);
        cli_expect("inspect --json " OUT, 0, words);
        snprintf(words, sizeof words, "\"forerun-drafter.training.precision\": \"%s\"", name);
        cli_expect("inspect --json " OUT, 0, words);
    }
}

/* The accuracy of medusa's heads is measured on held-out texts; without any, it is not in the file. */
static void medusa_measures_its_heads(void **state) {
    (void)state;
    static char said[20000];
    for (int i = 0; i < 2; i++) {
        char args[1000];
        snprintf(args, sizeof args,
                 "train medusa -m " VOCAB " --data " DATA " --length 16 --batch 4 --steps 8 --force --lm-head target "
                 "--valid %s -o " OUT,
                 i ? "0" : "0.1");
        cli_expect(args, 0, " tokens/s");
        assert_int_equal(cli_run("inspect --tensors " OUT, said, sizeof said), 0);
        assert_true((strstr(said, "medusa.accuracy") == NULL) == (i == 1));
        cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft medusa:tree=static,file=" OUT, 0, "");
    }
}

/* Token i of a list in the file, -1 after the last. */
static int64_t listed_token(const char *key, int64_t i) {
    int64_t token = -1;
    Gguf *g = rig_gguf(OUT);
    int64_t kv = gguf_find_key(g, key);
    assert_true(kv >= 0);
    if (i < gguf_kv_count(g, kv)) assert_true(gguf_array_i64(g, kv, i, &token));
    gguf_close(g);
    return token;
}

static int64_t hot_token(int64_t i) { return listed_token("forerun-drafter.lyanna.hot_tokens", i); }

/* The list is chosen from the data, kept by --init, and replaced or removed by another number. */
static void head_tokens_are_listed_and_kept(void **state) {
    (void)state;
#define OLD DIR "/before.gguf"
#define HEADS "train medusa -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 2 --force -o " OUT " "
    static const char key[] = "forerun-drafter.head_tokens";
    static const struct Run {
        const char *command;
        int64_t n;
    } runs[] = {{HEADS "--head-tokens 20", 20},
                {"train medusa -m " VOCAB " --data " DATA " --valid 0 --steps 1 --init " OLD " -o " OUT, 20},
                {HEADS "--init " OLD " --head-tokens 7", 7}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cli_expect(runs[i].command, 0, " tokens/s");
        assert_true(listed_token(key, runs[i].n - 1) >= 0);
        assert_int_equal(listed_token(key, runs[i].n), -1);
        cli_expect("run -m " VOCAB " -p 'the cat' -n 8 --ctx 16 --draft medusa:file=" OUT, 0, "");
        train_rig_shell("mv " OUT " " OLD);
    }
    static const char *const others[] = {"dflash", "mtp"};
    for (size_t i = 0; i < 2; i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "train %s -m " VOCAB " --data " DATA " --valid 0 --length 16 --batch 4 --steps 2 "
                 "--force --head-tokens 20 -o " OUT,
                 others[i]);
        cli_expect(command, 0, " tokens/s");
        assert_true(listed_token(key, 19) >= 0);
        assert_int_equal(listed_token(key, 20), -1);
        snprintf(command, sizeof command,
                 "compare -m " VOCAB " -p 'the cat' -n 8 --ctx 32 --runs 1 --no-text --draft %s:file=" OUT, others[i]);
        cli_expect(command, 0, "identical");
    }
    cli_expect(HEADS "--init " OLD " --head-tokens 300", 0, " tokens/s");
    Gguf *g = rig_gguf(OUT);
    assert_true(gguf_find_key(g, key) < 0);
    gguf_close(g);
}

/* --frequencies FILE selects the hot tokens by other texts; a run with these cannot be resumed with others. */
static void frequencies_come_from_the_texts_that_are_given(void **state) {
    (void)state;
    int64_t own[8];
    char said[200];
    train_rig_write(PLAIN, "{\"text\": \"zzzzqqqq\"}\n{\"prompt\": \"zzzz\", \"response\": \"qqqq\"}\n");
    cli_expect(LYANNA "--hot-tokens 8 --steps 2 -o " OUT, 0, " tokens/s");
    for (int64_t i = 0; i < 8; i++) own[i] = hot_token(i);
    cli_expect(LYANNA "--hot-tokens 8 --steps 2 -o " OUT " --frequencies " DATA, 0, " tokens/s");
    for (int64_t i = 0; i < 8; i++) assert_int_equal(hot_token(i), own[i]);
    cli_expect(LYANNA "--hot-tokens 2 --steps 2 -o " OUT " --frequencies " PLAIN, 0, " tokens/s");
    assert_int_equal(hot_token(2), -1);
    assert_int_equal(cli_run("tokenize -m " VOCAB " -p zzzzqqqq", said, sizeof said), 0);
    for (int64_t i = 0; i < 2; i++) {
        int64_t hot = hot_token(i), token = -1;
        for (char *at = said, *end; token != hot; at = end) {
            token = strtol(at, &end, 10);
            if (end == at) fail_msg("token %lld is hot, and the text is %s", (long long)hot, said);
        }
    }
    pid_t child = train_rig_start(DIR, LYANNA "--hot-tokens 2 --steps 100000 --checkpoint-every 1 -o " OUT
                                              " --frequencies " PLAIN);
    train_rig_interrupt(child, OUT ".checkpoint");
    cli_expect(LYANNA "--hot-tokens 2 --steps 100000 --resume -o " OUT " --frequencies " DATA " 2>&1", 1,
               "run with other options: frequencies=");
    train_rig_shell("rm -f " OUT " " OUT ".*");
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
        {"train dflash -m " VOCAB " --data " DATA " -o " OUT " --confidence", 2, "pass --markov as well"},
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
        cmocka_unit_test(a_drafter_resumes_too_and_drafts),
        cmocka_unit_test(eagle3_resumes_exactly_and_drafts),
        cmocka_unit_test(eagle3_with_blocks_resumes_exactly_and_drafts),
        cmocka_unit_test(a_published_file_notes_a_quantised_target),
        cmocka_unit_test(dflash_resumes_exactly_and_drafts),
        cmocka_unit_test(dspark_resumes_exactly_and_drafts),
        cmocka_unit_test(dflash_goes_on_from_a_published_file),
        cmocka_unit_test(mtp_resumes_exactly_and_drafts),
        cmocka_unit_test(noise_resumes_exactly),
        cmocka_unit_test(a_drafter_names_its_precision),
        cmocka_unit_test(medusa_measures_its_heads),
        cmocka_unit_test(head_tokens_are_listed_and_kept),
        cmocka_unit_test(frequencies_come_from_the_texts_that_are_given),
        cmocka_unit_test(ctrl_c_leaves_a_checkpoint),
        cmocka_unit_test(a_resumed_run_keeps_its_precision),
        cmocka_unit_test(it_refuses_with_a_reason),
        cmocka_unit_test(layers_learn),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
