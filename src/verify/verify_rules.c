/* verify_rules.c - the list of verification rules, and how a user names one: "rule" or "rule:key=X,key=X". */
#include "verify/ratio.h"

#include <string.h>

static const VerifyRule sampled = {
    .name = "sampled",
    .summary = "the target's own keyed draw at every node: the text of plain decoding, token for token",
    .verify = verify_sampled,
};

static const VerifyRule *const rules[] = {
    &sampled,
    &verify_rule_chain,
    &verify_rule_block,
    &verify_rule_multi_round,
    &verify_rule_recursive,
    &verify_rule_k_seq,
    &verify_rule_transport,
    &verify_rule_typical,
    NULL,
};

const VerifyRule *const *verify_rules(void) { return rules; }

const VerifyRule *verify_rule_find(const char *name) {
    for (int i = 0; rules[i]; i++)
        if (strcmp(rules[i]->name, name) == 0) return rules[i];
    return NULL;
}

int verify_rule_parse(const char *text, bool allow_lossy, const VerifyRule **rule, VerifyOptions *options,
                      fr_error *err) {
    static const Option no_options[] = {{.key = NULL}};
    char copy[256]; /* options_parse cuts it into strings */
    size_t n = strlen(text), n_name = strcspn(text, ":");
    memcpy(copy, text, n < sizeof copy ? n + 1 : 0);
    copy[n < sizeof copy ? n_name : 0] = '\0';
    *options = (VerifyOptions){.gamma = 0};
    *rule = verify_rule_find(copy);
    if (!*rule)
        return error_set(err, FR_ERR_ARGUMENT, "there is no verification rule '%.40s'; `forerun run --help` lists them",
                         text);
    if ((*rule)->is_lossy && !allow_lossy)
        return error_set(
            err, FR_ERR_ARGUMENT,
            "the rule '%s' is lossy: the text would follow another distribution than the target's; allow it "
            "with --lossy, or choose another rule",
            (*rule)->name);
    if (n > n_name && !copy[n_name + 1])
        return error_set(err, FR_ERR_ARGUMENT, "'%.40s': write key=X after the colon, or leave the colon out", text);
    const Option *table = (*rule)->option_table ? (*rule)->option_table : no_options;
    return options_parse(table, (*rule)->name, n > n_name ? copy + n_name + 1 : NULL, options, err);
}
