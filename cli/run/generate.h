/* generate.h - what `run`, `compare`, `bench` and `distill-data` share: the options of a generation, and running one.
 * */
#ifndef RUN_GENERATE_H
#define RUN_GENERATE_H

#include "cli/cli.h"
#include "cli/command.h"
#include "verify/verifier.h"

enum { GENERATE_MAX_DRAFTS = 8, GENERATE_MAX_STOPS = 16, GENERATE_MAX_BIASES = 300 };
enum { GENERATE_MAX_CHAT_STOPS = GENERATE_MAX_STOPS + 2 };
enum { GENERATE_TRIAL_TOKENS = 32 }; /* in which a drafter shows what trees it makes */

typedef enum ColorWhen { COLOR_NEVER, COLOR_AUTO, COLOR_ALWAYS } ColorWhen;

typedef struct GenerateArgs {
    const char *model, *prompt, *prompt_file, *system, *chat_template, *backend, *kernels, *activations;
    int chat, special;
    const char *json_schema, *grammar, *regex; /* at most one */
    const char *grammar_after;
    char *chat_template_text; /* of the file that chat_template names; malloc'ed, as long as the program */
    int64_t n_tokens;
    const char *drafts[GENERATE_MAX_DRAFTS];
    int n_drafts;
    const char *verify;
    int lossy; /* rules that change the output distribution are allowed */
    const char *stops[GENERATE_MAX_STOPS];
    int n_stops;
    fr_sampling sampling;
    const char *bias_texts[GENERATE_MAX_BIASES];
    int n_bias;
    fr_logit_bias bias[GENERATE_MAX_BIASES]; /* [n_bias] what they say, once generate_check has read them */
    fr_engine_options engine;
    int tree_budget, ignore_eos, want_logprobs, n_top_logprobs;
    ColorWhen color;
} GenerateArgs;

/* The shared options and those of commands that continue one prompt; both fill a GenerateArgs that generate_defaults
 * filled first. */
extern const Option generate_options[], generate_prompt_options[];
void generate_defaults(GenerateArgs *a);
/* Instead of generate_defaults, and after parsing: the defaults of `run` and `chat`, which measure nothing. They draft
 * with auto, and sample with a random seed. */
void generate_defaults_interactive(GenerateArgs *a);
void generate_complete_interactive(GenerateArgs *a);
/* What no row can check; the second also checks the prompt. */
int generate_check(const GenerateArgs *a, fr_error *err);
int generate_check_prompt(GenerateArgs *a, fr_error *err);
/* Refuses a wrong --draft before the model is loaded, as far as that is possible; and adds the files of the drafts. */
int generate_check_drafts(const char *const *drafts, int n_drafts, fr_error *err);
/* Refuses drafts that are to be united and among which is "none". */
int generate_check_union(const char *const *drafts, int n_drafts, fr_error *err);
/* Refuses what cannot be a message of a chat; `owner` names it: an option, or a file. */
int generate_check_message(const char *owner, const char *text, size_t n, fr_error *err);
bool generate_add_files(CommandFiles *out, const char *const *drafts, int n_drafts);
/* The drafters and the verification rules, for --help. */
bool generate_list_methods(Buf *out);

/* The verification rule of --verify. */
const VerifyRule *generate_rule(const GenerateArgs *a);

/* Opens the model, with a progress bar. */
int generate_open_model(fr_model **out, const GenerateArgs *a, fr_error *err);
/* An engine in which these drafts are open, and which knows what forwards cost where the tree budget is automatic. */
int generate_open_engine(fr_engine **out, const fr_model *model, const fr_engine_options *options,
                         const char *const *drafts, int n_drafts, int tree_budget, fr_error *err);
/* Whether the conversation is written in the plain format. It has no token that ends a turn, and a model without a template
 * does not know it at all, so a model may go on with a question of its own: generate_stop_at_turns makes a request end
 * there. `stops` is room for the strings of `o` and two more, in use as long as `o` is. */
bool generate_is_plain(const GenerateArgs *a, const fr_model *model);
void generate_stop_at_turns(fr_request_options *o, const char *stops[GENERATE_MAX_CHAT_STOPS]);
/* The options of a request as the command line gives them; they point into `a` and the caller's drafts. */
fr_request_options generate_request_options(const GenerateArgs *a, const char *const *drafts, int n_drafts);

/* The tokens of a conversation by --chat-template or the model's own template. A warning goes to standard error, once. */
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

/* Whether output to `fd` is coloured, and the escape sequence before a token of that source ("" for the target's
 * own). */
int generate_use_color(ColorWhen when, int fd);
const char *generate_source_color(int32_t source);
#define GENERATE_COLOR_OFF "\033[0m"

#endif
