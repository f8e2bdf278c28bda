/* fuzz_records.c - any bytes as a line of training data: it is refused, or it is one of the four forms with all its
 * parts. */
#include "base/error.h"
#include "train/records.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_messages(const Record *r) {
    Buf out = {.max_bytes = 1 << 16};
    fr_assert(r->n_messages >= 1);
    volatile size_t n_bytes = 0;
    bool has_roles = true;
    for (int i = 0; i < r->n_messages; i++) {
        fr_assert(r->messages[i].content);
        n_bytes += strlen(r->messages[i].content) + (r->messages[i].role ? strlen(r->messages[i].role) : 0);
        has_roles = has_roles && r->messages[i].role;
        (void)record_is_cut(r, i);
    }
    (void)n_bytes;
    if (has_roles) (void)chat_format(CHAT_CHATML, r->messages, r->n_messages, &out, NULL, NULL, NULL);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    Record r;
    fr_error err = {0};
    if (record_parse(&r, (const char *)bytes, n, &err) != FR_OK) {
        fr_assert(err.code != FR_OK && err.message[0] != '\0');
        return 0;
    }
    switch (r.kind) {
    case RECORD_TEXT: fr_assert(r.text); break;
    case RECORD_PAIR: fr_assert(r.prompt); break;
    case RECORD_TOKENS: fr_assert(json_is_array(r.tokens) && r.n_prompt >= 0 && r.n_prompt <= r.n_tokens); break;
    case RECORD_CHAT: check_messages(&r); break;
    }
    (void)record_is_lossy(&r);
    (void)record_is_of_target(&r, n);
    if (r.kind != RECORD_CHAT) (void)record_is_cut(&r, 0);
    record_free(&r);
    return 0;
}
