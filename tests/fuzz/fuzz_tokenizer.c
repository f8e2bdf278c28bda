/* fuzz_tokenizer.c - any text under any flags, on vocabularies in which every byte has a token: the pieces give back
 * the text. And any file as a vocabulary: it is refused, or it encodes and decodes without a fault.
 *
 * Byte 0 of an input: bits 0-2 are the flags, bits 3-6 choose the vocabulary; with bit 7 the other bytes are a GGUF
 * file instead. */
#include "vocab_build.h"

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char *const pres[] = {"default", "gpt-2",  "llama-bpe",    "qwen2",          "qwen35",
                                   "dbrx",    "falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3",
                                   "tekken",  "gpt-4o", "smollm",       "superbpe",       "afmoe"};
enum { N_PRES = sizeof pres / sizeof *pres };

/* Number 0 is the vocabulary of models/target.gguf, the others are the tiny one under each pre-tokenizer. */
static const Tokenizer *vocabulary(size_t i) {
    static Tokenizer *opened[1 + N_PRES];
    fr_error err = {0};
    if (opened[i]) return opened[i];
    if (i == 0) {
        Gguf *g;
        fr_assert(gguf_open(&g, "models/target.gguf", &err) == FR_OK);
        fr_assert(tokenizer_open(&opened[0], g, &err) == FR_OK);
        gguf_close(g);
    } else {
        VocabSpec spec = vocab_build_tiny_bpe(pres[i - 1]);
        fr_assert(vocab_build_open(&opened[i], &spec, &err) == FR_OK);
    }
    return opened[i];
}

/* Writes the text as the vocabulary reads it: SentencePiece cannot distinguish U+2581 from a space. */
static size_t normalise(const Tokenizer *t, const char *text, size_t n, char *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; n_out++) {
        bool mark = tokenizer_adds_space_prefix(t) && n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        out[n_out] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return n_out;
}

/* The pieces, each stretch between special tokens without the space that encoding put before it. */
static void check_pieces(const Tokenizer *t, const int32_t *ids, int64_t n_ids, const char *want, size_t n_want) {
    bool prefixed = tokenizer_adds_space_prefix(t);
    size_t at = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *piece = tokenizer_piece(t, ids[i], true, &n);
        if (prefixed && !tokenizer_is_special(t, ids[i]) && (i == 0 || tokenizer_is_special(t, ids[i - 1]))) {
            fr_assert(n > 0 && piece[0] == ' ');
            piece++;
            n--;
        }
        fr_assert(at + n <= n_want && memcmp(want + at, piece, n) == 0);
        at += n;
    }
    fr_assert(at == n_want);
}

/* Whatever the ids, every call returns whole characters. */
static void check_detokenizer(const Tokenizer *t, const int32_t *ids, int64_t n_ids) {
    Detokenizer d = {.tokenizer = t, .with_special = true};
    for (int64_t i = 0; i <= n_ids; i++) {
        size_t n, need;
        const char *text = i < n_ids ? detokenizer_next(&d, ids[i], &n) : detokenizer_finish(&d, &n);
        for (size_t at = 0; at < n; at += need) fr_assert(utf8_scan(text + at, n - at, &need) == need && need > 0);
    }
}

static void fuzz_text(const Tokenizer *t, unsigned flags, const char *text, size_t n) {
    int32_t *ids;
    int64_t n_ids;
    fr_assert(tokenizer_encode(t, text, n, flags, &ids, &n_ids, NULL) == FR_OK);
    int64_t from = (flags & TOKENIZE_BOS) != 0, to = n_ids - ((flags & TOKENIZE_EOS) != 0);
    fr_assert(from <= to && (from == 0 || ids[0] == tokenizer_bos(t)) && (to == n_ids || ids[to] == tokenizer_eos(t)));
    if (n_ids == 0) {
        fr_assert(n == 0 && !ids);
        return;
    }
    char *want = malloc(n + 1);
    size_t n_want = normalise(t, text, n, want);
    check_pieces(t, ids + from, to - from, want, n_want);
    check_detokenizer(t, ids, n_ids);
    free(want);
    free(ids);
}

static void fuzz_vocabulary(const char *file, size_t n) {
    static const char text[] = "<s>hello world</s> 12 \xC3\xA9\xFF <|endoftext|>\n\nab abc<0x0A>";
    Gguf *g;
    Tokenizer *t = NULL;
    fr_error err = {0};
    if (gguf_open_memory(&g, file, n, "fuzz", &err) == FR_OK && tokenizer_open(&t, g, &err) == FR_OK)
        for (unsigned flags = 0; flags < 8; flags++) {
            int32_t *ids;
            int64_t n_ids;
            fr_assert(tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &n_ids, NULL) == FR_OK);
            for (int64_t i = 0; i < n_ids; i++) fr_assert(ids[i] >= 0 && ids[i] < tokenizer_n_vocab(t));
            check_detokenizer(t, ids, n_ids);
            free(ids);
        }
    else fr_assert(!t && err.code != FR_OK && err.message[0] != '\0');
    tokenizer_close(t);
    gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n == 0) return 0;
    const char *rest = (const char *)bytes + 1;
    if (bytes[0] & 0x80) fuzz_vocabulary(rest, n - 1);
    else fuzz_text(vocabulary((bytes[0] >> 3) % (1 + N_PRES)), bytes[0] & 7, rest, n - 1);
    return 0;
}
