/* chat_template.c - runs the chat template of a model with the variables that Hugging Face's transformers set:
 * messages, tools, add_generation_prompt, and the spellings of the model's special tokens. It also contains the named
 * templates.
 *
 * Messages and tools are data, so that a special token that is spelled in them stays text. The spellings of the
 * model's special tokens are the template's own. */
#include "base/os.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The small models of this project up to 0.1.0 contain the template `first_own`, which writes a system message as an
 * answer, and a space before an answer that begins with one. `own` replaces it. */
static const char first_own[] = "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'] + '\n' "
                                "}}{% else %}{{ 'ASSISTANT: ' + "
                                "m['content'] + eos_token + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt "
                                "%}{{ 'ASSISTANT:' }}{% endif %}";
static const char own[] =
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] + '\\n' }}{% elif m['role'] == 'user' %}{{ "
    "'USER: ' + "
    "m['content'] + '\\n' }}{% else %}{{ 'ASSISTANT:' + ('' if m['content'].startswith(' ') else ' ') + m['content'] + "
    "eos_token + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";

/* Returns whether the text is first_own. Its newlines may be spelled \n. */
static bool is_first_own(const char *text, size_t n) {
    size_t at = 0;
    for (const char *c = first_own; *c; c++) {
        if (*c == '\n' && at + 1 < n && text[at] == '\\' && text[at + 1] == 'n') at += 2;
        else if (at < n && text[at] == *c) at++;
        else return false;
    }
    return at == n;
}

int chat_template_open(ChatTemplate *out, const char *text, size_t n, fr_error *err) {
    fr_error why;
    *out = (ChatTemplate){.family = chat_family_detect(text, n), .reasons = memmem(text, n, "think>", 6) != NULL};
    if (is_first_own(text, n)) text = own, n = sizeof own - 1;
    if (!template_compile(&out->compiled, text, n, NULL, &why)) return FR_OK;
    if (strstr(why.message, "out of memory")) {
        if (err) *err = why;
        return FR_ERR_MEMORY;
    }
    snprintf(out->why, sizeof out->why, "%.*s", (int)sizeof out->why - 1, why.message);
    return FR_OK;
}

int chat_template_open_gguf(ChatTemplate *out, const Gguf *g, const char *key, fr_error *err) {
    GgufString text;
    *out = (ChatTemplate){0};
    if (!gguf_get_string(g, key, &text)) return FR_OK;
    return chat_template_open(out, text.data, text.n, err);
}

void chat_template_close(ChatTemplate *t) {
    template_close(t->compiled);
    t->compiled = NULL;
}

const char *chat_template_name(const char *text, size_t n) {
    static const struct {
        const char *marks[2], *name; /* the text contains all marks */
    } families[] = {
        {{"<|START_OF_TURN_TOKEN|>"}, "command-r"},
        {{"<|channel|>", "<|start|>"}, "gpt-oss"},
        {{"<|start_of_role|>"}, "granite"},
        {{"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "<think>"}, "deepseek-r1"},
        {{"<\xEF\xBD\x9CUser\xEF\xBD\x9C>"}, "deepseek-v3"},
        {{"Assistant: ", "User: "}, "deepseek-v2"},
        {{"[SYSTEM_PROMPT]"}, "mistral-v7"},
        {{"[AVAILABLE_TOOLS] "}, "mistral-v3"},
        {{"[AVAILABLE_TOOLS]"}, "mistral-nemo"},
        {{"<|im_sep|>"}, "phi4"},
        {{"<|im_start|>", "/no_think"}, "smollm3"},
        {{"<tool_call>", "<think>"}, "qwen3"},
        {{"<|im_start|>", "<tool_call>"}, "qwen2.5"},
        {{"<|im_start|>", "SmolLM"}, "smollm2"},
        {{"<|start_header_id|>", "ipython"}, "llama3.1"},
        {{"<start_of_turn>", "<start_of_image>"}, "gemma3"},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *const *marks = families[i].marks;
        if (memmem(text, n, marks[0], strlen(marks[0])) && (!marks[1] || memmem(text, n, marks[1], strlen(marks[1]))))
            return families[i].name;
    }
    ChatFamily family = chat_family_detect(text, n);
    return family == CHAT_NONE ? "jinja" : chat_family_name(family);
}

/* ---- messages as JSON ------------------------------------------------------------------------------------ */

static bool put(Buf *b, const char *text) { return buf_append(b, text, strlen(text)); }

static bool put_string(Buf *b, const char *text) {
    bool fits = put(b, "\"");
    for (; *text && fits; text++) {
        char escape[8];
        unsigned char c = (unsigned char)*text;
        if (c < 0x20) snprintf(escape, sizeof escape, "\\u%04x", c);
        else snprintf(escape, sizeof escape, c == '"' || c == '\\' ? "\\%c" : "%c", c);
        fits = put(b, escape);
    }
    return fits && put(b, "\"");
}

static int messages_to_json(const Conversation *c, Buf *out, fr_error *err) {
    bool fits = put(out, "[");
    for (int i = 0; i < c->n_messages && fits; i++)
        fits = put(out, i ? ", {\"role\": " : "{\"role\": ") && put_string(out, c->messages[i].role) &&
               put(out, ", \"content\": ") && put_string(out, c->messages[i].content) && put(out, "}");
    return fits && put(out, "]")
               ? FR_OK
               : error_set(err, FR_ERR_MEMORY, "the conversation is longer than %zu bytes, or memory ran out",
                           out->max_bytes);
}

static int set_messages(TemplateVariables *v, const Conversation *c, size_t max_bytes, fr_error *err) {
    if (c->messages_json)
        return template_set_json(v, "messages", c->messages_json, strlen(c->messages_json), TEMPLATE_MESSAGES, err);
    Buf json = {.max_bytes = max_bytes < SIZE_MAX / 8 ? 8 * max_bytes : max_bytes};
    int status = messages_to_json(c, &json, err);
    if (!status) status = template_set_json(v, "messages", json.data, json.n, TEMPLATE_MESSAGES, err);
    buf_free(&json);
    return status;
}

static int set_token(TemplateVariables *v, const char *name, const Tokenizer *t, int32_t token, fr_error *err) {
    size_t n;
    if (token < 0) return FR_OK;
    const char *spelling = tokenizer_piece(t, token, true, &n);
    return template_set_text(v, name, spelling, n, TEMPLATE_OWN, err);
}

static int set_variables(TemplateVariables *v, const Tokenizer *t, const Conversation *c, size_t max_bytes,
                         fr_error *err) {
    int status = set_messages(v, c, max_bytes, err);
    if (!status)
        status = c->tools_json ? template_set_json(v, "tools", c->tools_json, strlen(c->tools_json), TEMPLATE_DATA, err)
                               : template_set_none(v, "tools", err);
    if (!status) status = template_set_none(v, "documents", err);
    if (!status) status = template_set_bool(v, "add_generation_prompt", c->adds_generation_prompt, err);
    if (!status) status = set_token(v, "bos_token", t, tokenizer_bos(t), err);
    if (!status) status = set_token(v, "eos_token", t, tokenizer_eos(t), err);
    if (!status && c->variables_json)
        status = template_set_members(v, c->variables_json, strlen(c->variables_json), TEMPLATE_DATA, err);
    return status;
}

/* ---- the conversation -------------------------------------------------------------------------------------------- */

/* Removes a BOS that the template wrote, if the tokenizer will add one. */
static void drop_bos(TemplateOutput *out, const Tokenizer *t) {
    size_t n;
    const char *bos = tokenizer_piece(t, tokenizer_bos(t), true, &n);
    if (!tokenizer_adds_bos(t) || n == 0 || out->text.n < n || memcmp(out->text.data, bos, n) != 0) return;
    if (out->n_data && out->data[0].begin < n) return;
    memmove(out->text.data, out->text.data + n, out->text.n - n + 1);
    out->text.n -= n;
    for (size_t i = 0; i < out->n_data; i++) out->data[i].begin -= n, out->data[i].end -= n;
}

static int run_template(const ChatTemplate *t, const Tokenizer *tokenizer, const Conversation *c, TemplateOutput *out,
                        fr_error *err) {
    TemplateVariables *v;
    int status = template_variables_open(&v, NULL, err);
    if (status) return status;
    status = set_variables(v, tokenizer, c, out->text.max_bytes, err);
    if (!status) status = template_render(t->compiled, v, out, err);
    template_variables_close(v);
    if (!status) drop_bos(out, tokenizer);
    return status;
}

int chat_family_apply(ChatFamily family, const Conversation *c, TemplateOutput *out, fr_error *err) {
    if (c->messages_json || c->tools_json)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "messages as JSON and tools need a Jinja template; the format %s is a built-in one",
                         chat_family_name(family));
    out->data = malloc((size_t)(c->n_messages > 0 ? c->n_messages : 1) * sizeof *out->data);
    if (!out->data) return error_memory(err, "a conversation", (size_t)c->n_messages);
    int status = chat_format(family, c->messages, c->n_messages, &out->text, out->data, &out->n_data, err);
    if (status) template_output_free(out);
    return status;
}

int chat_template_apply(const ChatTemplate *t, const Tokenizer *tokenizer, const Conversation *c, TemplateOutput *out,
                        char warning[256], fr_error *err) {
    fr_error why = {.code = FR_ERR_UNSUPPORTED};
    warning[0] = '\0';
    if (t->compiled) {
        int status = run_template(t, tokenizer, c, out, &why);
        if (!status) return FR_OK;
        if (status == FR_ERR_ARGUMENT || t->family == CHAT_NONE || c->messages_json || c->tools_json) {
            if (err) *err = why;
            return status;
        }
    } else snprintf(why.message, sizeof why.message, "%s", t->why);
    if (t->family == CHAT_NONE)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s",
                         t->why[0] ? t->why : "the model has no chat template; name a format, or prompt without chat");
    int status = chat_family_apply(t->family, c, out, err);
    if (!status)
        snprintf(warning, 256, "%.150s; the built-in format '%s' is used instead", why.message,
                 chat_family_name(t->family));
    return status;
}

/* ---- named templates --------------------------------------------------------------------------------------------- */

/* The files in src/text/templates become data of the library: the assembler includes them when the library is built.
 * So they stay files that editors and jinja2 can read. Their path starts at the root of the project. */

#define TEMPLATES(X) \
    X(chatml, "chatml") \
    X(command_r, "command-r") \
    X(deepseek_r1_distill, "deepseek-r1-distill") \
    X(deepseek_v2, "deepseek-v2") \
    X(deepseek_v3, "deepseek-v3") \
    X(gemma2, "gemma2") \
    X(gemma3, "gemma3") \
    X(gpt_oss, "gpt-oss") \
    X(granite, "granite") \
    X(llama2, "llama2") \
    X(llama3, "llama3") \
    X(llama3_1, "llama3.1") \
    X(llama3_2, "llama3.2") \
    X(mistral_nemo, "mistral-nemo") \
    X(mistral_v1, "mistral-v1") \
    X(mistral_v3, "mistral-v3") \
    X(mistral_v7, "mistral-v7") \
    X(phi3, "phi3") \
    X(phi3_5, "phi3.5") \
    X(phi4, "phi4") \
    X(plain, "plain") \
    X(qwen2, "qwen2") \
    X(qwen2_5, "qwen2.5") \
    X(qwen3, "qwen3") \
    X(smollm2, "smollm2") \
    X(smollm3, "smollm3") \
    X(vicuna, "vicuna") \
    X(zephyr, "zephyr")

#define EMBED(id, name) OS_EMBED(named_template_##id, "src/text/templates/" name ".jinja")
TEMPLATES(EMBED)

#define ROW(id, name) {name, named_template_##id, named_template_##id##_end},
static const struct { const char *name, *begin, *end; } templates[] = {TEMPLATES(ROW)};

const char *named_template(const char *name, size_t *n) {
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (strcmp(name, templates[i].name) == 0) {
            *n = (size_t)(templates[i].end - templates[i].begin);
            return templates[i].begin;
        }
    return NULL;
}

const char *const *named_templates(void) {
#define NAME(id, name) name,
    static const char *const names[] = {TEMPLATES(NAME) NULL};
    return names;
}
