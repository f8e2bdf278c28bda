/* same_text.c - compares two lists of tokens by the bytes that they stand for. White space is passed over: a model may begin
 * its answer with a space or without, and templates cut it off or add their own. */
#include "cli/chat/same_text.h"

/* Reads tokens byte by byte. */
typedef struct Bytes {
    const fr_model *model;
    const int32_t *tokens;
    int64_t n, i;   /* the token that is read */
    const char *at; /* its next byte */
    size_t n_left;  /* 0: at the beginning of token i */
} Bytes;

/* The special token that begins here; -1: none. */
static int32_t special_at(const Bytes *b) {
    return b->i < b->n && b->n_left == 0 && fr_token_is_special(b->model, b->tokens[b->i]) ? b->tokens[b->i] : -1;
}

/* The next byte; -1: the tokens end here, or a special token begins. */
static int next_byte(Bytes *b) {
    while (b->n_left == 0) {
        if (b->i == b->n || special_at(b) >= 0) return -1;
        b->at = fr_token_piece(b->model, b->tokens[b->i], 0, &b->n_left);
        if (b->n_left == 0) b->i++;
    }
    int byte = (unsigned char)*b->at++;
    if (--b->n_left == 0) b->i++;
    return byte;
}

/* The next byte that is not white space; -1 as above. */
static int next_visible(Bytes *b) {
    int byte;
    do byte = next_byte(b);
    while (byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r');
    return byte;
}

int64_t same_text_end(const fr_model *model, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    Bytes x = {.model = model, .tokens = a, .n = n_a}, y = {.model = model, .tokens = b, .n = n_b};
    for (;;) {
        int byte = next_visible(&x);
        if (byte < 0 && x.i == x.n) return y.n_left > 0 ? -1 : y.i;
        if (next_visible(&y) != byte) return -1;
        if (byte >= 0) continue;
        if (special_at(&x) != special_at(&y)) return -1;
        x.i++, y.i++;
    }
}
