/* test_help_cli.c - the texts that are derived from the tables of options: --help of every command, the man page, and
 * completions of the shells. */
#include "cli_rig.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COMMANDS = 64, HELP_WIDTH = 80, SCREEN = 24 };

/* The commands of the program, each method of `train` as a command. */
static char commands[MAX_COMMANDS][40];
static int n_commands;

static char text[1 << 18];

/* Appends the first word of each line of the list after this title. */
static void add_commands(const char *args, const char *title, const char *before) {
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    char *line = strstr(text, title), name[32];
    if (!line) fail_msg("there is no '%s' in %s", title, text);
    for (line += strlen(title); sscanf(line, "  %31[a-z0-9-]", name) == 1; line += strcspn(line, "\n") + 1) {
        if (line[2] == ' ' || strcmp(name, "train") == 0)
            continue; /* a summary goes on; its methods are added instead */
        assert_true(n_commands < MAX_COMMANDS);
        snprintf(commands[n_commands++], sizeof commands[0], "%s%s", before, name);
    }
}

static int list_commands(void **state) {
    (void)state;
    add_commands("--help", "\nCommands:\n", "");
    add_commands("train --help", "\nMethods:\n", "train ");
    return n_commands > 20 ? 0 : -1;
}

static bool is_listed(const char *name) {
    for (int i = 0; i < n_commands; i++)
        if (strcmp(commands[i], name) == 0) return true;
    return strcmp(name, "train") == 0;
}

/* Finds the commands in the sources, and checks that `forerun --help` has each. */
static void every_command_is_in_the_list(void **state) {
    (void)state;
    FILE *sources = popen("grep -h -A 1 -E '^const (Command command_|TrainMethod train_)' cli/*/*.c server/*.c "
                          "research/*.c train/*.c",
                          "r");
    char line[256], kind[16], name[32], whole[64];
    int n = 0;
    assert_non_null(sources);
    while (fgets(line, sizeof line, sources)) {
        if (sscanf(line, "const %15s", kind) == 1) continue;
        if (sscanf(line, " .name = \"%31[^\"]\"", name) != 1) continue;
        snprintf(whole, sizeof whole, "%s%s", strcmp(kind, "Command") == 0 ? "" : "train ", name);
        if (!is_listed(whole)) fail_msg("'%s' has no row in the table of commands or methods", whole);
        n++;
    }
    assert_int_equal(pclose(sources), 0);
    assert_int_equal(n, n_commands + 1); /* and `train` */
}

/* Checks that the text begins with the usage and has examples, and that no other line is too wide. Returns the number
 * of lines. */
static int check_help(const char *command, const char *option) {
    char args[64], usage[64];
    int n_lines = 0;
    snprintf(args, sizeof args, "%s %s", command, option);
    snprintf(usage, sizeof usage, "Usage: forerun %s [OPTION...]", command);
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    if (strncmp(text, usage, strlen(usage)) != 0 || !strstr(text, "\nExamples:\n  forerun ")) fail_msg("%s", text);
    for (const char *line = text, *end; *line; line = end + 1, n_lines++) {
        end = strchr(line, '\n');
        bool is_example = strncmp(line, "  forerun ", 10) == 0;
        if (end - line > HELP_WIDTH && !is_example)
            fail_msg("%s: too long a line: %.*s", args, (int)(end - line), line);
    }
    return n_lines;
}

/* Parsing --help also sets every default, which aborts if a row refuses its own default. The short help fits a screen,
 * and the examples come before the options. */
static void every_command_has_help(void **state) {
    (void)state;
    for (int i = 0; i < n_commands; i++) {
        int n_short = check_help(commands[i], "--help");
        const char *examples = strstr(text, "\nExamples:\n"), *options = strstr(text, "\nOptions:\n");
        if (n_short > SCREEN || !options || examples > options)
            fail_msg("%s, %d lines:\n%s", commands[i], n_short, text);
        int n_all = check_help(commands[i], "--help-all");
        if (n_all < n_short) fail_msg("%s --help-all has %d lines, --help %d", commands[i], n_all, n_short);
    }
    assert_int_equal(cli_run("train --help", text, sizeof text), 0);
    assert_non_null(strstr(text, "\n  lyanna "));
    cli_expect("run --help-all", 0, "\n      --min-p=P ");
    cli_expect("help run", 0, "--help-all ");
}

/* A full disk is reported, whatever is printed. */
static void a_failed_write_is_an_error(void **state) {
    (void)state;
    static const char *const others[] = {
        "--help",       "--version", "--completions bash",       "--completions zsh", "--man", "--completions fish",
        "train --help", "help",      "inspect models/draft.gguf"};
    char args[128];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(args, sizeof args, "%s 2>&1 >/dev/full", others[i]);
        assert_int_equal(cli_run(args, text, sizeof text), 1);
        assert_string_equal(text, "forerun: standard output cannot be written\n");
    }
    for (int i = 0; i < n_commands; i++) {
        snprintf(args, sizeof args, "%.39s --help 2>&1 >/dev/full", commands[i]);
        assert_int_equal(cli_run(args, text, sizeof text), 1);
        assert_string_equal(text, "forerun: standard output cannot be written\n");
    }
}

static void flags_and_values_are_parsed_the_gnu_way(void **state) {
    (void)state;
    cli_expect("inspect -jt models/draft.gguf", 0, "\"tensors\"");
    cli_expect("inspect --target models/target.gguf models/draft.gguf", 0,
               "4096 of the 4096 tokens of models/target.gguf");
    cli_expect("inspect --json=0 models/draft.gguf", 0, "architecture    llama");
    cli_expect("tokenize -mmodels/target.gguf -p ''", 0, "");
    cli_expect("tokenize --model models/target.gguf --prompt=", 0, "");
    cli_expect("inspect -- --help", 1, "--help: cannot be opened");
    cli_expect("inspect models/draft.gguf -x", 2, "unknown option '-x'");
    cli_expect("inspect models/draft.gguf --tensor", 2, "unknown option '--tensor'; did you mean --tensors?");
    cli_expect("run -m", 2, "--model needs a value: --model=FILE");
    cli_expect("run --tree-budget 512", 2, "'--tree-budget=512' must be auto or an integer from 1 to 511");
    cli_expect("run --color=red", 2, "'--color=red' must be never, auto or always");
    cli_expect("train eagel", 2, "did you mean eagle?");
}

static void is_in(const char *file, const char *args) {
    static char content[1 << 18];
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    content[fread(content, 1, sizeof content - 1, f)] = '\0';
    fclose(f);
    assert_true(strlen(text) > 100);
    if (!strstr(content, text))
        fail_msg("%s differs from what the program prints with %s: run man/update.sh", file, args);
}

static void what_is_generated_is_up_to_date(void **state) {
    (void)state;
    is_in("man/forerun.1", "--man");
    is_in("docs/methods/README.md", "--drafters");
}

/* There is a page for each command, with all of its options, and the formatter prints no warnings. */
static void every_command_has_a_man_page(void **state) {
    (void)state;
    static char page[1 << 18];
    char args[2048], path[1024], line[256];
    snprintf(args, sizeof args, "--man-pages %s 2>&1", cli_rig_folder());
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    for (int i = 0; i < n_commands; i++) {
        snprintf(path, sizeof path, "%s/forerun-%.39s.1", cli_rig_folder(), commands[i]);
        for (char *p = path + strlen(cli_rig_folder()); *p; p++)
            if (*p == ' ') *p = '-';
        FILE *f = fopen(path, "rb");
        if (!f) fail_msg("%s: there is no such page", path);
        page[fread(page, 1, sizeof page - 1, f)] = '\0';
        fclose(f);
        snprintf(line, sizeof line, ".B forerun %.39s\n", commands[i]);
        for (char *p = line; *p; p++)
            if (*p == '-') memmove(p + 1, p, strlen(p) + 1), *p++ = '\\';
        if (!strstr(page, line) || !strstr(page, ".SH OPTIONS") || !strstr(page, ".SH EXAMPLES")) fail_msg("%s", page);
        snprintf(args, sizeof args, "command -v groff >/dev/null || exit 0; groff -ww -man -z %s 2>&1", path);
        FILE *out = popen(args, "r");
        assert_non_null(out);
        text[fread(text, 1, sizeof text - 1, out)] = '\0';
        if (pclose(out) != 0 || text[0]) fail_msg("%s", text);
    }
    FILE *out = popen("command -v groff >/dev/null || exit 0; groff -ww -man -z man/forerun.1 2>&1", "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    if (pclose(out) != 0 || text[0]) fail_msg("%s", text);
    snprintf(args, sizeof args, "--man-pages %s/nowhere", cli_rig_folder());
    cli_expect(args, 1, "cannot be written");
}

/* Checks the words that bash would offer after these, in one line. */
static void offers(const char *words, const char *wanted) {
    char command[2048];
    snprintf(command, sizeof command,
             "bash -c '. %s/completions.bash; COMP_WORDS=(forerun %s); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _forerun; "
             "echo \"${COMPREPLY[*]}\"'",
             cli_rig_folder(), words);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    assert_int_equal(pclose(out), 0);
    text[strcspn(text, "\n")] = '\0';
    if (strcmp(text, wanted) != 0) fail_msg("after 'forerun %s': '%s', not '%s'", words, text, wanted);
}

static void bash_completes_commands_options_and_values(void **state) {
    (void)state;
    if (system("command -v bash >/dev/null") != 0) skip();
    char args[1024];
    snprintf(args, sizeof args, "--completions bash > %s/completions.bash", cli_rig_folder());
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    offers("ben", "bench");
    offers("help insp", "inspect");
    offers("help train ly", "lyanna");
    offers("run --tem", "--temp");
    offers("run --kv \"\"", "f16 f32 q8");
    offers("run --kv = q", "q8");
    offers("run --draft lookahead-", "lookahead-trie");
    offers("run --tree-budget a", "auto");
    offers("train ly", "lyanna");
    offers("train lyanna --first-token n", "none");
    offers("study b", "budget");
    offers("inspect man/forerun.", "man/forerun.1");
}

/* If the shell is installed, it must at least be able to read its script. */
static void other_shells_can_read_theirs(void **state) {
    (void)state;
    static const char *const shells[] = {"zsh", "fish"};
    for (int i = 0; i < 2; i++) {
        char args[1024];
        snprintf(args, sizeof args, "--completions %s > %s/completions.%s", shells[i], cli_rig_folder(), shells[i]);
        assert_int_equal(cli_run(args, text, sizeof text), 0);
        snprintf(args, sizeof args, "! command -v %s >/dev/null || %s -n %s/completions.%s", shells[i], shells[i],
                 cli_rig_folder(), shells[i]);
        assert_int_equal(system(args), 0);
    }
    cli_expect("--completions tcsh", 2, "bash, zsh or fish");
    if (system("command -v fish >/dev/null") != 0) return;
    char command[1024];
    snprintf(command, sizeof command,
             "fish -c \"source %s/completions.fish; complete -C'forerun run --kv '; complete -C'forerun help insp'; "
             "complete -C'forerun train lya'\" | cut -f 1 | tr '\\n' ' '",
             cli_rig_folder());
    FILE *out = popen(command, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    assert_int_equal(pclose(out), 0);
    assert_string_equal(text, "f16 f32 q8 inspect lyanna ");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_is_in_the_list),
        cmocka_unit_test(every_command_has_help),
        cmocka_unit_test(flags_and_values_are_parsed_the_gnu_way),
        cmocka_unit_test(what_is_generated_is_up_to_date),
        cmocka_unit_test(bash_completes_commands_options_and_values),
        cmocka_unit_test(other_shells_can_read_theirs),
        cmocka_unit_test(a_failed_write_is_an_error),
        cmocka_unit_test(every_command_has_a_man_page),
    };
    (void)argc;
    cli_rig_begin(argv[0]);
    return cmocka_run_group_tests(tests, list_commands, NULL);
}
