/* perf_parts.c - the parts of a forward as a table and as JSON, each with its lower limit and a verdict in words. */
#include "cli/perf/perf_parts.h"

#include <stdio.h>

/* What the ratio to the lower limit means, and whether that limit is the arithmetic or the reading. */
static const char *verdict(const CostPart *p, double whole_s, const MachineSpeed *speed, char out[96]) {
    if (p->floor_s <= 0) return p->seconds > 0.1 * whole_s ? "no limit known, but a large share" : "no limit known";
    bool reads = p->bytes / (speed->read_gb_s * 1e9) >= 0.999 * p->floor_s;
    const char *by = reads ? "reading" : "arithmetic";
    double ratio = p->seconds / p->floor_s;
    if (p->seconds < 0.02 * whole_s) snprintf(out, 96, "too small to matter");
    else if (ratio < 0.9) snprintf(out, 96, "faster than memory: its data stays in the cache");
    else if (ratio < 1.15) snprintf(out, 96, "at the limit of %s", by);
    else if (ratio < 1.5) snprintf(out, 96, "near the limit of %s", by);
    else
        snprintf(out, 96, "%.1f times the limit of %s: %.0f%% of the forward could be saved", ratio, by,
                 100 * (p->seconds - p->floor_s) / whole_s);
    return out;
}

void perf_parts_print(const CostPart *parts, int n, int32_t n_rows, double whole_s, const MachineSpeed *speed) {
    char text[96];
    printf("\nwhere the time goes, %d row%s: %.3f ms\n", n_rows, n_rows > 1 ? "s" : "", 1e3 * whole_s);
    printf("%-12s %12s %3s %8s %9s %9s %6s %6s\n", "part", "shape", "n", "MB", "ms", "limit ms", "ratio", "share");
    for (int i = 0; i < n; i++) {
        const CostPart *p = &parts[i];
        char shape[32] = "";
        if (p->n_out) snprintf(shape, sizeof shape, "%lldx%lld", (long long)p->n_out, (long long)p->n_in);
        printf("%-12s %12s %3d %8.2f %9.3f ", p->name, shape, p->n_layers, 1e-6 * p->bytes, 1e3 * p->seconds);
        if (p->floor_s > 0) printf("%9.3f %6.2f", 1e3 * p->floor_s, p->seconds / p->floor_s);
        else printf("%9s %6s", "", "");
        printf(" %5.1f%%\n", 100 * p->seconds / whole_s);
    }
    for (int i = 0; i < n; i++) printf("%-12s %s\n", parts[i].name, verdict(&parts[i], whole_s, speed, text));
}

json_t *perf_parts_json(const CostPart *parts, int n, int32_t n_rows, double whole_s, const MachineSpeed *speed) {
    char text[96];
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const CostPart *p = &parts[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:s}", "part", p->name, "n_out",
                                              (json_int_t)p->n_out, "n_in", (json_int_t)p->n_in, "n_layers",
                                              p->n_layers, "bytes", p->bytes, "ops", p->ops, "seconds", p->seconds,
                                              "limit_s", p->floor_s, "verdict", verdict(p, whole_s, speed, text)));
    }
    return json_pack("{s:i, s:f, s:o}", "rows", n_rows, "seconds", whole_s, "parts", list);
}
