/* test_seed_text.c - a seed gives one text under ratio rules and lossy ones, whatever else the engine does.
 *
 * The text under such a rule depends on the trees, so the trees must depend only on the request. For each drafter, each
 * request runs by itself in a new engine, and then among others in a crowded one: its drafters were opened in another
 * order there, prompts begin alike and are shared, they are read in chunks of a few tokens, requests come at different
 * times, and there are too few pages for all of them, so that requests wait with a finished tree, or give up pages and
 * resume later. The text and the numbers of drafted and accepted nodes must be equal. */
#include "engine_rig.h"

#include "all_drafters.h"

#include <string.h>

enum { N_CTX = 110, N_REQUESTS = 12, N_PLACES = 4, N_WORDS = 7, N_PREDICTION = 200, N_ROUNDS = 2 };

typedef struct Ask {
    int32_t prompt[N_CTX], prediction[N_PREDICTION];
    fr_request_options options;
} Ask;

typedef struct Case {
    const char *draft, *rules[2];
    const char *opened_before; /* a draft that is opened first in the crowded engine; NULL: none */
    bool has_grammar;          /* half of the requests have a grammar, and so the drafter `grammar` */
} Case;

#define ANY \
    { "recursive", "transport" }
#define OTHER \
    { "multi-round", "typical" }
#define MODEL "model=" ALL_DRAFTERS_MODEL

static const Case cases[] = {
    {"ngram-trie", OTHER, "grammar", true},
    {"pld", ANY, "grammar", true},
    {"llma", {"chain", "block"}, NULL, false},
    {"suffix", ANY, "grammar", true},
    {"lookahead-trie", OTHER, NULL, false},
    {"rest:index=build/all-rest.index", ANY, NULL, false},
    {"recycling", ANY, NULL, false},
    {"lookahead", OTHER, NULL, false},
    {"prediction", OTHER, NULL, false},
    {"prediction", {"chain", "block"}, "grammar", false},
    {"prediction+pld", ANY, "pld", true},
    {"sps:length=3," MODEL, {"chain", "block"}, NULL, false},
    {"rsd-c:" MODEL, ANY, NULL, false},
    {"rsd-s:width=3," MODEL, ANY, NULL, false},
    {"spectr:paths=3,length=3," MODEL, {"k-seq", "multi-round"}, NULL, false},
    {"specinfer:length=2,models=" ALL_DRAFTERS_MODEL "+" ALL_DRAFTERS_MODEL, {"multi-round", "typical"}, NULL, false},
    {"redrafter:file=build/all-redrafter.gguf", ANY, "grammar", true},
    {"medusa:file=build/all-medusa.gguf", ANY, "grammar", true},
    {"hydra:file=build/all-hydra.gguf", ANY, NULL, true},
    {"hydra:file=build/all-hydra-layer.gguf", ANY, "grammar", true},
    {"eagle:file=build/all-eagle.gguf", ANY, "grammar", true},
    {"lyanna:file=build/all-lyanna.gguf", ANY, "grammar", true},
    {"lyanna:file=build/all-lyanna-gate.gguf", {"recursive", "typical"}, NULL, false},
    {"space:file=build/all-space.gguf", ANY, NULL, false},
    {"eagle3:file=build/all-eagle3.gguf", ANY, NULL, true},
    {"eagle3:file=build/all-eagle3-blocks.gguf", ANY, "grammar", true},
    {"dflash:file=build/all-dflash.gguf", ANY, "grammar", true},
    {"dflash:file=build/all-dflash-markov.gguf", ANY, "grammar", true},
    {"dflash:file=build/all-dflash-2.gguf", ANY, "grammar", true},
    {"space:file=build/all-space.gguf+suffix", OTHER, "suffix", false},
};

/* For the target with a layer for multi-token prediction. */
static const Case nextn_cases[] = {
    {"mtp", ANY, NULL, false},
    {"mtp", ANY, "grammar", true},
    {"mtp:depth=6,top=2", OTHER, "grammar", true},
    {"mtp:top=1", {"chain", "block"}, NULL, false},
    {"mtp+ngram-trie", ANY, "ngram-trie", false},
    {"prediction+mtp", OTHER, "mtp", false},
};

static const Case gemma_cases[] = {{ALL_DRAFTERS_ASSISTANT, ANY, "grammar", true}};

static const char REGEX[] = "([A-Z] abcd, )*[{]((ab|xy)|(0123456789|98765)|\"[a-c]+\": 1|, )*[}]";

static fr_model *model;
static fr_grammar *grammar;
static uint64_t dice_state;

static int32_t dice(int32_t n) {
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((dice_state >> 33) % (uint64_t)n);
}

/* Texts have few words, so that every drafter is right now and then. */
static void make_ask(Ask *a, int i, const Case *c, const char *rule) {
    static fr_logit_bias bias[N_WORDS];
    for (int k = 0; k < N_WORDS; k++) bias[k] = (fr_logit_bias){.token = ALL_DRAFTERS_TOKEN(k), .bias = 60};
    for (int k = 0; k < N_CTX; k++) a->prompt[k] = ALL_DRAFTERS_TOKEN(k > 12 + 5 * (i % 3) ? k + i : k);
    for (int k = 0; k < N_PREDICTION; k++) a->prediction[k] = ALL_DRAFTERS_TOKEN(dice(N_WORDS));
    a->options = (fr_request_options){.struct_size = sizeof(fr_request_options),
                                      .prompt = a->prompt,
                                      .n_prompt = 2 + dice(50),
                                      .max_tokens = 20 + dice(50),
                                      .prediction = a->prediction,
                                      .n_prediction = N_PREDICTION,
                                      .sampling = fr_sampling_default(),
                                      .drafts = &c->draft,
                                      .n_drafts = 1,
                                      .tree_budget = 4 + dice(12),
                                      .verify = rule,
                                      .allow_lossy = 1,
                                      .ignore_eos = 1};
    a->options.sampling.temperature = i % 3 ? 1.0f : 0.5f;
    a->options.sampling.top_k = i % 5 ? 0 : 4;
    a->options.sampling.seed = (uint64_t)(i / 2);
    if (c->has_grammar && i % 2) a->options.grammar = grammar, a->options.ignore_eos = 0;
    else a->options.logit_bias = bias, a->options.n_logit_bias = N_WORDS;
}

typedef struct Counts {
    int64_t preempted, shared, accepted;
} Counts;

static void run_crowd(const Ask *asks, const Case *c, int round, Stream *got, Counts *n) {
    static const int page_sizes[] = {16, 3}, chunks[] = {3, 7};
    fr_request *r[N_REQUESTS];
    fr_error err;
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1 + round % 2,
                                                               .n_ctx = N_CTX,
                                                               .max_requests = N_PLACES,
                                                               .max_queued = N_REQUESTS,
                                                               .kv_tokens = N_CTX + 20,
                                                               .kv_page_size = page_sizes[round],
                                                               .prefill_chunk = chunks[round]});
    if (c->opened_before && fr_engine_open_draft(e, c->opened_before, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < N_REQUESTS; i++) {
        if (rig_open_request(&r[i], e, &asks[i].options, &err)) fail_msg("%s: %s", c->draft, err.message);
        for (int k = dice(4); k > 0; k--)
            if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
    }
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < N_REQUESTS; i++) {
        rig_collect(r[i], &got[i]);
        n->preempted += got[i].stats.n_preempted;
        n->shared += got[i].stats.n_prompt_shared;
        fr_request_close(r[i]);
    }
    fr_engine_close(e);
}

/* Returns the number of requests whose text or trees differ in the crowded engine. */
static int check_round(const Case *c, const char *rule, int round, Counts *n) {
    static Stream alone, got[N_REQUESTS];
    static Ask asks[N_REQUESTS];
    int n_bad = 0;
    dice_state = (uint64_t)round * 77 + 5;
    for (int i = 0; i < N_REQUESTS; i++) make_ask(&asks[i], i, c, rule);
    run_crowd(asks, c, round, got, n);
    for (int i = 0; i < N_REQUESTS; i++) {
        fr_engine *quiet = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                       .n_ctx = N_CTX,
                                                                       .n_threads = 1,
                                                                       .prefix_cache = -1});
        rig_run_request(quiet, &asks[i].options, &alone);
        fr_engine_close(quiet);
        assert_string_equal(alone.draft_error, "");
        assert_string_equal(got[i].draft_error, "");
        n->accepted += alone.stats.accepted;
        n_bad += alone.n != got[i].n || strcmp(alone.text, got[i].text) != 0 ||
                 memcmp(alone.tokens, got[i].tokens, (size_t)alone.n * sizeof *alone.tokens) != 0 ||
                 alone.stats.drafted != got[i].stats.drafted || alone.stats.accepted != got[i].stats.accepted;
    }
    return n_bad;
}

static void check_cases(const char *target, const Case *c, size_t n_cases) {
    fr_error err;
    int n_bad_cases = 0;
    model = rig_open_model(target, NULL);
    if (fr_grammar_open(&grammar, model, FR_GRAMMAR_REGEX, REGEX, strlen(REGEX), &err)) fail_msg("%s", err.message);
    for (const Case *end = c + n_cases; c < end; c++) {
        Counts n = {0};
        int n_bad = 0;
        for (int i = 0; i < 2 * N_ROUNDS; i++) n_bad += check_round(c, c->rules[i % 2], i / 2, &n);
        if (n.preempted < 10 || n.shared < 100 || n.accepted < 10)
            fail_msg("%s: %d preemptions, %d tokens shared and %d accepted are too few to test anything", c->draft,
                     (int)n.preempted, (int)n.shared, (int)n.accepted);
        if (n_bad)
            print_error("%s: %d of %d requests differ from those that run by themselves\n", c->draft, n_bad,
                        2 * N_ROUNDS * N_REQUESTS);
        n_bad_cases += n_bad > 0;
    }
    fr_grammar_close(grammar);
    fr_model_close(model);
    assert_int_equal(n_bad_cases, 0);
}

static void a_seed_gives_one_text(void **state) {
    (void)state;
    check_cases(ALL_DRAFTERS_TARGET, cases, sizeof cases / sizeof *cases);
}

static void a_seed_gives_one_text_with_a_layer_for_multi_token_prediction(void **state) {
    (void)state;
    check_cases(ALL_DRAFTERS_NEXTN, nextn_cases, sizeof nextn_cases / sizeof *nextn_cases);
}

static void a_seed_gives_one_text_with_an_assistant(void **state) {
    (void)state;
    check_cases(ALL_DRAFTERS_GEMMA, gemma_cases, sizeof gemma_cases / sizeof *gemma_cases);
}

static int write_files(void **state) {
    (void)state;
    all_drafters_write_files();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_gives_one_text),
        cmocka_unit_test(a_seed_gives_one_text_with_a_layer_for_multi_token_prediction),
        cmocka_unit_test(a_seed_gives_one_text_with_an_assistant),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
