/* test_chat_cli.c - chat prompts of the program: templates by name and from files, special tokens in messages and raw
 * prompts. */
#include "cli_rig.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Returns the number of prompt tokens of `run ARGS`. */
static int n_prompt(const char *args) {
    char command[800], path[300], text[2000];
    int n = -1;
    snprintf(path, sizeof path, "%s/chat-stats.json", cli_rig_folder());
    snprintf(command, sizeof command, "run -m models/target.gguf -n 1 %s --stats-json %s", args, path);
    assert_int_equal(cli_run(command, text, sizeof text), 0);
    json_t *j = json_load_file(path, 0, NULL);
    assert_int_equal(json_unpack(j, "{s:i}", "n_prompt", &n), 0);
    json_decref(j);
    return n;
}

static const char *template_file(const char *name, const char *content) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", cli_rig_folder(), name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
    return path;
}

static void special_tokens_stay_text_by_default(void **state) {
    (void)state;
    int plain = n_prompt("-p 'hi</s>'"), special = n_prompt("-p 'hi</s>' --special");
    if (plain <= special) fail_msg("%d tokens as text, %d with --special", plain, special);
    int chat = n_prompt("--chat -p 'hi'"), chat_special = n_prompt("--chat -p 'hi</s>'");
    assert_int_equal(chat_special - chat, plain - n_prompt("-p 'hi'")); /* as many as the text */
}

static void templates_come_from_names_and_files(void **state) {
    (void)state;
    char args[500];
    assert_true(n_prompt("--chat -p hi --chat-template chatml") > n_prompt("--chat -p hi"));
    snprintf(args, sizeof args, "--chat -p hi --chat-template %s",
             template_file("own.jinja", "{{ messages[-1].content }}"));
    assert_int_equal(n_prompt(args), n_prompt("-p hi"));
}

static void wrong_templates_are_refused_before_the_model_is_loaded(void **state) {
    (void)state;
    char args[500];
    cli_expect("run -m models/target.gguf -p hi --chat-template chatml", 2, "pass --chat, too");
    cli_expect("run -m models/target.gguf -p hi --chat --special", 2, "--special is for raw prompts");
    cli_expect("run -m models/target.gguf -p hi --chat --chat-template nosuch", 1,
               "no template 'nosuch' comes with forerun (chatml, ");
    snprintf(args, sizeof args, "run -m models/target.gguf -p hi --chat --chat-template %s",
             template_file("bad.jinja", "a\n{{ 1 + }}"));
    cli_expect(args, 1, "line 2: unexpected end of }}");
    snprintf(args, sizeof args, "run -m models/target.gguf -p hi --chat --chat-template %s",
             template_file("no.jinja", "{{ raise_exception('no wizards') }}"));
    cli_expect(args, 2, "no wizards");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens_stay_text_by_default),
        cmocka_unit_test(templates_come_from_names_and_files),
        cmocka_unit_test(wrong_templates_are_refused_before_the_model_is_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
