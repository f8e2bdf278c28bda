#include "app/cli.h"

#include "spec/drafter/drafter.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int cli_fail(const fr_error *err) {
    fprintf(stderr, "forerun: %s\n", err->message);
    return err->code == FR_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

int cli_read_file(const char *path, size_t max_bytes, char **out, size_t *n, fr_error *err) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f) return error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    Buf text = {.max_bytes = max_bytes};
    char chunk[65536];
    size_t got;
    bool fits = buf_append(&text, "", 0);
    while (fits && (got = fread(chunk, 1, sizeof chunk, f)) > 0) fits = buf_append(&text, chunk, got);
    bool broken = ferror(f) != 0;
    if (f != stdin) fclose(f);
    if (fits && !broken) {
        *out = text.data;
        *n = text.n;
        return FR_OK;
    }
    buf_free(&text);
    if (broken) return error_set(err, FR_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    return error_set(err, FR_ERR_MEMORY, "%s: is larger than the %zu bytes taken here, or memory ran out", path,
                     max_bytes);
}

const char *cli_cache_folder(void) {
    static char path[4096];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && cache[0] == '/'; /* as the standard says: a relative one is ignored */
    if (!given && (!home || !*home)) return NULL;
    int n = snprintf(path, sizeof path, "%s%s", given ? cache : home, given ? "" : "/.cache");
    if (n < 0 || (size_t)n + sizeof "/forerun" > sizeof path) return NULL;
    (void)mkdir(path, 0777);
    memcpy(path + n, "/forerun", sizeof "/forerun");
    (void)mkdir(path, 0777);
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? path : NULL;
}

static bool append_line(Buf *out, const char *indent, const char *name, const char *between, const char *help) {
    const char *const parts[] = {"\n", indent, name, between, help};
    for (int i = 0; i < 5; i++)
        if (!buf_append(out, parts[i], strlen(parts[i]))) return false;
    return true;
}

bool cli_list_drafters(Buf *out, bool without_target) {
    bool fits = append_line(out, "  ", "auto", ": ", "chooses among drafters that need no model and how much they draft, step by step, "
                            "down to plain decoding");
    for (const DrafterClass *const *c = drafter_classes(); *c && fits; c++) {
        if (without_target && ((*c)->observe_tree || (*c)->set_sampling)) continue;
        fits = append_line(out, "  ", (*c)->name, ": ", (*c)->summary);
        if (fits) fits = buf_append(out, "\n", 1) && drafter_options_help(out, *c, 6, 118);
        if (fits) out->n--; /* the last line's end: lines here begin with one */
    }
    return fits;
}

int64_t cli_parse_int(struct argp_state *state, const char *text, int64_t min, int64_t max, const char *option) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        argp_error(state, "%s: '%s' is no whole number from %lld to %lld", option, text, (long long)min, (long long)max);
    return v;
}

int cli_parse_ints(const char *text, int64_t min, int64_t max, int32_t **out, int64_t *n, fr_error *err) {
    int32_t *values = malloc((strlen(text) + 1) * sizeof *values); /* each number takes a character at least */
    if (!values) return error_memory(err, "a list of numbers", strlen(text));
    int64_t count = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < min || v > max || (*end && *end != ',')) {
            free(values);
            return error_set(err, FR_ERR_ARGUMENT,
                             "'%.40s' is not a list of whole numbers from %lld to %lld separated by commas", text,
                             (long long)min, (long long)max);
        }
        values[count++] = (int32_t)v;
        p = end;
        if (!*p) break;
    }
    *out = values;
    *n = count;
    return FR_OK;
}
