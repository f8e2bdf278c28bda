/* test_traffic.c - records of generations as training data: the tokens are learned unchanged, hostile values are
 * refused, and the right lines of a file of records are read. */
#include "testing.h"

#include "model_rig.h"
#include "train/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "build/test-traffic.jsonl"
#define OURS 0x0123456789abcdefu
#define OUR_TARGET "\"target\": \"0123456789abcdef\""

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
    return unlink(DATA);
}

static void spill(const char *text) {
    FILE *f = fopen(DATA, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int make(const char *line, Document *d, fr_error *err) {
    const DocumentForm form = {tokenizer, CHAT_PLAIN, false, tokenizer_n_vocab(tokenizer)};
    Record r;
    int status = record_parse(&r, line, strlen(line), err);
    if (status) return status;
    status = document_make(d, &form, &r, err);
    record_free(&r);
    return status;
}

/* ---- a record ------------------------------------------------------------------------------------- */

/* Writes the tokens of a document as a record. */
static void write_record(const Document *d, int64_t n_prompt, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "{\"prompt_tokens\": %lld, \"tokens\": [", (long long)n_prompt);
    for (int64_t i = 0; i < d->n; i++) n += (size_t)snprintf(out + n, size - n, "%s%d", i ? "," : "", d->tokens[i]);
    assert_true((size_t)snprintf(out + n, size - n, "]}") < size - n);
}

/* If the text determines its tokens, a record of ids gives the same document as a prompt with its response. */
static void ids_make_the_document_of_their_text(void **state) {
    (void)state;
    static const char *const lines[] = {"{\"prompt\": \"Q: two\\nA:\", \"response\": \" 2\"}",
                                        "{\"prompt\": \"The cat\", \"response\": \"\"}",
                                        "{\"prompt\": \"They were so happ\", \"response\": \"y. Then they went.\"}"};
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        Document text, ids;
        fr_error err;
        char record[4000];
        int64_t n_prompt = 0;
        assert_int_equal(make(lines[k], &text, &err), 0);
        while (!text.loss_mask[n_prompt]) n_prompt++;
        write_record(&text, n_prompt, record, sizeof record);
        assert_int_equal(make(record, &ids, &err), 0);
        assert_int_equal(ids.n, text.n);
        assert_memory_equal(ids.tokens, text.tokens, (size_t)text.n * sizeof *text.tokens);
        assert_memory_equal(ids.loss_mask, text.loss_mask, (size_t)text.n);
        document_free(&text);
        document_free(&ids);
    }
}

static void what_was_generated_is_learned(void **state) {
    (void)state;
    int32_t eos = tokenizer_eos(tokenizer);
    static const struct {
        const char *line;
        int n;
        const char *loss_mask; /* the loss mask of the record's tokens */
        bool adds_eos;         /* as a separator, which is not learned */
    } cases[] = {
        {"{\"tokens\": [1, 300, 301, 302], \"prompt_tokens\": 2}", 4, "0011", true},
        {"{\"tokens\": [1, 300, 301, 2], \"prompt_tokens\": 2, \"finish\": \"eos\"}", 4, "0011", false},
        {"{\"tokens\": [1, 300, 2], \"prompt_tokens\": 2, \"finish\": \"length\"}", 3, "001", false},
        {"{\"tokens\": [300, 301], \"prompt_tokens\": 0}", 2, "01", true},
        {"{\"tokens\": [1, 300], \"prompt_tokens\": 2}", 2, "00", true},
        {"{\"tokens\": [7], \"prompt_tokens\": 0}", 1, "0", true},
        {"{\"tokens\": [], \"prompt_tokens\": 0}", 0, "", false},
        /* no special token is read out of it, and no EOS in the middle ends it */
        {"{\"tokens\": [1, 2, 1, 2, 300], \"prompt_tokens\": 1}", 5, "01111", true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Document d;
        fr_error err;
        assert_int_equal(make(cases[k].line, &d, &err), 0);
        assert_int_equal(d.n, cases[k].n + cases[k].adds_eos);
        for (int i = 0; i < cases[k].n; i++) assert_int_equal(d.loss_mask[i], cases[k].loss_mask[i] - '0');
        if (cases[k].adds_eos) assert_true(d.tokens[d.n - 1] == eos && d.loss_mask[d.n - 1] == 0);
        document_free(&d);
    }
}

static void hostile_records_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"{\"tokens\": [1, 2]}", "must also have \"prompt_tokens\", an integer from 0 to 2"},
        {"{\"tokens\": [1, 2], \"prompt_tokens\": 3}", "an integer from 0 to 2"},
        {"{\"tokens\": [1, 2], \"prompt_tokens\": -1}", "an integer from 0 to 2"},
        {"{\"tokens\": [1, 2], \"prompt_tokens\": 1.0}", "an integer from 0 to 2"},
        {"{\"tokens\": [1, 2], \"prompt_tokens\": \"1\"}", "an integer from 0 to 2"},
        {"{\"tokens\": [1, 2], \"prompt_tokens\": 9223372036854775807}", "an integer from 0 to 2"},
        {"{\"tokens\": {\"0\": 1}, \"prompt_tokens\": 0}", "must have a string \"text\""},
        {"{\"tokens\": [1, 4096], \"prompt_tokens\": 1}", "item 2 is not an integer from 0 to 4095"},
        {"{\"tokens\": [-1, 4095], \"prompt_tokens\": 1}", "item 1 is not an integer"},
        {"{\"tokens\": [1, 4294967297], \"prompt_tokens\": 1}", "item 2 is not an integer"},
        {"{\"tokens\": [1, 2.0], \"prompt_tokens\": 1}", "item 2 is not an integer"},
        {"{\"tokens\": [1, null], \"prompt_tokens\": 1}", "item 2 is not an integer"},
        {"{\"tokens\": [1, [2]], \"prompt_tokens\": 1}", "item 2 is not an integer"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Document d = {0};
        fr_error err;
        assert_int_equal(make(cases[k].line, &d, &err), FR_ERR_FORMAT);
        if (!strstr(err.message, cases[k].words)) fail_msg("%s: %s", cases[k].line, err.message);
        assert_true(d.n == 0 && !d.tokens && !d.loss_mask);
    }
}

/* ---- a file of records ---------------------------------------------------------------------------- */

static int open_traffic(Dataset *d, int64_t first, int64_t new_line, int64_t end, int64_t max_text, fr_error *err) {
    const Traffic t = {.path = DATA, .target = OURS, .first_line = first, .new_line = new_line, .end_line = end};
    return dataset_open(d, &(DatasetOptions){.traffic = &t, .length = 8, .max_text = max_text}, vocab, err);
}

#define RECORD(first) "{\"tokens\": [" #first ", 5, 6], \"prompt_tokens\": 1, " OUR_TARGET "}\n"

static void lines_of_this_target_are_read(void **state) {
    (void)state;
    Dataset d;
    fr_error err;
    spill(RECORD(10) "{\"tokens\": [11, 5], \"prompt_tokens\": 1, \"target\": \"fedcba9876543210\"}\n"
                     "{\"tokens\": [12, 5], \"prompt_tokens\": 1}\n"             /* it names no target */
                     "{\"prompt\": \"a\", \"response\": \"b\", \"target\": 1}\n" /* it names no target, either */
                     "{\"tokens\": [13, 5, \n"                                   /* a line that a kill cut off */
                     "\n" RECORD(14) RECORD(15) "{\"tokens\": [16");
    assert_int_equal(open_traffic(&d, 0, 0, 8, 0, &err), 0);
    assert_int_equal(d.n_documents, 3);
    assert_int_equal(d.n_new, 3);
    assert_int_equal(d.n_other_target, 3);
    assert_int_equal(d.n_broken, 1);
    assert_int_equal(d.train.n_counted, 3 * 2);
    assert_int_equal(sequences_token(&d.train, 0), 10);
    assert_int_equal(sequences_token(&d.train, 4), 14);
    dataset_close(&d);
    assert_int_equal(open_traffic(&d, 0, 7, 8, 0, &err), 0); /* all are read, and one is new */
    assert_true(d.n_documents == 3 && d.n_new == 1);
    dataset_close(&d);
    assert_int_equal(open_traffic(&d, 7, 7, 8, 0, &err), 0); /* only the new one */
    assert_true(d.n_documents == 1 && d.n_new == 1 && sequences_token(&d.train, 0) == 15);
    dataset_close(&d);
    assert_int_equal(open_traffic(&d, 0, 0, 7, 0, &err), 0); /* a line after the end is left for the next time */
    assert_int_equal(d.n_documents, 2);
    dataset_close(&d);
    assert_int_equal(open_traffic(&d, 0, 8, 8, 0, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "has no new record of this target"));
    assert_int_equal(open_traffic(&d, 1, 1, 5, 0, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "3 records of other models, 1 lines that are no records"));
}

/* A record of this target with wrong tokens cannot result from a kill. */
static void wrong_tokens_end_the_reading(void **state) {
    (void)state;
    Dataset d;
    fr_error err;
    spill(RECORD(10) RECORD(70000));
    assert_int_equal(open_traffic(&d, 0, 0, 2, 0, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, DATA ": line 2 has a list \"tokens\" whose item 1"));
    spill(RECORD(10) "{\"tokens\": [70000], \"prompt_tokens\": 0, \"target\": \"fedcba9876543210\"}\n");
    assert_int_equal(open_traffic(&d, 0, 0, 2, 0, &err), 0); /* another model has another vocabulary */
    dataset_close(&d);
}

static void huge_lists_are_bounded(void **state) {
    (void)state;
    enum { N = 7 << 20 };
    static char text[2 * N + 100];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"prompt_tokens\": 1, " OUR_TARGET ", \"tokens\": [1");
    while (n < 2 * N) n += (size_t)snprintf(text + n, sizeof text - n, ",7");
    snprintf(text + n, sizeof text - n, "]}\n");
    spill(text);
    Dataset d;
    fr_error err;
    assert_int_equal(open_traffic(&d, 0, 0, 1, 0, &err), 0);
    assert_true(d.n_documents == 1 && d.train.n_counted > N - 100);
    dataset_close(&d);
    assert_int_equal(open_traffic(&d, 0, 0, 1, 1 << 20, &err), FR_ERR_MEMORY);
    assert_non_null(strstr(err.message, "--max-text"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_make_the_document_of_their_text), cmocka_unit_test(what_was_generated_is_learned),
        cmocka_unit_test(hostile_records_are_refused),         cmocka_unit_test(lines_of_this_target_are_read),
        cmocka_unit_test(wrong_tokens_end_the_reading),        cmocka_unit_test(huge_lists_are_bounded),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
