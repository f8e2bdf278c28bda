/* inspect_text.c - what `forerun inspect` prints for people. */
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/inspect/inspect.h"
#include "cli/safe_text.h"
#include "draft/drafter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns, and the bytes that are shown of a string. */
enum { LABEL = 18, LEAST = 12, CUT = sizeof "... (999999 bytes)", MAX_STRING = 72 };

/* ---- pieces ---------------------------------------------------------------------------------- */

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

/* ---- parts ----------------------------------------------------------------- */

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
    bool is_companion = strcmp(method, "mtp") == 0; /* its file is a model of the target's architecture */
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
    if (is_companion) put_wrapped("the target's embedding and LM head; the file has copies, which are not read");
    else put_wrapped("the target's embedding, and its LM head unless it has its own; the file does not contain them");
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
    else if (gguf_get_f32(g, key, &f)) printf("%.9g", inspect_shortest_decimal(f));
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
    else if (gguf_array_f32(g, kv, i, &f)) fprintf(out, "%.9g", inspect_shortest_decimal(f));
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
            snprintf(type, sizeof type, "%s[%" PRId64 "]", inspect_type_name(gguf_kv_element_type(g, i)),
                     gguf_kv_count(g, i));
        else snprintf(type, sizeof type, "%s", inspect_type_name(gguf_kv_type(g, i)));
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
        printf("%*s  %-5s [", pad > 0 ? pad : 0, "", inspect_tensor_type(t));
        for (int d = 0; d < t->n_dims; d++) printf("%s%" PRId64, d ? ", " : "", t->dims[d]);
        fputs("]  ", stdout);
        print_size(t->bytes);
        putchar('\n');
    }
}

bool inspect_print_text(const Gguf *g, const Summary *s, bool with_tensors, bool colour) {
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
