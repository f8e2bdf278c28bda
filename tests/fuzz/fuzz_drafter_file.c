/* fuzz_drafter_file.c - arbitrary bytes as the file of a learned drafter: the file is refused, or it drafts and the
 * text is that of plain decoding, whatever its weights are.
 *
 * Byte 0 of an input selects the method, and the other bytes are the file. A file contains the fingerprint of its
 * target, which is here tests/fuzz/target.gguf; the files of the corpus were trained for it (tests/fuzz/README.md).
 * Everything goes through the public API. */
#include "all_drafters.h"
#include "scratch_file.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { N_PROMPT = 6, N_TOKENS = 8 };

/* Returns the method that this byte selects. */
static const char *method_of(uint8_t byte) {
    const char *const *methods = trained_methods();
    int n = 0;
    while (methods[n]) n++;
    return methods[byte % n];
}

static const fr_model *open_target(void) {
    static fr_model *target;
    fr_error err = {0};
    if (!target)
        fr_assert(fr_model_open(&target, "tests/fuzz/target.gguf",
                                &(fr_model_options){.struct_size = sizeof(fr_model_options), .n_threads = 1},
                                &err) == FR_OK);
    return target;
}

/* Writes the tokens of the text and returns true; returns false with the reason in *err if the drafter is refused. */
static bool generate(const char *draft, int32_t tokens[N_TOKENS], fr_error *err) {
    static const int32_t prompt[N_PROMPT] = {1, 80, 90, 100, 90, 80};
    fr_engine *engine;
    fr_request *request;
    *err = (fr_error){.code = FR_OK};
    int64_t n = 0;
    int left = 0;
    fr_assert(
        fr_engine_open(&engine, open_target(),
                       &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 32},
                       err) == FR_OK);
    fr_request_options options = {.struct_size = sizeof options,
                                  .prompt = prompt,
                                  .n_prompt = N_PROMPT,
                                  .max_tokens = N_TOKENS,
                                  .sampling = fr_sampling_default(),
                                  .drafts = &draft,
                                  .n_drafts = draft ? 1 : 0,
                                  .tree_budget = 6,
                                  .ignore_eos = 1};
    bool opened = !draft || fr_engine_open_draft(engine, draft, err) == FR_OK;
    fr_assert(opened || (err->code != FR_OK && err->message[0] != '\0'));
    if (opened) fr_assert(fr_request_open(&request, engine, &options, err) == FR_OK);
    if (opened) {
        while ((left = fr_engine_step(engine, err)) > 0) {}
        const int32_t *got = fr_request_tokens(request, &n);
        fr_assert(left == 0 && n == N_TOKENS);
        memcpy(tokens, got, N_TOKENS * sizeof *tokens);
        fr_request_close(request);
    }
    fr_engine_close(engine);
    return opened;
}

/* Returns the text of plain decoding. The first call also requires that all sound files are accepted: otherwise every
 * input might be refused for the same reason, and nothing would be tested. */
static const int32_t *plain_text(void) {
    static int32_t plain[N_TOKENS], drafted[N_TOKENS];
    static bool has_plain;
    fr_error err;
    if (has_plain) return plain;
    has_plain = generate(NULL, plain, &err);
    fr_assert(has_plain);
    for (const char *const *m = trained_methods(); *m; m++) {
        char path[64], draft[64];
        snprintf(path, sizeof path, "tests/fuzz/corpus/drafter_file/%s", *m);
        FILE *f = fopen(path, "rb");
        if (!f) fprintf(stderr, "%s: there is no sound file of this method (tests/fuzz/README.md)\n", path);
        fr_assert(f);
        fr_assert(strcmp(method_of((uint8_t)fgetc(f)), *m) == 0);
        fclose(f);
        snprintf(draft, sizeof draft, "%s:file=%s", *m, memory_file_of(path, 1));
        bool is_sound = generate(draft, drafted, &err);
        if (!is_sound) fprintf(stderr, "%s: %s\n", path, err.message);
        fr_assert(is_sound);
    }
    return plain;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    int32_t drafted[N_TOKENS];
    char draft[64];
    fr_error err;
    if (n == 0) return 0;
    const int32_t *plain = plain_text();
    snprintf(draft, sizeof draft, "%s:file=%s", method_of(bytes[0]), memory_file(bytes + 1, n - 1));
    if (generate(draft, drafted, &err)) fr_assert(memcmp(plain, drafted, sizeof drafted) == 0);
    return 0;
}
