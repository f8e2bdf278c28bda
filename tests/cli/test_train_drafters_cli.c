/* test_train_drafters_cli.c - `forerun train` for drafters from the command line: their files run, kill -9 and --resume
 * change no byte of them, and they name how they were trained. */
#define DIR "build/test-train-drafters"
#include "train_rig.h"

#include "model_rig.h"
#include "train/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* The command in the file is the one without the option. */
static void hidden_states_in_memory_change_no_byte(void **state) {
    (void)state;
    cli_expect(EAGLE3 "--layers 0,1 --batch 16", 0, "the target reads each sequence once");
    train_rig_shell("mv " OUT " " DIR "/whole.gguf");
    cli_expect(EAGLE3 "--layers 0,1 --batch 16 --state-memory 0", 0, "the target reads 100 % of the sequences again");
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    cli_expect(EAGLE3 "--state-memory much 2>&1", 2, "must be a number of bytes, such as 500M or 4G");
}

/* A resumed run draws the anchors of its blocks again. A file that goes on has the block of the first one. */
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

/* A file with biases and norms of heads, which llama.cpp does not write. */
static void eagle3_goes_on_from_a_file_with_biases(void **state) {
    (void)state;
    train_rig_shell("tail -c +2 " PUBLISHED "eagle3-heads > " DIR "/init.gguf");
    cli_expect("train eagle3 -m tests/fuzz/target.gguf --data " DATA
               " --valid 0 --length 16 --batch 4 --steps 2 --force -o " OUT " --init " DIR "/init.gguf 2>&1",
               0, " tokens/s");
    cli_expect("inspect --tensors " OUT, 0, "blk.0.attn_output.bias");
    cli_expect("inspect --tensors " OUT, 0, "blk.0.attn_k_norm.weight");
    cli_expect("compare -m tests/fuzz/target.gguf -p 'the cat' -n 8 --ctx 16 --draft eagle3:file=" OUT, 0, "");
}

/* A file as others publish it keeps its shape and its parts, such as a window, a scaled rope, or a vocabulary of its
 * own, and can get those of DFlash 2 or the heads of DSpark. One with an unknown tensor is refused. */
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
    cli_expect("inspect " OUT, 0, "dflash.attention.sliding_window");
    cli_expect("inspect " OUT, 0, "dflash.rope.scaling.yarn_beta_fast");
    train_rig_shell("tail -c +2 " PUBLISHED "dflash-markov > " DIR "/init.gguf");
    cli_expect(train, 0, " tokens/s");
    cli_expect("inspect --tensors " OUT, 0, "conf_proj.bias");
    cli_expect("compare -m tests/fuzz/target.gguf -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    train_rig_shell("tail -c +2 " PUBLISHED "dflash-own > " DIR "/init.gguf");
    cli_expect(train, 0, " tokens/s");
    cli_expect("compare -m tests/fuzz/target.gguf -p 'the cat' -n 8 --ctx 16 --draft dflash:file=" OUT, 0, "");
    static const char *const kept[] = {"attn_sinks.weight", "attn_q.bias", "token_embd.weight", "output.weight", "d2t"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) cli_expect("inspect --tensors " OUT, 0, kept[i]);
    cli_expect("inspect " OUT, 0, "dflash.final_logit_softcapping");
    snprintf(with_parts, sizeof with_parts, "%s --head-tokens 20", train);
    cli_expect(with_parts, 2, "and " DIR "/init.gguf has its own: leave it out");
    train_rig_shell("tail -c +2 " PUBLISHED "dflash-markov > " DIR "/init.gguf");
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

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drafter_resumes_too_and_drafts),
        cmocka_unit_test(eagle3_resumes_exactly_and_drafts),
        cmocka_unit_test(hidden_states_in_memory_change_no_byte),
        cmocka_unit_test(eagle3_with_blocks_resumes_exactly_and_drafts),
        cmocka_unit_test(eagle3_goes_on_from_a_file_with_biases),
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
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
