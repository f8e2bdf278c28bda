/* json_layout.h - how a JSON text uses white space, and what it will use next. */
#ifndef TEXT_JSON_LAYOUT_H
#define TEXT_JSON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_MAX_INDENT = 32 };

typedef enum Space { SPACE_NONE, SPACE_BLANK, SPACE_LINE } Space;

/* How the text so far is laid out. A text begins with {.unit = 2}. */
typedef struct JsonLayout {
    bool in_string, is_escaped;
    char last; /* '{', '[', ',', ':', or the '"', '}' or ']' that ends a value, if only white space has followed; else 0 */
    Space space;    /* since then */
    int32_t indent; /* of the line; while space is SPACE_LINE, so far */
    int32_t before; /* of the line before */
    int32_t unit;   /* by which lines are indented behind { and [, and back before } and ] */
    Space style[5]; /* behind { [ , : and before } or ] */
    bool is_known[5];
} JsonLayout;

void json_layout_read(JsonLayout *l, char c);
/* Behind one of the marks { [ , : or a value, or the end of a line behind it: the white space that is expected, at most
 * JSON_MAX_INDENT + 1 bytes. */
size_t json_layout_space(const JsonLayout *l, char *out);
/* Whether the last mark has occurred before. */
bool json_layout_is_known(const JsonLayout *l);

#endif
