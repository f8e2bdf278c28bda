/* test_outputs_cli.c - the files that commands write: no output destroys an input or another output, all outputs are
 * checked before a command begins, and a failed or interrupted run leaves only the old file. */
#define DIR "build/test-outputs"
#include "train_rig.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define COPY DIR "/copy.gguf"
#define TEXT DIR "/text.txt"
#define QUESTIONS DIR "/questions.jsonl"
#define MODEL "-m " VOCAB " "
#define TRAIN \
    "train target --vocab " VOCAB " --data " DATA " --width 16 --heads 1 --layers 1 --length 16 --batch 1 --force "

static int make_files(void **state) {
    (void)state;
    int status = train_rig_make_files(DIR);
    char lines[20000];
    size_t n = 0;
    for (int i = 0; i < 100; i++) n += (size_t)snprintf(lines + n, sizeof lines - n, "{\"prompt\": \"a cat %d\"}\n", i);
    train_rig_write(QUESTIONS, lines);
    train_rig_shell("cd " DIR " && cp vocab.gguf copy.gguf && cp data.jsonl text.txt && ln -s vocab.gguf link && "
                    "ln vocab.gguf hard && ln -s . folder && ln -s nothing dangling && "
                    "ln -s text.txt linked.log.jsonl && mkfifo fifo && mkdir weights && "
                    "cp data.jsonl weights/a.safetensors && cp data.jsonl p-t0.3-mbsu.svg && "
                    "cp data.jsonl out.gguf.log.jsonl && cp data.jsonl checked.checkpoint && "
                    "cp text.txt protected && chmod 400 protected");
    return status;
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

typedef struct Case {
    const char *args, *words;
} Case;

/* Lists the names and checksums of all files in the folder. */
#define LIST "(cd " DIR " && find . | sort && find . -type f -exec cksum {} + | sort)"

static void expect_refusals(const Case *cases, size_t n, int status) {
    train_rig_shell(LIST " > " DIR ".list");
    for (size_t i = 0; i < n; i++) {
        char args[2000], said[200];
        snprintf(args, sizeof args, "%s 2>&1", cases[i].args);
        cli_expect(args, status, cases[i].words);
        snprintf(args, sizeof args, "%s 2>/dev/null", cases[i].args);
        cli_run(args, said, sizeof said);
        if (*said) fail_msg("forerun %s: '%s' was printed before the refusal", cases[i].args, said);
        if (system(LIST " | cmp -s - " DIR ".list") != 0) fail_msg("forerun %s: the folder changed", cases[i].args);
    }
    train_rig_shell("rm " DIR ".list");
}

static void an_output_is_no_input(void **state) {
    (void)state;
    static const Case cases[] = {
        {"run " MODEL "-p a --stats-json " VOCAB,
         "--stats-json and --model are the same file, " VOCAB ", which would be lost: choose another path"},
        {"run " MODEL "-p a --stats-json " DIR "/../test-outputs/vocab.gguf", "--stats-json and --model are the same"},
        {"run " MODEL "-p a --stats-json " DIR "/link", "--stats-json and --model are the same"},
        {"run -m " DIR "/link -p a --stats-json " VOCAB, "--stats-json and --model are the same"},
        {"run " MODEL "-p a --stats-json " DIR "/hard", "--stats-json and --model are the same"},
        {"run " MODEL "-p a --stats-json " DIR "/folder/vocab.gguf", "--stats-json and --model are the same"},
        {"run " MODEL "-f " TEXT " --stats-json " TEXT, "--stats-json and --file are the same"},
        {"run " MODEL "-p a --draft rest:index=" TEXT " --stats-json " TEXT,
         "--stats-json and --draft=rest:index are the same"},
        {"run " MODEL "-p a --draft pld --draft sps:length=3,model=" COPY " --stats-json " COPY,
         "--stats-json and --draft=sps:model are the same"},
        {"run " MODEL "-p a --draft specinfer:models=" VOCAB "+" COPY ",length=2 --stats-json " COPY,
         "--stats-json and --draft=specinfer:models are the same"},
        {"run " MODEL "-p a --draft eagle:file=" COPY " --stats-json " COPY, "--draft=eagle:file"},
        {"bench " MODEL QUESTIONS " --draft pld --json " QUESTIONS, "--json and QUESTIONS.jsonl are the same"},
        {"bench " MODEL QUESTIONS " --draft pld --plot " VOCAB, "--plot and --model are the same"},
        {"bench " MODEL QUESTIONS " --draft pld --json " DIR "/x --plot " DIR "/./x", "--json and --plot are the same"},
        {"bench " MODEL QUESTIONS " --draft pld+sps:model=" COPY " --json " COPY, "--draft=sps:model"},
        {"bench " MODEL QUESTIONS " --chain sps:model=" COPY " --json " COPY, "sps:model"},
        {"logits " MODEL "--tokens 1 -o " VOCAB, "--output and --model are the same"},
        {"perf " MODEL "--plot " VOCAB, "--plot and --model are the same"},
        {"study length " MODEL "--draft-model " COPY " --json " COPY, "--json and --draft-model are the same"},
        {"study length " MODEL "-f " QUESTIONS " --json " QUESTIONS, "--json and --prompts are the same"},
        {"study length " MODEL "-f " DIR "/p-t0.3-mbsu.svg --plot " DIR "/p", "--plot and --prompts are the same"},
        {"study toy --json " DIR "/x.svg --plot " DIR "/x", "--json and --plot are the same"},
        {"index " MODEL TEXT " -o " TEXT, "--output and CORPUS are the same"},
        {"index " MODEL TEXT " -o " VOCAB, "--output and --vocab are the same"},
        {TRAIN "-o " DATA, "--output and --data are the same"},
        {TRAIN "-o " VOCAB, "--output and --vocab are the same"},
        {TRAIN "-o " DIR "/x --log " DATA, "--log and --data are the same"},
        {TRAIN "-o " DIR "/x --log " DIR "/folder/x", "--output and --log are the same"},
        {TRAIN "-o " DIR "/x --log " DIR "/x.checkpoint", "--log and OUTPUT.checkpoint are the same"},
        {TRAIN "-o " DIR "/x --plot " DATA, "--plot and --data are the same"},
        {TRAIN "-o " DIR "/x --plot " DIR "/x.log.jsonl", "--plot and OUTPUT.log.jsonl are the same"},
        {TRAIN "-o " COPY " --valid " COPY, "--output and --valid are the same"},
        {TRAIN "-o " OUT " --valid " DIR "/out.gguf.log.jsonl", "OUTPUT.log.jsonl and --valid are the same"},
        {TRAIN "-o " DIR "/checked --valid " DIR "/checked.checkpoint", "OUTPUT.checkpoint and --valid are the same"},
        {"train lyanna " MODEL "--data " DATA " --hot-tokens 9 --frequencies " TEXT " -o " TEXT,
         "--output and --frequencies are the same"},
        {"train eagle " MODEL "--data " DATA " -o " VOCAB, "--output and --model are the same"},
        {"distill-data " MODEL QUESTIONS " -o " QUESTIONS, "--output and IN.jsonl are the same"},
        {"distill-data " MODEL QUESTIONS " -o " VOCAB, "--output and --model are the same"},
        {"distill-data " MODEL QUESTIONS " --draft sps:model=" COPY " -o " COPY, "--draft=sps:model"},
        {"import-drafter eagle " MODEL COPY " -o " COPY, "--output and CHECKPOINT are the same"},
        {"import-drafter eagle " MODEL COPY " -o " VOCAB, "--output and --model are the same"},
        {"import-drafter eagle " MODEL DIR "/weights -o " DIR "/weights/a.safetensors",
         "--output and CHECKPOINT are the same"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases, 2);
}

/* These are refused before anything is read, computed or printed. */
static void outputs_are_checked_first(void **state) {
    (void)state;
    static const Case cases[] = {
        {"run " MODEL "-p a --stats-json /nowhere/x",
         "--stats-json: /nowhere/x: cannot be written: its folder does not"},
        {"run " MODEL "-p a --stats-json /proc/forerun",
         "--stats-json: /proc/forerun: cannot be "}, /* root may write there */
        {"run " MODEL "-p a --stats-json " DIR, "it is a folder; name a file in it"},
        {"run " MODEL "-p a --stats-json " DIR "/fifo", "exists and is not a regular file"},
        {"run " MODEL "-p a --stats-json " DIR "/dangling", "a symbolic link to a file that does not exist"},
        {"run " MODEL "-p a --stats-json /dev/full", "exists and is not a regular file"},
        {"run " MODEL "-p a --draft sps:model=/nowhere/x", "--draft=sps:model: /nowhere/x: cannot be opened: No such"},
        {"bench " MODEL QUESTIONS " --draft pld --json /nowhere/x", "--json: /nowhere/x: cannot be written"},
        {"bench " MODEL QUESTIONS " --draft pld --plot /nowhere/x", "--plot: /nowhere/x: cannot be written"},
        {"logits " MODEL "--tokens 1 -o /nowhere/x", "--output: /nowhere/x: cannot be written"},
        {"perf " MODEL "--plot /nowhere/x", "--plot: /nowhere/x: cannot be written"},
        {"study length --json /nowhere/x", "--json: /nowhere/x: cannot be written"},
        {"study length --plot /nowhere/x", "--plot: /nowhere/x-t0.3-efficiency.svg: cannot be written"},
        {"study toy --plot /nowhere/x", "--plot: /nowhere/x.svg: cannot be written"},
        {"index " MODEL TEXT " -o /nowhere/x", "--output: /nowhere/x: cannot be written"},
        {TRAIN "-o /nowhere/x", "--output: /nowhere/x: cannot be written"},
        {TRAIN "-o " DIR "/x --log " DIR "/fifo", "--log: " DIR "/fifo: exists and is not a regular file"},
        {TRAIN "-o " DIR "/linked", "OUTPUT.log.jsonl: " DIR "/linked.log.jsonl: is a symbolic link, which is not"},
        {TRAIN "-o " DIR "/x --plot /nowhere/x", "--plot: /nowhere/x: cannot be written"},
        {"distill-data " MODEL QUESTIONS " -o " DIR "/fifo", "exists and is not a regular file"},
        {"import-drafter eagle " MODEL COPY " -o /nowhere/x", "--output: /nowhere/x: cannot be written"},
        {"distill-data " MODEL QUESTIONS " -o " DIR "/text.txt", "line 1 "},
        {"compare " MODEL "-p a --draft rest:index=/nowhere/x", "--draft=rest:index: /nowhere/x: cannot be opened"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases, 1);
    static const Case usage[] = {
        {"index " MODEL TEXT " -o -", "--output cannot be written to standard output: name a file"},
        {"compare " MODEL "-p a --draft pld --draft teleport", "--draft: unknown drafter 'teleport'"},
        {"compare " MODEL "-p a --draft pld:length=0", "--draft: pld: 'length=0' must be an integer"},
        {"bench " MODEL QUESTIONS " --draft pld+suffix:x=1", "--draft: suffix: unknown option 'x'"},
        {"distill-data " MODEL QUESTIONS " --draft rest -o " DIR "/x", "--draft: rest: missing index of a corpus"},
    };
    expect_refusals(usage, sizeof usage / sizeof *usage, 2);
    if (geteuid() == 0) return;
    static const Case closed[] = {{"logits " MODEL "--tokens 1 -o " DIR "/protected", "protected against writing"}};
    expect_refusals(closed, 1, 1);
}

/* Returns seconds of processor time that the command takes. */
static double cost_of(const char *args, int status, const char *words) {
    struct rusage before, after;
    getrusage(RUSAGE_CHILDREN, &before);
    cli_expect(args, status, words);
    getrusage(RUSAGE_CHILDREN, &after);
    return (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
           1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec);
}

/* A rule refuses the trees of a drafter before plain decoding, which comes first, is measured. */
static void a_rule_is_tried_first(void **state) {
    (void)state;
#define RULE "-m models/target.gguf -c 1100 -n 1000 --ignore-eos --temp 1 --verify chain --draft recycling "
    static const char why[] = "cannot handle node 0 of the drafter's tree",
                      why_bench[] = "cannot handle node 3 of the drafter's tree";
    double plain = cost_of("run -m models/target.gguf -c 1100 -p a -n 1000 --ignore-eos --temp 1 --draft none", 0, "");
    double refused = cost_of("compare " RULE "-p a --runs 1", 1, why);
    if (refused > plain / 2) fail_msg("the refusal takes %.2f s, plain decoding %.2f s", refused, plain);
    refused = cost_of("bench " RULE "--raw --limit 1 --runs 1 " QUESTIONS, 1, why_bench);
    if (refused > plain / 2) fail_msg("the refusal takes %.2f s, plain decoding %.2f s", refused, plain);
    cli_expect("compare -m models/draft.gguf -p a -n 6 --temp 1 --verify recursive --draft recycling --draft pld "
               "--runs 1 --no-text",
               0, "same distribution");
}

/* Runs a command that may write at most 4 KB (8 KB in some shells) to a file. */
static void expect_full(const char *args, const char *words) {
    char command[2000], said[8000];
    snprintf(command, sizeof command, "ulimit -f 8; %s/../forerun %s 2>&1", cli_rig_folder(), args);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    said[fread(said, 1, sizeof said - 1, out)] = '\0';
    int status = pclose(out);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(said, words))
        fail_msg("forerun %s: want '%s', got status %d and '%s'", args, words, status, said);
    if (system("ls " DIR "/*.tmp 2>/dev/null") == 0) fail_msg("forerun %s leaves a temporary file", args);
}

static void a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    static const Case cases[] = {
        {"run -m models/draft.gguf -p 'a cat' -n 400 --logprobs --ignore-eos --stats-json " OUT, "File too large"},
        {"bench " MODEL QUESTIONS " --raw --limit 9 -n 3 --runs 1 --chain none --draft pld --json " OUT,
         "File too large"},
        {"logits " MODEL "--tokens 1,2,3,4,5,6,7,8,9 -o " OUT, "File too large"},
        {"study toy --plot " DIR "/out", "the figure incomplete"},
        {"index " MODEL TEXT " -o " OUT, "File too large"},
        {TRAIN "--steps 2 -o " OUT, "File too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_rig_write(OUT, "old"), train_rig_write(DIR "/out.svg", "old");
        expect_full(cases[i].args, cases[i].words);
        train_rig_shell("test \"$(cat " OUT " " DIR "/out.svg)\" = oldold");
    }
    train_rig_shell("rm -f " OUT "* " DIR "/out.svg");
}

static void answers_grow_by_whole_lines(void **state) {
    (void)state;
#define DISTILL "distill-data " MODEL QUESTIONS " -n 20 --ignore-eos -o "
    cli_expect(DISTILL DIR "/whole.jsonl", 0, "100 of 100 records");
    expect_full(DISTILL DIR "/part.jsonl", "cannot be written: File too large");
    train_rig_shell("test -s " DIR "/part.jsonl && cd " DIR
                    " && head -n $(wc -l < part.jsonl) whole.jsonl | cmp - part.jsonl");
    cli_expect(DISTILL DIR "/part.jsonl", 0, "100 of 100 records");
    train_rig_shell("cmp " DIR "/whole.jsonl " DIR "/part.jsonl");
    train_rig_shell("printf 'one line' > " DIR "/note");
    cli_expect(DISTILL DIR "/note", 1, "is not the beginning of an answer");
    train_rig_shell("test \"$(cat " DIR "/note)\" = 'one line'");
}

/* Ctrl-C and similar signals remove unfinished files, and end the program with the same signal. */
static void a_signal_leaves_no_temporary_file(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    char args[2000] = "logits -m models/target.gguf -t 1 -o " OUT " --tokens 1";
    while (strlen(args) < 1800) strcat(args, ",1");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        glob_t found = {0};
        int status;
        train_rig_write(OUT, "old");
        pid_t child = train_rig_start(DIR, args);
        for (int k = 0; k < 5000 && glob(OUT ".*.tmp", 0, NULL, &found) != 0; k++) usleep(1000);
        globfree(&found);
        assert_int_equal(kill(child, signals[i]), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_int_equal(glob(OUT ".*.tmp", 0, NULL, &found), GLOB_NOMATCH);
        train_rig_shell("test \"$(cat " OUT ")\" = old");
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_output_is_no_input),       cmocka_unit_test(outputs_are_checked_first),
        cmocka_unit_test(a_rule_is_tried_first),       cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(answers_grow_by_whole_lines), cmocka_unit_test(a_signal_leaves_no_temporary_file),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
