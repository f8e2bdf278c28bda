/* test_dataset.c - training data: lines, records, documents and their loss masks, sequences, their order, and held-out
 * documents. Expectations are written by hand; the vocabulary is that of the shipped model. */
#include "testing.h"

#include "base/mem.h"
#include "model_rig.h"
#include "train/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#define DATA "build/test-dataset.jsonl"
#define VALID "build/test-dataset-valid.jsonl"

static Gguf *vocab;
static Tokenizer *tokenizer;

static int open_vocab(void **state) {
    (void)state;
    vocab = rig_gguf(RIG_TARGET);
    return tokenizer_open(&tokenizer, vocab, NULL);
}

static int close_vocab(void **state) {
    (void)state;
    tokenizer_close(tokenizer);
    gguf_close(vocab);
    unlink(DATA), unlink(DATA ".zst"), unlink(VALID);
    return 0;
}

static void spill(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* ---- documents ---------------------------------------------------------------------------------- */

/* Writes the text of all tokens, or of those in the loss. */
static void spell(const Document *d, bool in_loss, char *out, size_t size) {
    size_t at = 0;
    for (int64_t i = 0; i < d->n; i++) {
        size_t n;
        const char *piece = tokenizer_piece(tokenizer, d->tokens[i], true, &n);
        if (in_loss && !d->loss_mask[i]) continue;
        assert_true(at + n < size);
        memcpy(out + at, piece, n);
        at += n;
    }
    out[at] = '\0';
}

static void documents_and_their_loss_mask(void **state) {
    (void)state;
    static const struct {
        ChatFamily family;
        bool pairs_are_chats;
        const char *line, *all, *in_loss;
    } cases[] = {
        {CHAT_PLAIN, false, "{\"text\": \"Once upon a time\"}", "<s> Once upon a time</s>", " Once upon a time</s>"},
        {CHAT_PLAIN, false, "{\"text\": \"\"}", "", ""},
        {CHAT_PLAIN, false, "{\"prompt\": \"Q: two\\nA:\", \"response\": \" 2\"}", "<s> Q: two\nA: 2</s>", " 2</s>"},
        {CHAT_PLAIN, false, "{\"prompt\": \"The cat\", \"response\": \"\"}", "<s> The cat</s>", "</s>"},
        /* the prompt ends within the token " happy", so the whole token is in the loss */
        {CHAT_PLAIN, false, "{\"prompt\": \"They were so happ\", \"response\": \"y.\"}", "<s> They were so happy.</s>",
         " happy.</s>"},
        {CHAT_PLAIN, true, "{\"prompt\": \"Hi\", \"response\": \"Hello!\"}", "<s> USER: Hi\nASSISTANT: Hello!</s>",
         " Hello!</s>"},
        {CHAT_PLAIN, false,
         "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": "
         "\"Hi\"}, "
         "{\"role\": \"assistant\", \"content\": \"Hello!\"}, {\"role\": \"user\", \"content\": \"Bye\"}, "
         "{\"role\": \"assistant\", \"content\": \"See you\"}, {\"role\": \"user\", \"content\": \"never said\"}]}",
         /* a word-start space follows every special token */
         "<s> Be kind.\nUSER: Hi\nASSISTANT: Hello!</s> \nUSER: Bye\nASSISTANT: See you</s>",
         " Hello!</s> See you</s>"},
        /* the end of an answer that was cut off is not in the loss */
        {CHAT_PLAIN, false, "{\"prompt\": \"The cat\", \"response\": \" is\", \"finish\": \"length\"}",
         "<s> The cat is</s>", " is"},
        {CHAT_PLAIN, false, "{\"prompt\": \"The cat\", \"response\": \" is\", \"finish\": \"eos\"}",
         "<s> The cat is</s>", " is</s>"},
        {CHAT_PLAIN, true, "{\"prompt\": \"Hi\", \"response\": \"Hello!\", \"finish\": \"context\"}",
         "<s> USER: Hi\nASSISTANT: Hello!</s>", " Hello!"},
        {CHAT_PLAIN, false,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
         "{\"role\": \"assistant\", \"content\": \"Hello!\", \"finish\": \"length\"}, {\"role\": \"user\", "
         "\"content\": \"Bye\"}, "
         "{\"role\": \"assistant\", \"content\": \"See you\", \"finish\": \"eos\"}]}",
         "<s> USER: Hi\nASSISTANT: Hello!</s> \nUSER: Bye\nASSISTANT: See you</s>", " Hello! See you</s>"},
        {CHAT_LLAMA2, false,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
         "\"Hello!\"}, "
         "{\"role\": \"user\", \"content\": \"Bye\"}, {\"role\": \"assistant\", \"content\": \"See you\"}]}",
         "<s> [INST] Hi [/INST] Hello! </s><s> [INST] Bye [/INST] See you </s>", " Hello! </s> See you </s>"},
        {CHAT_VICUNA, true, "{\"prompt\": \"Hi\", \"response\": \"Yes\"}",
         "<s> A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
         "detailed, "
         "and polite answers to the user's questions. USER: Hi ASSISTANT: Yes</s>",
         " Yes</s>"},
        /* the markers of this format are not tokens of this vocabulary: they are plain text, and EOS ends the
         * document */
        {CHAT_CHATML, true, "{\"prompt\": \"Hi\", \"response\": \"Yes\"}",
         "<s> <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|></s>", "Yes<|im_end|></s>"},
    };
    char text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const DocumentForm form = {tokenizer, cases[i].family, cases[i].pairs_are_chats, 0};
        Record r;
        Document d;
        fr_error err;
        assert_int_equal(record_parse(&r, cases[i].line, strlen(cases[i].line), &err), 0);
        if (document_make(&d, &form, &r, &err)) fail_msg("%s: %s", cases[i].line, err.message);
        spell(&d, false, text, sizeof text);
        assert_string_equal(text, cases[i].all);
        spell(&d, true, text, sizeof text);
        assert_string_equal(text, cases[i].in_loss);
        assert_true(d.n == 0 || !d.loss_mask[0]);
        document_free(&d);
        record_free(&r);
    }
}

/* ---- order -------------------------------------------------------------------------------------- */

static void order_is_a_permutation(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 64, 65, 1000, 4097};
    char *seen = calloc(5000, 1);
    assert_non_null(seen);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (uint32_t epoch = 0; epoch < 4; epoch++) {
            memset(seen, 0, 5000);
            for (int64_t i = 0; i < sizes[k]; i++) {
                int64_t to = permutation_at(7, epoch, sizes[k], i);
                assert_true(to >= 0 && to < sizes[k] && !seen[to]);
                assert_int_equal(to, permutation_at(7, epoch, sizes[k], i));
                seen[to] = 1;
            }
        }
    free(seen);
    /* Two random permutations of 1000 elements agree in one element on average, and in 12 less than once in 10^9
     * pairs. */
    int same_epoch = 0, same_seed = 0, fixed_points = 0, same_shift = 0;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t to = permutation_at(7, 0, 1000, i);
        same_epoch += to == permutation_at(7, 1, 1000, i);
        same_seed += to == permutation_at(8, 0, 1000, i);
        fixed_points += to == i;
        same_shift += permutation_at(7, 0, 1000, (i + 1) % 1000) == (to + 1) % 1000;
    }
    assert_true(same_epoch < 12 && same_seed < 12 && fixed_points < 12 && same_shift < 12);
}

/* ---- sequences ---------------------------------------------------------------------------------- */

enum { N_DOCUMENTS = 23, LENGTH = 8, BASE = 100 };

/* Documents of 1 to 23 tokens without repeated tokens; every third token is outside the loss. */
static int32_t make_sequences(Sequences *s, int32_t n_vocab, bool packs) {
    int32_t next = BASE;
    sequences_begin(s, n_vocab, LENGTH, packs);
    for (int k = 1; k <= N_DOCUMENTS; k++) {
        int32_t tokens[N_DOCUMENTS];
        uint8_t loss_mask[N_DOCUMENTS];
        for (int i = 0; i < k; i++) {
            tokens[i] = next++;
            loss_mask[i] = i > 0 && tokens[i] % 3 != 0;
        }
        assert_int_equal(sequences_add(s, &(Document){k, tokens, loss_mask}, NULL), 0);
    }
    assert_int_equal(sequences_end(s, NULL), 0);
    return next;
}

static bool begins_document(int32_t token) {
    int32_t first = BASE;
    for (int k = 1; k <= N_DOCUMENTS; first += k++)
        if (token == first) return true;
    return false;
}

/* Each epoch of the run predicts every token in the loss once, from the token before it. */
static void an_epoch_has_every_token_once(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        bool packs = kind & 1, wide = kind & 2;
        Sequences s;
        int32_t end = make_sequences(&s, wide ? 100000 : 32768, packs), *times = calloc((size_t)end, sizeof *times);
        assert_true(times && s.is_16_bit == !wide);
        int64_t n_counted = 0;
        for (int epoch = 0; epoch < 3; epoch++)
            for (int64_t j = 0; j < s.n; j++) {
                int32_t tokens[LENGTH + 1];
                uint8_t loss_mask[LENGTH];
                sequences_batch(&s, 5, epoch * s.n + j, 1, tokens, loss_mask);
                for (int i = 0; i < LENGTH; i++) {
                    if (!loss_mask[i]) continue;
                    assert_int_equal(tokens[i + 1], tokens[i] + 1);
                    assert_int_equal(times[tokens[i + 1]]++, epoch);
                    n_counted++;
                }
            }
        for (int32_t t = BASE; t < end; t++) assert_int_equal(times[t], t % 3 != 0 && !begins_document(t) ? 3 : 0);
        assert_int_equal(n_counted, 3 * s.n_counted);
        free(times);
        sequences_free(&s);
    }
}

/* A batch has the sequences of its numbers, also across the end of an epoch. */
static void a_batch_depends_only_on_its_first_sequence(void **state) {
    (void)state;
    enum { N = 7 };
    Sequences s;
    make_sequences(&s, 1000, true);
    int32_t tokens[N * (LENGTH + 1)], one[LENGTH + 1];
    uint8_t loss_mask[N * LENGTH], one_mask[LENGTH];
    for (int64_t first = 3 * s.n - 9; first < 3 * s.n + 3; first++) {
        sequences_batch(&s, 9, first, N, tokens, loss_mask);
        for (int64_t j = 0; j < N; j++) {
            sequences_batch(&s, 9, first + j, 1, one, one_mask);
            assert_memory_equal(one, tokens + j * (LENGTH + 1), sizeof one);
            assert_memory_equal(one_mask, loss_mask + j * LENGTH, sizeof one_mask);
        }
    }
    sequences_free(&s);
}

/* By hand: two documents of 4 and 3 tokens in sequences of 3. */
static void cutting_and_packing(void **state) {
    (void)state;
    int32_t a[] = {1, 2, 3, 4}, b[] = {1, 8, 9};
    uint8_t a_mask[] = {0, 1, 1, 1}, b_mask[] = {0, 0, 1};
    static const int32_t packed[2][4] = {{1, 2, 3, 4}, {4, 1, 8, 9}}, apart[2][4] = {{1, 2, 3, 4}, {1, 8, 9, 0}};
    static const uint8_t packed_masks[2][3] = {{1, 1, 1}, {0, 0, 1}}, apart_masks[2][3] = {{1, 1, 1}, {0, 1, 0}};
    for (int packs = 0; packs < 2; packs++) {
        Sequences s;
        sequences_begin(&s, 10, 3, packs);
        assert_int_equal(sequences_add(&s, &(Document){4, a, a_mask}, NULL), 0);
        assert_int_equal(sequences_add(&s, &(Document){3, b, b_mask}, NULL), 0);
        assert_int_equal(sequences_end(&s, NULL), 0);
        assert_int_equal(s.n, 2);
        assert_int_equal(s.n_counted, 4);
        for (int i = 0; i < 2; i++) {
            int32_t tokens[4];
            uint8_t loss_mask[3];
            sequences_get(&s, i, tokens, loss_mask);
            assert_memory_equal(tokens, packs ? packed[i] : apart[i], sizeof tokens);
            assert_memory_equal(loss_mask, packs ? packed_masks[i] : apart_masks[i], sizeof loss_mask);
        }
        sequences_free(&s);
    }
}

/* ---- files -------------------------------------------------------------------------------------- */

static DatasetOptions options_of(char **files, double valid_share) {
    return (DatasetOptions){.files = files, .n_files = 1, .valid_share = valid_share, .length = 16, .packs = true};
}

static void load(Dataset *d, const DatasetOptions *o) {
    fr_error err;
    if (dataset_open(d, o, vocab, &err)) fail_msg("%s", err.message);
}

/* 2000 documents, beginning with number `first` and wrapping around. */
static size_t many_documents(char *text, size_t size, int first) {
    size_t n = 0;
    for (int k = first; k < first + 2000; k++) {
        int i = k % 2000;
        n += (size_t)snprintf(text + n, size - n, "{\"text\": \"Story %d tells of number %d\"}\n", i, i * 7919);
    }
    assert_true(n < size);
    return n;
}

static void some_documents_are_held_out(void **state) {
    (void)state;
    static char text[200000], packed[200000];
    size_t n = many_documents(text, sizeof text, 0);
    char *files[] = {DATA, DATA ".zst"};
    Dataset all, some, again, file;
    spill(DATA, text, n);
    size_t n_packed = ZSTD_compress(packed, sizeof packed, text, n, 3);
    spill(DATA ".zst", packed, n_packed);
    DatasetOptions none = options_of(files, 0), tenth = options_of(files, 0.1);
    load(&all, &none);
    load(&some, &tenth);
    assert_int_equal(all.n_documents, 2000);
    assert_int_equal(all.n_valid_documents, 0);
    assert_true(some.n_valid_documents > 140 && some.n_valid_documents < 260); /* 200 +- 13 */
    assert_int_equal(some.train.n_tokens + some.valid.n_tokens, all.train.n_tokens);
    assert_true(some.fingerprint != all.fingerprint);
    tenth.files = files + 1; /* the same lines, compressed */
    load(&again, &tenth);
    assert_true(again.fingerprint == some.fingerprint && again.valid.n_tokens == some.valid.n_tokens);
    dataset_close(&again);
    many_documents(packed, sizeof packed, 777); /* the same documents are held out in another order */
    spill(DATA, packed, n);
    tenth.files = files;
    load(&again, &tenth);
    assert_true(again.n_valid_documents == some.n_valid_documents && again.valid.n_tokens == some.valid.n_tokens);
    assert_true(again.fingerprint != some.fingerprint);
    spill(VALID, text, strcspn(text, "\n")); /* no newline at the end */
    none.valid_file = VALID;
    load(&file, &none);
    assert_int_equal(file.n_documents, 2001);
    assert_int_equal(file.n_valid_documents, 1);
    assert_int_equal(file.train.n_tokens, all.train.n_tokens);
    dataset_close(&all), dataset_close(&some), dataset_close(&again), dataset_close(&file);
}

static void errors_name_file_and_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"text\": \"a\"}\n\n{\"text\": 1}\n", "line 3 must have a string \"text\""},
        {"{\"text\": \"a\"}\n{\"text\": \"a", "line 2 is not JSON"},
        {"{\"text\": \"a\\u0000b\"}", "line 1 is not JSON"},
        {"{\"text\": \"a\xff\"}", "line 1 is not JSON"},
        {"{\"messages\": []}", "line 1 has a conversation without messages"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "without a string \"content\""},
        {"{\"messages\": [{\"content\": \"a\"}]}", "without a string \"role\""},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "forerun distill-data"},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}", "the role 'tool'"},
        {"{\"prompt\": \"a\"}", "forerun distill-data"},
        {"", "holds no text to learn from"},
        {"{\"text\": \"\"}\n", "holds no text to learn from"},
    };
    char *files[] = {DATA};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Dataset d;
        fr_error err;
        DatasetOptions o = options_of(files, 0);
        spill(DATA, cases[i].text, strlen(cases[i].text));
        if (!dataset_open(&d, &o, vocab, &err)) fail_msg("%s: accepted", cases[i].text);
        if (!strstr(err.message, cases[i].message) || !strstr(err.message, DATA))
            fail_msg("%s: '%s'", cases[i].text, err.message);
        assert_true(d.train.n_tokens == 0 && !d.train.tokens16);
    }
    Dataset d;
    fr_error err;
    DatasetOptions o = options_of(files, 0.9999999);
    spill(DATA, "{\"text\": \"a\"}", 13);
    assert_int_equal(dataset_open(&d, &o, vocab, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "--valid 0"));
    files[0] = "/nowhere.jsonl";
    assert_int_equal(dataset_open(&d, &o, vocab, &err), FR_ERR_IO);
}

static void a_line_that_is_too_long_is_refused(void **state) {
    (void)state;
    LineReader *r;
    const char *line;
    size_t n;
    fr_error err;
    spill(DATA, "short\nlonger than twelve\n", 25);
    assert_int_equal(line_reader_open(&r, DATA, false, 30, &err), 0); /* each line fits */
    assert_int_equal(line_reader_next(r, &line, &n, &err), 1);
    assert_string_equal(line, "short");
    assert_int_equal(line_reader_next(r, &line, &n, &err), 1);
    assert_string_equal(line, "longer than twelve");
    assert_int_equal(line_reader_number(r), 2);
    assert_int_equal(line_reader_next(r, &line, &n, &err), 0);
    line_reader_close(r);
    assert_int_equal(line_reader_open(&r, DATA, false, 12, &err), 0);
    assert_int_equal(line_reader_next(r, &line, &n, &err), FR_ERR_MEMORY);
    assert_non_null(strstr(err.message, "more than 12 bytes"));
    line_reader_close(r);
}

/* If the vocabulary's file names no chat format, conversations get the plain one, and the dataset reports that. */
static void a_file_without_chat_format_gets_the_plain_one(void **state) {
    (void)state;
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 32,
                           .n_head = 1,
                           .n_head_kv = 1,
                           .n_ff = 32,
                           .n_vocab = 300,
                           .seed = 1};
    static const char *const lines[] = {"{\"text\": \"a\"}\n", "{\"prompt\": \"a\", \"response\": \"b\"}\n",
                                        ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                                         "\"assistant\", \"content\": \"b\"}]}\n")};
    Gguf *g = rig_random_gguf(&m);
    char *files[] = {DATA};
    for (int i = 0; i < 3; i++) {
        Dataset d;
        DatasetOptions o = options_of(files, 0);
        spill(DATA, lines[i], strlen(lines[i]));
        assert_int_equal(dataset_open(&d, &o, g, NULL), 0);
        assert_int_equal(d.wrote_plain, i == 2);
        dataset_close(&d);
        load(&d, &o); /* the shipped model's file names a format */
        assert_false(d.wrote_plain);
        dataset_close(&d);
    }
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_and_their_loss_mask),
        cmocka_unit_test(order_is_a_permutation),
        cmocka_unit_test(an_epoch_has_every_token_once),
        cmocka_unit_test(a_batch_depends_only_on_its_first_sequence),
        cmocka_unit_test(cutting_and_packing),
        cmocka_unit_test(some_documents_are_held_out),
        cmocka_unit_test(errors_name_file_and_line),
        cmocka_unit_test(a_line_that_is_too_long_is_refused),
        cmocka_unit_test(a_file_without_chat_format_gets_the_plain_one),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
