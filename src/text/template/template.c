/* template.c - the functions of template.h. A template is compiled once and rendered any number of times. */
#include "text/template/template.h"

#include "text/template/render.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const TemplateLimits default_limits = {
    .max_source = 1 << 20, .max_memory = 256 << 20, .max_steps = 20000000, .max_depth = 200};

struct Template {
    Work work;
    TemplateLimits limits;
    const char *source; /* [n] only while it is compiled */
    size_t n;
    const Node *statements;
};

struct TemplateVariables {
    Work work;
    Dict *dict;
    bool has_time;
    int64_t time;
};

static TemplateLimits fill_limits(const TemplateLimits *given_limits) {
    TemplateLimits l = given_limits ? *given_limits : default_limits;
    if (l.max_source == 0) l.max_source = default_limits.max_source;
    if (l.max_memory == 0) l.max_memory = default_limits.max_memory;
    if (l.max_steps == 0) l.max_steps = default_limits.max_steps;
    if (l.max_depth == 0) l.max_depth = default_limits.max_depth;
    return l;
}

static void set_limits(Work *w, const TemplateLimits *l) {
    w->max_bytes = l->max_memory;
    w->max_steps = l->max_steps;
    w->max_depth = l->max_depth;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static void compile(void *subject) {
    Template *t = subject;
    t->statements = syntax_parse(&t->work, t->source, t->n);
}

int template_compile(Template **out, const char *source, size_t n, const TemplateLimits *limits, fr_error *err) {
    fr_error ignored;
    *out = NULL;
    TemplateLimits l = fill_limits(limits);
    if (n > l.max_source)
        return error_set(err, FR_ERR_MEMORY, "the chat template has %zu bytes; the limit is %zu bytes", n,
                         l.max_source);
    Template *t = calloc(1, sizeof *t);
    if (!t) return error_memory(err, "a chat template", sizeof *t);
    t->limits = l;
    t->source = source;
    t->n = n;
    set_limits(&t->work, &l);
    int status = work_run(&t->work, compile, t, err ? err : &ignored);
    t->source = NULL;
    if (status) template_close(t);
    else *out = t;
    return status;
}

void template_close(Template *t) {
    if (!t) return;
    work_free(&t->work);
    free(t);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

int template_variables_open(TemplateVariables **out, const TemplateLimits *limits, fr_error *err) {
    TemplateLimits l = fill_limits(limits);
    TemplateVariables *v = *out = calloc(1, sizeof *v);
    if (!v) return error_memory(err, "the variables of a chat template", sizeof *v);
    set_limits(&v->work, &l);
    return FR_OK;
}

void template_variables_close(TemplateVariables *v) {
    if (!v) return;
    work_free(&v->work);
    free(v);
}

typedef struct Setting {
    TemplateVariables *v;
    const char *name; /* NULL: each member of the value becomes a variable */
    const char *json; /* [n] NULL: `value` is given instead */
    size_t n;
    TemplateMark mark;
    Value value;
} Setting;

static void set_value(Work *w, Dict *d, Value name, Value v) {
    dict_set(w, d, value_text(text_copy(w, name.text->data, name.text->n, false)), v);
}

static void set_variable(void *subject) {
    Setting *s = subject;
    Work *w = &s->v->work;
    w->depth = 0;
    w->n_steps = 0;
    if (!s->v->dict) s->v->dict = dict_new(w);
    Value v = s->json ? json_read(w, s->json, s->n, (int)s->mark) : s->value;
    if (is_text(v) && !s->json) v = value_text(text_copy(w, v.text->data, v.text->n, v.text->is_data));
    if (s->name) {
        set_value(w, s->v->dict, value_literal(w, s->name), v);
        return;
    }
    if (v.kind != V_DICT) work_fail(w, FR_ERR_ARGUMENT, "the variables of a template must be a JSON object");
    for (size_t i = 0; i < v.dict->n; i++) set_value(w, s->v->dict, v.dict->entries[i].key, v.dict->entries[i].value);
}

static int run_setting(Setting s, fr_error *err) {
    fr_error why;
    int status = work_run(&s.v->work, set_variable, &s, &why);
    if (status && s.name) return error_set(err, (fr_code)status, "%s: %s", s.name, why.message);
    if (status && err) *err = why;
    return status;
}

int template_set_json(TemplateVariables *v, const char *name, const char *json, size_t n, TemplateMark mark,
                      fr_error *err) {
    return run_setting((Setting){.v = v, .name = name, .json = json, .n = n, .mark = mark}, err);
}

int template_set_members(TemplateVariables *v, const char *json, size_t n, TemplateMark mark, fr_error *err) {
    return run_setting((Setting){.v = v, .json = json, .n = n, .mark = mark}, err);
}

int template_set_text(TemplateVariables *v, const char *name, const char *text, size_t n, TemplateMark mark,
                      fr_error *err) {
    Text t = {.data = text, .n = n, .is_data = mark != TEMPLATE_OWN};
    return run_setting((Setting){.v = v, .name = name, .value = value_text(&t)}, err);
}

int template_set_bool(TemplateVariables *v, const char *name, bool value, fr_error *err) {
    return run_setting((Setting){.v = v, .name = name, .value = value_bool(value)}, err);
}

int template_set_none(TemplateVariables *v, const char *name, fr_error *err) {
    return run_setting((Setting){.v = v, .name = name, .value = value_none()}, err);
}

void template_set_time(TemplateVariables *v, int64_t seconds) {
    v->has_time = true;
    v->time = seconds;
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

typedef struct Rendering {
    Render render;
    const Node *statements;
    TextBuilder builder;
} Rendering;

static void render(void *subject) {
    Rendering *g = subject;
    g->render.scope = scope_new(&g->render, NULL);
    if (!g->render.variables) g->render.variables = dict_new(g->render.w);
    execute(&g->render, g->statements);
}

/* Writes the spans of data, as the builder has marked them, into the output. False: no memory. */
static bool add_spans(TemplateOutput *out, const TextBuilder *b) {
    size_t n = 0, k = 0;
    for (size_t i = 0; i < b->n; i++) n += b->marks[i] && (i == 0 || !b->marks[i - 1]);
    out->data = malloc((n ? n : 1) * sizeof *out->data);
    if (!out->data) return false;
    for (size_t i = 0; i < b->n; i++) {
        if (!b->marks[i]) continue;
        size_t begin = i;
        while (i < b->n && b->marks[i]) i++;
        out->data[k++] = (TemplateSpan){begin, i};
    }
    out->n_data = n;
    return true;
}

int template_render(const Template *t, const TemplateVariables *v, TemplateOutput *out, fr_error *err) {
    fr_error why;
    Work work = {0};
    set_limits(&work, &t->limits);
    Rendering g = {.statements = t->statements, .builder = builder_new(&work)};
    g.builder.max_bytes = out->text.max_bytes;
    g.render = (Render){.w = &work,
                        .variables = v->dict,
                        .out = &g.builder,
                        .time = v->has_time ? v->time : (int64_t)time(NULL)};
    int status = work_run(&work, render, &g, &why);
    if (status == FR_ERR_ARGUMENT && !g.render.was_refused) status = FR_ERR_FORMAT;
    if (status) error_set(err, (fr_code)status, "%s", why.message);
    else if (!buf_append(&out->text, g.builder.data, g.builder.n) || !add_spans(out, &g.builder))
        status = error_memory(err, "a prompt", g.builder.n);
    work_free(&work);
    if (status) template_output_free(out);
    return status;
}

void template_output_free(TemplateOutput *out) {
    buf_free(&out->text);
    free(out->data);
    out->data = NULL;
    out->n_data = 0;
}
