/* text_output.c - writes an answer token by token: escaped on a terminal, drafted tokens in colour. */
#include "cli/cli.h"
#include "cli/run/text_output.h"
#include "cli/run/generate.h"
#include "cli/safe_text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

TextOutput text_output_open(bool use_color, bool trims) {
    return (TextOutput){.use_color = use_color,
                        .is_terminal = isatty(STDOUT_FILENO),
                        .trims = trims,
                        .text.max_bytes = 1 << 20};
}

void text_output_close(TextOutput *o) { buf_free(&o->text); }

const char *text_output_trimmed(const char *text, size_t *n) {
    while (*n > 0 && (*text == ' ' || *text == '\n' || *text == '\t' || *text == '\r')) text++, --*n;
    return text;
}

int text_output_write(TextOutput *o, const fr_token_event *event) {
    const char *text = event->text;
    size_t n = event->n_bytes;
    if (o->trims && !o->has_begun) text = text_output_trimmed(text, &n);
    if (n == 0) return 0;
    o->has_begun = true;
    if (o->is_terminal) {
        buf_clear(&o->text);
        if (!buf_append(&o->text, "", 0) || !safe_text_append_lines(&o->text, text, n)) return 1;
        text = o->text.data, n = o->text.n;
    }
    bool is_colored = o->use_color && event->source >= 0;
    if (is_colored) fputs(generate_source_color(event->source), stdout);
    fwrite(text, 1, n, stdout);
    if (is_colored) fputs(GENERATE_COLOR_OFF, stdout);
    return fflush(stdout) != 0; /* a closed pipe ends the generation */
}

/* Tokens a second, tokens a pass, and what plain decoding would cost.
 *
 * The cost of plain decoding is not measured but computed: n passes of one row, by the curve T(n, context) that the
 * engine measured when it opened and corrects by every pass since (fr_engine_forward_s). The curve is that of this
 * machine under its present load, so that both figures of the line belong to the same minute. */

double closing_line_plain_s(const fr_engine *engine, int64_t n_before, int64_t n) {
    return (double)n * fr_engine_forward_s(engine, 1, n_before + n / 2);
}

void closing_line_print(const RequestStats *s, double plain_s) {
    const fr_stats *counts = &s->counts;
    bool has_drafted = s->drafts.n_proposals > 0;
    if (counts->n_generated == 0) return;
    bool is_quiet = cli_may_color(STDERR_FILENO);
    fputs(is_quiet ? "\033[2m[" : "[", stderr);
    fprintf(stderr, "%.1f tokens/s", counts->tokens_per_s);
    if (has_drafted) fprintf(stderr, ", %.2f tokens a pass", counts->acceptance_length);
    if (has_drafted && plain_s > 0)
        fprintf(stderr, "; plain decoding: about %.1f tokens/s", (double)counts->n_generated / plain_s);
    fputs(is_quiet ? "]\033[0m\n" : "]\n", stderr);
}
