/* cmd_pull.c - `forerun pull`: fetches a model from the Hugging Face hub into the cache folder. A lock in the
 * repository's folder prevents two such commands from writing the same part. */
#include "cli/cli.h"
#include "cli/model_name.h"
#include "cli/model/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct PullArgs {
    const char *name;
    bool list;
} PullArgs;

static PullArgs args;

static const Option options[] = {
    {.key = "REPO",
     .is_argument = true,
     OPT_TEXT(PullArgs, name),
     .help = "OWNER/NAME, OWNER/NAME:TYPE with a type such as Q8_0, or the address of a page on huggingface.co"},
    {.key = "list", OPT_FLAG(PullArgs, list), .help = "list the fetched models, and fetch nothing"},
    {.key = NULL},
};

static int check(fr_error *err) {
    ModelName name;
    if (args.list && args.name) return error_set(err, FR_ERR_ARGUMENT, "--list takes no name of a model");
    if (args.list) return FR_OK;
    if (!args.name) return error_set(err, FR_ERR_ARGUMENT, "missing model: pass OWNER/NAME or OWNER/NAME:TYPE");
    if (model_name_parse(args.name, &name)) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "'%.100s' is not the name of a model: write OWNER/NAME, OWNER/NAME:TYPE, or the address of "
                     "the model's page on huggingface.co",
                     args.name);
}

/* ---- the lock ------------------------------------------------------------------------------------------ */

static int lock(const char *folder, const char *repo, int *fd, fr_error *err) {
    char path[MODEL_CACHE_PATH];
    snprintf(path, sizeof path, "%.4080s/.lock", folder);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0) return FR_OK;
    if (*fd >= 0 && errno == EWOULDBLOCK)
        return error_set(err, FR_ERR_IO, "%s: another forerun is fetching this model; wait until it has ended", repo);
    return error_set(err, FR_ERR_IO, "%.300s: cannot be locked: %s", path, strerror(errno));
}

/* ---- fetching ------------------------------------------------------------------------------------------ */

static int fetch_one(const Fetch *f, const HubFile *file, fr_error *err) {
    bool was_there;
    fprintf(stderr, "forerun: %s, %.1f MB\n", file->path, (double)file->bytes / 1e6);
    int status = fetch_file(f, file, &was_there, err);
    if (!status && was_there)
        fprintf(stderr, "forerun: this file is there already, with the hash that the hub announces\n");
    return status;
}

static int fetch_chosen(Hub *hub, const ModelName *name, const char *folder, const HubRepo *list, fr_error *err) {
    const Fetch f = {.hub = hub, .repo = name->repo, .revision = list->revision, .folder = folder};
    const char **paths = malloc(((size_t)list->n_files + 1) * sizeof *paths);
    int *chosen = NULL, n_chosen = 0;
    if (!paths) return error_memory(err, "a list of files", (size_t)list->n_files * sizeof *paths);
    for (int i = 0; i < list->n_files; i++) paths[i] = list->files[i].path;
    int status = model_choose(name->repo, paths, list->n_files, name->type, &chosen, &n_chosen, err);
    for (int i = 0; i < n_chosen && !status; i++) status = fetch_one(&f, &list->files[chosen[i]], err);
    if (!status) printf("%s/%s\n", folder, paths[chosen[0]]);
    free(chosen);
    free((void *)paths);
    return status;
}

static int pull(const ModelName *name, fr_error *err) {
    char folder[MODEL_CACHE_PATH];
    Hub hub = {.http = NULL};
    HubRepo list = {.n_files = 0};
    int lock_fd = -1;
    if (!model_cache_folder(name->repo, folder))
        return error_set(err, FR_ERR_IO,
                         "there is no folder for models: set HOME or XDG_CACHE_HOME to one that may be written");
    int status = hub_open(&hub, err);
    if (!status) status = hub_list(&hub, name->repo, &list, err);
    if (!status) status = fetch_make_folder(folder, err);
    if (!status) status = lock(folder, name->repo, &lock_fd, err);
    if (!status) status = fetch_chosen(&hub, name, folder, &list, err);
    if (lock_fd >= 0) close(lock_fd);
    hub_free(&list);
    hub_close(&hub);
    return status;
}

/* ---- listing ------------------------------------------------------------------------------------------- */

/* Prints OWNER/NAME/FILE as OWNER/NAME:FILE, which every command understands; an incomplete file by the name that it
 * will get. */
static void list_one(const char *folder, const char *path) {
    char whole[2 * MODEL_CACHE_PATH];
    struct stat st;
    size_t n = strlen(path), n_owner = strcspn(path, "/"), n_repo = n_owner;
    bool is_part = n > 5 && strcmp(path + n - 5, ".part") == 0, is_model = n > 5 && strcmp(path + n - 5, ".gguf") == 0;
    if (path[n_owner]) n_repo += 1 + strcspn(path + n_owner + 1, "/");
    snprintf(whole, sizeof whole, "%s/%s", folder, path);
    if (!path[n_repo] || !(is_part || is_model) || stat(whole, &st) != 0) return;
    if (is_part && n > n_repo + 19) n -= sizeof ".012345678901.part" - 1;
    printf("%9.1f MB  %.*s:%.*s%s\n", (double)st.st_size / 1e6, (int)n_repo, path, (int)(n - n_repo - 1),
           path + n_repo + 1, is_part ? " (incomplete)" : "");
}

static int list(fr_error *err) {
    char folder[MODEL_CACHE_PATH], **paths;
    int n_paths;
    if (!model_cache_folder(NULL, folder)) return FR_OK;
    int status = model_cache_list(folder, &paths, &n_paths, err);
    if (status) return status;
    for (int i = 0; i < n_paths; i++) list_one(folder, paths[i]);
    model_cache_free_list(paths, n_paths);
    return FR_OK;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    ModelName name;
    if (args.list) return list(&err) ? cli_fail(&err) : CLI_OK;
    (void)model_name_parse(args.name, &name); /* check has accepted it */
    return pull(&name, &err) ? cli_fail(&err) : CLI_OK;
}

static const OptionSet sets[] = {{options, &args}, {NULL, NULL}};

const Command command_pull = {
    .name = "pull",
    .summary = "fetch a model from the Hugging Face hub",
    .about =
        "Fetch a GGUF model into the cache folder, $XDG_CACHE_HOME/forerun/models (~/.cache/forerun/models), and print "
        "the path of its file. Every option that takes a model finds it there by its name: -m OWNER/NAME or "
        "-m OWNER/NAME:TYPE. TYPE is a word of the file's name, such as Q5_K_M, or the whole name; without a type, "
        "Q4_K_M is chosen, else Q8_0, else the only file. A split file is fetched with all its parts.\n"
        "If a transfer was interrupted, run the command again: it continues where it stopped. The size and hash "
        "(SHA-256) of each file must be those that the hub announces.",
    .sets = sets,
    .notes =
        "Environment: HF_TOKEN is sent to the hub, for models that require it. HF_ENDPOINT is the address of another "
        "server with the same API. https_proxy, all_proxy and no_proxy are honoured.",
    .examples = "  forerun pull TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF\n"
                "  forerun run -m TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF --chat -p \"Why is the sky blue?\"\n"
                "  forerun pull TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:Q8_0\n"
                "  forerun pull https://huggingface.co/TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF\n"
                "  forerun pull --list\n",
    .check = check,
    .run = run,
};
