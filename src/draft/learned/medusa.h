/* medusa.h - the contents of a file of the drafter `medusa` (drafter_file.h): names shared by training, import and
 * drafting.
 *
 *   H hidden size, V vocabulary
 *
 * Keys, after "forerun-drafter.":
 *   medusa.head_count
 *   medusa.block_count           blocks of each head
 *   medusa.output                "own": each head has an output matrix; "target": the heads use the target's LM head
 * Tensors:
 *   medusa.<head>.block.<block>.weight [H][H] and .bias [H], from 0 on
 *   medusa.<head>.output.weight [V][H], with "own"
 *   medusa.accuracy [heads][ranks], optional: how often each head's token of each rank was right on held-out text
 */
#ifndef LEARNED_MEDUSA_H
#define LEARNED_MEDUSA_H

enum { MEDUSA_MAX_HEADS = 16, MEDUSA_MAX_BLOCKS = 8 };

#define MEDUSA_KEY_HEAD_COUNT "medusa.head_count"
#define MEDUSA_KEY_BLOCK_COUNT "medusa.block_count"
#define MEDUSA_KEY_OUTPUT "medusa.output"

/* Formats for printf, of head and block. */
#define MEDUSA_BLOCK "medusa.%d.block.%d" /* .weight and .bias */
#define MEDUSA_OUTPUT "medusa.%d.output"  /* .weight */
#define MEDUSA_ACCURACY "medusa.accuracy"

#endif
