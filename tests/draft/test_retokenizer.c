/* test_retokenizer.c - the text of the target's tokens in another vocabulary: the tokens are those of the whole text,
 * however they arrive; what is said to stay the same does; shared tokens mean the same; damaged states are refused. */
#include "testing.h"

#include "base/rng.h"
#include "draft/models/retokenizer.h"
#include "model_rig.h"
#include "other_vocab.h"
#include "text/vocab.h"
#include "vocab_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPM "models/target.gguf"
#define OTHER "build/retokenizer-other.gguf"
#define TINY "build/retokenizer-tiny.gguf"

enum { N_MAX = 2000, N_SPM = 4096 };

static const char story[] =
    "Once upon a time, there was a  little girl; she'd said: \"Why is the sky blue?\"\n\n\tThe "
    "dragon (na\xC3\xAFve) didn't know. \xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C world 12345 foo_bar(x[i]);";

static int write_files(void **state) {
    (void)state;
    other_vocab_write(SPM, OTHER, 5);
    Buf b = {.max_bytes = 1 << 20};
    VocabSpec tiny = vocab_build_tiny_bpe("gpt-2");
    vocab_build(&b, &tiny);
    FILE *f = fopen(TINY, "wb");
    assert_true(f && fwrite(b.data, 1, b.n, f) == b.n && fclose(f) == 0);
    buf_free(&b);
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    remove(OTHER);
    remove(TINY);
    return 0;
}

static void open_pair(Retokenizer *r, const char *draft, const char *target, int32_t max_open) {
    Gguf *a = rig_gguf(draft), *b = rig_gguf(target);
    Tokenizer *t;
    fr_error err;
    *r = (Retokenizer){0};
    int32_t n[2];
    for (int i = 0; i < 2; i++) {
        if (tokenizer_open(&t, i ? b : a, &err)) fail_msg("%s", err.message);
        n[i] = tokenizer_n_vocab(t);
        tokenizer_close(t);
    }
    if (retokenizer_open(r, a, n[0], b, n[1], max_open, &err)) fail_msg("%s", err.message);
    gguf_close(a);
    gguf_close(b);
}

static void append(const Retokenizer *r, RetokenizedText *t, const int32_t *tokens, int64_t n) {
    fr_error err;
    if (retokenizer_append(r, t, tokens, n, &err)) fail_msg("%s", err.message);
}

static int64_t encode(const Tokenizer *t, const char *text, unsigned flags, int32_t *out) {
    int32_t *tokens;
    int64_t n;
    fr_error err;
    if (tokenizer_encode(t, text, strlen(text), flags, &tokens, &n, &err)) fail_msg("%s", err.message);
    assert_true(n <= N_MAX);
    memcpy(out, tokens, (size_t)n * sizeof *out);
    free(tokens);
    return n;
}

static const struct { const char *draft, *target; } pairs[] = {{OTHER, SPM}, {TINY, SPM}, {SPM, TINY}, {SPM, OTHER}};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

/* ---- the tokens -------------------------------------------------------------------------------------- */

static void tokens_are_those_of_the_whole_text(void **state) {
    (void)state;
    int32_t text[N_MAX], want[N_MAX];
    for (int k = 0; k < N_PAIRS; k++) {
        Retokenizer r;
        RetokenizedText t = {0};
        fr_error err;
        open_pair(&r, pairs[k].draft, pairs[k].target, RETOKENIZER_MAX_OPEN);
        assert_int_equal(retokenized_text_open(&t, N_MAX, N_MAX, &err), FR_OK);
        assert_false(r.same_ids);
        int64_t n = encode(r.target, story, tokenizer_adds_bos(r.target) ? TOKENIZE_BOS : 0, text);
        int64_t n_want = encode(r.draft, story, tokenizer_adds_bos(r.draft) ? TOKENIZE_BOS : 0, want);
        append(&r, &t, text, n);
        assert_true(t.is_whole);
        if (t.n != n_want || memcmp(t.tokens, want, (size_t)n_want * sizeof *want) != 0)
            fail_msg("pair %d: %d tokens, not the %d of the whole text", k, (int)t.n, (int)n_want);
        retokenized_text_close(&t);
        retokenizer_close(&r);
    }
}

/* Random tokens, special ones among them, appended at once and in pieces. */
static void pieces_change_nothing(void **state) {
    (void)state;
    static const int32_t limits[] = {RETOKENIZER_MAX_OPEN, 31, 5};
    static int32_t before[4 * N_MAX];
    enum { N = 300 };
    int32_t text[N];
    for (int k = 0; k < 3 * N_PAIRS; k++) {
        Retokenizer r;
        RetokenizedText whole = {0}, t = {0};
        fr_error err;
        open_pair(&r, pairs[k % N_PAIRS].draft, pairs[k % N_PAIRS].target, limits[k / N_PAIRS]);
        assert_int_equal(retokenized_text_open(&whole, N, 4 * N_MAX, &err), FR_OK);
        assert_int_equal(retokenized_text_open(&t, N, 4 * N_MAX, &err), FR_OK);
        rig_tokens((uint64_t)k, r.n_target, text, N);
        bool by_bytes = k % N_PAIRS == 0; /* words that grow, and have other tokens with each byte */
        for (int i = 0; i < N && by_bytes; i++) text[i] = 3 + (unsigned char)story[i % (int)(sizeof story - 1)];
        int n_changes = 0;
        append(&r, &whole, text, N);
        for (int32_t n = 0, step = 1; n < N; n += step, step = 1 + (step * 7 + k) % 9) {
            if (step > N - n) step = N - n;
            int32_t n_before = t.n, n_closed = t.n_closed;
            memcpy(before, t.tokens, (size_t)n_before * sizeof *before);
            append(&r, &t, text + n, step);
            assert_in_range(t.n_same, n_closed, n_before < t.n ? n_before : t.n);
            assert_memory_equal(before, t.tokens, (size_t)t.n_same * sizeof *before);
            n_changes += t.n_same < n_before;
            if (t.n_same < n_before && t.n_same < t.n) assert_int_not_equal(before[t.n_same], t.tokens[t.n_same]);
            assert_true(t.n - t.n_closed <= limits[k / N_PAIRS]);
        }
        if (by_bytes) assert_true(n_changes > 10);
        assert_int_equal(t.n, whole.n);
        assert_memory_equal(t.tokens, whole.tokens, (size_t)t.n * sizeof *t.tokens);
        assert_memory_equal(t.ends, whole.ends, (N + 1) * sizeof *t.ends);
        retokenized_text_close(&whole);
        retokenized_text_close(&t);
        retokenizer_close(&r);
    }
}

static void a_text_that_does_not_fit_is_not_whole(void **state) {
    (void)state;
    int32_t text[N_MAX];
    Retokenizer r;
    RetokenizedText t = {0};
    fr_error err;
    open_pair(&r, TINY, SPM, RETOKENIZER_MAX_OPEN);
    assert_int_equal(retokenized_text_open(&t, N_MAX, 50, &err), FR_OK);
    int64_t n = encode(r.target, story, TOKENIZE_BOS, text);
    append(&r, &t, text, 5);
    assert_true(t.is_whole);
    append(&r, &t, text + 5, n - 5);
    assert_false(t.is_whole);
    assert_true(t.n <= 50);
    append(&r, &t, text, n);
    assert_false(t.is_whole);
    assert_int_equal(t.n_target, 2 * n);
    retokenized_text_close(&t);
    retokenizer_close(&r);
}

/* ---- shared tokens ----------------------------------------------------------------------------------- */

static void shared_tokens_mean_the_same(void **state) {
    (void)state;
    static int n_of[N_SPM];
    for (int k = 0; k < N_PAIRS; k++) {
        Retokenizer r;
        open_pair(&r, pairs[k].draft, pairs[k].target, 31);
        int32_t n = 0;
        memset(n_of, 0, sizeof n_of);
        for (int32_t i = 0; i < r.n_target; i++) {
            int32_t id = retokenizer_to_draft(&r, i);
            if (id < 0) continue;
            n++;
            assert_int_equal(n_of[id]++, 0);
            size_t n_a, n_b;
            const char *a = tokenizer_piece(r.target, i, true, &n_a), *b = tokenizer_piece(r.draft, id, true, &n_b);
            bool is_role = i == tokenizer_eos(r.target) || i == tokenizer_bos(r.target);
            if (!is_role && (n_a != n_b || memcmp(a, b, n_a) != 0)) fail_msg("pair %d: token %d", k, (int)i);
        }
        assert_int_equal(n, r.n_shared);
        assert_int_equal(retokenizer_to_draft(&r, tokenizer_eos(r.target)), tokenizer_eos(r.draft));
        assert_int_equal(retokenizer_to_draft(&r, r.n_target), -1);
        retokenizer_close(&r);
    }
    Retokenizer r;
    open_pair(&r, OTHER, SPM, 31);
    assert_in_range(r.n_shared, 3200, 3400); /* four of five */
    for (int32_t i = 300; i < N_SPM; i++) {
        size_t n;
        (void)tokenizer_piece(r.target, i, true, &n);
        if (i % 5) assert_int_equal(retokenizer_to_draft(&r, i), other_vocab_id(i, N_SPM));
        else if (n > 1) assert_int_equal(retokenizer_to_draft(&r, i), -1);
    }
    static float from[N_SPM], to[N_SPM];
    for (int i = 0; i < N_SPM; i++) from[i] = (float)i;
    retokenizer_restrict(&r, from, to);
    for (int32_t i = 0; i < N_SPM; i++) {
        int32_t id = retokenizer_to_draft(&r, i);
        assert_true(id < 0 ? to[i] == -INFINITY : to[i] == (float)id);
    }
    retokenizer_close(&r);
}

static void nothing_shared_is_refused(void **state) {
    (void)state;
    static const char *const digits[] = {"0", "1", "2"}, *const letters[] = {"a", "b", "c", "d"};
    Buf bytes[2] = {{.max_bytes = 1 << 20}, {.max_bytes = 1 << 20}};
    const VocabSpec a = {.model = "gpt2", .pre = "gpt-2", .tokens = digits, .n_tokens = 3},
                    b = {.model = "gpt2", .pre = "gpt-2", .tokens = letters, .n_tokens = 4};
    vocab_build(&bytes[0], &a);
    vocab_build(&bytes[1], &b);
    Gguf *g[2];
    fr_error err;
    for (int i = 0; i < 2; i++)
        if (gguf_open_memory(&g[i], bytes[i].data, bytes[i].n, i ? "letters" : "digits", &err))
            fail_msg("%s", err.message);
    Retokenizer r = {0};
    assert_int_equal(retokenizer_open(&r, g[0], 3, g[1], 4, 31, &err), FR_ERR_MISMATCH);
    if (!strstr(err.message, "digits: its vocabulary shares no token with that of the target letters"))
        fail_msg("%s", err.message);
    retokenizer_close(&r);
    for (int i = 0; i < 2; i++) gguf_close(g[i]), buf_free(&bytes[i]);
}

/* ---- saved states ------------------------------------------------------------------------------------ */

static void a_saved_text_is_that_of_its_tokens(void **state) {
    (void)state;
    enum { N = 120, N_KEPT = 77 };
    int32_t text[N];
    Retokenizer r;
    RetokenizedText t = {0}, kept = {0}, loaded = {0};
    fr_error err;
    open_pair(&r, OTHER, SPM, 31);
    RetokenizedText *all[] = {&t, &kept, &loaded};
    for (int i = 0; i < 3; i++) assert_int_equal(retokenized_text_open(all[i], N, N_MAX, &err), FR_OK);
    rig_tokens(1, r.n_target, text, N);
    append(&r, &t, text, N);
    retokenized_text_copy(&t, &kept, N_KEPT);
    for (int32_t n = 0; n <= t.n; n++) {
        int32_t k = retokenized_text_n_within(&kept, n);
        assert_true(kept.ends[k] <= n && (k == N_KEPT || kept.ends[k + 1] > n));
    }
    Buf b = {.max_bytes = 1 << 20};
    assert_true(retokenized_text_save(&kept, &b));
    for (size_t n = 0; n <= b.n; n++) { /* cut short, and whole */
        ByteReader in = {b.data, b.data + n};
        int status = retokenized_text_load(&r, NULL, N, N_MAX, &in, &err);
        assert_int_equal(status, n < b.n ? FR_ERR_FORMAT : FR_OK);
    }
    ByteReader in = {b.data, b.data + b.n};
    assert_int_equal(retokenized_text_load(&r, &loaded, N, N_MAX, &in, &err), FR_OK);
    assert_int_equal(loaded.n_target, N_KEPT);
    assert_int_equal(loaded.n, kept.n);
    assert_memory_equal(loaded.tokens, t.tokens, (size_t)loaded.n * sizeof *t.tokens);
    assert_memory_equal(loaded.ends, t.ends, (N_KEPT + 1) * sizeof *t.ends);
    for (size_t at = 0; at < b.n; at += 4) { /* a wrong number is refused, or is another valid one */
        int32_t was, bad = -5;
        memcpy(&was, b.data + at, 4);
        memcpy(b.data + at, &bad, 4);
        in = (ByteReader){b.data, b.data + b.n};
        assert_int_equal(retokenized_text_load(&r, &loaded, N, N_MAX, &in, &err), FR_ERR_FORMAT);
        memcpy(b.data + at, &was, 4);
    }
    buf_free(&b);
    for (int i = 0; i < 3; i++) retokenized_text_close(all[i]);
    retokenizer_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_the_whole_text),
        cmocka_unit_test(pieces_change_nothing),
        cmocka_unit_test(a_text_that_does_not_fit_is_not_whole),
        cmocka_unit_test(shared_tokens_mean_the_same),
        cmocka_unit_test(nothing_shared_is_refused),
        cmocka_unit_test(a_saved_text_is_that_of_its_tokens),
    };
    return cmocka_run_group_tests(tests, write_files, remove_files);
}
