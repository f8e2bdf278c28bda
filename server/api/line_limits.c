/* line_limits.c - texts that end by their lines, which editors ask for through llama.cpp's /infill and /completion.
 *
 *     t_max_predict_ms    a text that takes longer ends with its next whole line
 *     n_indent            a text ends before a line that begins with fewer blanks, as after the end of a block of code
 *
 * The first line goes on where the prompt ends, so it has no limit of blanks. Whether a line has too few of them is
 * known when something else follows them, and the text is cut there: so no text has to be held back in a stream. */
#include "server/api/api.h"

#include "base/system.h"

#include <string.h>

/* Keeps the first n bytes of the text, and the tokens that have a part in them. */
static void cut(TokenBatch *fresh, size_t n) {
    size_t n_text = 0, n_tokens = 0;
    for (; n_tokens < fresh->n && n_text < n; n_tokens++) {
        TokenRecord *t = &fresh->tokens[n_tokens];
        if (n_text + t->n_text > n) t->n_text = (uint32_t)(n - n_text);
        n_text += t->n_text;
    }
    fresh->n = n_tokens;
    fresh->text.n = n;
}

/* Returns the place of the first byte after too few blanks; the length of the text: there is none. */
static size_t find_indent_end(LineLimits *l, int n_indent, const Buf *text) {
    for (size_t i = 0; i < text->n; i++) {
        char c = text->data[i];
        bool is_blank = c == ' ' || c == '\t';
        if (!l->is_within_line && is_blank) l->n_blanks++;
        else if (!l->is_within_line && l->n_blanks < n_indent) return i;
        else l->is_within_line = true;
        if (c == '\n') l->is_within_line = false, l->n_blanks = 0;
    }
    return text->n;
}

bool line_limits_apply(LineLimits *l, const Plan *plan, TokenBatch *fresh) {
    if (fresh->n > 0 && l->first_token_s <= 0) l->first_token_s = clock_s(), l->is_within_line = true;
    if (l->is_over) {
        token_batch_clear(fresh);
        return true;
    }
    if (plan->n_indent > 0) {
        size_t n = fresh->text.n, end = find_indent_end(l, plan->n_indent, &fresh->text);
        l->is_over = end < n;
        if (l->is_over) cut(fresh, end);
    }
    bool ends_line = fresh->text.n > 0 && memchr(fresh->text.data, '\n', fresh->text.n);
    l->has_new_line = l->has_new_line || ends_line;
    if (plan->max_predict_s > 0 && ends_line && clock_s() - l->first_token_s > plan->max_predict_s) l->is_over = true;
    return l->is_over;
}
