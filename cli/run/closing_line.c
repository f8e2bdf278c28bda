/* closing_line.c - tokens a second, tokens a pass, and what plain decoding would cost.
 *
 * The cost of plain decoding is not measured but computed: n passes of one row, by the curve T(n, context) that the
 * engine measured when it opened and corrects by every pass since (backend/cost_curve.h). The curve is that of this
 * machine under its present load, so that both figures of the line belong to the same minute. */
#include "cli/run/closing_line.h"

#include "cli/cli.h"
#include "engine/engine.h"

#include <stdio.h>
#include <unistd.h>

double closing_line_plain_s(const fr_engine *engine, int64_t n_before, int64_t n) {
    CostCurve cost = engine->policy.cost;
    if (cost.n == 0) return 0;
    cost.n_context = (double)n_before + (double)n / 2;
    return (double)n * cost_curve_at(&cost, 1);
}

void closing_line_print(const fr_stats *s, double plain_s) {
    if (s->n_generated == 0) return;
    bool is_quiet = cli_may_color(STDERR_FILENO);
    fputs(is_quiet ? "\033[2m[" : "[", stderr);
    fprintf(stderr, "%.1f tokens/s", s->tokens_per_s);
    if (s->n_proposals) fprintf(stderr, ", %.2f tokens a pass", s->acceptance_length);
    if (s->n_proposals && plain_s > 0)
        fprintf(stderr, "; plain decoding: about %.1f tokens/s", (double)s->n_generated / plain_s);
    fputs(is_quiet ? "]\033[0m\n" : "]\n", stderr);
}
