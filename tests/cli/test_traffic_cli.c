/* test_traffic_cli.c - `forerun run --record` and `forerun train --from-traffic`: the contents and permissions of the
 * file of records; several processes and full disks lose no line and no answer; which records are learned, and when the
 * old drafter stays. */
#define DIR "build/test-traffic"
#include "train_rig.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT DIR "/kept.jsonl"
#define STATS DIR "/stats.json"
#define MODEL "-m " VOCAB " -t 1 "
#define RUN "run " MODEL "-p 'the cat' -n 12 --ignore-eos "
#define TRAIN "train redrafter " MODEL "--length 16 --batch 1 --from-traffic " KEPT " -o " OUT " "
#define TRAIN_MTP "train mtp " MODEL "--length 16 --batch 1 --valid 0 --from-traffic " KEPT " -o " DIR "/mtp.gguf "

static int make_files(void **state) {
    (void)state;
    int status = train_rig_make_files(DIR);
    train_rig_shell("cd " DIR " && cp data.jsonl text.txt && printf 'a note' > note && ln -s kept.jsonl link && "
                    "printf 'caf\\351 <s> \\377\\000 \\360\\237 end' > broken.txt");
    return status;
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

static int n_lines(const char *path) {
    char command[300], text[32] = "0";
    snprintf(command, sizeof command, "cat %s 2>/dev/null | wc -l", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    pclose(f);
    return atoi(text);
}

/* ---- run --record --------------------------------------------------------------------------------- */

/* Checks that the ids in a record from `from` on are those of --stats-json. */
static void expect_generated(const json_t *record) {
    json_error_t where;
    json_t *stats = json_load_file(STATS, 0, &where);
    assert_non_null(stats);
    const json_t *want = json_object_get(stats, "tokens"), *is = json_object_get(record, "tokens");
    size_t n = json_array_size(want), n_prompt = json_array_size(is) - n;
    assert_int_equal(json_integer_value(json_object_get(record, "prompt_tokens")), n_prompt);
    for (size_t i = 0; i < n; i++) assert_true(json_equal(json_array_get(want, i), json_array_get(is, n_prompt + i)));
    assert_true(json_equal(json_object_get(stats, "finish"), json_object_get(record, "finish")));
    json_decref(stats);
}

/* The prompt in a record is the list of ids that `tokenize` prints. */
static void expect_prompt(const json_t *record, const char *tokenize) {
    static char text[1 << 16];
    assert_int_equal(cli_run(tokenize, text, sizeof text), 0);
    json_t *object = json_loads(text, 0, NULL);
    const json_t *want = json_object_get(object, "tokens"), *is = json_object_get(record, "tokens");
    size_t n = (size_t)json_integer_value(json_object_get(record, "prompt_tokens"));
    assert_int_equal(json_array_size(want), n);
    for (size_t i = 0; i < n; i++) assert_true(json_equal(json_array_get(want, i), json_array_get(is, i)));
    json_decref(object);
}

static void a_record_has_the_tokens_of_the_generation(void **state) {
    (void)state;
    struct stat st;
    unlink(KEPT);
    umask(0);
    cli_expect(RUN "--temp 0.5 --seed 7 --record " KEPT " --stats-json " STATS, 0, "");
    assert_int_equal(stat(KEPT, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    json_t *record = train_rig_line(KEPT, 0);
    expect_generated(record);
    expect_prompt(record, "tokenize -m " VOCAB " --json --bos -p 'the cat'");
    assert_int_equal(json_integer_value(json_object_get(record, "seed")), 7);
    assert_true(json_number_value(json_object_get(record, "temperature")) == 0.5);
    assert_int_equal(strlen(json_string_value(json_object_get(record, "target"))), 16);
    assert_int_equal(strlen(json_string_value(json_object_get(record, "date"))), 20);
    assert_null(json_object_get(record, "lossy"));
    json_decref(record);
    cli_expect(RUN "--record " DIR "/link --verify typical --lossy --draft medusa:file=models/medusa.gguf", 1, "");
    cli_expect("run -m models/target.gguf -t 1 -p 'Once' -n 8 --temp 1 --verify typical --lossy "
               "--draft medusa:file=models/medusa.gguf --record " DIR "/link",
               0, "");
    record = train_rig_line(KEPT, 1); /* the same file, by a link */
    assert_true(json_is_true(json_object_get(record, "lossy")));
    json_decref(record);
}

/* Special tokens of the chat format, their spelling in a user's text, and bytes that are not UTF-8 are recorded as
 * ids. */
static void prompts_are_exact(void **state) {
    (void)state;
    unlink(KEPT);
    cli_expect("run -m models/target.gguf -t 1 -n 4 -f " DIR "/broken.txt --record " KEPT " --stats-json " STATS, 0,
               "");
    json_t *record = train_rig_line(KEPT, 0);
    expect_generated(record);
    expect_prompt(record, "tokenize -m models/target.gguf --json --bos -f " DIR "/broken.txt");
    json_decref(record);
    cli_expect("run -m models/target.gguf -t 1 -n 4 --chat --system Short. -p 'Say hello' --record " KEPT, 0, "");
    record = train_rig_line(KEPT, 1);
    expect_prompt(record, "tokenize -m models/target.gguf --json --bos --special -p "
                          "\"$(printf 'Short.\\nUSER: Say hello\\nASSISTANT:')\"");
    json_decref(record);
}

static void what_does_not_finish_is_not_recorded(void **state) {
    (void)state;
    unlink(KEPT);
    char command[2000]; /* head closes the pipe after the first byte */
    snprintf(command, sizeof command,
             "test \"$(%s/../forerun run -m models/target.gguf -t 1 -p a -n 2000 -c 2100 --ignore-eos --record " KEPT
             " | head -c 1 | wc -c)\" = 1",
             cli_rig_folder());
    train_rig_shell(command);
    assert_int_equal(n_lines(KEPT), 0);
    cli_expect(RUN "--seed 1", 0, "");
    assert_int_equal(n_lines(KEPT), 0); /* off by default */
}

static void several_processes_lose_no_line(void **state) {
    (void)state;
    enum { N_PROCESSES = 4, N_RUNS = 5 };
    unlink(KEPT);
    char command[1000];
    size_t n = 0;
    for (int i = 0; i < N_PROCESSES; i++)
        n += (size_t)snprintf(command + n, sizeof command - n,
                              "(for i in 1 2 3 4 5; do %s/../forerun " RUN "--record " KEPT " >/dev/null || exit 1; "
                              "done) & ",
                              cli_rig_folder());
    snprintf(command + n, sizeof command - n, "wait");
    train_rig_shell(command);
    assert_int_equal(n_lines(KEPT), N_PROCESSES * N_RUNS);
    for (int i = 0; i < N_PROCESSES * N_RUNS; i++) json_decref(train_rig_line(KEPT, i));
}

/* The answer and the warning are printed, and a record that the full disk cut short affects neither the next record nor
 * training. */
static void a_full_disk_loses_no_answer(void **state) {
    (void)state;
    char command[1000], whole[1000], plain[1000];
    unlink(KEPT);
    cli_expect(RUN "--record " KEPT, 0, "");
    /* up to 99 bytes below the limit; the record is longer than that */
    train_rig_shell("head -c $((3996 - $(wc -c < " KEPT "))) /dev/zero | tr '\\0' ' ' >> " KEPT " && echo >> " KEPT);
    assert_int_equal(cli_run(RUN, plain, sizeof plain), 0);
    snprintf(command, sizeof command,
             "sh -c 'ulimit -f 8; exec %s/../forerun run " MODEL "-p \"the cat\" -n 12 "
             "--ignore-eos --record " KEPT " 2>" DIR "/stderr'",
             cli_rig_folder());
    FILE *out = popen(command, "r");
    assert_non_null(out);
    whole[fread(whole, 1, sizeof whole - 1, out)] = '\0';
    assert_int_equal(pclose(out), 0);
    assert_string_equal(whole, plain);
    train_rig_shell("grep -q 'warning: the generation is not recorded: " KEPT ": cannot be written: ' " DIR "/stderr");
    int before = n_lines(KEPT);
    cli_expect(RUN "--record " KEPT, 0, "");
    assert_int_equal(n_lines(KEPT), before + 2); /* the piece has become a line of its own */
    json_decref(train_rig_line(KEPT, before + 1));
    cli_expect(TRAIN "--steps 1 --valid 0", 0, " tokens/s");
}

static void a_full_file_does_not_change(void **state) {
    (void)state;
    train_rig_shell("rm -f " KEPT " && echo '{}' > " KEPT " && truncate -s 268435400 " KEPT);
    cli_expect(RUN "--record " KEPT, 0, "has reached 256 MiB, and nothing more is recorded: move or delete it");
    struct stat st;
    assert_true(stat(KEPT, &st) == 0 && st.st_size == 268435400);
    unlink(KEPT);
}

static void other_files_are_refused(void **state) {
    (void)state;
    unlink(KEPT);
    cli_expect(RUN "--record " VOCAB, 2, "--record and --model are the same file");
    cli_expect("run " MODEL "-f " DIR "/text.txt --record " DIR "/text.txt", 2, "--record and --file are the same");
    cli_expect(RUN "--record " KEPT " --stats-json " KEPT, 2, "are the same file");
    cli_expect(RUN "--draft rest:index=" DIR "/note --record " DIR "/note", 2, "--draft=rest:index are the same");
    cli_expect(RUN "--record " DIR, 1, "it is a folder");
    cli_expect(RUN "--record /dev/null", 1, "is not a regular file");
    cli_expect(RUN "--record /nowhere/x", 1, "--record: /nowhere/x: cannot be written");
    cli_expect(RUN "--record -", 2, "cannot be written to standard output");
    cli_expect(RUN "--record " DIR "/note", 1, DIR "/note: is not a file of records: choose another path");
    cli_expect(RUN "--record models/medusa.gguf", 1, "is not a file of records");
    train_rig_shell("test \"$(cat " DIR "/note)\" = 'a note'");
}

/* ---- train --from-traffic ------------------------------------------------------------------------- */

static void record_texts(int n) {
    char args[300];
    for (int i = 0; i < n; i++) {
        snprintf(args, sizeof args, "run " MODEL "-p 'the dog %d' -n 20 --ignore-eos --temp 1 --record " KEPT,
                 n_lines(KEPT));
        cli_expect(args, 0, "");
    }
}

static void new_records_of_the_target_are_learned(void **state) {
    (void)state;
    train_rig_shell("rm -f " OUT "* && : > " KEPT);
    cli_expect(TRAIN, 1, "has no new record of this target");
    record_texts(12);
    cli_expect("run -m models/target.gguf -t 1 -p Once -n 4 --record " KEPT, 0, "");
    train_rig_shell("printf '{\"tokens\": [1,' >> " KEPT); /* this line may still be being written */
    cli_expect(TRAIN "--valid 0 --steps 3", 0, "left out: 1 record of other models, 0 broken lines");
    unlink(OUT);
    cli_expect(TRAIN "--valid 0", 0, "12 documents, 0 of them held out");
    cli_expect(TRAIN_MTP, 0, "12 documents");
    cli_expect(TRAIN_MTP, 1, "has no new record of this target");
    cli_expect("run " MODEL "-p 'the cat' -n 8 --draft redrafter:file=" OUT, 0, "");
    assert_false(train_rig_exists(OUT ".checkpoint"));
    cli_expect(TRAIN "--valid 0", 1, "has no new record of this target");
    cli_expect("run -m models/target.gguf -t 1 -p Once -n 4 --record " KEPT, 0, "");
    cli_expect(TRAIN "--valid 0", 1, "has no new record of this target"); /* it is of another model */
    record_texts(1);
    cli_expect(TRAIN "--valid 0", 0, "left out: 2 records of other models, 1 broken line\n");
    cli_expect(TRAIN, 1, "has no new record");
    train_rig_shell("tail -n 3 " KEPT " > " DIR "/x && mv " DIR "/x " KEPT); /* the file was rotated, so all records are
                                                                              * new */
    cli_expect(TRAIN "--valid 0", 0, "1 document, 0");
    cli_expect("train redrafter -m models/target.gguf --length 16 --batch 1 --valid 0 -t 1 --from-traffic " KEPT
               " -o " OUT,
               0, "1 document, 0"); /* all are new for another target */
}

/* Training continues from the drafter with only the new records. */
static void training_continues_with_new_records(void **state) {
    (void)state;
#define NEXT \
    "train redrafter " MODEL "--length 16 --batch 1 --valid 0 --from-traffic " KEPT " --init " OUT " -o " DIR \
    "/next.gguf"
    train_rig_shell("rm -f " OUT "* " KEPT);
    record_texts(5);
    cli_expect(TRAIN "--valid 0", 0, "5 documents");
    cli_expect(NEXT, 1, "has no new record of this target");
    record_texts(2);
    cli_expect(NEXT, 0, "2 documents, 0 of them held out");
    train_rig_shell("mv " DIR "/next.gguf " OUT);
    cli_expect(NEXT, 1, "has no new record of this target");
    record_texts(3);
    cli_expect(NEXT, 0, "3 documents, 0 of them held out");
}

/* The same tokens given by --data give the same network. */
static void records_are_data_as_well(void **state) {
    (void)state;
    train_rig_shell("rm -f " OUT "* " KEPT);
    record_texts(6);
    cli_expect(TRAIN "--valid 0", 0, "6 documents");
    train_rig_shell("tail -c 10000 " OUT " > " DIR "/a && rm " OUT);
    cli_expect("train redrafter " MODEL "--length 16 --batch 1 --valid 0 --data " KEPT " -o " OUT, 0, "6 documents");
    train_rig_shell("tail -c 10000 " OUT " | cmp - " DIR "/a");
}

static void a_worse_drafter_is_not_written(void **state) {
    (void)state;
    train_rig_shell("rm -f " OUT "* " KEPT);
    record_texts(12);
    train_rig_write(OUT, "old");
    cli_expect("train medusa " MODEL "--length 16 --batch 1 --valid 0.5 --lr 100 --clip 0 --from-traffic " KEPT
               " -o " OUT,
               1, "is not written: on the held-out records the drafter was right in");
    train_rig_shell("test \"$(cat " OUT ")\" = old");
    cli_expect("train medusa " MODEL "--length 16 --batch 1 --valid 0 --lr 100 --clip 0 --from-traffic " KEPT
               " -o " OUT,
               0, " tokens/s"); /* nothing is held out */
}

static void it_refuses_with_a_reason(void **state) {
    (void)state;
    cli_expect(TRAIN "--data " DATA, 2, "both give training data");
    cli_expect(TRAIN "--resume", 2, "a training from traffic has no checkpoints");
    cli_expect("train redrafter " MODEL "--from-traffic " KEPT " -o " KEPT, 2,
               "--output and --from-traffic are the same");
    cli_expect("train redrafter " MODEL "--from-traffic /nowhere.jsonl -o " OUT, 1, "/nowhere.jsonl: cannot be opened");
    cli_expect("train redrafter " MODEL "-o " OUT, 2, "missing training data: pass --data=FILE");
    cli_expect("train target --vocab " VOCAB " --from-traffic " KEPT " -o " OUT, 2, "unknown option '--from-traffic'");
}

/* Returns the scheduling policy in a file /proc/PID/task/TID/stat, which is its field 41. */
static int policy_of(const char *path) {
    char text[1000] = "";
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    const char *at = strrchr(text, ')'); /* the end of field 2 */
    for (int field = 2; at && field < 41; field++) at = strchr(at + 1, ' ');
    return at ? atoi(at + 1) : -1;
}

#define LONG "train redrafter -m " VOCAB " -t 3 --length 16 --batch 8 --steps 1000000 --valid 0 -o " OUT " "

static void a_stop_leaves_the_old_file(void **state) {
    (void)state;
    int status;
    train_rig_shell("rm -f " OUT "* " KEPT);
    record_texts(6);
    train_rig_write(OUT, "old");
    pid_t child = train_rig_start(DIR, LONG "--from-traffic " KEPT);
    for (int i = 0; i < 6000 && !train_rig_exists(OUT ".log.jsonl"); i++) usleep(10000);
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    train_rig_shell("grep -q 'stopped after step' " DIR "/stderr && ! grep -q resume " DIR "/stderr && "
                    "test \"$(cat " OUT ")\" = old");
    assert_false(train_rig_exists(OUT ".checkpoint"));
}

/* Counts the threads, and those of them that run with SCHED_IDLE. */
static int count_threads(pid_t pid, int *n_idle) {
    enum { IDLE = 5 };
    char pattern[64];
    glob_t found;
    int n = 0;
    *n_idle = 0;
    snprintf(pattern, sizeof pattern, "/proc/%d/task/*/stat", (int)pid);
    if (glob(pattern, 0, NULL, &found)) return 0;
    for (size_t k = 0; k < found.gl_pathc; k++) {
        int policy = policy_of(found.gl_pathv[k]);
        n += policy >= 0;
        *n_idle += policy == IDLE;
    }
    globfree(&found);
    return n;
}

static void an_idle_training_yields_the_processor(void **state) {
    (void)state;
    int n_idle = 0, n = 0, status;
    pid_t child = train_rig_start(DIR, LONG "--idle --data " DATA);
    for (int i = 0; i < 6000 && n_idle == 0; i++, usleep(10000)) n = count_threads(child, &n_idle);
    for (int i = 0; i < 500 && n < 3; i++, usleep(10000)) n = count_threads(child, &n_idle); /* on an idle machine */
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(n_idle >= 1 && n_idle == n);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_has_the_tokens_of_the_generation),
        cmocka_unit_test(prompts_are_exact),
        cmocka_unit_test(what_does_not_finish_is_not_recorded),
        cmocka_unit_test(several_processes_lose_no_line),
        cmocka_unit_test(a_full_disk_loses_no_answer),
        cmocka_unit_test(a_full_file_does_not_change),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(new_records_of_the_target_are_learned),
        cmocka_unit_test(training_continues_with_new_records),
        cmocka_unit_test(records_are_data_as_well),
        cmocka_unit_test(a_worse_drafter_is_not_written),
        cmocka_unit_test(it_refuses_with_a_reason),
        cmocka_unit_test(a_stop_leaves_the_old_file),
        cmocka_unit_test(an_idle_training_yields_the_processor),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
