/* fuzz_grammar.c - takes any text as a GBNF grammar, a regular expression or a JSON schema, chosen by its first byte,
 * and reads the bytes after the first zero byte with it. Compiling ends within its limits, with an error or with an
 * automaton that can read any bytes, and the time that it takes is in proportion to the steps that it counts. States
 * agree with their copies in a fresh epoch, and with those that are computed in slices, none of which does much more
 * than its quota. */
#include "grammar/readers.h"
#include "grammar/states.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

typedef struct Compile {
    ExprGrammar g;
    uint8_t kind;
    const char *text;
    size_t n;
    char notice[100];
    Automaton *built;
} Compile;

static void compile(void *subject) {
    Compile *c = subject;
    if (c->kind % 3 == 0) gbnf_read(&c->g, c->text, c->n, c->notice, sizeof c->notice);
    else if (c->kind % 3 == 1) regex_read(&c->g, c->text, c->n);
    else schema_read(&c->g, c->text, c->n, c->notice, sizeof c->notice);
    c->built = automaton_build(&c->g);
}

static void check_state(const GrammarState *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const GrammarFrame *f = &s->frames[i];
        fr_assert((f->below == NULL) == (f->node == AUTOMATON_ACCEPT));
        fr_assert(!f->below || f->below->id < s->id);
        if (f->below && i == 0) check_state(f->below);
    }
}

/* Reads in slices of work. NULL: a limit was exceeded. */
static const GrammarState *read_in_slices(GrammarStates *s, const uint8_t *text, size_t n) {
    enum { QUOTA = 100 };
    const GrammarState *at = states_start(s);
    for (size_t i = 0; i < n && at->n > 0; i++) {
        const GrammarState *next;
        fr_error err;
        int status;
        do {
            states_set_quota(s, QUOTA);
            status = states_read(s, at, text[i], &next, &err);
        } while (status == STATES_WAIT);
        if (status) return NULL;
        at = next;
    }
    return at;
}

static void read_with(const Automaton *a, const uint8_t *text, size_t n) {
    GrammarStates *s = states_new(a), *fresh = states_new(a), *sliced = states_new(a);
    fr_error err;
    if (s && fresh && sliced) {
        const GrammarState *at = states_start(s);
        for (size_t i = 0; i < n && i < 200 && at && at->n > 0; i++)
            if (states_read(s, at, text[i], &at, &err)) at = NULL;
        if (at) {
            check_state(at);
            states_find_runs(s, at);
            const GrammarState *moved = states_move(fresh, at);
            fr_assert(!moved || (moved->n == at->n && moved->accepts == at->accepts));
            const GrammarState *slow = read_in_slices(sliced, text, n < 200 ? n : 200);
            fr_assert(slow && slow->n == at->n && slow->accepts == at->accepts);
        } else fr_assert(err.message[0] != '\0');
    }
    states_free(sliced);
    states_free(fresh);
    states_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n == 0) return 0;
    const uint8_t *end = memchr(bytes + 1, 0, n - 1);
    size_t n_text = end ? (size_t)(end - bytes - 1) : n - 1;
    Work w = {.max_bytes = 32 << 20, .max_steps = 1000000, .max_depth = 200};
    Compile c = {.g.w = &w, .kind = bytes[0], .text = (const char *)bytes + 1, .n = n_text};
    fr_error err = {0};
    clock_t begin = clock();
    int status = work_run(&w, compile, &c, &err);
    double spent_s = (double)(clock() - begin) / CLOCKS_PER_SEC;
    fr_assert(spent_s < 1 + 1e-5 * (double)w.n_steps); /* a step takes some 50 ns; a sanitizer makes it slower */
    if (status) fr_assert(err.message[0] != '\0');
    else {
        Automaton *a = automaton_copy(c.built), *after = a ? automaton_after(a, "", 0, "</t>", 4) : NULL;
        if (a) read_with(a, end ? end + 1 : bytes, end ? n - n_text - 2 : n);
        if (after) read_with(after, bytes, n);
        free(after);
        free(a);
    }
    work_free(&w);
    return 0;
}
