/* template.h - chat templates are programs in Jinja; this room compiles and runs them.
 *
 *     Template *t;
 *     TemplateVariables *v;
 *     TemplateOutput out = {.text.max_bytes = 1 << 20};
 *     template_compile(&t, source, n, NULL, &err);
 *     template_variables_open(&v, NULL, &err);
 *     template_set_json(v, "messages", json, n_json, TEMPLATE_DATA, &err);
 *     template_set_bool(v, "add_generation_prompt", true, &err);
 *     template_render(t, v, &out, &err);
 *
 * The language is Jinja2 with the settings of Hugging Face's transformers for chat templates: a sandbox in which lists
 * and dicts are immutable, trim_blocks and lstrip_blocks, {% break %}, {% continue %} and {% generation %}, `tojson`
 * that writes as Python's json.dumps does, raise_exception and strftime_now. A chat template cannot use include,
 * import, extends, block, or methods that change a list; the error names them.
 *
 * Marks. Each byte of the output is either the template's own or data. Data is text from variables that were set with
 * TEMPLATE_DATA, and stays data through all operators, slices and filters. The tokenizer looks for special tokens only
 * in the template's own bytes, so that nobody can end a turn by writing "<|im_end|>" into a message.
 *
 * Limits. Templates come from model files, which are not trusted, so steps, depth, memory and output are bounded. An
 * operation is counted before it is done. The error names the limit and the line of the template. */
#ifndef TEMPLATE_TEMPLATE_H
#define TEMPLATE_TEMPLATE_H

#include "base/error.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Template Template;                   /* immutable; any number of threads may render it */
typedef struct TemplateVariables TemplateVariables; /* immutable while a render uses them */

/* A field that is 0 has its default, which is given beside it. */
typedef struct TemplateLimits {
    size_t max_source; /* bytes of a template: 1 MiB */
    size_t max_memory; /* bytes for one compilation, one set of variables or one render: 256 MiB */
    int64_t max_steps; /* operations of one render: 20 million */
    int max_depth;     /* levels of nested expressions, blocks and calls: 200 */
} TemplateLimits;

/* FR_ERR_FORMAT: the template has an error. FR_ERR_UNSUPPORTED: it uses something that is refused. FR_ERR_MEMORY: it
 * exceeds a limit. */
int template_compile(Template **out, const char *source, size_t n, const TemplateLimits *limits, fr_error *err);
void template_close(Template *t);

/* How the strings of a variable are marked. TEMPLATE_MESSAGES marks them as data, except for the usual names of
 * roles ("user", "assistant", "tool", ...) under the key "role": many templates compose the spelling of a special
 * token from these. */
typedef enum TemplateMark { TEMPLATE_OWN, TEMPLATE_DATA, TEMPLATE_MESSAGES } TemplateMark;

int template_variables_open(TemplateVariables **out, const TemplateLimits *limits, fr_error *err);
void template_variables_close(TemplateVariables *v);
/* A later value of a name replaces an earlier one. Everything is copied. */
int template_set_json(TemplateVariables *v, const char *name, const char *json, size_t n, TemplateMark mark,
                      fr_error *err);
int template_set_text(TemplateVariables *v, const char *name, const char *text, size_t n, TemplateMark mark,
                      fr_error *err);
int template_set_bool(TemplateVariables *v, const char *name, bool value, fr_error *err);
int template_set_none(TemplateVariables *v, const char *name, fr_error *err);
/* Makes each member of a JSON object a variable. */
int template_set_members(TemplateVariables *v, const char *json, size_t n, TemplateMark mark, fr_error *err);
/* Sets the time that strftime_now formats, in seconds since 1970. It formats the time of the render otherwise. */
void template_set_time(TemplateVariables *v, int64_t seconds);

typedef struct TemplateSpan {
    size_t begin, end; /* bytes of a text */
} TemplateSpan;

/* Zero-initialise it with text.max_bytes set. */
typedef struct TemplateOutput {
    Buf text;
    TemplateSpan *data; /* [n_data] the spans of text that are data, ascending and not adjacent; malloc'ed */
    size_t n_data;
} TemplateOutput;

/* FR_ERR_ARGUMENT: the template called raise_exception because it refuses these messages. FR_ERR_FORMAT or
 * FR_ERR_UNSUPPORTED: the template has an error, or uses something that is not supported. FR_ERR_MEMORY: it exceeds
 * a limit. */
int template_render(const Template *t, const TemplateVariables *v, TemplateOutput *out, fr_error *err);
void template_output_free(TemplateOutput *out);

#endif
