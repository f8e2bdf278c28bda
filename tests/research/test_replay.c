/* test_replay.c - unit tests of research/replay.c and of `forerun replay`: the loop with random and malformed drafters,
 * the program's results on good and bad traces, and the reference figures on recorded answers (with ../shared). */
#include "testing.h"

#include "devil.h"
#include "research/replay.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { V = 50, N_CONTEXT = 6, N_OUTPUT = 21 };

/* ---- the loop ----------------------------------------------------------------------------------- */

static int32_t stream[N_CONTEXT + N_OUTPUT];

static ReplayInput make_input(int32_t budget) {
    for (int32_t i = 0; i < N_CONTEXT + N_OUTPUT; i++) stream[i] = i * 13 % V;
    return (ReplayInput){stream, N_CONTEXT, stream + N_CONTEXT, N_OUTPUT, budget, V, 0};
}

static ReplayDraft draft_by(Drafter *drafter) {
    ReplayDraft d = {.drafter = drafter};
    calibration_init(&d.shared, NULL);
    return d;
}

static void devils_need_as_many_steps_as_their_drafts_allow(void **state) {
    (void)state;
    const struct {
        DevilKind kind;
        int32_t budget;
        int64_t n_steps, n_drafted; /* -1: not checked */
    } cases[] = {
        {DEVIL_RIGHT, 0, 21, 0},   {DEVIL_RIGHT, 1, 11, 11}, {DEVIL_RIGHT, 3, 6, 16},    {DEVIL_RIGHT, 20, 1, 20},
        {DEVIL_RIGHT, 200, 1, 21}, {DEVIL_WRONG, 9, 21, -1}, {DEVIL_RANDOM, 40, -1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ReplayInput in = make_input(cases[i].budget);
        Devil d = devil_make(cases[i].kind, DEVIL_FAULT_NONE, V, 3);
        devil_oracle(&d, 0, stream, N_CONTEXT + N_OUTPUT);
        ReplayStats s;
        double step_s[N_OUTPUT];
        ReplayDraft draft = draft_by(&d.base);
        assert_int_equal(replay_run(&draft, 1, &in, &s, step_s, NULL), FR_OK);
        assert_int_equal(s.n_tokens, N_OUTPUT);
        if (cases[i].n_steps >= 0) assert_int_equal(s.n_steps, cases[i].n_steps);
        if (cases[i].n_drafted >= 0) assert_int_equal(s.n_drafted, cases[i].n_drafted);
        assert_true(s.n_steps >= 1 && s.n_steps <= N_OUTPUT && s.propose_s >= 0);
        assert_int_equal(d.n_seen[0], 0); /* end was called */
        int64_t n_judged = 0, n_right = 0;
        for (int b = 0; b < REPLAY_N_BINS; b++) n_judged += s.bins[b].n, n_right += s.bins[b].n_right;
        assert_int_equal(n_judged, s.n_drafted);
        if (cases[i].kind == DEVIL_RIGHT) assert_int_equal(n_right, s.n_drafted);
        if (cases[i].kind == DEVIL_WRONG) assert_int_equal(n_right, 0);
    }
}

static void without_a_drafter_every_token_is_a_step(void **state) {
    (void)state;
    ReplayInput in = make_input(32);
    ReplayStats s;
    assert_int_equal(replay_run(NULL, 0, &in, &s, NULL, NULL), FR_OK);
    assert_int_equal(s.n_steps, N_OUTPUT);
    assert_int_equal(s.n_drafted, 0);
    in.n_output = 0;
    assert_int_equal(replay_run(NULL, 0, &in, &s, NULL, NULL), FR_OK);
    assert_int_equal(s.n_steps, 0);
}

static void the_copying_oracle_takes_the_fewest_steps(void **state) {
    (void)state;
    const int32_t context[] = {1, 2, 3, 4, 9, 2, 3, 5, 6, 7}, output[] = {2, 3, 5, 6, 7, 8, 3, 4, 9, 9, 1};
    ReplayInput in = {context, 10, output, 11, 0, V, 12};
    assert_int_equal(replay_copy_steps(&in), 3); /* 2 3 5 6 7 | 8, then 3 4 9 | 9, then 1 */
    in.bound = 2;
    assert_int_equal(replay_copy_steps(&in), 4); /* 2 3 | 5, then 6 7 | 8, then 3 4 | 9, then 9 | 1 */
    in.n_output = 0;
    assert_int_equal(replay_copy_steps(&in), 0);
}

static void malformed_trees_end_the_replay(void **state) {
    (void)state;
    for (int fault = 1; fault < DEVIL_N_FAULTS; fault++) {
        ReplayInput in = make_input(8);
        Devil d = devil_make(DEVIL_MALFORMED, (DevilFault)fault, V, 3);
        ReplayStats s;
        ReplayDraft draft = draft_by(&d.base);
        assert_int_equal(replay_run(&draft, 1, &in, &s, NULL, NULL), FR_ERR_INTERNAL);
    }
}

/* ---- the program -------------------------------------------------------------------------------- */

/* Returns the forerun binary of this build, in the folder above this test's. */
static const char *program(void) {
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(n > 0);
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    strcpy(strrchr(path, '/'), "/forerun");
    return path;
}

/* Returns number of tokens of a text under the shipped model, without BOS and EOS. */
static int64_t n_tokens_of(const char *text) {
    Gguf *g;
    Tokenizer *t;
    int32_t *tokens;
    int64_t n;
    assert_int_equal(gguf_open(&g, "models/target.gguf", NULL), FR_OK);
    assert_int_equal(tokenizer_open(&t, g, NULL), FR_OK);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, &tokens, &n, NULL), FR_OK);
    assert_true(tokenizer_bos(t) >= 0 && tokenizer_eos(t) >= 0); /* the tests below rely on both */
    free(tokens);
    tokenizer_close(t);
    gguf_close(g);
    return n;
}

/* Runs `forerun replay ARGUMENTS` with `trace` on standard input; the output of both streams in text. */
static int run(const char *arguments, const char *trace, char *text, size_t capacity) {
    char name[] = "/tmp/forerun-test-XXXXXX", command[8192];
    int fd = mkstemp(name);
    assert_true(fd >= 0 && write(fd, trace, strlen(trace)) == (ssize_t)strlen(trace));
    close(fd);
    snprintf(command, sizeof command, "'%s' replay %s <%s 2>&1", program(), arguments, name);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n = fread(text, 1, capacity - 1, out);
    text[n] = '\0';
    while (fgetc(out) != EOF) continue;
    int status = pclose(out);
    unlink(name);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define VOCAB "--vocab models/target.gguf "
#define GOOD \
    "{\"category\": \"a\", \"prompt\": \"One two three. One two\", \"response\": \" three. One two " \
    "three.\"}\n"

static void a_good_trace_is_counted(void **state) {
    (void)state;
    char text[8192];
    assert_int_equal(run(VOCAB "- --json --limit 2", GOOD "\n" GOOD "broken, but past the limit", text, sizeof text),
                     0);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    const char *names[] = {"all", "a"};
    for (int i = 0; i < 2; i++) {
        json_t *c = json_object_get(root, names[i]);
        double tokens = json_number_value(json_object_get(c, "tokens")),
               steps = json_number_value(json_object_get(c, "steps")),
               length = json_number_value(json_object_get(c, "acceptance_length"));
        assert_int_equal(json_integer_value(json_object_get(c, "records")), 2);
        const json_t *lengths = json_object_get(c, "steps_by_length");
        double sum = 0, n_steps = 0;
        assert_int_equal(json_array_size(lengths), 16);
        for (size_t k = 0; k < 16; k++) {
            double count = json_number_value(json_array_get(lengths, k));
            n_steps += count, sum += count * (double)(k + 1);
        }
        assert_true(n_steps == steps && sum == tokens);                            /* the answers are short */
        assert_int_equal(tokens, 2 * (n_tokens_of(" three. One two three.") + 1)); /* EOS is drafted too */
        assert_true(steps >= 2 && tokens > 2 * steps && fabs(length - tokens / steps) < 1e-6);
        assert_true(json_is_real(json_object_get(c, "drafted_per_step")));
        assert_true(json_is_real(json_object_get(c, "propose_us")));
    }
    json_decref(root);
    assert_int_equal(run(VOCAB "- --draft none", GOOD, text, sizeof text), 0);
    assert_non_null(strstr(text, "none, 32 nodes, 1 answer\n"));
    assert_non_null(strstr(text, "1.000"));
    static const char conversation[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"One two three.\"}, {\"role\": \"assistant\", \"content\": "
        "\"One two three.\"}, {\"role\": \"user\", \"content\": \"Again?\"}, {\"role\": \"assistant\", \"content\": "
        "\"Yes.\"}]}\n";
    assert_int_equal(run(VOCAB "- --draft none", conversation, text, sizeof text), 0);
    assert_non_null(strstr(text, "none, 32 nodes, 2 answers\n"));
    assert_int_equal(run(VOCAB "- --draft none --chat", GOOD, text, sizeof text), 0);
    assert_non_null(strstr(text, "1 answer\n"));
    const char *from_nothing = "{\"prompt\": \"\", \"response\": \"One\"}"; /* BOS is enough context */
    assert_int_equal(run(VOCAB "-", from_nothing, text, sizeof text), 0);
}

static void bad_calls_and_traces_are_refused(void **state) {
    (void)state;
    const struct {
        const char *arguments, *trace;
        int status;
        const char *message;
    } bad[] = {
        {VOCAB "-", GOOD "\n{\"prompt\": \"x\"}\n", 1, "line 3 must have the strings \"prompt\" and \"response\""},
        {VOCAB "-", GOOD "{\"prompt\": 1, \"response\": \"y\"}", 1, "line 2 must have the strings"},
        {VOCAB "-", "{\"prompt\": \"x\", \"response\": \"y\", \"category\": 5}", 1, "line 1 has a \"category\""},
        {VOCAB "-", "{\"prompt\": \"x\", \"response\": \"y\", \"category\": \"all\"}", 1, "line 1 has the category"},
        {VOCAB "-", "[1]\n", 1, "line 1 must have the strings"},
        {VOCAB "-", GOOD GOOD "nonsense\n", 1, "line 3 is not a JSON object"},
        {VOCAB "-", "\n\n", 1, "holds no records"},
        {VOCAB "/nowhere.jsonl", "", 1, "/nowhere.jsonl: cannot be opened"},
        {"--vocab /nowhere.gguf -", GOOD, 1, "/nowhere.gguf"},
        {"-", GOOD, 2, "missing vocabulary: pass"},
        {VOCAB, GOOD, 2, "missing file of recorded answers: pass TRACE.jsonl"},
        {VOCAB "a b", GOOD, 2, "unexpected argument 'b'"},
        {VOCAB "- -d pld -d pld -d pld -d pld -d pld -d pld -d pld -d pld -d pld", GOOD, 2,
         "at most 8 drafters can be united"},
        {VOCAB "- --draft trie", GOOD, 2, "unknown drafter 'trie'; known drafters: none, auto, "},
        {VOCAB "- --tree-budget 512", GOOD, 2, "'--tree-budget=512' must be an integer from 0 to 511"},
        {VOCAB "- --limit x", GOOD, 2, "'--limit=x' must be an integer of at least 0"},
        {VOCAB "- --nonsense", GOOD, 2, "nonsense"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[8192];
        int status = run(bad[i].arguments, bad[i].trace, text, sizeof text);
        if (status != bad[i].status || !strstr(text, bad[i].message))
            fail_msg("'%s': status %d, want %d: %s", bad[i].arguments, status, bad[i].status, text);
    }
}

/* ---- the figures -------------------------------------------------------------------------------- */

static json_t *replay_shared(const char *arguments) {
    static char text[65536];
    char all[1024];
    snprintf(all, sizeof all,
             "--vocab ../shared/data/tokenizers/ggml-vocab-llama-spm.gguf --json "
             "../shared/data/traces/vicuna-7b-v1.3.spec-bench.jsonl %s",
             arguments);
    if (run(all, "", text, sizeof text) != 0) fail_msg("%s", text);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    return root;
}

static double figure(const json_t *root, const char *category, const char *key) {
    return json_number_value(json_object_get(json_object_get(root, category), key));
}

static const char *const categories[] = {"summarization", "rag", "mt_bench", "math_reasoning",
                                         "translation",   "qa",  "all"};

static void no_drafter_passes_the_copying_oracle(void **state) {
    (void)state;
    need_shared();
    json_t *root = replay_shared("--tree-budget 64 --bound 12 --draft ngram-trie:rule=paper");
    for (int i = 0; i < 7; i++) {
        double bound = figure(root, categories[i], "copy_bound"),
               got = figure(root, categories[i], "acceptance_length");
        print_message("%-16s accepted %.2f, the bound is %.2f\n", categories[i], got, bound);
        assert_true(got < bound);
    }
    json_decref(root);
}

static void the_papers_rule_gives_the_reference_figures(void **state) {
    (void)state;
    need_shared();
    const struct {
        const char *arguments;
        double length[7];
    } runs[] = {
        {"--tree-budget 64 --draft ngram-trie:rule=paper", {3.33, 1.74, 1.39, 1.48, 1.12, 1.07, 1.51}},
        {"--tree-budget 64 --draft ngram-trie:rule=paper,n=13,prefix=3,live=1",
         {3.37, 2.15, 1.87, 2.14, 1.12, 1.64, 2.01}},
    };
    for (int r = 0; r < 2; r++) {
        json_t *root = replay_shared(runs[r].arguments);
        for (int i = 0; i < 7; i++) {
            double got = figure(root, categories[i], "acceptance_length"), want = runs[r].length[i];
            if (!(fabs(got - want) <= 0.02 * want))
                fail_msg("live=%d, %s: %.3f, the reference is %.2f", r, categories[i], got, want);
        }
        double drafted = figure(root, "all", "drafted_per_step");
        if (r == 1 && fabs(drafted - 20.8) > 0.02 * 20.8) fail_msg("%.2f nodes per step, published 20.8", drafted);
        json_decref(root);
    }
}

static void our_rule_does_better_with_half_the_nodes(void **state) {
    (void)state;
    need_shared();
    json_t *ours = replay_shared("--tree-budget 32"),
           *paper = replay_shared("--tree-budget 64 --draft ngram-trie:rule=paper,live=1");
    for (int i = 0; i < 7; i++) {
        double a = figure(ours, categories[i], "acceptance_length");
        double b = figure(paper, categories[i], "acceptance_length");
        print_message("%-16s ours, 32 nodes: %.3f   the paper's, 64 nodes: %.3f\n", categories[i], a, b);
        assert_true(a > b);
    }
    assert_true(figure(ours, "all", "acceptance_length") > 2.3);
    json_decref(ours);
    json_decref(paper);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devils_need_as_many_steps_as_their_drafts_allow),
        cmocka_unit_test(without_a_drafter_every_token_is_a_step),
        cmocka_unit_test(the_copying_oracle_takes_the_fewest_steps),
        cmocka_unit_test(malformed_trees_end_the_replay),
        cmocka_unit_test(a_good_trace_is_counted),
        cmocka_unit_test(bad_calls_and_traces_are_refused),
        cmocka_unit_test(the_papers_rule_gives_the_reference_figures),
        cmocka_unit_test(no_drafter_passes_the_copying_oracle),
        cmocka_unit_test(our_rule_does_better_with_half_the_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
