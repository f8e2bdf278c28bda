/* model_argument.c - recognises a model in place of a command, by the first bytes of the file. */
#include "cli/model_argument.h"

#include "base/files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_gguf(const char *path) {
    int fd;
    struct stat st;
    char magic[4] = "";
    if (input_file_open(path, &fd, &st, NULL)) return false;
    bool is_read = pread(fd, magic, sizeof magic, 0) == sizeof magic;
    close(fd);
    return is_read && memcmp(magic, "GGUF", sizeof magic) == 0;
}

static bool names_model(const char *word) { return strncmp(word, "-m", 2) == 0 || strncmp(word, "--model", 7) == 0; }

static bool gives_prompt(const char *word) {
    static const char *const options[] = {"-p", "-f", "--prompt", "--file"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strncmp(word, options[i], strlen(options[i])) == 0) return true;
    return false;
}

char **model_argument(int argc, char **argv, int *n_words) {
    static char chat[] = "chat", run[] = "run", option[] = "-m";
    bool is_option = names_model(argv[1]), is_chat = isatty(STDIN_FILENO);
    if (!is_option && (argv[1][0] == '-' || !is_gguf(argv[1]))) return NULL;
    char **words = malloc(((size_t)argc + 2) * sizeof *words);
    if (!words) return NULL;
    int n = 1;
    if (!is_option) words[n++] = option;
    for (int i = 1; i < argc; i++) {
        is_chat = is_chat && !gives_prompt(argv[i]);
        words[n++] = argv[i];
    }
    words[0] = is_chat ? chat : run;
    words[n] = NULL;
    *n_words = n;
    return words;
}

bool model_argument_is_path(const char *word) {
    size_t n = strlen(word);
    return strchr(word, '/') || (n > 5 && strcmp(word + n - 5, ".gguf") == 0) || access(word, F_OK) == 0;
}
