/* cmd_distill.c - `forerun distill-data`: lets a target answer the questions of a file, many at a time, as training
 * data.
 *
 * A drafter has to predict its target, not the author of a data set, so it is trained on the target's own answers.
 * Answers are written in the order of the input, each as soon as all earlier ones are done, so that an interrupted run
 * can continue after its last line. Every answer is the one that `forerun run` gives to the prompt, whatever other
 * requests are in the batch. With a temperature, record i (from 0) is sampled with the seed --seed + i, so that even
 * answers to equal questions are independent. The turns of one record are independent, too, because the random numbers
 * also depend on the prompt. */
#include "base/progress.h"
#include "cli/run/generate.h"
#include "cli/train/training.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PARALLEL = 256, AHEAD = 4 };

typedef struct DistillArgs {
    GenerateArgs generate;
    const char *input, *output;
    bool chat;
    int begin_words; /* 0: texts are refused */
} DistillArgs;

static DistillArgs distill_args;

/* A record on its way from input to output. */
typedef struct Slot {
    Record record;
    int64_t i;           /* index in the input, from 0 */
    int i_answer;        /* index of the message being generated */
    fr_request *request; /* NULL: done */
    bool left_out;
} Slot;

typedef struct Distill {
    const DistillArgs *args;
    fr_model *model;
    fr_engine *engine;
    LineReader *in;
    AnswerFile out;
    int64_t n_records, n_passed, n_answered, n_left_out;
    bool at_end;
    Slot *slots; /* [n_slots] ring buffer in the order of the input */
    int n_slots, first, n_queued, n_running;
    Progress bar;
} Distill;

/* ---- command line ------------------------------------------------------------------------------- */

static const Option option_table[] = {
    {.key = "IN.jsonl",
     OPT_FILE(DistillArgs, input),
     .is_argument = true,
     .required = "file of questions",
     .section = "Data",
     .help = "questions; their form is described below"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(DistillArgs, output),
     .required = "output file",
     .help = "file for the answered records; records that it already contains are not answered again"},
    {.key = "chat",
     OPT_FLAG(DistillArgs, chat),
     .help = "treat a \"prompt\" as a user's message, in the model's chat format"},
    {.key = "begin-texts",
     OPT_INT(DistillArgs, begin_words, 1, 1 << 20),
     .help =
         "let the model continue the first N words of a \"text\", or everything before the first answer if the text "
         "is written as USER: ... ASSISTANT: ..."},
    {.key = "parallel",
     OPT_INT(DistillArgs, generate.engine.max_requests, 1, MAX_PARALLEL),
     .default_value = "8",
     .section = "Machine",
     .help = "number of answers generated at once"},
    {.key = NULL},
};

static void set_defaults(void) { generate_defaults(&distill_args.generate); }

static int check(fr_error *err) {
    if (distill_args.generate.system && !distill_args.chat)
        return error_set(err, FR_ERR_ARGUMENT, "--system is a message of a chat: pass --chat, too");
    int status = generate_check(&distill_args.generate, err);
    if (!status) status = generate_check_union(distill_args.generate.drafts, distill_args.generate.n_drafts, err);
    return status ? status : generate_check_drafts(distill_args.generate.drafts, distill_args.generate.n_drafts, err);
}

static bool files(CommandFiles *out) {
    return generate_add_files(out, distill_args.generate.drafts, distill_args.generate.n_drafts);
}

/* ---- one answer --------------------------------------------------------------------------------- */

static int chat_prompt(const Distill *d, const Slot *s, int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    const GenerateArgs *g = &d->args->generate;
    const Record *r = &s->record;
    if (r->kind == RECORD_PAIR) {
        const fr_chat_message messages[] = {{"system", g->system}, {"user", r->prompt}};
        return generate_chat(g, d->model, messages + !g->system, 1 + !!g->system, tokens, n_tokens, err);
    }
    fr_chat_message *messages = calloc((size_t)s->i_answer, sizeof *messages);
    if (!messages) return error_memory(err, "a conversation", (size_t)s->i_answer);
    for (int i = 0; i < s->i_answer; i++) messages[i] = (fr_chat_message){r->messages[i].role, r->messages[i].content};
    int status = generate_chat(g, d->model, messages, s->i_answer, tokens, n_tokens, err);
    free(messages);
    return status;
}

static bool is_chat(const Distill *d, const Slot *s) { return s->record.kind == RECORD_CHAT || d->args->chat; }

static int open_request(Distill *d, Slot *s, fr_error *err) {
    const GenerateArgs *g = &d->args->generate;
    fr_request_options o = generate_request_options(g, g->drafts, g->n_drafts);
    int32_t *prompt = NULL;
    const char *raw = s->record.prompt;
    int status = is_chat(d, s) ? chat_prompt(d, s, &prompt, &o.n_prompt, err)
                               : fr_tokenize(d->model, raw, strlen(raw), FR_TOKENIZE_PROMPT, &prompt, &o.n_prompt, err);
    o.prompt = prompt;
    o.sampling.seed += (uint64_t)s->i;
    const char *stops[GENERATE_MAX_CHAT_STOPS];
    if (is_chat(d, s) && generate_is_plain(g, d->model)) generate_stop_at_turns(&o, stops);
    if (!status) status = fr_request_open(&s->request, d->engine, &o, err);
    fr_free(prompt);
    return status;
}

/* Begins the next answer. A record whose prompt does not fit the context is left out, with a message. */
static int begin_answer(Distill *d, Slot *s, fr_error *err) {
    fr_error why;
    int status = open_request(d, s, &why);
    d->n_running += status == FR_OK;
    if (status == FR_ERR_CONTEXT) {
        fprintf(stderr, "forerun: %s: record %lld is left out: %s\n", d->args->input, (long long)s->i + 1, why.message);
        s->left_out = true;
        return FR_OK;
    }
    if (!status) return FR_OK;
    return error_set(err, (fr_code)status, "%.120s: record %lld: %.360s", d->args->input, (long long)s->i + 1,
                     why.message);
}

/* Stores the answer of a finished request in its record, and begins the next answer of a conversation. */
static int end_answer(Distill *d, Slot *s, fr_error *err) {
    size_t n;
    fr_finish finish = fr_request_finish_reason(s->request);
    const char *text = fr_request_text(s->request, &n);
    int status = FR_OK;
    fr_stats stats = {.struct_size = sizeof stats};
    fr_request_get_stats(s->request, &stats);
    if (finish == FR_FINISH_ERROR) {
        *err = *fr_request_error(s->request);
        status = err->code;
    } else {
        bool blank = is_chat(d, s) && n > 0 && *text == ' '; /* the format's space after "ASSISTANT:" */
        status = distill_set_answer(&s->record, s->i_answer, text + blank, n - blank, fr_finish_name(finish),
                                    stats.is_lossy, err);
    }
    fr_request_close(s->request);
    s->request = NULL;
    d->n_running--;
    if (status || s->record.kind == RECORD_PAIR) return status;
    s->i_answer = distill_next_answer(&s->record, s->i_answer + 1);
    return s->i_answer < 0 ? FR_OK : begin_answer(d, s, err);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static Slot *slot_at(Distill *d, int i) { return &d->slots[(d->first + i) % d->n_slots]; }

static int admit(Distill *d, fr_error *err) {
    while (!d->at_end && d->n_queued < d->n_slots && d->n_running < d->args->generate.engine.max_requests) {
        Slot *s = slot_at(d, d->n_queued);
        *s = (Slot){.i = d->n_passed};
        int got = distill_next(d->in, d->args->begin_words, &s->record, err);
        d->at_end = got != 1;
        if (got != 1) return got;
        d->n_passed++;
        d->n_queued++;
        s->i_answer = s->record.kind == RECORD_CHAT ? distill_next_answer(&s->record, 0) : 0;
        int status = begin_answer(d, s, err);
        if (status) return status;
    }
    return FR_OK;
}

/* Writes the oldest records, up to the first one that is not done. */
static int write_done(Distill *d, fr_error *err) {
    while (d->n_queued > 0 && !slot_at(d, 0)->request) {
        Slot *s = slot_at(d, 0);
        int status = s->left_out ? FR_OK : distill_append(&d->out, &s->record, err);
        if (status) return status;
        d->n_left_out += s->left_out;
        d->n_answered += !s->left_out;
        progress_update(&d->bar, s->i + 1);
        record_free(&s->record);
        d->first = (d->first + 1) % d->n_slots;
        d->n_queued--;
    }
    return FR_OK;
}

static int answer_all(Distill *d, fr_error *err) {
    for (;;) {
        int status = admit(d, err);
        if (!status) status = write_done(d, err);
        if (status || (d->at_end && d->n_queued == 0)) return status;
        status = fr_engine_step(d->engine, err);
        for (int i = 0; i < d->n_queued && status >= 0; i++) {
            Slot *s = slot_at(d, i);
            if (s->request && fr_request_finish_reason(s->request) != FR_FINISH_NONE) status = end_answer(d, s, err);
        }
        if (status < 0) return status;
    }
}

static int open_all(Distill *d, DistillArgs *a, fr_error *err) {
    size_t n = strlen(a->output);
    if (n > 4 && strcmp(a->output + n - 4, ".zst") == 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s: answers are written uncompressed: remove .zst from the name",
                         a->output);
    int status = distill_count(a->input, a->begin_words, &d->n_records, err);
    if (!status) status = line_reader_open(&d->in, a->input, false, LINE_MAX_BYTES, err);
    if (!status)
        status = distill_continue(a->output, d->in, a->begin_words, &d->n_passed, &d->n_answered, &d->out, err);
    if (!status) status = generate_open_model(&d->model, &a->generate, err);
    if (!status)
        status = generate_open_engine(&d->engine, d->model, &a->generate.engine, a->generate.drafts,
                                      a->generate.n_drafts, a->generate.tree_budget, err);
    if (!status) generate_note_drafts(d->engine, a->generate.drafts, a->generate.n_drafts);
    /* Known costs make the default budget automatic, because a fixed one slows down several simultaneous requests. */
    if (!status && a->generate.n_drafts > 0 && a->generate.tree_budget == 0 && a->generate.engine.max_requests > 1)
        status = fr_engine_measure_costs(d->engine, err);
    d->n_slots = AHEAD * a->generate.engine.max_requests;
    d->slots = calloc((size_t)d->n_slots, sizeof *d->slots);
    return status || d->slots ? status : (int)error_memory(err, "records", (size_t)d->n_slots);
}

static void close_all(Distill *d) {
    for (int i = 0; i < d->n_queued && d->slots; i++) {
        fr_request_close(slot_at(d, i)->request);
        record_free(&slot_at(d, i)->record);
    }
    free(d->slots);
    fr_engine_close(d->engine);
    fr_model_close(d->model);
    line_reader_close(d->in);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    DistillArgs *a = &distill_args;
    fr_error err;
    Distill d = {.args = a, .out.fd = -1};
    int status = open_all(&d, a, &err);
    if (!status) {
        progress_begin(&d.bar, stderr, "answering", d.n_records);
        progress_resume(&d.bar, d.n_passed);
        status = answer_all(&d, &err);
        progress_end(&d.bar);
    }
    status = distill_close(&d.out, status, &err);
    if (!status)
        printf("%s: %lld of %lld records are answered%s\n", a->output, (long long)d.n_answered, (long long)d.n_records,
               d.n_left_out ? "; the others do not fit the context, see --ctx" : "");
    close_all(&d);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_distill = {
    .name = "distill-data",
    .summary = "let a model answer the questions of a file, as training data",
    .about = "Let a model answer the questions of a file, as training data for a drafter.",
    .sets = (const OptionSet[]){{option_table, &distill_args},
                                {generate_options, &distill_args.generate},
                                {NULL, NULL}},
    .list = generate_list_methods,
    .notes = "IN.jsonl holds one JSON object per line, with one of these keys: \"prompt\" (raw text, or with --chat a "
             "user's message); \"messages\", each with a \"role\" and a \"content\", of which the assistant's are "
             "generated anew, one after the other; \"turns\", the user's messages of a conversation, as in Spec-Bench; "
             "with --begin-texts also \"text\". The output has the same objects in the same order, with the model's "
             "answers, and with \"finish\", the reason why each answer ended. Answers under a rule that needs --lossy "
             "are marked \"lossy\", and train warns about them. If the command was interrupted, run it again: it "
             "continues where it stopped. Answers are the same as those of 'forerun run', where record i, counted from "
             "0, is sampled with the seed S + i.",
    .examples =
        "  forerun distill-data -m target.gguf questions.jsonl -o answers.jsonl --chat -n 400 --draft ngram-trie\n"
        "  forerun train target --vocab target.gguf --data answers.jsonl --chat -o small.gguf\n",
    .defaults = set_defaults,
    .check = check,
    .files = files,
    .run = run,
};
