/* other_vocab.c - see other_vocab.h. */
#include "other_vocab.h"

#include "model_rig.h"
#include "testing.h"

#include "gguf/gguf_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB = 8192, NORMAL = 1 };

static void write_vocab(GgufWriter *w, const Gguf *g, int32_t n, int32_t every) {
    static GgufString pieces[MAX_VOCAB];
    static char own[MAX_VOCAB][16];
    static int32_t types[MAX_VOCAB];
    static float scores[MAX_VOCAB];
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens"), type = gguf_find_key(g, "tokenizer.ggml.token_type"),
            score = gguf_find_key(g, "tokenizer.ggml.scores"), t;
    for (int32_t i = 0; i < n; i++) {
        int32_t to = other_vocab_id(i, n);
        assert_true(gguf_array_string(g, tokens, i, &pieces[to]) && gguf_array_i64(g, type, i, &t) &&
                    gguf_array_f32(g, score, i, &scores[to]));
        types[to] = (int32_t)t;
        if (every == 0 || i < 3 || i % every) continue;
        int length = snprintf(own[to], sizeof own[to], "\xC3\x98%d\xC3\x98", (int)i);
        pieces[to] = (GgufString){own[to], (size_t)length};
        types[to] = NORMAL;
    }
    gguf_set_strings(w, "tokenizer.ggml.tokens", pieces, n);
    gguf_set_i32s(w, "tokenizer.ggml.token_type", types, n);
    gguf_set_f32s(w, "tokenizer.ggml.scores", scores, n);
    gguf_copy_kvs(w, g, NULL);
}

/* Returns the rows of a tensor in the other order. */
static void *reorder(const GgufTensor *t, int32_t n) {
    size_t bytes;
    assert_true(tensor_type_row_bytes(t->type, t->dims[0], &bytes));
    char *rows = malloc(bytes * (size_t)n);
    assert_non_null(rows);
    for (int32_t i = 0; i < n; i++)
        memcpy(rows + bytes * (size_t)other_vocab_id(i, n), (const char *)t->data + bytes * (size_t)i, bytes);
    return rows;
}

void other_vocab_write(const char *from, const char *to, int32_t every) {
    Gguf *g = rig_gguf(from);
    GgufWriter *w = gguf_writer_new();
    int32_t n = (int32_t)gguf_kv_count(g, gguf_find_key(g, "tokenizer.ggml.tokens")), n_made = 0;
    void *made[4];
    assert_true(n <= MAX_VOCAB);
    write_vocab(w, g, n, every);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        bool has_tokens = strcmp(t->name, "token_embd.weight") == 0 || strcmp(t->name, "output.weight") == 0;
        const void *data = t->data;
        if (has_tokens) data = made[n_made++] = reorder(t, n);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, data);
    }
    fr_error err;
    if (gguf_writer_finish(w, to, &err)) fail_msg("%s", err.message);
    while (n_made > 0) free(made[--n_made]);
    gguf_writer_free(w);
    gguf_close(g);
}
