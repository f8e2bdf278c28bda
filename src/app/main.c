/* main.c - `forerun`: finds the subcommand and hands over. */
#include "app/cli.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

static const CliCommand commands[] = {
    {"run", "generate text, drafters running ahead", cmd_run},
    {"compare", "the same prompt plainly and with each drafter, side by side", cmd_compare},
    {"bench", "many questions plainly and with each drafter: speed by category, or by batch size", cmd_bench},
    {"tokenize", "token ids of a text, and back", cmd_tokenize},
    {"inspect", "what is in a GGUF file", cmd_inspect},
    {"logits", "raw logits of every position of given tokens", cmd_logits},
    {"perf", "the limits of this machine, and what a forward over n rows costs", cmd_perf},
    {"replay", "run a drafter against recorded answers, without the model", cmd_replay},
    {"study", "the experiments of Recursive Speculative Decoding, with plots", cmd_study},
    {"index", "make a corpus into an index for the drafter rest", cmd_index},
    {"train", "train a model, or a drafter for one, on your own texts", cmd_train},
    {"distill-data", "let a model answer the questions of a file, as data to train on", cmd_distill},
    {"import-drafter", "make published weights of a drafter into a drafter file", cmd_import},
    {NULL, NULL, NULL},
};

static void print_help(FILE *out) {
    fputs("Usage: forerun COMMAND [OPTION...]\n"
          "Run language models from GGUF files faster than one token at a time, with not one token changed.\n\n"
          "Commands:\n",
          out);
    for (const CliCommand *c = commands; c->name; c++) fprintf(out, "  %-14s %s\n", c->name, c->summary);
    fputs("\n`forerun COMMAND --help` explains a command; `man forerun` tells the rest.\n", out);
}

/* Every command writes to standard output, and none looks whether it could. */
static int finish(int status) {
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (written || status != CLI_OK) return status;
    fprintf(stderr, "forerun: standard output cannot be written\n");
    return CLI_FAILED;
}

int main(int argc, char **argv) {
    argp_err_exit_status = CLI_USAGE;
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return finish(CLI_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("forerun " FORERUN_VERSION);
        return finish(CLI_OK);
    }
    for (const CliCommand *c = commands; c->name; c++)
        if (strcmp(argv[1], c->name) == 0) {
            char name[64];
            snprintf(name, sizeof name, "forerun %s", c->name);
            argv[1] = name;
            return finish(c->run(argc - 1, argv + 1));
        }
    fprintf(stderr, "forerun: there is no command '%s'; `forerun --help` lists them\n", argv[1]);
    return CLI_USAGE;
}
