/* verify_rules.c - the list of rules of acceptance. */
#include "spec/verifier.h"

#include <string.h>

static const VerifyRule sampled = {
    .name = "sampled",
    .summary = "the target's own keyed draw at every node: the text of plain decoding, token for token",
    .verify = verify_sampled,
};

static const VerifyRule *const rules[] = {&sampled, NULL};

const VerifyRule *const *verify_rules(void) { return rules; }

const VerifyRule *verify_rule_find(const char *name) {
    for (int i = 0; rules[i]; i++)
        if (strcmp(rules[i]->name, name) == 0) return rules[i];
    return NULL;
}
