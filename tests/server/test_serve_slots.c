/* test_serve_slots.c - slots that are saved and restored across a restart of the server, with a hybrid model and each
 * kind of drafter that keeps something for its tokens; a folder for the whole prefix cache; and refusals. */
#include "serve_rig.h"

#include "all_drafters.h"
#include "random_model.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAVED "build/slots-saved"
#define KEPT "build/slots-kept"
#define HYBRID_DRAFT "build/slots-draft.gguf"

enum { N_DRAFTS = 4, N_PROMPT = 40 };
static const char *const drafts[N_DRAFTS] = {"eagle", "lyanna", "sps", "suffix"};
static const char *const specs = "--draft eagle:file=build/all-eagle.gguf --draft lyanna:file=build/all-lyanna.gguf "
                                 "--draft sps:length=3,model=" HYBRID_DRAFT " --draft suffix";

static const RandomModel hybrid = {.arch = "qwen35",
                                   .n_layer = 4,
                                   .n_embd = ALL_DRAFTERS_EMBD,
                                   .n_head = 4,
                                   .n_head_kv = 2,
                                   .n_ff = 96,
                                   .n_vocab = ALL_DRAFTERS_VOCAB,
                                   .n_key_heads = 2,
                                   .n_value_heads = 4,
                                   .delta_dim = 16,
                                   .n_conv = 4,
                                   .attention_interval = 2,
                                   .n_rot = 8,
                                   .seed = 31};

static void empty_folder(const char *folder) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s && mkdir %s", folder, folder);
    assert_int_equal(system(command), 0);
}

static int write_files(void **state) {
    (void)state;
    fr_error err;
    RandomModel small = hybrid;
    small.seed = 32;
    if (random_model_write(&hybrid, ALL_DRAFTERS_TARGET, &err) || random_model_write(&small, HYBRID_DRAFT, &err))
        fail_msg("%s", err.message);
    all_drafters_write_for(ALL_DRAFTERS_TARGET);
    empty_folder(SAVED);
    empty_folder(KEPT);
    return 0;
}

static void start(ServeRig *s, const char *more) {
    char args[1000];
    snprintf(args, sizeof args, "-m " ALL_DRAFTERS_TARGET " -t 1 -c 400 --parallel 4 --tree-budget 6 %s %s", specs,
             more);
    serve_start(s, args);
}

/* A conversation of one drafter, in the slot with its number. */
typedef struct Talk {
    int32_t tokens[300];
    int n;
} Talk;

static json_t *complete(const ServeRig *s, const Talk *t, int draft) {
    char body[4096];
    int n = snprintf(body, sizeof body,
                     "{\"id_slot\": %d, \"draft\": \"%s\", \"n_predict\": 24, \"ignore_eos\": true, \"return_tokens\": "
                     "true, \"seed\": 7, \"temperature\": 0.7, \"prompt\": [",
                     draft, drafts[draft]);
    for (int i = 0; i < t->n; i++) n += snprintf(body + n, sizeof body - (size_t)n, "%s%d", i ? "," : "", t->tokens[i]);
    snprintf(body + n, sizeof body - (size_t)n, "]}");
    json_t *answer = serve_json(s, "/completion", 200, body);
    assert_int_equal(json_int_at(answer, "id_slot"), draft);
    return answer;
}

static void first_turn(const ServeRig *s, Talk *t, int draft) {
    for (t->n = 0; t->n < N_PROMPT; t->n++) t->tokens[t->n] = ALL_DRAFTERS_TOKEN(t->n + draft) + draft;
    json_t *answer = complete(s, t, draft);
    const json_t *tokens = json_at(answer, "tokens");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        t->tokens[t->n++] = (int32_t)json_integer_value(json_array_get(tokens, i));
    assert_int_equal(t->n, N_PROMPT + 24);
    json_decref(answer);
    for (int i = 0; i < 5; i++) t->tokens[t->n++] = 200 + i;
}

static void act(const ServeRig *s, int slot, const char *action, const char *file, int status, const char *counted,
                int n) {
    char path[80], body[120];
    snprintf(path, sizeof path, "/slots/%d?action=%s", slot, action);
    snprintf(body, sizeof body, "{\"filename\": \"%s\"}", file);
    json_t *answer = serve_json(s, path, status, body);
    if (counted) {
        assert_int_equal(json_int_at(answer, counted), n);
        assert_int_equal(json_int_at(answer, "id_slot"), slot);
    }
    json_decref(answer);
}

static void expect_same(const json_t *want, const json_t *got, const char *draft) {
    static const char *const fields[] = {"timings.draft_n", "timings.draft_n_accepted", "timings.cache_n",
                                         "timings.n_steps"};
    assert_true(json_equal(json_at(want, "tokens"), json_at(got, "tokens")));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (json_int_at(want, fields[i]) != json_int_at(got, fields[i]))
            fail_msg("%s: %s is %d, and was %d without the restart", draft, fields[i], (int)json_int_at(got, fields[i]),
                     (int)json_int_at(want, fields[i]));
    assert_true(json_int_at(got, "timings.cache_n") >= N_PROMPT);
}

static void a_restart_changes_nothing(void **state) {
    (void)state;
    ServeRig s;
    Talk talks[N_DRAFTS];
    json_t *want[N_DRAFTS];
    start(&s, "--slot-save-path " SAVED " --prefix-folder " KEPT);
    for (int k = 0; k < N_DRAFTS; k++) {
        first_turn(&s, &talks[k], k);
        act(&s, k, "save", drafts[k], 200, "n_saved", N_PROMPT + 24);
    }
    assert_int_equal(serve_stop(&s), 0);
    start(&s, "--prefix-folder " KEPT); /* which has the same four prefixes */
    for (int k = 0; k < N_DRAFTS; k++) want[k] = complete(&s, &talks[k], k);
    assert_int_equal(serve_stop(&s), 0);
    start(&s, "--slot-save-path " SAVED);
    for (int k = 0; k < N_DRAFTS; k++) {
        act(&s, k, "restore", drafts[k], 200, "n_restored", N_PROMPT + 24);
        json_t *got = complete(&s, &talks[k], k);
        expect_same(want[k], got, drafts[k]);
        json_decref(got);
    }
    assert_int_equal(serve_stop(&s), 0);
    start(&s, ""); /* without a restart in between */
    for (int k = 0; k < N_DRAFTS; k++) {
        first_turn(&s, &talks[k], k);
        json_t *got = complete(&s, &talks[k], k);
        expect_same(want[k], got, drafts[k]);
        json_decref(got);
        json_decref(want[k]);
    }
    assert_int_equal(serve_stop(&s), 0);
}

static void refusals(void **state) {
    (void)state;
    static const char *const names[] = {"", "../x", "a/b", ".hidden", "a b", "a\\\\b", "a\\n", "/etc/passwd"};
    ServeRig s;
    start(&s, "--slot-save-path " SAVED);
    Talk t;
    act(&s, 0, "save", "empty", 400, NULL, 0);
    first_turn(&s, &t, 0);
    act(&s, 0, "save", "sound", 200, "n_saved", N_PROMPT + 24);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        act(&s, 0, "save", names[i], 400, NULL, 0);
        act(&s, 0, "restore", names[i], 400, NULL, 0);
    }
    act(&s, 0, "restore", "missing", 400, NULL, 0);
    act(&s, 9, "save", "x", 400, NULL, 0);
    act(&s, 0, "move", "x", 400, NULL, 0);
    json_decref(serve_json(&s, "/slots/0?action=save", 400, "{}"));
    int fd = open(SAVED "/sound", O_WRONLY);
    assert_int_equal(pwrite(fd, "damage", 6, 3000), 6);
    close(fd);
    act(&s, 1, "restore", "sound", 400, NULL, 0);
    act(&s, 0, "save", "sound", 200, "n_saved", N_PROMPT + 24);
    act(&s, 1, "restore", "sound", 200, "n_restored", N_PROMPT + 24);
    json_t *erased = serve_json(&s, "/slots/0?action=erase", 200, "");
    assert_int_equal(json_int_at(erased, "n_erased"), N_PROMPT + 24);
    json_decref(erased);
    act(&s, 0, "save", "gone", 400, NULL, 0);
    assert_int_equal(serve_stop(&s), 0);
    start(&s, "");
    act(&s, 0, "save", "x", 501, NULL, 0);
    assert_int_equal(serve_stop(&s), 0);
}

static int remove_files(void **state) {
    (void)state;
    unlink(HYBRID_DRAFT);
    return system("rm -rf " SAVED " " KEPT);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_changes_nothing),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, write_files, remove_files);
}
