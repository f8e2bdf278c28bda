/* convert_vocab.c - the vocabulary of a published model: the choice of the file to read, special tokens, chat template.
 *
 * Special tokens are named in several files, which do not always agree. The spellings of BOS and EOS in
 * tokenizer_config.json, which are those of a conversation, override the ids in config.json. generation_config.json may
 * list several tokens that end an answer. Besides EOS, two of them are kept, because a model that ends its turn with
 * one of them would not stop otherwise. */
#include "cli/convert/convert_vocab.h"

#include "base/hash.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ------------------------------------------------------------------------------------------ */

char *convert_vocab_memory(ConvertVocab *v, size_t n) {
    if (v->n_memory == v->memory_capacity) {
        int64_t capacity = v->memory_capacity ? 2 * v->memory_capacity : 64;
        void **memory = realloc(v->memory, (size_t)capacity * sizeof *memory);
        if (!memory) return NULL;
        v->memory = memory;
        v->memory_capacity = capacity;
    }
    char *text = malloc(n);
    if (text) v->memory[v->n_memory++] = text;
    return text;
}

void convert_vocab_close(ConvertVocab *v) {
    for (int64_t i = 0; i < v->n_memory; i++) free(v->memory[i]);
    free(v->memory);
    free(v->pieces);
    free(v->scores);
    free(v->types);
    free(v->merges);
    free(v->file);
    hash_table_close(&v->by_piece);
    *v = (ConvertVocab){.n = 0};
}

int32_t convert_vocab_find(const ConvertVocab *v, const char *piece, size_t n) {
    return hash_table_find(&v->by_piece, piece, n);
}

int convert_vocab_set(ConvertVocab *v, const HubFolder *c, int64_t id, const char *piece, size_t n, TokenType type,
                      fr_error *err) {
    Printable p;
    int32_t got;
    if (id < 0 || id >= v->n)
        return error_set(err, FR_ERR_FORMAT, "%s: the token %s has the id %lld, but the model has %lld embeddings",
                         c->folder, printable(&p, piece, n), (long long)id, (long long)v->n);
    if (n > VOCAB_MAX_PIECE)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: token %lld has %zu bytes; at most %d are supported", c->folder,
                         (long long)id, n, VOCAB_MAX_PIECE);
    GgufString *old = &v->pieces[id];
    if (old->data && (old->n != n || memcmp(old->data, piece, n) != 0))
        return error_set(err, FR_ERR_FORMAT, "%s: two tokens have the id %lld, one of them %s", c->folder,
                         (long long)id, printable(&p, piece, n));
    *old = (GgufString){piece, n};
    v->types[id] = (int32_t)type;
    if (n > 0 && !hash_table_add(&v->by_piece, piece, n, (int32_t)id, &got))
        return error_memory(err, "the table of a vocabulary", (size_t)v->n);
    return FR_OK;
}

/* Names the ids without a token. Many models have more embeddings than tokens, because the number is rounded up. */
static int fill_gaps(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    int status = FR_OK;
    for (int64_t i = 0; i < v->n && !status; i++) {
        if (v->pieces[i].data) continue;
        char *text = convert_vocab_memory(v, 32);
        if (!text) return error_memory(err, "a vocabulary", 32);
        snprintf(text, 32, "[PAD%lld]", (long long)i);
        status = convert_vocab_set(v, c, i, text, strlen(text), TOKEN_UNUSED, err);
    }
    return status;
}

static int read_tokens(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    bool has_model = hub_has(c, "tokenizer.model");
    if (c->tokenizer && (!has_model || tokens_json_is_byte_level(c->tokenizer))) return tokens_json_read(v, c, err);
    if (has_model) return tokens_spm_read(v, c, err);
    return error_set(err, FR_ERR_IO, "%s: holds neither tokenizer.json nor tokenizer.model", c->folder);
}

/* ---- special tokens ---------------------------------------------------------------------------------- */

/* Returns the id of the token that tokenizer_config.json names, by a spelling or an object with a spelling; otherwise
 * `id`. */
static int32_t named_token(const ConvertVocab *v, const HubFolder *c, const char *key, int32_t id) {
    const json_t *value = json_object_get(c->tokenizer_config, key);
    const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    int32_t found = text ? convert_vocab_find(v, text, strlen(text)) : -1;
    return found >= 0 ? found : id;
}

/* Returns the id in config.json, or the first of several ids; otherwise `id`. */
static int32_t token_of_config(const ConvertVocab *v, const json_t *config, const char *key, int32_t id) {
    const json_t *value = json_object_get(config, key);
    if (json_is_array(value)) value = json_array_get(value, 0);
    bool is_id = json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < v->n;
    return is_id ? (int32_t)json_integer_value(value) : id;
}

static void read_special(ConvertVocab *v, const HubFolder *c) {
    const json_t *config = c->tokenizer_config;
    static const char *const adds[] = {"add_bos_token", "add_eos_token"};
    bool *const to[] = {&v->adds_bos, &v->adds_eos};
    v->bos = named_token(v, c, "bos_token", token_of_config(v, c->config, "bos_token_id", v->bos));
    v->eos = named_token(v, c, "eos_token", token_of_config(v, c->config, "eos_token_id", v->eos));
    v->unknown = named_token(v, c, "unk_token", v->unknown);
    v->pad = named_token(v, c, "pad_token", v->pad);
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(config, adds[i]);
        if (!json_is_boolean(value)) continue;
        *to[i] = json_is_true(value);
        v->says_bos = v->says_bos || i == 0;
    }
    if (v->bos < 0) v->adds_bos = false;
    if (v->eos < 0) v->adds_eos = false;
    if (json_is_false(json_object_get(config, "add_prefix_space"))) v->adds_space_prefix = false;
    int32_t *const ids[] = {&v->bos, &v->eos};
    for (int i = 0; i < 2; i++) /* old files do not mark them as control tokens */
        if (*ids[i] >= 0 && v->types[*ids[i]] == TOKEN_NORMAL) v->types[*ids[i]] = TOKEN_CONTROL;
}

int convert_vocab_read(ConvertVocab *v, const HubFolder *c, int64_t n_vocab, fr_error *err) {
    *v = (ConvertVocab){.n = n_vocab, .bos = -1, .eos = -1, .unknown = -1, .pad = -1};
    v->pieces = calloc((size_t)n_vocab, sizeof *v->pieces);
    v->scores = calloc((size_t)n_vocab, sizeof *v->scores);
    v->types = calloc((size_t)n_vocab, sizeof *v->types);
    if (!v->pieces || !v->scores || !v->types) return error_memory(err, "a vocabulary", (size_t)n_vocab * 24);
    int status = read_tokens(v, c, err);
    if (!status) status = fill_gaps(v, c, err);
    if (!status) read_special(v, c);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void set_id(GgufWriter *w, const char *key, int64_t id) {
    char full[64];
    snprintf(full, sizeof full, "tokenizer.ggml.%s_token_id", key);
    if (id >= 0) gguf_set_u32(w, full, (uint32_t)id);
}

/* Writes the tokens that end an answer besides EOS, for which GGUF has two keys. */
static void write_ends(const ConvertVocab *v, const HubFolder *c, GgufWriter *w) {
    static const char *const names[] = {"eot", "eom"};
    const json_t *lists[] = {json_object_get(c->generation, "eos_token_id"),
                             json_object_get(c->config, "eos_token_id")};
    const json_t *list = lists[0] ? lists[0] : lists[1];
    size_t n = json_is_array(list) ? json_array_size(list) : json_is_integer(list), n_set = 0;
    for (size_t i = 0; i < n && n_set < 2; i++) {
        const json_t *value = json_is_array(list) ? json_array_get(list, i) : list;
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id >= 0 && id < v->n && id != v->eos) set_id(w, names[n_set++], id);
    }
}

/* Writes the chat template: a file of its own, a string, or the one named "default" in a list. */
static int write_chat_template(const HubFolder *c, GgufWriter *w, fr_error *err) {
    enum { MAX_TEMPLATE = 4 << 20 };
    const json_t *value = json_object_get(c->tokenizer_config, "chat_template");
    const char *text = json_string_value(value);
    char *file;
    size_t n;
    int status = hub_read(c, "chat_template.jinja", MAX_TEMPLATE, &file, &n, err);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *named = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(named, "name"));
        if (name && strcmp(name, "default") == 0) text = json_string_value(json_object_get(named, "template"));
    }
    if (file) gguf_set_string(w, "tokenizer.chat_template", file, n);
    else if (text) gguf_set_string(w, "tokenizer.chat_template", text, strlen(text));
    free(file);
    return status;
}

int convert_vocab_write(const ConvertVocab *v, const HubFolder *c, GgufWriter *w, fr_error *err) {
    bool is_spm = v->kind == VOCAB_SPM;
    const char *model = is_spm ? "llama" : "gpt2", *pre = is_spm ? "default" : v->pre;
    gguf_set_string(w, "tokenizer.ggml.model", model, strlen(model));
    gguf_set_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
    gguf_set_strings(w, "tokenizer.ggml.tokens", v->pieces, v->n);
    if (is_spm) gguf_set_f32s(w, "tokenizer.ggml.scores", v->scores, v->n);
    gguf_set_i32s(w, "tokenizer.ggml.token_type", v->types, v->n);
    if (!is_spm) gguf_set_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges);
    set_id(w, "bos", v->bos);
    set_id(w, "eos", v->eos);
    set_id(w, "unknown", v->unknown);
    set_id(w, "padding", v->pad);
    write_ends(v, c, w);
    if (v->says_bos) gguf_set_bool(w, "tokenizer.ggml.add_bos_token", v->adds_bos);
    gguf_set_bool(w, "tokenizer.ggml.add_eos_token", v->adds_eos);
    if (is_spm) gguf_set_bool(w, "tokenizer.ggml.add_space_prefix", v->adds_space_prefix);
    return write_chat_template(c, w, err);
}
