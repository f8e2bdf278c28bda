/* generation.h - one text being generated, on its way between the event loop and the engine thread.
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
    int32_t source;  /* place of the draft that proposed it in fr_request_options.drafts; -1: the target's own token */
    uint32_t n_text; /* bytes of text that are certain since this token */
    uint32_t n_top;  /* entries of TokenBatch.top */
    double logprob;
    double made_s; /* clock_s() when it was chosen */
} TokenRecord;

/* Tokens in order, with their text and their most probable tokens one after the other. */
typedef struct TokenBatch {
    TokenRecord *tokens;
    size_t n, capacity;
    Buf text;
    Buf top;   /* fr_top_logprob, best first; where the request wants them */
    Buf steps; /* where trees are kept: a StepRecord with its nodes for each step, one after the other */
} TokenBatch;

/* What a step proposed. Its tokens may have been taken before it, because they come first. */
typedef struct StepRecord {
    int32_t n_tokens; /* that it added to the text */
    int32_t n_nodes;  /* StepNodes that follow */
} StepRecord;

typedef struct StepNode {
    fr_tree_node node;
    int32_t is_accepted;
} StepNode;

enum { TOKEN_BATCH_MAX_TEXT = 64 << 20 };

/* The methods of a request's drafts, by TokenRecord.source; "" behind the last. */
typedef struct SourceNames {
    char names[8][24];
} SourceNames;

/* top: [token->n_top]. False: no memory. */
bool token_batch_append(TokenBatch *b, const TokenRecord *token, const char *text, const fr_top_logprob *top);
/* Appends the tokens of `from`, with what is known of them but without text. False: no memory. */
bool token_batch_copy(TokenBatch *b, const TokenBatch *from);
void token_batch_clear(TokenBatch *b);
void token_batch_free(TokenBatch *b);

/* What became of a generation. The engine thread fills it once, and the event loop takes it over as it is. */
typedef struct GenerationResult {
    fr_finish finish;
    fr_error error; /* code 0: none */
    fr_stats stats;
    fr_draft_stats drafts;
    float *embedding; /* [n_embd] if the options ask for one */
    double plain_s;   /* what a token of this text would have cost without drafts; 0: not known */
    double submitted_s, opened_s, first_token_s, ended_s; /* 0: did not happen */
} GenerationResult;

void generation_result_free(GenerationResult *r); /* NULL is allowed */

struct Generation {
    Message message; /* first */
    Mailbox *mailbox;
    ServedModel *model;
    fr_request_options options;     /* what it points to must live as long as the generation */
    void (*on_news)(Generation *g); /* in the event loop; may free a generation that has ended */
    void *user;
    atomic_bool wants_cancel;
    bool keeps_trees; /* set before it is submitted */

    /* Of the engine thread: */
    Generation *next;
    fr_request *request;
    int64_t n_noted;          /* tokens whose steps were added to `fresh` */
    GenerationResult *result; /* of the event loop once is_ended is set; NULL: it was taken over */

    /* Under the lock of the mailbox: */
    TokenBatch fresh;
    bool is_open; /* left the queue */
    bool is_ended;
    SourceNames sources; /* set with is_open */
};

/* NULL: no memory. on_token and user of the options are set by the engine thread. */
Generation *generation_new(ServedModel *model, const fr_request_options *options, Mailbox *mailbox);
/* It was never submitted, or has ended. NULL is fine. */
void generation_free(Generation *g);
/* Moves what is new into *out, which is empty. True: the generation has ended, and on_news will not be called again. A
 * generation that ends while news of it are being delivered is reported once more, and ends for the event loop then. */
bool generation_take(Generation *g, TokenBatch *out);
/* For the engine thread: the result is complete, and the event loop may free the generation at once. */
void generation_end(Generation *g);
/* Whether it left the queue. */
bool generation_is_open(Generation *g);
void generation_cancel(Generation *g);

#endif
