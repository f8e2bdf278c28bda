/* main.c - `forerun`: finds the subcommand and runs it. */
#include "cli/signals.h"
#include "cli/cli.h"
#include "cli/json_memory.h"
#include "cli/model_name.h"
#include "draft/drafter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const Command *const cli_commands[] = {
    &command_run,
    &command_chat,
    &command_compare,
    &command_bench,
    &command_tokenize,
    &command_inspect,
    &command_logits,
    &command_perf,
    &command_replay,
    &command_study,
    &command_index,
    &command_train,
    &command_distill,
    &command_import,
    &command_quantize,
    &command_imatrix,
    &command_perplexity,
    &command_convert,
    &command_pull,
    &command_repack,
    &command_embed,
    &command_serve,
    NULL,
};

static bool put_help(Buf *out) {
    bool fits = buf_puts(out, "Usage: forerun COMMAND [OPTION...]\n"
                              "       forerun MODEL.gguf [OPTION...]    start a chat, or answer a piped prompt\n"
                              "Run large language models from GGUF files, faster than one token at a time and\n"
                              "without changing a token.\n\n"
                              "Commands:\n");
    for (const Command *const *c = cli_commands; fits && *c; c++)
        fits = command_put_summary(out, (*c)->name, (*c)->summary);
    return fits && buf_puts(out, "\n'forerun help COMMAND' shows examples and the most common options,\n"
                                 "'forerun COMMAND --help-all' all options, and 'man forerun' the drafters and\n"
                                 "verification rules.\n"
                                 "If an option that takes one value is given more than once, the last one counts.\n"
                                 "'forerun --completions bash|zsh|fish' prints completions for that shell, and\n"
                                 "'forerun --version' prints the version.\n");
}

/* Checks standard output once for all, because commands write to it without checking each call. */
static int finish(int status) {
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (written || status != CLI_OK) return status;
    fprintf(stderr, "forerun: standard output cannot be written\n");
    return CLI_FAILED;
}

static int print(bool fits, Buf *text) {
    if (fits) fwrite(text->data, 1, text->n, stdout);
    else fprintf(stderr, "forerun: out of memory\n");
    buf_free(text);
    return finish(fits ? CLI_OK : CLI_FAILED);
}

static int print_completions(const char *shell) {
    Buf text = {.max_bytes = 1 << 20};
    bool known = shell && (strcmp(shell, "bash") == 0 || strcmp(shell, "zsh") == 0 || strcmp(shell, "fish") == 0);
    if (known) return print(command_completions(cli_commands, shell, &text), &text);
    fprintf(stderr, "forerun: --completions needs the name of a shell: bash, zsh or fish\n");
    return CLI_USAGE;
}

static const Command *find_command(const char *name) {
    for (const Command *const *c = cli_commands; *c; c++)
        if (strcmp(name, (*c)->name) == 0) return *c;
    return NULL;
}

static int refuse_command(const char *name) {
    NearestWord nearest = {.word = NULL};
    if (model_argument_is_path(name)) {
        fprintf(stderr, "forerun: '%s' is neither a command nor a GGUF file that can be read\nTry 'forerun --help'.\n",
                name);
        return CLI_USAGE;
    }
    static const char *const options[] = {"--help", "--version", "--completions"};
    static const char *const others[][2] = {/* commands of Ollama and llama.cpp */
                                            {"list", "pull --list"}, {"ls", "pull --list"}, {"show", "inspect"},
                                            {"generate", "run"},     {"cli", "run"},        {"server", "serve"}};
    bool is_option = name[0] == '-';
    for (size_t i = 0; is_option && i < sizeof options / sizeof *options; i++)
        nearest_word_try(&nearest, name, options[i]);
    for (const Command *const *c = cli_commands; *c; c++) nearest_word_try(&nearest, name, (*c)->name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i][0]) == 0) nearest.word = others[i][1];
    fprintf(stderr, "forerun: unknown %s '%s'", is_option ? "option" : "command", name);
    if (nearest.word) fprintf(stderr, "; did you mean %s?", nearest.word);
    fprintf(stderr, "\nTry 'forerun --help'.\n");
    return CLI_USAGE;
}

/* Runs `help COMMAND [METHOD]` as `COMMAND [METHOD] --help`. */
static int help_command(int n_words, char **words) {
    static char help[] = "--help";
    const Command *command = find_command(words[0]);
    char *argv[] = {words[0], n_words > 1 ? words[1] : help, help, NULL};
    return command ? finish(command_main(command, n_words > 1 ? 3 : 2, argv)) : refuse_command(words[0]);
}

/* Runs `MODEL.gguf` as `chat -m MODEL.gguf` or `run -m MODEL.gguf`. */
static int run_model(int argc, char **argv) {
    int n;
    char **words = model_argument(argc, argv, &n);
    if (!words) return refuse_command(argv[1]);
    int status = finish(command_main(find_command(words[0]), n, words));
    free(words);
    return status;
}

static int run_command(int argc, char **argv) {
    const Command *command = find_command(argv[1]);
    return command ? finish(command_main(command, argc - 1, argv + 1)) : run_model(argc, argv);
}

/* Opens /dev/null in place of standard files that the caller closed. Otherwise the next opened file would get such a
 * number: a model would be read as the prompt, or messages would be written into an output. The modes make any use of
 * them fail. */
static void keep_standard_files(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", modes[fd]); /* takes that number */
}

int main(int argc, char **argv) {
    keep_standard_files();
    json_memory_install();
    signals_begin();
    bus_error_install();
    if (argc < 2) {
        Buf text = {.max_bytes = 1 << 16};
        fputs(put_help(&text) ? text.data : "forerun: out of memory\n", stderr);
        buf_free(&text);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) return help_command(argc - 2, argv + 2);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "--help-all") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        Buf text = {.max_bytes = 1 << 16};
        return print(put_help(&text), &text);
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("forerun " FORERUN_VERSION);
        return finish(CLI_OK);
    }
    if (strcmp(argv[1], "--completions") == 0) return print_completions(argc > 2 ? argv[2] : NULL);
    if (strcmp(argv[1], "--man") == 0) { /* for man/update.sh; --help does not mention it */
        Buf text = {.max_bytes = 1 << 20};
        return print(command_man(cli_commands, &text), &text);
    }
    if (strcmp(argv[1], "--drafters") == 0) { /* for the table in docs/methods/README.md */
        puts("| `--draft` | what it does |\n|---|---|");
        for (const DrafterClass *const *c = drafter_classes(); *c; c++)
            printf("| `%s` | %s |\n", (*c)->name, (*c)->summary);
        return finish(CLI_OK);
    }
    if (strcmp(argv[1], "--man-pages") == 0 && argc > 2) { /* for make install */
        fr_error err;
        return command_man_pages(cli_commands, argv[2], &err) ? cli_fail(&err) : CLI_OK;
    }
    return run_command(argc, argv);
}
