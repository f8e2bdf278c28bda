/* machine_speed.c - the better of two measurements of a machine, and the name of its CPU, for reports and for the key under
 * which measured costs are kept. */
#include "base/machine_speed.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void machine_speed_keep_peaks(MachineSpeed *speed, const MachineSpeed *second) {
    for (int k = 0; k < PEAK_COUNT; k++) {
        if (second->peak_gop_s[k] > speed->peak_gop_s[k]) speed->peak_gop_s[k] = second->peak_gop_s[k];
        if (second->tile_gop_s[k] > speed->tile_gop_s[k]) speed->tile_gop_s[k] = second->tile_gop_s[k];
    }
}

void machine_cpu_name(char out[MACHINE_NAME_BYTES]) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, MACHINE_NAME_BYTES, "unknown");
    for (bool found = false; f && !found && fgets(line, sizeof line, f);) {
        const char *value = strchr(line, ':');
        found = value && (strncmp(line, "model name", 10) == 0 || strncmp(line, "CPU part", 8) == 0);
        if (found) snprintf(out, MACHINE_NAME_BYTES, "%.90s", value + 1 + strspn(value + 1, " \t"));
    }
    if (f) fclose(f);
    out[strcspn(out, "\n")] = '\0';
}
