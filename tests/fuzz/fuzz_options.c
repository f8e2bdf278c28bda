/* fuzz_options.c - any text as the options of a drafter or a verification rule, or as a specification with its name:
 * they are refused with a message, or every number is in its range.
 *
 * Byte 0 chooses: the table of a drafter, by its number (no drafter is opened: a valid number may need much memory); a
 * rule with its name; or the names of drafters, which are opened if they have no options. */
#include "base/mem.h"
#include "draft/drafter.h"
#include "verify/verifier.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { RULE = 100, LOSSY_RULE, NAME };

static void check_field(const Option *row, const void *options) {
    const char *at = (const char *)options + row->offset;
    double real = 0;
    int64_t number = 0;
    switch (row->kind) {
    case OPTION_I32: {
        int32_t v;
        memcpy(&v, at, sizeof v);
        number = v;
        break;
    }
    case OPTION_I64: memcpy(&number, at, sizeof number); break;
    case OPTION_F64:
        memcpy(&real, at, sizeof real);
        fr_assert(!row->default_value || (real >= row->min_real && real <= row->max_real));
        return;
    case OPTION_BUFFER: fr_assert(memchr(at, '\0', (size_t)row->max)); return;
    default: return;
    }
    fr_assert(!row->default_value || (number >= row->min && number <= row->max) ||
              (row->word && number == row->word_value));
}

static void parse_table(const DrafterClass *class, char *text) {
    fr_error err = {0};
    void *options = mem_calloc(1, class->options_size ? class->options_size : 1);
    fr_assert(options);
    if (options_parse(class->option_table, class->name, text, options, &err) != FR_OK)
        fr_assert(err.code != FR_OK && err.message[0] != '\0');
    else
        for (const Option *row = class->option_table; row->key; row++) check_field(row, options);
    mem_free(options);
}

static void parse_rule(const char *text, bool allow_lossy) {
    const VerifyRule *rule;
    VerifyOptions options;
    fr_error err = {0};
    if (verify_rule_parse(text, allow_lossy, &rule, &options, &err) != FR_OK) {
        fr_assert(err.code != FR_OK && err.message[0] != '\0');
        return;
    }
    fr_assert(rule && (allow_lossy || !rule->is_lossy));
    fr_assert(isfinite(options.gamma) && isfinite(options.epsilon) && isfinite(options.delta));
}

static void open_name(const char *text) {
    DrafterEnv env = {.n_vocab = 100, .max_sequences = 2};
    Drafter *d;
    fr_error err = {0};
    if (strchr(text, ':') && text[strcspn(text, ":") + 1]) return;
    if (drafter_open(&d, text, &env, 0, &err) != FR_OK) fr_assert(!d && err.message[0] != '\0');
    drafter_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    const DrafterClass *const *classes = drafter_classes();
    int n_classes = 0;
    if (n == 0) return 0;
    while (classes[n_classes]) n_classes++;
    char *text = mem_alloc(n);
    fr_assert(text);
    memcpy(text, bytes + 1, n - 1);
    text[n - 1] = '\0';
    if (bytes[0] == RULE || bytes[0] == LOSSY_RULE) parse_rule(text, bytes[0] == LOSSY_RULE);
    else if (bytes[0] == NAME) open_name(text);
    else parse_table(classes[bytes[0] % n_classes], text);
    mem_free(text);
    return 0;
}
