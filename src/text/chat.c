/* chat.c - the built-in formats of conversations, which are used where the template of a model is missing or fails.
 *
 * Published templates are small programs. Those of the common families all do the same thing, so a family is a row
 * of strings here: the text before and after a message of each role, and the text before the answer. The strings
 * come from the model cards. tests/text/test_chat.c has whole conversations in each format. */
#include "text/chat.h"

#include <ctype.h>
#include <string.h>

/* Where a system message is allowed. */
typedef enum SystemPlace {
    SYSTEM_TURN,    /* a turn like any other */
    SYSTEM_FIRST,   /* only as the first message */
    SYSTEM_IN_USER, /* only as the first message, and written into the user's first one */
} SystemPlace;

typedef struct ChatStyle {
    const char *name;
    SystemPlace system_place;
    bool alternates; /* user and assistant must take turns, and the user begins and ends */
    bool trims;      /* white space around the messages of the user and the system is removed */
    const char *default_system;
    const char *system[2], *user[2], *assistant[2]; /* the text before and after the message */
    const char *opening;                            /* the text before the assistant's answer */
} ChatStyle;

static const ChatStyle styles[CHAT_FAMILY_COUNT] = {
    [CHAT_NONE] = {.name = "none"},
    /* The encoder writes the first <s>, which is BOS. Those between the turns are part of the text. */
    [CHAT_LLAMA2] = {"llama2",
                     SYSTEM_IN_USER,
                     true,
                     true,
                     NULL,
                     {"<<SYS>>\n", "\n<</SYS>>\n\n"},
                     {"[INST] ", " [/INST]"},
                     {" ", " </s><s>"},
                     ""},
    [CHAT_LLAMA3] = {"llama3",
                     SYSTEM_TURN,
                     false,
                     true,
                     NULL,
                     {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
                     {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
                     {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
                     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    [CHAT_VICUNA] = {"vicuna",
                     SYSTEM_FIRST,
                     false,
                     false,
                     "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
                     "helpful, detailed, and polite answers to the user's questions.",
                     {"", " "},
                     {"USER: ", " "},
                     {"ASSISTANT: ", "</s>"},
                     "ASSISTANT:"},
    [CHAT_CHATML] = {"chatml",
                     SYSTEM_TURN,
                     false,
                     false,
                     NULL,
                     {"<|im_start|>system\n", "<|im_end|>\n"},
                     {"<|im_start|>user\n", "<|im_end|>\n"},
                     {"<|im_start|>assistant\n", "<|im_end|>\n"},
                     "<|im_start|>assistant\n"},
    [CHAT_MISTRAL] =
        {"mistral", SYSTEM_IN_USER, true, false, NULL, {"", "\n\n"}, {"[INST] ", " [/INST]"}, {" ", "</s>"}, ""},
    [CHAT_ZEPHYR] = {"zephyr",
                     SYSTEM_TURN,
                     false,
                     false,
                     NULL,
                     {"<|system|>\n", "</s>\n"},
                     {"<|user|>\n", "</s>\n"},
                     {"<|assistant|>\n", "</s>\n"},
                     "<|assistant|>\n"},
    [CHAT_GEMMA] = {"gemma",
                    SYSTEM_IN_USER,
                    true,
                    true,
                    NULL,
                    {"", "\n\n"},
                    {"<start_of_turn>user\n", "<end_of_turn>\n"},
                    {"<start_of_turn>model\n", "<end_of_turn>\n"},
                    "<start_of_turn>model\n"},
    [CHAT_PHI3] = {"phi3",
                   SYSTEM_TURN,
                   false,
                   false,
                   NULL,
                   {"<|system|>\n", "<|end|>\n"},
                   {"<|user|>\n", "<|end|>\n"},
                   {"<|assistant|>\n", "<|end|>\n"},
                   "<|assistant|>\n"},
    [CHAT_PLAIN] = {"plain",
                    SYSTEM_FIRST,
                    false,
                    false,
                    NULL,
                    {"", "\n"},
                    {"USER: ", "\n"},
                    {"ASSISTANT: ", "</s>\n"},
                    "ASSISTANT:"},
};

const char *chat_family_name(ChatFamily family) {
    return (unsigned)family < CHAT_FAMILY_COUNT ? styles[family].name : "none";
}

ChatFamily chat_family_from_name(const char *name) {
    for (int f = CHAT_NONE + 1; f < CHAT_FAMILY_COUNT; f++)
        if (strcmp(name, styles[f].name) == 0) return (ChatFamily)f;
    return CHAT_NONE;
}

static bool contains(const char *text, size_t n, const char *part) {
    size_t n_part = strlen(part);
    for (size_t i = 0; i + n_part <= n; i++)
        if (memcmp(text + i, part, n_part) == 0) return true;
    return false;
}

ChatFamily chat_family_detect(const char *t, size_t n) {
    if (contains(t, n, "<|im_start|>")) return CHAT_CHATML;
    if (contains(t, n, "<|start_header_id|>")) return CHAT_LLAMA3;
    if (contains(t, n, "<start_of_turn>")) return CHAT_GEMMA;
    if (contains(t, n, "[INST] ") && contains(t, n, "<<SYS>>")) return CHAT_LLAMA2;
    /* Later Mistral models put no space before [/INST], or none after [INST], and are another family. */
    if (contains(t, n, "[INST] ") && contains(t, n, " [/INST]")) return CHAT_MISTRAL;
    if (contains(t, n, "<|user|>")) {
        if (contains(t, n, "<|end|>")) return CHAT_PHI3;
        if (contains(t, n, "</s>") || contains(t, n, "eos_token")) return CHAT_ZEPHYR;
    }
    if (contains(t, n, "USER:") && contains(t, n, "ASSISTANT:"))
        return contains(t, n, "\\n") ? CHAT_PLAIN : CHAT_VICUNA; /* a turn ends with a \n or with a space */
    return CHAT_NONE;
}

ChatFamily chat_family_of(const Gguf *g) {
    GgufString text;
    if (!gguf_get_string(g, "tokenizer.chat_template", &text)) return CHAT_NONE;
    return chat_family_detect(text.data, text.n);
}

static bool is_role(const ChatMessage *m, const char *role) { return strcmp(m->role, role) == 0; }

/* Refuses message i if its role is unknown or not allowed at its place. `is_prompt` says that the last message is to
 * be answered. */
static int check_place(const ChatStyle *style, const ChatMessage *messages, int i, int n, bool is_prompt,
                       fr_error *err) {
    const ChatMessage *m = &messages[i];
    bool system = is_role(m, "system");
    if (!system && !is_role(m, "user") && !is_role(m, "assistant"))
        return error_set(err, FR_ERR_ARGUMENT, "message %d has the role '%.40s'; it must be system, user or assistant",
                         i + 1, m->role);
    if (system && i > 0 && style->system_place != SYSTEM_TURN)
        return error_set(err, FR_ERR_ARGUMENT,
                         "message %d is a system message; the %s format takes one only as the first message", i + 1,
                         style->name);
    if (system && style->system_place == SYSTEM_IN_USER && (n == 1 || !is_role(&messages[1], "user")))
        return error_set(err, FR_ERR_ARGUMENT,
                         "the %s format writes the system message into the user's first, which must follow it",
                         style->name);
    if (style->alternates && !system) {
        int turn = i - (is_role(&messages[0], "system") ? 1 : 0);
        bool users = turn % 2 == 0;
        if (is_role(m, "user") != users || (is_prompt && i == n - 1 && !users))
            return error_set(err, FR_ERR_ARGUMENT,
                             "message %d is of the role %s; in the %s format user and assistant take turns, the user "
                             "first%s",
                             i + 1, m->role, style->name, is_prompt ? " and last" : "");
    }
    return FR_OK;
}

/* The text that is written, and the spans of the messages in it. */
typedef struct Writer {
    Buf *out;
    TemplateSpan *data; /* room for one span per message, or NULL */
    size_t n_data;
} Writer;

static bool put(Writer *w, const char *text) { return buf_append(w->out, text, strlen(text)); }

/* Writes a message between its two strings. `trims` removes white space at its ends. */
static bool put_message(Writer *w, const char *const around[2], const char *content, bool trims) {
    size_t from = 0, to = strlen(content);
    while (trims && from < to && isspace((unsigned char)content[from])) from++;
    while (trims && to > from && isspace((unsigned char)content[to - 1])) to--;
    if (!put(w, around[0])) return false;
    size_t begin = w->out->n;
    if (!buf_append(w->out, content + from, to - from)) return false;
    if (w->data && to > from) w->data[w->n_data++] = (TemplateSpan){begin, w->out->n};
    return put(w, around[1]);
}

/* Writes an answer as it was generated, so that the conversation has the same tokens again: an answer that begins with
 * the space before it gets no second one. */
static bool put_answer(Writer *w, const ChatStyle *style, const char *content) {
    const char *before = style->assistant[0];
    bool has_space = content[0] == ' ' && strcmp(before + strlen(style->opening), " ") == 0;
    const char *const around[2] = {has_space ? style->opening : before, style->assistant[1]};
    return put_message(w, around, content, false);
}

/* Writes a message of the user with the system message in it. */
static bool put_user_with_system(Writer *w, const ChatStyle *style, const char *system, const char *content) {
    const char *const rest[2] = {"", style->user[1]};
    return put(w, style->user[0]) && put_message(w, style->system, system, false) &&
           put_message(w, rest, content, style->trims);
}

static bool put_turn(Writer *w, const ChatStyle *style, const ChatMessage *messages, int i) {
    const ChatMessage *m = &messages[i];
    if (is_role(m, "system"))
        return style->system_place == SYSTEM_IN_USER || put_message(w, style->system, m->content, style->trims);
    if (is_role(m, "assistant")) return put_answer(w, style, m->content);
    if (i == 1 && style->system_place == SYSTEM_IN_USER && is_role(&messages[0], "system"))
        return put_user_with_system(w, style, messages[0].content, m->content);
    return put_message(w, style->user, m->content, style->trims);
}

static int check(ChatFamily family, const ChatMessage *messages, int n, bool is_prompt, fr_error *err) {
    if ((unsigned)family >= CHAT_FAMILY_COUNT || family == CHAT_NONE)
        return error_set(
            err, FR_ERR_UNSUPPORTED,
            "the model has no chat template that forerun recognises; name a format, or use a prompt without chat");
    if (n < 1) return error_set(err, FR_ERR_ARGUMENT, "the conversation has no messages");
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) status = check_place(&styles[family], messages, i, n, is_prompt, err);
    return status;
}

/* Returns the span of the answer that was just written: from the end of the opening to the '>' of the mark that ends
 * the turn. */
static ChatSpan answer_span(const Buf *out, const ChatStyle *style, size_t begin, int i_message) {
    const char *mark = style->assistant[1], *last = strchr(mark, '>');
    size_t n_behind = last ? strlen(last + 1) : 0;
    return (ChatSpan){begin + strlen(style->opening), out->n - n_behind, i_message};
}

/* Writes all turns, but not the opening of the next one. `answers` may be NULL. */
static bool put_turns(Writer *w, const ChatStyle *style, const ChatMessage *messages, int n, ChatSpan *answers,
                      int *n_answers) {
    bool fits = true;
    if (style->default_system && !is_role(&messages[0], "system"))
        fits = put(w, style->system[0]) && put(w, style->default_system) && put(w, style->system[1]);
    for (int i = 0; i < n && fits; i++) {
        size_t begin = w->out->n;
        fits = put_turn(w, style, messages, i);
        if (fits && answers && is_role(&messages[i], "assistant"))
            answers[(*n_answers)++] = answer_span(w->out, style, begin, i);
    }
    return fits;
}

static int too_long(const Buf *out, fr_error *err) {
    return error_set(err, FR_ERR_MEMORY, "the conversation is longer than %zu bytes, or memory ran out",
                     out->max_bytes);
}

int chat_format(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, TemplateSpan *data,
                size_t *n_data, fr_error *err) {
    int status = check(family, messages, n_messages, true, err);
    if (status) return status;
    const ChatStyle *style = &styles[family];
    Writer w = {.out = out, .data = data};
    bool fits = put_turns(&w, style, messages, n_messages, NULL, NULL) && put(&w, style->opening);
    if (n_data) *n_data = w.n_data;
    return fits ? FR_OK : too_long(out, err);
}

int chat_format_answers(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, ChatSpan *answers,
                        int *n_answers, fr_error *err) {
    *n_answers = 0;
    int status = check(family, messages, n_messages, false, err);
    if (status) return status;
    Writer w = {.out = out};
    return put_turns(&w, &styles[family], messages, n_messages, answers, n_answers) ? FR_OK : too_long(out, err);
}
