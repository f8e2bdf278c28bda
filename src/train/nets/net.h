/* net.h - what a drafter's network is to the trainer of drafters: its tensors, and one lesson forward and back.
 *
 * A network is a frozen target's pupil. The target has read a sequence x_0 .. x_T-1 and left its hidden state h_p at each
 * token; its distribution of x_{p+1} is softmax(head h_p). A drafter that stands at token t knows h_t and x_{t+1} (the pending
 * token). Its step s = 1, 2, ... guesses x_{t+s+1}, of which the target's distribution is that of place p = t + s.
 *
 *     place     0    1    2    3          from t = 1:  step 1 guesses x_3, as the target does at place 2
 *     token     x0   x1   x2   x3                      step 2 guesses x_4, as the target does at place 3
 *     hidden    h0   h1   h2   h3
 *
 * Files of networks are written over `real` (real.h): tests compile them with double and prove every derivative. */
#ifndef NETS_NET_H
#define NETS_NET_H

#include "format/gguf_write.h"
#include "train/ops/real.h"
#include "train/nets/trainer.h"

/* One sequence. Shapes: T tokens, C the target's width, V its vocabulary. Borrowed. */
typedef struct TrainSequence {
    int32_t T;
    const int32_t *tokens; /* [T + 1] */
    const uint8_t *loss_mask; /* [T]: does what is said at place p, of token p + 1, count? */
    const real *hidden;    /* [T][C] after the final norm */
    const real *embd;      /* [V][C] the target's embedding */
    const real *head;      /* [V][C] its output matrix */
    const real *noise;     /* [T][C] is added to the states that eagle's layer reads, not to those it is judged by; NULL: none */
} TrainSequence;

typedef enum NetStart {
    NET_NORMAL, /* normal numbers of deviation `std` */
    NET_CONSTANT, /* each `std` */
    NET_ONES,
    NET_ZEROS,
    NET_FUSE,   /* [n_rows][n], n >= n_rows: the identity in the last n_rows columns, NET_NORMAL before: of several inputs side
                 * by side the last goes through */
    NET_PASS,   /* the same with the identity in the first n_rows columns, NET_NORMAL behind: the first input goes through */
    NET_HEAD,   /* [V][n], n >= C: the target's output matrix in the last C columns, NET_NORMAL before */
    NET_LAYER,  /* the tensor of that suffix ("attn_q.weight") in the target's last layer; where it has none or one of
                 * another shape, NET_NORMAL */
} NetStart;

typedef struct NetTensor {
    char name[64];      /* in the drafter's file */
    int64_t n_rows, n;  /* n_rows 0: a vector */
    NetStart start;
    double std;         /* 0: zeros */
    const char *suffix; /* of NET_LAYER */
} NetTensor;

/* `net` is the method's own struct, which holds its shape. Matrices decay, vectors do not. */
typedef struct NetClass {
    const char *method;
    int32_t (*n_tensors)(const void *net);
    NetTensor (*tensor)(const void *net, int32_t i);
    /* The activations of one sequence of up to max_length tokens; each thread has its own. NULL: no memory, and err says so. */
    void *(*acts_open)(const void *net, int32_t max_length, fr_error *err);
    void (*acts_close)(void *acts); /* NULL is fine */
    /* Adds `weight` times the gradient of the lesson's loss to dw (NULL: the sums alone), and adds to the sums. w, dw:
     * [n_tensors] values and gradients. */
    void (*learn)(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *train_sequence, double weight,
                  TrainSums *sums);
    /* The keys "forerun-drafter.<method>.*" of the file, and tensors that are not trained. */
    void (*set_keys)(const void *net, GgufWriter *w);
    const char *accuracy; /* the tensor that takes DrafterTraining.accuracy; NULL: the drafter has no use for it */
} NetClass;

/* Elements of the tensor. */
static inline int64_t net_tensor_count(const NetTensor *t) { return (t->n_rows ? t->n_rows : 1) * t->n; }

#endif
