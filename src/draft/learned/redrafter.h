/* redrafter.h - the contents of a file of the drafter `redrafter` (drafter_file.h): names shared by training, import
 * and drafting.
 *
 *   H hidden size, V vocabulary; W, U, O: see draft_redrafter.c
 *
 * Keys, after "forerun-drafter.":
 *   redrafter.block_count
 *   redrafter.start              the first state: "embedding" of the pending token, or "zero" before it
 * Tensors:
 *   redrafter.w.weight [H][H], redrafter.u.weight [H][H] and .bias [H]
 *   redrafter.block.<block>.weight [2H][2H] and .bias [2H], from 0 on
 *   redrafter.output.weight [V][2H] (O)
 * and, if it was trained with token info, the keys and tensors of token_info.h.
 */
#ifndef LEARNED_REDRAFTER_H
#define LEARNED_REDRAFTER_H

enum { REDRAFTER_MAX_BLOCKS = 16 };

#define REDRAFTER_KEY_BLOCK_COUNT "redrafter.block_count"
#define REDRAFTER_KEY_START "redrafter.start"

#define REDRAFTER_W "redrafter.w"            /* .weight */
#define REDRAFTER_U "redrafter.u"            /* .weight and .bias */
#define REDRAFTER_BLOCK "redrafter.block.%d" /* a format for printf, of the block; .weight and .bias */
#define REDRAFTER_OUTPUT "redrafter.output"  /* .weight */

#endif
