/* verify_rules.c - the list of rules of acceptance, and how they are written. */
#include "spec/verify/ratio.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const VerifyRule sampled = {
    .name = "sampled",
    .summary = "the target's own keyed draw at every node: the text of plain decoding, token for token",
    .verify = verify_sampled,
};

static const VerifyRule *const rules[] = {
    &sampled, &verify_rule_chain, &verify_rule_block, &verify_rule_multi_round, &verify_rule_recursive, &verify_rule_k_seq,
    &verify_rule_typical, NULL,
};

const VerifyRule *const *verify_rules(void) { return rules; }

const VerifyRule *verify_rule_find(const char *name) {
    for (int i = 0; rules[i]; i++)
        if (strcmp(rules[i]->name, name) == 0) return rules[i];
    return NULL;
}

static int refuse_option(const VerifyRule *rule, const char *option, size_t n, fr_error *err) {
    char known[256] = "";
    size_t used = 0;
    for (const VerifyRuleOption *o = rule->options; o->key && used < sizeof known; o++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s=X with X from %g to %g, %s", used ? "; " : "", o->key,
                                 o->min, o->max, o->otherwise);
    return error_set(err, FR_ERR_ARGUMENT, "'%.*s' is no option of the rule %s; write %s", n > 40 ? 40 : (int)n, option,
                     rule->name, known);
}

/* One "key=X" of n characters. */
static int parse_option(const VerifyRule *rule, const char *text, size_t n, VerifyOptions *out, fr_error *err) {
    for (const VerifyRuleOption *o = rule->options; o->key; o++) {
        size_t n_key = strlen(o->key);
        if (strncmp(text, o->key, n_key) != 0 || text[n_key] != '=') continue;
        char *end;
        double value = strtod(text + n_key + 1, &end);
        if (!(value >= o->min && value <= o->max) || end == text + n_key + 1 || end != text + n) break;
        *(double *)(void *)((char *)out + o->offset) = value;
        return FR_OK;
    }
    return refuse_option(rule, text, n, err);
}

static int parse_options(const VerifyRule *rule, const char *text, VerifyOptions *out, fr_error *err) {
    if (!rule->options)
        return error_set(err, FR_ERR_ARGUMENT, "the rule of acceptance '%s' takes no options; write it alone", rule->name);
    for (;; text++) {
        size_t n = strcspn(text, ",");
        int status = parse_option(rule, text, n, out, err);
        if (status || !text[n]) return status;
        text += n;
    }
}

int verify_rule_parse(const char *text, bool allow_lossy, const VerifyRule **rule, VerifyOptions *options, fr_error *err) {
    const char *colon = strchr(text, ':');
    size_t n_name = colon ? (size_t)(colon - text) : strlen(text);
    char name[32];
    snprintf(name, sizeof name, "%.*s", n_name < sizeof name ? (int)n_name : 0, text);
    *options = (VerifyOptions){.gamma = 0};
    *rule = verify_rule_find(name);
    if (!*rule)
        return error_set(err, FR_ERR_ARGUMENT, "there is no rule of acceptance '%.40s'; `forerun run --help` lists them",
                         text);
    if ((*rule)->is_lossy && !allow_lossy)
        return error_set(err, FR_ERR_ARGUMENT, "the rule '%s' is lossy: the text would follow another distribution than the target's; "
                         "give --lossy too (allow_lossy) if you want that, or choose another rule", (*rule)->name);
    return colon ? parse_options(*rule, colon + 1, options, err) : FR_OK;
}
