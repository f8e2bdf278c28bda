/* fuzz_prefix.c - arbitrary bytes as a saved prefix: they are refused, and the engine goes on; or they are accepted,
 * and a request that begins with their tokens ends, whatever keys and values it reads.
 *
 * If byte 0 of an input is odd, the other bytes get what a sound prefix has at its beginning (what it is bound to) and
 * at its end (the checksum), so that the parts between are reached. Byte 1 is the number of tokens to continue. */
#include "base/error.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { N_PROMPT = 24, BOUND_BYTES = 72, N_BYTES_AT = 16, CHECKSUM_BYTES = 8 };

static const char *const draft = "sps:length=2,model=tests/fuzz/target.gguf+recycling:k=2,depth=2";

static fr_model *target;

static fr_engine *open_engine(void) {
    fr_engine *e;
    fr_error err = {0};
    if (!target)
        fr_assert(fr_model_open(&target, "tests/fuzz/target.gguf",
                                &(fr_model_options){.struct_size = sizeof(fr_model_options), .n_threads = 1},
                                &err) == FR_OK);
    const fr_engine_options o = {.struct_size = sizeof o,
                                 .n_threads = 1,
                                 .n_ctx = 48,
                                 .kv_page_size = 4,
                                 .prefix_cache = 2,
                                 .n_drafts = 1,
                                 .drafts = &draft};
    fr_assert(fr_engine_open(&e, target, &o, &err) == FR_OK);
    return e;
}

static void generate(fr_engine *e, const int32_t *prompt, int64_t n) {
    fr_request *r;
    fr_error err;
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = n,
                                  .max_tokens = 4,
                                  .sampling = fr_sampling_default(),
                                  .drafts = &draft,
                                  .n_drafts = 1,
                                  .tree_budget = 3,
                                  .ignore_eos = 1};
    fr_assert(fr_request_open(&r, e, &o, &err) == FR_OK);
    while (fr_engine_step(e, &err) > 0) {}
    fr_assert(fr_request_finish_reason(r) != FR_FINISH_NONE);
    fr_request_close(r);
}

/* Returns the first bytes of a sound prefix, which must be accepted: otherwise all inputs might be refused for the same
 * reason. */
static const char *sound_beginning(void) {
    static char beginning[BOUND_BYTES];
    static bool is_known;
    int32_t prompt[N_PROMPT];
    void *data;
    size_t n;
    if (is_known) return beginning;
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = 3 + i;
    fr_engine *e = open_engine();
    generate(e, prompt, N_PROMPT);
    const int32_t *tokens;
    int64_t n_tokens;
    fr_assert(fr_engine_get_prefix(e, 0, &tokens, &n_tokens));
    fr_assert(fr_engine_save_prefix(e, tokens, n_tokens, &data, &n, NULL) == FR_OK && n > BOUND_BYTES);
    fr_engine_close(e);
    e = open_engine();
    fr_assert(fr_engine_restore_prefix(e, data, n, NULL, NULL, NULL) == FR_OK);
    fr_engine_close(e);
    memcpy(beginning, data, BOUND_BYTES);
    fr_free(data);
    is_known = true;
    return beginning;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n < 2) return 0;
    size_t n_saved = n - 2;
    char *saved = malloc(n_saved + 1);
    fr_assert(saved);
    memcpy(saved, bytes + 2, n_saved);
    if (bytes[0] & 1 && n_saved > BOUND_BYTES + CHECKSUM_BYTES) {
        uint64_t size = n_saved;
        memcpy(saved, sound_beginning(), BOUND_BYTES);
        memcpy(saved + N_BYTES_AT, &size, sizeof size);
        uint64_t checksum = hash64(saved, n_saved - CHECKSUM_BYTES, 0);
        memcpy(saved + n_saved - CHECKSUM_BYTES, &checksum, sizeof checksum);
    }
    fr_engine *e = open_engine();
    fr_error err = {0};
    const int32_t *tokens;
    int64_t n_tokens;
    int status = fr_engine_restore_prefix(e, saved, n_saved, &tokens, &n_tokens, &err);
    fr_assert(status == FR_OK || (err.code == status && err.message[0] && fr_engine_get_prefix(e, 0, NULL, NULL) == 0));
    if (status == FR_OK) {
        int32_t prompt[49] = {0};
        int64_t n_prompt = n_tokens < 40 ? n_tokens : 40;
        memcpy(prompt, tokens, (size_t)n_prompt * sizeof *prompt);
        for (int i = 0; i < bytes[1] % 4; i++) prompt[n_prompt++] = 5;
        generate(e, prompt, n_prompt);
    }
    fr_engine_close(e);
    free(saved);
    return 0;
}
