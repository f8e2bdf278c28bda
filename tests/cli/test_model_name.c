/* test_model_name.c - names of models, paths that stay in their folder, and the choice of a file by its type. */
#include "testing.h"

#include "cli/model_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void names_follow_the_rule_of_the_hub(void **state) {
    (void)state;
    static const struct {
        const char *text, *repo, *type;
    } cases[] = {
        {"a/b", "a/b", NULL},
        {"Qwen/Qwen2.5-0.5B_x:Q4_K_M", "Qwen/Qwen2.5-0.5B_x", "Q4_K_M"},
        {"a/b:c/d.gguf", "a/b", "c/d.gguf"},
        {"a", NULL, NULL},
        {"a/", NULL, NULL},
        {"/a", NULL, NULL},
        {"a/b/c", NULL, NULL},
        {"a/b:", NULL, NULL},
        {"a:b/c", NULL, NULL},
        {"../a", NULL, NULL},
        {"a/..", NULL, NULL},
        {"./a", NULL, NULL},
        {"-a/b", NULL, NULL},
        {"a/b ", NULL, NULL},
        {"a/b\n", NULL, NULL},
        {"https://hub/a/b", NULL, NULL},
        {"https://huggingface.co/a/b", "a/b", NULL},
        {"http://huggingface.co/a/b/", "a/b", NULL},
        {"huggingface.co/a/b?library=gguf#top", "a/b", NULL},
        {"hf.co/a/b:Q8_0", "a/b", "Q8_0"},
        {"https://hf.co/a/b/tree/main", "a/b", NULL},
        {"https://huggingface.co/a/b/blob/main/b.Q8_0.gguf", "a/b", "b.Q8_0.gguf"},
        {"https://huggingface.co/a/b/resolve/main/q/b.gguf?download=true", "a/b", "q/b.gguf"},
        {"https://huggingface.co/a/b/blob/other/b.gguf", NULL, NULL},
        {"https://huggingface.co/a/b/blob/main/", NULL, NULL},
        {"https://huggingface.co/a/b/discussions", NULL, NULL},
        {"https://huggingface.co/a", NULL, NULL},
        {"https://huggingface.co/", NULL, NULL},
        {"ftp://huggingface.co/a/b", NULL, NULL},
        {"", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelName name;
        bool is_name = model_name_parse(cases[i].text, &name);
        if (is_name != (cases[i].repo != NULL)) fail_msg("'%s': %d", cases[i].text, is_name);
        if (!is_name) continue;
        assert_string_equal(name.repo, cases[i].repo);
        if (cases[i].type) assert_string_equal(name.type, cases[i].type);
        else assert_null(name.type);
    }
    char longest[2 * MODEL_NAME_PART + 4];
    ModelName name;
    memset(longest, 'x', sizeof longest);
    longest[MODEL_NAME_PART] = '/';
    longest[2 * MODEL_NAME_PART + 1] = '\0';
    assert_true(model_name_parse(longest, &name));
    longest[2 * MODEL_NAME_PART + 1] = 'x';
    longest[2 * MODEL_NAME_PART + 2] = '\0';
    assert_false(model_name_parse(longest, &name));
}

static void unsafe_paths_are_recognised(void **state) {
    (void)state;
    static const char *const safe[] = {"a.gguf", "Q8_0/a b.gguf", "a/b/c.gguf", "..a/...gguf"};
    static const char *const unsafe[] = {"",      "/a", "a/",   "a//b", "..",     "../a",     "a/..", "a/../b", "./a",
                                         "a/./b", ".",  "a\\b", "a\nb", "\x1b[m", "\xc3\xa9", "a/..", "a\x7f"};
    for (size_t i = 0; i < sizeof safe / sizeof *safe; i++)
        if (!model_path_is_safe(safe[i])) fail_msg("'%s' is safe", safe[i]);
    for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++)
        if (model_path_is_safe(unsafe[i])) fail_msg("'%s' is not safe", unsafe[i]);
    char path[1200];
    memset(path, 'a', sizeof path);
    path[201] = '\0';
    assert_false(model_path_is_safe(path));
}

/* Returns the paths that are chosen, joined by blanks, or the error. */
static const char *choose(const char *const *paths, int n, const char *type) {
    static char text[600];
    fr_error err;
    int *chosen, n_chosen;
    if (model_choose("a/b", paths, n, type, &chosen, &n_chosen, &err)) return strcpy(text, err.message);
    text[0] = '\0';
    for (int i = 0; i < n_chosen; i++) strcat(strcat(text, i ? " " : ""), paths[chosen[i]]);
    free(chosen);
    return text;
}

#define CHOOSE(type, ...) \
    choose((const char *const[]){__VA_ARGS__}, (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)), type)

static void types_are_whole_words_of_the_path(void **state) {
    (void)state;
#define REPO "readme.md", "m-Q4_K_S.gguf", "m-q4_k_m.gguf", "m.Q8_0.gguf", "mmproj-m-F16.gguf", "x/m-Q4_0.gguf"
    assert_string_equal(CHOOSE(NULL, REPO), "m-q4_k_m.gguf");
    assert_string_equal(CHOOSE("Q4_K_S", REPO), "m-Q4_K_S.gguf");
    assert_string_equal(CHOOSE("q8_0", REPO), "m.Q8_0.gguf");
    assert_string_equal(CHOOSE("m-Q4_0.gguf", REPO), "x/m-Q4_0.gguf");
    assert_string_equal(CHOOSE("x/m-Q4_0.gguf", REPO), "x/m-Q4_0.gguf");
    assert_non_null(
        strstr(CHOOSE("Q4_K", REPO), "a/b: holds no file of type Q4_K; it has m-Q4_K_S.gguf, m-q4_k_m.gguf"));
    assert_non_null(strstr(CHOOSE("F16", REPO), "holds no file of type F16"));
    assert_string_equal(CHOOSE(NULL, "m.F16.gguf", "m.Q8_0.gguf"), "m.Q8_0.gguf");
    assert_string_equal(CHOOSE(NULL, "m.F16.gguf"), "m.F16.gguf");
    assert_non_null(strstr(CHOOSE(NULL, "m.F16.gguf", "m.Q5_0.gguf"), "say which type you want"));
    assert_non_null(strstr(CHOOSE(NULL, "a.Q8_0.gguf", "b.Q8_0.gguf"), "several files of that type"));
    assert_non_null(strstr(CHOOSE(NULL, "readme.md"), "holds no GGUF file"));
    assert_non_null(strstr(CHOOSE(NULL, "mmproj.gguf"), "holds no GGUF file"));
}

static void split_files_are_taken_whole_and_in_order(void **state) {
    (void)state;
#define PARTS \
    "Q8_0/m-00003-of-00003.gguf", "Q8_0/m-00001-of-00003.gguf", "n-00002-of-00003.gguf", "Q8_0/m-00002-of-00003.gguf"
    assert_string_equal(CHOOSE(NULL, PARTS),
                        "Q8_0/m-00001-of-00003.gguf Q8_0/m-00002-of-00003.gguf Q8_0/m-00003-of-00003.gguf");
    assert_string_equal(CHOOSE("Q8_0", PARTS, "m.Q4_K_M.gguf"),
                        "Q8_0/m-00001-of-00003.gguf Q8_0/m-00002-of-00003.gguf Q8_0/m-00003-of-00003.gguf");
    assert_string_equal(CHOOSE(NULL, "m-00001-of-00001.gguf"), "m-00001-of-00001.gguf");
    assert_non_null(strstr(CHOOSE(NULL, "m-00001-of-00002.gguf"), "part 2 of 2 of m-00001-of-00002.gguf is missing"));
    assert_non_null(strstr(CHOOSE(NULL, "m-00002-of-00002.gguf"), "holds no GGUF file"));
    assert_string_equal(CHOOSE(NULL, "m-00000-of-00002.gguf"), "m-00000-of-00002.gguf"); /* this name is not a numbered
                                                                                          * part */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_follow_the_rule_of_the_hub),
        cmocka_unit_test(unsafe_paths_are_recognised),
        cmocka_unit_test(types_are_whole_words_of_the_path),
        cmocka_unit_test(split_files_are_taken_whole_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
