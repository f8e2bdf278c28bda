/* text_output.c - writes a text to standard output while it is generated: escaped, coloured and wrapped on a terminal.
 *
 * A text arrives in tokens, so that a word is often written before its end is known. If it then turns out not to fit
 * the line, the part that was written is erased and written again on the next line. The last column stays free, because
 * terminals differ in where the cursor is after a character in it. */
#include "cli/run/generate.h"

#include "cli/safe_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

enum { MIN_COLUMNS = 20, TAB = 8 };

/* Returns the width at which lines are wrapped; 0: standard output is not a terminal that can erase. */
static int terminal_columns(void) {
    struct winsize size;
    const char *term = getenv("TERM");
    if (!term || !*term || strcmp(term, "dumb") == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
    return size.ws_col < MIN_COLUMNS ? 0 : size.ws_col;
}

TextOutput text_output_open(bool use_color, bool trims) {
    return (TextOutput){.use_color = use_color,
                        .is_terminal = isatty(STDOUT_FILENO),
                        .trims = trims,
                        .n_columns = terminal_columns(),
                        .text.max_bytes = 1 << 20,
                        .word.max_bytes = 1 << 20,
                        .shown.max_bytes = 4 << 20};
}

void text_output_close(TextOutput *o) {
    buf_free(&o->text);
    buf_free(&o->word);
    buf_free(&o->shown);
}

const char *text_output_trimmed(const char *text, size_t *n) {
    while (*n > 0 && (*text == ' ' || *text == '\n' || *text == '\t' || *text == '\r')) text++, --*n;
    return text;
}

/* ---- wrapping ---------------------------------------------------------------------------------------------- */

static bool show(TextOutput *o, const char *text) { return buf_puts(&o->shown, text); }

/* From now on a word begins at the cursor. */
static bool begin_word(TextOutput *o, const char *color) {
    buf_clear(&o->word);
    o->word_columns = 0;
    return buf_puts(&o->word, color);
}

/* Begins a line, and moves the word to it unless the word fills a line by itself. */
static bool break_line(TextOutput *o, const char *color) {
    bool moves = o->word_columns > 0 && o->word_columns < o->column, fits = true;
    for (int i = 0; i < o->word_columns && moves && fits; i++) fits = show(o, "\b");
    fits = fits && (!moves || show(o, "\033[K")) && (!*color || show(o, GENERATE_COLOR_OFF)) && show(o, "\n");
    if (moves) fits = fits && buf_append(&o->shown, o->word.data, o->word.n);
    else fits = fits && begin_word(o, color) && show(o, color);
    o->column = o->word_columns;
    return fits;
}

static bool put_space(TextOutput *o, char space, const char *color) {
    int width = space == '\t' ? TAB - o->column % TAB : 1;
    bool fits = begin_word(o, color);
    if (o->column + width >= o->n_columns) return fits && break_line(o, color); /* in place of the space */
    o->column += width;
    return fits && buf_append(&o->shown, &space, 1);
}

/* Appends a character of n bytes. A line may end after a wide one, because Chinese and Japanese have no spaces. */
static bool put_char(TextOutput *o, const char *text, size_t n, int width, const char *color) {
    bool fits = o->column + width < o->n_columns || break_line(o, color);
    o->column += width;
    o->word_columns += width;
    fits = fits && buf_append(&o->word, text, n) && buf_append(&o->shown, text, n);
    return fits && (width < 2 || begin_word(o, color));
}

/* Appends the text to o->shown, with line ends where the terminal has no more room. */
static bool wrap(TextOutput *o, const char *text, size_t n, const char *color) {
    bool fits = show(o, color) && buf_puts(&o->word, color);
    for (size_t i = 0, n_char; i < n && fits; i += n_char) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        n_char = length > 0 ? (size_t)length : 1;
        if (text[i] == '\n') {
            o->column = 0;
            fits = show(o, "\n") && begin_word(o, color);
        } else if (text[i] == ' ' || text[i] == '\t') fits = put_space(o, text[i], color);
        else fits = put_char(o, text + i, n_char, length > 0 ? utf8proc_charwidth(c) : 1, color);
    }
    return fits && (!*color || (show(o, GENERATE_COLOR_OFF) && buf_puts(&o->word, GENERATE_COLOR_OFF)));
}

int text_output_write(TextOutput *o, const fr_token_event *event) {
    const char *text = event->text;
    const char *color = o->use_color ? generate_source_color(event->source) : "";
    size_t n = event->n_bytes;
    if (o->trims && !o->has_begun) text = text_output_trimmed(text, &n);
    if (n == 0) return 0;
    o->has_begun = true;
    buf_clear(&o->shown);
    if (o->is_terminal) {
        buf_clear(&o->text);
        o->has_failed = !buf_append(&o->text, "", 0) || !safe_text_append_lines(&o->text, text, n);
        if (o->has_failed) return 1;
        text = o->text.data, n = o->text.n;
    }
    bool fits = o->n_columns
                    ? wrap(o, text, n, color)
                    : show(o, color) && buf_append(&o->shown, text, n) && (!*color || show(o, GENERATE_COLOR_OFF));
    o->has_failed = !fits;
    if (!fits) return 1;
    fwrite(o->shown.data, 1, o->shown.n, stdout);
    return fflush(stdout) != 0; /* a closed pipe ends the generation */
}
