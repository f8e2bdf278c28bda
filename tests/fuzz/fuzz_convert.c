/* fuzz_convert.c - any bytes as one of the small files of a published model, after one byte that chooses the file:
 * config.json, tokenizer.json, tokenizer.model, tokenizer_config.json. They are refused, or every token has a
 * spelling. */
#include "scratch_file.h"

#include "cli/convert/convert_arch.h"
#include "cli/convert/convert_vocab.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { N_VOCAB = 40 };

static void check_shape(const HubFolder *c) {
    ConvertShape s;
    static float divisors[1 << 12];
    fr_error err = {0};
    (void)convert_arch_find(c, &err);
    if (convert_shape_read(&s, c, &(ConvertUsual){.activation = NULL}, &err)) fr_assert(err.message[0]);
    else {
        GgufWriter *w = gguf_writer_new();
        convert_rope_write(&s, w);
        convert_rope_tensors(&s, divisors, w);
        gguf_writer_free(w);
    }
}

static void check_vocab(const HubFolder *c) {
    ConvertVocab v;
    fr_error err = {0};
    GgufWriter *w = gguf_writer_new();
    if (convert_vocab_read(&v, c, N_VOCAB, &err)) fr_assert(err.message[0]);
    else {
        for (int64_t i = 0; i < v.n; i++) fr_assert(v.pieces[i].data && v.types[i] >= TOKEN_NORMAL);
        (void)convert_vocab_write(&v, c, w, &err);
    }
    convert_vocab_close(&v);
    gguf_writer_free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static const char spm[] = "\n\x07\n\x01"
                              "a\x18\x01\x12\x02\x18\x02";
    HubFolder c = {.n_files = 0};
    if (n == 0) return 0;
    json_t *json = bytes[0] % 4 == 2 ? json_object() : json_loadb((const char *)bytes + 1, n - 1, 0, NULL);
    bool is_model = bytes[0] % 4 == 2;
    snprintf(c.folder, sizeof c.folder, "%s", scratch_folder());
    unlink(scratch_file("tokenizer.model", (const uint8_t *)"", 0));
    if (is_model) (void)scratch_file("tokenizer.model", bytes + 1, n - 1);
    if (bytes[0] % 4 == 3) (void)scratch_file("tokenizer.model", (const uint8_t *)spm, sizeof spm - 1);
    c.config = json_object();
    if (json_is_object(json)) {
        if (bytes[0] % 4 == 0) json_object_update(c.config, json), check_shape(&c);
        if (bytes[0] % 4 == 1) c.tokenizer = json;
        if (bytes[0] % 4 == 3) c.tokenizer_config = json;
        if (bytes[0] % 4 != 0) check_vocab(&c);
    }
    json_decref(json);
    json_decref(c.config);
    return 0;
}
