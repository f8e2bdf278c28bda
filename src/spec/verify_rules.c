/* verify_rules.c - the list of rules of acceptance, and how they are written. */
#include "spec/ratio.h"

#include <math.h>
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
    NULL,
};

const VerifyRule *const *verify_rules(void) { return rules; }

const VerifyRule *verify_rule_find(const char *name) {
    for (int i = 0; rules[i]; i++)
        if (strcmp(rules[i]->name, name) == 0) return rules[i];
    return NULL;
}

static int parse_gamma(const VerifyRule *rule, const char *option, double *gamma, fr_error *err) {
    if (!rule->takes_gamma)
        return error_set(err, FR_ERR_ARGUMENT, "the rule of acceptance '%s' takes no options; write it alone", rule->name);
    char *end;
    *gamma = strncmp(option, "gamma=", 6) == 0 ? strtod(option + 6, &end) : NAN;
    if (*gamma >= 1 && *gamma <= 1e6 && end != option + 6 && !*end) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "'%.40s' is no option of the rule %s; write gamma=X with X from 1 to 1000000, "
                     "or nothing to have it searched", option, rule->name);
}

int verify_rule_parse(const char *text, const VerifyRule **rule, double *gamma, fr_error *err) {
    const char *colon = strchr(text, ':');
    size_t n_name = colon ? (size_t)(colon - text) : strlen(text);
    char name[32];
    snprintf(name, sizeof name, "%.*s", n_name < sizeof name ? (int)n_name : 0, text);
    *gamma = 0;
    *rule = verify_rule_find(name);
    if (!*rule)
        return error_set(err, FR_ERR_ARGUMENT, "there is no rule of acceptance '%.40s'; `forerun run --help` lists them",
                         text);
    return colon ? parse_gamma(*rule, colon + 1, gamma, err) : FR_OK;
}
