/* nets.h - the networks of the drafters, in a form that can be trained, and the parts that they share: the loss of
 * predictions, token info, and a layer that continues from its own predictions. src/draft/learned runs what they
 * learn. */
#ifndef TRAIN_NETS_H
#define TRAIN_NETS_H

#include "base/mem.h"
#include "model/rope.h"
#include "train/mask_rows.h"
#include "train/net.h"
#include "train/ops.h"

/* ---- a drafter's own layers (own_layers.c) --------------------------------------------------------------------- */

enum { OWN_MAX_LAYERS = 64 };

/* The form of the layers of a file. All zero: that of a Llama's. */
typedef struct OwnForm {
    bool is_gemma;                    /* that of Gemma 4's (src/draft/learned/gemma_layer.c) */
    bool values_are_keys;             /* there is no value projection: that of the keys makes values, too */
    double attn_scale;                /* a factor of scores; 0: 1 / sqrt(head_dim) */
    float out_scales[OWN_MAX_LAYERS]; /* the output of a layer is multiplied by it, which is frozen; 0: it is not */
} OwnForm;

/* What a part of a layer of Gemma 4's form adds to the residual stream, before its norm. */
typedef struct AddedRows {
    real *raw, *rms; /* [n][C], [n] */
} AddedRows;

/* Reads the form of the n_layer layers of a file, of which all have that of the first one. */
int own_form_read(OwnForm *form, DrafterFile *f, const Hparams *shape, fr_error *err);
/* Writes what is not trained of it: the key, which begins with `prefix`, and the factors, which must stay valid until
 * the file is written; and says whether a tensor of a file is one of these. */
void own_form_write(GgufWriter *w, const char *prefix, const OwnForm *form, int32_t n_layer);
bool own_form_keeps(const OwnForm *form, int32_t n_layer, const char *name);

/* Reads the rope of a file: the frequencies of `params`, divided by the tensor `name` [n_rot / 2] if the file has it.
 * *kept is a copy of that tensor in the arena; NULL: there is none. */
int own_rope_read(Rope *rope, const float **kept, DrafterFile *f, const char *name, const RopeParams *params,
                  Arena *arena, fr_error *err);
/* Writes the keys of a rope, which begin with `prefix`, and the tensor `name`, unless `factors` is NULL. */
void own_rope_write(GgufWriter *w, const char *prefix, const RopeParams *p, const char *name, const float *factors);

/* ---- the loss of predictions against the target's distributions, and its derivative (head_loss.c) ------------ */

/* The loss of a row at position p, which predicts token p + 1, with q = softmax(w row + info):
 *     token_weight * KL(target's distribution || q)  or, with hard labels,  token_weight * -log q(x_{p+1}),
 *     + tv_weight * the total variation distance between the target's distribution and q
 *     + hidden_weight * regression(row, h_p) */
typedef struct HeadLossOptions {
    double token_weight, tv_weight, hidden_weight; /* 0: without that part */
    bool hard_labels;
    Regression regression;
    int32_t n_steps;            /* the loss of a sequence is the mean over its steps; at most TRAIN_MAX_STEPS */
    bool has_margins;           /* HeadLoss.margin is computed */
    const double *step_weights; /* [n_steps] of that mean, not all 0; NULL: all 1. Borrowed */
    int32_t n_hidden_steps;     /* the later steps have no regression; 0: all steps have it */
    /* A vocabulary of the drafter's own, of n_own > 0 of the target's tokens: the drafter's token for each of the
     * target's, or -1. The loss compares distributions over these tokens, weighted by their probability in the
     * target's distribution; a prediction of another token is wrong. NULL: the target's vocabulary. Borrowed. */
    const int32_t *own_of;
    int32_t n_own;
    double target_cap; /* the target's logits are bounded by it (Hparams.logit_cap); 0: none */
    /* The drafter's logits are its products times a factor (0: 1), and bounded by logit_cap (0: none). */
    double logit_factor, logit_cap;
} HeadLossOptions;

#define HEAD_LOSS_MAX_MARGIN 12.0
enum { HEAD_LOSS_ROWS = 128 }; /* positions in a batch, which bounds the memory for logits */

typedef struct HeadLoss {
    HeadLossOptions options;
    int64_t C, V, D;                      /* D: tokens of the drafter's vocabulary, V unless it has its own */
    double sum_of_weights;                /* of the steps */
    int32_t n, positions[HEAD_LOSS_ROWS]; /* the current batch of positions, all in the loss mask, ascending */
    Arena arena;
    int32_t best[HEAD_LOSS_ROWS]; /* the drafter's token for the target's most probable one; -1: it has none */
    real *dist, *log_dist;  /* [n][D] the target's distributions; [n] their mean log probabilities, minus the entropy */
    real *logits, *dlogits; /* [n][D] */
    bool has_slopes;        /* the logits are not the products themselves */
    real *slopes;           /* [n][D] the derivatives of logits with respect to products, if so */
    real *dproduct;         /* [n][D] derivatives with respect to products, if so */
    real *x, *dx;           /* [n][C], for head_loss_step */
    real *target_hidden;    /* [n][C] */
    real *loss, *dloss;     /* [n] */
    /* For each row of the last step: whether its best token is the target's, and the logit of that token's probability
     * in softmax(logits / LEARNED_MIN_TEMPERATURE), at most HEAD_LOSS_MAX_MARGIN. */
    uint8_t is_right[HEAD_LOSS_ROWS];
    real margin[HEAD_LOSS_ROWS];
} HeadLoss;

int head_loss_open(HeadLoss *h, const HeadLossOptions *options, int64_t C, int64_t V, fr_error *err);
void head_loss_close(HeadLoss *h); /* a zeroed one is fine */

/* Collects the next positions in the loss mask, from *from on, and the target's distributions at them; *from advances.
 * False: there are none left. Begin with *from = 1: no step predicts at position 0. */
bool head_loss_next(HeadLoss *h, const TrainSequence *seq, int32_t *from);
/* Makes these the current positions, which are n <= HEAD_LOSS_ROWS in ascending order, all in the loss mask. */
void head_loss_at(HeadLoss *h, const TrainSequence *seq, const int32_t *positions, int32_t n);
/* Makes the next positions that a step predicts from n places, in ascending order, the current ones, from place *from
 * on, which advances. False: there are none left. */
bool head_loss_next_drawn(HeadLoss *h, const TrainSequence *seq, const int32_t *places, int32_t n, int32_t step,
                          int32_t *from);

/* Step s at the current positions. x: [T][C] the drafter's rows by the position t they start from, so position p reads
 * row p - s (positions below s are left out). w: [V][C] the output matrix. info: [n][V] is added to the logits, or
 * NULL. Adds to the sums and, unless dx is NULL, `weight` times the gradient to dx [T][C], and to dw and dinfo unless
 * those are NULL. */
void head_loss_step(HeadLoss *h, const TrainSequence *seq, int32_t step, const real *x, const real *w, const real *info,
                    real *dx, real *dw, real *dinfo, double weight, TrainSums *sums);

/* For networks that learn only from some places of a sequence, which are drawn anew whenever it is learned.
 * anchors_draw keeps n_wanted of n ascending positions, each set of them with the same probability, and returns their
 * number. anchors_add_sums adds what they gave, `ratio` being that of all places to those drawn: their loss is an
 * estimate of the loss at all places. It does not count predictions in `n`. */
int32_t anchors_draw(const TrainSequence *seq, int32_t *positions, int32_t n, int32_t n_wanted);
void anchors_add_sums(const TrainSums *drawn, double ratio, TrainSums *sums);

/* Returns the drafter's token for that of the data at the current position i; -1: it has none. */
int32_t head_loss_label(const HeadLoss *h, const TrainSequence *seq, int32_t i);

/* Returns the share of a step in the loss of a sequence. */
double head_loss_share(const HeadLoss *h, int32_t step);

/* The same for a drafter that computes only the rows of the current positions, of any width (which must be C where
 * hidden_weight is not 0). x: [n][width], row i belongs to positions[i]; dx: as x; w, dw: [D][width]. The first
 * head_loss_skipped rows are not read: their positions are below s, so there is no position to start from. */
int32_t head_loss_skipped(const HeadLoss *h, int32_t step);
void head_loss_rows(HeadLoss *h, const TrainSequence *seq, int32_t step, const real *x, int64_t width, const real *w,
                    const real *info, real *dx, real *dw, real *dinfo, double weight, TrainSums *sums);

/* The parts of head_loss_rows, for a network that does more with the logits. head_loss_logits computes h->logits of the
 * rows that are not skipped, whose number it returns; head_loss_count counts the rank of the target's best token in the
 * drafter's distribution at current position i; head_loss_tokens computes the loss, replaces the logits by
 * probabilities and, if it is wanted, sets h->dlogits; head_loss_back passes that on. */
int32_t head_loss_logits(HeadLoss *h, int32_t step, const real *x, int64_t width, const real *w, const real *info,
                         TrainSums *sums);
void head_loss_count(HeadLoss *h, int32_t step, int32_t i, int64_t rank, TrainSums *sums);
void head_loss_tokens(HeadLoss *h, const TrainSequence *seq, int32_t step, bool wants_gradient, double weight,
                      TrainSums *sums);
void head_loss_back(HeadLoss *h, int32_t step, const real *x, int64_t width, const real *w, real *dx, real *dw,
                    real *dinfo);

/* ---- a drafter's own vocabulary and embedding (own_vocabulary.c) ----------------------------------------------- */

/* All NULL: they are the target's. The memory is that of the arena that they were made in. */
typedef struct OwnVocabulary {
    const int32_t *tokens; /* [HeadLossOptions.n_own] the target's tokens that the drafter has */
    const real *embd;      /* [V][C] an embedding of its own, which is frozen */
    /* For the file. */
    const int64_t *map;          /* `tokens` */
    const GgufTensor *embedding; /* `embd` in its type */
} OwnVocabulary;

/* Gives a drafter n of the V tokens of the target. */
int own_vocabulary_set(OwnVocabulary *v, HeadLossOptions *loss, const int32_t *tokens, int32_t n, int32_t V,
                       Arena *arena, fr_error *err);
/* Gives it the vocabulary and the embedding [V][C] that a file has. */
int own_vocabulary_read(OwnVocabulary *v, HeadLossOptions *loss, DrafterFile *f, int32_t V, int64_t C, Arena *arena,
                        fr_error *err);
/* Writes both, the vocabulary having n tokens, and says whether a tensor of a file is one of them. */
void own_vocabulary_write(GgufWriter *w, const OwnVocabulary *v, int32_t n);
bool own_vocabulary_keeps(const OwnVocabulary *v, const char *name);

/* ---- token info: a bias on the logits that depends only on the last token (token_info_net.c) ----------------- */

typedef struct InfoShape {
    const char *method; /* names of tensors begin with it */
    int32_t C, V, rank; /* rank 0: no token info */
    int32_t n_hot;      /* 0: the table has all tokens */
    const int32_t *hot; /* [n_hot] ascending; borrowed */
    float rms_eps;
} InfoShape;

/* The tensors, in this order; none with rank 0. */
enum { INFO_DOWN, INFO_UP, INFO_GAIN, INFO_TENSORS };
int32_t info_n_tensors(const InfoShape *s);
NetTensor info_tensor(const InfoShape *s, int32_t i);
/* Writes the keys of the file (learned_files.h); none with rank 0. */
void info_set_keys(const InfoShape *s, GgufWriter *w);

/* Activations for the current positions of a HeadLoss. n: those whose token has a row in the table; U: its number of
 * columns. */
typedef struct InfoActs {
    int32_t n, rows[HEAD_LOSS_ROWS]; /* which positions those are */
    Arena arena;
    real *x, *low;                   /* [n][C], [n][rank] */
    real *up, *normed, *inverse_rms; /* [n][U] twice, [n] */
    real *info, *dinfo;              /* [positions][V]; NULL with rank 0 */
    real *dnormed, *dup, *dlow;      /* [n][U] twice, [n][rank] */
} InfoActs;

/* With rank 0 nothing is allocated. */
int info_open(InfoActs *a, const InfoShape *s, fr_error *err);
void info_close(InfoActs *a); /* a zeroed one is fine */

/* Computes a->info for the current positions of h, and sets a->dinfo to zero. With rank 0 neither pass does anything.
 * */
void info_forward(InfoActs *a, const InfoShape *s, real *const *w, const HeadLoss *h, const TrainSequence *seq);
/* Adds to dw, from a->dinfo. */
void info_backward(InfoActs *a, const InfoShape *s, real *const *w, real *const *dw);

/* Token info that depends on the state, in training: a bias on the logits that depends on the last token
 * and on the chain's hidden state together. */

typedef struct GateShape {
    const char *method; /* names of tensors begin with it */
    int32_t C, V, rank; /* rank 0: no gate */
    double token_std;   /* initial deviation of the token's factor; see start_token_std */
} GateShape;

/* The tensors, in this order; none with rank 0. */
enum { GATE_STATE, GATE_TOKEN, GATE_UP, GATE_TENSORS };
int32_t gate_n_tensors(const GateShape *s);
NetTensor gate_tensor(const GateShape *s, int32_t i);
/* Writes the key of the file (learned_files.h); none with rank 0. */
void gate_set_keys(const GateShape *s, GgufWriter *w);

/* Activations for the current positions of a HeadLoss, n rows. */
typedef struct GateActs {
    Arena arena;
    real *embd, *token, *dtoken;               /* [n][C], [n][rank] twice: the same for all steps */
    real *f, *df;                              /* [n][C] the states of one step */
    real *state, *dstate, *product, *dproduct; /* [n][rank] */
    real *info, *dinfo;                        /* [n][V] of one step, token info included; NULL with rank 0 */
} GateActs;

/* With rank 0 nothing is allocated. */
int gate_open(GateActs *a, const GateShape *s, fr_error *err);
void gate_close(GateActs *a); /* a zeroed one is fine */

/* What all steps at the current positions share. With rank 0 none of these functions does anything. */
void gate_forward_tokens(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, const TrainSequence *seq);
/* One step: a->info = info [n][V] (NULL: zero) + the gate's bias, and a->dinfo = 0. f: [T][C] the states by the
 * position t from which they start, as in head_loss_step. */
void gate_forward_step(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, int32_t step, const real *f,
                       const real *info);
/* From a->dinfo, after the loss of the same step: adds to dw, to df [T][C], and to dinfo [n][V] (NULL is allowed). */
void gate_backward_step(GateActs *a, const GateShape *s, real *const *w, real *const *dw, const HeadLoss *h,
                        int32_t step, real *df, real *dinfo);
void gate_backward_tokens(GateActs *a, const GateShape *s, real *const *dw, const HeadLoss *h);

/* ---- the layer of `eagle` and `lyanna`, which continues from its own predictions (unroll_layer.c) ------------ */

enum { UNROLL_MAX_STEPS = 8 };

typedef struct UnrollShape {
    const char *method; /* "eagle": names of tensors begin with it */
    int32_t C, n_ff;
    int32_t n_head, n_head_kv, head_dim;
    float rms_eps;
    const Rope *rope;     /* the target's; borrowed */
    int32_t n_steps;      /* 1 .. UNROLL_MAX_STEPS */
    bool has_attn_norm;   /* the first layer has a norm before its attention, as a later layer always does */
    bool fuses_token;     /* the input of the first step is fc [E ; h], else fc h */
    bool fuses_each_step; /* so is the input of later steps; else it is the last output */
    bool is_parallel; /* the input of a later step is the first's plus the step's learned vector; needs has_attn_norm */
    int32_t n_ff_later;    /* 0, or the steps after the first have a layer of their own with this feed-forward */
    bool later_fuses;      /* the input of its steps is fc [E(x_{t+1}) ; the last output], with an fc of its own */
    double state_gradient; /* the share of a step's gradient that reaches the state before it; 1: all of it */
    double fc_std;         /* initial deviation of fc's columns for the token; see start_token_std */
    bool reads_pairs;      /* q, k and v read pairs of vectors, and the caller makes the input of each step */
    bool qk_start_anew;    /* q and k start random, because the target normalises its heads and this layer does not */
    /* For a network that makes the input of each step. */
    int32_t n_before;             /* steps of other layers before the first one */
    bool has_head_norms;          /* queries and keys have norms */
    bool has_biases;              /* queries, keys and values have biases */
    bool has_output_bias;         /* what attention gives has one */
    bool gates_output;            /* as in LayerSpec */
    bool is_gemma;                /* the layer has the form of Gemma 4's, with a value projection */
    double attn_scale, out_scale; /* as in OwnForm */
    int32_t n_anchors;            /* of the chains that go on, only so many do, which are drawn; 0: all */
} UnrollShape;

/* The tensors, in this order. Those of a later layer follow: the same from UNROLL_Q to UNROLL_ATTN_NORM, then its fc
 * and bias if it has them. */
enum {
    UNROLL_FC,
    UNROLL_FC_BIAS,
    UNROLL_Q,
    UNROLL_K,
    UNROLL_V,
    UNROLL_O,
    UNROLL_FFN_NORM,
    UNROLL_GATE,
    UNROLL_UP,
    UNROLL_DOWN,
    UNROLL_ATTN_NORM,
    UNROLL_CHAIN_INPUTS,
    UNROLL_Q_NORM, /* these only in networks that make the input of each step */
    UNROLL_K_NORM,
    UNROLL_Q_BIAS,
    UNROLL_K_BIAS,
    UNROLL_V_BIAS,
    UNROLL_O_BIAS,
    UNROLL_POST_ATTN_NORM, /* with is_gemma, as the next one */
    UNROLL_POST_FFN_NORM,
    UNROLL_SLOTS
};
int32_t unroll_n_tensors(const UnrollShape *s);
NetTensor unroll_tensor(const UnrollShape *s, int32_t i);

/* The activations of a step, n rows. */
typedef struct UnrollStep {
    int32_t n;
    const int32_t *chains;               /* [n] the position t at which each row's chain began, ascending */
    real *pair;                          /* [n][2C] the input of fc, or with reads_pairs of q, k and v */
    real *x;                             /* [n][C] the layer's input */
    real *attn_normed, *attn_rms;        /* [n][C], [n] */
    real *q, *k, *v;                     /* [n][H*D], [n][G*D] twice; q and k rotated */
    real *q_raw, *q_rms, *k_raw, *k_rms; /* with has_head_norms: before their norms; [n][H], [n][G] */
    real *v_raw, *v_rms;                 /* with is_gemma: before their norm; [n][G*D], [n][G] */
    real *gates, *gated;                 /* with gates_output: [n][H*D], and what the heads read after the gates */
    real *probs, *attended;              /* see UnrollAttention; [n][H*D] */
    real *x_mid;                         /* [n][C] */
    real *ffn_normed, *ffn_rms;          /* [n][C], [n] */
    real *gate, *up, *hidden;            /* [n][F] */
    AddedRows attn_added, ffn_added;     /* with is_gemma */
    real *f, *df;                        /* [T][C] the predicted hidden states by t, and their gradient */
    real *dk, *dv;                       /* [n][G*D] */
} UnrollStep;

/* The activations of a sequence. */
typedef struct UnrollActs {
    int32_t max_length;
    Arena arena;
    real *cos_sin;             /* [T][n_rot/2][2] by position */
    int32_t *entries, *chains; /* [T] all positions, and those whose chain goes on beyond the first step, n_chains */
    int32_t n_chains, n_candidates; /* these, and how many of them were drawn from (n_anchors) */
    UnrollStep steps[UNROLL_MAX_STEPS];
    real *angles, *delta;                /* [n][n_rot/2][2], [n][C] of the current step */
    real *dx, *dnormed, *dattended, *dq; /* [n][C] twice, [n][H*D] twice */
    real *dadded;                        /* [n][C] with is_gemma */
    real *dgate, *dup, *dhidden;         /* [n][F] */
    real *dpair, *dscores;               /* [n][2C], [UNROLL_BLOCK][T + steps] */
    real *heads, *dheads, *dgates;       /* [n][2*H*D], [n][H*D] twice, with has_head_norms or gates_output */
    real *dfirst;                        /* [T][C] is_parallel: gradient of the first step's input, from later steps */
} UnrollActs;

int unroll_open(UnrollActs *a, const UnrollShape *s, int32_t max_length, fr_error *err);
void unroll_close(UnrollActs *a); /* a zeroed one is fine */

/* All steps of a sequence: a->steps[i].f has the hidden states that step i + 1 predicts, by the position at which it
 * began. */
void unroll_forward(const UnrollShape *s, real *const *w, UnrollActs *a, const TrainSequence *seq);
/* Sets all a->steps[i].df to zero, before the loss. */
void unroll_zero(const UnrollShape *s, UnrollActs *a, const TrainSequence *seq);
/* From a->steps[i].df, after the loss: adds to dw. */
void unroll_backward(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a);

/* The parts of these passes, for a network that makes the input of each step. After unroll_choose_rows it makes x of
 * each step, and with reads_pairs pair, in turn, and unroll_run_step computes f from them. After unroll_begin_back,
 * from the last step to the first, unroll_step_back turns df of a step into a->dx and a->dpair, the derivatives with
 * respect to x and pair; steps without rows are left out. */
void unroll_choose_rows(const UnrollShape *s, UnrollActs *a, const TrainSequence *seq);
void unroll_run_step(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step);
void unroll_begin_back(const UnrollShape *s, UnrollActs *a);
void unroll_step_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step);

/* The heads of a step (unroll_heads.c). Forward: q, k and v from the inputs of its attention, with a->angles; and the
 * input of Wo, which is p->attended or, with gates, p->gated. Backward: turns a->dattended, the derivative with respect
 * to that input, into that with respect to p->attended; and a->dq, p->dk and p->dv into that with respect to the
 * inputs, which is added to din. */
void unroll_heads_forward(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step, const real *in);
const real *unroll_gate_forward(const UnrollShape *s, UnrollActs *a, int32_t step);
void unroll_gate_back(const UnrollShape *s, UnrollActs *a, int32_t step);
void unroll_heads_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step,
                       const real *in, real *din);

/* The confidence head of src/draft/learned in training. */

typedef struct ConfidenceShape {
    const char *method; /* the name of the tensor begins with it */
    int32_t C;
    bool exists;
} ConfidenceShape;

/* The network of `eagle` and `lyanna`: a layer that continues from its own predictions, and token info on the logits of
 * each step. They differ only in their shapes; the functions are those of NetClass. */

typedef struct UnrollNet {
    UnrollShape layer;
    InfoShape info;             /* of the same method; rank 0: no token info */
    HeadLossOptions loss;       /* its n_steps is the layer's */
    GateShape gate;             /* of the same method; rank 0: token info does not depend on the state */
    bool info_skips_first;      /* token info and gate are added from step 2 on: the input of step 1 has that token */
    ConfidenceShape confidence; /* of the same method; the loss then has margins */
} UnrollNet;

/* ---- the networks (NAME_net.c) ------------------------------------------------------------------------------- */

/* EAGLE's layer: for an UnrollNet with the method "eagle", no norm before attention, and a token fused at each step. */
extern const NetClass eagle_net_class;

/* Lyanna's layer and token info: for an UnrollNet with the method "lyanna" and a norm before attention, whose later
 * steps read only the last output. */
extern const NetClass lyanna_net_class;

/* EAGLE-3's layers. */
typedef struct Eagle3Net {
    UnrollShape layer; /* the first one, with reads_pairs; its C and rope are the drafter's own */
    int32_t n_later;   /* layers after it */
    /* P-EAGLE: the tokens that a forward predicts, at least n_steps, and the mask token; block 0: none. */
    int32_t block, mask;
    int32_t V, n_target; /* the target's vocabulary and width */
    int32_t n_streams;
    bool has_fc_bias;
    bool has_own_output;            /* else the LM head is the target's */
    bool norms_streams, norms_each; /* a norm before fc: of all streams together, or of each */
    bool keeps_normed;              /* the residual stream begins with the normed state */
    bool continues_normed;          /* a later step reads the output after its norm */
    OwnVocabulary own;
    HeadLossOptions loss; /* its n_steps is the layer's; no loss of hidden states */
    OwnForm form;         /* of all layers: `layer` has none of its own */
    /* Only for the file; borrowed. */
    int32_t n_ctx;
    const int32_t *layers;     /* [n_streams] how many layers have run when each stream is read */
    const float *rope_factors; /* NULL: none */
} Eagle3Net;

extern const NetClass eagle3_net_class; /* its parts are in eagle3_net.h */

/* Layers for multi-token prediction (mtp_net.c). */
enum { MTP_MAX_LAYERS = 4 };

typedef struct MtpNet {
    UnrollShape layer; /* the target's; the net sets its n_steps and n_before for each of its layers */
    int32_t V, n_layers;
    HeadLossOptions loss; /* its n_steps is at least n_layers; no loss of hidden states */
    double norm_start;    /* initial value of the norms before the LM head */
    bool takes_norm;      /* a file to go on from has no such norms, and uses the target's */
    /* Only for the file; borrowed. */
    const Model *target;
    const char *ffn_norm; /* the name of that tensor in a layer */
} MtpNet;

extern const NetClass mtp_net_class;

/* Medusa's heads. */
typedef struct MedusaNet {
    int32_t C, V, n_heads, n_blocks; /* at most 8 heads */
    bool has_own_output;  /* each head has its own [V][C], initially the target's; else all use the target's */
    HeadLossOptions loss; /* its n_steps is n_heads */
} MedusaNet;

extern const NetClass medusa_net_class;

/* Hydra's heads. */
typedef struct HydraNet {
    int32_t C, V, n_heads, n_blocks; /* at most 8 heads; at least 1 block */
    bool has_own_output;  /* each head has its own [V][C], initially the target's; else all use the target's */
    double token_std;     /* initial deviation of the columns that read E: see start_token_std */
    HeadLossOptions loss; /* its n_steps is n_heads */
    bool has_skip_bias, has_output_bias; /* as in the authors' files; the second one needs outputs of its own */
    bool has_prefix;    /* Hydra++: the heads read what a layer of the method "hydra.prefix" makes of hidden states */
    UnrollShape prefix; /* that layer: one step, with a norm before attention and without fc */
    double norm_start;  /* initial value of the norm after it */
} HydraNet;

extern const NetClass hydra_net_class;

/* The recurrent head of ReDrafter. */
typedef struct RedrafterNet {
    int32_t C, V, n_blocks;
    InfoShape info;           /* token info added to the logits of each step; rank 0: none */
    bool starts_at_embedding; /* s_1 = E(x_1), as in the paper; else s_0 = 0, as in the released code */
    double token_std;         /* initial deviation of W: see start_token_std */
    HeadLossOptions loss;
} RedrafterNet;

extern const NetClass redrafter_net_class;

/* The masks of SPACE. */
typedef struct SpaceNet {
    MaskTarget target;
    int32_t V, n_blocks;
    double mask_std;      /* initial deviation of the masks */
    HeadLossOptions loss; /* its n_steps: masks of a group, at most MASK_MAX_STEPS */
} SpaceNet;

extern const NetClass space_net_class;

#endif
