/* inspect_text.c - the summary of a file as text. */
#include "app/inspect/inspect.h"
#include "app/safe_text.h"
#include "spec/drafter/drafter.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

static void line_string(const char *name, GgufString s) {
    if (!s.n) return;
    label(name);
    print_string(s, INSPECT_STRING_MAX);
    putchar('\n');
}

static void line_number(const char *name, int64_t n, const char *unit) {
    if (n < 0) return;
    label(name);
    printf("%" PRId64 "%s\n", n, unit);
}

/* ---- the parts of the output ----------------------------------------------------------------- */

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

/* The method of a learned drafter, and its target. */
static void print_drafter(const Summary *s) {
    char method[32] = "";
    const GgufString *m = &s->drafter.method;
    if (!m->n) return;
    if (m->n < sizeof method) memcpy(method, m->data, m->n);
    const DrafterClass *class = drafter_find(method);
    label("drafter");
    print_string(*m, INSPECT_STRING_MAX);
    printf(": %s\n", class ? class->summary : "a method unknown to this version of forerun");
    label("for the target");
    print_string(s->drafter.target, INSPECT_STRING_MAX);
    fputs(", fingerprint ", stdout);
    print_string(s->drafter.fingerprint, INSPECT_STRING_MAX);
    putchar('\n');
    label("shares");
    puts("the target's embedding, and its LM head unless it has its own; the file does not contain them");
    line_string("trained by", s->drafter.command);
    line_string("trained on", s->drafter.data);
    if (!s->drafter.precision.n) return;
    label("trained in");
    print_string(s->drafter.precision, INSPECT_STRING_MAX);
    puts(" matrix products");
}

static void print_vocabulary(const Summary *s) {
    if (s->n_vocab < 0) return;
    label("vocabulary");
    printf("%" PRId64 " tokens, ", s->n_vocab);
    print_string(s->vocab_model, INSPECT_STRING_MAX);
    if (s->vocab_pre.n) {
        fputs(", pre-tokenizer ", stdout);
        print_string(s->vocab_pre, INSPECT_STRING_MAX);
    }
    putchar('\n');
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

static void print_scalar(const Gguf *g, const char *key) {
    int64_t v;
    float f;
    bool b;
    GgufString s;
    if (gguf_get_i64(g, key, &v)) printf("%" PRId64, v);
    else if (gguf_get_f32(g, key, &f)) printf("%.9g", inspect_decimal(f));
    else if (gguf_get_bool(g, key, &b)) fputs(b ? "true" : "false", stdout);
    else if (gguf_get_string(g, key, &s)) {
        putchar('"');
        print_string(s, INSPECT_STRING_MAX);
        putchar('"');
    } else fputs("(out of range)", stdout);
}

static void print_element(const Gguf *g, int64_t kv, int64_t i) {
    int64_t v;
    float f;
    GgufString s;
    if (gguf_array_i64(g, kv, i, &v)) printf("%" PRId64, v);
    else if (gguf_array_f32(g, kv, i, &f)) printf("%.9g", inspect_decimal(f));
    else if (gguf_array_string(g, kv, i, &s)) {
        putchar('"');
        print_string(s, 24);
        putchar('"');
    } else fputs("...", stdout);
}

static void print_array(const Gguf *g, int64_t kv) {
    int64_t n = gguf_kv_count(g, kv);
    putchar('[');
    for (int64_t i = 0; i < n && i < INSPECT_ARRAY_MAX; i++) {
        if (i) fputs(", ", stdout);
        print_element(g, kv, i);
    }
    puts(n > INSPECT_ARRAY_MAX ? ", ...]" : "]");
}

static void print_kvs(const Gguf *g) {
    for (int64_t i = 0; i < gguf_n_kv(g); i++) {
        fputs("  ", stdout);
        print_c_string(gguf_key(g, i));
        if (gguf_kv_type(g, i) == GGUF_ARRAY) {
            printf("  %s[%" PRId64 "]  ", inspect_type_name(gguf_kv_element_type(g, i)), gguf_kv_count(g, i));
            print_array(g, i);
        } else {
            printf("  %s  ", inspect_type_name(gguf_kv_type(g, i)));
            print_scalar(g, gguf_key(g, i));
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
        printf("%*s  %-5s [", pad > 0 ? pad : 0, "", tensor_type_info(t->type)->name);
        for (int d = 0; d < t->n_dims; d++) printf("%s%" PRId64, d ? ", " : "", t->dims[d]);
        fputs("]  ", stdout);
        print_size(t->bytes);
        putchar('\n');
    }
}

void inspect_print_text(const Gguf *g, const Summary *s, bool with_tensors, bool colour) {
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
    if (!with_tensors) return;
    heading("Tensors (the first dimension is a row)", colour);
    print_tensors(g);
}
