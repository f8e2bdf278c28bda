/* cmd_tokenize.c - `forerun tokenize`: prints the token ids of a text, or the text of token ids. */
#include "cli/cli.h"
#include "cli/safe_text.h"
#include "cli/sandbox.h"

#include "base/mem.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct TokenizeArgs {
    const char *model, *text, *file, *ids;
    bool bos, special, pieces, json;
} TokenizeArgs;

static TokenizeArgs args;

static const Option option_table[] = {
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(TokenizeArgs, model),
     .required = "model with the vocabulary",
     .help = "use the vocabulary of this GGUF file"},
    {.key = "prompt", .letter = 'p', OPT_TEXT(TokenizeArgs, text), .help = "text to encode"},
    {.key = "file",
     .letter = 'f',
     OPT_FILE(TokenizeArgs, file),
     .help = "encode all of FILE; - or no option: encode standard input"},
    {.key = "bos", OPT_FLAG(TokenizeArgs, bos), .help = "begin with the vocabulary's BOS token, if it has one"},
    {.key = "special",
     OPT_FLAG(TokenizeArgs, special),
     .help = "encode a text such as </s> as the special token; with --decode, print special tokens"},
    {.key = "pieces",
     OPT_FLAG(TokenizeArgs, pieces),
     .help = "print one token per line: its id, a tab and its text, escaped"},
    {.key = "decode",
     .letter = 'd',
     OPT_TEXT(TokenizeArgs, ids),
     .metavar = "IDS",
     .help = "instead, print the text of these ids, which are separated by spaces or commas"},
    {.key = "json", OPT_FLAG(TokenizeArgs, json), .help = "print one JSON object"},
    {.key = NULL},
};

static int check(fr_error *err) {
    if ((args.text != NULL) + (args.file != NULL) + (args.ids != NULL) > 1)
        return error_set(err, FR_ERR_ARGUMENT, "-p, -f and -d exclude each other: pass one of them");
    if (args.ids && (args.bos || args.pieces))
        return error_set(err, FR_ERR_ARGUMENT, "--bos and --pieces do not apply to --decode");
    return FR_OK;
}

/* Appends the piece without line breaks and without loss: control characters and bytes that are not UTF-8 are
 * escaped. */
static bool append_escaped(Buf *out, const char *piece, size_t n) {
    bool fits = true;
    for (size_t i = 0, length; i < n && fits; i += length) {
        size_t need, got = utf8_scan(piece + i, n - i, &need);
        unsigned char c = (unsigned char)piece[i];
        char escape[8];
        bool is_c1 = c == 0xC2 && got == 2 && (unsigned char)piece[i + 1] < 0xA0; /* a control character of two bytes */
        bool plain = need > 0 && got == need && c >= ' ' && c != 0x7F && c != '\\' && !is_c1;
        length = plain ? need : 1;
        if (c == '\n') snprintf(escape, sizeof escape, "\\n");
        else if (c == '\\') snprintf(escape, sizeof escape, "\\\\");
        else snprintf(escape, sizeof escape, "\\x%02X", c);
        fits = plain ? buf_append(out, piece + i, length) : buf_append(out, escape, strlen(escape));
    }
    return fits;
}

static int print_ids(const Tokenizer *t, const int32_t *ids, int64_t n, bool pieces, fr_error *err) {
    if (!pieces) {
        for (int64_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", ids[i]);
        putchar('\n');
        return FR_OK;
    }
    Buf line = {.max_bytes = 1 << 16};
    bool fits = true;
    for (int64_t i = 0; i < n && fits; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(t, ids[i], true, &n_piece);
        buf_clear(&line);
        fits = buf_append(&line, "", 0) && append_escaped(&line, piece, n_piece);
        if (fits) printf("%d\t%s\n", ids[i], line.data);
    }
    buf_free(&line);
    return fits ? FR_OK : error_memory(err, "a piece", line.max_bytes);
}

/* A terminal gets only ASCII, because pieces may hold control characters. A file gets readable text in any language. */
static size_t json_flags(void) { return isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0; }

/* Prints {"n_tokens": 2, "tokens": [1, 2], "pieces": ["a", "b"]}, with the pieces escaped as --pieces prints them. */
static int print_ids_json(const Tokenizer *t, const int32_t *ids, int64_t n, bool pieces, fr_error *err) {
    json_t *tokens = json_array(), *spelled = json_array();
    Buf line = {.max_bytes = 1 << 16};
    bool fits = tokens && spelled;
    for (int64_t i = 0; i < n && fits; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(t, ids[i], true, &n_piece);
        buf_clear(&line);
        fits = json_array_append_new(tokens, json_integer(ids[i])) == 0 && buf_append(&line, "", 0) &&
               append_escaped(&line, piece, n_piece) && json_array_append_new(spelled, json_string(line.data)) == 0;
    }
    buf_free(&line);
    json_t *all = fits ? json_pack("{s:I, s:O}", "n_tokens", (json_int_t)n, "tokens", tokens) : NULL;
    if (all && pieces) json_object_set(all, "pieces", spelled);
    fits = all && json_dumpf(all, stdout, json_flags()) == 0;
    if (fits) putchar('\n');
    json_decref(all);
    json_decref(tokens);
    json_decref(spelled);
    return fits ? FR_OK : error_memory(err, "the tokens as JSON", (size_t)n * 64);
}

static int encode(const Tokenizer *t, const TokenizeArgs *o, fr_error *err) {
    char *read = NULL;
    size_t n = o->text ? strlen(o->text) : 0;
    int status = o->text ? FR_OK : cli_read_file(o->file ? o->file : "-", INT32_MAX - 1, &read, &n, err);
    if (status) return status;
    unsigned flags = (o->bos ? TOKENIZE_BOS : 0u) | (o->special ? TOKENIZE_SPECIAL : 0u);
    int32_t *ids;
    int64_t n_ids;
    status = tokenizer_encode(t, o->text ? o->text : read, n, flags, &ids, &n_ids, err);
    free(read);
    if (!status)
        status = o->json ? print_ids_json(t, ids, n_ids, o->pieces, err) : print_ids(t, ids, n_ids, o->pieces, err);
    free(ids);
    return status;
}

/* Turns "1 2  3" into "1,2,3", which cli_parse_ints reads. */
static char *with_commas(const char *ids) {
    char *out = malloc(strlen(ids) + 1), *end = out;
    if (!out) return NULL;
    for (const char *at = ids + strspn(ids, " ,\t\r\n"); *at; at += strspn(at, " ,\t\r\n")) {
        size_t n = strcspn(at, " ,\t\r\n");
        if (end > out) *end++ = ',';
        memcpy(end, at, n);
        end += n;
        at += n;
    }
    *end = 0;
    return out;
}

static bool append_text(const Tokenizer *t, const int32_t *ids, int64_t n_ids, bool with_special, Buf *text) {
    Detokenizer d = {.tokenizer = t, .with_special = with_special, .strip_space = tokenizer_adds_space_prefix(t)};
    bool fits = buf_append(text, "", 0);
    size_t n;
    for (int64_t i = 0; i < n_ids && fits; i++) {
        const char *piece = detokenizer_next(&d, ids[i], &n);
        fits = buf_append(text, piece, n);
    }
    const char *rest = detokenizer_finish(&d, &n);
    return fits && buf_append(text, rest, n);
}

static int decode(const Tokenizer *t, const TokenizeArgs *o, fr_error *err) {
    char *list = with_commas(o->ids);
    if (!list) return error_memory(err, "a list of ids", strlen(o->ids));
    int32_t *ids = NULL;
    int64_t n = 0;
    int status = *list ? cli_parse_ints("--decode", list, 0, tokenizer_n_vocab(t) - 1, &ids, &n, err) : FR_OK;
    Buf text = {.max_bytes = INT32_MAX};
    if (!status && !append_text(t, ids, n, o->special, &text)) status = error_memory(err, "a text", text.n);
    if (!status && o->json) {
        json_t *all = json_pack("{s:s%}", "text", text.data, text.n);
        if (!all || json_dumpf(all, stdout, json_flags())) status = error_memory(err, "a text as JSON", text.n);
        json_decref(all);
    } else if (!status && isatty(STDOUT_FILENO)) {
        Buf safe = {.max_bytes = INT32_MAX};
        if (!safe_text_append_lines(&safe, text.data, text.n)) status = error_memory(err, "a text", safe.n);
        else fwrite(safe.data, 1, safe.n, stdout);
        buf_free(&safe);
    } else if (!status) fwrite(text.data, 1, text.n, stdout);
    if (!status) putchar('\n');
    buf_free(&text);
    free(ids);
    free(list);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err = {0};
    Tokenizer *t = NULL;
    Gguf *g = NULL;
    const char *const readable[] = {args.model, args.file};
    int status = sandbox_enter(readable, 2, &err);
    if (!status) status = gguf_open(&g, args.model, &err);
    if (!status) status = tokenizer_open(&t, g, &err);
    gguf_close(g);
    if (!status) status = args.ids ? decode(t, &args, &err) : encode(t, &args, &err);
    tokenizer_close(t);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_tokenize = {
    .name = "tokenize",
    .summary = "print the token ids of a text, or the text of token ids",
    .about = "Print the token ids of a text on one line, separated by spaces, or with --decode the text of token ids. "
             "Without -p and -f the text is read from standard input.",
    .sets = (const OptionSet[]){{option_table, &args}, {sandbox_option_table, &sandbox_options}, {NULL, NULL}},
    .examples = "  forerun tokenize -m models/target.gguf -p 'Once upon a time'\n"
                "  forerun tokenize -m models/target.gguf --bos --pieces -f story.txt\n"
                "  forerun tokenize -m models/target.gguf -d '1 450 931'\n",
    .check = check,
    .run = run,
};
