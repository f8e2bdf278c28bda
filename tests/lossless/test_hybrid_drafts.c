/* test_hybrid_drafts.c - drafters with architectures other than llama: draft models with a recurrent state, which must
 * be that of the accepted text whatever was drafted, rejected, proposed twice or shared with other requests; and every
 * drafter on targets with a recurrent state, norms of query heads, or windows. */
#include "engine_rig.h"

#include "all_drafters.h"
#include "other_vocab.h"
#include "model_rig.h"
#include "draft/drafter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHAPE(a, layers) \
    .arch = a, .n_layer = layers, .n_embd = 64, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = V
#define HYBRID(keys, values, dim, conv, interval) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = conv, .attention_interval = interval

enum { V = ALL_DRAFTERS_VOCAB, N_PROMPT = 30, N_TOKENS = 30, N_CTX = 160, PAGE = 4, CHUNK = 16 };

#define DENSE "build/hybrid-dense.gguf"
#define QWEN35 "build/hybrid-qwen35.gguf"
#define NEXT "build/hybrid-next.gguf"
#define LFM2 "build/hybrid-lfm2.gguf"
#define GRANITE "build/hybrid-granite.gguf"
#define MAMBA2 "build/hybrid-mamba2.gguf"
#define OTHER "build/hybrid-other.gguf" /* QWEN35 with another vocabulary */

static const struct {
    const char *path;
    RandomModel model;
} files[] = {
    {DENSE, {SHAPE("llama", 2), .seed = 5}},
    {QWEN35, {SHAPE("qwen35", 4), HYBRID(2, 4, 16, 4, 2), .n_rot = 8, .seed = 6}},
    {NEXT,
     {SHAPE("qwen3next", 3), HYBRID(1, 3, 20, 3, 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24,
      .n_ff_shared = 40, .seed = 7}},
    {LFM2, {SHAPE("lfm2", 4), .n_conv = 3, .attention_interval = 3, .seed = 8}},
    {GRANITE, {SHAPE("granitehybrid", 3), HYBRID(1, 6, 16, 4, 3), .n_ssm_state = 12, .seed = 9}},
    {MAMBA2,
     {.arch = "mamba2",
      .n_layer = 3,
      .n_embd = 64,
      .n_vocab = V,
      HYBRID(2, 6, 16, 4, 0),
      .n_ssm_state = 12,
      .seed = 10}},
};
enum { N_FILES = sizeof files / sizeof *files };

static const char *const specs[] = {"sps:model=" QWEN35,
                                    "sps:length=7,coupled=0,model=" NEXT,
                                    "rsd-c:branch=2-2-1,model=" NEXT,
                                    "rsd-s:width=3,depth=4,model=" QWEN35,
                                    "spectr:paths=3,length=3,model=" QWEN35,
                                    "specinfer:length=3,models=" QWEN35 "+" DENSE "+" NEXT,
                                    "sps:length=4,model=" LFM2,
                                    "rsd-c:branch=3-1,coupled=0,model=" GRANITE,
                                    "rsd-s:width=2,depth=3,model=" MAMBA2,
                                    "sps:length=4,model=" OTHER};
enum { N_SPECS = sizeof specs / sizeof *specs };

static int write_files(void **state) {
    (void)state;
    fr_error err;
    for (int i = 0; i < N_FILES; i++)
        if (random_model_write(&files[i].model, files[i].path, &err)) fail_msg("%s", err.message);
    other_vocab_write(QWEN35, OTHER, 9);
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) unlink(files[i].path);
    unlink(OTHER);
    return 0;
}

/* ---- the trees ------------------------------------------------------------------------------------- */

typedef struct Target {
    Gguf *gguf;
    Weights *weights;
    Device *device;
} Target;

static Target open_target(const char *path) {
    Target t = {.gguf = rig_gguf(path)};
    t.weights = rig_weights(t.gguf, NULL);
    t.device = rig_device(t.weights, 1);
    return t;
}

static void close_target(Target *t) {
    device_close(t->device);
    rig_weights_close(t->weights);
    gguf_close(t->gguf);
}

static Drafter *open_drafter(const Target *t, const char *spec, int32_t max_sequences) {
    const DrafterEnv env = {.n_vocab = V,
                            .max_sequences = max_sequences,
                            .target = t->gguf,
                            .weights = t->weights,
                            .device = t->device,
                            .n_ctx = N_CTX};
    fr_error err;
    Drafter *d;
    if (drafter_open(&d, spec, &env, 0, &err)) fail_msg("%s", err.message);
    return d;
}

static void begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, uint64_t position) {
    SamplingOptions o = SAMPLING_DEFAULT;
    if (sequence) o.temperature = 0.9f, o.seed = (uint64_t)sequence;
    fr_error err;
    d->class->set_sampling(d, sequence, &o, position);
    if (d->class->begin(d, sequence, tokens, n, &err)) fail_msg("%s", err.message);
}

enum { N_SEQUENCES = 3 };

/* The sequences in `which` draft together. */
static void propose(Drafter *d, int n, const int32_t *which, int32_t *const *texts, const int64_t *length,
                    Tree *trees) {
    int32_t budgets[N_SEQUENCES];
    Tree *at[N_SEQUENCES];
    fr_error err;
    for (int i = 0; i < n; i++) {
        int32_t pending = texts[which[i]][length[which[i]] - 1];
        budgets[i] = 20, at[i] = &trees[which[i]];
        tree_reset(at[i], pending);
    }
    if (d->class->propose(d, which, budgets, at, n, &err)) fail_msg("%s", err.message);
}

/* Three sequences in one drafter propose together, in turns, twice in a row, or not at all, while their texts grow by
 * different numbers of tokens: the trees are those of a drafter that begins with the text so far. */
static void trees_are_those_of_a_fresh_start(void **state) {
    (void)state;
    enum { N = 120, N_FIRST = 20 };
    static const int32_t strides[] = {1, 2, 5, 1, 3, 40, 6, 1, 33, 4}, all[] = {0, 1, 2};
    static Tree got[N_SEQUENCES], want;
    static int32_t text[N_SEQUENCES][N + 64];
    int32_t *const texts[] = {text[0], text[1], text[2]};
    Target target = open_target(DENSE);
    for (int i = 0; i < N_SEQUENCES; i++) rig_tokens((uint64_t)i, V, text[i], N + 64);
    for (int k = 0; k < N_SPECS; k++) {
        Drafter *d = open_drafter(&target, specs[k], N_SEQUENCES),
                *fresh = open_drafter(&target, specs[k], N_SEQUENCES);
        int64_t n[N_SEQUENCES] = {N_FIRST, N_FIRST + 1, N_FIRST + 2};
        fr_error err;
        for (int i = 0; i < N_SEQUENCES; i++) begin(d, i, text[i], n[i], 0);
        for (int step = 0; step < 24; step++) {
            if (step % 3) propose(d, N_SEQUENCES, all, texts, n, got);
            else propose(d, 1, &all[step % N_SEQUENCES], texts, n, got); /* the other sequences wait */
            if (step % 4 == 1) propose(d, 2, all + 1, texts, n, got);    /* the same again, not used before */
            if (step % 4 == 2) propose(d, N_SEQUENCES, all, texts, n, got);
            for (int i = 0; i < N_SEQUENCES && step % 3; i++) {
                begin(fresh, i, text[i], n[i], (uint64_t)(n[i] - N_FIRST - i));
                int64_t length[N_SEQUENCES];
                memcpy(length, n, sizeof length);
                Tree *at = &want;
                int32_t budget = 20;
                tree_reset(&want, text[i][n[i] - 1]);
                if (fresh->class->propose(fresh, &all[i], &budget, &at, 1, &err)) fail_msg("%s", err.message);
                fresh->class->end(fresh, i);
                if (want.n < 3 || want.n != got[i].n ||
                    memcmp(want.nodes, got[i].nodes, (size_t)want.n * sizeof *want.nodes) != 0)
                    fail_msg("%s, step %d, sequence %d: not the tree of a fresh start", specs[k], step, i);
            }
            for (int i = 0; i < N_SEQUENCES; i++) {
                int64_t stride = strides[(step + 3 * i) % 10], room = N - n[i];
                if (stride > room) stride = room;
                if (stride && d->class->observe(d, i, text[i] + n[i], stride, &err)) fail_msg("%s", err.message);
                n[i] += stride;
            }
        }
        drafter_close(d);
        drafter_close(fresh);
    }
    close_target(&target);
}

/* ---- texts -------------------------------------------------------------------------------------------- */

static fr_request_options request_of(int32_t prompt[N_PROMPT], int i) {
    for (int k = 0; k < N_PROMPT; k++) prompt[k] = ALL_DRAFTERS_TOKEN(k) + (k > 12 + 3 * i ? i : 0);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT - 3 * (i % 2),
                            .max_tokens = N_TOKENS - i,
                            .sampling = fr_sampling_default(),
                            .tree_budget = 6 + 4 * i,
                            .ignore_eos = 1};
    if (i % 2) o.sampling.temperature = 0.9f, o.sampling.seed = (uint64_t)i;
    return o;
}

/* A model always predicts its own text, at each rank of the batch, so an error of one token in the drafter's state
 * would be detected. */
static void a_hybrid_as_its_own_draft_is_always_right(void **state) {
    (void)state;
    enum { N = 4 };
    static Stream plain[N], got;
    for (int f = 0; f < N_FILES; f++)
        for (int backend = 0; backend < 2; backend++) {
            fr_model *model = rig_open_model_in(files[f].path, backend ? "reference" : NULL);
            fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                       .n_ctx = N_CTX,
                                                                       .max_requests = N,
                                                                       .prefill_chunk = 9});
            char spec[96];
            snprintf(spec, sizeof spec, "sps:length=4,model=%s", files[f].path);
            const char *const draft = spec;
            int32_t prompts[N][N_PROMPT];
            fr_request *r[N];
            fr_error err;
            for (int i = 0; i < N; i++) {
                fr_request_options o = request_of(prompts[i], i);
                o.max_tokens = 30 - 5 * (i % 2); /* whole trees */
                rig_run_request(e, &o, &plain[i]);
            }
            for (int i = 0; i < N; i++) {
                fr_request_options o = request_of(prompts[i], i);
                o.drafts = &draft, o.n_drafts = 1, o.tree_budget = 4, o.max_tokens = 30 - 5 * (i % 2);
                if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
                if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
            }
            while (fr_engine_step(e, &err) > 0) {}
            for (int i = 0; i < N; i++) {
                rig_collect(r[i], &got);
                rig_assert_same(&plain[i], &got, spec);
                assert_string_equal(got.draft_error, "");
                if (got.stats.accepted != got.stats.drafted || got.stats.accepted < got.n / 2)
                    fail_msg("%s: %d of %d accepted", spec, (int)got.stats.accepted, (int)got.stats.drafted);
            }
            fr_engine_close(e);
            fr_model_close(model);
        }
}

/* Runs requests with each spec together in an engine with pages of each size, with enough of them and with too few:
 * each text is that of plain decoding by itself. Returns the number of accepted drafts; *n_preempted counts requests
 * whose pages were taken. */
static int64_t check_batches(const fr_model *model, const char *const *drafts, int n_drafts, int64_t *n_preempted) {
    enum { MOST = 32 };
    static Stream plain[MOST], got;
    int32_t prompts[MOST][N_PROMPT];
    int64_t accepted = 0;
    fr_error err;
    assert_true(n_drafts <= MOST);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 96,
                                                               .n_threads = 1,
                                                               .prefix_cache = -1});
    for (int i = 0; i < n_drafts; i++) {
        fr_request_options o = request_of(prompts[i], i % 5);
        rig_run_request(e, &o, &plain[i]);
    }
    fr_engine_close(e);
    for (int k = 0; k < 3; k++) {
        fr_engine_options options = {.struct_size = sizeof options,
                                     .n_ctx = 96,
                                     .n_threads = 1 + k,
                                     .max_requests = 4,
                                     .max_queued = MOST};
        options.kv_page_size = 1 + 3 * k, options.prefill_chunk = 5 + 8 * k;
        if (k == 2) options.kv_tokens = 96 + 16;
        e = rig_open_engine(model, &options);
        fr_request *r[MOST];
        for (int i = 0; i < n_drafts; i++) {
            fr_request_options o = request_of(prompts[i], i % 5);
            o.drafts = &drafts[i], o.n_drafts = 1;
            if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s: %s", drafts[i], err.message);
        }
        while (fr_engine_step(e, &err) > 0) {}
        for (int i = 0; i < n_drafts; i++) {
            rig_collect(r[i], &got);
            rig_assert_same(&plain[i], &got, drafts[i]);
            if (got.draft_error[0]) fail_msg("%s: %s", drafts[i], got.draft_error);
            accepted += got.stats.accepted;
            *n_preempted += got.stats.n_preempted;
        }
        fr_engine_close(e);
    }
    return accepted;
}

static void hybrid_drafts_change_no_text(void **state) {
    (void)state;
    for (int f = 0; f < N_FILES; f++) {
        fr_model *model = rig_open_model(files[f].path, NULL);
        int64_t n_preempted = 0, accepted = check_batches(model, specs, N_SPECS, &n_preempted);
        print_message("%s: %d drafts accepted, %d requests preempted\n", files[f].path, (int)accepted,
                      (int)n_preempted);
        assert_true(accepted > 10 && n_preempted > 0);
        fr_model_close(model);
    }
}

/* ---- prompts that were read before -------------------------------------------------------------------- */

/* A prompt is repeated, then the second turn of its conversation follows, and is repeated: texts and proposals are
 * those of an engine that keeps nothing, and the drafter reads again at most the tokens after the last border of a
 * page. A prompt that differs in its middle shares the tokens before the last mark before that place: a chunk. */
static void turns_of_a_conversation(void **state) {
    (void)state;
    static Stream want, got;
    for (int f = 0; f < N_FILES; f++)
        for (int k = 0; k < N_SPECS; k++) {
            fr_model *model = rig_open_model(files[f].path, NULL);
            fr_engine_options options = {.struct_size = sizeof options,
                                         .n_ctx = N_CTX,
                                         .n_threads = 1,
                                         .kv_page_size = PAGE,
                                         .prefill_chunk = CHUNK,
                                         .prefix_cache = 2};
            fr_engine *sharing = rig_open_engine(model, &options);
            options.prefix_cache = -1;
            fr_engine *apart = rig_open_engine(model, &options);
            int32_t talk[N_CTX];
            fr_request_options o = request_of(talk, 1);
            o.drafts = &specs[k], o.n_drafts = 1, o.tree_budget = 12;
            for (int turn = 0; turn < 5; turn++) {
                if (turn == 4) talk[20] = 222; /* before the part that was kept */
                rig_run_request(apart, &o, &want);
                rig_run_request(sharing, &o, &got);
                rig_assert_same(&want, &got, specs[k]);
                assert_string_equal(got.draft_error, "");
                if (got.stats.drafted != want.stats.drafted || got.stats.accepted != want.stats.accepted)
                    fail_msg("%s on %s, turn %d: other proposals than without sharing", specs[k], files[f].path, turn);
                int n_most = (int)o.n_prompt - 1, n_shared = (int)got.stats.n_prompt_shared;
                int expected = turn % 2 ? f == 0 ? n_most : n_most / PAGE * PAGE : turn ? n_most - 5 : 0;
                if (turn == 4) expected = CHUNK;
                /* In another vocabulary the ends of words decide, too. */
                if (k == N_SPECS - 1 ? n_shared > n_most : n_shared < expected || (turn == 4 && n_shared > expected))
                    fail_msg("%s on %s, turn %d: %d of %d tokens shared", specs[k], files[f].path, turn, n_shared,
                             expected);
                if (turn != 1) continue;
                memcpy(talk + o.n_prompt, got.tokens, (size_t)got.n * sizeof *talk);
                o.n_prompt += got.n;
                for (int i = 0; i < 5; i++) talk[o.n_prompt++] = 200 + i;
            }
            fr_engine_close(sharing);
            fr_engine_close(apart);
            fr_model_close(model);
        }
}

/* ---- all drafters on other architectures ----------------------------------------------------------------- */

static void every_drafter_on_other_architectures(void **state) {
    (void)state;
    static const RandomModel targets[] = {
        {SHAPE("qwen35", 4), HYBRID(2, 4, 16, 4, 2), .n_rot = 8, .seed = 11},
        {SHAPE("qwen3next", 3), HYBRID(1, 3, 20, 3, 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24,
         .n_ff_shared = 40, .seed = 12},
        {SHAPE("lfm2", 3), .n_conv = 3, .attention_interval = 3, .seed = 16},
        {SHAPE("granitehybrid", 2), HYBRID(2, 4, 16, 4, 2), .n_ssm_state = 12, .seed = 17},
        {SHAPE("qwen3", 2), .seed = 13},
        {SHAPE("gemma3", 3), .window = 9, .seed = 14},
        {SHAPE("gemma4", 4), .local_head_dim = 8, .window = 9, .attention_interval = 2, .n_shared_kv = 2, .n_ple = 8,
         .seed = 18},
        {SHAPE("gpt-oss", 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 32, .window = 7, .seed = 15},
    };
    int n_drafts = 0;
    while (all_drafters[n_drafts]) n_drafts++;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        fr_error err;
        if (random_model_write(&targets[i], ALL_DRAFTERS_TARGET, &err)) fail_msg("%s", err.message);
        all_drafters_write_for(ALL_DRAFTERS_TARGET);
        fr_model *model = rig_open_model(ALL_DRAFTERS_TARGET, NULL);
        int64_t n_preempted = 0, accepted = check_batches(model, all_drafters, n_drafts, &n_preempted);
        print_message("%s: %d drafts accepted, %d requests preempted\n", targets[i].arch, (int)accepted,
                      (int)n_preempted);
        assert_true(accepted > 10 && n_preempted > 0);
        fr_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_a_fresh_start),
        cmocka_unit_test(a_hybrid_as_its_own_draft_is_always_right),
        cmocka_unit_test(hybrid_drafts_change_no_text),
        cmocka_unit_test(turns_of_a_conversation),
        cmocka_unit_test(every_drafter_on_other_architectures),
    };
    return cmocka_run_group_tests(tests, write_files, remove_files);
}
