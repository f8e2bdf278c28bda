/* answer_reader.h - separates reasoning, text and tool calls in what a model writes, while it is written.
 *
 * Models write calls as text between marks of their family, with JSON inside, but the APIs return them as values. A
 * reader takes the text in pieces, however it is cut, and reports item by item what it is. */
#ifndef CLI_ANSWER_READER_H
#define CLI_ANSWER_READER_H

#include "base/mem.h"

#include <stdbool.h>

enum { CALL_NAME_MAX = 128, CALL_KEY_MAX = 16 };

typedef enum CallValue { CALL_OTHER, CALL_NAME, CALL_ARGUMENTS } CallValue;

typedef struct CallScan {
    int depth; /* the number of open brackets; 0: the object has not begun, or has ended */
    bool in_string, is_escaped, is_key;
    CallValue value;         /* which value of the object is being read */
    bool arguments_are_text; /* "arguments": "{\"a\": 1}" */
    char key[CALL_KEY_MAX], name[CALL_NAME_MAX];
    size_t n_key, n_name;
    bool has_name, has_arguments;
    Buf arguments; /* new bytes of the arguments, which the caller removes */
} CallScan;

typedef enum AnswerKind { ANSWER_TEXT, ANSWER_REASONING, ANSWER_CALL } AnswerKind;

typedef struct AnswerItem {
    AnswerKind kind;
    int index, i_call;        /* among all items, and among the calls */
    char name[CALL_NAME_MAX]; /* the function that is called */
    Buf text;                 /* for a call, its arguments in JSON */
    size_t n_told;            /* how many bytes of `text` have been reported */
} AnswerItem;

typedef enum AnswerEvent { ANSWER_BEGINS, ANSWER_GROWS, ANSWER_ENDS } AnswerEvent;

/* Receives the items. Only ANSWER_GROWS has bytes: the n by which the item grew. */
typedef void (*AnswerSink)(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n);

/* The form in which a family of templates writes calls. */
typedef struct ToolForm {
    const char *family;    /* as in fr_model_info.chat_family */
    const char *begin;     /* the mark before one or several calls; gpt-oss: a mark in headers */
    const char *end;       /* the mark after them; NULL: there is none */
    bool is_bare;          /* an answer that begins with '{' is a call, even without a mark */
    bool has_names;        /* NAME[ARGS]{...} is a call */
    bool is_list;          /* calls are elements of an array */
    const char *arguments; /* the key of a call's arguments */
} ToolForm;

/* The marks that a template has around reasoning. They are static. */
typedef struct ReasoningMarks {
    const char *sign; /* a template that contains it has these marks; NULL: all other templates have them */
    const char *begin, *end;
    const char *text;         /* what precedes a text without reasoning; NULL: nothing */
    const char *space_inside; /* the white space after `begin` and before `end` ... */
    const char *space_after;  /* ... and after `end` */
    const char *calls;        /* the family whose form calls have; NULL: that of the template */
    /* An answer consists of messages with headers (harmony.c), and this is between a message and what the next header
     * says. NULL: it does not. */
    const char *next_message;
} ReasoningMarks;

typedef struct AnswerForm {
    const ToolForm *tools;       /* NULL: calls are text */
    const ReasoningMarks *marks; /* NULL: <think> and </think> */
    bool is_either;              /* an answer is either calls or text: marks within a text are a part of it */
    char **names;                /* [n_names] the functions that a call without a mark may name; NULL: any */
    int n_names;
    bool reasons;      /* the first mark at the beginning begins reasoning */
    bool is_reasoning; /* the prompt contains that mark already */
    bool has_reasoned; /* the prompt ends with the second mark, or within the text that may follow it */
    bool drops_blank;  /* a space at the beginning belongs to the template */
} AnswerForm;

typedef enum AnswerState {
    READS_BEGINNING, /* nothing but white space so far */
    READS_REASONING,
    READS_TEXT,
    READS_CALLS, /* before, between or after calls */
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
    Buf held;         /* text of which it is not known yet what it is */
    size_t n_mark;    /* how many bytes of `held` are the mark before the first call */
    size_t n_read;    /* how many bytes have been read */
    /* How many of these bytes are the reasoning, with its marks and the bytes before it; 0: there is none that has
     * ended. */
    size_t n_reason;
    CallScan scan;
    AnswerSink sink; /* valid during answer_reader_feed and answer_reader_end */
    void *user;
} AnswerReader;

/* Finds the marks of a template; NULL: there is none. */
const ReasoningMarks *reasoning_marks_of(const char *chat_template);
/* Returns the marks number i, from 0; NULL: there are no more. */
const ReasoningMarks *reasoning_marks_at(int i);
/* Finds the form of a family; unknown families get the most common one. */
const ToolForm *tool_form_of(const char *family);

void answer_reader_init(AnswerReader *r, const AnswerForm *form);
void answer_reader_free(AnswerReader *r);
/* Reads n more bytes. The items are kept, and reported to sink, which may be NULL. False: memory ran out. */
bool answer_reader_feed(AnswerReader *r, const char *bytes, size_t n, AnswerSink sink, void *user);
/* Reads the end of the text. */
bool answer_reader_end(AnswerReader *r, AnswerSink sink, void *user);

/* ---- for readers of other forms -------------------------------------------------------------------------- */

/* Adds bytes to the open item, or to a new one if that is of another kind. */
void answer_reader_put(AnswerReader *r, AnswerKind kind, const char *bytes, size_t n);
/* Ends the open item, if there is one, and begins another; name: the function of a call, otherwise NULL. */
void answer_reader_begin_item(AnswerReader *r, AnswerKind kind, const char *name);
void answer_reader_end_item(AnswerReader *r);

/* Decide what the held text of an answer of gpt-oss is, after each byte, and at the end of the text. */
void harmony_read(AnswerReader *r);
void harmony_end(AnswerReader *r);

#endif
