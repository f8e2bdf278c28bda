/* cli.c - functions that the subcommands share: errors, whole files, the cache folder, the list of drafters, lists of
 * integers, and opening a model below the public API. */
#include "base/files.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "draft/drafter.h"
#include "draft/drafter_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_fail(const fr_error *err) {
    fprintf(stderr, "forerun: %s\n", err->message);
    return err->code == FR_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

bool cli_may_color(int fd) {
    const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
    bool knows_escapes = terminal && strcmp(terminal, "dumb") != 0;
    return isatty(fd) && knows_escapes && !(refused && *refused);
}

int cli_read_file(const char *path, size_t max_bytes, char **out, size_t *n, fr_error *err) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : input_text_open(path, err);
    if (!f) return FR_ERR_IO;
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
    return error_set(err, FR_ERR_MEMORY, "%s: is larger than the limit of %zu bytes, or memory ran out", path,
                     max_bytes);
}

const char *cli_cache_folder(void) {
    static char path[4096];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && cache[0] == '/'; /* the XDG standard: a relative path is ignored */
    if (!given && (!home || !*home)) return NULL;
    int n = snprintf(path, sizeof path, "%s%s", given ? cache : home, given ? "" : "/.cache");
    if (n < 0 || (size_t)n + sizeof "/forerun" > sizeof path) return NULL;
    (void)mkdir(path, 0777);
    memcpy(path + n, "/forerun", sizeof "/forerun");
    (void)mkdir(path, 0777);
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? path : NULL;
}

const char *cli_packed_file(const char *model) {
    static char path[4096];
    const char *folder = cli_cache_folder();
    char *whole = folder ? realpath(model, NULL) : NULL;
    if (!whole) return NULL;
    const char *slash = strrchr(whole, '/');
    int n = snprintf(path, sizeof path, "%s/packed/%.120s-%016" PRIx64 ".packed", folder, slash ? slash + 1 : whole,
                     hash64(whole, strlen(whole), 0));
    free(whole);
    return n > 0 && n < (int)sizeof path ? path : NULL;
}

void cli_note_packed(const char *packed_error) {
    if (packed_error && *packed_error) fprintf(stderr, "forerun: note: %s\n", packed_error);
}

/* ---- drafters and rules ------------------------------------------------------------------------------- */

enum { OPTION_INDENT = 6 };

static bool put_method(Buf *out, const char *name, const char *summary) {
    return buf_printf(out, "  %s: ", name) && text_wrap(out, summary, (int)strlen(name) + 4, 4, CLI_WIDTH) &&
           buf_puts(out, "\n");
}

bool cli_list_drafters(Buf *out, bool without_target) {
    bool fits = put_method(out, "auto",
                           "in each step, chooses a drafter that needs no model, and how much it drafts; nothing if "
                           "drafting does not pay");
    for (const DrafterClass *const *c = drafter_classes(); *c && fits; c++) {
        if (without_target && ((*c)->observe_tree || (*c)->set_sampling)) continue;
        fits = put_method(out, (*c)->name, (*c)->summary) && drafter_options_help(out, *c, OPTION_INDENT, CLI_WIDTH);
    }
    return fits;
}

const char *cli_suggest_draft(int i) {
    static const char *const others[] = {"none", "auto"};
    if (i < 2) return others[i];
    const DrafterClass *class = drafter_classes()[i - 2];
    return class ? class->name : NULL;
}

const char *cli_suggest_rule(int i) {
    const VerifyRule *rule = verify_rules()[i];
    return rule ? rule->name : NULL;
}

const char *cli_suggest_kernels(int i) {
    static const char *const names[] = {"auto", "ref",  "avx2",     "avx-vnni",  "avx512", "avx512-bf16",
                                        "amx",  "neon", "neon-dot", "neon-i8mm", NULL};
    return names[i];
}

/* ---- lists -------------------------------------------------------------------------------------------- */

int cli_parse_ints(const char *name, const char *text, int64_t min, int64_t max, int32_t **out, int64_t *n,
                   fr_error *err) {
    int32_t *values = malloc((strlen(text) + 1) * sizeof *values); /* each number takes at least one character */
    if (!values) return error_memory(err, "a list of numbers", strlen(text));
    int64_t count = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < min || v > max || (*end && *end != ',')) {
            free(values);
            return error_set(err, FR_ERR_ARGUMENT,
                             "%s: '%.40s' must be a list of integers from %lld to %lld, separated by commas", name,
                             text, (long long)min, (long long)max);
        }
        values[count++] = (int32_t)v;
        p = end;
        if (!*p) break;
    }
    *out = values;
    *n = count;
    return FR_OK;
}

/* ---- a model below the public API --------------------------------------------------------------------- */

const Option cli_model_options[] = {
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(CliModel, path),
     .required = "model",
     .section = "Model",
     .help = "GGUF file of the model"},
    CLI_ROW_PIN(CliModel, pin),
    CLI_ROW_KV(CliModel, kv),
    CLI_ROW_BACKEND(CliModel, backend),
    CLI_ROW_KERNELS(CliModel, kernels),
    CLI_ROW_ACT(CliModel, activations, .values = (const int32_t[]){ACT_PRECISION_Q16, ACT_PRECISION_Q8},
                .default_value = "q16"),
    {.key = NULL},
};

const Option cli_model_threads[] = {CLI_ROW_THREADS(CliModel, n_threads), {.key = NULL}};

void cli_model_defaults(CliModel *m) { *m = (CliModel){.n_threads = threads_n_physical_cores()}; }

int cli_model_open(CliModel *m, fr_error *err) {
    const Backend *backend;
    const WeightsOptions options = {.kernels = m->kernels,
                                    .activations = m->activations,
                                    .packed_file = m->is_packed_anew ? NULL : cli_packed_file(m->path),
                                    .n_threads = m->n_threads};
    int status = backend_find(m->backend, &backend, err);
    if (!status) status = gguf_open(&m->gguf, m->path, err);
    if (!status) status = drafter_file_refuse_as_target(m->gguf, err);
    if (!status) status = model_open(&m->model, m->gguf, err);
    if (!status) status = backend->weights_open(&m->weights, m->model, &options, err);
    if (!status) cli_note_packed(m->weights->packed_error);
    const DeviceOptions device = {.kernels = m->kernels, .n_threads = m->n_threads, .pin_threads = m->pin};
    if (!status) status = backend->device_open(&m->device, &device, err);
    if (status) cli_model_close(m);
    return status;
}

void cli_model_close(CliModel *m) {
    device_close(m->device);
    weights_close(m->weights);
    model_close(m->model);
    gguf_close(m->gguf);
    m->device = NULL;
    m->weights = NULL;
    m->model = NULL;
    m->gguf = NULL;
}

/* ---- tables ------------------------------------------------------------------------------------------- */

void table_name(const char *name, int width) {
    if ((int)strlen(name) <= width) printf("%-*s", width, name);
    else printf("%s\n%*s", name, width, "");
}
