/* named_templates.h - chat templates of well-known families, by name ("llama3.1", "qwen3", ...), for models whose file has
 * none or a broken one. They are files of src/text/templates, written for forerun after what the families document, and
 * linked into the library. */
#ifndef TEXT_NAMED_TEMPLATES_H
#define TEXT_NAMED_TEMPLATES_H

#include <stddef.h>

/* The text of a template, [*n] bytes, not '\0'-terminated; NULL: there is none of that name. */
const char *named_template(const char *name, size_t *n);
/* The names in alphabetical order, ending with NULL. */
const char *const *named_templates(void);

#endif
