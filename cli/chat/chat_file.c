/* chat_file.c - saves and loads conversations, and compares texts that are tokenized differently.
 *
 * The messages have the form that all chat APIs use, so that other programs can read a file, and files of other
 * programs can be loaded. Only a file with "format": "forerun-chat" is ever replaced.
 *
 * The next answer depends on more than the texts: on the tokens that the model has read and written, which may differ
 * from those that the tokenizer makes of the texts (chat_turns.c, "the prompt") and may contain incomplete characters;
 * and on how often an answer was replaced, which changes the seed. "state" stores both, so that a loaded conversation
 * continues like one that was never saved. The fingerprint binds the state to the model: with another model, or if the
 * state does not fit the messages, only the texts are loaded. The state of drafters is not saved, because it changes no
 * token, except under verification rules whose text depends on the drafts (--verify).
 *
 *     {"format": "forerun-chat", "model": NAME, "messages": [{"role": ROLE, "content": TEXT}, ...],
 *      "state": {"fingerprint": HEX, "turns": [{"n_regenerated": N, "n_shared": N, "tokens": "ID ID ..."}, ...]}}
 *
 * A turn without "tokens" has no context. Otherwise its context is the first n_shared tokens of the previous context,
 * followed by its own tokens. */
#include "cli/chat/chat_session.h"
#include "cli/cli.h"
#include "cli/json_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BYTES = 64 << 20 };
static const char format[] = "forerun-chat";

/* ---- reading ----------------------------------------------------------------------------------------- */

static int read_json(const char *path, json_t **out, fr_error *err) {
    char *text;
    size_t n;
    json_error_t why;
    int status = cli_read_file(path, MAX_BYTES, &text, &n, err);
    if (status) return status;
    *out = json_loadb(text, n, 0, &why);
    free(text);
    if (*out) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: line %d: is not JSON: %s", path, why.line, why.text);
}

static int refuse(const char *path, size_t i, const char *why, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s: message %zu: %s", path, i + 1, why);
}

/* Adds a message. A system message must come first; questions and answers must alternate. */
static int add_message(ChatTurns *turns, const char *path, size_t i, const json_t *message, fr_error *err) {
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    const char *text = json_string_value(content);
    const ChatTurn *last = chat_turns_last(turns);
    bool is_open = last && !last->answer;
    if (!role || !text) return refuse(path, i, "must have a \"role\" and a \"content\", both strings", err);
    if (strcmp(role, "system") == 0)
        return i == 0 ? chat_turns_set_system(turns, text, err)
                      : refuse(path, i, "a system message must be the first message", err);
    if (strcmp(role, "user") == 0)
        return is_open ? refuse(path, i, "a question must follow an answer", err)
                       : chat_turns_ask(turns, text, json_string_length(content), err);
    if (strcmp(role, "assistant") == 0)
        return is_open ? chat_turns_answer(turns, text, json_string_length(content), NULL, 0, err)
                       : refuse(path, i, "an answer must follow a question", err);
    return refuse(path, i, "its role must be system, user or assistant", err);
}

static int add_messages(ChatTurns *turns, const char *path, const json_t *json, fr_error *err) {
    const json_t *messages = json_object_get(json, "messages"), *message;
    size_t i;
    int status = FR_OK;
    if (!json_is_array(messages))
        return error_set(err, FR_ERR_FORMAT, "%s: is not a conversation: it must be an object with \"messages\"", path);
    json_array_foreach(messages, i, message) {
        status = add_message(turns, path, i, message, err);
        if (status) return status;
    }
    const ChatTurn *last = chat_turns_last(turns);
    return last && !last->answer ? refuse(path, i - 1, "the last question has no answer", err) : FR_OK;
}

static int write_fingerprint(const fr_model *model, char text[17], fr_error *err) {
    uint64_t fingerprint;
    int status = fr_model_fingerprint(model, &fingerprint, err);
    if (!status) snprintf(text, 17, "%016" PRIx64, fingerprint);
    return status;
}

/* Returns an integer from 0 to max; -1: the key is missing or has another value. */
static int64_t read_count(const json_t *object, const char *key, int64_t max) {
    const json_t *value = json_object_get(object, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
    return n >= 0 && n <= max ? n : -1;
}

/* Appends the tokens in a text to `tokens` [*n]. False: the text is not a list of tokens. */
static bool read_tokens(const char *text, int32_t n_vocab, int32_t *tokens, int64_t *n) {
    while (*text) {
        size_t n_digits = strspn(text, "0123456789");
        long id = strtol(text, NULL, 10);
        if (n_digits < 1 || n_digits > 9 || id >= n_vocab) return false;
        tokens[(*n)++] = (int32_t)id;
        text += n_digits;
        text += *text == ' ';
    }
    return true;
}

/* Reads the state of a turn. *before: the last turn with a context, or NULL. False: the state is invalid. */
static bool read_turn(ChatTurn *turn, const json_t *item, int32_t n_vocab, bool may_have_context, ChatTurn **before) {
    const char *own = json_string_value(json_object_get(item, "tokens"));
    int64_t n_regenerated = read_count(item, "n_regenerated", UINT32_MAX);
    if (n_regenerated < 0) return false;
    turn->n_regenerated = (uint32_t)n_regenerated;
    if (!own) return true;
    int64_t n = read_count(item, "n_shared", *before ? (*before)->n_context : 0);
    if (n < 0 || !may_have_context) return false;
    turn->context = malloc(((size_t)n + strlen(own) / 2 + 1) *
                           sizeof *turn->context); /* each token takes two bytes of text or more */
    if (!turn->context) return false;
    if (n > 0) memcpy(turn->context, (*before)->context, (size_t)n * sizeof *turn->context);
    bool fits = read_tokens(own, n_vocab, turn->context, &n);
    turn->n_context = n;
    *before = turn;
    return fits;
}

static bool read_turns(ChatTurns *turns, const json_t *state, const fr_model *model) {
    fr_model_info info = {.struct_size = sizeof info};
    char fingerprint[17];
    const char *found = json_string_value(json_object_get(state, "fingerprint"));
    const json_t *list = json_object_get(state, "turns");
    if (!found || write_fingerprint(model, fingerprint, NULL) || strcmp(found, fingerprint) != 0) return false;
    if (json_array_size(list) != (size_t)turns->n) return false;
    fr_model_get_info(model, &info);
    ChatTurn *before = NULL;
    for (int i = 0; i < turns->n; i++)
        if (!read_turn(&turns->items[i], json_array_get(list, (size_t)i), info.n_vocab,
                       i >= turns->n - CHAT_TURNS_CONTEXTS, &before))
            return false;
    return true;
}

/* Reads the state of all turns. False: it is invalid or of another model, and the turns have only their texts. */
static bool read_state(ChatTurns *turns, const json_t *json, const fr_model *model) {
    const json_t *state = json_object_get(json, "state");
    if (!state || read_turns(turns, state, model)) return true;
    for (int i = 0; i < turns->n; i++) {
        free(turns->items[i].context);
        turns->items[i].context = NULL;
        turns->items[i].n_context = turns->items[i].n_regenerated = 0;
    }
    return false;
}

int chat_file_load(ChatTurns *turns, const fr_model *model, const char *path, bool *has_texts_only, fr_error *err) {
    ChatTurns loaded = {0};
    json_t *json = NULL;
    int status = read_json(path, &json, err);
    if (!status) status = add_messages(&loaded, path, json, err);
    *has_texts_only = !status && !read_state(&loaded, json, model);
    json_decref(json);
    if (status) {
        chat_turns_free(&loaded);
        return status;
    }
    chat_turns_free(turns);
    *turns = loaded;
    return FR_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static int check_replaced(const char *path, fr_error *err) {
    json_t *json = NULL;
    fr_error why;
    if (access(path, F_OK) != 0 && errno == ENOENT) return FR_OK;
    int status = read_json(path, &json, &why);
    const char *found = status ? NULL : json_string_value(json_object_get(json, "format"));
    bool is_ours = found && strcmp(found, format) == 0;
    json_decref(json);
    if (is_ours) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: exists and is not a saved conversation: choose another name", path);
}

/* Returns NULL if a text is not UTF-8. */
static json_t *messages_json(const fr_chat_message *messages, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *message = json_pack("{s:s, s:s}", "role", messages[i].role, "content", messages[i].content);
        if (message) json_array_append_new(list, message);
        else {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Makes "ID ID ...". NULL: memory ran out. */
static json_t *tokens_json(const int32_t *tokens, int64_t n) {
    Buf text = {.max_bytes = MAX_BYTES};
    bool fits = buf_append(&text, "", 0);
    for (int64_t i = 0; i < n && fits; i++) fits = buf_printf(&text, i ? " %d" : "%d", (int)tokens[i]);
    json_t *list = fits ? json_stringn(text.data, text.n) : NULL;
    buf_free(&text);
    return list;
}

static json_t *turn_json(const ChatTurn *turn, const ChatTurn *before) {
    int64_t n_shared = 0;
    if (!turn->context) return json_pack("{s:I}", "n_regenerated", (json_int_t)turn->n_regenerated);
    while (before && n_shared < before->n_context && n_shared < turn->n_context &&
           turn->context[n_shared] == before->context[n_shared])
        n_shared++;
    return json_pack("{s:I, s:I, s:o}", "n_regenerated", (json_int_t)turn->n_regenerated, "n_shared",
                     (json_int_t)n_shared, "tokens", tokens_json(turn->context + n_shared, turn->n_context - n_shared));
}

/* Makes the state. NULL: the model's file has changed, so the model cannot be identified. */
static json_t *state_json(const ChatTurns *turns, const fr_model *model) {
    char fingerprint[17];
    if (write_fingerprint(model, fingerprint, NULL)) return NULL;
    json_t *list = json_array();
    const ChatTurn *before = NULL;
    for (int i = 0; i < turns->n && turns->items[i].answer; i++) {
        json_array_append_new(list, turn_json(&turns->items[i], before));
        if (turns->items[i].context) before = &turns->items[i];
    }
    return json_pack("{s:s, s:o}", "fingerprint", fingerprint, "turns", list);
}

static int to_json(json_t **out, const ChatTurns *turns, const fr_model *model, bool *has_texts_only, fr_error *err) {
    fr_chat_message *messages;
    fr_model_info info = {.struct_size = sizeof info};
    int n, status = chat_turns_messages(turns, true, &messages, &n, err);
    if (status) return status;
    json_t *list = messages_json(messages, n);
    free(messages);
    if (!list) return error_set(err, FR_ERR_FORMAT, "a message is not UTF-8, which JSON cannot hold");
    fr_model_get_info(model, &info);
    json_t *state = state_json(turns, model);
    *has_texts_only = !state;
    *out = json_pack("{s:s, s:o, s:o, s:o*}", "format", format, "model", json_string_or_null(info.name), "messages",
                     list, "state", state);
    return FR_OK;
}

int chat_file_save(const ChatTurns *turns, const fr_model *model, const char *path, bool *has_texts_only,
                   fr_error *err) {
    json_t *json = NULL;
    int status = check_replaced(path, err);
    if (!status) status = to_json(&json, turns, model, has_texts_only, err);
    if (!status) status = json_file_write(json, path, JSON_INDENT(2), err);
    json_decref(json);
    return status;
}

/* ---- texts of tokens ----------------------------------------------------------------------------------
 *
 * Two lists of tokens are compared by their bytes. White space is skipped, because a model may begin its answer with or
 * without a space, and templates remove it or add their own. */

/* A cursor that reads tokens byte by byte. */
typedef struct Bytes {
    const fr_model *model;
    const int32_t *tokens;
    int64_t n, i;   /* number of tokens; index of the current one */
    const char *at; /* next byte of token i */
    size_t n_left;  /* bytes left in token i; 0: its beginning */
} Bytes;

/* Returns the special token at the cursor; -1: there is none. */
static int32_t special_at(const Bytes *b) {
    return b->i < b->n && b->n_left == 0 && fr_token_is_special(b->model, b->tokens[b->i]) ? b->tokens[b->i] : -1;
}

/* Reads the next byte; -1 at the end of the tokens or before a special token. */
static int next_byte(Bytes *b) {
    while (b->n_left == 0) {
        if (b->i == b->n || special_at(b) >= 0) return -1;
        b->at = fr_token_piece(b->model, b->tokens[b->i], 0, &b->n_left);
        if (b->n_left == 0) b->i++;
    }
    int byte = (unsigned char)*b->at++;
    if (--b->n_left == 0) b->i++;
    return byte;
}

/* Reads the next byte that is not white space; -1 as next_byte. */
static int next_visible(Bytes *b) {
    int byte;
    do byte = next_byte(b);
    while (byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r');
    return byte;
}

int64_t same_text_end(const fr_model *model, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    Bytes x = {.model = model, .tokens = a, .n = n_a}, y = {.model = model, .tokens = b, .n = n_b};
    for (;;) {
        int byte = next_visible(&x);
        if (byte < 0 && x.i == x.n) return y.n_left > 0 ? -1 : y.i;
        if (next_visible(&y) != byte) return -1;
        if (byte >= 0) continue;
        if (special_at(&x) != special_at(&y)) return -1;
        x.i++, y.i++;
    }
}
