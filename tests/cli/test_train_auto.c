/* test_train_auto.c - `forerun train auto` with a random model of 300 tokens: all steps, what it leaves beside the
 * drafter, what it refuses, and that interruptions change no byte of the drafter. */
#define DIR "build/test-train-auto"
#include "train_rig.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROMPTS DIR "/prompts.txt"
#define AUTO "train auto -m " VOCAB " -o " OUT " -n 6 -t 1 --epochs 60 "

static int make_files(void **state) {
    char text[4000];
    size_t n = 0;
    (void)state;
    if (train_rig_make_files(DIR)) return 1;
    for (int i = 0; i < 30; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "the %s sees %d\n\n", i % 2 ? "cat" : "dog", i / 2);
    train_rig_write(PROMPTS, text);
    train_rig_write(DIR "/few.txt", "the cat\nthe cat\n\nthe dog\n");
    train_rig_write(DIR "/text.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
    train_rig_shell("mkdir " DIR "/folder && cp " DIR "/few.txt " DIR "/folder/ && echo x > " DIR "/folder/notes && "
                    "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}' > " DIR "/folder/a.jsonl");
    return 0;
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

static void it_goes_from_prompts_to_a_measured_drafter(void **state) {
    (void)state;
    cli_expect(AUTO PROMPTS, 0, "\n[4/4] ");
    cli_expect("run -m " VOCAB " -p 'the cat' -n 4 --ctx 16 --draft eagle:file=" OUT, 0, "");
    train_rig_shell("test $(wc -l < " OUT ".held-out.jsonl) = 3 && test $(wc -l < " OUT ".answers.jsonl) = 27");
    train_rig_shell("cat " OUT ".held-out.jsonl " OUT ".prompts.jsonl | sed 's/.*prompt\":\"//;s/\".*//' | sort > " DIR
                    "/used && grep . " PROMPTS " | sort | cmp - " DIR "/used");
    json_t *measured = json_load_file(OUT ".bench.json", 0, NULL);
    assert_int_equal(json_array_size(json_object_get(measured, "methods")), 4);
    assert_int_equal(json_integer_value(json_object_get(measured, "runs")), 3);
    json_decref(measured);
    train_rig_shell("cp " OUT " " DIR "/whole.gguf");
}

/* What an interruption leaves: a drafter without its measurement, or some of the answers. A measurement that other
 * programs disturbed is repeated: the test writes this verdict itself, because it depends on the machine. */
static void it_continues_where_it_stopped(void **state) {
    static char said[20000];
    (void)state;
    train_rig_shell("sed -i 's/\"disturbed\"/\"slower\"/g' " OUT ".bench.json");
    cli_expect(AUTO PROMPTS " 2>&1", 2, "out.gguf: is a finished drafter: pass --force to replace it");
    train_rig_shell("sed -i 's/\"verdict\":[^,}]*/\"verdict\": \"disturbed\"/g' " OUT ".bench.json");
    train_rig_shell("grep -q disturbed " OUT ".bench.json");
    cli_expect(AUTO PROMPTS, 0, "\n[4/4] ");
    train_rig_shell("rm " OUT ".bench.json");
    assert_int_equal(cli_run(AUTO PROMPTS, said, sizeof said), 0);
    assert_true(strstr(said, "[4/4]") && !strstr(said, "[2/4]"));
    assert_true(strstr(said, "The drafter pays: ") || strstr(said, "The drafter does not pay: ") ||
                strstr(said, "Other programs disturbed the measurement"));
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
    train_rig_shell("rm " OUT " && sed -i '10,$d' " OUT ".answers.jsonl");
    cli_expect(AUTO PROMPTS, 0, "27 of 27 records are answered");
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf");
}

static void ctrl_c_leaves_a_checkpoint(void **state) {
    (void)state;
    train_rig_shell("rm " OUT "*");
    train_rig_interrupt(train_rig_start(DIR, AUTO PROMPTS), OUT ".log.jsonl");
    train_rig_shell("grep -q 'the same command continues from " OUT ".checkpoint' " DIR "/stderr");
    cli_expect(AUTO PROMPTS, 0, "of earlier runs");
    train_rig_shell("cmp " OUT " " DIR "/whole.gguf && rm " OUT);
}

static void it_refuses_with_a_reason(void **state) {
    (void)state;
    cli_expect(AUTO PROMPTS " --temp 0.5 2>&1", 2, "these answers are of another target, or were generated with");
    cli_expect(AUTO DIR "/few.txt 2>&1", 1, "few.txt: has 2 different prompts, too few to learn from");
    cli_expect(AUTO DIR "/folder 2>&1", 1, "folder: has 3 different prompts");
    cli_expect(AUTO DIR "/text.jsonl 2>&1", 1, "text.jsonl: line 2 has no prompt");
    cli_expect(AUTO DIR "/none.txt 2>&1", 1, "none.txt: cannot be opened");
    cli_expect(AUTO PROMPTS " --drafter target 2>&1", 2, "'--drafter=target' must be a method that makes a drafter");
    cli_expect(AUTO " 2>&1", 2, "missing prompts: pass PROMPTS");
    assert_false(train_rig_exists(OUT));
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_goes_from_prompts_to_a_measured_drafter),
        cmocka_unit_test(it_continues_where_it_stopped),
        cmocka_unit_test(ctrl_c_leaves_a_checkpoint),
        cmocka_unit_test(it_refuses_with_a_reason),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
