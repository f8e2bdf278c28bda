/* drafter_file.c - reads and writes the GGUF files of learned drafters.
 *
 * Everything in the file is checked before it is used: its method, its target, the range of each number, the
 * shape of each tensor, and that every weight is finite. Tensors that no method reads are an error too
 * (drafter_file_finish). */
#include "draft/drafter_file.h"

#include "base/hash.h"
#include "base/files.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the fingerprint ----------------------------------------------------------------------------
 *
 * The fingerprint must differ whenever a drafter would be wrong for a target, and cost little at each open. A drafter
 * shares the embedding and the LM head with its target, and nearly all training changes them, so they are hashed whole,
 * at the speed of memory. If a model was trained further with these two frozen, all rows of its layers have changed, so
 * the first bytes of each tensor show it. The hashes of tensors are added up, so that their order in the file does not
 * matter. */

enum { HEAD_BYTES = 4096 };

/* Pages that were read count as memory of the process, beside the weights that it has packed, until they are given
 * back. */
static uint64_t hash_of_start(const GgufTensor *t, size_t most) {
    uint64_t shape[] = {(uint64_t)t->type, (uint64_t)t->dims[0], (uint64_t)t->dims[1]};
    return hash64_in_pieces(t->data, t->bytes < most ? t->bytes : most,
                            hash64(shape, sizeof shape, hash64(t->name, strlen(t->name), 0)), mapped_file_release);
}

static uint64_t hash_of_tensor(const GgufTensor *t) {
    bool whole = strcmp(t->name, "token_embd.weight") == 0 || strcmp(t->name, "output.weight") == 0;
    uint64_t hash = hash_of_start(t, whole ? SIZE_MAX : HEAD_BYTES);
    mapped_file_release(t->data, t->bytes); /* also what the system has mapped beside the start */
    return hash;
}

uint64_t drafter_target_fingerprint(const Model *target) {
    const Hparams *h = &target->hparams;
    const double shape[] = {
        h->arch,     h->n_layer,         h->n_embd,     h->n_ff,      h->n_vocab,      h->n_head,     h->n_head_kv,
        h->head_dim, (double)h->rms_eps, h->rope.n_rot, h->rope.base, h->rope.scaling, h->rope.factor};
    uint64_t sum = 0;
    for (int64_t i = 0; i < gguf_n_tensors(target->gguf); i++) sum += hash_of_tensor(gguf_tensor(target->gguf, i));
    return hash64(&sum, sizeof sum, hash64(shape, sizeof shape, 0));
}

uint64_t drafter_weights_mark(const Gguf *g) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) sum += hash_of_start(gguf_tensor(g, i), HEAD_BYTES);
    return hash64(&sum, sizeof sum, 0);
}

const char *drafter_target_quantisation(const Model *target) {
    for (int32_t i = 0; i < target->hparams.n_layer; i++)
        for (int32_t k = 0; k < LAYER_MATRICES; k++) {
            const GgufTensor *t = target->layers[i].matrices[k];
            if (t && t->type != TYPE_F32 && t->type != TYPE_F16 && t->type != TYPE_BF16)
                return tensor_type_info(t->type)->name;
        }
    return NULL;
}

/* ---- method and target -------------------------------------------------------------------------- */

enum { NAME_MAX_BYTES = 96 };

/* Reads a string of the file, for messages and comparisons. It is shortened, and control characters are removed. */
static void get_text(const Gguf *g, const char *key, char out[NAME_MAX_BYTES]) {
    GgufString s = {"", 0};
    gguf_get_string(g, key, &s);
    size_t n = s.n < NAME_MAX_BYTES - 1 ? s.n : NAME_MAX_BYTES - 1;
    for (size_t i = 0; i < n; i++) out[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
    out[n] = '\0';
}

static void name_of_target(const Model *target, char out[NAME_MAX_BYTES]) {
    get_text(target->gguf, "general.name", out);
    if (out[0]) return;
    const char *path = gguf_path(target->gguf), *slash = strrchr(path, '/');
    snprintf(out, NAME_MAX_BYTES, "%s", slash ? slash + 1 : path);
}

static void write_fingerprint(const Model *target, char out[17]) {
    snprintf(out, 17, "%016" PRIx64, drafter_target_fingerprint(target));
}

/* Returns the method that reads files of that architecture, which others publish; NULL: there is none. */
static const char *find_published(const char *name) {
    static const struct {
        const char *architecture, *method;
    } published[] = {{"eagle3", "eagle3"},
                     {"dflash", "dflash"},
                     {"dflash-draft", "dflash"},
                     {ASSISTANT_ARCHITECTURE, "mtp"}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (strcmp(published[i].architecture, name) == 0) return published[i].method;
    return NULL;
}

const char *drafter_file_published_method(const Gguf *g) {
    char is[NAME_MAX_BYTES];
    get_text(g, "general.architecture", is);
    return find_published(is);
}

static int refuse_method(const Gguf *g, const char *is, const char *method, fr_error *err) {
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: is a drafter for the method '%s', not for %s; pass a file of %s, or use this one as "
                     "%s:file=...",
                     gguf_path(g), is, method, method, is);
}

static int check_method(const Gguf *g, const char *method, fr_error *err) {
    char is[NAME_MAX_BYTES];
    const char *published = drafter_file_published_method(g);
    if (published) return strcmp(published, method) == 0 ? FR_OK : refuse_method(g, published, method, err);
    get_text(g, "general.architecture", is);
    if (strcmp(is, DRAFTER_ARCHITECTURE) != 0 && find_published(method))
        return error_set(
            err, FR_ERR_MISMATCH,
            "%s: is not a learned drafter but of architecture '%s'; %s needs a file of the architecture %s, "
            "or one made by forerun import-drafter %s",
            gguf_path(g), is, method, method, method);
    if (strcmp(is, DRAFTER_ARCHITECTURE) != 0)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: is not a learned drafter but of architecture '%s'; %s needs a file "
                         "made by forerun train %s",
                         gguf_path(g), is, method, method);
    get_text(g, DRAFTER_KEY("method"), is);
    return strcmp(is, method) == 0 ? FR_OK : refuse_method(g, is, method, err);
}

/* Checks that a published file has the target's vocabulary, if it has one. Tokens that were added to one of the two may
 * differ, but few do. */
static int check_vocabulary(const Gguf *g, const Model *target, fr_error *err) {
    enum { TOLERATED = 100 }; /* one token in so many may differ */
    int64_t ours = gguf_find_key(target->gguf, "tokenizer.ggml.tokens"),
            theirs = gguf_find_key(g, "tokenizer.ggml.tokens");
    if (ours < 0 || theirs < 0) return FR_OK;
    int64_t n = gguf_kv_count(target->gguf, ours), n_theirs = gguf_kv_count(g, theirs), n_other = 0;
    for (int64_t i = 0; i < n && n == n_theirs; i++) {
        GgufString a, b;
        bool are_texts = gguf_array_string(target->gguf, ours, i, &a) && gguf_array_string(g, theirs, i, &b);
        n_other += !are_texts || a.n != b.n || memcmp(a.data, b.data, a.n) != 0;
    }
    if (n == n_theirs && n_other * TOLERATED <= n) return FR_OK;
    char name[NAME_MAX_BYTES];
    name_of_target(target, name);
    if (n != n_theirs)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: was trained for a target with %lld tokens, and '%s' has %lld; run the target that it was "
                         "trained for",
                         gguf_path(g), (long long)n_theirs, name, (long long)n);
    return error_set(
        err, FR_ERR_MISMATCH,
        "%s: was trained for a target with another vocabulary: %lld of the %lld tokens differ from those of "
        "'%s'; run the target that it was trained for",
        gguf_path(g), (long long)n_other, (long long)n, name);
}

static int check_target(const Gguf *g, const Model *target, fr_error *err) {
    char name[NAME_MAX_BYTES], print[NAME_MAX_BYTES], our_name[NAME_MAX_BYTES], our_print[17];
    get_text(g, DRAFTER_KEY("target.name"), name);
    get_text(g, DRAFTER_KEY("target.fingerprint"), print);
    name_of_target(target, our_name);
    write_fingerprint(target, our_print);
    if (strcmp(print, our_print) == 0) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: was trained for the target '%s' (fingerprint %s), and this is '%s' (%s); "
                     "train a drafter for it, or run the target it was trained for",
                     gguf_path(g), name, print, our_name, our_print);
}

int drafter_file_refuse_as_target(const Gguf *g, fr_error *err) {
    char is[NAME_MAX_BYTES], name[NAME_MAX_BYTES];
    const char *published = drafter_file_published_method(g);
    if (published)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: is a drafter, not a model; give its target as the model, and the drafter as --draft "
                         "%s:file=%s",
                         gguf_path(g), published, gguf_path(g));
    get_text(g, "general.architecture", is);
    if (strcmp(is, DRAFTER_ARCHITECTURE) != 0) return FR_OK;
    get_text(g, DRAFTER_KEY("method"), is);
    get_text(g, DRAFTER_KEY("target.name"), name);
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: is a drafter, not a model; give its target ('%s') as the model, and the drafter as --draft "
                     "%s:file=%s",
                     gguf_path(g), name, is, gguf_path(g));
}

int drafter_file_open(DrafterFile *f, const char *path, const char *method, const Model *target, fr_error *err) {
    *f = (DrafterFile){0};
    if (!path[0])
        return error_set(err, FR_ERR_ARGUMENT, "%s: missing drafter file: write --draft %s:file=DRAFTER.gguf", method,
                         method);
    int status = gguf_open(&f->gguf, path, err);
    if (!status) status = check_method(f->gguf, method, err);
    if (!status) status = gguf_check(target->gguf, err); /* the fingerprint reads the target's weights */
    if (!status) {
        f->is_published = drafter_file_published_method(f->gguf) != NULL;
        f->names_target = gguf_find_key(f->gguf, DRAFTER_KEY("target.fingerprint")) >= 0;
        if (f->is_published) status = check_vocabulary(f->gguf, target, err);
        if (!status && (f->names_target || !f->is_published)) status = check_target(f->gguf, target, err);
    }
    fr_error changed; /* if the target's file has changed meanwhile, that is the real cause of any failure */
    int check = status == FR_OK || status == FR_ERR_MISMATCH ? gguf_check(target->gguf, &changed) : FR_OK;
    return check ? (int)error_set(err, (fr_code)check, "%s", changed.message) : status;
}

int drafter_file_check_companion(const Gguf *g, const Model *target, fr_error *err) {
    return gguf_find_key(g, DRAFTER_KEY("target.fingerprint")) < 0 ? FR_OK : check_target(g, target, err);
}

int drafter_file_open_companion(DrafterFile *f, const char *path, const Model *target, fr_error *err) {
    *f = (DrafterFile){0};
    int status = gguf_open(&f->gguf, path, err);
    return status ? status : drafter_file_check_companion(f->gguf, target, err);
}

void drafter_file_close(DrafterFile *f) {
    gguf_close(f->gguf);
    f->gguf = NULL;
}

/* ---- keys and tensors --------------------------------------------------------------------------- */

const char *drafter_file_prefix(const DrafterFile *f) { return f->is_published ? "" : DRAFTER_KEY(""); }

int drafter_file_int(const DrafterFile *f, const char *name, int64_t min, int64_t max, int32_t *out, fr_error *err) {
    char key[128];
    int64_t v;
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    if (!gguf_get_i64(f->gguf, key, &v))
        return error_set(err, FR_ERR_FORMAT, "%s: the key %s is missing or not an integer", gguf_path(f->gguf), key);
    if (v < min || v > max)
        return error_set(err, FR_ERR_FORMAT, "%s: %s is %lld but must be from %lld to %lld", gguf_path(f->gguf), key,
                         (long long)v, (long long)min, (long long)max);
    *out = (int32_t)v;
    return FR_OK;
}

int drafter_file_choice(const DrafterFile *f, const char *name, const char *const *choices, int *out, fr_error *err) {
    char key[128], is[NAME_MAX_BYTES];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    get_text(f->gguf, key, is);
    for (int i = 0; choices[i]; i++)
        if (strcmp(choices[i], is) == 0) {
            *out = i;
            return FR_OK;
        }
    return error_set(err, FR_ERR_FORMAT, "%s: %s is '%s', which this program does not know; it knows '%s', for example",
                     gguf_path(f->gguf), key, is, choices[0]);
}

int drafter_file_tokens(const DrafterFile *f, const char *name, int32_t n_vocab, int32_t **out, int32_t *n,
                        fr_error *err) {
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    int64_t kv = gguf_find_key(f->gguf, key), n_listed = kv < 0 ? 0 : gguf_kv_count(f->gguf, kv), token, last = -1;
    if (kv < 0) return FR_OK;
    if (gguf_kv_type(f->gguf, kv) != GGUF_ARRAY || n_listed < 1 || n_listed > n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: the key %s lists %lld tokens but must list from 1 to %d",
                         gguf_path(f->gguf), key, (long long)n_listed, n_vocab);
    int32_t *tokens = mem_calloc((size_t)n_listed, sizeof *tokens);
    if (!tokens) return error_memory(err, key, (size_t)n_listed * sizeof *tokens);
    for (int64_t i = 0; i < n_listed; i++, last = token) {
        if (gguf_array_i64(f->gguf, kv, i, &token) && token > last && token < n_vocab) {
            tokens[i] = (int32_t)token;
            continue;
        }
        mem_free(tokens);
        return error_set(err, FR_ERR_FORMAT, "%s: entry %lld of %s breaks the list, which must rise and stay below %d",
                         gguf_path(f->gguf), (long long)i, key, n_vocab);
    }
    *out = tokens;
    *n = (int32_t)n_listed;
    return FR_OK;
}

/* Returns number i of a list; -1 if it is a float that is no token. */
static int64_t item_of_list(const GgufTensor *list, int64_t i) {
    int32_t narrow;
    int64_t wide;
    float number;
    const char *data = list->data;
    if (list->is_i32) return memcpy(&narrow, data + (size_t)i * sizeof narrow, sizeof narrow), narrow;
    if (list->is_i64) return memcpy(&wide, data + (size_t)i * sizeof wide, sizeof wide), wide;
    memcpy(&number, data + (size_t)i * sizeof number, sizeof number);
    return number >= 0 && number < (float)(1 << 24) && number == (float)(int32_t)number ? (int32_t)number : -1;
}

/* Reads a list of n different tokens of the target. */
static int read_list(DrafterFile *f, const GgufTensor *list, int64_t n, int32_t n_vocab, int32_t **out, fr_error *err) {
    int32_t *tokens = mem_calloc((size_t)n, sizeof *tokens);
    bool *taken = mem_calloc((size_t)n_vocab, sizeof *taken);
    int status = tokens && taken ? FR_OK : error_memory(err, list->name, (size_t)n_vocab);
    for (int64_t i = 0; i < n && !status; i++) {
        int64_t token = item_of_list(list, i);
        if (token < 0 || token >= n_vocab || taken[token])
            status = error_set(err, FR_ERR_FORMAT,
                               "%s: item %lld of tensor %s is %lld, which is not a token of the target, or is there "
                               "twice",
                               gguf_path(f->gguf), (long long)i, list->name, (long long)token);
        else taken[tokens[i] = (int32_t)token] = true;
    }
    mem_free(taken);
    if (status) {
        mem_free(tokens);
        return status;
    }
    f->n_taken++;
    *out = tokens;
    return FR_OK;
}

int drafter_file_map(DrafterFile *f, int32_t n_vocab, int32_t **out, int32_t *n, fr_error *err) {
    const GgufTensor *map = gguf_find_tensor(f->gguf, GGUF_MAP);
    if (!map) return FR_OK;
    int64_t n_listed = map->is_i64 ? map->dims[0] : 0;
    if (n_listed < 1 || n_listed > n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is not a list of 1 to %d tokens", gguf_path(f->gguf),
                         GGUF_MAP, n_vocab);
    int status = read_list(f, map, n_listed, n_vocab, out, err);
    if (!status) *n = (int32_t)n_listed;
    return status;
}

int drafter_file_clusters(DrafterFile *f, int32_t n_vocab, int32_t **out, fr_error *err) {
    const GgufTensor *list = gguf_find_tensor(f->gguf, GGUF_CLUSTERS);
    if (!list) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(f->gguf), GGUF_CLUSTERS);
    bool has_type = gguf_is_list(list) || list->type == TYPE_F32;
    if (!has_type || list->n_dims != 1 || list->dims[0] != n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is not a list of %d tokens", gguf_path(f->gguf),
                         GGUF_CLUSTERS, n_vocab);
    return read_list(f, list, n_vocab, n_vocab, out, err);
}

static int check_finite(const DrafterFile *f, const GgufTensor *t, fr_error *err) {
    if (finite_weights(t->type, t->data, t->dims[0] * t->dims[1] * t->dims[2])) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds NaN or infinity; its training went wrong",
                     gguf_path(f->gguf), t->name);
}

/* Finds the tensor with that name, which must have exactly this shape; n_out is 0 for a vector. */
static int take(DrafterFile *f, const char *name, int64_t n_in, int64_t n_out, const GgufTensor **out, fr_error *err) {
    const GgufTensor *t = *out = gguf_find_tensor(f->gguf, name);
    if (!t) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(f->gguf), name);
    if (gguf_is_list(t) || t->n_dims != (n_out ? 2 : 1) || t->dims[0] != n_in || (n_out && t->dims[1] != n_out))
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s has the wrong shape: %lld x %lld instead of %lld x %lld",
                         gguf_path(f->gguf), name, (long long)t->dims[0], (long long)t->dims[1], (long long)n_in,
                         (long long)(n_out ? n_out : 1));
    f->n_taken++;
    return check_finite(f, t, err);
}

int drafter_file_matrix(DrafterFile *f, const char *name, int64_t n_in, int64_t n_out, const GgufTensor **out,
                        fr_error *err) {
    return take(f, name, n_in, n_out, out, err);
}

int drafter_file_vector(DrafterFile *f, const char *name, int64_t n, float **out, fr_error *err) {
    const GgufTensor *t;
    int status = take(f, name, n, 0, &t, err);
    if (status) return status;
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!*out) return error_memory(err, name, (size_t)n * sizeof **out);
    blocks_dequantize(t->type, t->data, n, *out);
    return FR_OK;
}

int drafter_file_cube(DrafterFile *f, const char *name, const int64_t dims[3], float **out, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(f->gguf, name);
    int64_t n = dims[0] * dims[1] * dims[2];
    if (!t) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(f->gguf), name);
    if (gguf_is_list(t) || t->dims[0] != dims[0] || t->dims[1] != dims[1] || t->dims[2] != dims[2] || t->dims[3] != 1)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: tensor %s has the wrong shape: %lld x %lld x %lld instead of %lld x %lld x %lld",
                         gguf_path(f->gguf), name, (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                         (long long)dims[0], (long long)dims[1], (long long)dims[2]);
    f->n_taken++;
    int status = check_finite(f, t, err);
    if (status) return status;
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!*out) return error_memory(err, name, (size_t)n * sizeof **out);
    blocks_dequantize(t->type, t->data, n, *out);
    return FR_OK;
}

bool drafter_file_has(const DrafterFile *f, const char *name) { return gguf_find_tensor(f->gguf, name) != NULL; }

int drafter_file_table(DrafterFile *f, const char *name, int64_t n_rows, int64_t *n, float **out, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(f->gguf, name);
    int status = take(f, name, t ? t->dims[0] : 0, n_rows, &t, err);
    if (status) return status;
    *n = t->dims[0];
    *out = mem_calloc((size_t)(*n * n_rows), sizeof **out);
    if (!*out) return error_memory(err, name, t->bytes);
    blocks_dequantize(t->type, t->data, *n * n_rows, *out);
    return FR_OK;
}

int drafter_file_finish(const DrafterFile *f, fr_error *err) {
    int64_t n = gguf_n_tensors(f->gguf);
    if (n == f->n_taken) return gguf_check(f->gguf, err);
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: holds %lld tensors but its method reads only %lld; another version of the method wrote it",
                     gguf_path(f->gguf), (long long)n, (long long)f->n_taken);
}

void drafter_file_get_traffic(const Gguf *g, const char *method, uint64_t target, DrafterTraffic *out) {
    char is[NAME_MAX_BYTES], digits[NAME_MAX_BYTES], print[17];
    int64_t n_lines;
    unsigned long long hash;
    *out = (DrafterTraffic){0};
    snprintf(print, sizeof print, "%016" PRIx64, target);
    get_text(g, DRAFTER_KEY("method"), is);
    get_text(g, DRAFTER_KEY("target.fingerprint"), digits);
    if (strcmp(is, method) != 0 || strcmp(digits, print) != 0) return;
    get_text(g, DRAFTER_KEY("training.traffic.hash"), digits);
    if (!gguf_get_i64(g, DRAFTER_KEY("training.traffic.lines"), &n_lines) || n_lines < 1) return;
    if (strlen(digits) != 16 || sscanf(digits, "%16llx", &hash) != 1) return;
    *out = (DrafterTraffic){(uint64_t)n_lines, hash};
}

/* ---- writing ------------------------------------------------------------------------------------ */

static void set_text(GgufWriter *w, const char *key, const char *text) {
    if (text) gguf_set_string(w, key, text, strlen(text));
}

static void set_training(GgufWriter *w, const DrafterTraining *t) {
    set_text(w, DRAFTER_KEY("training.command"), t->command);
    set_text(w, DRAFTER_KEY("training.data"), t->data);
    if (t->n_steps) gguf_set_u64(w, DRAFTER_KEY("training.steps"), t->n_steps);
    if (t->n_tokens) gguf_set_u64(w, DRAFTER_KEY("training.tokens"), t->n_tokens);
    if (t->n_steps) gguf_set_u64(w, DRAFTER_KEY("training.seed"), t->seed);
    if (t->loss > 0) gguf_set_f32(w, DRAFTER_KEY("training.loss"), (float)t->loss);
    set_text(w, DRAFTER_KEY("training.precision"), t->precision);
    if (t->traffic.n_lines == 0) return;
    char digits[17];
    snprintf(digits, sizeof digits, "%016" PRIx64, t->traffic.hash);
    gguf_set_u64(w, DRAFTER_KEY("training.traffic.lines"), t->traffic.n_lines);
    set_text(w, DRAFTER_KEY("training.traffic.hash"), digits);
}

static GgufWriter *open_writer(const char *architecture, const char *method, const Model *target,
                               const DrafterTraining *training) {
    GgufWriter *w = gguf_writer_new();
    if (!w) return NULL;
    char target_name[NAME_MAX_BYTES], print[17], name[NAME_MAX_BYTES + 64];
    name_of_target(target, target_name);
    write_fingerprint(target, print);
    snprintf(name, sizeof name, "%s for %s", method, target_name);
    set_text(w, "general.architecture", architecture);
    set_text(w, "general.name", name);
    set_text(w, DRAFTER_KEY("method"), method);
    set_text(w, DRAFTER_KEY("target.name"), target_name);
    set_text(w, DRAFTER_KEY("target.fingerprint"), print);
    gguf_set_u32(w, DRAFTER_KEY("target.embedding_length"), (uint32_t)target->hparams.n_embd);
    gguf_set_u32(w, DRAFTER_KEY("target.vocabulary_size"), (uint32_t)target->hparams.n_vocab);
    if (training) set_training(w, training);
    return w;
}

GgufWriter *drafter_file_writer(const char *method, const Model *target, const DrafterTraining *training) {
    return open_writer(DRAFTER_ARCHITECTURE, method, target, training);
}

GgufWriter *drafter_file_companion_writer(const char *method, const Model *target, const DrafterTraining *training) {
    const char *name = arch_name(target->hparams.arch);
    char prefix[64], n_layers[96], n_nextn[96];
    snprintf(prefix, sizeof prefix, "%s.", name);
    snprintf(n_layers, sizeof n_layers, "%s.block_count", name);
    snprintf(n_nextn, sizeof n_nextn, "%s.nextn_predict_layers", name);
    GgufWriter *w = open_writer(name, method, target, training);
    for (int64_t i = 0; w && i < gguf_n_kv(target->gguf); i++) {
        const char *key = gguf_key(target->gguf, i);
        bool is_shape = strncmp(key, prefix, strlen(prefix)) == 0 && strcmp(key, n_layers) != 0 &&
                        strcmp(key, n_nextn) != 0;
        if (is_shape || strncmp(key, "tokenizer.", strlen("tokenizer.")) == 0) gguf_copy_kv(w, target->gguf, i);
    }
    return w;
}

GgufWriter *drafter_file_published_writer(const char *method, const Model *target, const DrafterTraining *training) {
    static const char prefix[] = "tokenizer.";
    GgufWriter *w = open_writer(method, method, target, training);
    for (int64_t i = 0; w && i < gguf_n_kv(target->gguf); i++)
        if (strncmp(gguf_key(target->gguf, i), prefix, sizeof prefix - 1) == 0) gguf_copy_kv(w, target->gguf, i);
    return w;
}
