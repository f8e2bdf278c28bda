/* tool_grammar.c - the grammar of tool calls in the form of the model's family, and of answers of gpt-oss.
 *
 *     root  ::= %text "<tool_call>" (calls %text "<tool_call>")*        "auto": text with calls in it
 *     root  ::= calls (space calls)*                                    "required": only calls
 *     root  ::= %json {schema of response_format} | calls (space calls)*    "auto" with a schema for the answer
 *     calls ::= %mark "<tool_call>" space call space %mark "</tool_call>"
 *     call  ::= "{" space "\"name\":" space "\"weather\"" ... %json {the tool's own schema} space "}" | ...
 *
 * (docs/CONSTRAINED.md explains %text, %mark and %json.) So the model writes free text until it writes the mark of a
 * call; what follows is a call with valid arguments. Families that write calls without a mark begin their answer with
 * {"name": instead. If there is a schema for the answer, there is no free text, because such a text could end without a
 * call and would not be an answer.
 *
 * Answers of gpt-oss are messages, one of which may be a call, which ends the answer (harmony.c):
 *
 *     root  ::= (say next)* (say | call)                                "auto"
 *     root  ::= call                                                    "required"
 *     root  ::= final answer                                            a schema for the answer, and no tools
 *     say   ::= channel %text "<|end|>"
 *     next  ::= %mark "<|end|>" %mark "<|start|>" "assistant"
 *
 * A tool whose schema cannot be compiled is refused if it is `strict` or if a call is forced. Otherwise its arguments
 * may be any object, and the answer has a warning. */
#include "server/api/answers.h"

#include "cli/command.h"
#include "server/api/plan.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX_BYTES = 64 << 20, MAX_TOOLS = 512 };
static const char bare_beginning[] = "{\"name\":";

typedef struct ToolGrammar {
    const ToolForm *form; /* NULL: there are no tools; an answer of gpt-oss has its schema in a message */
    const json_t *tools;
    const char *name; /* the only tool that may be called; NULL: all may be called */
    Buf answer;       /* the schema of an answer that is no call; answer.data is NULL: there is none */
    bool is_forced, is_one, has_names, has_ids;
    bool is_harmony, is_inside; /* the answer has messages, as those of gpt-oss; the prompt ends within one */
    bool is_loose[MAX_TOOLS];   /* for each tool: its arguments may be any object */
    Buf text;
} ToolGrammar;

static const json_t *function_at(const ToolGrammar *t, size_t i) {
    return json_object_get(json_array_get(t->tools, i), "function");
}

static const char *name_at(const ToolGrammar *t, size_t i) {
    return json_string_value(json_object_get(function_at(t, i), "name"));
}

static bool may_be_called(const ToolGrammar *t, size_t i) { return !t->name || strcmp(t->name, name_at(t, i)) == 0; }

/* ---- its text ---------------------------------------------------------------------------------------------- */

static void add(ToolGrammar *t, const char *text) {
    (void)buf_puts(&t->text, text); /* a text that is incomplete does not compile */
}

static void add_literal(ToolGrammar *t, const char *before, const char *text) {
    add(t, before);
    (void)constraint_write_literal(&t->text, text, strlen(text));
}

/* Adds a name in JSON, as a literal. */
static void add_json_name(ToolGrammar *t, const char *name) {
    Buf quoted = {.max_bytes = TEXT_MAX_BYTES};
    JsonOut out = json_out_begin(&quoted);
    json_out_bytes(&out, name, strlen(name));
    if (!out.failed && quoted.data) (void)constraint_write_literal(&t->text, quoted.data, quoted.n);
    buf_free(&quoted);
}

static void add_arguments(ToolGrammar *t, size_t i) {
    const json_t *parameters = json_object_get(function_at(t, i), "parameters");
    add(t, "%json ");
    if (t->is_loose[i] || json_object_size(parameters) == 0) add(t, "{\"type\":\"object\"}");
    else constraint_write_value(&t->text, parameters);
}

/* Adds a call: NAME[ARGS]{...}, or {"name": "NAME", "arguments": {...}}. */
static void add_call(ToolGrammar *t, size_t i) {
    if (t->has_names) {
        add_literal(t, "", name_at(t, i));
        if (t->has_ids) add(t, " (%mark \"[CALL_ID]\" [a-zA-Z0-9]{9})?");
        add(t, " %mark \"[ARGS]\" space ");
        add_arguments(t, i);
        return;
    }
    add(t, "\"{\" space \"\\\"name\\\":\" space ");
    add_json_name(t, name_at(t, i));
    add(t, " \",\" space \"\\\"");
    add(t, t->form->arguments);
    add(t, "\\\":\" space ");
    add_arguments(t, i);
    add(t, " space \"}\"");
}

/* Returns what follows the mark of a call, or is a call by itself if the family needs no mark. */
static const char *body_of(const ToolGrammar *t) {
    bool is_list = t->form->is_list && !t->has_names;
    if (is_list) return t->is_one ? "\"[\" space call space \"]\"" : "\"[\" space call (\",\" space call)* space \"]\"";
    return t->form->is_bare && !t->is_one ? "call (space \";\" space call)*" : "call";
}

static void add_calls(ToolGrammar *t) {
    add_literal(t, "calls ::= %mark ", t->form->begin);
    add(t, " space body");
    if (t->form->end) add_literal(t, " space %mark ", t->form->end);
    add(t, "\nbody ::= ");
    add(t, body_of(t));
    add(t, "\nspace ::= (\" \" | \"\\n\" [ \\t]{0,32})?\ncall ::= ");
    for (size_t i = 0, n = 0; i < json_array_size(t->tools); i++) {
        if (!may_be_called(t, i)) continue;
        if (n++ > 0) add(t, " | ");
        add_call(t, i);
    }
    add(t, "\n");
}

/* Adds the schema of an answer. %json takes objects only; the other schemas that are left allow any JSON. */
static void add_answer(ToolGrammar *t) {
    size_t n = t->answer.n, at = 0;
    const char *schema = t->answer.data;
    while (at < n && strchr(" \t\r\n", schema[at])) at++;
    bool is_object = at < n && schema[at] == '{';
    add(t, is_object ? "answer ::= %json " : "answer ::= %json {\"anyOf\":[");
    (void)buf_append(&t->text, schema + at, n - at);
    add(t, is_object ? "\n" : "]}\n");
}

/* Adds a root that allows only calls, or an answer that matches its schema. */
static void add_root_without_text(ToolGrammar *t) {
    bool is_list = t->form->is_list && !t->has_names; /* several calls are one list */
    bool is_either = t->answer.data && !t->is_forced;
    if (is_either) add_answer(t);
    add(t, is_either ? "root ::= answer | " : "root ::= ");
    if (t->form->is_bare) add(t, is_either ? "body | calls\n" : "body\n");
    else add(t, t->is_one || is_list ? "calls\n" : "calls (space calls)*\n");
}

static void add_root(ToolGrammar *t) {
    if (t->is_forced || t->answer.data) {
        add_root_without_text(t);
        return;
    }
    add_literal(t, "text ::= %text ", t->form->begin);
    if (t->form->is_bare) {
        add_literal(t, "\nbegin ::= %text ", t->form->begin);
        add_literal(t, " ", bare_beginning);
        add(t, t->is_one ? " calls? | body\nroot ::= begin\n" : " | body text\nroot ::= begin (calls text)*\n");
    } else add(t, t->is_one ? "\nroot ::= text calls?\n" : "\nroot ::= text (calls text)*\n");
}

/* ---- messages of gpt-oss ------------------------------------------------------------------------------------ */

/* Returns the root of the grammar. The prompt ends before a header or, if is_inside, within a message. */
static const char *harmony_root(const ToolGrammar *t) {
    if (!t->form) return t->is_inside ? "root ::= answer\n" : "root ::= final answer\n";
    if (t->is_forced) return t->is_inside ? "root ::= next call\n" : "root ::= call\n";
    if (t->answer.data) return t->is_inside ? "root ::= answer | next call\n" : "root ::= final answer | call\n";
    return t->is_inside ? "root ::= body | body next (say next)* (say | call)\n"
                        : "root ::= (say next)* (say | call)\n";
}

/* Adds the messages of the answer. The receiver of a call is in the header's role or in its channel. */
static void add_harmony(ToolGrammar *t) {
    const char *separator = "";
    if (t->answer.data && !t->is_forced) add_answer(t);
    add(t, harmony_root(t));
    add(t, "say ::= %mark \"<|channel|>\" (\"analysis\" | \"commentary\" | \"final\") message body\n"
           "final ::= %mark \"<|channel|>\" \"final\" message\n"
           "message ::= (\" \" (%mark \"<|constrain|>\")? \"json\")? %mark \"<|message|>\"\n"
           "body ::= %text \"<|end|>\"\n"
           "next ::= %mark \"<|end|>\" %mark \"<|start|>\" \"assistant\"\n"
           "commentary ::= %mark \"<|channel|>\" \"commentary\"\n");
    if (t->form) add(t, "call ::= ");
    for (size_t i = 0; i < json_array_size(t->tools); i++) {
        if (!may_be_called(t, i)) continue;
        add(t, separator);
        add_literal(t, "(\" to=functions.\" ", name_at(t, i));
        add_literal(t, " commentary | commentary \" to=functions.\" ", name_at(t, i));
        add(t, ") message ");
        add_arguments(t, i);
        separator = " | ";
    }
    add(t, "\n");
}

static int compile(ToolGrammar *t, ApiCall *call) {
    buf_free(&t->text);
    t->text = (Buf){.max_bytes = TEXT_MAX_BYTES};
    if (t->is_harmony) add_harmony(t);
    else {
        add_root(t);
        add_calls(t);
    }
    return constraint_set_grammar(&call->plan, &call->service->grammars, &t->text,
                                  t->form ? "tools" : "response_format", &call->error);
}

/* ---- what a schema asks for and cannot get ----------------------------------------------------------------- */

static bool is_strict(const ToolGrammar *t, const ChatMessages *f, size_t i) {
    return json_is_true(f->strict_tools ? json_array_get(f->strict_tools, i)
                                        : json_object_get(function_at(t, i), "strict"));
}

/* Sets *why to what is wrong with the schema of a tool; its message is "" if nothing is. */
static int judge_schema(const ToolGrammar *t, ApiCall *call, size_t i, fr_error *why) {
    Buf text = {.max_bytes = TEXT_MAX_BYTES};
    fr_grammar *g = NULL;
    const json_t *parameters = json_object_get(function_at(t, i), "parameters");
    *why = (fr_error){0};
    if (json_object_size(parameters) == 0) return FR_OK;
    constraint_write_value(&text, parameters);
    int status = fr_grammar_open_stoppable(&g, call->plan.model->model, FR_GRAMMAR_JSON_SCHEMA,
                                           text.data ? text.data : "", text.n, compile_watch_should_stop,
                                           &call->plan.watch, why);
    if (!status && *fr_grammar_notice(g)) error_set(why, FR_OK, "%s", fr_grammar_notice(g));
    fr_grammar_close(g);
    buf_free(&text);
    return status;
}

/* Finds the schemas that cannot be compiled, whose tools then take any object. *n_loose is their number. */
static int judge_schemas(ToolGrammar *t, ApiCall *call, const ChatMessages *f, int *n_loose) {
    *n_loose = 0;
    for (size_t i = 0; i < json_array_size(t->tools); i++) {
        fr_error why;
        if (!may_be_called(t, i)) continue;
        int status = judge_schema(t, call, i, &why);
        if (why.message[0] && (is_strict(t, f, i) || (status && t->is_forced)))
            return api_refuse(&call->error, 400, "invalid_json_schema", "tools", "tools[%zu] ('%.60s'): %s", i,
                              name_at(t, i), why.message);
        if (!status) continue;
        t->is_loose[i] = true;
        ++*n_loose;
        if (!plan_warn(&call->plan, "the arguments of the tool '%.60s' are not constrained by its schema: %s",
                       name_at(t, i), why.message))
            return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    }
    return 0;
}

static bool has_strict(const ToolGrammar *t, const ChatMessages *f) {
    for (size_t i = 0; i < json_array_size(t->tools); i++)
        if (may_be_called(t, i) && is_strict(t, f, i)) return true;
    return false;
}

static int compile_what_can_be(ToolGrammar *t, ApiCall *call, const ChatMessages *f) {
    int n_loose;
    int status = compile(t, call);
    if (!status && (!*fr_grammar_notice(cached_grammar(call->plan.grammar)) || !has_strict(t, f))) return 0;
    if (status && call->error.status != 400) return status;
    ApiError first = call->error;
    call->error = (ApiError){0};
    if (judge_schemas(t, call, f, &n_loose)) return -1;
    if (!status) return 0;
    if (n_loose > 0) return compile(t, call);
    call->error = first; /* each of them compiles, but all together do not */
    return -1;
}

/* Takes the schema of the answer out of the plan: it becomes a part of another grammar, or is ignored if a call is
 * forced. */
static int take_answer(ToolGrammar *t, ApiCall *call) {
    size_t n;
    const char *text = cached_grammar_text(call->plan.grammar, &n);
    t->answer.max_bytes = TEXT_MAX_BYTES;
    bool fits = buf_append(&t->answer, text, n);
    grammar_cache_give_back(&call->service->grammars, call->plan.grammar);
    call->plan.grammar = NULL;
    return fits ? 0 : -1;
}

int tool_grammar_prepare(ApiCall *call, Answers *a, const ChatMessages *f) {
    const char *name;
    bool is_harmony = a->form.marks && a->form.marks->next_message, is_forced = chat_messages_forces_call(f, &name);
    if (!a->form.tools && !(is_harmony && call->plan.is_format)) return 0;
    ToolGrammar *t = calloc(1, sizeof *t);
    if (!t) return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    *t = (ToolGrammar){.form = a->form.tools,
                       .tools = a->form.tools ? f->tools : NULL,
                       .name = name,
                       .is_forced = is_forced,
                       .is_one = f->has_one_call || name,
                       .has_names = a->form.tools && a->form.tools->has_names && a->has_args_mark,
                       .has_ids = a->has_id_mark,
                       .is_harmony = is_harmony,
                       .is_inside = a->form.has_reasoned};
    bool is_own = !call->plan.grammar || call->plan.is_format; /* no other field has a grammar */
    int status = 0;
    if (call->plan.is_format && take_answer(t, call))
        status = api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    else if (is_forced && call->plan.grammar)
        status = api_refuse(&call->error, 400, "invalid_value", "tool_choice",
                            "a 'tool_choice' that forces a call excludes a schema or grammar for the answer");
    else if (json_array_size(f->tools) > MAX_TOOLS)
        status = api_refuse(&call->error, 400, "invalid_value", "tools", "'tools' has more than %d tools", MAX_TOOLS);
    else if (!call->plan.grammar && !(call->plan.ignore_eos && !is_forced)) status = compile_what_can_be(t, call, f);
    if (is_own && call->plan.grammar && is_harmony) a->reasoning_end = a->form.marks->next_message;
    buf_free(&t->answer);
    buf_free(&t->text);
    free(t);
    return status;
}
