/* methods.h - the methods of `forerun train`: what they have in common, and the list of them. */
#ifndef TRAIN_METHODS_H
#define TRAIN_METHODS_H

#include "base/options.h"
#include "draft/learned/layer_entries.h"
#include "train/drafter_trainer.h"
#include "train/loop.h"
#include "train/nets.h"
#include "train/gemm.h"

enum { TRAIN_MAX_FILES = 64 };

typedef struct TrainArgs {
    const char *model, *vocab, *output;
    const char *init;    /* the file to start from; NULL: none */
    const char *traffic; /* file of records; NULL: none */
    char *files[TRAIN_MAX_FILES];
    DatasetOptions data;    /* its files are the ones above */
    bool separate;          /* each document begins a sequence: data.packs is the opposite */
    const Dataset *dataset; /* the data, once it is read */
    LoopOptions loop;       /* schedule.n_steps 0: as many as `epochs` take */
    double epochs;
    int64_t warm_up;        /* steps; -1: a twentieth of all */
    const char *log, *plot; /* log NULL: OUTPUT.log.jsonl */
    int n_threads;          /* 0: one for each core of this process */
    int n_ranks;            /* FR_RANKS_NUMA: one for each NUMA node; 0: not given */
    bool is_idle;           /* run only while no other program needs the processor */
    bool replaces;          /* --force: the output may be a finished model or drafter */
    GemmPrecision precision;
} TrainArgs;

/* For a TrainArgs that train_args_defaults filled: the file of a target (-m) or of a vocabulary (--vocab), and the
 * rest. */
extern const Option train_model_options[], train_vocab_options[], train_args_options[];
void train_args_defaults(TrainArgs *a);

/* Returns whether the run learns from a sequence more than once. */
bool train_has_epochs(const TrainArgs *a);

/* What `forerun train` can train. A new method is one file with a TrainMethod and one line in
 * method_options.c. */
typedef struct TrainMethod {
    const char *name, *summary;           /* a line each */
    const char *about, *notes, *examples; /* for --help, as in Command */
    const OptionSet *sets;                /* its own options */
    int (*check)(fr_error *err);          /* optional: checks that involve several options */
    bool needs_model; /* a drafter, trained for -m; else a new model with the vocabulary of --vocab */
    /* `source`: the file of -m or --vocab, open until the trainer is closed. `signature` receives the words of
     * LoopOptions.method. */
    int (*open)(Trainer **out, const TrainArgs *args, const Gguf *source, char *signature, size_t n_signature,
                fr_error *err);
} TrainMethod;

extern const TrainMethod train_target, train_lyanna, train_eagle, train_redrafter, train_medusa, train_hydra,
    train_space, train_eagle3, train_dflash, train_mtp;

const TrainMethod *const *train_methods(void);          /* ends with NULL */
const TrainMethod *train_method_find(const char *name); /* NULL: unknown */

/* ---- what all drafters share: options, and opening a trainer for a target (drafter_options.c) -------------------- */

typedef struct DrafterSettings {
    TensorType type;       /* the type of matrices in the file */
    int32_t n_head_tokens; /* 0: not given */
    int64_t state_memory;  /* as in DrafterTrainerOptions */
    double noise;          /* the same */
    HeadLossOptions loss;  /* its n_steps: heads, or steps that a drafter continues by itself */
    double step_weights[TRAIN_MAX_STEPS];
    int32_t n_step_weights; /* 0: all 1 */
} DrafterSettings;

/* Rows for a method's DrafterSettings, which holds the method's own defaults. The first list is for methods that
 * predict --steps-ahead tokens, the last one for methods whose drafters take their LM head from learned.h. */
extern const Option train_steps_options[], train_drafter_options[], train_head_tokens_options[];
/* Refuses a loss without weight and weights of other steps, and passes those of the steps on to the loss. */
int train_drafter_check(DrafterSettings *s, fr_error *err);

/* Returns the loss of the settings for a target. The logits of a drafter that uses the target's LM head are bounded as
 * the target's are. */
HeadLossOptions train_drafter_loss(const DrafterSettings *s, const FrozenTarget *target, bool uses_targets_head);

/* Makes a trainer of a network whose shape follows the target. Takes ownership of the target, and appends the words
 * of the settings to the method's own (LoopOptions.method). */
int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                       const DrafterSettings *s, const TrainArgs *a, char *signature, size_t n_signature,
                       fr_error *err);

/* ---- parts that several drafters have (part_options.c) ----------------------------------------------------------- */

/* --layers of `forerun train eagle3` and `forerun train dflash`: the streams of the target that a drafter reads. */

enum { TRAIN_MAX_STREAMS = 8 };

typedef struct StreamSettings {
    int32_t n, layers[TRAIN_MAX_STREAMS]; /* n 0: not given */
} StreamSettings;

extern const Option train_stream_options[]; /* rows for the method's StreamSettings */
/* Fills an empty list with the layers that were given, or the usual ones. */
int train_streams_choose(const StreamSettings *s, const Model *target, StreamList *out, fr_error *err);
/* Returns whether the option, if it was given, is this list. */
bool train_streams_fit(const StreamSettings *s, const StreamList *list);
/* Makes the target keep these streams. */
int train_streams_keep(FrozenTarget *target, const StreamList *list, fr_error *err);

enum { TRAIN_MAX_STEPS_AHEAD = 8 };

/* The options of `forerun train medusa` and `forerun train hydra`. */

typedef struct HeadsSettings {
    DrafterSettings drafter; /* its n_steps is the number of heads; 0: not given */
    int32_t n_blocks;        /* the blocks of each head; 0: not given */
    int output;              /* the index of the choice of --lm-head; -1: not given */
    bool has_prefix;         /* hydra: a layer before the heads; it has a row of its own */
} HeadsSettings;

/* Defaults that no row has. */
#define HEADS_SETTINGS \
    { .output = -1 }

extern const Option train_heads_options[]; /* rows for the method's HeadsSettings */

/* The shape of heads. */
typedef struct HeadsShape {
    int32_t n_heads, n_blocks;
    bool has_own_output; /* else the target's */
} HeadsShape;

/* The check of both methods. */
int train_heads_check(HeadsSettings *s, fr_error *err);
/* Chooses the shape for a method, and sets the steps ahead of the settings: that of the file of --init (NULL: none),
 * which options must not contradict; else what was given, or the defaults. */
int train_heads_choose(HeadsSettings *s, const char *method, const char *init, const Model *target, HeadsShape *out,
                       fr_error *err);

/* Token info for the methods of `forerun train`: --rank, and the shape that follows the target. */

enum { TRAIN_MAX_RANK = 1 << 14 };

typedef struct InfoSettings {
    int32_t rank; /* 0: no token info */
} InfoSettings;

/* --rank=N, by default 0. */
extern const Option train_info_options[];

/* Returns the shape of token info for all tokens of the target. */
InfoShape train_info_shape(const char *method, const FrozenTarget *target, int32_t rank);

/* Refuses info of all tokens if the drafter's table for this vocabulary would be too large. */
int train_info_check(const InfoShape *s, fr_error *err);

/* Appends the rank to the words of LoopOptions.method, unless it is 0. */
void train_info_signature(const InfoShape *s, char *signature, size_t n_signature);

/* The options and the layer that `forerun train eagle` and `forerun train lyanna` share: one layer
 * that continues from its own predictions. */

typedef struct UnrollSettings {
    DrafterSettings drafter;
    int32_t n_ff;      /* 0: the target's */
    int32_t n_anchors; /* UnrollShape; 0: all */
    bool has_confidence;
} UnrollSettings;

/* Rows for a method's UnrollSettings, whose DrafterSettings have rows of their own. */
extern const Option train_unroll_options[];

/* Returns the layer's shape, which follows the target. The method sets its own parts. */
UnrollShape train_unroll_shape(const char *method, const FrozenTarget *target, const UnrollSettings *s);

/* Gives the net, whose other parts are set, the confidence head that the settings ask for. */
void train_unroll_set_confidence(UnrollNet *net, const UnrollSettings *s);

/* train_drafter_open, with the words of these settings. */
int train_unroll_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                      const UnrollSettings *s, const UnrollShape *shape, const TrainArgs *a, char *signature,
                      size_t n_signature, fr_error *err);

#endif
