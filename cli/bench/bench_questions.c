/* bench_questions.c - reads the questions of a benchmark from JSON lines and chooses those that are measured. */
#include "cli/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 16 << 20, MT_BENCH_FIRST = 81, MT_BENCH_LAST = 160 };

static const char *category_of(const json_t *object, int64_t id) {
    static const char *const mt_bench[] = {"writing", "roleplay",   "reasoning", "math",
                                           "coding",  "extraction", "stem",      "humanities"};
    const char *name = json_string_value(json_object_get(object, "category"));
    if (!name) return "questions";
    if (id >= MT_BENCH_FIRST && id <= MT_BENCH_LAST && json_object_get(object, "turns"))
        for (size_t i = 0; i < sizeof mt_bench / sizeof *mt_bench; i++)
            if (strcmp(name, mt_bench[i]) == 0) return "mt_bench";
    return name;
}

static int find_category(BenchQuestions *q, const char *name, fr_error *err) {
    for (int i = 0; i < q->n_categories; i++)
        if (strcmp(q->categories[i], name) == 0) return i;
    if (strcmp(name, "all") == 0)
        return error_set(err, FR_ERR_FORMAT,
                         "the category 'all' is the name of the sum over all categories; rename it");
    if (q->n_categories == BENCH_MAX_CATEGORIES)
        return error_set(err, FR_ERR_FORMAT, "there are more than %d categories", BENCH_MAX_CATEGORIES);
    if (!(q->categories[q->n_categories] = strdup(name))) return error_memory(err, "a category", strlen(name));
    return q->n_categories++;
}

static int read_turns(BenchQuestion *question, fr_error *err) {
    const json_t *turns = json_object_get(question->object, "turns"),
                 *prompt = json_object_get(question->object, "prompt");
    if (!turns == !prompt)
        return error_set(err, FR_ERR_FORMAT,
                         "a question must have either \"turns\" (an array of strings) or \"prompt\" (a string)");
    size_t n = turns ? json_array_size(turns) : 1;
    if (n == 0 || n > 64) return error_set(err, FR_ERR_FORMAT, "\"turns\" must be an array of 1 to 64 strings");
    question->turns = calloc(n, sizeof *question->turns);
    if (!question->turns) return error_memory(err, "a question", n);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(turns ? json_array_get(turns, i) : prompt);
        if (!text || !*text)
            return error_set(err, FR_ERR_FORMAT, "%s %zu must be a string that is not empty", turns ? "turn" : "prompt",
                             i + 1);
        question->turns[i] = text;
    }
    question->n_turns = (int)n;
    return FR_OK;
}

static int read_question(BenchQuestions *q, BenchQuestion *question, const char *line, size_t n, int64_t i_line,
                         fr_error *err) {
    json_error_t why;
    question->object = json_loadb(line, n, 0, &why);
    if (!question->object) return error_set(err, FR_ERR_FORMAT, "must be JSON: %s", why.text);
    const json_t *id = json_object_get(question->object, "question_id"),
                 *category = json_object_get(question->object, "category");
    if (!json_is_object(question->object)) return error_set(err, FR_ERR_FORMAT, "must be a JSON object");
    if (id && !json_is_integer(id)) return error_set(err, FR_ERR_FORMAT, "\"question_id\" must be an integer");
    if (category && !json_is_string(category)) return error_set(err, FR_ERR_FORMAT, "\"category\" must be a string");
    question->id = id ? json_integer_value(id) : i_line;
    int status = read_turns(question, err);
    if (status) return status;
    question->i_category = find_category(q, category_of(question->object, question->id), err);
    return question->i_category < 0 ? question->i_category : FR_OK;
}

static int read_lines(BenchQuestions *q, const char *path, const char *text, fr_error *err) {
    int64_t i_line = 0, n_lines = 1;
    for (const char *p = text; *p; p++) n_lines += *p == '\n';
    q->items = calloc((size_t)n_lines, sizeof *q->items);
    if (!q->items) return error_memory(err, "the questions", (size_t)n_lines * sizeof *q->items);
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        i_line++;
        if (strspn(line, " \t\r") < n) {
            fr_error why = {0};
            int status = read_question(q, &q->items[q->n++], line, n, i_line, &why);
            if (status) return error_set(err, why.code, "%s: line %lld: %.400s", path, (long long)i_line, why.message);
        }
        line += n + (line[n] == '\n');
    }
    return q->n ? FR_OK : error_set(err, FR_ERR_FORMAT, "%s: the file has no questions", path);
}

int bench_questions_read(BenchQuestions *q, const char *path, fr_error *err) {
    *q = (BenchQuestions){0};
    char *text;
    size_t n;
    int status = cli_read_file(path, MAX_FILE_BYTES, &text, &n, err);
    if (status) return status;
    if (strlen(text) != n)
        status = error_set(err, FR_ERR_FORMAT, "%s: contains a zero byte, so it is not a text file", path);
    else status = read_lines(q, path, text, err);
    free(text);
    return status;
}

static void free_question(BenchQuestion *question) {
    json_decref(question->object);
    free(question->turns);
    *question = (BenchQuestion){0};
}

int bench_questions_choose(BenchQuestions *q, int limit, int (*fits)(void *user, const BenchQuestion *, fr_error *),
                           void *user, fr_error *err) {
    int n_chosen = 0, n_misfits = 0, taken[BENCH_MAX_CATEGORIES] = {0};
    for (int i = 0; i < q->n; i++) {
        BenchQuestion *question = &q->items[i], chosen = *question;
        bool wanted = !limit || taken[question->i_category] < limit;
        int fit = wanted ? fits(user, question, err) : 0;
        if (fit < 0) return fit;
        n_misfits += wanted && !fit;
        if (!fit) {
            free_question(question);
            continue;
        }
        taken[question->i_category]++;
        *question = (BenchQuestion){0};
        q->items[n_chosen++] = chosen;
    }
    q->n = n_chosen;
    return n_misfits;
}

void bench_questions_free(BenchQuestions *q) {
    for (int i = 0; i < q->n; i++) free_question(&q->items[i]);
    for (int i = 0; i < q->n_categories; i++) free(q->categories[i]);
    free(q->items);
    *q = (BenchQuestions){0};
}
