/* generate.h - what `run`, `compare` and `bench` share: the options of a generation, and running one. */
#ifndef RUN_GENERATE_H
#define RUN_GENERATE_H

#include "app/cli.h"
#include "spec/verify/verifier.h"

#include <argp.h>
#include <jansson.h>

enum { GENERATE_MAX_DRAFTS = 8, GENERATE_MAX_STOPS = 16 };

typedef enum ColorWhen { COLOR_NEVER, COLOR_AUTO, COLOR_ALWAYS } ColorWhen;

typedef struct GenerateArgs {
    const char *model, *prompt, *prompt_file, *system, *backend, *kernels, *activations;
    int chat;
    int64_t n_tokens;
    const char *drafts[GENERATE_MAX_DRAFTS];
    int n_drafts;
    const char *verify;
    int lossy; /* a rule that changes the output distribution may run */
    const char *stops[GENERATE_MAX_STOPS];
    int n_stops;
    fr_sampling sampling;
    fr_engine_options engine;
    int tree_budget, ignore_eos, want_logprobs;
    ColorWhen color;
} GenerateArgs;

/* Parses the shared options; a command puts it into its own argp as a child and points the child's input
 * at a GenerateArgs that generate_defaults filled. The second, with the same input, is for commands that go on
 * from one prompt. */
extern const struct argp generate_argp, generate_prompt_argp;
void generate_defaults(GenerateArgs *a);

/* The rule of acceptance that was asked for. */
const VerifyRule *generate_rule(const GenerateArgs *a);

/* The model by itself, with a progress bar; and all of a request's options that the command line tells. What they
 * point at belongs to `a` and to the caller's drafts. */
int generate_open_model(fr_model **out, const GenerateArgs *a, fr_error *err);
/* An engine in which these drafts are open, and which knows what forwards cost where the tree budget is automatic. */
int generate_open_engine(fr_engine **out, const fr_model *model, const fr_engine_options *options, const char *const *drafts,
                         int n_drafts, int tree_budget, fr_error *err);
fr_request_options generate_request_options(const GenerateArgs *a, const char *const *drafts, int n_drafts);

/* The model, an engine for one request and the prompt's tokens, ready to run. */
typedef struct Generator {
    fr_model *model;
    fr_engine *engine;
    int32_t *prompt;
    int64_t n_prompt;
} Generator;

int generator_open(Generator *g, const GenerateArgs *a, fr_error *err);
void generator_close(Generator *g);

/* One generation. on_token may be NULL. *out must be closed by the caller. */
int generator_run(Generator *g, const GenerateArgs *a, const char *const *drafts, int n_drafts,
                  int (*on_token)(void *, const fr_token_event *), void *user, fr_request **out, fr_error *err);

/* The object that --stats-json writes. */
json_t *generate_stats_json(const Generator *g, const fr_request *r, const GenerateArgs *a);

/* Whether to colour what goes to `fd`, and the escape that begins a token of that source ("" for the target's own). */
int generate_use_color(ColorWhen when, int fd);
const char *generate_source_color(int32_t source);
#define GENERATE_COLOR_OFF "\033[0m"

#endif
