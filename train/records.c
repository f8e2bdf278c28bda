/* records.c - parses a line of training data. Errors are sentences without a subject; line_reader_refuse puts file and
 * line number before them. */
#include "base/mem.h"
#include "train/dataset.h"
#include "train/records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_messages(Record *r, const json_t *list, fr_error *err) {
    size_t n = json_array_size(list);
    if (n == 0) return error_set(err, FR_ERR_FORMAT, "has a conversation without messages");
    if (n > INT32_MAX || !(r->messages = mem_calloc(n, sizeof *r->messages)))
        return error_memory(err, "a conversation", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, i), *role = json_object_get(message, "role");
        r->messages[i].content = json_string_value(json_object_get(message, "content"));
        r->messages[i].role = json_string_value(role);
        if (!r->messages[i].content) return error_set(err, FR_ERR_FORMAT, "has a message without a string \"content\"");
    }
    r->n_messages = (int)n;
    r->kind = RECORD_CHAT;
    return FR_OK;
}

static int parse_tokens(Record *r, const json_t *list, fr_error *err) {
    const json_t *n_prompt = json_object_get(r->object, "prompt_tokens");
    r->kind = RECORD_TOKENS;
    r->tokens = list;
    r->n_tokens = (int64_t)json_array_size(list);
    r->n_prompt = json_integer_value(n_prompt);
    if (json_is_integer(n_prompt) && r->n_prompt >= 0 && r->n_prompt <= r->n_tokens) return FR_OK;
    return error_set(err, FR_ERR_FORMAT,
                     "has %lld \"tokens\"; it must also have \"prompt_tokens\", an integer from 0 to %lld",
                     (long long)r->n_tokens, (long long)r->n_tokens);
}

static int parse_object(Record *r, fr_error *err) {
    const json_t *list = json_object_get(r->object, "messages");
    if (json_is_array(list)) return parse_messages(r, list, err);
    r->text = json_string_value(json_object_get(r->object, "text"));
    r->prompt = json_string_value(json_object_get(r->object, "prompt"));
    r->response = json_string_value(json_object_get(r->object, "response"));
    r->kind = r->text ? RECORD_TEXT : RECORD_PAIR;
    if (r->text || r->prompt) return FR_OK;
    list = json_object_get(r->object, "tokens");
    if (json_is_array(list)) return parse_tokens(r, list, err);
    if (json_is_array(json_object_get(r->object, "turns")))
        return error_set(err, FR_ERR_FORMAT,
                         "has \"turns\", which are questions without answers: let 'forerun distill-data' answer them");
    return error_set(
        err, FR_ERR_FORMAT,
        "must have a string \"text\", or strings \"prompt\" and \"response\", or a list \"messages\", or a "
        "list \"tokens\"");
}

/* Replaces a list "turns" by "messages": each turn is the user's, and between two of them the assistant has an answer
 * that is yet to be made. */
static int take_turns(json_t *object, fr_error *err) {
    const json_t *turns = json_object_get(object, "turns");
    size_t n = json_array_size(turns);
    if (!json_is_array(turns) || json_object_get(object, "messages")) return FR_OK;
    if (n == 0) return error_set(err, FR_ERR_FORMAT, "has a list \"turns\" without a turn");
    json_t *messages = json_array();
    int failed = !messages;
    for (size_t i = 0; i < n && !failed; i++) {
        json_t *text = json_array_get(turns, i);
        if (!json_is_string(text)) {
            json_decref(messages);
            return error_set(err, FR_ERR_FORMAT, "has a list \"turns\" whose item %zu is not a string", i + 1);
        }
        if (i > 0)
            failed |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
        failed |= json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", text));
    }
    if (failed || json_object_set(object, "messages", messages)) failed = 1;
    json_decref(messages);
    json_object_del(object, "turns");
    return failed ? (int)error_memory(err, "a conversation", n) : FR_OK;
}

static int parse(Record *out, const char *line, size_t n, bool is_question, fr_error *err) {
    *out = (Record){0};
    json_error_t where;
    out->object = json_loadb(line, n, 0, &where);
    if (!out->object) return error_set(err, FR_ERR_FORMAT, "is not JSON: %s", where.text);
    int status = is_question ? take_turns(out->object, err) : FR_OK;
    if (!status) status = parse_object(out, err);
    if (status) record_free(out);
    return status;
}

int record_parse(Record *out, const char *line, size_t n, fr_error *err) { return parse(out, line, n, false, err); }

void record_free(Record *r) {
    json_decref(r->object);
    mem_free(r->messages);
    *r = (Record){0};
}

bool record_is_cut(const Record *r, int i) {
    const json_t *list = json_object_get(r->object, "messages");
    const json_t *answer = r->kind == RECORD_CHAT ? json_array_get(list, (size_t)i) : r->object;
    const char *finish = json_string_value(json_object_get(answer, "finish"));
    return finish && (strcmp(finish, "length") == 0 || strcmp(finish, "context") == 0);
}

bool record_is_lossy(const Record *r) {
    const json_t *list = json_object_get(r->object, "messages"), *message;
    bool is_lossy = json_is_true(json_object_get(r->object, "lossy"));
    size_t i;
    json_array_foreach(list, i, message) is_lossy = is_lossy || json_is_true(json_object_get(message, "lossy"));
    return is_lossy;
}

bool record_is_of_target(const Record *r, uint64_t fingerprint) {
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)fingerprint);
    const char *target = json_string_value(json_object_get(r->object, "target"));
    return target && strcmp(target, digits) == 0;
}

static int next(LineReader *reader, Record *out, bool is_question, fr_error *err) {
    const char *line;
    size_t n;
    int got;
    while ((got = line_reader_next(reader, &line, &n, err)) == 1) {
        if (strspn(line, " \t\r") >= n) continue; /* the line ends with '\0', so strspn stops */
        fr_error why;
        return parse(out, line, n, is_question, &why) ? line_reader_refuse(reader, &why, err) : 1;
    }
    *out = (Record){0};
    return got;
}

int record_next(LineReader *reader, Record *out, fr_error *err) { return next(reader, out, false, err); }
int record_next_question(LineReader *reader, Record *out, fr_error *err) { return next(reader, out, true, err); }

/* Turns a record into tokens and their loss mask.
 *
 * The problem is to find the token at which an answer begins. Prompt and answer cannot be encoded separately: a
 * SentencePiece vocabulary would put a word-start space before the answer, and merges across the seam would be lost. So
 * the whole text is encoded, and then the text before the seam by itself: the answer begins with the first token in
 * which the two differ. Where no merge crosses the seam, that is the token at the seam; where one does, it is the token
 * that crosses it.
 *
 *     prompt "Q: 1+1?\nA:"  response " 2"        BOS ▁Q : ▁1 + 1 ? \n A :  ▁2 EOS
 *                                    loss mask     0  0 0  0 0 0 0  0 0 0   1  1
 *
 * Cost: a conversation is encoded again up to each seam, twice for each answer. Test: test_dataset.c. */

typedef struct Tokens {
    int32_t *ids;
    int64_t n;
} Tokens;

static int encode(const DocumentForm *form, const char *text, size_t n, bool special, Tokens *out, fr_error *err) {
    unsigned flags = (tokenizer_adds_bos(form->tokenizer) ? TOKENIZE_BOS : 0u) | (special ? TOKENIZE_SPECIAL : 0u);
    return tokenizer_encode(form->tokenizer, text, n, flags, &out->ids, &out->n, err);
}

/* Returns the index of the first token in which `all`, the tokens of a text, differ from the tokens of the text's first
 * n bytes. */
static int find_seam(const DocumentForm *form, const Tokens *all, const char *text, size_t n, bool special,
                     int64_t *out, fr_error *err) {
    Tokens part;
    int status = encode(form, text, n, special, &part, err);
    if (status) return status;
    *out = 0;
    while (*out < part.n && *out < all->n && part.ids[*out] == all->ids[*out]) ++*out;
    free(part.ids);
    return FR_OK;
}

/* Takes ownership of the tokens and appends EOS where the vocabulary has one. So far the loss mask contains only
 * EOS. */
static int begin_document(Document *d, const DocumentForm *form, Tokens *tokens, fr_error *err) {
    int32_t eos = tokenizer_eos(form->tokenizer);
    bool ends = tokens->n > 0 && tokenizer_is_eog(form->tokenizer, tokens->ids[tokens->n - 1]);
    d->tokens = realloc(tokens->ids, (size_t)(tokens->n + 1) * sizeof *d->tokens);
    if (!d->tokens) return error_memory(err, "a document", (size_t)tokens->n);
    d->n = tokens->n;
    *tokens = (Tokens){0};
    d->loss_mask = calloc((size_t)d->n + 1, 1);
    if (!d->loss_mask) return error_memory(err, "a document", (size_t)d->n);
    if (eos < 0 || ends) return FR_OK;
    d->tokens[d->n] = eos;
    d->loss_mask[d->n] = d->n > 0;
    d->n++;
    return FR_OK;
}

/* Puts tokens begin .. end - 1 into the loss. is_cut: the answer was cut off, so its end-of-turn token stays out of the
 * loss. */
static void set_loss_mask(Document *d, const DocumentForm *form, int64_t begin, int64_t end, bool is_cut) {
    for (int64_t i = begin < 1 ? 1 : begin; i < end; i++) d->loss_mask[i] = 1;
    if (is_cut && end > 0 && tokenizer_is_eog(form->tokenizer, d->tokens[end - 1])) d->loss_mask[end - 1] = 0;
}

/* Reads the ids of the record, each of which must be in the vocabulary. */
static int take_ids(Tokens *out, const DocumentForm *form, const Record *r, fr_error *err) {
    out->ids = malloc((size_t)(r->n_tokens + 1) * sizeof *out->ids);
    if (!out->ids) return error_memory(err, "a document", (size_t)r->n_tokens * sizeof *out->ids);
    out->n = r->n_tokens;
    for (int64_t i = 0; i < r->n_tokens; i++) {
        const json_t *item = json_array_get(r->tokens, (size_t)i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= form->n_vocab)
            return error_set(err, FR_ERR_FORMAT,
                             "has a list \"tokens\" whose item %lld is not an integer from 0 to %d, a token of the "
                             "vocabulary",
                             (long long)i + 1, form->n_vocab - 1);
        out->ids[i] = (int32_t)id;
    }
    return FR_OK;
}

/* What the model generated is learned as it is. An EOS that it did not generate is only a separator. */
static int make_generation(Document *d, const DocumentForm *form, const Record *r, fr_error *err) {
    Tokens tokens = {0};
    if (r->n_tokens == 0) return FR_OK;
    int status = take_ids(&tokens, form, r, err);
    if (!status) status = begin_document(d, form, &tokens, err);
    free(tokens.ids);
    if (status) return status;
    d->loss_mask[d->n - 1] = 0;
    set_loss_mask(d, form, r->n_prompt, r->n_tokens, false);
    return FR_OK;
}

static int make_text(Document *d, const DocumentForm *form, const char *text, fr_error *err) {
    Tokens tokens = {0};
    if (!*text) return FR_OK;
    int status = encode(form, text, strlen(text), false, &tokens, err);
    if (!status) status = begin_document(d, form, &tokens, err);
    free(tokens.ids);
    if (!status) set_loss_mask(d, form, 0, d->n, false);
    return status;
}

static int make_pair(Document *d, const DocumentForm *form, const Record *r, fr_error *err) {
    Buf text = {.max_bytes = LINE_MAX_BYTES};
    Tokens tokens = {0};
    int64_t seam = 0;
    size_t n_prompt = strlen(r->prompt);
    int status = FR_OK;
    if (!buf_append(&text, r->prompt, n_prompt) || !buf_append(&text, r->response, strlen(r->response)))
        status = error_memory(err, "a document", n_prompt);
    if (!status) status = encode(form, text.data, text.n, false, &tokens, err);
    if (!status) status = find_seam(form, &tokens, text.data, n_prompt, false, &seam, err);
    if (!status) status = begin_document(d, form, &tokens, err);
    free(tokens.ids);
    buf_free(&text);
    if (!status) set_loss_mask(d, form, seam, d->n, record_is_cut(r, 0));
    return status;
}

/* The text ends with the last answer. */
static int make_conversation(Document *d, const DocumentForm *form, const Record *r, const Buf *text,
                             const ChatSpan *answers, int n_answers, fr_error *err) {
    Tokens tokens = {0};
    size_t n = answers[n_answers - 1].end;
    int status = encode(form, text->data, n, true, &tokens, err);
    if (status) return status;
    Tokens all = {0};
    status = begin_document(d, form, &tokens, err);
    free(tokens.ids);
    if (!status) all = (Tokens){d->tokens, d->n}; /* including the EOS that begin_document may have appended */
    for (int i = 0; i < n_answers && !status; i++) {
        int64_t begin, end = all.n;
        status = find_seam(form, &all, text->data, answers[i].begin, true, &begin, err);
        if (!status && answers[i].end < n) status = find_seam(form, &all, text->data, answers[i].end, true, &end, err);
        if (!status) set_loss_mask(d, form, begin, end, record_is_cut(r, answers[i].i_message));
    }
    return status;
}

static int make_chat(Document *d, const DocumentForm *form, const Record *r, const ChatMessage *messages, int n,
                     fr_error *err) {
    for (int i = 0; i < n; i++)
        if (!messages[i].role) return error_set(err, FR_ERR_FORMAT, "has a message without a string \"role\"");
    Buf text = {.max_bytes = LINE_MAX_BYTES};
    int n_answers = 0;
    ChatSpan *answers = mem_calloc((size_t)n, sizeof *answers);
    fr_error why;
    int status = answers ? FR_OK : error_memory(err, "a conversation", (size_t)n);
    if (!status && chat_format_answers(form->family, messages, n, &text, answers, &n_answers, &why))
        status = error_set(err, FR_ERR_FORMAT, "is not a valid conversation: %s", why.message);
    else if (!status && n_answers == 0)
        status = error_set(
            err, FR_ERR_FORMAT,
            "has no message with the role \"assistant\"; `forerun distill-data` generates the answers with a model");
    if (!status) status = make_conversation(d, form, r, &text, answers, n_answers, err);
    mem_free(answers);
    buf_free(&text);
    return status;
}

int document_make(Document *out, const DocumentForm *form, const Record *record, fr_error *err) {
    *out = (Document){0};
    int status;
    if (record->kind == RECORD_PAIR && !record->response)
        status = error_set(
            err, FR_ERR_FORMAT,
            "has a \"prompt\" and no \"response\"; `forerun distill-data` generates the answers with a model");
    else if (record->kind == RECORD_PAIR && form->pairs_are_chats)
        status = make_chat(out, form, record,
                           (ChatMessage[]){{"user", record->prompt}, {"assistant", record->response}}, 2, err);
    else if (record->kind == RECORD_PAIR) status = make_pair(out, form, record, err);
    else if (record->kind == RECORD_CHAT)
        status = make_chat(out, form, record, record->messages, record->n_messages, err);
    else if (record->kind == RECORD_TOKENS) status = make_generation(out, form, record, err);
    else status = make_text(out, form, record->text, err);
    if (status) document_free(out);
    return status;
}

void document_free(Document *d) {
    free(d->tokens);
    free(d->loss_mask);
    *d = (Document){0};
}
