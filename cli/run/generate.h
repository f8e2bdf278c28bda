/* generate.h - the options of a generation, running one, and writing its text; `run`, `chat`, `compare`, `bench` and
 * `distill-data` share them. */
#ifndef RUN_GENERATE_H
#define RUN_GENERATE_H

#include "cli/answer_reader.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/stats_json.h"
#include "verify/verifier.h"

enum { GENERATE_MAX_DRAFTS = 8, GENERATE_MAX_STOPS = 16, GENERATE_MAX_BIASES = 300 };
enum { GENERATE_MAX_CHAT_STOPS = GENERATE_MAX_STOPS + 2 };
enum { GENERATE_TRIAL_TOKENS = 32 }; /* enough to see what trees a drafter makes */

typedef enum ColorWhen { COLOR_NEVER, COLOR_AUTO, COLOR_ALWAYS } ColorWhen;

/* The row of --color, in commands with different defaults. */
#define GENERATE_ROW_COLOR(when) \
    { \
        .key = "color", OPT_CHOICE(GenerateArgs, color, "never", "auto", "always"), .metavar = "WHEN", \
        .section = "Output", .implied = "always", .values = (const int32_t[]){COLOR_NEVER, COLOR_AUTO, COLOR_ALWAYS}, \
        .default_value = when, \
        .help = "colour drafted tokens by drafter: always, auto (on a terminal) or never; --color without a value: " \
                "always" \
    }

typedef struct GenerateArgs {
    const char *model, *prompt, *prompt_file, *system, *chat_template, *backend, *kernels, *activations;
    int chat, special;
    const char *json_schema, *grammar, *regex; /* at most one */
    const char *grammar_after;
    const char *chat_variables; /* JSON: further variables for the template; NULL: none */
    char *chat_template_text;   /* contents of the file that chat_template names; malloc'ed, never freed */
    int64_t n_tokens;
    const char *drafts[GENERATE_MAX_DRAFTS];
    int n_drafts;
    const char *verify;
    int lossy; /* whether rules may change the output distribution */
    const char *stops[GENERATE_MAX_STOPS];
    int n_stops;
    fr_sampling sampling;
    const char *bias_texts[GENERATE_MAX_BIASES];
    int n_bias;
    fr_logit_bias bias[GENERATE_MAX_BIASES]; /* [n_bias] bias_texts as generate_check has read them */
    fr_engine_options engine;
    int tree_budget, ignore_eos, want_logprobs, n_top_logprobs, n_ranks;
    ColorWhen color;
} GenerateArgs;

/* The shared options, and those of commands that continue one prompt. Call generate_defaults before they are parsed. */
extern const Option generate_options[], generate_prompt_options[];
void generate_defaults(GenerateArgs *a);
/* The defaults of `run` and `chat`, which draft with auto and sample with a random seed. Call
 * generate_defaults_interactive before parsing, instead of generate_defaults, and generate_complete_interactive after
 * it. */
void generate_defaults_interactive(GenerateArgs *a);
void generate_complete_interactive(GenerateArgs *a);
/* Checks combinations of options after parsing. generate_check_prompt also checks the prompt. */
int generate_check(const GenerateArgs *a, fr_error *err);
int generate_check_prompt(GenerateArgs *a, fr_error *err);
/* Refuses a wrong --draft before the model is loaded, as far as that is possible. */
int generate_check_drafts(const char *const *drafts, int n_drafts, fr_error *err);
/* Refuses a union of drafts that contains "none". */
int generate_check_union(const char *const *drafts, int n_drafts, fr_error *err);
/* Refuses a text that cannot be a message of a chat; `owner` is the option or file that the error names. */
int generate_check_message(const char *owner, const char *text, size_t n, fr_error *err);
/* Adds the files that the drafts read. False: memory ran out. */
bool generate_add_files(CommandFiles *out, const char *const *drafts, int n_drafts);
/* Appends the lists of drafters and verification rules for --help. False: memory ran out. */
bool generate_list_methods(Buf *out);

/* Returns the verification rule of --verify. */
const VerifyRule *generate_rule(const GenerateArgs *a);

/* Opens the model, with a progress bar. */
int generate_open_model(fr_model **out, const GenerateArgs *a, fr_error *err);
/* Opens an engine with these drafts, and measures what forwards cost if the tree budget is automatic. */
int generate_open_engine(fr_engine **out, const fr_model *model, const fr_engine_options *options,
                         const char *const *drafts, int n_drafts, int tree_budget, fr_error *err);
/* Prints what the engine has to note about these drafts (fr_engine_draft_notice) on standard error. */
void generate_note_drafts(const fr_engine *engine, const char *const *drafts, int n_drafts);
/* Returns whether the conversation is written in the plain format. This format has no token that ends a turn, so a
 * model may go on with a question of its own; generate_stop_at_turns makes a request stop there. `stops` has room for
 * the stop strings of `o` and two more, and must live as long as `o`. */
bool generate_is_plain(const GenerateArgs *a, const fr_model *model);
void generate_stop_at_turns(fr_request_options *o, const char *stops[GENERATE_MAX_CHAT_STOPS]);
/* Returns the options of a request as the command line gives them; they point into `a` and the caller's drafts. */
fr_request_options generate_request_options(const GenerateArgs *a, const char *const *drafts, int n_drafts);

/* Makes the tokens of a conversation, by --chat-template or the model's own template. A warning is printed only
 * once. */
int generate_chat(const GenerateArgs *a, const fr_model *model, const fr_chat_message *messages, int n_messages,
                  int32_t **tokens, int64_t *n_tokens, fr_error *err);

/* A model, an engine for one request and the tokens of the prompt. */
typedef struct Generator {
    fr_model *model;
    fr_grammar *grammar; /* NULL: none */
    fr_engine *engine;
    int32_t *prompt;
    int64_t n_prompt;
} Generator;

int generator_open(Generator *g, const GenerateArgs *a, fr_error *err);
void generator_close(Generator *g);

/* Runs one generation to its end. on_token may be NULL. The caller closes *out. */
int generator_run(Generator *g, const GenerateArgs *a, const char *const *drafts, int n_drafts,
                  int (*on_token)(void *, const fr_token_event *), void *user, fr_request **out, fr_error *err);

/* Returns whether output to `fd` is coloured, and the escape sequence before a token of that source ("" for the
 * target's own tokens). */
int generate_use_color(ColorWhen when, int fd);
const char *generate_source_color(int32_t source);
#define GENERATE_COLOR_OFF "\033[0m"

/* ---- writing an answer while it is generated ------------------------------------------------------------- */

typedef struct TextOutput {
    bool use_color;   /* drafted tokens get the colour of their drafter */
    bool is_terminal; /* the text is escaped, so that no generated text controls the terminal */
    bool trims;       /* white space at the beginning is left out, as an answer in a chat may begin with some */
    bool has_begun;   /* something has been written */
    bool has_failed;  /* memory ran out while a token was written, and the text is incomplete */
    int n_columns;    /* the width at which lines are wrapped; 0: they are not */
    int column;       /* the column of the cursor, from 0 */
    int word_columns; /* width of the word that is being written */
    Buf text;         /* the escaped text of one token */
    Buf word, shown;  /* the word with its colours; what the token adds to the terminal */
} TextOutput;

/* Opens standard output, where the cursor is at the beginning of a line. Call text_output_close when the text is
 * complete. */
TextOutput text_output_open(bool use_color, bool trims);
void text_output_close(TextOutput *o);

/* Writes the text of a token and flushes it. Not 0: standard output is closed, or there is no memory. */
int text_output_write(TextOutput *o, const fr_token_event *event);

/* Returns the text without the white space before it; *n becomes its length. */
const char *text_output_trimmed(const char *text, size_t *n);

/* ---- the answer of a conversation, with its reasoning ------------------------------------------------------ */

typedef struct AnswerOutput {
    TextOutput text;
    const fr_model *model;
    const ReasoningMarks *marks; /* special tokens that are read as marks; NULL: the answer is the text */
    AnswerReader reader;
    Buf answer;     /* without the reasoning */
    int32_t source; /* of the last token */
    bool is_ending; /* there are no more tokens */
    int stops;      /* not 0: the generation stops */
} AnswerOutput;

/* Opens standard output for the answer to a prompt, as text_output_open does. */
AnswerOutput answer_output_open(const fr_model *model, const int32_t *prompt, int64_t n_prompt, bool use_color);
void answer_output_close(AnswerOutput *o);
/* Writes what a token adds. Not 0: standard output is closed, or there is no memory (text.has_failed). */
int answer_output_write(AnswerOutput *o, const fr_token_event *event);
/* Writes what was held back, because it might have become a mark. Call it after the last token. */
int answer_output_end(AnswerOutput *o);
/* Returns the answer to a request, without reasoning that special tokens mark and the white space before it; *n becomes
 * its length. */
const char *answer_output_text(const AnswerOutput *o, const fr_request *request, size_t *n);

/* Prints "[53 tokens/s, 2.41 tokens per step; plain decoding: about 24 tokens/s]" on standard error: without plain
 * decoding if the costs of forwards are not known, only the speed if nothing was drafted, and nothing if no token was
 * generated. */
void closing_line_print(const fr_stats *s);

#endif
