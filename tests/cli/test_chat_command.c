/* test_chat_command.c - `forerun chat` from a pipe: answers, slash commands, files, the tokens that are computed,
 * losslessness. */
#include "cli_rig.h"
#include "gguf/gguf_write.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TARGET "-m models/target.gguf "
#define DIR "build/test-chat"

static char out[1 << 17], said[1 << 17]; /* standard output and standard error */

static void read_file(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    text[fread(text, 1, size - 1, f)] = '\0';
    fclose(f);
}

static int begin(void **state) {
    (void)state;
    return system("rm -rf " DIR " && mkdir -p " DIR);
}

/* Runs "forerun ARGS" on a script. Returns its exit status. */
static int run(const char *args, const char *script) {
    char command[1000];
    static char none[16];
    FILE *f = fopen(DIR "/script", "w");
    assert_non_null(f);
    fputs(script, f);
    fclose(f);
    snprintf(command, sizeof command, "%s < " DIR "/script > " DIR "/out 2> " DIR "/said", args);
    int status = cli_run(command, none, sizeof none);
    read_file(DIR "/out", out, sizeof out);
    read_file(DIR "/said", said, sizeof said);
    return status;
}

/* Greedy unless the arguments set a temperature, because comparisons must not depend on a random seed. */
static void chat(const char *args, const char *script) {
    char command[500];
    snprintf(command, sizeof command, "chat " TARGET "%s%s", strstr(args, "--temp") ? "" : "--temp 0 ", args);
    int status = run(command, script), wanted = 0;
    for (const char *at = said; (at = strstr(at, "forerun: ")); at++)
        if (strncmp(at, "forerun: warning", 16) != 0 && strncmp(at, "forerun: the answer ends", 24) != 0) wanted = 1;
    if (status != wanted) fail_msg("chat %s: status %d: %s", args, status, said);
}

static void expect_said(const char *fragment) {
    if (!strstr(said, fragment)) fail_msg("want '%s', got: %s", fragment, said);
}

/* ---- answers --------------------------------------------------------------------------------------------- */

static void only_answers_go_to_standard_output(void **state) {
    (void)state;
    static char first[5000];
    chat("-n 20", "Who was the king?\n");
    assert_string_equal(said, "");
    assert_true(strlen(out) > 5 && out[0] != ' ' && out[strlen(out) - 1] == '\n' && !strchr(out, '\033'));
    snprintf(first, sizeof first, "%.4000s", out);
    chat("-n 20", "/help\n\n/stats\nWho was the king?\n/drafts\n/nonsense\n");
    assert_string_equal(out, first);
    expect_said("No answer has been generated yet.");
    expect_said("  /regenerate ");
    expect_said("forerun: unknown command '/nonsense'; /help lists the commands");
    chat("-n 20", "\"\"\"Who was\nthe king?\"\"\"\n/sats\n/undo x\n/save\n");

    expect_said("did you mean /stats?");
    expect_said("/undo takes no argument");
    expect_said("/save needs a file: /save FILE");
    chat("-n 60 --color --draft suffix --ignore-eos", "a cat a cat a cat a cat a cat a cat\n");
    assert_non_null(strstr(out, "\033["));
}

/* The first turn is the answer of `run --chat`, without the space after "ASSISTANT:". */
static void a_first_answer_is_that_of_run(void **state) {
    (void)state;
    static char answer[5000];
    assert_int_equal(cli_run("run " TARGET "--chat -n 20 --draft none -p 'Who was the king?'", answer, sizeof answer),
                     0);
    assert_true(answer[0] != ' ');
    chat("-n 20", "Who was the king?\n");
    assert_string_equal(out, answer);
}

static const char questions[] =
    "Who was the king?\nTell me a story about a cat.\n\"\"\"What happened\nthen?\"\"\"\nWhy?\n";

static void drafts_change_no_answer(void **state) {
    (void)state;
    static const char *const sampling[] = {"--temp 0", "--temp 0.8 --seed 5", "--temp 1 --top-p 0.9 --seed 6"};
    static const char *const drafts[] = {"", "--draft suffix+ngram-trie", "--draft eagle:file=models/eagle.gguf+auto"};
    static char plain[20000];
    char args[200];
    for (size_t i = 0; i < sizeof sampling / sizeof *sampling; i++) {
        snprintf(args, sizeof args, "-n 60 --draft none %s", sampling[i]);
        chat(args, questions);
        snprintf(plain, sizeof plain, "%.19000s", out);
        assert_true(strlen(plain) > 40);
        for (size_t k = 0; k < sizeof drafts / sizeof *drafts; k++) {
            snprintf(args, sizeof args, "-n 60 %s %s", drafts[k], sampling[i]);
            chat(args, questions);
            if (strcmp(out, plain) != 0) fail_msg("%s: plain decoding '%s', drafted '%s'", args, plain, out);
        }
    }
}

static void seeds_are_random_unless_given(void **state) {
    (void)state;
    static char first[5000];
    chat("-n 30 --temp 1", "Tell me a story.\n/stats\n");
    snprintf(first, sizeof first, "%.4000s", out);
    const char *seed = strstr(said, "Seed ");
    assert_non_null(seed);
    char args[100];
    snprintf(args, sizeof args, "-n 30 --temp 1 --seed %llu", strtoull(seed + 5, NULL, 10));
    chat("-n 30 --temp 1", "Tell me a story.\n");
    assert_string_not_equal(out, first);
    chat(args, "Tell me a story.\n");
    assert_string_equal(out, first);
}

/* Writes a copy of the target with recommended values. */
static void write_recommending_model(const char *path) {
    Gguf *g;
    fr_error err;
    GgufWriter *w = gguf_writer_new();
    assert_int_equal(gguf_open(&g, "models/target.gguf", &err), 0);
    gguf_copy_kvs(w, g, NULL);
    gguf_set_f32(w, "general.sampling.temp", 0.5f);
    gguf_set_u32(w, "general.sampling.top_k", 7);
    gguf_set_f32(w, "general.sampling.top_p", 1.5f); /* outside the range of --top-p */
    gguf_set_f32(w, "general.sampling.min_p", 0.125f);
    gguf_set_f32(w, "general.sampling.penalty_repeat", 1.25f);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    assert_int_equal(gguf_writer_finish(w, path, &err), 0);
    gguf_writer_free(w);
    gguf_close(g);
}

static void a_conversation_samples_by_default(void **state) {
    (void)state;
    static char first[5000];
    write_recommending_model(DIR "/recommending.gguf");
    assert_int_equal(run("chat " TARGET "-n 30", "Tell me a story.\n/stats\n/temp\n"), 0);
    expect_said("Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, repeat penalty 1\n");
    expect_said("Temperature 0.8\n");
    snprintf(first, sizeof first, "%.4000s", out);
    assert_int_equal(run("chat " TARGET "-n 30", "Tell me a story.\n"), 0);
    assert_string_not_equal(out, first); /* and the seed differs, too */
    assert_int_equal(run("chat -m " DIR "/recommending.gguf -n 5", "One?\n/stats\n"), 0);
    expect_said("Temperature 0.5, top-k 7, top-p 0.95, min-p 0.125, repeat penalty 1.25\n");
    assert_int_equal(run("chat -m " DIR "/recommending.gguf -n 5 --temp 1.5 --top-k 0", "One?\n/stats\n"), 0);
    expect_said("Temperature 1.5, top-k 0, top-p 0.95, min-p 0.125, repeat penalty 1.25\n");
    assert_int_equal(run("chat -m " DIR "/recommending.gguf -n 5 --temp 0", "One?\n/stats\n"), 0);
    expect_said("Greedy: temperature 0\n");
    assert_int_equal(run("run -m " DIR "/recommending.gguf -n 30 -p 'Once upon a time'", ""), 0);
    snprintf(first, sizeof first, "%.4000s", out);
    assert_int_equal(run("run " TARGET "-n 30 -p 'Once upon a time'", ""), 0);
    assert_string_equal(out, first); /* `run` stays greedy */
}

static void run_prints_its_random_seed(void **state) {
    (void)state;
    static char first[5000];
    char args[300];
    long long seed = -1;
#define SAMPLED "run " TARGET "-n 30 --temp 1 -p 'Once upon a time' "
    assert_int_equal(cli_run(SAMPLED "--stats-json " DIR "/s.json", first, sizeof first), 0);
    json_t *j = json_load_file(DIR "/s.json", 0, NULL);
    assert_int_equal(json_unpack(j, "{s:I}", "seed", &seed), 0);
    json_decref(j);
    snprintf(args, sizeof args, SAMPLED "--draft none --seed %lld", seed);
    assert_int_equal(run(args, ""), 0);
    assert_string_equal(out, first);
    assert_int_equal(run(SAMPLED "--stats", ""), 0);
    assert_string_not_equal(out, first);
    expect_said("seed ");
}

/* ---- the tokens that are computed ------------------------------------------------------------------------ */

typedef struct Figures {
    long long n_generated, n_prompt, n_kept, n_context;
} Figures;

/* Reads the numbers of the last answer, from each /stats of a run. */
static int read_figures(Figures *f, int max) {
    int n = 0;
    for (const char *at = said; (at = strstr(at, "The last answer: ")) && n < max; at++, n++) {
        const char *kept = strstr(at, "accepted; "), *context = strstr(at, "; context ");
        assert_true(kept && context);
        assert_int_equal(sscanf(at, "The last answer: %lld", &f[n].n_generated), 1);
        assert_int_equal(sscanf(kept, "accepted; %lld prompt tokens, %lld", &f[n].n_prompt, &f[n].n_kept), 2);
        assert_int_equal(sscanf(context, "; context %lld", &f[n].n_context), 1);
    }
    return n;
}

/* At most the last token of the earlier context has no keys yet. Questions are short, so that no answer is far from the
 * tokens that the template writes. */
static void a_turn_computes_only_its_new_text(void **state) {
    (void)state;
    static const char *const args[] = {"-n 30 --ignore-eos --stop @@", "-n 30 --ignore-eos --temp 1.6 --seed 7",
                                       "-n 30 --ignore-eos --temp 1.6 --seed 4 --draft none",
                                       "-n 30 --ignore-eos --temp 1.6 --seed 6"};
    Figures f[4];
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        chat(args[i], "One?\n/stats\nTwo?\n/stats\nThree?\n/stats\nFour?\n/stats\n");
        assert_int_equal(read_figures(f, 4), 4);
        assert_int_equal(f[0].n_kept, 0);
        for (int k = 1; k < 4; k++) {
            long long n_new = f[k].n_prompt - f[k].n_kept;
            /* "USER: Three? ASSISTANT:" and the text that a stop string cut off */
            if (f[k].n_kept < f[k - 1].n_context - 12 || n_new > 26)
                fail_msg("%s: turn %d computes %lld of %lld tokens; %lld were there", args[i], k + 1, n_new,
                         f[k].n_prompt, f[k - 1].n_context);
        }
    }
}

static void a_regenerated_answer_and_an_undone_turn_compute_little(void **state) {
    (void)state;
    Figures f[4];
    chat("-n 30 --temp 1 --seed 3", "One?\nTwo?\n/stats\n/regenerate\n/stats\n/undo\nThree?\n/stats\n");
    assert_int_equal(read_figures(f, 4), 3);
    assert_true(f[1].n_prompt == f[0].n_prompt && f[1].n_kept == f[1].n_prompt - 1);
    assert_true(f[2].n_prompt - f[2].n_kept < 20);
}

/* ---- commands -------------------------------------------------------------------------------------------- */

static int n_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void an_answer_is_generated_again(void **state) {
    (void)state;
    char first[2000], second[2000];
    chat("-n 12 --temp 1 --seed 3 --stop . --stop '?'", "Tell me a story.\n/regenerate\n/regenerate\n");
    assert_int_equal(n_lines(out), 3);
    assert_int_equal(sscanf(out, "%1999[^\n]\n%1999[^\n]", first, second), 2);
    assert_string_not_equal(first, second);
    chat("-n 12 --stop . --stop '?'", "/regenerate\nTell me a story.\n/regenerate\n");
    expect_said("there is no question yet");
    expect_said("The temperature is 0, so the answer can only be the same; /temp 0.8 allows others.");
    assert_int_equal(sscanf(out, "%1999[^\n]\n%1999[^\n]", first, second), 2);
    assert_string_equal(first, second);
}

static void turns_are_dropped(void **state) {
    (void)state;
    static char alone[5000];
    chat("-n 20", "Who was the king?\n");
    snprintf(alone, sizeof alone, "%.4000s", out);
    chat("-n 20", "/undo\n\"\"\"Tell me\na story.\"\"\"\n/undo\nWho was the king?\n");
    expect_said("there is no turn that could be dropped");
    expect_said("Dropped with its answer: Tell me\\na story.");
    assert_string_equal(strrchr(out, '\n') ? strstr(out, alone) : NULL, alone);
    chat("-n 20", "Tell me a story.\nWhy?\n/clear\nWho was the king?\n");
    expect_said("Forgot 2 turns.");
    assert_string_equal(strstr(out, alone), alone);
}

static void settings_change_during_a_conversation(void **state) {
    (void)state;
    static char wanted[5000];
    chat("-n 20 --temp 0.7 --seed 9 --system 'Be brief.'", "Who was the king?\n");
    snprintf(wanted, sizeof wanted, "%.4000s", out);
    chat("-n 20", "/temp 0.7\n/seed 9\n/system\n/system Be brief.\nWho was the king?\n");
    assert_string_equal(out, wanted);
    expect_said("Temperature 0.7");
    expect_said("Seed 9");
    expect_said("There is no system message");
    expect_said("System message: Be brief.");
    chat("-n 20 --system 'Be brief.'", "/system \"\"\n/temp\n/temp hot\n/seed -1\n/seed\n/temp -1\n");
    expect_said("There is no system message");
    expect_said("'/temp hot' must be a number of at least 0");
    expect_said("'/seed -1' must be an integer of at least 0");
    expect_said("Temperature 0\n");
    chat("-n 20",
         "/drafts\n/drafts suffix+pld\n/drafts none\n/drafts teleport\n/drafts rest:index=/no\n/drafts\nWhy?\n");
    expect_said("Drafters: ngram-trie, lookahead-trie.\n");
    expect_said("Drafters: suffix, pld.\n");
    expect_said("No drafter: plain decoding.");
    expect_said("unknown drafter 'teleport'");
    expect_said("/no");
    chat("-n 20 --stop .", "Who was the king?\n/quit\nWhy?\n");
    assert_int_equal(n_lines(out), 1);
}

static void conversations_are_saved_and_loaded(void **state) {
    (void)state;
    static char wanted[5000];
    json_t *j;
    chat("-n 20", "Who was the king?\nTell me a story.\n");
    snprintf(wanted, sizeof wanted, "%.4000s", strchr(out, '\n') + 1);
    chat("-n 20 --system 'Be \"kind\".'", "Who was the king?\n/save " DIR "/a.json\nWhy?\n/save " DIR "/a.json\n");
    expect_said("Saved 1 turn: " DIR "/a.json");
    expect_said("Saved 2 turns: ");
    assert_non_null(j = json_load_file(DIR "/a.json", 0, NULL));
    const json_t *messages = json_object_get(j, "messages");
    assert_int_equal(json_array_size(messages), 5);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 0), "role")), "system");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 3), "content")), "Why?");
    json_decref(j);
    chat("-n 20", "Who was the king?\n/save " DIR "/b.json\n");
    chat("-n 20", "/load " DIR "/b.json\nTell me a story.\n");
    assert_string_equal(out, wanted);
    chat("-n 20", "/load " DIR "/a.json\n/system\n");
    expect_said("Loaded 2 turns: ");
    expect_said("System message: Be \"kind\".");
}

/* ---- a saved conversation goes on ------------------------------------------------------------------------- */

static uint64_t random_state;

static int below(int n) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int)((z ^ z >> 31) % (uint64_t)n);
}

/* Appends n random lines. A file is loaded only after one was saved. */
static void put_script(char *script, int n, bool *has_file) {
    static const char *const asked[] = {"Why?", "Who was the king?", "\"\"\"Tell me\na story.\"\"\"",
                                        "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80?"};
    for (int i = 0; i < n; i++) {
        int k = below(16);
        const char *line = k < 7                   ? asked[below(4)]
                           : k < 11                ? "/regenerate"
                           : k < 13                ? "/undo"
                           : k == 13               ? "/system Be brief."
                           : k == 14 && has_file   ? "/save " DIR "/within.json"
                           : has_file && *has_file ? "/load " DIR "/within.json"
                                                   : "Why?";
        if (has_file && strncmp(line, "/save", 5) == 0) *has_file = true;
        sprintf(script + strlen(script), "%s\n", line);
    }
}

/* At this temperature about one answer in three has bytes that are no character, or tokens that the tokenizer would not
 * make of its text. */
static void a_loaded_conversation_goes_on_like_the_live_one(void **state) {
    (void)state;
    enum { N_SCRIPTS = 16 };
    static char before[1 << 17], live[1 << 17];
    char script[4000], rest[2000], args[300];
    for (int i = 0; i < N_SCRIPTS; i++) {
        bool has_file = false;
        random_state = (uint64_t)i;
        snprintf(args, sizeof args,
                 "chat -m models/draft.gguf -t 1 -n 10 --temp 1.5 --top-k 0 --top-p 1 --min-p 0 --seed %d", i);
        script[0] = rest[0] = '\0';
        put_script(script, 2 + below(9), &has_file);
        sprintf(script + strlen(script), "Why?\n/save " DIR "/state.json\n");
        put_script(rest, 1 + below(4), NULL);
        strcat(rest, "Why?\n/regenerate\n");
        assert_true(run(args, script) <= 1); /* there may be nothing to undo */
        snprintf(before, sizeof before, "%s", out);
        strcat(script, rest);
        assert_true(run(args, script) <= 1); /* there may be nothing to undo */
        snprintf(live, sizeof live, "%s", out);
        assert_int_equal(strncmp(live, before, strlen(before)), 0);
        snprintf(script, sizeof script, "/load " DIR "/state.json\n%s", rest);
        assert_true(run(args, script) <= 1); /* there may be nothing to undo */
        if (strcmp(out, live + strlen(before)) != 0)
            fail_msg("script %d: live '%s', loaded '%s'; then: %s", i, live + strlen(before), out, rest);
    }
}

static void write_json(const json_t *j, const char *path) { assert_int_equal(json_dump_file(j, path, 0), 0); }

/* What the file holds in addition to its texts is used only for the same model and the same turns. */
static void only_the_texts_are_loaded_where_the_state_does_not_fit(void **state) {
    (void)state;
    static const char note[] = "Only the texts were loaded";
    static const char *const bad[] = {"1 x", "99999999", "-1", "12345678901234567890", "1  2"};
    static char wanted[5000];
    json_t *j;
    chat("-n 8", "Who was the king?\nWhy?\n/save " DIR "/state.json\n/load " DIR "/state.json\n");
    if (strstr(said, note)) fail_msg("the state was not loaded: %s", said);
    assert_int_equal(run("chat -m models/draft.gguf --temp 0 -n 8", "/load " DIR "/state.json\nWhy?\n"), 0);
    expect_said(note);
    assert_non_null(j = json_load_file(DIR "/state.json", 0, NULL));
    json_t *turns = json_object_get(json_object_get(j, "state"), "turns");
    assert_int_equal(json_array_size(turns), 2);
    json_object_del(j, "state");
    write_json(j, DIR "/texts.json");
    json_decref(j);
    chat("-n 8", "/load " DIR "/texts.json\nWhy?\n");
    snprintf(wanted, sizeof wanted, "%.4000s", out);
    if (strstr(said, note)) fail_msg("a file with nothing but texts has no state that would not fit: %s", said);
    for (size_t i = 0; i < sizeof bad / sizeof *bad + 3; i++) {
        assert_non_null(j = json_load_file(DIR "/state.json", 0, NULL));
        turns = json_object_get(json_object_get(j, "state"), "turns");
        json_t *turn = json_array_get(turns, 1);
        if (i == 0) json_array_remove(turns, 0);
        else if (i == 1) json_object_set_new(turn, "n_shared", json_integer(1 << 20));
        else if (i == 2) json_object_set_new(turn, "n_regenerated", json_integer(-1));
        else json_object_set_new(turn, "tokens", json_string(bad[i - 3]));
        write_json(j, DIR "/bad.json");
        json_decref(j);
        chat("-n 8", "/load " DIR "/bad.json\nWhy?\n");
        expect_said(note);
        assert_string_equal(out, wanted);
    }
}

/* A file that is no conversation is never written to, and one that cannot be loaded changes nothing. */
static void other_files_stay_as_they_are(void **state) {
    (void)state;
    static const struct {
        const char *content, *why;
    } cases[] = {
        {"notes\n", "is not JSON"},
        {"{\"a\": 1}", "is not a conversation"},
        {"[1]", "is not a conversation"},
        {"{\"messages\": [1]}", "message 1: must have a \"role\""},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "the last question has no answer"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}", "an answer must follow a question"},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", "must be system, user or assistant"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"system\", \"content\": \"x\"}]}",
         "must be the first message"},
    };
    static char now[2000];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(DIR "/other", "w");
        fputs(cases[i].content, f);
        fclose(f);
        chat("-n 4", "Why?\n/save " DIR "/other\n/load " DIR "/other\n/undo\n");
        expect_said(DIR "/other: exists and is not a saved conversation: choose another name");
        expect_said(cases[i].why);
        expect_said("Dropped with its answer: Why?");
        read_file(DIR "/other", now, sizeof now);
        assert_string_equal(now, cases[i].content);
    }
    chat("-n 4", "Why?\n/save /nowhere/x\n/save " DIR "\n/save models/target.gguf\n/load /nowhere/x\n");
    expect_said("/nowhere/x");
    assert_int_equal(access("models/target.gguf", R_OK), 0);
}

/* ---- limits ---------------------------------------------------------------------------------------------- */

static void a_full_context_leaves_the_conversation_usable(void **state) {
    (void)state;
    chat("-c 60 --ignore-eos --stop @@", "Tell me all about the king and queen.\nWhy?\n/undo\nWhy?\n/clear\nWhy?\n");
    expect_said("the answer ends because the context of 60 tokens is full: /undo drops the last turn");
    expect_said("this turn does not fit: the conversation would have");
    expect_said("Dropped with its answer: Tell me all about the king and queen.");
    expect_said("Forgot 1 turn.");
    assert_true(n_lines(out) >= 3);
    chat("-c 1100 -n 2", "Why?\n");
    expect_said("warning: the model was trained for contexts of at most 1024 tokens");
    assert_int_equal(run("run " TARGET "-c 40 -n 0 -p 'Once upon a time' --ignore-eos", ""), 0);
    expect_said("the text ends because the context of 40 tokens is full: -c N makes it longer");
}

static void a_model_without_a_template_uses_a_plain_format(void **state) {
    (void)state;
    char command[500];
    static char none[16];
    snprintf(
        command, sizeof command,
        "%s/../make_model --layers 1 --dim 32 --heads 2 --kv-heads 1 --ffn 32 --tie --vocab 270 --type F16 --ctx 256 "
        "--seed 8 -o " DIR "/bare.gguf >/dev/null",
        cli_rig_folder());
    assert_int_equal(system(command), 0);
    (void)none;
    assert_int_equal(run("chat -m " DIR "/bare.gguf -n 5", "a\nb\n"), 0);
    expect_said("warning: ");
    expect_said("the format 'plain' is used");
    if (strstr(strstr(said, "warning") + 1, "warning")) fail_msg("warned twice: %s", said);
    assert_int_equal(run("chat -m " DIR "/bare.gguf -n 5 --chat-template chatml", "a\n"), 0);
    assert_string_equal(said, "");
}

static void bad_input_gives_an_error(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof command,
             "printf 'a\\0b\\na\\344b\\nWhy?\\n' | %s/../forerun chat " TARGET "-n 4 >" DIR "/out 2>" DIR "/said",
             cli_rig_folder());
    assert_int_equal(WEXITSTATUS(system(command)), 1);
    read_file(DIR "/out", out, sizeof out);
    read_file(DIR "/said", said, sizeof said);
    expect_said("forerun: a message must be UTF-8 text without zero bytes\n"
                "forerun: a message must be UTF-8 text without zero bytes\n");
    assert_int_equal(n_lines(out), 1);
    chat("", "");
    assert_string_equal(out, "");
    cli_expect("chat", 2, "missing model: pass -m FILE");
    cli_expect("chat " TARGET "--draft teleport", 2, "unknown drafter 'teleport'");
    cli_expect("chat models/target.gguf", 2, "unexpected argument 'models/target.gguf'; pass a model as -m FILE");
    cli_expect("chat " TARGET "-p a", 2, "unknown option '-p'");
}

/* ---- without a command ------------------------------------------------------------------------------------- */

static void a_model_without_a_command_answers_a_piped_prompt(void **state) {
    (void)state;
    static char wanted[5000];
    assert_int_equal(run("run " TARGET "-n 12 -p 'Once upon a time'", ""), 0);
    snprintf(wanted, sizeof wanted, "%.4000s", out);
    assert_int_equal(run("models/target.gguf -n 12", "Once upon a time\n"), 0);
    assert_string_equal(out, wanted);
    assert_int_equal(run("-m models/target.gguf -n 12", "Once upon a time\n"), 0);
    assert_string_equal(out, wanted);
    assert_int_equal(run("models/target.gguf -n 12 -p 'Once upon a time'", ""), 0);
    assert_string_equal(out, wanted);
    cli_expect("README.md", 2, "'README.md' is neither a command nor a GGUF file");
    cli_expect("nosuch.gguf", 2, "'nosuch.gguf' is neither a command nor a GGUF file");
    cli_expect("chatt", 2, "did you mean chat?");
}

/* "a+b" is the same as two options. */
static void a_plus_unites_drafters(void **state) {
    (void)state;
    static char texts[2][20000];
    static const char *const drafts[] = {"--draft pld+suffix:history=0 ", "--draft pld --draft suffix:history=0 "};
    static const char *const counts[] = {"n_steps", "drafted", "accepted", "n_generated"};
    char args[300];
    json_t *j[2];
    for (int i = 0; i < 2; i++) {
        snprintf(args, sizeof args, "run " TARGET "-n 60 -p 'a cat and a cat and a cat' %s--stats-json " DIR "/s.json",
                 drafts[i]);
        assert_int_equal(cli_run(args, texts[i], sizeof texts[i]), 0);
        assert_non_null(j[i] = json_load_file(DIR "/s.json", 0, NULL));
    }
    assert_string_equal(texts[0], texts[1]);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        assert_true(json_equal(json_object_get(j[0], counts[k]), json_object_get(j[1], counts[k])));
    json_decref(j[0]);
    json_decref(j[1]);
    cli_expect("compare " TARGET "-n 20 --runs 1 -p 'a cat and a cat' --no-text --draft pld+suffix --draft auto+pld", 0,
               "pld+suffix ");
    cli_expect("run " TARGET "-p a --draft pld+teleport", 2, "pld+teleport");
    cli_expect("run " TARGET "-p a --draft pld+rest:index=/nowhere.index", 1, "--draft=rest:index: /nowhere.index");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_answers_go_to_standard_output),
        cmocka_unit_test(a_first_answer_is_that_of_run),
        cmocka_unit_test(drafts_change_no_answer),
        cmocka_unit_test(seeds_are_random_unless_given),
        cmocka_unit_test(a_conversation_samples_by_default),
        cmocka_unit_test(run_prints_its_random_seed),
        cmocka_unit_test(a_turn_computes_only_its_new_text),
        cmocka_unit_test(a_regenerated_answer_and_an_undone_turn_compute_little),
        cmocka_unit_test(an_answer_is_generated_again),
        cmocka_unit_test(turns_are_dropped),
        cmocka_unit_test(settings_change_during_a_conversation),
        cmocka_unit_test(conversations_are_saved_and_loaded),
        cmocka_unit_test(a_loaded_conversation_goes_on_like_the_live_one),
        cmocka_unit_test(only_the_texts_are_loaded_where_the_state_does_not_fit),
        cmocka_unit_test(other_files_stay_as_they_are),
        cmocka_unit_test(a_full_context_leaves_the_conversation_usable),
        cmocka_unit_test(a_model_without_a_template_uses_a_plain_format),
        cmocka_unit_test(bad_input_gives_an_error),
        cmocka_unit_test(a_model_without_a_command_answers_a_piped_prompt),
        cmocka_unit_test(a_plus_unites_drafters),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
