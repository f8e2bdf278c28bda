/* draft_grammar.c - the drafter `grammar`: proposes what the grammar of the request forces.
 *
 * The problem: much of a JSON answer is decided before it is written. After `{` a schema with one required member allows
 * `"name":` only, and the model spends a pass on each of its tokens.
 *
 * The idea: follow the grammar from its state as long as one byte only can follow, and propose the tokens of these bytes. The
 * model may split them otherwise, so they are tokens as its own tokenizer would write them: what it was trained on.
 *
 *     state   behind {"city": "Paris"           forced   , "population":
 *     draft   `,`  ` "`  `population`  `":`     a chain
 *
 * White space interrupts this, because a schema leaves it open. But a text keeps its style: the drafter remembers whether an
 * end of line, a blank or nothing followed the last `{`, `[`, `,` and `:` outside of strings, and how far lines were indented,
 * and expects the same again, or what suits it; at first a blank behind `,` and `:`. `p_accept` is a product over the chain: TOKEN for each
 * token, STYLE and FIRST_STYLE for each expectation, and HALF_WORD for a last token that a letter could continue.
 *
 * The engine adds this drafter to those of a request with a grammar. It knows nothing else: without a grammar, in free
 * strings and numbers, and before the grammar begins it proposes nothing. Cost: a proposal reads up to MAX_BYTES bytes of the
 * grammar, whose states are kept, and encodes them: some microseconds. When it loses: where a model splits tokens otherwise than
 * its tokenizer. Proof: tests/unit/test_draft_grammar.c. */
#include "base/mem.h"
#include "spec/drafter/drafter.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 192, MAX_INDENT = 32 };
#define TOKEN 0.97
#define STYLE 0.9
#define FIRST_STYLE 0.6
#define HALF_WORD 0.5

typedef enum Space { SPACE_NONE, SPACE_BLANK, SPACE_LINE } Space;

/* How the text so far is laid out. */
typedef struct Layout {
    bool in_string, is_escaped;
    char last;      /* '{', '[', ',' or ':' if only white space has followed; else 0 */
    Space space;    /* since then */
    int32_t indent; /* of the line; while space is SPACE_LINE, so far */
    int32_t before; /* of the line before */
    int32_t unit;   /* by which lines are indented behind { and [ */
    Space style[4]; /* by style_of */
    bool is_known[4];
} Layout;

typedef struct Sequence {
    const GrammarText *text; /* NULL: no grammar */
    Layout layout;
    bool was_free; /* the grammar had not begun */
} Sequence;

typedef struct GrammarDrafter {
    Drafter base;
    int32_t max_sequences;
    Sequence *sequences; /* [max_sequences] */
} GrammarDrafter;

static const Option option_table[] = {{.key = NULL}};

/* ---- layout -------------------------------------------------------------------------------------------------- */

static int style_of(char c) { return c == '{' ? 0 : c == '[' ? 1 : c == ',' ? 2 : 3; }

static void read_space(Layout *l, char c) {
    if (c == '\n') {
        if (l->space != SPACE_LINE) l->before = l->indent;
        l->space = SPACE_LINE;
        l->indent = 0;
    } else if (l->space == SPACE_LINE) l->indent++;
    else l->space = SPACE_BLANK;
}

static void read_byte(Layout *l, char c) {
    if (l->in_string) {
        if (c == '"' && !l->is_escaped) l->in_string = false;
        l->is_escaped = c == '\\' && !l->is_escaped;
        return;
    }
    if (c == ' ' || c == '\n' || c == '\t') {
        read_space(l, c);
        return;
    }
    if (l->last) {
        l->style[style_of(l->last)] = l->space;
        l->is_known[style_of(l->last)] = true;
        if ((l->last == '{' || l->last == '[') && l->space == SPACE_LINE && l->indent > l->before)
            l->unit = l->indent - l->before;
    }
    l->space = SPACE_NONE;
    l->in_string = c == '"';
    l->last = c == '{' || c == '[' || c == ',' || c == ':' ? c : 0;
}

/* What follows the last mark: what followed it before; else what suits what followed other marks; else a blank behind , and :. */
static Space expected_style(const Layout *l) {
    int i = style_of(l->last);
    if (l->is_known[i]) return l->style[i];
    bool has_lines = (l->is_known[0] && l->style[0] == SPACE_LINE) || (l->is_known[1] && l->style[1] == SPACE_LINE);
    if (l->last != ':' && has_lines) return SPACE_LINE;
    if (l->last == ',' && l->is_known[3]) return l->style[3];
    if (l->last == ':' && l->is_known[2] && l->style[2] == SPACE_NONE) return SPACE_NONE;
    return l->last == ',' || l->last == ':' ? SPACE_BLANK : SPACE_NONE;
}

/* The white space that is expected here, at most MAX_INDENT + 1 bytes. */
static size_t expected_space(const Layout *l, char *out) {
    Space style = expected_style(l);
    if (style == SPACE_NONE) return 0;
    out[0] = style == SPACE_BLANK ? ' ' : '\n';
    int32_t n = style == SPACE_BLANK ? 0 : l->indent + (l->last == '{' || l->last == '[' ? l->unit : 0);
    if (n > MAX_INDENT) n = MAX_INDENT;
    memset(out + 1, ' ', (size_t)n);
    return (size_t)n + 1;
}

/* ---- what is expected ---------------------------------------------------------------------------------------- */

typedef struct Expected {
    char bytes[MAX_BYTES];
    double chance[MAX_BYTES]; /* that the text goes on so up to and with this byte */
    size_t n;
    double now;
    Layout layout;
    const GrammarState *state;
} Expected;

/* Appends the bytes that are forced. */
static size_t add_forced(Expected *x, const GrammarText *text, bool past_space) {
    size_t n = grammar_text_forced(text, x->state, past_space, x->bytes + x->n, MAX_BYTES - x->n, &x->state);
    for (size_t i = 0; i < n; i++, x->n++) {
        read_byte(&x->layout, x->bytes[x->n]);
        x->chance[x->n] = x->now;
    }
    return n;
}

/* Appends the white space that is expected, as far as it is allowed. */
static void add_space(Expected *x, const GrammarText *text) {
    char space[MAX_INDENT + 1];
    size_t n = expected_space(&x->layout, space);
    x->now *= x->layout.is_known[style_of(x->layout.last)] ? STYLE : FIRST_STYLE;
    for (size_t i = 0; i < n && x->n < MAX_BYTES; i++) {
        const GrammarState *next;
        if (!grammar_text_may_read(text, x->state, (uint8_t)space[i], &next)) return;
        x->state = next;
        read_byte(&x->layout, space[i]);
        x->chance[x->n] = x->now;
        x->bytes[x->n++] = space[i];
    }
}

static void expect(Expected *x, const Sequence *q) {
    x->n = 0;
    x->now = 1;
    x->layout = q->layout;
    x->state = q->text->state;
    while (x->n < MAX_BYTES && !x->state->is_free) {
        if (add_forced(x, q->text, false)) continue;
        if (!x->layout.last || x->layout.in_string || x->layout.space != SPACE_NONE) break;
        add_space(x, q->text);
        if (!add_forced(x, q->text, true)) break;
    }
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80);
}

/* Adds the tokens of text[skip..n), which have the expected bytes from the first one on; what is encoded before them only
 * keeps the tokenizer from beginning a word. */
static void add_tokens(Tree *t, const Tokenizer *tokenizer, const Expected *x, const int32_t *tokens, int64_t n_tokens,
                       size_t skip, int32_t budget, int32_t source) {
    size_t at = 0, n;
    double chance = 1;
    for (int32_t node = 0, i = 0; i < n_tokens && budget > 0 && node >= 0; i++, at += n) {
        tokenizer_piece(tokenizer, tokens[i], false, &n);
        if (at < skip && at + n > skip) return; /* a token reaches over the beginning */
        if (at < skip || n == 0) continue;
        size_t end = at - skip + n;
        if (end > x->n) return;
        chance *= TOKEN;
        double p = chance * x->chance[end - 1];
        if (end == x->n && is_word(x->bytes[end - 1])) p *= HALF_WORD;
        node = tree_add(t, node, tokens[i], (float)p, source);
        budget--;
    }
}

static int propose_one(const GrammarDrafter *d, const Sequence *q, int32_t budget, Tree *t, fr_error *err) {
    Expected x;
    char text[MAX_BYTES + 2];
    if (!q->text || budget < 1 || q->text->state->is_free) return FR_OK;
    expect(&x, q);
    if (x.n == 0) return FR_OK;
    const Tokenizer *tokenizer = grammar_trie(q->text->grammar)->tokenizer;
    bool has_prefix = tokenizer_adds_space_prefix(tokenizer);
    size_t n_before = has_prefix ? 1 : 0;
    text[0] = x.bytes[0] == '\n' || x.bytes[0] == ' ' ? 'x' : '\n';
    memcpy(text + n_before, x.bytes, x.n);
    int32_t *tokens;
    int64_t n_tokens;
    int status = tokenizer_encode(tokenizer, text, n_before + x.n, 0, &tokens, &n_tokens, err);
    if (status) return status;
    add_tokens(t, tokenizer, &x, tokens, n_tokens, 2 * n_before, budget, d->base.source);
    free(tokens);
    return FR_OK;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    const GrammarDrafter *d = (GrammarDrafter *)drafter;
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
    q->layout = (Layout){.unit = 2};
    q->was_free = q->text && q->text->state->is_free;
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)err;
    Sequence *q = &((GrammarDrafter *)drafter)->sequences[sequence];
    if (!q->text) return FR_OK;
    bool was_free = q->was_free;
    q->was_free = q->text->state->is_free;
    if (was_free) return FR_OK; /* what comes before the grammar is laid out otherwise */
    const Tokenizer *tokenizer = grammar_trie(q->text->grammar)->tokenizer;
    for (int64_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *bytes = tokenizer_piece(tokenizer, tokens[i], false, &n_bytes);
        for (size_t k = 0; k < n_bytes; k++) read_byte(&q->layout, bytes[k]);
    }
    return FR_OK;
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
