/* bench_questions.c - reads files of questions in the layouts that are in use.
 *
 *   Spec-Bench     {"question_id": 81, "category": "writing", "turns": ["...", "..."]}
 *   SPEED-Bench    {"question_id": "5f0e...", "category": "coding", "sub_category": "...", "turns": ["..."], ...},
 *                  or, after its preparation, "messages": [{"role": "user", "content": "..."}] in place of "turns"
 *   forerun        {"prompt": "...", "category": "..."}
 *   the data sets that AIPerf names spec_al_NAME, row by row as they are published: gsm8k, math500, humaneval, mbpp and
 *   mtbench. Each is one category with the name that AIPerf's report has for it.
 *
 * The keys of a line decide which layout it has, so that one file may join several. */
#include "cli/bench/bench.h"
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 16 << 20, MT_BENCH_FIRST = 81, MT_BENCH_LAST = 160 };

/* The data sets that AIPerf names spec_al_NAME: the field that has the prompt, and one that no other layout has. */
static const struct {
    const char *name, *prompt, *mark;
} al_sets[] = {{"gsm8k", "question", "answer"},
               {"math500", "problem", "solution"},
               {"humaneval", "prompt", "canonical_solution"},
               {"mbpp", "text", "test_list"},
               {"mtbench", "prompt", "prompt_id"}};
enum { N_AL_SETS = sizeof al_sets / sizeof *al_sets };

/* Returns the index of the data set that a line is from, or -1. */
static int al_set_of(const json_t *object) {
    for (int i = 0; i < N_AL_SETS; i++)
        if (json_object_get(object, al_sets[i].prompt) && json_object_get(object, al_sets[i].mark)) return i;
    return -1;
}

static const char *category_of(const json_t *object, int64_t id) {
    static const char *const mt_bench[] = {"writing", "roleplay",   "reasoning", "math",
                                           "coding",  "extraction", "stem",      "humanities"};
    int i_set = al_set_of(object);
    if (i_set >= 0) return al_sets[i_set].name;
    const char *name = json_string_value(json_object_get(object, "category"));
    if (!name) return "questions";
    bool is_spec_bench = json_object_get(object, "turns") && json_is_integer(json_object_get(object, "question_id")) &&
                         !json_object_get(object, "source");
    if (is_spec_bench && id >= MT_BENCH_FIRST && id <= MT_BENCH_LAST)
        for (size_t i = 0; i < sizeof mt_bench / sizeof *mt_bench; i++)
            if (strcmp(name, mt_bench[i]) == 0) return "mt_bench";
    return name;
}

static int find_category(BenchQuestions *q, const char *name, fr_error *err) {
    for (int i = 0; i < q->n_categories; i++)
        if (strcmp(q->categories[i], name) == 0) return i;
    if (strcmp(name, "all") == 0)
        return error_set(err, FR_ERR_FORMAT,
                         "the name 'all' is reserved for the sum over all categories; rename the category");
    if (q->n_categories == BENCH_MAX_CATEGORIES)
        return error_set(err, FR_ERR_FORMAT, "there are more than %d categories", BENCH_MAX_CATEGORIES);
    if (!(q->categories[q->n_categories] = strdup(name))) return error_memory(err, "a category", strlen(name));
    return q->n_categories++;
}

/* SPEED-Bench is published without the texts whose licence forbids it; its own program fetches them. */
static const char placeholder[] = "FULL BENCHMARK DATA SHOULD BE FETCHED";

/* Returns the text of a turn; NULL: it has none. Only messages of the user are turns, because the model writes the
 * answers itself. */
static const char *turn_text(const json_t *turn) {
    if (!json_is_object(turn)) return json_string_value(turn);
    const char *role = json_string_value(json_object_get(turn, "role"));
    return role && strcmp(role, "user") == 0 ? json_string_value(json_object_get(turn, "content")) : NULL;
}

/* Sets *what to the name of the field with the turns. NULL: there is none, or several are possible. */
static const json_t *find_turns(const json_t *object, const char **what) {
    static const char *const names[] = {"turns", "messages", "prompt"};
    int i_set = al_set_of(object), n = 0;
    const json_t *found = NULL;
    if (i_set >= 0) return json_object_get(object, *what = al_sets[i_set].prompt);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(object, names[i]);
        if (value) found = value, *what = names[i], n++;
    }
    return n == 1 ? found : NULL;
}

static int read_turns(BenchQuestion *question, fr_error *err) {
    const char *what;
    const json_t *turns = find_turns(question->object, &what);
    if (!turns)
        return error_set(err, FR_ERR_FORMAT,
                         "a question must have either \"turns\" (an array of strings), \"messages\" (an array of "
                         "messages of the user) or \"prompt\" (a string)");
    bool is_list = json_is_array(turns) || strcmp(what, "turns") == 0 || strcmp(what, "messages") == 0;
    size_t n = is_list ? json_array_size(turns) : 1;
    if (n == 0 || n > 64) return error_set(err, FR_ERR_FORMAT, "\"%s\" must be an array of 1 to 64 strings", what);
    question->turns = calloc(n, sizeof *question->turns);
    if (!question->turns) return error_memory(err, "a question", n);
    for (size_t i = 0; i < n; i++) {
        const char *text = turn_text(is_list ? json_array_get(turns, i) : turns);
        if (!text || !*text)
            return error_set(err, FR_ERR_FORMAT, "%s %zu must be a non-empty string", is_list ? "turn" : what, i + 1);
        if (strncmp(text, placeholder, strlen(placeholder)) == 0)
            return error_set(err, FR_ERR_FORMAT,
                             "turn %zu has no text yet; prepare the file with SPEED-Bench's own program, which fetches "
                             "it from its source",
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
    if (id && !json_is_integer(id) && !json_is_string(id))
        return error_set(err, FR_ERR_FORMAT, "\"question_id\" must be an integer or a string");
    if (category && !json_is_string(category)) return error_set(err, FR_ERR_FORMAT, "\"category\" must be a string");
    question->id = json_is_integer(id) ? json_integer_value(id) : i_line;
    question->name = json_string_value(id);
    question->thinking = -1;
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

int bench_questions_think(BenchQuestions *q, BenchThinking thinking, fr_error *err) {
    if (thinking == BENCH_THINKING_DEFAULT) return FR_OK;
    int n_each = thinking == BENCH_THINKING_BOTH ? 2 : 1;
    BenchQuestion *items = calloc((size_t)(n_each * q->n), sizeof *items);
    if (!items) return error_memory(err, "the questions", (size_t)q->n * sizeof *items);
    int n = 0, status = FR_OK;
    for (int i = 0; i < q->n && !status; i++)
        for (int k = 0; k < n_each && !status; k++) {
            BenchQuestion *copy = &items[n];
            *copy = q->items[i];
            copy->thinking = thinking == BENCH_THINKING_BOTH ? k : thinking == BENCH_THINKING_ON;
            if (k == 0) {
                n++;
                continue;
            }
            char name[256];
            snprintf(name, sizeof name, "%.200s, thinking", q->categories[copy->i_category]);
            copy->i_category = find_category(q, name, err);
            copy->turns = calloc((size_t)copy->n_turns, sizeof *copy->turns);
            if (!copy->turns) status = error_memory(err, "the questions", sizeof *copy);
            else memcpy(copy->turns, q->items[i].turns, (size_t)copy->n_turns * sizeof *copy->turns);
            if (copy->i_category < 0) status = copy->i_category;
            copy->object = json_incref(copy->object);
            n++;
        }
    for (int i = n / n_each + (n % n_each > 0); i < q->n; i++) free_question(&q->items[i]);
    free(q->items);
    q->items = items;
    q->n = n;
    return status;
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
