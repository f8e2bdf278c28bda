/* cmd_inspect.c - `forerun inspect FILE.gguf`: what is in a file, a model or a drafter, as text or JSON. */
#include "base/mem.h"
#include "base/options.h"
#include "cli/cli.h"
#include "cli/safe_text.h"
#include "cli/sandbox.h"
#include "draft/drafter.h"
#include "draft/drafter_file.h"
#include "text/chat.h"
#include "text/vocab.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct InspectArgs {
    const char *path, *target;
    bool json, tensors;
} InspectArgs;

static InspectArgs args;

static const Option option_table[] = {
    {.key = "FILE.gguf",
     OPT_MODEL(InspectArgs, path),
     .is_argument = true,
     .required = "file",
     .help = "GGUF file of a model or a learned drafter"},
    {.key = "target",
     OPT_FILE(InspectArgs, target),
     .help = "tell how many tokens of this model the file's vocabulary contains, if it drafts for it (sps)"},
    {.key = "json", .letter = 'j', OPT_FLAG(InspectArgs, json), .help = "print one JSON object"},
    {.key = "tensors",
     .letter = 't',
     OPT_FLAG(InspectArgs, tensors),
     .help = "list every tensor with its type and shape"},
    {.key = NULL},
};

/* ---- the summary ----------------------------------------------------------------------------- */

enum {
    MAX_ELEMENTS = 6, /* elements shown of an array */
    MAX_STRING = 72,  /* bytes shown of a string, in text */
};

/* What the file holds. Missing strings are empty, missing numbers are -1. */
typedef struct Summary {
    GgufString name, architecture;
    int64_t n_parameters, n_context, n_layers, width, feed_forward, n_heads, n_kv_heads, head_dim;
    GgufString vocab_model, vocab_pre;
    int64_t n_vocab;
    GgufString chat_template; /* empty: none */
    const char *chat_family;  /* static; NULL: no template */
    char chat_error[256];     /* why the template cannot be run; "": it can */
    struct { /* what a learned drafter's file has (draft/drafter_file.h); without a method, it is not one */
        GgufString method, target, fingerprint, command, data, precision;
    } drafter;
    struct {
        int64_t n_tensors;
        size_t bytes;
    } types[TYPE_COUNT];
    const char *target; /* NULL: not given */
    int64_t n_target_vocab;
    int32_t n_shared; /* tokens of the target that the vocabulary contains */
    bool same_ids;
} Summary;

static const char *type_name(GgufType type) {
    static const char *names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                  "bool", "string", "array", "u64", "i64", "f64"};
    return names[type];
}

static double shortest_decimal(float f) {
    char text[32];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f) return strtod(text, NULL);
    }
    return (double)f;
}

/* Returns the value of "ARCHITECTURE.key", or -1. */
static int64_t shape_number(const Gguf *g, GgufString architecture, const char *key) {
    char name[160];
    int64_t v;
    if (architecture.n > 64) return -1;
    snprintf(name, sizeof name, "%.*s.%s", (int)architecture.n, architecture.data, key);
    return gguf_get_i64(g, name, &v) ? v : -1;
}

static void read_shape(const Gguf *g, Summary *s) {
    s->n_context = shape_number(g, s->architecture, "context_length");
    s->n_layers = shape_number(g, s->architecture, "block_count");
    s->width = shape_number(g, s->architecture, "embedding_length");
    s->feed_forward = shape_number(g, s->architecture, "feed_forward_length");
    s->n_heads = shape_number(g, s->architecture, "attention.head_count");
    s->n_kv_heads = shape_number(g, s->architecture, "attention.head_count_kv");
    s->head_dim = shape_number(g, s->architecture, "attention.key_length");
    if (s->head_dim < 0 && s->n_heads > 0 && s->width > 0) s->head_dim = s->width / s->n_heads;
}

static const char *tensor_type_of(const GgufTensor *t) { return t->is_i64 ? "I64" : tensor_type_info(t->type)->name; }

static void read_drafter(const Gguf *g, Summary *s) {
    const char *published = drafter_file_published_method(g);
    if (published) s->drafter.method = (GgufString){published, strlen(published)};
    gguf_get_string(g, DRAFTER_KEY("method"), &s->drafter.method);
    gguf_get_string(g, DRAFTER_KEY("target.name"), &s->drafter.target);
    gguf_get_string(g, DRAFTER_KEY("target.fingerprint"), &s->drafter.fingerprint);
    gguf_get_string(g, DRAFTER_KEY("training.command"), &s->drafter.command);
    gguf_get_string(g, DRAFTER_KEY("training.data"), &s->drafter.data);
    gguf_get_string(g, DRAFTER_KEY("training.precision"), &s->drafter.precision);
}

static void read_chat_template(const Gguf *g, Summary *s) {
    ChatTemplate t;
    if (!gguf_get_string(g, "tokenizer.chat_template", &s->chat_template)) return;
    s->chat_family = chat_template_name(s->chat_template.data, s->chat_template.n);
    if (chat_template_open(&t, s->chat_template.data, s->chat_template.n, NULL)) return;
    memcpy(s->chat_error, t.why, sizeof s->chat_error);
    chat_template_close(&t);
}

static Summary read_summary(const Gguf *g) {
    Summary s = {.name = {"", 0},
                 .architecture = {"", 0},
                 .vocab_model = {"", 0},
                 .vocab_pre = {"", 0},
                 .chat_template = {"", 0}};
    gguf_get_string(g, "general.name", &s.name);
    gguf_get_string(g, "general.architecture", &s.architecture);
    gguf_get_string(g, "tokenizer.ggml.model", &s.vocab_model);
    gguf_get_string(g, "tokenizer.ggml.pre", &s.vocab_pre);
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens");
    s.n_vocab = tokens >= 0 ? gguf_kv_count(g, tokens) : -1;
    read_chat_template(g, &s);
    read_shape(g, &s);
    read_drafter(g, &s);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        s.n_parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        if (t->is_i64) continue;
        s.types[t->type].n_tensors++;
        s.types[t->type].bytes += t->bytes;
    }
    return s;
}

enum { LABEL = 18, LEAST = 12, CUT = sizeof "... (999999 bytes)" }; /* columns */

/* ---- text: pieces ---------------------------------------------------------------------------------- */

static void print_string(GgufString s, size_t max) { safe_text_write(stdout, s.data, s.n, max); }
static void print_c_string(const char *s) { print_string((GgufString){s, strlen(s)}, 1024); }

static void print_size(size_t bytes) {
    static const char *units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int unit = 0;
    for (; v >= 1024 && unit < 4; unit++) v /= 1024;
    printf(unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
}

static void print_count(int64_t n) {
    if (n >= 1000000000) printf("%.2f billion (%" PRId64 ")", (double)n * 1e-9, n);
    else if (n >= 1000000) printf("%.1f million (%" PRId64 ")", (double)n * 1e-6, n);
    else printf("%" PRId64, n);
}

static void heading(const char *text, bool colour) { printf(colour ? "\n\033[1m%s\033[0m\n" : "\n%s\n", text); }
static void label(const char *text) { printf("  %-16s", text); }

/* Whether something was not printed because memory ran out. */
static bool lacks_memory;

/* Prints a text, wrapped so that further lines begin below its first word. */
static void put_wrapped(const char *text) {
    Buf lines = {.max_bytes = 64 << 10};
    if (!text_wrap(&lines, text, LABEL, LABEL, TABLE_COLUMNS)) lacks_memory = true;
    else if (lines.data) fputs(lines.data, stdout);
    buf_free(&lines);
    putchar('\n');
}

/* Closes a stream to memory. False: its text is incomplete. */
static bool close_text(FILE *f, char **text) {
    bool is_whole = f && !ferror(f);
    if (f && fclose(f) != 0) is_whole = false;
    is_whole = is_whole && *text;
    lacks_memory = lacks_memory || !is_whole;
    return is_whole;
}

static void line_string(const char *name, GgufString s) {
    char *text = NULL;
    size_t n_bytes;
    if (!s.n) return;
    label(name);
    FILE *f = open_memstream(&text, &n_bytes);
    if (f) safe_text_write(f, s.data, s.n, MAX_STRING);
    if (close_text(f, &text)) put_wrapped(text);
    free(text);
}

/* Prints a string, shortened to fit the line; `used`: columns before it. */
static void print_fitting(GgufString s, int used) {
    int room = TABLE_COLUMNS - used;
    if ((int64_t)s.n <= room) room = (int)s.n;
    else room = room - CUT > LEAST ? room - CUT : LEAST;
    print_string(s, room < MAX_STRING ? (size_t)room : MAX_STRING);
}

static void line_number(const char *name, int64_t n, const char *unit) {
    if (n < 0) return;
    label(name);
    printf("%" PRId64 "%s\n", n, unit);
}

/* ---- text: parts ----------------------------------------------------------------- */

static void print_shape(const Summary *s) {
    line_string("name", s->name);
    line_string("architecture", s->architecture);
    if (s->n_parameters) {
        label("parameters");
        print_count(s->n_parameters);
        putchar('\n');
    }
    line_number("context", s->n_context, " tokens");
    line_number("layers", s->n_layers, "");
    line_number("width", s->width, "");
    line_number("feed-forward", s->feed_forward, "");
    if (s->n_heads > 0) {
        label("heads");
        printf("%" PRId64 " of %" PRId64, s->n_heads, s->head_dim);
        if (s->n_kv_heads > 0 && s->n_kv_heads != s->n_heads)
            printf(", %" PRId64 " for keys and values", s->n_kv_heads);
        putchar('\n');
    }
}

/* Prints the method of a learned drafter, and its target. */
static void print_drafter(const Summary *s) {
    char method[32] = "";
    const GgufString *m = &s->drafter.method;
    if (!m->n) return;
    if (m->n < sizeof method) memcpy(method, m->data, m->n);
    const DrafterClass *class = drafter_find(method);
    label("drafter");
    if (class) {
        char text[1024];
        snprintf(text, sizeof text, "%s: %s", class->name, class->summary);
        put_wrapped(text);
    } else {
        print_string(*m, MAX_STRING);
        puts(": a method unknown to this version of forerun");
    }
    if (!s->drafter.fingerprint.n) return; /* others have published it */
    label("for the target");
    print_string(s->drafter.target, MAX_STRING);
    fputs(", fingerprint ", stdout);
    print_string(s->drafter.fingerprint, MAX_STRING);
    putchar('\n');
    label("shares");
    put_wrapped("the target's embedding, and its LM head unless it has its own; the file does not contain them");
    line_string("trained by", s->drafter.command);
    line_string("trained on", s->drafter.data);
    if (!s->drafter.precision.n) return;
    label("trained in");
    print_string(s->drafter.precision, MAX_STRING);
    puts(" matrix products");
}

static void print_vocabulary(const Summary *s) {
    if (s->n_vocab < 0) return;
    label("vocabulary");
    printf("%" PRId64 " tokens, ", s->n_vocab);
    print_string(s->vocab_model, MAX_STRING);
    if (s->vocab_pre.n) {
        fputs(", pre-tokenizer ", stdout);
        print_string(s->vocab_pre, MAX_STRING);
    }
    putchar('\n');
    if (s->target) {
        label("shares");
        printf("%d of the %" PRId64 " tokens of ", (int)s->n_shared, s->n_target_vocab);
        print_c_string(s->target);
        printf(" (%.1f %%)%s\n", 100.0 * s->n_shared / (double)s->n_target_vocab,
               s->same_ids ? ", with the same ids" : "");
    }
    label("chat template");
    if (!s->chat_family) puts("none");
    else if (s->chat_error[0]) printf("%s, which forerun cannot run: %s\n", s->chat_family, s->chat_error);
    else printf("%s, shown below\n", s->chat_family);
}

static void print_chat_template(const Summary *s, bool colour) {
    Buf text = {.max_bytes = 16 << 20};
    if (!s->chat_family) return;
    heading("Chat template", colour);
    if (safe_text_append_lines(&text, s->chat_template.data, s->chat_template.n)) puts(text.data ? text.data : "");
    else lacks_memory = true;
    buf_free(&text);
}

static void print_types(const Summary *s) {
    for (int t = 0, first = 1; t < TYPE_COUNT; t++) {
        if (!s->types[t].n_tensors) continue;
        label(first ? "tensor types" : "");
        printf("%-5s %4" PRId64 " tensors, ", tensor_type_info((TensorType)t)->name, s->types[t].n_tensors);
        print_size(s->types[t].bytes);
        putchar('\n');
        first = 0;
    }
}

static void print_scalar(const Gguf *g, const char *key, int used) {
    int64_t v;
    float f;
    bool b;
    GgufString s;
    if (gguf_get_i64(g, key, &v)) printf("%" PRId64, v);
    else if (gguf_get_f32(g, key, &f)) printf("%.9g", shortest_decimal(f));
    else if (gguf_get_bool(g, key, &b)) fputs(b ? "true" : "false", stdout);
    else if (gguf_get_string(g, key, &s)) {
        putchar('"');
        print_fitting(s, used + 2);
        putchar('"');
    } else fputs("(out of range)", stdout);
}

static void write_element(FILE *out, const Gguf *g, int64_t kv, int64_t i) {
    int64_t v;
    float f;
    GgufString s;
    if (gguf_array_i64(g, kv, i, &v)) fprintf(out, "%" PRId64, v);
    else if (gguf_array_f32(g, kv, i, &f)) fprintf(out, "%.9g", shortest_decimal(f));
    else if (gguf_array_string(g, kv, i, &s)) {
        putc('"', out);
        safe_text_write(out, s.data, s.n, 24);
        putc('"', out);
    } else fputs("...", out);
}

/* Prints as many of the first elements as fit the line. */
static void print_array(const Gguf *g, int64_t kv, int used) {
    int64_t n = gguf_kv_count(g, kv), i = 0;
    used += (int)strlen("[, ...]");
    putchar('[');
    for (; i < n && i < MAX_ELEMENTS; i++) {
        char *text = NULL;
        size_t n_bytes = 0;
        FILE *f = open_memstream(&text, &n_bytes);
        if (f) write_element(f, g, kv, i);
        bool fits = close_text(f, &text) && used + (int)n_bytes + 2 <= TABLE_COLUMNS;
        if (fits) printf("%s%s", i ? ", " : "", text);
        used += (int)n_bytes + 2;
        free(text);
        if (!fits) break;
    }
    puts(i < n ? i ? ", ...]" : "...]" : "]");
}

static void print_kvs(const Gguf *g) {
    for (int64_t i = 0; i < gguf_n_kv(g); i++) {
        bool is_array = gguf_kv_type(g, i) == GGUF_ARRAY;
        char type[48];
        if (is_array)
            snprintf(type, sizeof type, "%s[%" PRId64 "]", type_name(gguf_kv_element_type(g, i)), gguf_kv_count(g, i));
        else snprintf(type, sizeof type, "%s", type_name(gguf_kv_type(g, i)));
        int used = (int)(strlen(gguf_key(g, i)) + strlen(type) + 6);
        fputs("  ", stdout);
        print_c_string(gguf_key(g, i));
        printf("  %s  ", type);
        if (is_array) print_array(g, i, used);
        else {
            print_scalar(g, gguf_key(g, i), used);
            putchar('\n');
        }
    }
}

static void print_tensors(const Gguf *g) {
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        fputs("  ", stdout);
        print_c_string(t->name);
        int pad = 32 - (int)strlen(t->name);
        printf("%*s  %-5s [", pad > 0 ? pad : 0, "", tensor_type_of(t));
        for (int d = 0; d < t->n_dims; d++) printf("%s%" PRId64, d ? ", " : "", t->dims[d]);
        fputs("]  ", stdout);
        print_size(t->bytes);
        putchar('\n');
    }
}

static bool print_text(const Gguf *g, const Summary *s, bool with_tensors, bool colour) {
    lacks_memory = false;
    if (colour) fputs("\033[1m", stdout);
    print_c_string(gguf_path(g));
    if (colour) fputs("\033[0m", stdout);
    printf("\n  GGUF version %u, ", gguf_version(g));
    print_size(gguf_file_bytes(g));
    if (gguf_n_files(g) > 1) printf(" in %d files", gguf_n_files(g));
    printf(", %" PRId64 " tensors, %" PRId64 " key-values\n\n", gguf_n_tensors(g), gguf_n_kv(g));
    print_shape(s);
    print_drafter(s);
    print_vocabulary(s);
    print_types(s);
    print_chat_template(s, colour);
    heading("Key-values", colour);
    print_kvs(g);
    if (with_tensors) {
        heading("Tensors (the first dimension is a row)", colour);
        print_tensors(g);
    }
    return !lacks_memory;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

/* Returns a string of the file as JSON. One that is not UTF-8 is read as Latin-1. */
static json_t *text(GgufString s) {
    json_t *j = json_stringn(s.data, s.n);
    if (j) return j;
    Buf b = {.max_bytes = SIZE_MAX / 4};
    bool fits = true;
    for (size_t i = 0; i < s.n && fits; i++) {
        unsigned char c = (unsigned char)s.data[i];
        unsigned char two[2] = {(unsigned char)(0xc0 | c >> 6), (unsigned char)(0x80 | (c & 0x3f))};
        fits = c < 0x80 ? buf_append(&b, &c, 1) : buf_append(&b, two, 2);
    }
    j = fits ? json_stringn(b.data, b.n) : NULL;
    buf_free(&b);
    return j;
}

static json_t *real(float f) { return isfinite(f) ? json_real(shortest_decimal(f)) : json_null(); }

/* Takes ownership of the value. A key that is not UTF-8 is left out. */
static void set(json_t *object, const char *key, json_t *value) { json_object_set_new(object, key, value); }

static void set_number(json_t *object, const char *key, int64_t v) {
    if (v >= 0) set(object, key, json_integer(v));
}

static void set_text(json_t *object, const char *key, GgufString s) {
    if (s.n) set(object, key, text(s));
}

static json_t *scalar(const Gguf *g, const char *key) {
    int64_t v;
    float f;
    bool b;
    GgufString s;
    if (gguf_get_i64(g, key, &v)) return json_integer(v);
    if (gguf_get_f32(g, key, &f)) return real(f);
    if (gguf_get_bool(g, key, &b)) return json_boolean(b);
    if (gguf_get_string(g, key, &s)) return text(s);
    return json_null(); /* a number beyond the range of int64 or float */
}

static json_t *element(const Gguf *g, int64_t kv, int64_t i) {
    int64_t v;
    float f;
    GgufString s;
    if (gguf_array_i64(g, kv, i, &v)) return json_integer(v);
    if (gguf_array_f32(g, kv, i, &f)) return real(f);
    if (gguf_array_string(g, kv, i, &s)) return text(s);
    return json_null();
}

/* Makes {"element_type": ..., "count": ..., "first": [...]}. */
static json_t *array(const Gguf *g, int64_t kv) {
    json_t *first = json_array(), *object = json_object();
    for (int64_t i = 0; i < gguf_kv_count(g, kv) && i < MAX_ELEMENTS; i++)
        json_array_append_new(first, element(g, kv, i));
    set(object, "element_type", json_string(type_name(gguf_kv_element_type(g, kv))));
    set(object, "count", json_integer(gguf_kv_count(g, kv)));
    set(object, "first", first);
    return object;
}

static json_t *key_values(const Gguf *g) {
    json_t *object = json_object();
    for (int64_t i = 0; i < gguf_n_kv(g); i++) {
        const char *key = gguf_key(g, i);
        set(object, key, gguf_kv_type(g, i) == GGUF_ARRAY ? array(g, i) : scalar(g, key));
    }
    return object;
}

static json_t *tensor_types(const Summary *s) {
    json_t *object = json_object();
    for (int t = 0; t < TYPE_COUNT; t++) {
        if (!s->types[t].n_tensors) continue;
        json_t *one = json_object();
        set(one, "tensors", json_integer(s->types[t].n_tensors));
        set(one, "bytes", json_integer((json_int_t)s->types[t].bytes));
        set(object, tensor_type_info((TensorType)t)->name, one);
    }
    return object;
}

static json_t *tensors(const Gguf *g) {
    json_t *list = json_array();
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        json_t *one = json_object(), *shape = json_array();
        for (int d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer(t->dims[d]));
        set(one, "name", text((GgufString){t->name, strlen(t->name)}));
        set(one, "type", json_string(tensor_type_of(t)));
        set(one, "shape", shape);
        set(one, "bytes", json_integer((json_int_t)t->bytes));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *drafter(const Summary *s) {
    json_t *object = json_object();
    set_text(object, "method", s->drafter.method);
    set_text(object, "target", s->drafter.target);
    set_text(object, "target_fingerprint", s->drafter.fingerprint);
    set_text(object, "trained_by", s->drafter.command);
    set_text(object, "trained_on", s->drafter.data);
    set_text(object, "trained_in", s->drafter.precision);
    return object;
}

static json_t *whole(const Gguf *g, const Summary *s, bool with_tensors) {
    json_t *root = json_object();
    const char *path = gguf_path(g);
    set(root, "path", text((GgufString){path, strlen(path)}));
    set(root, "gguf_version", json_integer(gguf_version(g)));
    set(root, "file_bytes", json_integer((json_int_t)gguf_file_bytes(g)));
    set_text(root, "name", s->name);
    set_text(root, "architecture", s->architecture);
    set(root, "parameters", json_integer(s->n_parameters));
    set_number(root, "context_length", s->n_context);
    set_number(root, "layers", s->n_layers);
    set_number(root, "width", s->width);
    set_number(root, "feed_forward", s->feed_forward);
    set_number(root, "heads", s->n_heads);
    set_number(root, "kv_heads", s->n_kv_heads);
    set_number(root, "head_dim", s->head_dim);
    set_number(root, "vocab_size", s->n_vocab);
    set_text(root, "tokenizer_model", s->vocab_model);
    set_text(root, "pre_tokenizer", s->vocab_pre);
    set(root, "chat_template", json_boolean(s->chat_family));
    if (s->chat_family) {
        set(root, "chat_family", json_string(s->chat_family));
        set(root, "chat_template_text", text(s->chat_template));
        if (s->chat_error[0]) set(root, "chat_template_error", json_string(s->chat_error));
    }
    if (s->drafter.method.n) set(root, "drafter", drafter(s));
    if (s->target)
        set(root, "shared_vocab",
            json_pack("{s:o, s:i, s:I, s:b}", "target", text((GgufString){s->target, strlen(s->target)}), "tokens",
                      (int)s->n_shared, "of", (json_int_t)s->n_target_vocab, "same_ids", s->same_ids));
    set(root, "n_tensors", json_integer(gguf_n_tensors(g)));
    set(root, "tensor_types", tensor_types(s));
    set(root, "key_values", key_values(g));
    if (with_tensors) set(root, "tensors", tensors(g));
    return root;
}

static int print_json(const Gguf *g, const Summary *s, bool with_tensors, fr_error *err) {
    json_t *root = whole(g, s, with_tensors);
    char *printed = root ? json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;
    json_decref(root);
    if (!printed) return error_memory(err, "a JSON text", 0);
    puts(printed);
    free(printed);
    return FR_OK;
}

/* ---- the command ---------------------------------------------------------------------------------- */

static int compare_vocabularies(const Gguf *g, Summary *s, fr_error *err) {
    Gguf *target;
    int status = gguf_open(&target, args.target, err);
    if (status) return status;
    int64_t tokens = gguf_find_key(target, "tokenizer.ggml.tokens");
    s->target = args.target;
    s->n_target_vocab = tokens >= 0 ? gguf_kv_count(target, tokens) : 0;
    int32_t n = (int32_t)min_i64(s->n_target_vocab, INT32_MAX), *to_draft = mem_calloc((size_t)n + 1, sizeof *to_draft);
    status = to_draft ? vocab_shared(g, target, to_draft, n, &s->n_shared, &s->same_ids, err)
                      : error_memory(err, "a map of tokens", (size_t)n * sizeof *to_draft);
    mem_free(to_draft);
    gguf_close(target);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    Gguf *g;
    fr_error err = {0};
    const char *paths[] = {args.path, args.target};
    if (sandbox_enter(paths, args.target ? 2 : 1, &err) || gguf_open(&g, args.path, &err)) return cli_fail(&err);
    Summary s = read_summary(g);
    int status = args.target ? compare_vocabularies(g, &s, &err) : FR_OK;
    if (status) {
        gguf_close(g);
        return cli_fail(&err);
    }
    if (args.json) status = print_json(g, &s, args.tensors, &err);
    else if (!print_text(g, &s, args.tensors, cli_may_color(STDOUT_FILENO)))
        status = error_memory(&err, "the summary", 0);
    gguf_close(g);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_inspect = {
    .name = "inspect",
    .summary = "show what is in a GGUF file",
    .about = "Show what is in a GGUF file, a model or a learned drafter: its shape, vocabulary, tensor types and "
             "key-values. Long arrays and strings are shortened.",
    .sets = (const OptionSet[]){{option_table, &args}, {sandbox_option_table, &sandbox_options}, {NULL, NULL}},
    .examples = "  forerun inspect models/target.gguf\n"
                "  forerun inspect --target models/target.gguf models/draft.gguf\n"
                "  forerun inspect --json --tensors models/draft.gguf | jq '.tensors[].name'\n",
    .run = run,
};
