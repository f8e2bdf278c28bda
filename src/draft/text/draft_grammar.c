/* draft_grammar.c - the drafter `grammar`: proposes what the grammar of the request forces.
 *
 * The problem: much of a JSON answer is decided before it is written. After `{` a schema with one required member
 * allows nothing but `"name":`, and the model spends a step on each of its tokens.
 *
 * The idea: follow the grammar from its state as long as only one byte can follow, and propose tokens for these bytes:
 * first those of the model's own tokenizer, with which the model was trained, and then others, such as those with which
 * the model has written forced text before (token_splits.c).
 *
 *     state   after {"city": "Paris"            forced   , "population":
 *     draft   `,`  ` "`  `population`  `":`     a chain, and where budget is left `pop`, `p` beside `population`
 *
 * White space ends a run of forced bytes, because a schema does not fix it. But a text keeps its style: the drafter
 * expects the white space that followed the last `{`, `[`, `,` and `:`, and at first a blank after `,` and `:`.
 * `p_accept` is the product of the probabilities of the tokens along the path, and of STYLE or FIRST_STYLE for each
 * such expectation.
 *
 * The engine adds this drafter to those of a request with a grammar. It proposes nothing without a grammar, in free
 * strings and numbers, or before the grammar begins. Cost: a proposal reads up to SPLIT_MAX_BYTES bytes of the grammar,
 * whose states are kept, and runs the tokenizer at each place where a node ends: some tens of microseconds. When it
 * loses: where little is forced. Proof: tests/draft/test_draft_grammar.c. */
#include "base/mem.h"
#include "draft/drafter.h"
#include "draft/text/token_splits.h"

#include <stdlib.h>
#include <string.h>

#define STYLE 0.9
#define FIRST_STYLE 0.6

/* ---- the layout of a JSON text --------------------------------------------------------------------------- */

/* The style of a text is what follows {, [, commas and colons outside of strings, and what comes before } or ]: the end
 * of a line, a blank or nothing. How far lines are indented is part of it. */

enum { JSON_MAX_INDENT = 32 };

typedef enum Space { SPACE_NONE, SPACE_BLANK, SPACE_LINE } Space;

/* The layout of the text so far. A text begins with {.unit = 2}. */
typedef struct JsonLayout {
    bool in_string, is_escaped;
    /* '{', '[', ',', ':', or the '"', '}' or ']' that ends a value, if only white space has followed; otherwise 0. */
    char last;
    Space space;    /* the white space after `last` */
    int32_t indent; /* blanks at the beginning of this line; still counting while space is SPACE_LINE */
    int32_t before; /* blanks at the beginning of the line before */
    int32_t unit;   /* blanks by which lines after { and [ are indented further, and those of } and ] less */
    Space style[5]; /* the white space after { [ , : and before } or ] */
    bool is_known[5];
} JsonLayout;

static int style_of(char c) { return c == '{' ? 0 : c == '[' ? 1 : c == ',' ? 2 : c == ':' ? 3 : 4; }

static bool opens(char c) { return c == '{' || c == '['; }
static bool closes(char c) { return c == '}' || c == ']'; }

static void read_space(JsonLayout *l, char c) {
    if (c == '\n') {
        if (l->space != SPACE_LINE) l->before = l->indent;
        l->space = SPACE_LINE;
        l->indent = 0;
    } else if (l->space == SPACE_LINE) l->indent++;
    else l->space = SPACE_BLANK;
}

static void json_layout_read(JsonLayout *l, char c) {
    if (l->in_string) {
        if (c == '"' && !l->is_escaped) {
            l->in_string = false;
            l->last = c;
        }
        l->is_escaped = c == '\\' && !l->is_escaped;
        return;
    }
    if (c == ' ' || c == '\n' || c == '\t') {
        read_space(l, c);
        return;
    }
    if (l->last && (style_of(l->last) < 4 || closes(c))) {
        l->style[style_of(l->last)] = l->space;
        l->is_known[style_of(l->last)] = true;
        if (opens(l->last) && l->space == SPACE_LINE && l->indent > l->before) l->unit = l->indent - l->before;
    }
    l->space = SPACE_NONE;
    l->in_string = c == '"';
    l->last = opens(c) || closes(c) || c == ',' || c == ':' ? c : 0;
}

/* Returns the white space that is expected after the last mark, or before the end of an object or array: as it was at
 * the same mark before; otherwise what fits the style after other marks; otherwise a blank after a comma or a colon. */
static Space expected_style(const JsonLayout *l) {
    int i = style_of(l->last);
    if (l->is_known[i]) return l->style[i];
    bool has_lines = (l->is_known[0] && l->style[0] == SPACE_LINE) || (l->is_known[1] && l->style[1] == SPACE_LINE);
    if (l->last != ':' && has_lines) return SPACE_LINE;
    if (i == 4) return SPACE_NONE;
    if (l->last == ',' && l->is_known[3]) return l->style[3];
    if (l->last == ':' && l->is_known[2] && l->style[2] == SPACE_NONE) return SPACE_NONE;
    return l->last == ',' || l->last == ':' ? SPACE_BLANK : SPACE_NONE;
}

/* Writes the white space that is expected after one of the marks { [ , : or a value, or after the end of a line that
 * follows it. Returns its length, at most JSON_MAX_INDENT + 1 bytes. */
static size_t json_layout_space(const JsonLayout *l, char *out) {
    bool is_in_line = l->space == SPACE_LINE;
    Space style = is_in_line ? SPACE_LINE : expected_style(l);
    if (style == SPACE_NONE) return 0;
    int32_t unit = opens(l->last) ? l->unit : style_of(l->last) == 4 ? -l->unit : 0, n = 0;
    size_t n_out = 0;
    if (is_in_line) n = l->before + unit - l->indent;
    else {
        out[n_out++] = style == SPACE_BLANK ? ' ' : '\n';
        if (style == SPACE_LINE) n = l->indent + unit;
    }
    n = n < 0 ? 0 : n > JSON_MAX_INDENT ? JSON_MAX_INDENT : n;
    memset(out + n_out, ' ', (size_t)n);
    return n_out + (size_t)n;
}

/* Returns whether the last mark has occurred before. */
static bool json_layout_is_known(const JsonLayout *l) { return l->is_known[style_of(l->last)]; }

/* ---- sequences ------------------------------------------------------------------------------------------- */

typedef struct Sequence {
    const GrammarText *text; /* NULL: no grammar */
    JsonLayout layout;
    bool was_free; /* the grammar had not begun */
    SplitCounts splits;
    KnownText expected; /* the text expected after the observed tokens; n is 0 if no proposal was made there */
} Sequence;

typedef struct GrammarDrafter {
    Drafter base;
    int32_t max_sequences;
    Sequence *sequences; /* [max_sequences] */
} GrammarDrafter;

static const Option option_table[] = {{.key = NULL}};

/* ---- what is expected ---------------------------------------------------------------------------------------- */

typedef struct Expected {
    KnownText *known;
    double now; /* the probability of the next byte */
    JsonLayout layout;
    const GrammarState *state;
} Expected;

/* Appends the bytes that are forced. */
static size_t add_forced(Expected *x, const GrammarText *text, bool past_space) {
    KnownText *known = x->known;
    size_t n = grammar_text_forced(text, x->state, past_space, known->bytes + known->n, SPLIT_MAX_BYTES - known->n,
                                   &x->state);
    for (size_t i = 0; i < n; i++, known->n++) {
        json_layout_read(&x->layout, known->bytes[known->n]);
        known->chance[known->n] = x->now;
    }
    return n;
}

/* Appends the white space that is expected, as far as it is allowed. */
static void add_space(Expected *x, const GrammarText *text) {
    KnownText *known = x->known;
    char space[JSON_MAX_INDENT + 1];
    size_t n = json_layout_space(&x->layout, space);
    x->now *= json_layout_is_known(&x->layout) ? STYLE : FIRST_STYLE;
    for (size_t i = 0; i < n && known->n < SPLIT_MAX_BYTES; i++) {
        const GrammarState *next;
        if (!grammar_text_may_read(text, x->state, (uint8_t)space[i], &next)) return;
        x->state = next;
        json_layout_read(&x->layout, space[i]);
        known->chance[known->n] = x->now;
        known->bytes[known->n++] = space[i];
    }
}

static void expect(Sequence *q) {
    Expected x = {.known = &q->expected, .now = 1, .layout = q->layout, .state = q->text->state};
    q->expected.n = 0;
    while (q->expected.n < SPLIT_MAX_BYTES && !x.state->is_free) {
        if (add_forced(&x, q->text, false)) continue;
        if (!x.layout.last || x.layout.in_string || x.layout.space == SPACE_BLANK) break;
        add_space(&x, q->text);
        if (!add_forced(&x, q->text, true)) break;
    }
}

static int propose_one(const GrammarDrafter *d, Sequence *q, int32_t budget, Tree *t, fr_error *err) {
    if (!q->text || budget < 1 || q->text->state->is_free) return FR_OK;
    expect(q);
    return split_tree(t, budget, d->base.source, grammar_trie(q->text->grammar), &q->splits, &q->expected, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    GrammarDrafter *d = (GrammarDrafter *)drafter;
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++)
        status = propose_one(d, &d->sequences[sequences[i]], budgets[i], trees[i], err);
    return status;
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static void close_grammar(Drafter *drafter) {
    mem_free(((GrammarDrafter *)drafter)->sequences);
    mem_free(drafter);
}

static int open_grammar(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    (void)options;
    GrammarDrafter *d = mem_calloc(1, sizeof *d);
    if (d) d->sequences = mem_calloc((size_t)env->max_sequences, sizeof *d->sequences);
    if (!d || !d->sequences) {
        mem_free(d);
        return error_memory(err, "grammar", (size_t)env->max_sequences * sizeof(Sequence));
    }
    d->max_sequences = env->max_sequences;
    *out = &d->base;
    return FR_OK;
}

static void set_grammar(Drafter *drafter, int32_t sequence, const GrammarText *text) {
    ((GrammarDrafter *)drafter)->sequences[sequence].text = text;
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)tokens, (void)n, (void)err; /* the prompt is not written by the grammar */
    Sequence *q = &((GrammarDrafter *)drafter)->sequences[sequence];
    q->layout = (JsonLayout){.unit = 2};
    q->expected.n = 0;
    split_counts_begin(&q->splits);
    q->was_free = q->text && q->text->state->is_free;
    return FR_OK;
}

/* If the first token begins the expected text, counts whether it is the token that the tokenizer would have written. */
static int learn_split(Sequence *q, const Tokenizer *tokenizer, int32_t token, fr_error *err) {
    const KnownText *x = &q->expected;
    size_t n;
    int32_t usual;
    const char *bytes = tokenizer_piece(tokenizer, token, false, &n);
    if (n == 0 || n > x->n || memcmp(bytes, x->bytes, n) != 0) return FR_OK;
    int status = split_as_tokenizer(tokenizer, x, 0, &usual, err);
    if (!status) split_counts_add(&q->splits, n, token == usual);
    return status;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Sequence *q = &((GrammarDrafter *)drafter)->sequences[sequence];
    if (!q->text) return FR_OK;
    bool was_free = q->was_free;
    q->was_free = q->text->state->is_free;
    if (was_free) return FR_OK; /* the text before the grammar begins has a layout of its own */
    const Tokenizer *tokenizer = grammar_trie(q->text->grammar)->tokenizer;
    int status = n > 0 ? learn_split(q, tokenizer, tokens[0], err) : FR_OK;
    q->expected.n = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *bytes = tokenizer_piece(tokenizer, tokens[i], false, &n_bytes);
        for (size_t k = 0; k < n_bytes; k++) json_layout_read(&q->layout, bytes[k]);
    }
    return status;
}

static void end(Drafter *drafter, int32_t sequence) { ((GrammarDrafter *)drafter)->sequences[sequence].text = NULL; }

extern const DrafterClass draft_grammar_class;
const DrafterClass draft_grammar_class = {
    .name = "grammar",
    .summary = "what the grammar of the text forces (--json-schema, --grammar, --regex); used with every grammar",
    .option_table = option_table,
    .options_size = 1,
    .open = open_grammar,
    .close = close_grammar,
    .set_grammar = set_grammar,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
};
