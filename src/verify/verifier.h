/* verifier.h - the interface of verification: which path of a verified tree is accepted, and the token after it.
 *
 * The target has processed every node of a token tree (tree.h). A verifier reads the logits of these nodes and decides
 * which path from node 0 down is accepted, and which token follows the last accepted node. It is a pure function of its
 * VerifyInput; it does not know which drafter proposed the tree.
 *
 * To add a verification rule:
 *   1. Write src/verify/rule_<name>.c with a function of the type of VerifyRule.verify, and define
 *      `const VerifyRule verify_rule_<name>`. A rule that compares the target's distribution with the drafter's
 *      includes ratio.h, which has the walk down the tree and both distributions at a node; rule_k_seq.c is a small
 *      example.
 *   2. Declare it in ratio.h and add its address to the list in verifier.c. `--verify <name>`, --help and the error
 *      messages follow from the list.
 *   3. Prove it: tests/verify/test_rules.c sums the output distribution of every ratio rule exactly, over all drafts
 *      and all random choices, and compares it with the target's.
 */
#ifndef VERIFY_VERIFIER_H
#define VERIFY_VERIFIER_H

#include "base/options.h"
#include "grammar/states.h"
#include "tree/draft_dists.h"
#include "verify/sampler.h"
#include "tree/tree.h"

/* ---- random choices ------------------------------------------------------------------------------------- */

/* The random choices of a ratio rule are either keyed by a seed or enumerated by a script.
 *
 * A keyed source makes a run a pure function of its seed. A script runs the same code once for every possible outcome
 * of its random choices, so that the distribution of the result is summed exactly:
 *
 *   random_script_begin(&s);
 *   do {
 *       ... run, with &s.random_source ...
 *       dist[result] += s.chance;
 *   } while (random_script_next(&s));
 */
typedef struct RandomSource RandomSource;
struct RandomSource {
    /* True with probability `chance`. A chance >= 1 always and one <= 0 never comes true; neither uses any
     * randomness. */
    bool (*flip)(RandomSource *r, double chance);
    /* Picks an index below n with probability proportional to weights[n] >= 0. An index of weight 0 is picked only
     * if all weights are 0. */
    int32_t (*pick)(RandomSource *r, const double *weights, int32_t n);
};

/* The random source of one step of one request: choice number i uses 53 bits of the stream RNG_VERIFY at (seed,
 * position, i). For the whole step `position` is the position of the first token that the step decides: a
 * rule may use random numbers on tokens that it then does not emit, and the step that decides these tokens must not
 * meet the same random numbers again. */
typedef struct KeyedRandom {
    RandomSource random_source;
    uint64_t seed, position;
    uint32_t n_used;
} KeyedRandom;

void random_keyed(KeyedRandom *k, uint64_t seed, uint64_t position);

/* Visits every possible sequence of outcomes, depth first. Outcomes of probability 0 are left out. */
enum { RANDOM_SCRIPT_MAX = 4096 };
typedef struct RandomScript {
    RandomSource random_source;
    double chance;       /* the probability of this run so far: the product over its outcomes */
    int32_t n, n_played; /* the number of choices in the script, and how many of them this run has made */
    int32_t choice[RANDOM_SCRIPT_MAX], n_choices[RANDOM_SCRIPT_MAX];
} RandomScript;

void random_script_begin(RandomScript *s); /* call it before the first run */
bool random_script_next(RandomScript *s);  /* call it before each later run; returns false if there is none */

/* ---- verification --------------------------------------------------------------------------------------- */

/* The parameters of all rules. 0 means that the user did not give the parameter. */
typedef struct VerifyOptions {
    double gamma;          /* `k-seq`; if it is not given, the rule searches for the best value at every node */
    double epsilon, delta; /* `typical` */
} VerifyOptions;

/* The tokens that a grammar allows after each node. A rule asks for those of the nodes that it visits. */
typedef struct VerifyMasks {
    void *user;
    const TokenMask *(*after)(
        void *user, int32_t node); /* returns NULL if the mask could not be made; the engine then discards the result */
} VerifyMasks;

typedef struct VerifyInput {
    const Tree *tree;
    const float *const *logits; /* [tree->n] rows [n_vocab]: the target's logits after each node */
    int32_t n_vocab;
    const SamplingOptions *sampling;
    uint64_t position; /* output position of the first token to be decided (the one after node 0) */
    int32_t *context;  /* the context up to and including node 0's token, with room for TREE_MAX_NODES + 1 more tokens:
                        * a rule writes the path it follows there, because penalties depend on it */
    int64_t n_context;
    RandomSource *random_source; /* the random choices of this step; `sampled` and `typical` do not use it */
    VerifyOptions options;
    const VerifyMasks *masks; /* NULL: no grammar */
    /* Returns the only token that may follow a node, whatever the masks allow; -1: there is none. NULL: there never
     * is. */
    int32_t (*forced)(const void *user, int32_t node);
    const void *forced_user;
} VerifyInput;

/* Working memory of a rule, for one caller at a time. The engine allocates it once; a rule allocates nothing. */
typedef struct VerifyScratch {
    int32_t n_vocab;
    Sampler *sampler;
    float *dist;       /* [n_vocab] a distribution as the sampler returns it */
    float *masked;     /* [n_vocab] logits of the tokens that a grammar allows */
    double *p, *q, *m; /* [n_vocab] */
    int32_t *ids;      /* [n_vocab] */
    SiblingGroup group;
} VerifyScratch;

VerifyScratch *verify_scratch_new(int32_t n_vocab); /* NULL: no memory */
void verify_scratch_free(VerifyScratch *s);         /* NULL is allowed */

typedef struct VerifyResult {
    int32_t n_path;               /* accepted nodes, node 0 not counted */
    int32_t path[TREE_MAX_NODES]; /* their indices, from the root's child down */
    int32_t next_token;           /* the token after the last accepted node */
} VerifyResult;

/* Returns the row of logits from which the token after a node is chosen: the target's row, with -INFINITY for every
 * token that a grammar forbids. It is valid until the next call. */
const float *verify_logits(const VerifyInput *in, VerifyScratch *s, int32_t node);

/* A verification rule. There are three kinds:
 *   - `sampled` reproduces the text of plain decoding, token for token, for every tree;
 *   - ratio rules preserve the output distribution instead: they make random choices of their own (in->random_source)
 *     and divide by the distributions that the drafter declared in in->tree->dists (draft_dists.h);
 *   - lossy rules preserve neither, and run only where the user has allowed it. */
typedef struct VerifyRule {
    const char *name;    /* the name in --verify: small letters and '-' */
    const char *summary; /* one line for --help */
    bool is_ratio;       /* the engine gives each tree a DraftDists, and checks what the drafter declared in it */
    bool takes_any_tree; /* a ratio rule that handles every group of drafts, including draws without replacement */
    bool looks_ahead;    /* it looks at all drafts of a node before it accepts one (DraftDists.whole_groups) */
    bool is_lossy;       /* the output distribution is not the target's */
    /* Decides one tree. Fails only where the tree has a sibling group that the rule cannot handle; the error names a
     * rule that can. */
    int (*verify)(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err);
    const Option *option_table; /* the rule's options (VerifyOptions), ending with key == NULL; NULL if it has none */
} VerifyRule;

/* Returns whether the text depends on the trees. If it does, trees must not depend on time or on other requests. */
static inline bool verify_rule_needs_its_trees(const VerifyRule *r) { return r->is_ratio || r->is_lossy; }

/* All rules, the default first; the list ends with NULL. verify_rule_find returns NULL for an unknown name. */
const VerifyRule *const *verify_rules(void);
const VerifyRule *verify_rule_find(const char *name);
/* Parses a rule as the user writes it: "name" or "name:key=X,key=X". A lossy rule is refused unless it is allowed. */
int verify_rule_parse(const char *text, bool allow_lossy, const VerifyRule **rule, VerifyOptions *options,
                      fr_error *err);

/* Decides by the rule `sampled`, which is exact for every drafter and every sampling option. Always returns FR_OK. */
int verify_sampled(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err);

#endif
