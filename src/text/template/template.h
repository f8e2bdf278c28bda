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
 * The language is that of Jinja2 as Hugging Face's transformers set it up for chat templates: a sandbox in which lists and
 * dicts are immutable, trim_blocks and lstrip_blocks, {% break %}, {% continue %} and {% generation %}, `tojson` as
 * Python's json.dumps writes it, raise_exception and strftime_now. What a chat template cannot use is refused by name:
 * include, import, extends, block, and lists that are changed in place.
 *
 * Marks. Each byte of the output is the template's own or data, which is text that came through TEMPLATE_DATA, whatever
 * operators, slices and filters it passed. The tokenizer looks for special tokens in the template's own bytes only, so that
 * nobody can end a turn by writing "<|im_end|>" into a message.
 *
 * Limits. Templates come from model files, which are not trusted: steps, depth, memory and output are bounded, and an error
 * names the limit and the line of the template. */
#ifndef TEMPLATE_TEMPLATE_H
#define TEMPLATE_TEMPLATE_H

#include "base/error.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Template Template;                   /* immutable; any number of threads may render it */
typedef struct TemplateVariables TemplateVariables; /* immutable while a render uses them */

/* 0 in a field is its default. */
typedef struct TemplateLimits {
    size_t max_source; /* bytes of a template; 1 MiB */
    size_t max_memory; /* bytes that one compilation, one set of variables or one render takes; 256 MiB */
    int64_t max_steps; /* operations of one render; 20 million */
    int max_depth;     /* of nested expressions, blocks and calls; 200 */
} TemplateLimits;

/* FR_ERR_FORMAT: the template is wrong. FR_ERR_UNSUPPORTED: it uses what is refused. FR_ERR_MEMORY: a limit. */
int template_compile(Template **out, const char *source, size_t n, const TemplateLimits *limits, fr_error *err);
void template_close(Template *t);

/* Whose text the strings of a variable are. TEMPLATE_MESSAGES: data, but the usual names of roles ("user", "assistant",
 * "tool", ...) under the key "role" are the template's own, because many templates make the spelling of a special token
 * from them. */
typedef enum TemplateMark { TEMPLATE_OWN, TEMPLATE_DATA, TEMPLATE_MESSAGES } TemplateMark;

int template_variables_open(TemplateVariables **out, const TemplateLimits *limits, fr_error *err);
void template_variables_close(TemplateVariables *v);
/* A later value of the same name takes the place of the earlier one. Everything is copied. */
int template_set_json(TemplateVariables *v, const char *name, const char *json, size_t n, TemplateMark mark,
                      fr_error *err);
int template_set_text(TemplateVariables *v, const char *name, const char *text, size_t n, TemplateMark mark,
                      fr_error *err);
int template_set_bool(TemplateVariables *v, const char *name, bool value, fr_error *err);
int template_set_none(TemplateVariables *v, const char *name, fr_error *err);
/* Sets each member of a JSON object as a variable of its own. */
int template_set_members(TemplateVariables *v, const char *json, size_t n, TemplateMark mark, fr_error *err);
/* What strftime_now shows, in seconds since 1970 and in local time; not set: the time of the render. */
void template_set_time(TemplateVariables *v, int64_t seconds);

typedef struct TemplateSpan {
    size_t begin, end; /* bytes of a text */
} TemplateSpan;

/* Zero-initialise it with text.max_bytes set. */
typedef struct TemplateOutput {
    Buf text;
    TemplateSpan *data; /* [n_data] the spans of text that are data, ascending and apart from each other; malloc'ed */
    size_t n_data;
} TemplateOutput;

/* FR_ERR_ARGUMENT: the template called raise_exception, so it refuses these messages. FR_ERR_FORMAT, FR_ERR_UNSUPPORTED: the
 * template does something wrong, or something that is not known here. FR_ERR_MEMORY: a limit. */
int template_render(const Template *t, const TemplateVariables *v, TemplateOutput *out, fr_error *err);
void template_output_free(TemplateOutput *out);

#endif
