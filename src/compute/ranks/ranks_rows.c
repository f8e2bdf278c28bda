/* ranks_rows.c - the rows of a forward as bytes, for the other ranks.
 *
 * A row sees the slots of all tokens of its context. Sent as they are, they would be most of what is sent: 128 KB for
 * each sequence of 32768 tokens. But slots come in pages, so a prefix is sent as runs of adjacent slots, once for all
 * rows of a sequence. The slots of a path are those of the parent and the row's own, and are not sent, unless the row
 * is in a block, which it sees as a whole.
 *
 * For each row: the numbers of RowPlace, its own slots and where its prefixes come from; its input, if it has one of
 * its own; and the runs of each prefix that no earlier row of the call has. */
#include "compute/ranks/ranks.h"

#include <string.h>

/* Values of SentRow.prefix_of that are no row: the runs of the prefix follow, or it is the prefix of group 0. */
enum { PREFIX_FOLLOWS = -1, PREFIX_OF_GROUP_0 = -2 };

typedef struct SentRow {
    int32_t token, position, sequence, row, parent, index, n_prefix, n_path, i_logits, i_hidden;
    int32_t has_input, only_best;
    int32_t has_path; /* of a block: its path is not that of its parent and itself, and follows */
    int32_t own[KV_GROUPS];
    int32_t prefix_of[KV_GROUPS]; /* the row in this call that has the same prefix; or PREFIX_FOLLOWS ... */
    RowDraw draw;
} SentRow;

typedef struct Run {
    int32_t first, n, step;
} Run;

/* Returns the first row that has the prefix of row i in a group. */
static int32_t prefix_of(const RowPlace *rows, int32_t i, int group) {
    const RowPlace *r = &rows[i];
    if (group > 0 && r->slots[group].prefix == r->slots[0].prefix) return PREFIX_OF_GROUP_0;
    for (int32_t k = i - 1; k >= 0 && rows[k].sequence == r->sequence; k--)
        if (rows[k].slots[group].prefix == r->slots[group].prefix && rows[k].n_prefix == r->n_prefix) return k;
    return PREFIX_FOLLOWS;
}

static void put_prefix(Ranks *r, const int32_t *slots, int32_t n) {
    for (int32_t i = 0; i < n;) {
        Run run = {.first = slots[i], .n = 1, .step = i + 1 < n && slots[i + 1] == slots[i] + 1};
        while (i + run.n < n && slots[i + run.n] == slots[i + run.n - 1] + run.step) run.n++;
        ranks_put(r, &run, sizeof run);
        i += run.n;
    }
}

static bool has_own_path(const RowPlace *r) { return r->n_path && r->slots[0].path[r->n_path - 1] != r->slots[0].own; }

/* Returns how many slots of prefixes and paths the rows have together. */
static size_t count_slots(const RowPlace *rows, int32_t n_rows) {
    size_t n = 0;
    for (int32_t i = 0; i < n_rows; i++)
        for (int g = 0; g < KV_GROUPS; g++)
            n += (size_t)rows[i].n_path + (prefix_of(rows, i, g) == PREFIX_FOLLOWS ? (size_t)rows[i].n_prefix : 0);
    return n;
}

void ranks_put_rows(Ranks *r, const RowPlace *rows, int32_t n_rows, int64_t n_inputs) {
    size_t n_slots = count_slots(rows, n_rows);
    ranks_put(r, &n_slots, sizeof n_slots);
    for (int32_t i = 0; i < n_rows; i++) {
        const RowPlace *p = &rows[i];
        SentRow s = {.token = p->token,
                     .position = p->position,
                     .sequence = p->sequence,
                     .row = p->row,
                     .parent = p->parent,
                     .index = p->index,
                     .n_prefix = p->n_prefix,
                     .n_path = p->n_path,
                     .i_logits = p->i_logits,
                     .i_hidden = p->i_hidden,
                     .has_input = p->input != NULL,
                     .has_path = has_own_path(p),
                     .only_best = p->only_best,
                     .draw = p->draw};
        for (int g = 0; g < KV_GROUPS; g++) s.own[g] = p->slots[g].own, s.prefix_of[g] = prefix_of(rows, i, g);
        ranks_put(r, &s, sizeof s);
        if (p->input) ranks_put(r, p->input, (size_t)n_inputs * sizeof(float));
        for (int g = 0; g < KV_GROUPS; g++)
            if (s.prefix_of[g] == PREFIX_FOLLOWS) put_prefix(r, p->slots[g].prefix, p->n_prefix);
        for (int g = 0; s.has_path && g < KV_GROUPS; g++)
            ranks_put(r, p->slots[g].path, (size_t)s.n_path * sizeof *p->slots[g].path);
    }
}

/* ---- on the other ranks ----------------------------------------------------------------------------------- */

int rank_rows_open(RankRows *rows, int32_t max_rows, fr_error *err) {
    size_t n = (size_t)max_rows;
    *rows = (RankRows){.rows = mem_calloc(n, sizeof *rows->rows), .slots = mem_calloc(n, sizeof *rows->slots)};
    rows->max_rows = max_rows;
    return rows->rows && rows->slots ? FR_OK : error_memory(err, "the rows of a forward", n * sizeof *rows->rows);
}

/* Frees the slots of rows from `row` on. */
static void forget_slots(RankRows *rows, int32_t row) {
    for (int32_t i = row; rows->slots && i < rows->max_rows; i++) {
        mem_free(rows->slots[i]);
        rows->slots[i] = NULL;
    }
}

void rank_rows_close(RankRows *rows) {
    forget_slots(rows, 0);
    mem_free(rows->rows);
    mem_free(rows->slots);
    *rows = (RankRows){.rows = NULL};
}

/* What is left of the arguments of a call, and of the memory for slots. */
typedef struct Reader {
    const char *at;
    int32_t *slots;
} Reader;

static void take(Reader *from, void *out, size_t n) {
    memcpy(out, from->at, n);
    from->at += n;
}

static const int32_t *take_prefix(Reader *from, int32_t n) {
    const int32_t *prefix = from->slots;
    for (int32_t done = 0; done < n;) {
        Run run;
        take(from, &run, sizeof run);
        for (int32_t i = 0; i < run.n; i++) *from->slots++ = run.first + i * run.step;
        done += run.n;
    }
    return prefix;
}

/* Returns the slots of the path of a row: those of its parent and its own. A row that stores nothing has no path. */
static const int32_t *make_path(Reader *from, const RankRows *rows, const SentRow *s, int group) {
    int32_t *path = from->slots;
    if (s->n_path == 0) return NULL;
    from->slots += s->n_path;
    if (s->parent >= 0) memcpy(path, rows->rows[s->parent].slots[group].path, (size_t)(s->n_path - 1) * sizeof *path);
    path[s->n_path - 1] = s->own[group];
    return path;
}

static const int32_t *take_path(Reader *from, int32_t n) {
    int32_t *path = from->slots;
    from->slots += n;
    take(from, path, (size_t)n * sizeof *path);
    return path;
}

static void take_row(Reader *from, RankRows *rows, int32_t first_row, int64_t n_inputs) {
    SentRow s;
    take(from, &s, sizeof s);
    RowPlace *p = &rows->rows[s.row];
    *p = (RowPlace){.token = s.token,
                    .position = s.position,
                    .sequence = s.sequence,
                    .row = s.row,
                    .parent = s.parent,
                    .index = s.index,
                    .n_prefix = s.n_prefix,
                    .n_path = s.n_path,
                    .i_logits = s.i_logits,
                    .i_hidden = s.i_hidden,
                    .only_best = s.only_best != 0,
                    .draw = s.draw};
    if (s.has_input) {
        p->input = (const float *)(const void *)from->at;
        from->at += (size_t)n_inputs * sizeof(float);
    }
    for (int g = 0; g < KV_GROUPS; g++) {
        int32_t of = s.prefix_of[g];
        p->slots[g].prefix = of == PREFIX_FOLLOWS      ? take_prefix(from, s.n_prefix)
                             : of == PREFIX_OF_GROUP_0 ? p->slots[0].prefix
                                                       : rows->rows[first_row + of].slots[g].prefix;
        p->slots[g].own = s.own[g];
        if (!s.has_path) p->slots[g].path = make_path(from, rows, &s, g);
    }
    for (int g = 0; s.has_path && g < KV_GROUPS; g++) p->slots[g].path = take_path(from, s.n_path);
}

const RowPlace *rank_rows_take(RankRows *rows, const Ranks *r, int32_t n_rows, int64_t n_inputs) {
    Reader from = {.at = r->body.data};
    size_t n_slots;
    SentRow first;
    take(&from, &n_slots, sizeof n_slots);
    memcpy(&first, from.at, sizeof first);
    forget_slots(rows, first.row);
    from.slots = rows->slots[first.row] = mem_alloc(n_slots * sizeof *from.slots);
    if (!from.slots) return NULL;
    for (int32_t i = 0; i < n_rows; i++) take_row(&from, rows, first.row, n_inputs);
    return rows->rows + first.row;
}
