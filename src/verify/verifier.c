/* verifier.c - the working memory of verification rules, the rule `sampled`, and the list of all rules.
 *
 * The rule `sampled` is speculation that reproduces the text of plain decoding.
 *
 * The token that the target generates at a node is a pure function of the logits there, the seed and the output
 * position (sampler.h). The walk computes at every node the token that plain decoding would have generated after that
 * very context. If a child has that token, the child is accepted and the walk goes on there; otherwise the token is
 * emitted and the walk ends. The text therefore equals that of plain decoding for every tree, even a useless one; the
 * tree decides only how many tokens one step yields.
 *
 * Example (greedy): the target generates "cat" after "the", and "ran" after "the cat". The tree the(cat(sat), dog)
 * yields the path [cat] and next_token "ran". */
#include "base/mem.h"
#include "verify/ratio.h"

#include <math.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------- */

VerifyScratch *verify_scratch_new(int32_t n_vocab) {
    fr_assert(n_vocab > 0);
    VerifyScratch *s = mem_calloc(1, sizeof *s);
    if (!s) return NULL;
    size_t n = (size_t)n_vocab;
    s->n_vocab = n_vocab;
    s->sampler = sampler_new(n_vocab);
    s->dist = mem_calloc(n, sizeof *s->dist);
    s->masked = mem_calloc(n, sizeof *s->masked);
    s->p = mem_calloc(n, sizeof *s->p);
    s->q = mem_calloc(n, sizeof *s->q);
    s->m = mem_calloc(n, sizeof *s->m);
    s->ids = mem_calloc(n, sizeof *s->ids);
    if (s->sampler && s->dist && s->masked && s->p && s->q && s->m && s->ids) return s;
    verify_scratch_free(s);
    return NULL;
}

void verify_scratch_free(VerifyScratch *s) {
    if (!s) return;
    sampler_free(s->sampler);
    mem_free(s->dist);
    mem_free(s->masked);
    mem_free(s->p);
    mem_free(s->q);
    mem_free(s->m);
    mem_free(s->ids);
    mem_free(s);
}

const float *verify_logits(const VerifyInput *in, VerifyScratch *s, int32_t node) {
    int32_t token = in->forced ? in->forced(in->forced_user, node) : -1;
    if (token >= 0) {
        for (int32_t i = 0; i < s->n_vocab; i++) s->masked[i] = -INFINITY;
        s->masked[token] = 0;
        return s->masked;
    }
    const TokenMask *m = in->masks ? in->masks->after(in->masks->user, node) : NULL;
    if (!m) return in->logits[node];
    token_mask_apply(m, in->logits[node], s->n_vocab, s->masked);
    return s->masked;
}

/* ---- the rule `sampled` ------------------------------------------------------------------------------- */

int verify_sampled(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    (void)err;
    const Tree *tree = in->tree;
    out->n_path = 0;
    for (int32_t node = 0;;) {
        int64_t n_context = in->n_context + out->n_path;
        uint64_t position = in->position + (uint64_t)out->n_path;
        int32_t token = sampler_choose(s->sampler, in->sampling, verify_logits(in, s, node), in->context, n_context,
                                       position);
        int32_t child = tree_child(tree, node, token);
        if (child < 0) {
            out->next_token = token;
            return FR_OK;
        }
        in->context[n_context] = token; /* penalties of the deeper nodes see the path */
        out->path[out->n_path++] = child;
        node = child;
    }
}

/* ---- the list of rules ------------------------------------------------------------------------------- */

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
