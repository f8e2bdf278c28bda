/* text_functions.h - operations on strings that filters and methods share. */
#ifndef TEMPLATE_TEXT_FUNCTIONS_H
#define TEMPLATE_TEXT_FUNCTIONS_H

#include "text/template/builtins.h"

/* str.replace: the first `count` places, all where it is negative. */
const Text *text_replace(Work *w, const Text *t, const Text *old, const Text *by, int64_t count);
/* str.splitlines: at all of Unicode's line ends. */
Seq *text_split_lines(Work *w, const Text *t, bool keeps_ends);
/* str.split and str.rsplit; `separator` NULL: at runs of white space. */
Seq *text_split(Work *w, const Text *t, const Text *separator, int64_t max, bool from_right);
typedef enum TextPad { PAD_LEFT, PAD_RIGHT, PAD_CENTER } TextPad;
const Text *text_pad(Work *w, const Text *t, int64_t width, const Text *fill, TextPad side);
/* t % arguments, and str.format without format specifications. */
const Text *text_format_percent(Work *w, const Text *t, const Call *arguments);
const Text *text_format_braces(Work *w, const Text *t, const Call *arguments);
/* The filter `wordwrap` (word_wrap.c). */
Value wrap_words(Render *r, const Call *c);

#endif
