/* test_ranks_text.c - a model that is divided among processes: texts and hashes of logits are those of one process with
 * every drafter, and a process that dies or is stopped ends the request within two seconds, with its rank. */
#include "engine_rig.h"

#include "all_drafters.h"
#include "base/system.h"
#include "engine/engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_PROMPT = 40, N_TOKENS = 12, N_DRAWN = 6 };

static fr_model *open_divided(const char *path, int n_ranks) {
    fr_error err;
    fr_model *m = NULL;
    const fr_model_options options = {.struct_size = sizeof options, .n_threads = 1, .n_ranks = n_ranks};
    if (fr_model_open(&m, path, &options, &err)) fail_msg("%s", err.message);
    return m;
}

static fr_engine *open_engine(const fr_model *m) {
    return rig_open_engine(m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                   .n_ctx = 128,
                                                   .n_threads = 1,
                                                   .prefill_chunk = 16});
}

static fr_request_options request_of(int32_t prompt[N_PROMPT], const char *const *draft) {
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = ALL_DRAFTERS_TOKEN(i);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .tree_budget = 6,
                            .ignore_eos = 1};
    if (*draft) o.drafts = draft, o.n_drafts = 1;
    return o;
}

static void check_target(const char *path, const char *const *drafts) {
    static Stream plain, got;
    const char *none = NULL;
    int32_t prompt[N_PROMPT];
    fr_model *whole = open_divided(path, 1), *divided = open_divided(path, 3);
    fr_engine *e = open_engine(whole);
    fr_request_options o = request_of(prompt, &none);
    int64_t drafted = 0;
    rig_run_request(e, &o, &plain);
    fr_engine_close(e);
    fr_model_close(whole);
    for (const char *const *draft = drafts; *draft; draft++) {
        e = open_engine(divided);
        o = request_of(prompt, draft);
        rig_run_request(e, &o, &got);
        assert_string_equal(got.draft_error, "");
        rig_assert_same(&plain, &got, *draft);
        drafted += got.stats.drafted;
        fr_engine_close(e);
    }
    assert_true(drafted > 0);
    fr_error err;
    void *data = NULL;
    size_t n_bytes;
    e = open_engine(divided);
    assert_int_equal(fr_engine_save_prefix(e, plain.tokens, plain.n, &data, &n_bytes, &err), FR_ERR_UNSUPPORTED);
    assert_int_equal(fr_engine_restore_prefix(e, "x", 1, NULL, NULL, &err), FR_ERR_UNSUPPORTED);
    fr_engine_close(e);
    fr_model_close(divided);
}

static void processes_change_no_text(void **state) {
    (void)state;
    const char *const mtp[] = {ALL_DRAFTERS_MTP, NULL};
    all_drafters_write_files();
    check_target(ALL_DRAFTERS_TARGET, all_drafters);
    check_target(ALL_DRAFTERS_NEXTN, mtp);
}

/* A drafter, and how many of its models, or layers that are opened by themselves, can be divided. */
typedef struct DividedDraft {
    const char *target, *draft;
    int n_divided;
} DividedDraft;

static const DividedDraft divided_drafts[] = {
    {ALL_DRAFTERS_TARGET, "sps:length=3,model=" ALL_DRAFTERS_MODEL, 1},
    {ALL_DRAFTERS_TARGET, "rsd-s:width=3,model=" ALL_DRAFTERS_MODEL, 1},
    {ALL_DRAFTERS_TARGET, "specinfer:length=2,models=" ALL_DRAFTERS_MODEL "+" ALL_DRAFTERS_MODEL, 2},
    {ALL_DRAFTERS_TARGET, "sps:length=3,model=" ALL_DRAFTERS_OTHER, 1},
    {ALL_DRAFTERS_TARGET, "eagle:file=build/all-eagle.gguf", 1},
    {ALL_DRAFTERS_TARGET, "eagle:file=build/all-eagle-tokens.gguf", 0}, /* it has a part of the LM head */
    {ALL_DRAFTERS_TARGET, "lyanna:file=build/all-lyanna.gguf", 1},
    {ALL_DRAFTERS_TARGET, "eagle3:file=build/all-eagle3.gguf", 1},
    {ALL_DRAFTERS_TARGET, "eagle3:file=build/all-eagle3-blocks.gguf", 1},
    {ALL_DRAFTERS_TARGET, "dflash:file=build/all-dflash.gguf", 1},
    {ALL_DRAFTERS_TARGET, "dflash:file=build/all-dflash-2.gguf", 0}, /* it has convolutions */
    {ALL_DRAFTERS_NEXTN, ALL_DRAFTERS_MTP, 2},
};
enum { N_DIVIDED = sizeof divided_drafts / sizeof *divided_drafts };

/* Runs a greedy text with a drafter that is divided wherever it can be. */
static void run_divided(fr_model *m, const DividedDraft *d, Stream *out) {
    int32_t prompt[N_PROMPT];
    fr_engine *e = open_engine(m);
    fr_request_options o = request_of(prompt, &d->draft);
    fr_engine_stats stats = {.struct_size = sizeof stats};
    rig_run_request(e, &o, out);
    fr_engine_get_stats(e, &stats);
    if (stats.n_divided_drafts != (m->ranks ? d->n_divided : 0))
        fail_msg("%s: %d divided models", d->draft, stats.n_divided_drafts);
    fr_engine_close(e);
}

/* Trees and texts do not depend on where a drafter runs, nor on the number of processes. */
static void a_divided_drafter_changes_no_tree(void **state) {
    (void)state;
    enum { MOST_RANKS = 4 };
    static Stream plain[N_DIVIDED], got;
    all_drafters_write_files();
    for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
        fr_model *targets[] = {open_divided(ALL_DRAFTERS_TARGET, n_ranks), open_divided(ALL_DRAFTERS_NEXTN, n_ranks)};
        for (int i = 0; i < N_DIVIDED; i++) {
            const DividedDraft *d = &divided_drafts[i];
            fr_model *m = targets[strcmp(d->target, ALL_DRAFTERS_NEXTN) == 0];
            if (m->ranks) m->ranks->draft_place = DRAFTS_DIVIDED;
            run_divided(m, d, n_ranks == 1 ? &plain[i] : &got);
            if (n_ranks == 1) continue;
            assert_string_equal(got.draft_error, "");
            rig_assert_same(&plain[i], &got, d->draft);
            if (got.stats.drafted != plain[i].stats.drafted || got.stats.accepted != plain[i].stats.accepted)
                fail_msg("%s: %lld of %lld drafted tokens are accepted; %lld of %lld in one process", d->draft,
                         (long long)got.stats.accepted, (long long)got.stats.drafted,
                         (long long)plain[i].stats.accepted, (long long)plain[i].stats.drafted);
        }
        fr_model_close(targets[0]);
        fr_model_close(targets[1]);
    }
}

/* Returns the bytes that processes have exchanged for a greedy text, which must be that of one process. */
static int64_t exchanged_by(const fr_model *divided, const Stream *plain, const char *const *draft, bool no_hash) {
    static Stream got;
    int32_t prompt[N_PROMPT];
    fr_engine *e = open_engine(divided);
    fr_request_options o = request_of(prompt, draft);
    fr_engine_stats before = {.struct_size = sizeof before}, after = before;
    o.no_logits_hash = no_hash;
    fr_engine_get_stats(e, &before);
    rig_run_request(e, &o, &got);
    fr_engine_get_stats(e, &after);
    fr_engine_close(e);
    assert_int_equal(got.n, plain->n);
    assert_memory_equal(got.tokens, plain->tokens, (size_t)got.n * sizeof *got.tokens);
    assert_true((got.stats.logits_hash == 0) == no_hash);
    return after.exchanged_bytes - before.exchanged_bytes;
}

/* A draft that reads logits gets whole rows. */
static void without_a_hash_only_best_tokens_are_exchanged(void **state) {
    (void)state;
    static Stream plain;
    const char *const drafts[] = {"none", "ngram-trie", "recycling"}, *none = NULL;
    int32_t prompt[N_PROMPT];
    all_drafters_write_files();
    fr_model *whole = open_divided(ALL_DRAFTERS_TARGET, 1), *divided = open_divided(ALL_DRAFTERS_TARGET, 2);
    fr_engine *e = open_engine(whole);
    fr_request_options o = request_of(prompt, &none);
    rig_run_request(e, &o, &plain);
    fr_engine_close(e);
    for (int i = 0; i < 3; i++) {
        int64_t all = exchanged_by(divided, &plain, &drafts[i], false),
                best = exchanged_by(divided, &plain, &drafts[i], true);
        print_message("%s: %lld bytes, %lld without a hash\n", drafts[i], (long long)all, (long long)best);
        if (i == 2) assert_int_equal(all, best);
        else assert_true(all - best >= N_TOKENS / 2 * ALL_DRAFTERS_VOCAB * 4);
    }
    fr_model_close(whole);
    fr_model_close(divided);
}

/* An automatic budget plans with the time of whole rows of logits if, and only if, they are exchanged. */
static void whole_rows_are_planned_with_where_they_are_wanted(void **state) {
    (void)state;
    static Stream got;
    const char *const draft = "ngram-trie";
    int32_t prompt[N_PROMPT];
    fr_error err;
    all_drafters_write_files();
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        fr_model *m = open_divided(ALL_DRAFTERS_TARGET, n_ranks);
        fr_engine *e = open_engine(m);
        if (fr_engine_measure_costs(e, &err)) fail_msg("%s", err.message);
        for (int no_hash = 0; no_hash < 2; no_hash++) {
            fr_request_options o = request_of(prompt, &draft);
            o.tree_budget = FR_TREE_BUDGET_AUTO, o.no_logits_hash = no_hash;
            rig_run_request(e, &o, &got);
            assert_true((e->policy.cost.logits_s > 0) == (n_ranks == 2 && !no_hash));
        }
        fr_engine_close(e);
        fr_model_close(m);
    }
}

/* Runs a request with a temperature and no hash, and returns the bytes that its processes have exchanged. The
 * prediction is what one process has generated so far. */
static int64_t exchanged_for(const fr_model *m, const fr_sampling *sampling, const char *const *draft,
                             const Stream *plain, Stream *got) {
    int32_t prompt[N_PROMPT];
    fr_engine *e = open_engine(m);
    fr_request_options o = request_of(prompt, draft);
    fr_engine_stats before = {.struct_size = sizeof before}, after = before;
    o.no_logits_hash = 1, o.sampling = *sampling, o.max_tokens = N_DRAWN;
    o.prediction = plain->tokens, o.n_prediction = plain->n;
    fr_engine_get_stats(e, &before);
    rig_run_request(e, &o, got);
    fr_engine_get_stats(e, &after);
    fr_engine_close(e);
    return after.exchanged_bytes - before.exchanged_bytes;
}

/* With a temperature, each process draws among its tokens, and the text is that of one process. */
static void with_a_temperature_only_drawn_tokens_are_exchanged(void **state) {
    (void)state;
    enum { MOST_RANKS = 4 };
    static Stream plain, got;
    const char *const drafts[] = {"none", "prediction", "recycling"};
    fr_sampling drawn = fr_sampling_default(), filtered;
    drawn.temperature = 0.6f, drawn.seed = 5;
    filtered = drawn, filtered.top_p = 0.999999f; /* it needs whole rows of logits, and removes next to nothing */
    all_drafters_write_files();
    for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
        fr_model *m = open_divided(ALL_DRAFTERS_TARGET, n_ranks);
        for (int i = 0; i < (n_ranks == 2 ? 3 : 2); i++) {
            int64_t best = exchanged_for(m, &drawn, &drafts[i], &plain, &got), all;
            if (plain.n == 0) plain = got;
            rig_assert_same(&plain, &got, drafts[i]);
            if (i == 1) assert_true(got.stats.n_steps <= 2);
            if (n_ranks != 2) continue;
            all = exchanged_for(m, &filtered, &drafts[i], &plain, &got);
            rig_assert_same(&plain, &got, "top-p");
            if (i == 2) assert_int_equal(all, best); /* this draft reads logits */
            else assert_true(all - best >= N_DRAWN / 2 * ALL_DRAFTERS_VOCAB * 4);
        }
        fr_model_close(m);
    }
}

/* Returns the processes that this one has started, the latest last. */
static int find_children(pid_t out[8]) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    char *at = fgets(line, sizeof line, f), *end;
    int n = 0;
    fclose(f);
    for (long pid; at && n < 8 && (pid = strtol(at, &end, 10)) > 0; at = end) out[n++] = (pid_t)pid;
    return n;
}

/* Runs until the engine fails, and checks how. */
static void expect_end(fr_engine *e, const char *reason) {
    int32_t prompt[N_PROMPT];
    const char *none = NULL;
    fr_request *request;
    fr_error err = {.message = ""};
    fr_request_options o = request_of(prompt, &none);
    double start_s = clock_s();
    int left = fr_request_open(&request, e, &o, &err);
    while (left >= 0 && clock_s() < start_s + 10) left = fr_engine_step(e, &err);
    assert_true(left < 0);
    assert_string_equal(err.message, reason);
    if (clock_s() - start_s > 2) fail_msg("the group ended after %.1f s", clock_s() - start_s);
}

static void a_process_that_fails_ends_the_group(void **state) {
    (void)state;
    pid_t before[8], after[8];
    int n = find_children(before);
    if (access("/proc/self/task", F_OK) != 0) skip();
    fr_model *model = open_divided(ALL_DRAFTERS_TARGET, 3), *other = open_divided(ALL_DRAFTERS_TARGET, 2);
    if (find_children(after) != n + 3) skip(); /* the kernel does not list children */
    fr_engine *e = open_engine(model), *of_other = open_engine(other);
    kill(after[n + 1], SIGKILL);
    kill(after[n + 2], SIGSTOP);
    expect_end(e, "rank 2 of 3 has died (signal 9); the other ranks have ended, too");
    expect_end(of_other, "rank 1 of 2 has died or does not respond; the other ranks have ended, too");
    fr_engine_close(e);
    fr_engine_close(of_other);
    fr_model_close(model);
    fr_model_close(other);
    assert_int_equal(find_children(after), n);
}

/* The process dies when the first token has come, and what runs next is a forward of the drafter. */
static void check_death(const char *target, const char *draft) {
    pid_t before[8], after[8];
    int32_t prompt[N_PROMPT];
    int64_t n_tokens = 0;
    fr_error err = {.message = ""};
    fr_request *request;
    int n = find_children(before), left = 1;
    fr_model *m = open_divided(target, 2);
    if (find_children(after) != n + 1) skip();
    m->ranks->draft_place = DRAFTS_DIVIDED;
    fr_engine *e = open_engine(m);
    fr_request_options o = request_of(prompt, &draft);
    if (fr_engine_open_draft(e, draft, &err) || fr_request_open(&request, e, &o, &err)) fail_msg("%s", err.message);
    while (left > 0 && n_tokens == 0) {
        left = fr_engine_step(e, &err);
        fr_request_tokens(request, &n_tokens);
    }
    assert_int_equal(ranks_n_drafts(m->ranks), 1);
    kill(after[n], SIGKILL);
    double start_s = clock_s();
    while (left > 0 && clock_s() < start_s + 10) left = fr_engine_step(e, &err);
    assert_true(left < 0);
    assert_string_equal(err.message, "rank 1 of 2 has died (signal 9); the other ranks have ended, too");
    if (clock_s() - start_s > 2) fail_msg("the group ended after %.1f s", clock_s() - start_s);
    fr_engine_close(e);
    fr_model_close(m);
}

static void a_process_that_fails_while_it_drafts_ends_the_group(void **state) {
    (void)state;
    all_drafters_write_files();
    check_death(ALL_DRAFTERS_TARGET, "sps:length=3,model=" ALL_DRAFTERS_MODEL);
    check_death(ALL_DRAFTERS_TARGET, "lyanna:file=build/all-lyanna.gguf");
    check_death(ALL_DRAFTERS_GEMMA, ALL_DRAFTERS_ASSISTANT);
}

/* Files of drafters are refused as in one process. */
static void wrong_drafters_are_refused(void **state) {
    (void)state;
    static const char *const drafts[] = {"sps:model=build/no-such-file.gguf", "lyanna:file=build/all-eagle.gguf",
                                         "sps:model=tests/lossless/test_ranks_text.c"};
    fr_error one, several;
    fr_model *whole = open_divided(ALL_DRAFTERS_TARGET, 1), *divided = open_divided(ALL_DRAFTERS_TARGET, 2);
    fr_engine *e = open_engine(whole), *of_divided = open_engine(divided);
    divided->ranks->draft_place = DRAFTS_DIVIDED;
    for (int i = 0; i < 3; i++) {
        int status = fr_engine_open_draft(e, drafts[i], &one);
        assert_true(status < 0);
        assert_int_equal(fr_engine_open_draft(of_divided, drafts[i], &several), status);
        assert_string_equal(one.message, several.message);
    }
    fr_engine_close(e);
    fr_engine_close(of_divided);
    fr_model_close(whole);
    fr_model_close(divided);
}

static void a_wrong_file_is_refused_once(void **state) {
    (void)state;
    fr_error err;
    fr_model *m = NULL;
    const fr_model_options options = {.struct_size = sizeof options, .n_ranks = 2};
    assert_int_equal(fr_model_open(&m, "build/no-such-file.gguf", &options, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "build/no-such-file.gguf"));
    const fr_model_options reference = {.struct_size = sizeof reference, .backend = "reference", .n_ranks = 2};
    assert_int_equal(fr_model_open(&m, ALL_DRAFTERS_TARGET, &reference, &err), FR_ERR_UNSUPPORTED);
    const fr_model_options many = {.struct_size = sizeof many, .n_ranks = 65};
    assert_int_equal(fr_model_open(&m, ALL_DRAFTERS_TARGET, &many, &err), FR_ERR_ARGUMENT);
    assert_string_equal(err.message, "n_ranks is 65; it must be 0 to 64, FR_RANKS_NUMA or FR_RANKS_MPI");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_change_no_text),
        cmocka_unit_test(a_divided_drafter_changes_no_tree),
        cmocka_unit_test(without_a_hash_only_best_tokens_are_exchanged),
        cmocka_unit_test(whole_rows_are_planned_with_where_they_are_wanted),
        cmocka_unit_test(with_a_temperature_only_drawn_tokens_are_exchanged),
        cmocka_unit_test(a_process_that_fails_ends_the_group),
        cmocka_unit_test(a_process_that_fails_while_it_drafts_ends_the_group),
        cmocka_unit_test(wrong_drafters_are_refused),
        cmocka_unit_test(a_wrong_file_is_refused_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
