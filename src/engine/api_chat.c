/* api_chat.c - the parts of forerun.h about conversations. */
#include "engine/api_check.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "base/error.h"
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

static int check_messages(const fr_model *m, const fr_chat_message *messages, int n_messages, const char *function,
                          fr_error *err) {
    int status = check_given(m, function, "model", err);
    if (!status) status = check_array(messages, n_messages, function, "messages", err);
    for (int i = 0; i < n_messages && !status; i++)
        if (!messages[i].role || !messages[i].content)
            status = error_set(err, FR_ERR_ARGUMENT, "%s: messages[%d] has no %s", function, i,
                               messages[i].role ? "content" : "role");
    return status;
}

/* The text by a template or format other than the model's. */
static int apply_other(const fr_model *m, const char *name, const Conversation *c, TemplateOutput *out,
                       char warning[256], fr_error *err) {
    size_t n = strlen(name);
    const char *text = strstr(name, "{{") || strstr(name, "{%") ? name : named_template(name, &n);
    ChatFamily family = chat_family_from_name(name);
    Printable safe;
    if (!text && family != CHAT_NONE) return chat_family_apply(family, c, out, err);
    if (!text)
        return error_set(err, FR_ERR_UNSUPPORTED, "there is no chat template '%s'",
                         printable(&safe, name, strlen(name)));
    ChatTemplate t;
    int status = chat_template_open(&t, text, n, err);
    if (status) return status;
    t.family = CHAT_NONE; /* who names a template wants that one */
    status = chat_template_apply(&t, m->tokenizer, c, out, warning, err);
    chat_template_close(&t);
    return status;
}

static int apply(const fr_model *m, const fr_chat_options *o, const fr_chat_message *messages, int n_messages,
                 TemplateOutput *out, char warning[256], fr_error *err) {
    if (n_messages == 0 && !o->messages) return error_set(err, FR_ERR_ARGUMENT, "the conversation has no messages");
    ChatMessage *copies = malloc((size_t)(n_messages ? n_messages : 1) * sizeof *copies);
    if (!copies) return error_memory(err, "messages", (size_t)n_messages * sizeof *copies);
    for (int i = 0; i < n_messages; i++) copies[i] = (ChatMessage){messages[i].role, messages[i].content};
    Conversation c = {.messages = copies,
                      .n_messages = n_messages,
                      .messages_json = o->messages,
                      .tools_json = o->tools,
                      .variables_json = o->variables,
                      .adds_generation_prompt = !o->no_generation_prompt};
    warning[0] = '\0';
    const ChatTemplate *own = o->tools && m->tool_template.compiled ? &m->tool_template : &m->chat_template;
    int status = o->chat_template ? apply_other(m, o->chat_template, &c, out, warning, err)
                                  : chat_template_apply(own, m->tokenizer, &c, out, warning, err);
    free(copies);
    return status;
}

static int encode(const fr_model *m, const TemplateOutput *text, fr_chat_result *out, fr_error *err) {
    unsigned flags = TOKENIZE_SPECIAL | (tokenizer_adds_bos(m->tokenizer) ? TOKENIZE_BOS : 0u) |
                     (tokenizer_adds_eos(m->tokenizer) ? TOKENIZE_EOS : 0u);
    return tokenizer_encode_marked(m->tokenizer, text->text.data, text->text.n, text->data, text->n_data, flags,
                                   &out->tokens, &out->n_tokens, err);
}

int fr_chat_apply(const fr_model *m, const fr_chat_message *messages, int n_messages, const fr_chat_options *options,
                  fr_chat_result *out, fr_error *err) {
    static const char function[] = "fr_chat_apply";
    fr_chat_options o = {0};
    fr_chat_result result = {0};
    int status = check_given(out, function, "out", err);
    if (status) return status;
    if (fill_result(out, &result, sizeof result))
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: struct_size of the result is not set; set it to sizeof(fr_chat_result)", function);
    status = read_options(&o, sizeof o, options, function, "fr_chat_options", err);
    if (!status) status = check_messages(m, messages, n_messages, function, err);
    if (status) return status;
    FpEnv caller_env = fp_env_enter();
    TemplateOutput text = {.text.max_bytes = REQUEST_MAX_TEXT};
    status = apply(m, &o, messages, n_messages, &text, result.warning, err);
    if (!status) status = encode(m, &text, &result, err);
    fp_env_leave(&caller_env);
    free(text.data);
    result.text = text.text.data;
    result.n_bytes = text.text.n;
    if (status) fr_chat_result_free(&result);
    (void)fill_result(out, &result, sizeof result);
    return status;
}

void fr_chat_result_free(fr_chat_result *r) {
    static const fr_chat_result none;
    if (!r) return;
    free(r->text);
    free(r->tokens);
    r->text = NULL;
    r->tokens = NULL;
    (void)fill_result(r, &none, sizeof none);
}
