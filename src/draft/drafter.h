/* drafter.h - the interface of a drafting method.
 *
 * A drafter proposes tokens: below the pending token of each sequence it adds nodes to a token tree (tree.h), which
 * the target then verifies. It cannot emit a token, so a bad drafter costs speed but never changes the text.
 *
 * The engine calls, for each sequence:
 *
 *     set_sampling   optional: how tokens are drawn
 *     set_grammar    optional: which texts may be generated
 *     set_reference  optional: a text that the caller expects as the answer
 *     begin          the context so far, the prompt as a rule
 *     observe_prompt optional: the target has read a part of that context
 *     in every step:
 *       propose        write a tree
 *       observe_tree   optional: the tree after verification, with the target's logits and hidden states
 *       observe        the tokens that the step committed, in order
 *     end
 *
 * One drafter serves all sequences of an engine, and what it has learned may outlive them. Calls come from one thread
 * at a time. Each sequence goes from begin to end, and its id is then used again; close may come while sequences are
 * still running. A request whose drafters are chosen automatically (`--draft auto`, `--tree-budget auto`) does not
 * propose in every step. A drafter with nothing to propose adds no node. If a call fails, the drafter is not used any
 * more for that request, and the text goes on without it.
 *
 * To add a method:
 *   1. Write src/draft/<family>/draft_<method>.c. It defines the method's own struct, whose first member is a Drafter;
 *      a struct of options with its table (base/options.h); and `const DrafterClass draft_<method>_class`.
 *   2. Add the method to the list in drafter.c. `--draft <method>`, --help, error messages and the interface test of
 *      tests/draft/test_draft_spec.c follow from the list.
 *   3. Test the drafts against a naive search or reference in tests/draft/test_draft_<method>.c. `forerun replay`
 *      measures acceptance on recorded answers; `forerun compare` proves that the text does not change.
 *
 * The smallest example is text/draft_pld_llma.c. text_drafter.h keeps the texts of the sequences for methods that copy
 * from them, feedback.h helps methods that learn from the target's logits, and drafter_file.h reads the files of
 * learned methods.
 */
#ifndef DRAFTER_DRAFTER_H
#define DRAFTER_DRAFTER_H

#include "base/bytes.h"
#include "base/mem.h"
#include "base/options.h"
#include "gguf/gguf.h"
#include "compute/backend.h"
#include "grammar/grammar.h"
#include "tree/draft_dists.h"
#include "verify/sampler.h"
#include "verify/verifier.h"

typedef struct Drafter Drafter;

/* What a method may know about the target. */
typedef struct DrafterEnv {
    int32_t n_vocab;
    int32_t max_sequences; /* sequence ids are below this */
    const Gguf *vocab;     /* a file of the vocabulary, also in replay; NULL: unknown (tests). Borrowed. */
    /* Methods that run a model themselves need the rest. It is zero if no target runs, as in replay. Borrowed. */
    const Gguf *target;
    const Weights *weights; /* the target's: embedding, LM head, and the options for opening a draft model's weights */
    Device *device;         /* the engine's: threads and memory of everything that drafters run */
    int32_t n_ctx;          /* length of the longest sequence */
    int32_t page_size;      /* tokens in a page of its KV cache; 0: unknown */
    /* The engine's prefix cache (take_over): the number of its sequences, which belong to ended requests, and the
     * number of tokens in all of them. */
    int32_t n_cached;
    int64_t cached_tokens;
    /* What the target keeps of its layers for the drafters. A method that reads residual streams adds them in `open`
     * (kept_layers_add); `hidden` then has them at the index that this returns. NULL: the target keeps none. */
    KeptLayers *kept;
    /* The target's executor, in which sequence i is the drafter's sequence i: for methods that read the target's keys
     * and values. It outlives the drafter. NULL: the numbers differ, or no target runs. */
    const struct Executor *executor;
} DrafterEnv;

/* A tree after the target's forward, for methods that learn from the target at every node, accepted or not. */
typedef struct VerifiedTree {
    const Tree *tree;
    const float *const *logits; /* [tree->n] rows [n_vocab] after each node, before penalties and filters */
    /* [tree->n] rows: the target's hidden state after its final norm [n_embd], then the streams of DrafterEnv.kept */
    const float *const *hidden;
    const VerifyResult *verdict;
    int32_t n_extra; /* rows of this drafter's own (add_rows), with their hidden states, [n_extra] rows [n_embd] */
    const float *const *extra_hidden;
    bool is_idle; /* the drafter did not propose in this step, because it does not pay; it should spend no time here */
} VerifiedTree;

/* A row of the target that is no node: it cannot be accepted, and no node sees it. */
typedef struct ExtraRow {
    int32_t parent;     /* a node of the tree, or tree->n + i: the earlier extra row i */
    const float *input; /* [n_embd] replaces a token's embedding; borrowed until the target has run */
} ExtraRow;

/* A method. All functions are required except those marked optional. Memory comes from base/mem.h. Every function
 * that returns int returns FR_OK, or a negative fr_code with a sentence in *err. */
typedef struct DrafterClass {
    const char *name;           /* the name in --draft: small letters and '-' */
    const char *summary;        /* one line for --help */
    const Option *option_table; /* the method's options (base/options.h), ending with key == NULL */
    size_t options_size;        /* size of the struct that the options fill */
    /* The method learns from the target's hidden states, and has observe_prompt. The engine then runs at least one
     * token of each prompt through the target, even if another request has already computed the keys of all of it. */
    bool needs_hidden;
    /* The method reads the target's rows of logits (VerifiedTree.logits). Otherwise a row may have the right number for
     * its greatest logit only. */
    bool needs_logits;
    /* Optional: the names of the tags 1, 2, 3 that its nodes may have (tree.h), ending with NULL. The engine counts the
     * drafted and the accepted nodes with each tag (fr_draft_stats.counters). */
    const char *const *tags;
    /* The method draws its nodes at random if the temperature is above 0. Under a ratio rule (verifier.h) it then
     * declares in tree->dists from which distributions. */
    bool draws;
    /* What the method proposes for one sequence may depend on other sequences, earlier ones or those that are
     * running. The text of a request under a ratio or lossy rule depends on its trees, so the engine opens a drafter
     * of its own for it: the text then depends only on the request, and no earlier answer, which depends on
     * the same random numbers, reaches its trees. Such a method opens quickly and reads no file. */
    bool remembers;
    /* What the method proposes depends on time. The engine refuses it for a request whose text depends on its trees. */
    bool is_timed;

    /* Allocates the method's own struct. `options` is the struct of the table with the parsed values, checked against
     * their ranges; it and its strings are only valid during the call. Checks that involve several options are made
     * here. The caller, drafter_open, fills in class and source afterwards. After a failure nothing is left open.
     * A method that reads files of two kinds may fill in a class of its own for one of them, with the same name and
     * options. */
    int (*open)(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err);
    void (*close)(Drafter *d);

    /* Optional. Called before begin: how the target's tokens are drawn (borrowed until end), and the output position
     * of the first token after the context that begin will give. A method without it must draft greedily. */
    void (*set_sampling)(Drafter *d, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
    /* Optional. Called before begin if the text must match a grammar. The state in `grammar` always follows the text.
     * It is borrowed until end. */
    void (*set_grammar)(Drafter *d, int32_t sequence, const GrammarText *grammar);
    /* Optional. Called before begin if the request has a prediction, a text that the answer will probably follow
     * (fr_request_options.prediction), n >= 1; borrowed during the call. */
    int (*set_reference)(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
    /* A sequence starts with this context, n >= 1; the last of its tokens is the pending one. Memory that steps will
     * need is best allocated here or in open, because the decode loop should not allocate. */
    int (*begin)(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
    /* Optional; for methods that need the target's hidden states, and for methods that run the prompt through a model
     * of their own, which they do here piece by piece, so that no other request waits for long. The target has read the
     * context tokens first .. first + n - 1. With needs_hidden, `hidden` has the target's hidden states at these
     * tokens, as in VerifiedTree; otherwise it is NULL. Every context token except the last is passed
     * exactly once, in order, in several calls, unless it was taken over; with needs_hidden, the hidden states of later
     * tokens come with observe_tree, where the pending token is node 0. If the drafter is not expected to repay what
     * reading the prompt costs, observe_prompt is not called, and the drafter may still be asked for proposals. Without
     * needs_hidden, it may be called later for the first tokens that n_held does not count, so that the drafter catches
     * up in pieces. */
    int (*observe_prompt)(Drafter *d, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                          fr_error *err);
    /* Optional; only methods that have observe_prompt may have it. A request that begins with the tokens of another
     * one takes over what the method computed for them, after begin and in the place of observe_prompt for these
     * tokens: `to` holds the first n tokens of `from` from now on, and what it held before is forgotten. It changes
     * no proposal and cannot fail. Without take_over the engine runs the whole prompt.
     * A method that keeps something for each token has n_held, which returns for how many first tokens of a sequence it
     * does. Its sequences max_sequences .. max_sequences + n_cached - 1 belong to ended requests and are neither begun
     * nor ended; they only take over and are taken over from, and with n == 0 they hold nothing. If a number below
     * n_held can be taken over only at some lengths, the method has `reach`, which returns the greatest possible number
     * up to n, where n_held(sequence) >= n. Without n_held a sequence can take over any number of tokens, and `from` is
     * ignored. */
    void (*take_over)(Drafter *d, int32_t from, int32_t to, int32_t n);
    int32_t (*n_held)(const Drafter *d, int32_t sequence);
    int32_t (*reach)(const Drafter *d, int32_t sequence, int32_t n);
    /* Optional; only methods with needs_hidden and n_held may have it. What such a method keeps for a token depends on
     * tokens after it, too. This returns how many tokens, at most n_common - 1, can be taken over from a sequence by a
     * text whose first n_common tokens are the same. Without it the next token matters, and the number is
     * n_common - 1. */
    int32_t (*usable)(const Drafter *d, int32_t sequence, int32_t n_common);
    /* Methods with n_held have these two. `save` appends what the method keeps for a sequence of an ended request, and
     * a mark of the weights that computed it; false: memory ran out. `load` replaces what it keeps; with sequence -1 it
     * only checks. FR_ERR_MISMATCH: other weights computed it. FR_ERR_MEMORY: the sequence holds nothing. A method that
     * remembers what a text does not give back has them for all that it remembers; `sequence` has no meaning then. */
    bool (*save)(const Drafter *d, int32_t sequence, Buf *out);
    int (*load)(Drafter *d, int32_t sequence, ByteReader *in, fr_error *err);

    /* For each i < n: trees[i] contains the pending token of sequences[i] as node 0. Adds at most budgets[i] nodes
     * below it, with tree_add and d->source. Each p_accept is the probability that the node is accepted (tree.h): the
     * engine ranks the nodes of all drafters by it, after correcting it by what was accepted so far (calibration.h),
     * so the order within a tree matters more than the scale. If trees[i]->dists is set, a method that draws declares
     * its draws there (draft_dists.h).
     * A request that is short of pages gives its step up, and is then asked for another proposal without any
     * observation in between. It must get the same tree again. The same holds after a call that fails: the engine
     * repeats it for each sequence by itself, and switches the drafter off where it fails again. */
    int (*propose)(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err);
    /* Optional. The tree of this step is final; it has the nodes of all drafters. Writes at most `room` more rows that
     * the target is to run, and returns their number; their hidden states come with observe_tree. They use the part of
     * the budget that the nodes leave. It is not called if the budget is automatic, because it is not known how much
     * time such rows save. */
    int32_t (*add_rows)(Drafter *d, int32_t sequence, const Tree *tree, int32_t room, ExtraRow *rows);
    const char *extra_name; /* the name of these rows, which fr_draft_stats.counters counts as it counts tags */
    /* Optional. Called before observe, with the tree of this step as the target processed it: it has the nodes of all
     * drafters, and some of this drafter's nodes may be missing. */
    int (*observe_tree)(Drafter *d, int32_t sequence, const VerifiedTree *verified, fr_error *err);
    /* The tokens committed since the last call: the accepted path and the target's token after it, which is now
     * pending. */
    int (*observe)(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
    /* The sequence is finished; its id may be used again by begin. */
    void (*end)(Drafter *d, int32_t sequence);
    /* Optional: the share of the target's tokens that it can propose (fr_draft_stats.shared_vocab); 0: all of them. */
    double (*shared_vocab)(const Drafter *d);
    /* Optional: a sentence on why fewer of its tokens may be accepted than elsewhere (fr_engine_draft_notice); "":
     * there is no reason. */
    const char *(*notice)(const Drafter *d);
} DrafterClass;

struct Drafter {
    const DrafterClass *class;
    int32_t source; /* the source of its nodes, which it passes to tree_add; set by drafter_open */
};

/* All methods; the list ends with NULL. drafter_find returns NULL for an unknown name. */
const DrafterClass *const *drafter_classes(void);
const DrafterClass *drafter_find(const char *name);
/* Calls `visit` for each drafter that a text names: "pld+suffix" names two, and "auto" names those that it means. The
 * text is cut at each '+' that is followed by the name of a method. It ends with the first status that is not FR_OK. */
int drafter_each(const char *text, int (*visit)(void *user, const char *spec, fr_error *err), void *user,
                 fr_error *err);
/* Returns whether one of the drafters that the text names is "auto". */
bool drafter_names_auto(const char *text);
/* Parses "method" or "method:key=value,key=value", refuses unknown methods and keys (naming the known ones) and bad
 * values, and opens the drafter. "none" opens nothing: *out is NULL and the result FR_OK. */
int drafter_open(Drafter **out, const char *spec, const DrafterEnv *env, int32_t source, fr_error *err);
/* Checks the text in the same way without opening anything, so that errors can be reported before a model is loaded. */
int drafter_check(const char *spec, fr_error *err);
void drafter_close(Drafter *d); /* NULL is allowed */
/* Returns the options of a method; NULL if there is no such method. */
const Option *drafter_option_table(const char *method);
bool drafter_has_option(const DrafterClass *class, const char *key);
/* Appends the options of a method for --help, as options_help does. Returns false if there is no memory. */
bool drafter_options_help(Buf *out, const DrafterClass *class, int indent, int width);

#endif
