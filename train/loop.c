/* loop.c - the training loop.
 *
 * The state of a run is its step number, the parameters and AdamW's two means; everything else (order of the data,
 * noise, learning rate) is computed from the step number and the options. A checkpoint holds this state and the run
 * signature, the list of all options that determine the result. Test: test_checkpoint.c kills a run at many moments and
 * compares the bytes of the resumed run with an undisturbed one.
 *
 * On several ranks, those after rank 0 have nothing of this state but the parameters: they learn from their part of
 * each step when rank 0 orders it. Test: test_train_ranks.c. */
#include "train/loop.h"

#include "base/system.h"
#include "base/progress.h"
#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIGNATURE_BYTES = 2048 };

typedef struct Loop {
    Trainer *trainer;
    const Dataset *data;
    const LoopOptions *options;
    LoopResult *result;
    AdamW adamw;
    Muon muon; /* if the options say so */
    TrainLog log;
    Progress bar;
    Arena arena;
    int32_t *tokens;         /* [sequences of a step][length + 1] */
    uint8_t *loss_mask;      /* [sequences of a step][length] */
    CheckpointArray *arrays; /* [n_arrays] every parameter, then the two means of AdamW */
    int n_arrays;
    char run_signature[SIGNATURE_BYTES]; /* all options that determine the result, as key=value */
    double start_s, checkpoint_s;        /* times when this process began, and when it wrote the last checkpoint */
    double shown_loss, shown_right[TRAIN_MAX_STEPS]; /* running means for the progress bar */
} Loop;

static int32_t sequences_of_step(const LoopOptions *o) { return o->n_sequences * o->n_accumulate; }

/* ---- a training step --------------------------------------------------------------------------- */

/* Sequences first .. first + n - 1 of those in memory, of which the first has number i_sequence in the run. */
static TrainBatch batch_at(const Loop *l, int64_t i_sequence, int32_t first, int32_t n) {
    int32_t length = l->data->train.length;
    return (TrainBatch){n, length, l->tokens + (int64_t)first * (length + 1), l->loss_mask + (int64_t)first * length,
                        i_sequence + first};
}

static int64_t n_in_loss(const uint8_t *loss_mask, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += loss_mask[i];
    return sum;
}

static void share_parameters(const Loop *l) {
    train_ranks_order(l->options->ranks, TRAIN_PARAMETERS, NULL);
    train_ranks_share_parameters(l->options->ranks, l->trainer);
}

static int diverged(int64_t step, fr_error *err) {
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "the loss of step %lld is not finite; start a new run with a lower --lr, a longer --warm-up or a "
                     "smaller --clip",
                     (long long)step + 1);
}

/* Learns from sequences begin .. end - 1 of those in memory; sequence 0 has number i_sequence in the run. Ends early if
 * the other ranks have ended. */
static int learn(Loop *l, int64_t i_sequence, int64_t begin, int64_t end, double weight, TrainSums *sums,
                 fr_error *err) {
    int32_t most = l->options->n_sequences;
    int status = FR_OK;
    for (int64_t i = begin; i < end && !status; i += most) {
        TrainBatch batch = batch_at(l, i_sequence, (int32_t)i, (int32_t)min_i64(most, end - i));
        status = l->trainer->class->learn(l->trainer, &batch, weight, sums, err);
        if (!status) status = train_ranks_check(l->options->ranks, err);
    }
    return status;
}

/* The gradient and the sums of step `step`, counted from 0; on later ranks, what rank 0 needs from them. */
static int learn_step(Loop *l, int64_t step, TrainSums *sums, fr_error *err) {
    Gradients *g = l->trainer->class->gradients(l->trainer);
    int32_t n = sequences_of_step(l->options);
    int64_t begin, end;
    sequences_batch(&l->data->train, l->options->seed, step * n, n, l->tokens, l->loss_mask);
    double weight = 1.0 / (double)n_in_loss(l->loss_mask, (int64_t)n * l->data->train.length);
    trainer_zero_gradients(l->trainer);
    train_ranks_part(l->options->ranks, n, &begin, &end);
    gradients_begin(g, begin);
    int status = learn(l, step * n, begin, end, weight, sums, err);
    return train_ranks_add_up(l->options->ranks, g, n, true, sums, status, err);
}

static int train_step(Loop *l, int64_t step, fr_error *err) {
    const LoopOptions *o = l->options;
    TrainSums sums = {0};
    double start_s = clock_s(), start_cpu_s = clock_cpu_s();
    double n_tokens = (double)sequences_of_step(o) * l->data->train.length;
    train_ranks_order(o->ranks, TRAIN_LEARN, &step);
    int status = learn_step(l, step, &sums, err);
    if (status) return status;
    double norm = trainer_gradient_norm(l->trainer, l->adamw.n_threads), rate = schedule_rate(&o->schedule, step);
    if (!isfinite(sums.loss) || !isfinite(norm)) return diverged(step, err);
    adamw_step(&l->adamw, l->trainer, rate, clip_scale(norm, o->clip));
    if (o->uses_muon) muon_step(&l->muon, &l->adamw, l->trainer, rate, clip_scale(norm, o->clip));
    share_parameters(l);
    l->result->train = sums;
    l->result->n_steps = step + 1;
    const TrainLogStep figures = {rate, norm, n_tokens / (clock_s() - start_s), clock_cpu_s() - start_cpu_s};
    return train_log_step(&l->log, step + 1, &sums, &figures, err);
}

/* The sums over the held-out sequences; on later ranks, what rank 0 needs from them. */
static int sum_valid(Loop *l, TrainSums *sums, fr_error *err) {
    const Sequences *s = &l->data->valid;
    Gradients *g = l->trainer->class->gradients(l->trainer);
    int64_t begin, end;
    int status = FR_OK;
    train_ranks_part(l->options->ranks, s->n, &begin, &end);
    gradients_begin(g, begin);
    for (int64_t i = begin, n; i < end && !status; i += n) {
        n = min_i64(end - i, l->options->n_sequences);
        for (int64_t j = 0; j < n; j++)
            sequences_get(s, i + j, l->tokens + j * (s->length + 1), l->loss_mask + j * s->length);
        status = learn(l, i, 0, n, 0, sums, err);
    }
    return train_ranks_add_up(l->options->ranks, g, s->n, false, sums, status, err);
}

static int validate(Loop *l, fr_error *err) {
    TrainSums sums = {0};
    train_ranks_order(l->options->ranks, TRAIN_VALIDATE, NULL);
    int status = sum_valid(l, &sums, err);
    if (status || sums.n == 0) return status;
    l->result->valid = sums;
    return train_log_valid(&l->log, l->result->n_steps, &sums, err);
}

/* ---- the progress bar ---------------------------------------------------------------------------- */

static void show(Loop *l) {
    const TrainSums *s = &l->result->train;
    int64_t n_here = l->result->n_steps - l->result->n_steps_before;
    double keep = n_here > 1 ? 0.95 : 0;
    char note[80];
    l->shown_loss = keep * l->shown_loss + (1 - keep) * train_sums_loss(s);
    int n = snprintf(note, sizeof note, "loss %.3f  right", l->shown_loss);
    for (int i = 0; i < s->n_heads && (size_t)n < sizeof note; i++) {
        double right = s->of[i] ? (double)s->right[i] / (double)s->of[i] : 0;
        l->shown_right[i] = keep * l->shown_right[i] + (1 - keep) * right;
        n += snprintf(note + n, sizeof note - (size_t)n, " %.0f%%", 100 * l->shown_right[i]);
    }
    if ((size_t)n < sizeof note)
        snprintf(note + n, sizeof note - (size_t)n, "  %.0f tokens/s", l->result->tokens_per_s);
    progress_note(&l->bar, note);
    progress_update(&l->bar, l->result->n_steps);
}

static void measure(Loop *l) {
    LoopResult *r = l->result;
    r->seconds = clock_s() - l->start_s;
    double n_tokens = (double)(r->n_steps - r->n_steps_before) * sequences_of_step(l->options) * l->data->train.length;
    r->tokens_per_s = r->seconds > 0 ? n_tokens / r->seconds : 0;
}

/* ---- checkpoints -------------------------------------------------------------------------------- */

static Checkpoint checkpoint_of(const Loop *l) {
    return (Checkpoint){.step = l->result->n_steps,
                        .n_steps = l->options->schedule.n_steps,
                        .data = l->data->fingerprint,
                        .run_signature = l->run_signature,
                        .arrays = l->arrays,
                        .n_arrays = l->n_arrays};
}

static int save(Loop *l, fr_error *err) {
    if (!l->options->checkpoint) return FR_OK;
    Checkpoint c = checkpoint_of(l);
    int status = checkpoint_write(l->options->checkpoint, &c, err);
    l->checkpoint_s = clock_s();
    return status;
}

static bool is_due(const Loop *l) {
    const LoopOptions *o = l->options;
    return (o->checkpoint_steps > 0 && l->result->n_steps % o->checkpoint_steps == 0) ||
           (o->checkpoint_s > 0 && clock_s() - l->checkpoint_s >= o->checkpoint_s);
}

static int resume(Loop *l, fr_error *err) {
    if (!l->options->resumes) return FR_OK;
    Checkpoint c = checkpoint_of(l);
    int status = checkpoint_read(l->options->checkpoint, &c, err);
    if (status) return status;
    l->adamw.n_steps = l->result->n_steps = l->result->n_steps_before = c.step;
    return FR_OK;
}

/* ---- the run ------------------------------------------------------------------------------------ */

static int write_signature(Loop *l, fr_error *err) {
    const LoopOptions *o = l->options;
    const Schedule *s = &o->schedule;
    int n = snprintf(
        l->run_signature, sizeof l->run_signature,
        "%s seed=%llu steps=%lld batch=%d accumulate=%d length=%d packs=%d lr=%.17g decay=%s final=%.17g warm-up=%lld "
        "hold=%lld beta1=%.17g beta2=%.17g eps=%.17g weight-decay=%.17g clip=%.17g%s",
        o->method, (unsigned long long)o->seed, (long long)s->n_steps, o->n_sequences, o->n_accumulate,
        l->data->train.length, l->data->train.packs, s->peak, s->decay == SCHEDULE_LINEAR ? "linear" : "cosine",
        s->final, (long long)s->n_warm_up, (long long)s->n_hold, o->adamw.beta1, o->adamw.beta2, o->adamw.eps,
        o->adamw.weight_decay, o->clip, o->uses_muon ? " optimizer=muon" : "");
    if (n > 0 && (size_t)n < sizeof l->run_signature) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "the run signature is longer than %d bytes; use shorter file names in the options",
                     SIGNATURE_BYTES);
}

static int list_arrays(Loop *l, fr_error *err) {
    Trainer *t = l->trainer;
    int32_t n = t->class->n_params(t);
    const ArenaItem list[] = {ARENA_ITEM(&l->arrays, n + 2)};
    int status = arena_take(&l->arena, list, 1, "a list of parameters", err);
    if (status) return status;
    for (int32_t i = 0; i < n; i++) {
        Param *p = t->class->param(t, i);
        l->arrays[l->n_arrays++] = (CheckpointArray){p->name, p->n, p->value, false};
    }
    l->arrays[l->n_arrays++] = (CheckpointArray){"adamw.mean", l->adamw.n, l->adamw.mean, false};
    l->arrays[l->n_arrays++] = (CheckpointArray){"adamw.square", l->adamw.n, l->adamw.square, true};
    return FR_OK;
}

/* What every rank has. Refuses ranks that differ. */
static int open_common(Loop *l, fr_error *err) {
    size_t n = (size_t)sequences_of_step(l->options), length = (size_t)l->data->train.length;
    const ArenaItem items[] = {ARENA_ITEM(&l->tokens, n * (length + 1)), ARENA_ITEM(&l->loss_mask, n * length)};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "a batch", err);
    if (!status) status = write_signature(l, err);
    return train_ranks_compare(l->options->ranks, status, l->run_signature, l->data->fingerprint, err);
}

static int begin(Loop *l, fr_error *err) {
    int status = adamw_open(&l->adamw, &l->options->adamw, l->trainer, err);
    l->adamw.n_threads = l->options->n_threads > 1 ? l->options->n_threads : 1;
    l->adamw.leaves_matrices = l->options->uses_muon;
    if (!status && l->options->uses_muon) status = muon_open(&l->muon, l->trainer, l->adamw.n_threads, err);
    if (!status) status = list_arrays(l, err);
    if (!status) status = resume(l, err);
    if (!status) status = train_log_open(&l->log, l->options->log, l->result->n_steps, err);
    if (!status) share_parameters(l);
    progress_begin(&l->bar, l->options->progress, "train", l->options->schedule.n_steps);
    progress_resume(&l->bar, l->result->n_steps);
    l->start_s = l->checkpoint_s = clock_s();
    return status;
}

static int stop(Loop *l, fr_error *err) {
    int status = save(l, err);
    if (status) return status;
    return error_set(err, FR_ERR_CANCELLED, "stopped after step %lld of %lld", (long long)l->result->n_steps,
                     (long long)l->options->schedule.n_steps);
}

static int run(Loop *l, fr_error *err) {
    const LoopOptions *o = l->options;
    int status = o->validates_first ? validate(l, err) : FR_OK;
    l->result->valid_before = l->result->valid;
    for (int64_t step = l->result->n_steps; step < o->schedule.n_steps && !status; step++) {
        status = train_step(l, step, err);
        if (status) return status;
        measure(l);
        show(l);
        bool is_last = step + 1 == o->schedule.n_steps;
        if (!is_last && o->valid_every > 0 && (step + 1) % o->valid_every == 0) status = validate(l, err);
        if (!status && o->stop && *o->stop) return stop(l, err);
        if (!status && (is_last || is_due(l))) status = save(l, err);
    }
    /* after the last checkpoint, so that a run resumed from it, with no step left, still reports the validation loss */
    return status ? status : validate(l, err);
}

int loop_run(Trainer *t, const Dataset *data, const LoopOptions *options, LoopResult *result, fr_error *err) {
    *result = (LoopResult){0};
    Loop l = {.trainer = t, .data = data, .options = options, .result = result};
    int status = open_common(&l, err);
    if (!status) {
        status = begin(&l, err);
        if (!status) status = run(&l, err);
        train_ranks_order(options->ranks, TRAIN_END, NULL);
    }
    progress_end(&l.bar);
    train_log_close(&l.log);
    muon_close(&l.muon);
    adamw_close(&l.adamw);
    arena_free(&l.arena);
    return status;
}

int loop_follow(Trainer *t, const Dataset *data, const LoopOptions *options, fr_error *err) {
    Loop l = {.trainer = t, .data = data, .options = options};
    int status = open_common(&l, err);
    bool goes_on = !status;
    while (goes_on && !status) {
        TrainSums sums = {0};
        int64_t step = 0;
        switch (train_ranks_order(options->ranks, TRAIN_END, &step)) {
        case TRAIN_PARAMETERS: train_ranks_share_parameters(options->ranks, t); break;
        case TRAIN_LEARN: status = learn_step(&l, step, &sums, err); break;
        case TRAIN_VALIDATE: status = sum_valid(&l, &sums, err); break;
        case TRAIN_END: goes_on = false; break;
        }
    }
    if (!status) status = train_ranks_check(options->ranks, err);
    arena_free(&l.arena);
    return status;
}
