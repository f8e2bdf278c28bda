/* train_report.c - what a training prints and writes: its plan, its results, and the record in a drafter's file. */
#include "cli/cli.h"
#include "cli/train/training.h"
#include "train/gemm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Prints what a run of several epochs keeps. */
static void print_states(const Training *t) {
    const Sequences *s = &t->data.train;
    const StateMemory m = drafter_trainer_state_memory(t->trainer, s->n, s->length);
    if (m.kept == m.all) {
        printf("the target reads each sequence once: its hidden states take %.1f MB of memory\n", (double)m.all / 1e6);
        return;
    }
    printf("the target reads %.0f %% of the sequences again in each epoch; with\n"
           "--state-memory %lldM their hidden states stay in memory\n",
           100 * (1 - (double)m.kept / (double)m.all), (long long)(m.for_all >> 20) + 1);
}

void train_print_plan(const Training *t) {
    const Dataset *d = &t->data;
    const LoopOptions *o = &t->args.loop;
    int64_t n_params = 0;
    for (int32_t i = 0; i < t->trainer->class->n_params(t->trainer); i++)
        n_params += t->trainer->class->param(t->trainer, i)->n;
    printf("%lld document%s, %lld of them held out; %lld token%s to learn, in %lld sequence%s of %d\n",
           (long long)d->n_documents, cli_plural(d->n_documents), (long long)d->n_valid_documents,
           (long long)d->train.n_counted, cli_plural(d->train.n_counted), (long long)d->train.n, cli_plural(d->train.n),
           d->train.length);
    if (d->wrote_plain)
        puts("the vocabulary's file has no chat format that forerun knows, so messages are written as USER: "
             "...\\nASSISTANT: ...");
    if (d->n_lossy)
        printf("warning: the answers of %lld document%s were generated under a lossy rule (distill-data --lossy): they "
               "do not follow the target's distribution, and neither will a drafter that is trained on them\n",
               (long long)d->n_lossy, cli_plural(d->n_lossy));
    if (d->n_other_target || d->n_broken)
        printf("left out: %lld record%s of other models, %lld broken line%s\n", (long long)d->n_other_target,
               cli_plural(d->n_other_target), (long long)d->n_broken, cli_plural(d->n_broken));
    int n_sequences = o->n_sequences * o->n_accumulate;
    printf("%.2f million parameters; %lld step%s of %d sequence%s; products in %s", (double)n_params / 1e6,
           (long long)o->schedule.n_steps, cli_plural(o->schedule.n_steps), n_sequences, cli_plural(n_sequences),
           gemm_description());
    if (t->ranks) printf("; %d processes", train_ranks_size(t->ranks));
    putchar('\n');
    if (t->method->needs_model && train_has_epochs(&t->args)) print_states(t);
    fflush(stdout);
}

static void print_sums(const char *what, const TrainSums *s) {
    if (s->n == 0) return;
    printf(", %s %.4f (right", what, train_sums_loss(s));
    for (int i = 0; i < s->n_heads; i++)
        printf(" %.1f %%", s->of[i] ? 100 * (double)s->right[i] / (double)s->of[i] : 0.0);
    putchar(')');
}

/* Joins words with spaces, as many as fit. */
static void join(char *out, size_t n, char *const *words, int n_words) {
    size_t at = 0;
    *out = '\0';
    for (int i = 0; i < n_words && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? " " : "", words[i]);
}

/* Returns how many words an option takes that changes no byte of the result: 0 if the word is another one. */
static int n_words_without_effect(const char *word) {
    static const char *const flags[] = {"--resume", "--force", "--idle"}, *const numbers[] = {"--threads", "--ranks",
                                                                                              "--state-memory"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(numbers[i]);
        if (strcmp(word, flags[i]) == 0) return 1;
        if (strncmp(word, numbers[i], n) == 0 && (word[n] == '=' || !word[n])) return word[n] ? 1 : 2;
    }
    if (strncmp(word, "-t", 2) == 0) return word[2] ? 1 : 2;
    return 0;
}

void train_join_command(char *out, size_t n, char *const *argv, int argc) {
    char *words[256] = {(char *)(uintptr_t) "forerun train"};
    int n_words = 1;
    for (int i = 0; i < argc && n_words < (int)(sizeof words / sizeof *words);) {
        int n_left_out = n_words_without_effect(argv[i]);
        if (n_left_out) i += n_left_out;
        else words[n_words++] = argv[i++];
    }
    join(out, n, words, n_words);
}

int train_finish(Training *t, fr_error *err) {
    const LoopResult *r = &t->result;
    char names[PATH_BYTES];
    float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS];
    bool has_accuracy = drafter_trainer_accuracy(&r->valid, accuracy);
    if (t->args.traffic) snprintf(names, sizeof names, "%s", t->args.traffic);
    else join(names, sizeof names, t->args.data.files, t->args.data.n_files);
    const DrafterTraining record = {.command = t->command,
                                    .data = names,
                                    .precision = gemm_precision_name(t->args.precision),
                                    .n_steps = (uint64_t)r->n_steps,
                                    .seed = t->args.loop.seed,
                                    .traffic = t->traffic_state,
                                    .n_tokens = (uint64_t)r->n_steps * (uint64_t)t->args.loop.n_sequences *
                                                (uint64_t)t->args.loop.n_accumulate * (uint64_t)t->data.train.length,
                                    .loss = train_sums_loss(&r->valid),
                                    .accuracy = has_accuracy ? accuracy : NULL,
                                    .n_heads = r->valid.n_heads,
                                    .n_ranks = TRAIN_RANKS};
    int status = t->args.traffic ? traffic_check_gain(&r->valid_before, &r->valid, t->args.output, err) : FR_OK;
    if (!status) status = t->trainer->class->write(t->trainer, t->args.output, &record, err);
    if (status) return status;
    int64_t n_steps = r->n_steps - r->n_steps_before;
    printf("%s: %lld step%s in %.1f s, %.0f tokens/s", t->args.output, (long long)n_steps, cli_plural(n_steps),
           r->seconds, r->tokens_per_s);
    if (r->n_steps_before) printf(", after %lld of earlier runs", (long long)r->n_steps_before);
    print_sums("loss of the last step", &r->train);
    print_sums("of held-out texts", &r->valid);
    putchar('\n');
    if (t->method->needs_model && !train_is_automatic)
        printf("does it pay?  forerun bench -m %s QUESTIONS.jsonl --draft %s:file=%s\n"
               "use it:       forerun chat -m %s --draft %s:file=%s\n",
               t->args.model, t->method->name, t->args.output, t->args.model, t->method->name, t->args.output);
    char previous[PATH_BYTES + 16];
    snprintf(previous, sizeof previous, "%s.previous", t->checkpoint);
    unlink(t->checkpoint); /* not needed once the file is written */
    unlink(previous);
    return t->args.plot ? train_plot(t->log, t->args.plot, err) : FR_OK;
}
