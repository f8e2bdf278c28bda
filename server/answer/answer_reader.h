/* answer_reader.h - the name and the arguments of a tool call in JSON, as they are written. */
#ifndef SERVER_ANSWER_ANSWER_READER_H
#define SERVER_ANSWER_ANSWER_READER_H

#include "base/mem.h"

#include <stdbool.h>

enum { CALL_NAME_MAX = 128, CALL_KEY_MAX = 16 };

typedef enum CallValue { CALL_OTHER, CALL_NAME, CALL_ARGUMENTS } CallValue;

typedef struct CallScan {
    int depth; /* of brackets; 0: not begun, or ended */
    bool in_string, is_escaped, is_key;
    CallValue value;         /* which value of the object is being read */
    bool arguments_are_text; /* "arguments": "{\"a\": 1}" */
    char key[CALL_KEY_MAX], name[CALL_NAME_MAX];
    size_t n_key, n_name;
    bool has_name, has_arguments;
    Buf arguments; /* fresh ones, which the caller takes away */
} CallScan;

/* Reasoning, text and tool calls in what a model writes, told apart while it is written.
 *
 * Models write calls as text between marks of their family, with JSON inside; the APIs want them as values. A reader
 * takes the text in pieces, however it is cut, and tells item by item what it is. */

typedef enum AnswerKind { ANSWER_TEXT, ANSWER_REASONING, ANSWER_CALL } AnswerKind;

typedef struct AnswerItem {
    AnswerKind kind;
    int index, i_call;        /* among all items, and among the calls */
    char name[CALL_NAME_MAX]; /* of the function that is called */
    Buf text;                 /* for a call, its arguments in JSON */
    size_t n_told;            /* bytes of it that were told */
} AnswerItem;

typedef enum AnswerEvent { ANSWER_BEGINS, ANSWER_GROWS, ANSWER_ENDS } AnswerEvent;

/* ANSWER_GROWS: by n bytes; otherwise there are none. */
typedef void (*AnswerSink)(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n);

/* How a family of templates writes calls. */
typedef struct ToolForm {
    const char *family;    /* as fr_model_info.chat_family has it */
    const char *begin;     /* the mark before one or several calls */
    const char *end;       /* the mark behind them; NULL: there is none */
    bool is_bare;          /* an answer that begins with '{' is a call also without a mark */
    bool has_names;        /* NAME[ARGS]{...} is a call */
    bool is_list;          /* calls are elements of an array */
    const char *arguments; /* the key of a call's arguments */
} ToolForm;

typedef struct AnswerForm {
    const ToolForm *tools; /* NULL: calls stay text */
    bool is_either; /* an answer is calls alone or text alone: marks behind the beginning of a text are part of it */
    char **names;   /* [n_names] a call without a mark is one of these functions; NULL: of any */
    int n_names;
    bool reasons;      /* "<think>" at the beginning begins reasoning */
    bool is_reasoning; /* the prompt contains the "<think>" already */
    bool has_reasoned; /* the prompt ends with "</think>" */
} AnswerForm;

typedef enum AnswerState {
    READS_BEGINNING, /* nothing but white space so far */
    READS_REASONING,
    READS_TEXT,
    READS_CALLS, /* before, between or behind calls */
    READS_CALL,
} AnswerState;

typedef struct AnswerReader {
    AnswerForm form;
    AnswerState state;
    AnswerItem *items; /* [n_items] */
    int n_items, n_calls, capacity;
    bool is_open;     /* the last item has not ended */
    bool drops_space; /* white space is dropped until other text comes */
    bool failed;      /* memory ran out */
    Buf held;         /* not yet known what it is */
    size_t n_mark;    /* of `held` is the mark before the first call */
    size_t n_read;    /* bytes so far */
    /* How many of these bytes are the reasoning with its marks and what came before it; 0: it has not ended, or never
     * began. */
    size_t n_reason;
    CallScan scan;
    AnswerSink sink; /* during answer_reader_feed and answer_reader_end */
    void *user;
} AnswerReader;

/* The form of a family. */
const ToolForm *tool_form_of(const char *family);

void answer_reader_init(AnswerReader *r, const AnswerForm *form);
void answer_reader_free(AnswerReader *r);
/* Takes n further bytes. sink NULL: nobody is told; the items are kept in any case. False: memory ran out. */
bool answer_reader_feed(AnswerReader *r, const char *bytes, size_t n, AnswerSink sink, void *user);
/* The text has ended. */
bool answer_reader_end(AnswerReader *r, AnswerSink sink, void *user);

#endif
