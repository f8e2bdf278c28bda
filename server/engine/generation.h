/* generation.h - one text that is being generated, between the event loop and the engine thread.
 *
 *     event loop                                   engine thread
 *     generation_new                               waits in the queue of its model
 *     engine_thread_submit      ───────────────►   fr_request_open, steps; tokens are appended to `fresh`
 *     on_news: generation_take  ◄───────────────   mailbox_post after each step with news
 *     generation_cancel         ───────────────►   closed before the next step
 *     on_news with is_ended     ◄───────────────   never touched again
 *     generation_free
 */
#ifndef SERVE_GENERATION_H
#define SERVE_GENERATION_H

#include "server/engine/engine_thread.h"
#include "server/engine/served_model.h"
#include "base/mem.h"

#include <stdatomic.h>

typedef struct TokenRecord {
    int32_t token;
    int32_t source;  /* as in fr_token_event */
    uint32_t n_text; /* how many bytes of text are certain since this token */
    uint32_t n_top;  /* how many entries of TokenBatch.top belong to it */
    uint32_t n_skip; /* how many bytes at its beginning belong to the template and are not shown */
    double logprob;
    double made_s; /* clock_s() when the engine chose it */
} TokenRecord;

/* Tokens in order, with their text and their most probable tokens one after the other. */
typedef struct TokenBatch {
    TokenRecord *tokens;
    size_t n, capacity;
    Buf text;
    Buf top;   /* fr_top_logprob, best first, if the client asks for them */
    Buf steps; /* if trees are kept: for each step a StepRecord and its nodes */
} TokenBatch;

/* What a step proposed. Its tokens come before it, so they may be in an earlier batch. */
typedef struct StepRecord {
    int32_t n_tokens; /* how many tokens it added to the text */
    int32_t n_nodes;  /* how many StepNodes follow */
} StepRecord;

typedef struct StepNode {
    fr_tree_node node;
    int32_t is_accepted;
} StepNode;

enum { TOKEN_BATCH_MAX_TEXT = 64 << 20 };

/* The methods of a request's drafts, indexed by TokenRecord.source; "" after the last one. */
typedef struct SourceNames {
    char names[8][24];
} SourceNames;

/* Appends a token. top is [token->n_top]. False: memory ran out. */
bool token_batch_append(TokenBatch *b, const TokenRecord *token, const char *text, const fr_top_logprob *top);
/* Appends the tokens of `from` without their text. False: memory ran out. */
bool token_batch_copy(TokenBatch *b, const TokenBatch *from);
/* The place at which token_batch_next continues. A zeroed cursor is at the first token. */
typedef struct TokenCursor {
    size_t i, n_text, n_top;
} TokenCursor;

/* Makes *one the next token of a batch, with its text and its most probable tokens, which stay the batch's. False:
 * there is none. */
bool token_batch_next(const TokenBatch *b, TokenCursor *at, TokenBatch *one);
void token_batch_clear(TokenBatch *b);
void token_batch_free(TokenBatch *b);

/* How a generation ended. The engine thread fills it in once, and the event loop takes it over. */
typedef struct GenerationResult {
    fr_finish finish;
    fr_error error; /* code is 0: there is none */
    fr_stats stats;
    fr_draft_stats drafts;
    float *embedding;                                     /* [n_embd] if the options ask for one */
    double submitted_s, opened_s, first_token_s, ended_s; /* times; 0: it did not happen */
} GenerationResult;

void generation_result_free(GenerationResult *r); /* NULL is allowed */

struct Generation {
    Message message; /* the first member */
    Mailbox *mailbox;
    ServedModel *model;
    fr_request_options options;     /* its pointers are borrowed until the generation is freed */
    void (*on_news)(Generation *g); /* runs in the event loop; it may free a generation that has ended */
    void *user;
    atomic_bool wants_cancel, wants_reasoning_end;
    bool keeps_trees, keeps_stats; /* set before the generation is submitted */
    int wanted_slot;               /* the slot that the client asks for; -1: any. Set before it is submitted */

    /* Only the engine thread uses these: */
    Generation *next;
    fr_request *request;
    int64_t n_noted;          /* how many tokens have their steps in `fresh` */
    GenerationResult *result; /* the event loop's once is_ended is set; NULL: it was taken over */

    /* The lock of the mailbox protects these: */
    TokenBatch fresh;
    bool is_open; /* it has left the queue */
    int slot;     /* its slot; -1 until it is open */
    bool is_ended;
    SourceNames sources; /* set together with is_open */
    fr_stats stats;      /* after the last step, if keeps_stats is set */
};

/* NULL: memory ran out. The engine thread sets on_token and user of the options. */
Generation *generation_new(ServedModel *model, const fr_request_options *options, Mailbox *mailbox);
/* Frees a generation that was never submitted or has ended. NULL is allowed. */
void generation_free(Generation *g);
/* Moves the new tokens to *out, which is empty. True: the generation has ended, and on_news will not be called
 * again. If a generation ends while its news are being delivered, on_news is called once more, and only that call
 * gets true. */
bool generation_take(Generation *g, TokenBatch *out);
/* Ends a generation whose result is complete. Only the engine thread calls it; the event loop may free the generation
 * at once. */
void generation_end(Generation *g);
/* Returns whether the generation has left the queue. */
bool generation_is_open(Generation *g);
/* Returns its slot; -1: it waits in the queue. */
int generation_slot(Generation *g);
/* Returns the statistics after the last step, if it keeps them. */
fr_stats generation_stats(Generation *g);
void generation_cancel(Generation *g);
/* Closes its reasoning before the next step, if its options have reasoning_end. */
void generation_end_reasoning(Generation *g);

#endif
