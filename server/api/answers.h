/* answers.h - what APIs with conversations share: the prompt with its tools, and one reader a choice of what is written. */
#ifndef SERVE_ANSWERS_H
#define SERVE_ANSWERS_H

#include "server/answer/answer_reader.h"
#include "server/api/answer_logprobs.h"
#include "server/api/chat_messages.h"

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

#endif
