/* test_ranks.c - ranks compute the bits of one process: for every architecture, kind of weights, kernel table, cache,
 * number of ranks and number of threads, also with packed weights, and for draft models and layers of drafters; ranks
 * with other files or other arithmetic are refused. The ranks are threads here; tests/lossless/test_ranks_text.c starts
 * processes. */
#include "testing.h"

#include "base/row_kernels.h"
#include "base/system.h"
#include "compute/cpu/cpu.h"
#include "model_patch.h"
#include "ranks_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_TOKENS = 23, N_TREE = 5, N_CTX = 64, N_VOCAB = SMALL_MODELS_VOCAB };

/* The linker puts this in the place of cpu_linear (Makefile): one rank gets another last bit than the others. */
static int rank_of_other_products = -1;
void __real_cpu_linear(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y);
void __wrap_cpu_linear(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y);
void __wrap_cpu_linear(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y) {
    __real_cpu_linear(d, l, op, x, n_rows, y);
    if (group_rank_of_thread == rank_of_other_products)
        y.buffer->floats[y.first] = nextafterf(y.buffer->floats[y.first], 9);
}

/* ---- the same bits ---------------------------------------------------------------------------------------- */

/* The logits of a prompt in chunks of 7, of a tree after it, and of the row after a path of the tree. */
typedef struct Logits {
    float prompt[N_TOKENS][N_VOCAB], tree[N_TREE][N_VOCAB], last[N_VOCAB];
} Logits;

static void run(const Weights *w, KvType kv, int n_threads, Logits *out) {
    RigOptions o = rig_options(N_CTX, 7);
    int32_t tokens[N_TOKENS + 1];
    const int32_t parents[N_TREE] = {-1, 0, 0, 2, 3}, path[] = {0, 2, 3};
    Row rows[N_TREE];
    fr_error err;
    o.n_threads = n_threads, o.kv_type = kv, o.page_size = 3;
    Executor *e = rig_executor(w, &o);
    int32_t s = rig_sequence(e);
    rig_tokens(5, N_VOCAB, tokens, N_TOKENS + 1);
    rig_append(e, s, tokens, N_TOKENS, 7, N_VOCAB, out->prompt[0]);
    for (int i = 0; i < N_TREE; i++)
        rows[i] = (Row){.token = tokens[i], .sequence = s, .parent = parents[i], .want_logits = true};
    if (executor_reserve(e, s, N_TREE, &err) || executor_forward(e, rows, N_TREE, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < N_TREE; i++) memcpy(out->tree[i], executor_logits(e, i), sizeof out->tree[i]);
    executor_commit(e, s, path, 3);
    rig_append(e, s, &tokens[N_TOKENS], 1, 1, N_VOCAB, out->last);
    rig_executor_close(e);
}

static void ranks_change_no_bit(void **state) {
    (void)state;
    static Logits one, several;
    for (int m = 0; m < n_small_models; m++) {
        Gguf *gguf = rig_random_gguf(&small_models[m]);
        Weights *whole = rig_weights_in(&backend_cpu, gguf);
        KvType kv = m % 3 == 0 ? KV_F32 : m % 3 == 1 ? KV_Q8 : KV_F16;
        run(whole, kv, 1, &one);
        for (int n = 2 + m % 2; n <= MOST_RANKS; n += 2 - m % 2) { /* 2 and 4, or 3 and 4 */
            Group g;
            if (group_open(&g, gguf, n, -1)) fail_msg("%s", g.ranks[0].err.message);
            run(g.ranks[0].weights, kv, 1 + (m + n) % 2, &several);
            if (memcmp(&one, &several, sizeof one) != 0)
                fail_msg("%s (number %d): %d ranks give other logits", small_models[m].arch, m, n);
            group_send_halves(&g);
            run(g.ranks[0].weights, kv, 1 + (m + n) % 2, &several);
            if (memcmp(&one, &several, sizeof one) != 0)
                fail_msg("%s (number %d): %d ranks that send halves give other logits", small_models[m].arch, m, n);
            group_close(&g);
        }
        rig_weights_close(whole);
        gguf_close(gguf);
    }
}

/* Draft models of several kinds beside a target of another one, also two at a time. */
static void a_divided_draft_model_has_the_same_bits(void **state) {
    (void)state;
    static Logits one, several;
    Gguf *gguf = rig_random_gguf(&small_models[5]);
    for (int n = 2; n <= MOST_RANKS; n++) {
        Group g;
        if (group_open(&g, gguf, n, -1)) fail_msg("%s", g.ranks[0].err.message);
        Draft first = draft_open(&g, &small_models[0], DRAFTS_DIVIDED);
        for (int m = n; m < n_small_models; m += MOST_RANKS) {
            Draft d = draft_open(&g, &small_models[m], DRAFTS_DIVIDED);
            Weights *whole = rig_weights_in(&backend_cpu, d.gguf);
            assert_int_equal(d.weights->n_ranks, n);
            assert_int_equal(ranks_n_drafts(g.ranks[0].ranks), 2);
            assert_true(d.weights->bytes < whole->bytes);
            run(whole, KV_F16, 1, &one);
            run(d.weights, KV_F16, 1, &several);
            if (memcmp(&one, &several, sizeof one) != 0)
                fail_msg("%s (number %d): %d ranks give other logits", small_models[m].arch, m, n);
            rig_weights_close(whole);
            draft_close(&d);
        }
        draft_close(&first);
        assert_int_equal(ranks_n_drafts(g.ranks[0].ranks), 0);
        group_close(&g);
    }
    gguf_close(gguf);
}

/* The results of the layers of a drafter. */
typedef struct LayerResults {
    float logits[N_TREE][N_VOCAB], hidden[N_TREE][256];
} LayerResults;

/* Stores the keys of some rows, and runs a block of two rows, then a row, and two rows after it. */
static void run_layers(const Weights *w, const float *inputs, LayerResults *out) {
    enum { N_STORED = 4 };
    const int32_t n_embd = w->model->hparams.n_embd;
    const int64_t width = model_input_width(w->model);
    RigOptions o = rig_options(N_CTX, N_STORED + N_TREE);
    Executor *e = rig_executor(w, &o);
    int32_t s = rig_sequence(e), all[N_STORED] = {0, 1, 2, 3};
    Row rows[N_STORED + N_TREE];
    fr_error err;
    memset(out, 0, sizeof *out);
    assert_true(n_embd <= 256);
    if (w->model->takes_turns) executor_choose_layer(e, 1);
    for (int i = 0; i < N_STORED + N_TREE; i++) rows[i] = (Row){.token = 1, .sequence = s, .input = inputs + i * width};
    for (int i = 0; i < N_STORED; i++) rows[i].parent = i - 1;
    for (int i = 0; i < N_TREE; i++) {
        Row *r = &rows[N_STORED + i];
        r->want_logits = true, r->parent = i < 3 ? i - 1 : 2, r->in_block = i < 2;
    }
    if (executor_reserve(e, s, N_STORED, &err) || executor_store(e, rows, N_STORED, &err)) fail_msg("%s", err.message);
    executor_commit(e, s, all, N_STORED);
    if (executor_reserve(e, s, N_TREE, &err)) fail_msg("%s", err.message);
    if (executor_forward(e, rows + N_STORED, N_TREE, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < N_TREE; i++) {
        memcpy(out->logits[i], executor_logits(e, i), sizeof *out->logits);
        memcpy(out->hidden[i], executor_hidden(e, i), (size_t)n_embd * sizeof(float));
    }
    rig_executor_close(e);
}

/* The layers of the target itself in the role of those of a drafter. turns: they take turns. */
static void check_layers(Group *g, bool turns, const float *inputs, const char *arch) {
    static LayerResults whole, divided;
    const Weights *target = g->ranks[0].weights;
    const Model *t = target->model;
    Model layers = model_of_layers(t, t->layers, t->hparams.n_layer, t->hparams.n_ff);
    Device *d = rig_device(target, 1);
    layers.takes_turns = turns, layers.output_norm = t->output_norm;
    for (int i = 0; i < 2; i++) {
        Weights *w;
        fr_error err;
        g->ranks[0].ranks->draft_place = i ? DRAFTS_DIVIDED : DRAFTS_WHOLE;
        if (weights_open_draft(&w, d, target, &layers, 2, &err)) fail_msg("%s: %s", arch, err.message);
        assert_int_equal(w->n_ranks, i ? g->n : 0);
        run_layers(w, inputs, i ? &divided : &whole);
        weights_close(w);
    }
    if (memcmp(&whole, &divided, sizeof whole) != 0) fail_msg("%s: %d ranks give other results", arch, g->n);
    device_close(d);
}

/* Rows of blocks, rows that only store keys, and layers that take turns, for all models whose layers can be sent. */
static void divided_layers_of_a_drafter_have_the_same_bits(void **state) {
    (void)state;
    static float inputs[3 * 256 * 16];
    int n_models = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) inputs[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int m = 0; m < n_small_models; m++) {
        char path[] = "build/test_draft.XXXXXX";
        rig_write_random(&small_models[m], path);
        Gguf *gguf = rig_gguf(path);
        Group g;
        if (group_open(&g, gguf, 2 + m % 3, -1)) fail_msg("%s", g.ranks[0].err.message);
        const Model *t = g.ranks[0].weights->model;
        Model layers = model_of_layers(t, t->layers, t->hparams.n_layer, t->hparams.n_ff);
        if (t->hparams.n_layer > 1 && ranks_can_send(&layers, t)) {
            check_layers(&g, false, inputs, small_models[m].arch);
            if (m == 0) check_layers(&g, true, inputs, small_models[m].arch);
            n_models++;
        }
        group_close(&g);
        gguf_close(gguf);
        unlink(path);
    }
    print_message("the layers of %d models of %d\n", n_models, n_small_models);
    assert_true(n_models > 5);
}

/* Layers that read the keys and values of a target (Model.kv_model): those of the target itself without any keys of
 * their own. */
typedef struct Readers {
    Model model;
    LayerSpec specs[16];
} Readers;

static void readers_of(const Model *t, Readers *out) {
    assert_true(t->hparams.n_layer <= 16);
    for (int i = 0; i < t->hparams.n_layer; i++) {
        LayerSpec *l = &out->specs[i];
        *l = t->layers[i];
        if (!l->shares_kv) l->shares_kv = i + 1;
        l->matrices[MATRIX_K] = l->matrices[MATRIX_V] = NULL;
        l->k_bias = l->v_bias = NULL;
    }
    out->model = model_of_layers(t, out->specs, t->hparams.n_layer, t->hparams.n_ff);
    out->model.kv_model = t;
}

/* Runs rows after the tokens that a target has read. exchanged [3]: the gathers of the forward, their bytes, and the
 * broadcasts. */
static void run_readers(const Weights *target, const Model *m, const float *inputs, const Comm *comm,
                        int64_t exchanged[3], LayerResults *out) {
    enum { N_ROWS = 3 };
    RigOptions o = rig_options(N_CTX, 8);
    int32_t tokens[8];
    Row rows[N_ROWS];
    Weights *w;
    fr_error err;
    o.page_size = 3;
    Executor *of_target = rig_executor(target, &o), *e;
    Device *d = executor_context(of_target)->device;
    const ExecutorOptions options = {.max_rows = N_ROWS, .reads = of_target};
    int32_t s = rig_sequence(of_target);
    rig_tokens(6, N_VOCAB, tokens, 8);
    rig_append(of_target, s, tokens, 8, 8, N_VOCAB, out->logits[0]);
    memset(out, 0, sizeof *out);
    if (weights_open_draft(&w, d, target, m, 2, &err) || executor_open(&e, d, w, &options, &err))
        fail_msg("%s", err.message);
    assert_int_equal(w->n_ranks, target->n_ranks);
    for (int i = 0; i < N_ROWS; i++)
        rows[i] = (Row){.token = 1,
                        .sequence = s,
                        .parent = -1,
                        .want_logits = true,
                        .input = inputs + (int64_t)i * m->hparams.n_embd};
    CommCounts before = comm ? comm_counts(comm) : (CommCounts){0}, after = before;
    if (executor_forward(e, rows, N_ROWS, &err)) fail_msg("%s", err.message);
    if (comm) after = comm_counts(comm);
    exchanged[0] = after.n_gathers - before.n_gathers, exchanged[1] = after.n_gather_bytes - before.n_gather_bytes;
    exchanged[2] = after.n_broadcasts - before.n_broadcasts;
    for (int i = 0; i < N_ROWS; i++) {
        memcpy(out->logits[i], executor_logits(e, i), sizeof *out->logits);
        memcpy(out->hidden[i], executor_hidden(e, i), (size_t)m->hparams.n_embd * sizeof(float));
    }
    executor_close(e);
    weights_close(w);
    rig_executor_close(of_target);
}

/* For all models whose layers can be sent, and for numbers of ranks that do not divide their KV heads or are above
 * them. A rank without the file ends nothing: the layers are refused. */
static void layers_that_read_the_targets_keys_are_divided(void **state) {
    (void)state;
    static LayerResults one, several;
    static float inputs[3 * 256];
    static Readers readers;
    int n_models = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) inputs[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int m = 0; m < n_small_models; m++) {
        char path[] = "build/test_draft.XXXXXX";
        int64_t none[3], exchanged[3];
        Weights *w;
        Group g;
        fr_error err;
        rig_write_random(&small_models[m], path);
        Gguf *gguf = rig_gguf(path);
        Weights *whole = rig_weights_in(&backend_cpu, gguf);
        readers_of(whole->model, &readers);
        bool can = ranks_can_send(&readers.model, whole->model);
        if (can) run_readers(whole, &readers.model, inputs, NULL, none, &one);
        for (int n = 2; can && n <= MOST_RANKS; n++) {
            if (group_open(&g, gguf, n, -1)) fail_msg("%s", g.ranks[0].err.message);
            const Weights *target = g.ranks[0].weights;
            int64_t n_layer = target->model->hparams.n_layer, n_embd = target->model->hparams.n_embd;
            readers_of(target->model, &readers);
            run_readers(target, &readers.model, inputs, g.ranks[0].ranks->comm, exchanged, &several);
            if (memcmp(&one, &several, sizeof one) != 0)
                fail_msg("%s (number %d): %d ranks give other results", small_models[m].arch, m, n);
            assert_int_equal(exchanged[0], 4 * n_layer + 1);
            assert_int_equal(exchanged[2], 2);
            int64_t inner = (int64_t)act_row_bytes(ACT_F32, small_models[m].n_ff);
            if (m == 0) /* the heads are not blocks of activations */
                assert_int_equal(exchanged[1], 3 * (n_layer * (3 * n_embd * 4 + inner) + N_VOCAB * 4));
            if (n == MOST_RANKS) {
                Device *d = rig_device(target, 1);
                unlink(path);
                assert_true(weights_open_draft(&w, d, target, &readers.model, 2, &err) < 0);
                if (strncmp(err.message, "rank 1: build/test_draft.", 25) != 0) fail_msg("%s", err.message);
                device_close(d);
            }
            group_close(&g);
        }
        n_models += can;
        rig_weights_close(whole);
        gguf_close(gguf);
        unlink(path);
    }
    print_message("the layers of %d models of %d\n", n_models, n_small_models);
    assert_true(n_models > 5);
}

/* If the exchanges alone take longer than a forward of the whole draft model, the other ranks are not told of it.
 * Otherwise it runs where it is faster. */
static void a_draft_model_is_divided_where_that_is_faster(void **state) {
    (void)state;
    const RandomModel large = {.arch = "llama",
                               .n_layer = 4,
                               .n_embd = 256,
                               .n_head = 4,
                               .n_head_kv = 2,
                               .n_ff = 4096,
                               .n_vocab = N_VOCAB,
                               .seed = 3};
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Group g;
    if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
    Ranks *r = g.ranks[0].ranks;
    CommCounts before = comm_counts(r->comm);
    g.ranks[0].weights->exchange_s = 1;
    Draft d = draft_open(&g, &large, DRAFTS_WHERE_FASTER);
    CommCounts after = comm_counts(r->comm);
    assert_int_equal(d.weights->n_ranks, 0);
    assert_int_equal(after.n_broadcasts, before.n_broadcasts);
    assert_true(r->draft_whole_s > 0 && r->draft_divided_s > 4 * large.n_layer && !r->has_timed_divided);
    draft_close(&d);
    g.ranks[0].weights->exchange_s = 1e-12;
    d = draft_open(&g, &large, DRAFTS_WHERE_FASTER);
    print_message("%.3f ms whole, %.3f ms divided\n", 1e3 * r->draft_whole_s, 1e3 * r->draft_divided_s);
    assert_true((d.weights->n_ranks == 2) == (r->draft_divided_s < r->draft_whole_s) && r->has_timed_divided);
    assert_true(comm_counts(r->comm).n_broadcasts > after.n_broadcasts);
    draft_close(&d);
    comm_slow_down(r->comm, (CommNetwork){.delay_s = 2e-3}); /* slower than when the price was measured */
    d = draft_open(&g, &large, DRAFTS_WHERE_FASTER);
    assert_int_equal(d.weights->n_ranks, 0);
    assert_int_equal(ranks_n_drafts(r), 0);
    assert_true(r->draft_divided_s > 4 * 2e-3 * large.n_layer && r->has_timed_divided);
    draft_close(&d);
    group_close(&g);
    gguf_close(gguf);
}

/* The other ranks find no file, or another one, at the path of rank 0; or there are too many draft models. */
static void a_draft_model_that_not_all_ranks_have_is_whole(void **state) {
    (void)state;
    static Logits one, several;
    RandomModel other = small_models[0];
    char path[] = "build/test_draft.XXXXXX";
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Weights *whole = rig_weights_in(&backend_cpu, gguf);
    Draft drafts[RANKS_MAX_DRAFTS];
    Group g;
    run(whole, KV_F16, 1, &one);
    if (group_open(&g, gguf, 3, -1)) fail_msg("%s", g.ranks[0].err.message);
    rig_write_random(&small_models[0], path);
    Gguf *draft = rig_gguf(path);
    for (int i = 0; i < 2; i++) {
        char replacement[] = "build/test_draft.XXXXXX";
        if (i == 1) {
            other.seed++;
            rig_write_random(&other, replacement);
            assert_int_equal(rename(replacement, path), 0);
        } else unlink(path);
        Draft d = draft_open_from(&g, path, draft, DRAFTS_DIVIDED);
        assert_int_equal(d.weights->n_ranks, 0);
        run(d.weights, KV_F16, 1, &several);
        assert_memory_equal(&one, &several, sizeof one);
        draft_close(&d);
    }
    for (int i = 0; i < RANKS_MAX_DRAFTS; i++) drafts[i] = draft_open(&g, &small_models[0], DRAFTS_DIVIDED);
    assert_int_equal(drafts[RANKS_MAX_DRAFTS - 2].weights->n_ranks, 3);
    assert_int_equal(drafts[RANKS_MAX_DRAFTS - 1].weights->n_ranks, 0);
    for (int i = 0; i < RANKS_MAX_DRAFTS; i++) draft_close(&drafts[i]);
    group_close(&g);
    rig_weights_close(whole);
    gguf_close(draft);
    gguf_close(gguf);
}

/* With every kernel table that the processor has, logits of ranks are those of one process with its own. */
static void kernel_tables_change_no_bit(void **state) {
    (void)state;
    static const int models[] = {0, 5, 11}; /* llama; qwen3moe in Q8_0; qwen35, which has recurrent layers */
    static Logits one, several;
    int n_tables;
    const Kernels *const *tables = kernels_available(&n_tables);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        Gguf *gguf = rig_random_gguf(&small_models[models[m]]);
        Weights *whole = rig_weights_in(&backend_cpu, gguf);
        run(whole, KV_F16, 1, &one);
        for (int i = 0; i < n_tables; i++) {
            Group g;
            group_loading.table_name = tables[i]->name;
            if (group_open(&g, gguf, 2 + i % 2, -1)) fail_msg("%s", g.ranks[0].err.message);
            run(g.ranks[0].weights, KV_F16, 1, &several);
            if (memcmp(&one, &several, sizeof one) != 0)
                fail_msg("%s: ranks with the table %s give other logits", small_models[models[m]].arch,
                         group_loading.table_name);
            group_close(&g);
        }
        group_loading.table_name = NULL;
        rig_weights_close(whole);
        gguf_close(gguf);
    }
    print_message("%d tables\n", n_tables);
}

/* A rank copies its tiles from a file of packed weights, and keeps no other part of it in memory. */
static void packed_weights_change_no_bit(void **state) {
    (void)state;
    static Logits one, several;
    char path[] = "build/test_ranks.XXXXXX";
    fr_error err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int m = 0; m < n_small_models; m += 5) {
        char name[] = "build/test_ranks_model.XXXXXX"; /* a packed file belongs to a model that has a name */
        rig_write_random(&small_models[m], name);
        Gguf *gguf = rig_gguf(name);
        Weights *whole = rig_weights_in(&backend_cpu, gguf);
        run(whole, KV_F16, 1, &one);
        if (backend_cpu.weights_save(whole, path, &err)) fail_msg("%s", err.message);
        rig_weights_close(whole);
        Group g;
        for (int i = 0; i < 3; i++) group_loading.packed_files[i] = path;
        if (group_open(&g, gguf, 3, -1)) fail_msg("%s", g.ranks[0].err.message);
        memset(group_loading.packed_files, 0, sizeof group_loading.packed_files);
        for (int i = 0; i < 3; i++) {
            assert_string_equal(g.ranks[i].weights->packed_error, "");
            assert_null(g.ranks[i].weights->mapped);
        }
        run(g.ranks[0].weights, KV_F16, 1, &several);
        if (memcmp(&one, &several, sizeof one) != 0)
            fail_msg("%s: ranks with packed weights give other logits", small_models[m].arch);
        group_close(&g);
        gguf_close(gguf);
        unlink(name);
    }
    unlink(path);
}

/* Copies a file, and inverts a bit of the copy, unless damaged_at is 0. */
static void copy_file(const char *from, const char *to, long damaged_at) {
    char bytes[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, in)) > 0;) assert_int_equal(fwrite(bytes, 1, n, out), n);
    if (damaged_at) {
        assert_int_equal(fseek(in, damaged_at, SEEK_SET) + fseek(out, damaged_at, SEEK_SET), 0);
        fputc(fgetc(in) ^ 1, out);
    }
    assert_int_equal(fclose(in) + fclose(out), 0);
}

/* Each of two ranks has a copy of the file. Of the gate, which has MiB 1 to 4 of the content, rank 0 reads the first
 * half. Damage in a part that a rank does not read is no harm. If it is in a part that the rank reads, both ranks pack
 * the model's file instead. If a rank has no file that fits, the other one checks all of its own. */
static void packed_files_are_checked_by_parts(void **state) {
    (void)state;
    enum { VERSION = 8, HEAD = 4096, MIB = 1 << 20, OF_RANK_0 = HEAD + 3 * MIB / 2, OF_RANK_1 = HEAD + 7 * MIB / 2 };
    static const struct {
        long damaged_at[2];
        bool is_refused[2];
    } cases[] = {{{0, 0}, {false, false}},         {{OF_RANK_1, 0}, {false, false}},
                 {{0, OF_RANK_0}, {false, false}}, {{OF_RANK_1, OF_RANK_0}, {false, false}},
                 {{OF_RANK_0, 0}, {true, true}},   {{0, OF_RANK_1}, {true, true}},
                 {{0, VERSION}, {false, true}},    {{OF_RANK_1, VERSION}, {true, true}}};
    const RandomModel model = {.arch = "llama",
                               .n_layer = 1,
                               .n_embd = 256,
                               .n_head = 4,
                               .n_head_kv = 4,
                               .n_ff = 4096,
                               .n_vocab = N_VOCAB,
                               .types = {TYPE_F32},
                               .n_types = 1,
                               .seed = 4};
    static Logits one, several;
    char name[] = "build/test_ranks_parts.XXXXXX", sound[64], paths[2][80];
    fr_error err;
    Group g;
    rig_write_random(&model, name);
    Gguf *gguf = rig_gguf(name);
    Weights *whole = rig_weights_in(&backend_cpu, gguf);
    run(whole, KV_F16, 1, &one);
    snprintf(sound, sizeof sound, "%s.packed", name);
    if (backend_cpu.weights_save(whole, sound, &err)) fail_msg("%s", err.message);
    rig_weights_close(whole);
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "%s-%d", sound, i), group_loading.packed_files[i] = paths[i];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int i = 0; i < 2; i++) copy_file(sound, paths[i], cases[k].damaged_at[i]);
        if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
        run(g.ranks[0].weights, KV_F16, 1, &several);
        if (memcmp(&one, &several, sizeof one) != 0) fail_msg("case %d: other logits", (int)k);
        for (int i = 0; i < 2; i++) {
            const char *why = g.ranks[i].weights->packed_error;
            if ((*why != '\0') != cases[k].is_refused[i]) fail_msg("case %d, rank %d: '%s'", (int)k, i, why);
        }
        group_close(&g);
    }
    unlink(paths[1]); /* the file of rank 0 is damaged where only rank 1 would read it */
    if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
    assert_non_null(strstr(g.ranks[0].weights->packed_error, "are damaged (the content)"));
    assert_string_equal(g.ranks[1].weights->packed_error, "");
    group_close(&g);
    memset(group_loading.packed_files, 0, sizeof group_loading.packed_files);
    gguf_close(gguf);
    unlink(paths[0]);
    unlink(sound);
    unlink(name);
}

/* Models whose recurrent states are divided, with the heads of each of two ranks. */
static void recurrent_states_are_divided_by_heads(void **state) {
    (void)state;
    int n_models = 0;
    for (int m = 0; m < n_small_models; m++) {
        const RandomModel *model = &small_models[m];
        bool is_mamba = strcmp(model->arch, "mamba2") == 0, is_hybrid = strcmp(model->arch, "granitehybrid") == 0;
        if (!is_mamba && !is_hybrid && strcmp(model->arch, "qwen35moe") != 0) continue;
        Gguf *gguf = rig_random_gguf(model);
        Group g;
        if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
        const Comm *comm = g.ranks[0].ranks->comm;
        RigOptions o = rig_options(N_CTX, 3);
        Executor *e = rig_executor(g.ranks[0].weights, &o);
        const CpuStates *s = &((const CpuContext *)(const void *)executor_context(e))->states;
        const int32_t tokens[3] = {5, 200, 299};
        float logits[3][N_VOCAB];
        CommCounts before = comm_counts(comm);
        assert_int_equal(s->n_heads, model->n_value_heads / 2);
        rig_append(e, rig_sequence(e), tokens, 3, 3, N_VOCAB, logits[0]);
        int64_t row = model->n_embd * 4, values = (int64_t)model->n_value_heads * model->delta_dim * 4;
        if (is_mamba) /* no layer has a feed-forward part */
            assert_int_equal(comm_counts(comm).n_gather_bytes - before.n_gather_bytes,
                             3 * (row + model->n_layer * (values + row) + N_VOCAB * 4));
        rig_executor_close(e);
        group_close(&g);
        gguf_close(gguf);
        n_models++;
    }
    assert_int_equal(n_models, 4);
}

/* ---- what is refused --------------------------------------------------------------------------------------- */

static void another_model_is_refused_by_name(void **state) {
    (void)state;
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Group g;
    assert_int_equal(group_open(&g, gguf, 3, 2), FR_ERR_MISMATCH);
    assert_string_equal(g.ranks[0].err.message, "rank 2: another model file than rank 0");
    group_close(&g);
    gguf_close(gguf);
}

static void another_arithmetic_is_refused_by_name(void **state) {
    (void)state;
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Group g;
    rank_of_other_products = 1;
    assert_int_equal(group_open(&g, gguf, 3, -1), FR_ERR_MISMATCH);
    assert_string_equal(g.ranks[0].err.message, "rank 1: products have other results than on rank 0");
    rank_of_other_products = -1;
    group_close(&g);
    gguf_close(gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_change_no_bit),
        cmocka_unit_test(a_divided_draft_model_has_the_same_bits),
        cmocka_unit_test(divided_layers_of_a_drafter_have_the_same_bits),
        cmocka_unit_test(layers_that_read_the_targets_keys_are_divided),
        cmocka_unit_test(a_draft_model_is_divided_where_that_is_faster),
        cmocka_unit_test(a_draft_model_that_not_all_ranks_have_is_whole),
        cmocka_unit_test(kernel_tables_change_no_bit),
        cmocka_unit_test(packed_weights_change_no_bit),
        cmocka_unit_test(packed_files_are_checked_by_parts),
        cmocka_unit_test(recurrent_states_are_divided_by_heads),
        cmocka_unit_test(another_model_is_refused_by_name),
        cmocka_unit_test(another_arithmetic_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
