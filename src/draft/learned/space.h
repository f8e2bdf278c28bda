/* space.h - the contents of a file of the drafter `space` (drafter_file.h): names shared by training and drafting.
 *
 *   H hidden size
 *
 * Keys, after "forerun-drafter.":
 *   space.mask_count             masks of a group
 *   space.block_count            residual blocks after the target's hidden state at each mask
 * Tensors:
 *   space.masks [masks][H]       what runs through the target in the place of a token's embedding
 *   space.<mask>.block.<block>.weight [H][H] and .bias [H], from 0 on
 *   space.accuracy [masks][ranks], optional: how often each mask's token of each rank was right on held-out text
 */
#ifndef LEARNED_SPACE_H
#define LEARNED_SPACE_H

enum { SPACE_MAX_MASKS = 8, SPACE_MAX_BLOCKS = 4 };

#define SPACE_KEY_MASK_COUNT "space.mask_count"
#define SPACE_KEY_BLOCK_COUNT "space.block_count"
#define SPACE_MASKS "space.masks"
#define SPACE_ACCURACY "space.accuracy"

/* Formats for printf, of mask and block. */
#define SPACE_BLOCK "space.%d.block.%d" /* .weight and .bias */

#endif
