/* verifier.h - reads a verified tree: which path the target would have taken, and its own next token.
 *
 * A verifier is a pure function of the tree, the target's logits of its nodes, the sampling options, the context
 * and the coins; it does not know who drafted.
 */
#ifndef VERIFY_VERIFIER_H
#define VERIFY_VERIFIER_H

#include "spec/sampling/random_source.h"
#include "spec/tree/draft_dists.h"
#include "spec/sampling/sampler.h"
#include "spec/tree/tree.h"

/* What a rule was told; 0: nothing. */
typedef struct VerifyOptions {
    double gamma;          /* k-seq; not given: searched at every node */
    double epsilon, delta; /* typical */
} VerifyOptions;

typedef struct VerifyInput {
    const Tree *tree;
    const float *const *logits; /* [tree->n] rows [n_vocab]: the target's logits after each node */
    int32_t n_vocab;
    const SamplingOptions *sampling;
    uint64_t position; /* output position of the first token to be decided (the one after node 0) */
    int32_t *context;  /* the context up to and including node 0's token; room for TREE_MAX_NODES + 1 more,
                        * which is used as scratch */
    int64_t n_context;
    RandomSource *random_source; /* of this step; only ratio rules toss them */
    VerifyOptions options;
} VerifyInput;

/* Memory that rules work in, for one caller at a time: nothing is allocated in a step. */
typedef struct VerifyScratch {
    int32_t n_vocab;
    Sampler *sampler;
    float *dist;    /* [n_vocab] as the sampler gives it */
    double *p, *q; /* [n_vocab] */
    int32_t *ids;  /* [n_vocab] */
    SiblingGroup group;
} VerifyScratch;

VerifyScratch *verify_scratch_new(int32_t n_vocab); /* NULL: no memory */
void verify_scratch_free(VerifyScratch *s);         /* NULL is fine */

typedef struct VerifyResult {
    int32_t n_path;                 /* accepted nodes, node 0 not counted */
    int32_t path[TREE_MAX_NODES];   /* their indices, from the root's child down */
    int32_t next_token;             /* the target's own token after the last accepted node */
} VerifyResult;

/* "key=X", a number. */
typedef struct VerifyRuleOption {
    const char *key, *otherwise; /* what the user may do instead of giving it, for the error */
    double min, max;
    size_t offset; /* of the double in VerifyOptions */
} VerifyRuleOption;

/* How a path is accepted. `sampled` is exact for every tree: the text is plain decoding's. Ratio rules keep the
 * distribution of the text instead: they draw coins of their own and divide by the distributions that the drafter declared in
 * in->tree->distributions (draft_dists.h). A lossy rule keeps neither, and runs only where the user said that it may. */
typedef struct VerifyRule {
    const char *name, *summary; /* one line for --help */
    bool is_ratio;              /* the tree must bring its distributions */
    /* Refuses a tree whose groups the rule does not know, naming the rule that does. */
    int (*verify)(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err);
    bool is_lossy;              /* the output distribution is not the target's */
    const VerifyRuleOption *options; /* end with key == NULL; NULL: none */
} VerifyRule;

/* Whether the text may be another one with other trees: then trees must not depend on time or neighbours. */
static inline bool verify_rule_needs_its_trees(const VerifyRule *r) { return r->is_ratio || r->is_lossy; }

/* All rules, ending with NULL, the default first; and one by name (NULL: unknown). */
const VerifyRule *const *verify_rules(void);
const VerifyRule *verify_rule_find(const char *name);
/* A rule as the user writes it: "name" or "name:key=X,key=X"; a lossy one is refused unless allowed. */
int verify_rule_parse(const char *text, bool allow_lossy, const VerifyRule **rule, VerifyOptions *options, fr_error *err);

/* The sampled verifier: exact for every drafter and every sampling option. Always FR_OK. */
int verify_sampled(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err);

#endif
