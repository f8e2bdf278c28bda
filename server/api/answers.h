/* answers.h - what the APIs with conversations share: the prompt of a conversation with its tools, the grammar of tool
 * calls, and the reading of what the model writes. */
#ifndef SERVER_API_ANSWERS_H
#define SERVER_API_ANSWERS_H

#include "cli/answer_reader.h"
#include "server/api/plan.h"
#include "server/http/json_out.h"

/* ---- the prompt (chat_messages.c), as /v1/chat/completions and /apply-template describe it ------------------ */

/* The fields of a body that describe the conversation; borrowed. */
typedef struct ChatMessages {
    const json_t *messages, *variables, *tools, *tool_choice, *modalities;
    const char *reasoning_effort; /* a variable of some templates */
    int thinks;                   /* the variable enable_thinking: 1 or -1; 0: as the template likes */
    const json_t *strict_tools;   /* for each tool, whether it is strict; NULL: by its "function.strict" */
    bool has_one_call;            /* an answer has at most one call */
    bool keeps_reasoning;         /* reasoning is a part of the text, with its marks */
    bool has_budget;              /* reasoning of more than max_reasoning tokens is closed by its mark */
    int64_t max_reasoning;
    const char *prefill;           /* the beginning of the answer, which the model continues; NULL: none */
    const char *prefill_reasoning; /* the reasoning before it, or the beginning of the reasoning; NULL: none */
    bool drops_tools;              /* tools that the template has no place for are ignored instead of refused */
    bool ends_open;                /* the prompt ends after the last message, and no answer is begun */
} ChatMessages;

/* The fields of /v1/messages that describe the conversation; borrowed. */
typedef struct MessagesInput {
    const json_t *messages, *system, *tools, *tool_choice, *thinking;
} MessagesInput;

/* Fills in messages, tools and tool_choice of *chat (messages_input.c). It runs within json_memory_limit, which owns
 * what it makes. */
int messages_convert(const MessagesInput *in, ChatMessages *chat, ApiError *error);
/* Runs the chat template of the model. Call it within json_memory_limit; the caller frees *out by
 * fr_chat_result_free. Tools that are ignored are no longer in *f. */
int chat_messages_apply(const ServedModel *m, ChatMessages *f, fr_chat_result *out, ApiError *error);
/* Returns whether a prompt ends with a mark, before white space. */
bool chat_prompt_ends_with(const fr_chat_result *prompt, const char *mark);
/* Joins the texts of parts, all of which have one, to one JSON string. Call it within json_memory_limit. */
json_t *chat_messages_join(const json_t *parts);
/* Returns whether the prompt describes tools: there are some, and tool_choice is not "none". */
bool chat_messages_has_tools(const ChatMessages *f);
/* Returns whether the answer must be a call: of the function *name or, if *name is NULL, of any function. */
bool chat_messages_forces_call(const ChatMessages *f, const char **name);

/* ---- log-probabilities of the tokens of an answer, by item ---------------------------------------------------
 *
 * An item has the log-probabilities of the tokens whose text is in it. There are none for the tokens of marks, for
 * control tokens, for white space that belongs to the form, and for text that a stop string cut off. */

typedef struct AnswerLogprobs {
    TokenBatch pending;  /* tokens that have been read but not yet assigned to an item */
    TokenBatch fresh;    /* the tokens by which an item has just grown; a part of `pending` */
    TokenBatch *of_item; /* [n_items] */
    int n_items;
} AnswerLogprobs;

void answer_logprobs_free(AnswerLogprobs *l);
/* Adds a token whose text is about to be read. text is [t->n_text], top is [t->n_top]. False: memory ran out. */
bool answer_logprobs_add(AnswerLogprobs *l, const ServedModel *m, const TokenRecord *t, const char *text,
                         const fr_top_logprob *top);
/* Assigns the last pending tokens that have n_bytes bytes to an item of text, which grew by as many. False: memory ran
 * out. */
bool answer_logprobs_take(AnswerLogprobs *l, int item, size_t n_bytes);
/* Drops the pending tokens, which belong to no item of text. */
void answer_logprobs_drop(AnswerLogprobs *l);
/* Returns the tokens of an item; NULL: it has none. */
const TokenBatch *answer_logprobs_of(const AnswerLogprobs *l, int item);

/* ---- one reader for each choice -------------------------------------------------------------------------------- */

enum { ANSWERS_MAX_HIDDEN = 12, ANSWERS_MARK_SIZE = 48, ANSWERS_ID_SIZE = 10 };

/* The tokens of a choice up to the one that ended its reasoning. */
typedef struct ReasoningCount {
    int64_t n_tokens;
    size_t n_bytes; /* the length of all tokens so far, as the reader received them */
} ReasoningCount;

/* ApiCall.own of these APIs. */
typedef struct Answers {
    AnswerForm form;
    bool has_args_mark, has_id_mark; /* "[ARGS]" and "[CALL_ID]" are tokens of the vocabulary */
    bool is_forced, has_one_call;    /* the answer consists of calls only; it has at most one call */
    const char *reasoning_end;       /* what ends the reasoning of a text with a grammar or a budget */
    struct {
        int32_t token; /* a control token, whose text is not shown */
        const char *mark;
    } hidden[ANSWERS_MAX_HIDDEN];
    int n_hidden;
    char spelling[ANSWERS_MAX_HIDDEN][ANSWERS_MARK_SIZE]; /* of the hidden tokens that are parts of marks */
    AnswerReader *readers;                                /* [n_readers] one for each choice */
    int n_readers;
    ReasoningCount *reasoning; /* [n_readers] */
    AnswerLogprobs *logprobs;  /* [n_readers]; NULL: the client does not ask for them */
    int64_t n_events;          /* how many events were written, for APIs that number them */
} Answers;

/* Adds the prompt of the conversation to the plan of the call, and prepares to read the answers. */
int answers_prepare(ApiCall *call, ChatMessages *f);
/* Prepares to read answers to a raw prompt, which are text only. */
int answers_prepare_text(ApiCall *call);
/* Read new tokens of a choice, and its end. If sink is NULL, the items are only kept. False: memory ran out. */
bool answers_feed(const Choice *c, const TokenBatch *fresh, AnswerSink sink, void *user);
bool answers_end(const Choice *c, AnswerSink sink, void *user);
/* ApiFormat.count_reasoning: counts the tokens of all choices that are reasoning, including its marks. */
int64_t answers_count_reasoning(const ApiCall *call);
/* Returns whether answers of the model may begin with reasoning, by its template. */
bool answers_may_reason(const ServedModel *m);
/* Returns whether the answers must be calls. */
bool answers_are_forced(const ApiCall *call);
/* Returns the reader of a choice, with its items so far. */
const AnswerReader *answers_of(const Choice *c);
/* Returns the tokens by which an item of text has just grown, for a sink. NULL: the client does not ask for
 * log-probabilities. */
const TokenBatch *answers_fresh_logprobs(const Choice *c);
/* Returns the tokens of an item so far; NULL: it has none. */
const TokenBatch *answers_logprobs(const Choice *c, const AnswerItem *item);
/* Writes the texts of all items of a kind as one text with this key. False: there is no such item. */
bool answers_write_texts(JsonOut *out, const AnswerReader *r, AnswerKind kind, const char *key);
/* ApiFormat.keep. */
bool answers_keep(const Choice *c, const TokenBatch *fresh);
/* Writes the id of a call: nine letters and digits, because Mistral's templates require that. */
void answers_call_id(const Choice *c, const AnswerItem *item, char id[ANSWERS_ID_SIZE]);
/* Begin and end an event that has a name: {"type": ... */
JsonOut answers_begin_event(Buf *out, const char *type);
void answers_end_event(JsonOut *j);

/* Returns the stop string that ended the text of a choice; NULL: none did. The plan has tells_stop. */
const char *stop_string_of(const Choice *c);
/* ---- the grammar of tool calls (tool_grammar.c): the form of the model's family, and the tool's own schema ----- */

/* Sets the grammar in the plan of the call: text with tool calls in it or, if tool_choice forces them, only tool calls.
 * A schema for an answer of gpt-oss gets the header of its message, and a->reasoning_end becomes what precedes headers.
 * It runs in the worker. */
int tool_grammar_prepare(ApiCall *call, Answers *a, const ChatMessages *f);

#endif
