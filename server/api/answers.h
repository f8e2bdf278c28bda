/* answers.h - what the APIs with conversations share: the prompt of a conversation with its tools, the grammar of tool
 * calls, and the reading of what the model writes. */
#ifndef SERVER_API_ANSWERS_H
#define SERVER_API_ANSWERS_H

#include "server/answer/answer_reader.h"
#include "server/api/plan.h"
#include "server/http/json_out.h"

/* ---- the prompt (chat_completions.c), as /v1/chat/completions and /apply-template describe it ------------------ */

/* Borrowed from the body. */
typedef struct ChatMessages {
    const json_t *messages, *variables, *tools, *tool_choice, *modalities;
    const char *reasoning_effort; /* a variable of some templates */
    const json_t *strict_tools;   /* by tool, whether it is strict; NULL: its "function.strict" says so */
    bool has_one_call;            /* at most one call an answer */
} ChatMessages;

/* Within json_memory_limit. The caller frees *out by fr_chat_result_free. */
int chat_messages_apply(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error);
/* The texts of parts, each of which has one, as one JSON string. Within json_memory_limit. */
json_t *chat_messages_join(const json_t *parts);
/* Whether the model is told of tools: there are some, and tool_choice is not "none". */
bool chat_messages_has_tools(const ChatMessages *f);
/* Whether the answer must be a call, of the function *name or, where that is NULL, of any. */
bool chat_messages_forces_call(const ChatMessages *f, const char **name);

/* ---- log-probabilities of the tokens of an answer, by item ---------------------------------------------------
 *
 * An item has those of the tokens whose text is in it. Tokens of marks, control tokens, white space that belongs to the
 * form, and what a stop string cut off have none. */

typedef struct AnswerLogprobs {
    TokenBatch pending;  /* read, and not yet known where they belong */
    TokenBatch fresh;    /* those of the last growth; part of `pending` */
    TokenBatch *of_item; /* [n_items] */
    int n_items;
} AnswerLogprobs;

void answer_logprobs_free(AnswerLogprobs *l);
/* A token whose text is going to be read; text: [t->n_text], top: [t->n_top]. False: no memory. */
bool answer_logprobs_add(AnswerLogprobs *l, const ServedModel *m, const TokenRecord *t, const char *text,
                         const fr_top_logprob *top);
/* An item of text grew by n bytes: the last tokens that have so many are its own. False: no memory. */
bool answer_logprobs_take(AnswerLogprobs *l, int item, size_t n_bytes);
/* What is pending belongs to no item of text. */
void answer_logprobs_drop(AnswerLogprobs *l);
/* NULL: there are none. */
const TokenBatch *answer_logprobs_of(const AnswerLogprobs *l, int item);

/* ---- one reader for each choice -------------------------------------------------------------------------------- */

enum { ANSWERS_MAX_HIDDEN = 6, ANSWERS_ID_SIZE = 10 };

/* Of a choice: the tokens up to the one that ended its reasoning. */
typedef struct ReasoningCount {
    int64_t n_tokens;
    size_t n_bytes; /* of all tokens so far, as the reader got them */
} ReasoningCount;

/* ApiCall.own of these APIs. */
typedef struct Answers {
    AnswerForm form;
    bool has_args_mark, has_id_mark; /* "[ARGS]" and "[CALL_ID]" are tokens of the vocabulary */
    bool is_forced, has_one_call;    /* the answer is calls alone; one call at most */
    struct {
        int32_t token; /* a control token, whose text is not shown */
        const char *mark;
    } hidden[ANSWERS_MAX_HIDDEN];
    int n_hidden;
    AnswerReader *readers; /* [n_readers], one a choice */
    int n_readers;
    ReasoningCount *reasoning; /* [n_readers] */
    AnswerLogprobs *logprobs;  /* [n_readers]; NULL: not wanted */
    int64_t n_events;          /* for APIs that number them */
} Answers;

/* Adds the prompt of the conversation to the plan of the call, and gets ready to read what is answered. */
int answers_prepare(ApiCall *call, const ChatMessages *f);
/* Reads what came, and that it has ended. sink NULL: the items are only kept. False: memory ran out. */
bool answers_feed(const Choice *c, const TokenBatch *fresh, AnswerSink sink, void *user);
bool answers_end(const Choice *c, AnswerSink sink, void *user);
/* For ApiFormat: tokens of all choices that are reasoning, its marks among them. */
int64_t answers_count_reasoning(const ApiCall *call);
/* Whether the answers must be calls. */
bool answers_are_forced(const ApiCall *call);
/* The reader of a choice, with its items so far. */
const AnswerReader *answers_of(const Choice *c);
/* For a sink, where text grows: of the tokens of the growth. NULL: log-probabilities are not wanted. */
const TokenBatch *answers_fresh_logprobs(const Choice *c);
/* Of the whole item so far; NULL: there are none. */
const TokenBatch *answers_logprobs(const Choice *c, const AnswerItem *item);
/* For ApiFormat. */
bool answers_keep(const Choice *c, const TokenBatch *fresh);
/* The id of a call: nine letters and digits, as Mistral's templates demand them. */
void answers_call_id(const Choice *c, const AnswerItem *item, char id[ANSWERS_ID_SIZE]);
/* An event that has a name: {"type": ..., and its end. */
JsonOut answers_begin_event(Buf *out, const char *type);
void answers_end_event(JsonOut *j);

/* NULL: none did. The plan has tells_stop. */
const char *stop_string_of(const Choice *c);
/* ---- the grammar of tool calls (tool_grammar.c): the form of the model's family, and the tool's own schema ----- */

/* Gives the plan of the call the grammar of its calls: text with calls in it, or calls alone where tool_choice forces
 * them. In the worker. */
int tool_grammar_prepare(ApiCall *call, const Answers *a, const ChatMessages *f);

#endif
