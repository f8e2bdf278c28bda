/* test_draft_redrafter.c - unit tests of the drafter redrafter with random weights: compares its trees with a beam
 * search in double precision, for one sequence and for several, and tests the text in the engine. */
#include "learned_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/tensor_type.h"
#include "tree/tree.h"

#define TARGET "build/redrafter-target.gguf"

enum { H = 64, V = 300, MAX_BLOCKS = 2, N_TEXT = 20, MAX_W = 40, MAX_L = 8 };

static Gguf *target_gguf;
static Weights *target;

static const struct Shape {
    const char *path;
    int32_t n_blocks;
    bool from_zero;
    TensorType type;
    int32_t rank; /* rank of its token info; 0: none */
} shapes[] = {
    {"build/redrafter-0.gguf", 1, false, TYPE_F32, 0},
    {"build/redrafter-1.gguf", 2, true, TYPE_F16, 0},
    {"build/redrafter-2.gguf", 0, false, TYPE_Q8_0, 0},
    {"build/redrafter-3.gguf", 1, true, TYPE_F16, 24},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct FileWeights {
    LearnedRig rig;
    float *w, *u, *b, *block[MAX_BLOCKS], *bias[MAX_BLOCKS], *output;
    LearnedRigInfo info;
} FileWeights;
static FileWeights weights[N_SHAPES];

/* std: the deviation of the output. Small ones give flat distributions, in which beams branch; huge ones overflow. */
static void write_drafter(const struct Shape *s, const char *path, FileWeights *w, uint64_t seed, double output_std) {
    char name[64];
    LearnedRig *r = &w->rig;
    const char *start = s->from_zero ? "zero" : "embedding";
    learned_rig_begin(r, "redrafter", target, seed);
    gguf_set_u32(r->w, DRAFTER_KEY("redrafter.block_count"), (uint32_t)s->n_blocks);
    gguf_set_string(r->w, DRAFTER_KEY("redrafter.start"), start, strlen(start));
    w->w = learned_rig_tensor(r, "redrafter.w.weight", s->type, H, H, 0.25);
    w->u = learned_rig_tensor(r, "redrafter.u.weight", s->type, H, H, 0.2);
    w->b = learned_rig_tensor(r, "redrafter.u.bias", TYPE_F32, H, 0, 0.2);
    for (int32_t i = 0; i < s->n_blocks; i++) {
        snprintf(name, sizeof name, "redrafter.block.%d.weight", i);
        w->block[i] = learned_rig_tensor(r, name, s->type, 2 * H, 2 * H, 0.1);
        snprintf(name, sizeof name, "redrafter.block.%d.bias", i);
        w->bias[i] = learned_rig_tensor(r, name, TYPE_F32, 2 * H, 0, 0.1);
    }
    w->output = learned_rig_tensor(r, "redrafter.output.weight", s->type, 2 * H, V, output_std);
    if (s->rank) w->info = learned_rig_info(r, "redrafter", s->type, H, s->rank, V);
    learned_rig_write(r, path);
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 6);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    for (size_t i = 0; i < N_SHAPES; i++) write_drafter(&shapes[i], shapes[i].path, &weights[i], 80 + i, 0.15);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) learned_rig_free(&weights[i].rig);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the beam search in double precision --------------------------------------------------------- */

typedef struct Candidate {
    int32_t n, tokens[MAX_L];
    double state[H], log_p, p_accept[MAX_L];
} Candidate;

static void read_embedding(int32_t token, float *out) {
    const GgufTensor *t = target->model->token_embd;
    blocks_dequantize(t->type, (const char *)t->data + (size_t)token * (t->bytes / V), H, out);
}

static void advance(const struct Shape *s, const FileWeights *w, Candidate *c, int32_t token) {
    float embedding[H];
    double x[H], y[H], z[H];
    read_embedding(token, embedding);
    for (int32_t k = 0; k < H; k++) x[k] = (double)embedding[k];
    if (c->n == 0 && !s->from_zero) {
        memcpy(c->state, x, sizeof x);
        return;
    }
    learned_rig_linear(w->w, NULL, x, H, H, y);
    learned_rig_linear(w->u, w->b, c->state, H, H, z);
    for (int32_t k = 0; k < H; k++) c->state[k] = learned_rig_silu(y[k] + z[k]);
}

static void find_dist(const struct Shape *s, const FileWeights *w, const double *state, int32_t token,
                      const float *hidden, double *dist) {
    double x[2 * H], y[2 * H];
    for (int32_t k = 0; k < H; k++) x[k] = state[k], x[H + k] = (double)hidden[k];
    for (int32_t b = 0; b < s->n_blocks; b++) {
        learned_rig_linear(w->block[b], w->bias[b], x, 2 * H, 2 * H, y);
        for (int32_t k = 0; k < 2 * H; k++) x[k] += learned_rig_silu(y[k]);
    }
    learned_rig_linear(w->output, NULL, x, 2 * H, V, dist);
    if (s->rank) {
        float embedding[H];
        double info[V];
        read_embedding(token, embedding);
        learned_rig_run_info(&w->info, embedding, info);
        for (int32_t v = 0; v < V; v++) dist[v] += info[v];
    }
    learned_rig_log_softmax(dist, V);
}

static int more_probable(const void *a, const void *b) {
    double x = ((const Candidate *)a)->log_p, y = ((const Candidate *)b)->log_p;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sorts all continuations of all candidates and keeps the first `width`; then builds a trie. */
static void plain_tree(const struct Shape *s, const FileWeights *w, const float *hidden, int32_t pending, int32_t width,
                       int32_t length, int32_t budget, Tree *out) {
    static Candidate beam[MAX_W], all[MAX_W * V];
    if (width > budget) width = budget;
    if (length > budget) length = budget;
    int32_t n_beam = 1;
    memset(beam, 0, sizeof beam);
    for (int32_t level = 0; level < length; level++) {
        int32_t n_all = 0;
        for (int32_t i = 0; i < n_beam; i++) {
            double dist[V];
            Candidate *c = &beam[i];
            int32_t token = level ? c->tokens[level - 1] : pending;
            advance(s, w, c, token);
            find_dist(s, w, c->state, token, hidden, dist);
            for (int32_t v = 0; v < V; v++) {
                Candidate *next = &all[n_all++];
                *next = *c;
                next->tokens[next->n++] = v;
                next->log_p += dist[v];
                next->p_accept[level] = exp(next->log_p);
            }
        }
        qsort(all, (size_t)n_all, sizeof *all, more_probable);
        n_beam = n_all < width ? n_all : width;
        memcpy(beam, all, (size_t)n_beam * sizeof *beam);
    }
    tree_reset(out, pending);
    for (int32_t i = 0; i < n_beam; i++)
        for (int32_t j = 0, at = 0; j < length; j++)
            at = tree_add(out, at, beam[i].tokens[j], (float)beam[i].p_accept[j], 0);
    union_prune(out, budget);
}

/* Three sequences with different texts and budgets, in one call and one by one. */
static void trees_are_those_of_a_plain_beam_search(void **state) {
    (void)state;
    static const struct { int32_t width, length; } beams[] = {{1, 4}, {4, 5}, {8, 3}, {40, 6}};
    static const int32_t budgets[] = {64, 5, 14};
    static Tree want[3], got[3];
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t k = 0; k < sizeof beams / sizeof *beams; k++) {
            char spec[128];
            fr_error err;
            int32_t text[3][N_TEXT];
            snprintf(spec, sizeof spec, "redrafter:file=%s,width=%d,length=%d", shapes[s].path, beams[k].width,
                     beams[k].length);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < 3; i++) {
                rig_tokens(20 + (uint64_t)i, V, text[i], N_TEXT);
                const float *hidden = learned_rig_feed(&reader, d, i + 1, text[i], N_TEXT - i, 3 + i);
                plain_tree(&shapes[s], &weights[s], hidden, text[i][N_TEXT - i - 1], beams[k].width, beams[k].length,
                           budgets[i], &want[i]);
            }
            Tree *trees[] = {&got[2], &got[0], &got[1]};
            for (int32_t i = 0; i < 3; i++) tree_reset(&got[i], want[i].nodes[0].token);
            if (d->class->propose(d, (int32_t[]){3, 1, 2}, (int32_t[]){budgets[2], budgets[0], budgets[1]}, trees, 3,
                                  &err))
                fail_msg("%s", err.message);
            for (int32_t i = 0; i < 3; i++) {
                if (tree_validate(&got[i], want[i].nodes[0].token, V, budgets[i] + 1, &err))
                    fail_msg("%s", err.message);
                learned_rig_assert_alike(&want[i], &got[i], 2e-3, spec);
                static Tree alone;
                rig_propose(d, i + 1, want[i].nodes[0].token, budgets[i], V, &alone);
                rig_assert_same_tree(&got[i], &alone, spec);
                d->class->end(d, i + 1);
            }
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

/* Without packing there are as many nodes as the candidates have tokens. The packed ones come first. */
static void without_packing_each_candidate_has_its_rows(void **state) {
    (void)state;
    enum { W = 8, L = 4 };
    static Tree packed, whole;
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *one = learned_rig_open_drafter(&reader, "redrafter:file=build/redrafter-0.gguf,width=8,length=4", 2);
    Drafter *two = learned_rig_open_drafter(&reader, "redrafter:file=build/redrafter-0.gguf,width=8,length=4,packed=0",
                                            2);
    int32_t text[N_TEXT];
    rig_tokens(20, V, text, N_TEXT);
    learned_rig_feed(&reader, one, 1, text, N_TEXT, 3);
    learned_rig_feed(&reader, two, 1, text, N_TEXT, 3);
    rig_propose(one, 1, text[N_TEXT - 1], W * L, V, &packed);
    rig_propose(two, 1, text[N_TEXT - 1], W * L, V, &whole);
    assert_in_range(packed.n, L + 1, W * L);
    assert_int_equal(whole.n, W * L + 1);
    whole.n = packed.n;
    rig_assert_same_tree(&packed, &whole, "packed=0");
    drafter_close(one);
    drafter_close(two);
    learned_rig_close_reader(&reader);
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    learned_rig_check_step(target, "redrafter:file=build/redrafter-0.gguf");
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    char spec[128];
    for (size_t s = 0; s < N_SHAPES; s++) {
        if (s == 2) continue;
        snprintf(spec, sizeof spec, "redrafter:file=%s,width=6,length=4", shapes[s].path);
        learned_rig_check_lossless(TARGET, spec);
    }
}

/* With finite weights that overflow in the computation nothing is drafted, and the text is unchanged. */
static void broken_arithmetic_is_harmless(void **state) {
    (void)state;
    static Stream plain, got;
    static FileWeights w;
    write_drafter(&shapes[0], "build/redrafter-huge.gguf", &w, 9, 1.5e38);
    learned_rig_free(&w.rig);
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    int32_t prompt[12];
    rig_tokens(1, V, prompt, 12);
    const char *draft = "redrafter:file=build/redrafter-huge.gguf";
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 12,
                            .max_tokens = 20,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    rig_run_request(e, &o, &plain);
    o.drafts = &draft, o.n_drafts = 1;
    rig_run_request(e, &o, &got);
    rig_assert_same(&plain, &got, draft);
    assert_string_equal(got.draft_error, "");
    fr_engine_close(e);
    fr_model_close(model);
}

static void a_beam_beyond_a_tree_is_refused(void **state) {
    (void)state;
    Device *device = rig_device(target, 1);
    const DrafterEnv env = {.n_vocab = V,
                            .max_sequences = 1,
                            .target = target_gguf,
                            .weights = target,
                            .device = device};
    Drafter *d;
    fr_error err;
    assert_int_equal(drafter_open(&d, "redrafter:file=build/redrafter-0.gguf,width=64,length=8", &env, 0, &err),
                     FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "width 64 and length 8"));
    const DrafterEnv replay = {.n_vocab = V, .max_sequences = 1};
    assert_int_equal(drafter_open(&d, "redrafter:file=build/redrafter-0.gguf", &replay, 0, &err), FR_ERR_UNSUPPORTED);
    assert_int_equal(drafter_open(&d, "redrafter", &env, 0, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "redrafter: missing drafter file: write redrafter:file=FILE"));
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_a_plain_beam_search),
        cmocka_unit_test(without_packing_each_candidate_has_its_rows),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(the_text_is_the_plain_one),
        cmocka_unit_test(broken_arithmetic_is_harmless),
        cmocka_unit_test(a_beam_beyond_a_tree_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
