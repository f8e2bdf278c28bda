/* closing_line.c - tokens a second, tokens a pass, and what plain decoding would cost.
 *
 * The cost of plain decoding is not measured but computed: n passes of one row, by the curve T(n, context) that the
 * engine measured when it opened and corrects by every pass since (fr_engine_forward_s). The curve is that of this
 * machine under its present load, so that both figures of the line belong to the same minute. */
#include "cli/run/closing_line.h"

#include "cli/cli.h"

#include <stdio.h>
#include <unistd.h>

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
