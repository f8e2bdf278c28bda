/* nets.h - the drafters' networks, each with its shape: what src/draft/learned runs, in a form that can be trained. */
#ifndef TRAIN_NETS_H
#define TRAIN_NETS_H

#include "train/head_loss.h"
#include "train/token_info_net.h"
#include "train/mask_rows.h"
#include "train/unroll.h"

/* EAGLE's layer: for an UnrollNet with the method "eagle", no norm before attention, and a token fused at each step. */
extern const NetClass eagle_net_class;

/* Lyanna's layer and token info: for an UnrollNet with the method "lyanna" and a norm before attention, whose later
 * steps read only the last output. */
extern const NetClass lyanna_net_class;

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
