/* fuzz_template.c - any text as a chat template, rendered with a conversation; and any text as the JSON of one. A
 * render ends within its limits, with an error that gives the reason or with spans that lie in its output. */
#include "text/template/template.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": "
    "\"Gr\xc3\xbc\xc3\x9f </s> <|im_end|>\"},"
    "{\"role\": \"assistant\", \"content\": \"<think>a</think>b\", \"tool_calls\": [{\"id\": \"abc123xyz\", \"type\": "
    "\"function\", \"function\": "
    "{\"name\": \"f\", \"arguments\": {\"x\": 1.5, \"y\": [true, null]}}}]}, {\"role\": \"tool\", \"tool_call_id\": "
    "\"abc123xyz\", \"content\": \"21\"}],"
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": "
    "{\"type\": \"object\", "
    "\"properties\": {\"x\": {\"type\": \"number\"}}, \"required\": [\"x\"]}}}], \"add_generation_prompt\": true, "
    "\"bos_token\": \"<s>\", "
    "\"eos_token\": \"</s>\", \"n\": 7, \"f\": 2.5, \"s\": \"Hello, World\", \"d\": {\"a\": 1, \"b\": [1, 2]}}";

static void check_output(const TemplateOutput *out) {
    size_t at = 0;
    for (size_t i = 0; i < out->n_data; i++) {
        fr_assert(out->data[i].begin >= at + (i > 0) && out->data[i].begin < out->data[i].end &&
                  out->data[i].end <= out->text.n);
        at = out->data[i].end;
    }
}

static void run(const char *source, size_t n, TemplateVariables *v) {
    static const TemplateLimits limits = {.max_memory = 4 << 20, .max_steps = 50000, .max_depth = 60};
    Template *t;
    fr_error err = {0};
    TemplateOutput out = {.text.max_bytes = 1 << 16};
    int status = template_compile(&t, source, n, &limits, &err);
    if (!status) status = template_render(t, v, &out, &err);
    if (status) fr_assert(err.message[0] != '\0' && !out.text.data);
    else check_output(&out);
    template_output_free(&out);
    template_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static const char echo[] = "{{ x }}{{ x | tojson }}{% for m in x %}{{ m.role }}{% endfor %}";
    const char *text = (const char *)bytes;
    TemplateVariables *v;
    fr_error err = {0};
    fr_assert(template_variables_open(&v, NULL, &err) == FR_OK);
    fr_assert(template_set_members(v, conversation, sizeof conversation - 1, TEMPLATE_MESSAGES, &err) == FR_OK);
    template_set_time(v, 0);
    if (n > 0 && (text[0] == '[' || text[0] == '"')) { /* such an input is more useful as JSON */
        if (template_set_json(v, "x", text, n, TEMPLATE_MESSAGES, &err) == FR_OK) run(echo, sizeof echo - 1, v);
        else fr_assert(err.message[0] != '\0');
    } else run(text, n, v);
    template_variables_close(v);
    return 0;
}
