/* test_study.c - `forerun study` as a program: the arithmetic of its tables, and the arguments that it refuses. */
#include "cli_rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static char text[1 << 18];

static json_t *read_json(const char *path) {
    json_error_t where;
    json_t *j = json_load_file(path, 0, &where);
    if (!j) fail_msg("%s: %s", path, where.text);
    return j;
}

static double number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }
static double mean(const json_t *row, const char *key) { return number(json_object_get(row, key), "mean"); }

static double total(const json_t *row, const char *key) {
    double sum = 0;
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(row, key), i, v) sum += json_number_value(v);
    return sum;
}

/* For two Bernoulli distributions everything is known in closed form: p is the target's and d the draft's probability
 * of a one. */
static void the_toy_experiment_has_its_closed_form(void **state) {
    (void)state;
    char args[600], path[560];
    snprintf(path, sizeof path, "%s/toy.json", cli_rig_folder());
    snprintf(args, sizeof args, "study toy --target 0.4 --json %s", path);
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    json_t *j = read_json(path);
    for (size_t i = 0; i < 19; i++) {
        double d = 0.05 * (double)(i + 1), p = 0.4;
        /* One round accepts 1 - |p - d|. Then the residual is all on the token that the draft has too little of, and
         * the second draft is accepted if it is that token. */
        double one = 1 - fabs(p - d), scarce = d > p ? 1 - d : d;
        double optimum = fmin(p, 1 - (1 - d) * (1 - d)) + fmin(1 - p, 1 - d * d);
        const char *names[] = {"multi-round", "optimum with replacement", "recursive"};
        double want[] = {one + (1 - one) * scarce, optimum, 1};
        for (int r = 0; r < 3; r++)
            assert_true(fabs(json_number_value(json_array_get(json_object_get(j, names[r]), i)) - want[r]) < 1e-6);
        double k_seq = json_number_value(json_array_get(json_object_get(j, "k-seq"), i));
        assert_true(k_seq <= want[1] + 1e-6 && k_seq >= (1 - exp(-1)) * want[1]);
    }
    json_decref(j);
}

/* One short experiment: every row follows from its own counts. */
static void check_row(const json_t *row, const json_t *plain, double size_ratio) {
    double efficiency = total(row, "tokens") / total(row, "steps"); /* one run: means are ratios of sums */
    assert_true(fabs(mean(row, "block_efficiency") - efficiency) < 1e-6);
    assert_true(fabs(mean(row, "mbsu") - efficiency / (number(row, "depth") * size_ratio + 1)) < 1e-6);
    double rate = total(row, "tokens") / total(row, "decode_s"),
           base = total(plain, "tokens") / total(plain, "decode_s");
    assert_true(fabs(mean(row, "token_rate") / (rate / base) - 1) < 1e-6);
    assert_true(efficiency >= 1 && efficiency <= number(row, "depth") + 1);
}

static void the_trees_are_those_of_the_paper(void **state) {
    (void)state;
    char args[1200], json[560], prompts[560];
    snprintf(json, sizeof json, "%s/study.json", cli_rig_folder());
    snprintf(prompts, sizeof prompts, "%s/study.jsonl", cli_rig_folder());
    FILE *f = fopen(prompts, "w");
    fputs("{\"prompt\": \"Once upon a time\"}\n\n", f);
    fclose(f);
    snprintf(args, sizeof args, "study length -n 4 --runs 1 -f %s --json %s", prompts, json);
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    json_t *all = read_json(json);
    assert_int_equal(json_array_size(all), 3);
    const json_t *rows = json_object_get(json_array_get(all, 1), "rows"), *plain = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 1 + 4 * 10);
    assert_true(total(plain, "tokens") == total(plain, "steps"));
    for (size_t i = 1; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        check_row(row, plain, number(json_array_get(all, 1), "size_ratio"));
        assert_true(number(row, "depth") == number(row, "group"));
        if (strcmp(json_string_value(json_object_get(row, "tree")), "2-2-2-2-2") == 0)
            assert_true(number(row, "nodes") == 62);
    }
    json_decref(all);
}

static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    cli_expect("study", 2, "missing experiment (toy, length or budget)");
    cli_expect("study luck", 2, "'luck' must be toy, length or budget");
    cli_expect("study toy --target 2", 2, "'--target=2' must be a number from 0 to 1");
    cli_expect("study toy --json /no/where.json", 1, "/no/where.json");
    cli_expect("study length --temp 0.5", 2, "--temp must be 0.3, 0.7 or 1");
    cli_expect("study length --runs 0", 2, "from 1 to");
    cli_expect("study length -f /nowhere.jsonl", 1, "/nowhere.jsonl");
    cli_expect("study length -f README.md", 1, "README.md: line 1 is not a JSON object");
    cli_expect("study length -f /dev/null", 1, "has no prompts");
    cli_expect("study length --draft-model README.md", 1, "README.md");
    cli_expect("study length --plot /no/where/p", 1, "forerun: "); /* no folder, or no gnuplot */
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_toy_experiment_has_its_closed_form),
        cmocka_unit_test(the_trees_are_those_of_the_paper),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
