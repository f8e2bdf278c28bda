/* hydra.h - the contents of a file of the drafter `hydra` (drafter_file.h): names shared by training, import and
 * drafting.
 *
 *   H hidden size, V vocabulary; W, R, A: see draft_hydra.c
 *
 * Keys, after "forerun-drafter.":
 *   hydra.head_count
 *   hydra.block_count            blocks of each head, 1 or more
 *   hydra.output                 "own": each head has an output matrix; "target": the heads use the target's LM head
 * Tensors:
 *   hydra.<head>.in.weight [H][(head+2)H] (W) and .bias [H], hydra.<head>.skip.weight [H][(head+2)H] (R)
 *   hydra.<head>.block.<block>.weight [H][H] and .bias [H], from 1 on (A): the first block is `in` and `skip`
 *   hydra.<head>.output.weight [V][H], with "own"
 *   hydra.<head>.skip.bias [H] and .output.bias [V], optional: the published weights have them (import/import_hydra.c)
 */
#ifndef LEARNED_HYDRA_H
#define LEARNED_HYDRA_H

enum { HYDRA_MAX_HEADS = 16, HYDRA_MAX_BLOCKS = 8 };

#define HYDRA_KEY_HEAD_COUNT "hydra.head_count"
#define HYDRA_KEY_BLOCK_COUNT "hydra.block_count"
#define HYDRA_KEY_OUTPUT "hydra.output"

/* A name is a format for printf: HYDRA_HEAD, of the head, and one of the others; HYDRA_BLOCK of the block. */
#define HYDRA_HEAD "hydra.%d."
#define HYDRA_IN "in"          /* .weight and .bias */
#define HYDRA_SKIP "skip"      /* .weight; .bias is optional */
#define HYDRA_BLOCK "block.%d" /* .weight and .bias */
#define HYDRA_OUTPUT "output"  /* .weight; .bias is optional */

#endif
