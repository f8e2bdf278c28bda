/* test_kept_states.c - the target's hidden states that a training keeps in memory: a trainer gives its network the same
 * numbers with and without them, the target reads a sequence again only where there was no room, and no other sequence
 * is taken for it. */
#include "model_rig.h"
#include "testing.h"

#include "base/hash.h"
#include "train/drafter_trainer.h"

#include <stdlib.h>
#include <string.h>

/* ---- the tree ------------------------------------------------------------------------------------------- */

static void sequences_are_found_by_all_their_tokens(void **state) {
    (void)state;
    enum { N = 60, LENGTH = 5 };
    static int32_t tokens[N][LENGTH];
    KeptStates k = {.max_bytes = 1 << 20};
    for (int32_t i = 0; i < N; i++) {
        for (int32_t t = 0; t < LENGTH; t++) tokens[i][t] = 7;
        tokens[i][i % LENGTH] = i * 37 % N; /* the others are equal */
    }
    for (int32_t i = 0; i < N; i++) {
        if (kept_states_find(&k, tokens[i], LENGTH)) continue; /* two with the 7 */
        float *room = kept_states_add(&k, tokens[i], LENGTH, 3, SIZE_MAX);
        assert_non_null(room);
        room[0] = room[2] = (float)i;
    }
    for (int32_t i = 0; i < N; i++) {
        int32_t other[LENGTH + 1];
        const float *found = kept_states_find(&k, tokens[i], LENGTH);
        assert_non_null(found);
        int32_t first = (int32_t)found[0];
        assert_memory_equal(tokens[first], tokens[i], sizeof tokens[i]);
        assert_true(first <= i && found[2] == found[0]);
        memcpy(other, tokens[i], sizeof tokens[i]);
        other[LENGTH] = 7;
        assert_null(kept_states_find(&k, other, LENGTH + 1));
        assert_null(kept_states_find(&k, other, LENGTH - 1));
        other[(i + 1) % LENGTH] = N;
        assert_null(kept_states_find(&k, other, LENGTH));
    }
    kept_states_free(&k);
    assert_null(kept_states_find(&k, tokens[0], LENGTH));
}

static void what_has_no_room_is_not_kept(void **state) {
    (void)state;
    static const int32_t a[] = {1}, b[] = {2}, c[] = {3};
    KeptStates k = {.max_bytes = 1000};
    assert_null(kept_states_add(&k, a, 1, 250, SIZE_MAX)); /* the numbers alone take 1000 */
    assert_null(kept_states_add(&k, a, 1, SIZE_MAX / 8, SIZE_MAX));
    assert_int_equal(k.bytes, 0);
    assert_non_null(kept_states_add(&k, a, 1, 100, 500));
    assert_null(kept_states_add(&k, b, 1, 100, 500));
    assert_non_null(kept_states_add(&k, b, 1, 100, SIZE_MAX));
    assert_null(kept_states_add(&k, c, 1, 100, SIZE_MAX));
    assert_true(k.bytes > 800 && k.bytes <= 1000);
    assert_true(kept_states_find(&k, a, 1) && kept_states_find(&k, b, 1) && !kept_states_find(&k, c, 1));
    kept_states_free(&k);
}

/* ---- the trainer ----------------------------------------------------------------------------------------- */

enum { N_LEARNED = 6, N_HELD_OUT = 2, LENGTH = 24, V = 300, H = 64, N_EPOCHS = 3, N_STREAMS = 2 };

static Gguf *gguf;
static int32_t tokens[N_LEARNED + N_HELD_OUT][LENGTH + 1];
static uint8_t loss_mask[N_LEARNED + N_HELD_OUT][LENGTH];
static int n_reads; /* of the target */

int __real_frozen_read(FrozenTarget *f, const int32_t *text, int32_t n, float *hidden, float *streams, fr_error *err);
int __wrap_frozen_read(FrozenTarget *f, const int32_t *text, int32_t n, float *hidden, float *streams, fr_error *err);

int __wrap_frozen_read(FrozenTarget *f, const int32_t *text, int32_t n, float *hidden, float *streams, fr_error *err) {
    n_reads++;
    return __real_frozen_read(f, text, n, hidden, streams, err);
}

/* A network that learns nothing, but tells what it gets: a hash of the states of all sequences, in order. */
static uint64_t seen;

static int32_t n_tensors(const void *net) {
    (void)net;
    return 1;
}

static NetTensor tensor(const void *net, int32_t i) {
    (void)net, (void)i;
    return (NetTensor){.name = "nothing", .n = 1};
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    (void)net, (void)max_length, (void)err;
    return malloc(1);
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    (void)net, (void)w, (void)dw, (void)acts, (void)weight;
    size_t n = (size_t)seq->T * H * sizeof(float);
    uint64_t hashes[] = {seen, hash64(seq->hidden, n, 1), hash64(seq->streams, N_STREAMS * n, 2)};
    seen = hash64(hashes, sizeof hashes, 3);
    sums->n++;
}

static const NetClass probe = {"probe", n_tensors, tensor, acts_open, free, learn, NULL, NULL, NULL, LAYOUT_OWN, NULL};

static int begin(void **state) {
    (void)state;
    gguf = rig_random_gguf(&(RandomModel){.arch = "llama",
                                          .n_layer = 2,
                                          .n_embd = H,
                                          .n_head = 4,
                                          .n_head_kv = 2,
                                          .n_ff = 96,
                                          .n_vocab = V,
                                          .seed = 11});
    rig_tokens(4, V, tokens[0], (N_LEARNED + N_HELD_OUT) * (LENGTH + 1));
    memset(loss_mask, 1, sizeof loss_mask);
    return 0;
}

static int end(void **state) {
    (void)state;
    gguf_close(gguf);
    return 0;
}

/* Learns all sequences in each epoch, in another order each time, and validates after it. Returns what the network saw,
 * in n_reads how often the target has read, and in *for_all the memory that would be enough. */
static uint64_t run(size_t state_memory, bool has_epochs, size_t *for_all) {
    FrozenTarget target;
    Trainer *t;
    fr_error err;
    const DrafterTrainerOptions options = {.class = &probe,
                                           .max_length = LENGTH,
                                           .type = TYPE_F32,
                                           .state_memory = state_memory,
                                           .has_epochs = has_epochs,
                                           .n_threads = 1};
    const KeptLayers streams = {N_STREAMS, {0, 2}};
    if (frozen_open(&target, gguf, LENGTH, 1, &err) || frozen_keep_layers(&target, &streams, &err) ||
        drafter_trainer_open(&t, &target, &options, &err))
        fail_msg("%s", err.message);
    seen = 0, n_reads = 0;
    for (int epoch = 0; epoch < N_EPOCHS; epoch++) {
        TrainSums sums = {0};
        for (int32_t i = 0; i < N_LEARNED; i += 2) {
            int32_t first = (i + 2 * epoch) % N_LEARNED;
            const TrainBatch b = {2, LENGTH, tokens[first], loss_mask[first], i};
            if (t->class->learn(t, &b, 1, &sums, &err)) fail_msg("%s", err.message);
        }
        const TrainBatch b = {N_HELD_OUT, LENGTH, tokens[N_LEARNED], loss_mask[N_LEARNED], 0};
        if (t->class->learn(t, &b, 0, &sums, &err)) fail_msg("%s", err.message);
        assert_int_equal(sums.n, N_LEARNED + N_HELD_OUT);
    }
    StateMemory m = drafter_trainer_state_memory(t, N_LEARNED, LENGTH);
    assert_int_equal(m.all, N_LEARNED * kept_states_bytes(LENGTH, LENGTH * H * (1 + N_STREAMS)));
    assert_true(m.kept <= m.all && m.kept <= (int64_t)state_memory);
    *for_all = (size_t)m.for_all;
    t->class->close(t);
    return seen;
}

static void the_network_gets_the_same_states(void **state) {
    (void)state;
    const size_t each = kept_states_bytes(LENGTH, LENGTH * H * (1 + N_STREAMS));
    size_t for_all;
    const uint64_t want = run(0, true, &for_all);
    assert_int_equal(n_reads, N_EPOCHS * (N_LEARNED + N_HELD_OUT));
    assert_int_equal(run(100 * each, true, &for_all), want);
    assert_int_equal(n_reads, N_LEARNED + N_HELD_OUT);
    assert_int_equal(run(for_all, true, &for_all), want); /* all that are learned, but none that is held out */
    assert_int_equal(n_reads, N_LEARNED + N_EPOCHS * N_HELD_OUT);
    assert_int_equal(run(for_all - 8, true, &for_all), want); /* all but one of each */
    assert_int_equal(n_reads, N_LEARNED - 1 + N_HELD_OUT - 1 + 2 * N_EPOCHS);
    assert_int_equal(run(100 * each, false, &for_all), want); /* only those that are held out come again */
    assert_int_equal(n_reads, N_EPOCHS * N_LEARNED + N_HELD_OUT);
    assert_int_equal(run(4 * each, true, &for_all), want); /* 3 that are learned, and one that is held out */
    assert_int_equal(n_reads, 3 + 1 + N_EPOCHS * (N_LEARNED - 3 + N_HELD_OUT - 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_are_found_by_all_their_tokens),
        cmocka_unit_test(what_has_no_room_is_not_kept),
        cmocka_unit_test(the_network_gets_the_same_states),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
