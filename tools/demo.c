/* demo.c - `make demo`: generates one text with plain decoding and with drafters, and times each.
 *
 *   demo TARGET.gguf DRAFT...
 *
 * Every drafter has an automatic budget, as in `forerun run`: it proposes only what pays on this machine. Activations
 * have 8 bits, with which several rows are cheap on most processors.
 *
 * On a terminal the text is shown once: it streams while plain decoding writes it, and every drafter then writes it
 * again in the same place, coloured where its guesses were accepted. The rows of the table below are the clocks.
 * Elsewhere, or where the terminal is too small, the text and the finished rows are printed one after the other. All
 * figures are of this very run, and each text is compared with plain decoding's, token by token and by the hash of the
 * logits.
 *
 * The shipped model fits into the processor's cache, where extra rows are never free and a text is done at once. So
 * `make demo` pads it with zeros to 435 MB (grow_model): the same text, at the cost of a model of that size. */
#include <forerun.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    COLUMNS = 80,
    WIDTH = 76,
    MAX_DRAFTS = 8,
    MAX_TOKENS = 200,
    TABLE_ROWS = 3
}; /* a blank line, the head, plain decoding */

/* The shipped model ends this story after 155 tokens without repeating itself. */
static const char PROMPT[] = "Lily and Ben went to the beach. They saw";
static const fr_sampling SAMPLING = {
    .temperature = 0.7F, .top_p = 0.9F, .repeat_penalty = 1.05F, .penalty_last_n = 64, .seed = 18};

/* One way to generate the text. */
typedef struct Method {
    const char *draft; /* NULL: plain decoding */
    char name[24];
    fr_stats stats;
    int32_t *tokens;
    bool is_same;
} Method;

typedef struct Demo {
    fr_model *model;
    fr_engine *engine;
    Method methods[1 + MAX_DRAFTS];
    int n_methods, i_method; /* i_method: the running one */
    fr_request *request;
    bool is_live, use_color; /* is_live: the text is painted in place, with running clocks */
    int line, n_lines;       /* where the text is painted, from 0; lines of the whole text, 0 while it is unknown */
    int column;
    char word[512]; /* the word that is not printed yet, with its colours */
    size_t n_word;
    int word_columns;
    bool has_space; /* between it and what is printed */
} Demo;

static void die(const char *why) {
    fprintf(stderr, "demo: %s\n", why);
    exit(1);
}

/* ---- the text, broken into lines at spaces ------------------------------------------------------------- */

static void new_line(Demo *d) {
    fputs("\n", stdout);
    d->line++;
    d->column = 0;
}

/* The space before a word is dropped where a line ends. */
static void flush_word(Demo *d) {
    int columns = d->word_columns + d->has_space;
    if (d->word_columns == 0) return;
    if (d->column + columns > WIDTH) {
        new_line(d);
        d->has_space = false;
    }
    fputs(d->column == 0 ? "  " : d->has_space ? " " : "", stdout);
    fwrite(d->word, 1, d->n_word, stdout);
    d->column += d->word_columns + d->has_space;
    d->n_word = 0;
    d->word_columns = 0;
    d->has_space = false;
}

static void put_raw(Demo *d, const char *text, size_t n) {
    if (d->n_word + n > sizeof d->word) flush_word(d);
    if (n > sizeof d->word) n = sizeof d->word;
    memcpy(d->word + d->n_word, text, n);
    d->n_word += n;
}

/* Writes a piece of a word. */
static void put_piece(Demo *d, const char *text, size_t n, bool paint) {
    if (paint) put_raw(d, "\033[32m", 5);
    put_raw(d, text, n);
    if (paint) put_raw(d, "\033[0m", 4);
    for (size_t i = 0; i < n; i++)
        d->word_columns += ((unsigned char)text[i] & 0xc0) != 0x80; /* where a character begins */
}

static void put_text(Demo *d, const char *text, size_t n, bool paint) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && (unsigned char)text[end] > ' ' && text[end] != 0x7f) end++;
        if (end > i) put_piece(d, text + i, end - i, paint);
        i = end;
        if (i == n) return;
        flush_word(d); /* at a space, a new line, or a control character, which must not reach the terminal */
        if (text[i] == '\n') new_line(d);
        d->has_space = text[i] == ' ' && d->column > 0;
        i++;
    }
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static void print_head(void) {
    printf("  %-15s %8s %7s %9s %9s %9s", "", "time", "tokens", "tokens/s", "per step", "speed-up");
}

/* Whether the speed-up exceeds the tokens per step, which is impossible, by more than the noise of an idle machine. */
static bool is_disturbed(const Demo *d, const fr_stats *s) {
    double speed_up = d->methods[0].stats.decode_s / s->decode_s;
    return speed_up > 1.05 && speed_up > s->acceptance_length;
}

static void print_row(const Demo *d, int i, const fr_stats *s, bool is_done) {
    const Method *m = &d->methods[i];
    printf("  %-15s %6.2f s %7lld %9.1f %9.2f", m->name, s->decode_s, (long long)s->n_generated, s->tokens_per_s,
           s->acceptance_length);
    if (is_done && is_disturbed(d, s)) printf(" %9s", "disturbed");
    else if (is_done) printf(" %8.2fx", d->methods[0].stats.decode_s / s->decode_s);
    if (is_done && i) printf("  %s", m->is_same ? "same text" : "DIFFERENT");
}

/* Prints the row of the running method below the text, and returns to where the text goes on. */
static void tick(const Demo *d, bool is_done) {
    fr_stats s = {.struct_size = sizeof s};
    fr_request_get_stats(d->request, &s);
    int below;
    if (d->i_method == 0) {
        fputs("\n\033[K\n\033[K", stdout); /* the screen may have to scroll */
        print_head();
        fputs("\n\033[K", stdout);
        below = TABLE_ROWS;
    } else {
        below = d->n_lines - 1 - d->line + TABLE_ROWS + d->i_method;
        printf("\033[%dB\r\033[K", below);
    }
    print_row(d, d->i_method, &s, is_done);
    printf("\033[%dA\r", below);
    if (d->column) printf("\033[%dC", d->column + 2);
    fflush(stdout);
}

/* ---- generating ---------------------------------------------------------------------------------------- */

static int on_token(void *user, const fr_token_event *event) {
    Demo *d = user;
    if (d->is_live || d->i_method == 0) put_text(d, event->text, event->n_bytes, d->use_color && event->source >= 0);
    if (d->is_live) tick(d, false);
    return fflush(stdout) != 0;
}

static void write_once(Demo *d, Method *m, const int32_t *prompt, int64_t n_prompt, int max_tokens) {
    fr_error err;
    fr_request_options options = {.struct_size = sizeof options,
                                  .prompt = prompt,
                                  .n_prompt = n_prompt,
                                  .max_tokens = max_tokens,
                                  .sampling = SAMPLING,
                                  .drafts = &m->draft,
                                  .n_drafts = m->draft != NULL,
                                  .tree_budget = FR_TREE_BUDGET_AUTO,
                                  .on_token = max_tokens == MAX_TOKENS ? on_token : NULL,
                                  .user = d};
    if (fr_request_open(&d->request, d->engine, &options, &err)) die(err.message);
    int running;
    while ((running = fr_engine_step(d->engine, &err)) > 0) {}
    if (running < 0) die(err.message);
    if (fr_request_finish_reason(d->request) == FR_FINISH_ERROR) die(fr_request_error(d->request)->message);
    m->stats.struct_size = sizeof m->stats;
    fr_request_get_stats(d->request, &m->stats);
}

static void keep_tokens(Demo *d, Method *m) {
    int64_t n;
    const Method *plain = &d->methods[0];
    const int32_t *tokens = fr_request_tokens(d->request, &n);
    if (!(m->tokens = malloc((size_t)(n + 1) * sizeof *tokens))) die("out of memory");
    memcpy(m->tokens, tokens, (size_t)n * sizeof *tokens);
    m->is_same = n == plain->stats.n_generated && m->stats.logits_hash == plain->stats.logits_hash &&
                 memcmp(m->tokens, plain->tokens, (size_t)n * sizeof *tokens) == 0;
}

/* Begins at the first line of the text. */
static void begin_text(Demo *d) {
    if (d->i_method > 0 && d->is_live) printf("\r\033[%dA", d->n_lines - 1);
    d->line = d->column = 0;
    d->has_space = false;
    if (d->i_method == 0 || d->is_live) put_text(d, PROMPT, strlen(PROMPT), false);
}

/* Afterwards the cursor is on the last line of the text. */
static void end_text(Demo *d) {
    if (d->i_method == 0 || d->is_live) flush_word(d);
    if (d->is_live) tick(d, true);
    if (d->i_method > 0) return;
    d->n_lines = d->line + 1;
    if (d->is_live) { /* rows for the drafters; the screen may have to scroll */
        int n = TABLE_ROWS + d->n_methods - 1;
        for (int i = 0; i < n; i++) fputs("\n", stdout);
        printf("\033[%dA", n);
    } else {
        fputs("\n\n", stdout);
        print_head();
        fputs("\n", stdout);
    }
}

static void run_method(Demo *d, int i, const int32_t *prompt, int64_t n_prompt) {
    Method *m = &d->methods[d->i_method = i];
    begin_text(d);
    write_once(d, m, prompt, n_prompt, MAX_TOKENS);
    keep_tokens(d, m);
    end_text(d);
    if (!d->is_live) {
        print_row(d, i, &m->stats, true);
        fputs("\n", stdout);
    }
    fr_request_close(d->request);
    struct winsize size;
    if (i == 0 && d->is_live &&
        (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_row <= d->n_lines + TABLE_ROWS + d->n_methods ||
         size.ws_col < COLUMNS)) {
        d->use_color = d->is_live = false; /* the screen is too small, so that it cannot be painted again */
        printf("\033[%dB\n", TABLE_ROWS);
    }
}

/* ---- beginning and end --------------------------------------------------------------------------------- */

static void open_all(Demo *d, int argc, char **argv) {
    const char *drafts[MAX_DRAFTS];
    fr_error err;
    if (argc < 3 || argc > 2 + MAX_DRAFTS) die("usage: demo TARGET.gguf DRAFT...");
    snprintf(d->methods[0].name, sizeof d->methods[0].name, "plain decoding");
    for (int i = 2; i < argc; i++) {
        Method *m = &d->methods[i - 1];
        m->draft = drafts[i - 2] = argv[i];
        snprintf(m->name, sizeof m->name, "%.*s", (int)strcspn(argv[i], ":"), argv[i]);
    }
    d->n_methods = argc - 1;
    const fr_engine_options options = {.struct_size = sizeof options,
                                       .drafts = drafts,
                                       .n_drafts = argc - 2,
                                       .prefix_cache = -1};
    const fr_model_options model_options = {.struct_size = sizeof model_options, .activations = "q8"};
    if (fr_model_open(&d->model, argv[1], &model_options, &err)) die(err.message);
    if (fr_engine_open(&d->engine, d->model, &options, &err)) die(err.message);
    if (fr_engine_measure_costs(d->engine, &err)) die(err.message);
}

static void print_head_lines(const fr_model *model) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    printf("One prompt, one model: the small one that ships with forerun, padded with zeros\n"
           "to %.0f MB, so that a step costs what it costs with a model of that size. Plain\n"
           "decoding makes a step for every token. A drafter guesses tokens, and one step\n"
           "checks several. auto, the default, finds repetitions and needs no training; sps\n"
           "is a smaller model; eagle was trained on this model's answers to other texts.\n\n",
           (double)info.weight_bytes * 1e-6);
}

static void print_next(const Demo *d) {
    enum { N_ROWS = 4, N_CONTEXT = 100 };
    double ratio = fr_engine_forward_s(d->engine, N_ROWS, N_CONTEXT) / fr_engine_forward_s(d->engine, 1, N_CONTEXT);
    bool any_disturbed = false;
    for (int i = 1; i < d->n_methods; i++) any_disturbed |= is_disturbed(d, &d->methods[i].stats);
    if (any_disturbed)
        puts("\ndisturbed: no speed-up can exceed the tokens per step, so other programs slowed\n"
             "down the other rows. Stop them and run the demo again.");
    if (d->use_color) puts("\n\033[32mGreen\033[0m: tokens that the last drafter had guessed.");
    printf("\nAll figures are of this run, with 8-bit activations (--act q8). Here, a step\n"
           "that checks %d tokens takes %.1f times as long as one of plain decoding, and\n"
           "drafters guess only as many tokens as pay at that price.\n",
           N_ROWS, ratio);
    puts("\nNext, with a model that answers questions (0.7 GB):\n"
         "  build/forerun pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0\n"
         "  build/forerun chat -m Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0\n"
         "README.md and docs/GUIDE.md have the rest, and docs/TRAINING.md makes a drafter.");
}

int main(int argc, char **argv) {
    static Demo d;
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    int32_t *prompt;
    int64_t n_prompt;
    fr_error err;
    d.is_live = isatty(STDOUT_FILENO) && !(terminal && strcmp(terminal, "dumb") == 0);
    d.use_color = d.is_live && !(no_color && *no_color);
    open_all(&d, argc, argv);
    print_head_lines(d.model);
    if (fr_tokenize(d.model, PROMPT, strlen(PROMPT), FR_TOKENIZE_PROMPT, &prompt, &n_prompt, &err)) die(err.message);
    write_once(&d, &d.methods[0], prompt, n_prompt, 8); /* the first pass would meet cold caches */
    fr_request_close(d.request);
    bool is_same = true;
    for (int i = 0; i < d.n_methods; i++) {
        run_method(&d, i, prompt, n_prompt);
        is_same = is_same && d.methods[i].is_same;
    }
    if (d.is_live) printf("\033[%dB\n", TABLE_ROWS + d.n_methods - 1);
    print_next(&d);
    for (int i = 0; i < d.n_methods; i++) free(d.methods[i].tokens);
    fr_free(prompt);
    fr_engine_close(d.engine);
    fr_model_close(d.model);
    if (!is_same) die("a text differs from plain decoding: this is a bug in forerun");
    return 0;
}
