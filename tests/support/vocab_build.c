/* vocab_build.c - writes small vocabularies, valid or damaged, as GGUF bytes in memory. */
#include "vocab_build.h"

#include "gguf_build.h"

#include <stdio.h>
#include <string.h>

static void put_array(Buf *b, const char *key, GgufType element, int n) {
    char full[64];
    snprintf(full, sizeof full, "tokenizer.ggml.%s", key);
    put_string(b, full);
    put_u32(b, GGUF_ARRAY);
    put_u32(b, (uint32_t)element);
    put_u64(b, (uint64_t)n);
}

static void put_strings(Buf *b, const char *key, const char *const *strings, int n) {
    put_array(b, key, GGUF_STRING, n);
    for (int i = 0; i < n; i++) put_string(b, strings[i]);
}

static void put_words(Buf *b, const char *key, GgufType element, const void *words, int n) {
    put_array(b, key, element, n);
    for (int i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)words + 4 * i, 4);
        put_u32(b, word);
    }
}

static int put_kvs(Buf *b, const VocabSpec *s) {
    int n = 1;
    char key[64];
    put_kv_string(b, "general.architecture", "llama");
    if (s->name) n++, put_kv_string(b, "general.name", s->name);
    if (s->model) n++, put_kv_string(b, "tokenizer.ggml.model", s->model);
    if (s->pre) n++, put_kv_string(b, "tokenizer.ggml.pre", s->pre);
    if (s->tokens) n++, put_strings(b, "tokens", s->tokens, s->n_tokens);
    if (s->merges) n++, put_strings(b, "merges", s->merges, s->n_merges);
    if (s->types) n++, put_words(b, "token_type", GGUF_I32, s->types, s->n_types);
    if (s->scores) n++, put_words(b, "scores", GGUF_F32, s->scores, s->n_scores);
    for (size_t i = 0; i < sizeof s->ids / sizeof *s->ids && s->ids[i].key; i++, n++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s", s->ids[i].key);
        put_kv_u32(b, key, s->ids[i].value);
    }
    for (size_t i = 0; i < sizeof s->flags / sizeof *s->flags && s->flags[i].key; i++, n++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s", s->flags[i].key);
        put_string(b, key);
        put_u32(b, GGUF_BOOL);
        put_u8(b, s->flags[i].value);
    }
    return n;
}

void vocab_build(Buf *b, const VocabSpec *s) {
    Buf kvs = {.max_bytes = 1 << 20};
    int n = put_kvs(&kvs, s);
    put_header(b, 3, 0, (uint64_t)n);
    buf_append(b, kvs.data, kvs.n);
    put_padding(b, 32);
    buf_free(&kvs);
}

int vocab_build_open(Tokenizer **out, const VocabSpec *s, fr_error *err) {
    Buf b = {.max_bytes = 1 << 20};
    Gguf *g;
    *out = NULL;
    vocab_build(&b, s);
    int status = gguf_open_memory(&g, b.data, b.n, "test vocabulary", err);
    if (!status) status = tokenizer_open(out, g, err);
    gguf_close(g);
    buf_free(&b);
    return status;
}

void vocab_build_alphabet(const char *tokens[256]) {
    static char spelled[256][3];
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
        unsigned c = printable ? b : next++;
        if (c < 128) snprintf(spelled[b], 3, "%c", (char)c);
        else snprintf(spelled[b], 3, "%c%c", (char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F)));
        tokens[b] = spelled[b];
    }
}

/* "Ġ" is the spelling of the space; "Ã ©" makes "é" (C3 A9). */
const char *const tiny_merges[TINY_N_MERGES] = {
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ", "1 2", "Ã ©", "a b", "ab c",
};

VocabSpec vocab_build_tiny_bpe(const char *pre) {
    static const char *tokens[TINY_N_TOKENS];
    static int32_t types[TINY_N_TOKENS];
    static char made[TINY_N_MERGES][24];
    vocab_build_alphabet(tokens);
    for (int i = 0; i < TINY_N_MERGES; i++) {
        const char *space = strchr(tiny_merges[i], ' ');
        snprintf(made[i], sizeof made[i], "%.*s%s", (int)(space - tiny_merges[i]), tiny_merges[i], space + 1);
        tokens[256 + i] = made[i];
    }
    tokens[TINY_USER] = "<|user|>";
    tokens[TINY_END] = "<|endoftext|>";
    for (int i = 0; i < TINY_N_TOKENS; i++) types[i] = i == TINY_USER ? 4 : i == TINY_END ? 3 : 1;
    return (VocabSpec){.model = "gpt2",
                       .pre = pre,
                       .tokens = tokens,
                       .n_tokens = TINY_N_TOKENS,
                       .types = types,
                       .n_types = TINY_N_TOKENS,
                       .merges = tiny_merges,
                       .n_merges = TINY_N_MERGES,
                       .ids = {{"bos_token_id", TINY_END}, {"eos_token_id", TINY_END}}};
}
