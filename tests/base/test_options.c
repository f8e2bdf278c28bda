/* test_options.c - the option table: defaults, every type of field, every error and its message, and the text for
 * --help. */
#include "testing.h"

#include "base/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum Shape { SHAPE_CHAIN, SHAPE_TREE = 7 } Shape;

typedef struct Sample {
    bool live;
    int whole_flag;
    int32_t depth, budget;
    int64_t many;
    uint64_t seed;
    float rate;
    double share;
    Shape shape;
    const char *form, *title;
    char file[16];
    const char *inputs[2];
    int n_inputs;
    struct {
        int32_t levels;
    } inner;
    int32_t branch[2];
    bool is_static;
} Sample;

static int parse_branch(void *out, const char *text, fr_error *err) {
    Sample *s = out;
    if (strcmp(text, "broken") == 0) return error_set(err, FR_ERR_IO, "it cannot be read");
    if (sscanf(text, "%d-%d", &s->branch[0], &s->branch[1]) == 2) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "must be two integers joined by '-'");
}

static const Option rows[] = {
    {.key = "file", OPT_FILE(Sample, file), .required = "index file", .help = "the index"},
    {.key = "live", OPT_FLAG(Sample, live), .default_value = "1", .help = "use generated tokens too"},
    {.key = "whole", OPT_FLAG(Sample, whole_flag), .help = "a flag in an int"},
    {.key = "depth", OPT_INT(Sample, depth, 1, 16), .default_value = "5", .help = "tokens of a path"},
    {.key = "budget",
     OPT_INT(Sample, budget, 1, 64),
     .word = "auto",
     .word_value = -1,
     .default_value = "auto",
     .help = "nodes"},
    {.key = "many", OPT_INT(Sample, many, 0, INT64_MAX), .default_value = "8589934592", .help = "many"},
    {.key = "seed", OPT_INT(Sample, seed, 0, INT64_MAX), .help = "seed"},
    {.key = "rate", OPT_REAL(Sample, rate, -HUGE_VAL, HUGE_VAL), .default_value = "0.1", .help = "rate"},
    {.key = "share", OPT_REAL(Sample, share, 0, 1), .default_value = "0.25", .help = "share"},
    {.key = "shape",
     OPT_CHOICE(Sample, shape, "chain", "tree"),
     .values = (const int32_t[]){SHAPE_CHAIN, SHAPE_TREE},
     .default_value = "tree",
     .help = "shape"},
    {.key = "form", OPT_CHOICE(Sample, form, "f16", "f32", "q8"), .help = "form"},
    {.key = "tree", OPT_CHOICE(Sample, is_static, "dynamic", "static"), .default_value = "dynamic", .help = "tree"},
    {.key = "title", OPT_TEXT(Sample, title), .help = "title"},
    {.key = "input", OPT_FILES(Sample, inputs, n_inputs), .help = "inputs"},
    {.key = "levels", OPT_INT(Sample, inner.levels, 2, 3), .default_value = "2", .help = "levels"},
    {.key = "branch", OPT_CUSTOM(parse_branch), .default_value = "3-2", .help = "children by level"},
    {.key = NULL},
};

static int parse(Sample *s, const char *text, fr_error *err) {
    static char copy[256];
    snprintf(copy, sizeof copy, "%s", text);
    *s = (Sample){.seed = 9};
    return options_parse(rows, "sample", copy, s, err);
}

static void defaults_fill_the_struct(void **state) {
    (void)state;
    Sample s;
    assert_int_equal(parse(&s, "file=a", NULL), FR_OK);
    assert_true(s.live && s.whole_flag == 0 && s.depth == 5 && s.budget == -1 && s.many == 8589934592);
    assert_true(s.seed == 9); /* a row without a default leaves the field alone */
    assert_true(s.rate == 0.1f && s.share == 0.25 && s.shape == SHAPE_TREE && s.inner.levels == 2);
    assert_null(s.form);
    assert_int_equal(s.branch[0], 3);
    assert_int_equal(s.n_inputs, 0);
}

static void every_type_is_stored(void **state) {
    (void)state;
    Sample s;
    assert_int_equal(
        parse(&s,
              "live=off,whole=1,depth=16,budget=7,many=9223372036854775807,seed=77,rate=-2.5,share=1,shape=chain,"
              "form=q8,tree=static,title=a b,file=x.bin,levels=3,branch=5-4",
              NULL),
        FR_OK);
    assert_true(!s.live && s.whole_flag == 1 && s.depth == 16 && s.budget == 7 && s.many == INT64_MAX && s.seed == 77);
    assert_true(s.rate == -2.5f && s.share == 1 && s.shape == SHAPE_CHAIN && s.inner.levels == 3);
    assert_string_equal(s.form, "q8");
    assert_true(s.is_static);
    assert_string_equal(s.title, "a b");
    assert_string_equal(s.file, "x.bin");
    assert_int_equal(s.branch[1], 4);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"file=a,depth=99", "sample: 'depth=99' must be an integer from 1 to 16"},
        {"file=a,depth=5x", "sample: 'depth=5x' must be an integer from 1 to 16"},
        {"file=a,budget=many", "sample: 'budget=many' must be auto or an integer from 1 to 64"},
        {"file=a,many=-1", "sample: 'many=-1' must be an integer of at least 0"},
        {"file=a,many=99999999999999999999",
         "sample: 'many=99999999999999999999' must be an integer from 0 to 9223372036854775807"},
        {"file=a,rate=nan", "sample: 'rate=nan' must be a finite number"},
        {"file=a,rate=1e99", "sample: 'rate=1e99' must be a finite number"},
        {"file=a,share=1.01", "sample: 'share=1.01' must be a number from 0 to 1"},
        {"file=a,shape=bush", "sample: 'shape=bush' must be chain or tree"},
        {"file=a,form=f8", "sample: 'form=f8' must be f16, f32 or q8"},
        {"file=a,live=yes", "sample: 'live=yes' must be 1 or 0"},
        {"file=0123456789abcdef", "sample: 'file=0123456789abcdef' must be shorter than 16 bytes"},
        {"file=a,branch=3", "sample: 'branch=3' must be two integers joined by '-'"},
        {"file=a,branch=broken", "sample: 'branch=broken': it cannot be read"},
        {"file=a,depht=3",
         "sample: unknown option 'depht'; did you mean 'depth'? (the options are file, live, whole, depth, "},
        {"file=a,zzz=3", "sample: unknown option 'zzz' (the options are file, live, "},
        {"file=a,depth", "sample: 'depth' must be written key=value"},
        {"file=a,", "sample: '' must be written key=value"},
        {"file=a,=3", "sample: '=3' must be written key=value"},
        {"file=a,depth=", "sample: 'depth=' must be written key=value"},
        {"depth=3,file=a,depth=4", "sample: 'depth' is set twice; keep one of them"},
        {"depth=3", "sample: missing index file: write sample:file=FILE"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Sample s;
        fr_error err;
        assert_int_not_equal(parse(&s, cases[i][0], &err), FR_OK);
        if (strncmp(err.message, cases[i][1], strlen(cases[i][1])) != 0) fail_msg("%s: %s", cases[i][0], err.message);
    }
}

static void a_list_has_an_end(void **state) {
    (void)state;
    Sample s = {.depth = 0};
    fr_error err;
    options_defaults(rows, &s);
    assert_int_equal(options_set(rows, "sample", "input", "a", &s, &err), FR_OK);
    assert_false(option_is_given(options_find(rows, "file"), &s));
    assert_int_equal(options_set(rows, "sample", "input", "b", &s, &err), FR_OK);
    assert_int_equal(s.n_inputs, 2);
    assert_string_equal(s.inputs[1], "b");
    assert_int_equal(options_set(rows, "sample", "input", "c", &s, &err), FR_ERR_ARGUMENT);
    assert_string_equal(err.message, "sample: 'input=c': at most 2 of these can be given");
}

static void an_empty_table_has_no_options(void **state) {
    (void)state;
    static const Option none[] = {{.key = NULL}};
    char text[] = "a=1";
    fr_error err;
    assert_int_equal(options_parse(none, "sampled", NULL, NULL, &err), FR_OK);
    assert_int_equal(options_parse(none, "sampled", text, NULL, &err), FR_ERR_ARGUMENT);
    assert_string_equal(err.message, "sampled: unknown option 'a': sampled has no options");
}

static const Option few[] = {
    {.key = "depth",
     OPT_INT(Sample, depth, 1, 16),
     .default_value = "5",
     .help = "tokens of a path, counted from the root of the tree"},
    {.key = "form", OPT_CHOICE(Sample, form, "f16", "q8"), .help = "type"},
    {.key = "share", OPT_REAL(Sample, share, 0, 1), .default_help = "a twentieth", .help = "share"},
    {.key = NULL},
};

static void help_is_aligned_and_wrapped(void **state) {
    (void)state;
    Buf out = {.max_bytes = 4096};
    assert_true(options_help(&out, few, 2, 40));
    assert_string_equal(out.data, "  depth=5      tokens of a path, counted\n"
                                  "               from the root of the tree\n"
                                  "               (1 to 16)\n"
                                  "  form=f16|q8  type\n"
                                  "  share=X      share (0 to 1; default: a\n"
                                  "               twentieth)\n");
    buf_free(&out);
}

static void near_words_are_found(void **state) {
    (void)state;
    static const char *const known[] = {"tree-budget", "temp", "top-k", "top-p", "threads"};
    static const char *const cases[][2] = {{"tree-budgte", "tree-budget"},
                                           {"treebudget", "tree-budget"},
                                           {"thread", "threads"},
                                           {"tmep", "temp"},
                                           {"top-q", "top-k"},
                                           {"verify", NULL},
                                           {"", NULL},
                                           {"x", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        NearestWord nearest = {.word = NULL};
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) nearest_word_try(&nearest, cases[i][0], known[k]);
        if (!cases[i][1]) assert_null(nearest.word);
        else assert_string_equal(nearest.word, cases[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_the_struct),      cmocka_unit_test(every_type_is_stored),
        cmocka_unit_test(what_is_wrong_is_named),        cmocka_unit_test(a_list_has_an_end),
        cmocka_unit_test(an_empty_table_has_no_options), cmocka_unit_test(help_is_aligned_and_wrapped),
        cmocka_unit_test(near_words_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
