/* learned_files.h - the keys and tensors in the files of learned drafters (drafter_file.h): names that training, import
 * and drafting share.
 *
 *   H hidden size, V vocabulary, F feed-forward size
 *
 * Every key has the prefix "forerun-drafter." in the file. The name of a weight matrix ends in ".weight", that of a
 * bias in ".bias".
 */
#ifndef LEARNED_LEARNED_FILES_H
#define LEARNED_LEARNED_FILES_H

/* ---- medusa, hydra, redrafter, space, eagle and lyanna: the tokens of the LM head ------------------------- */

/* Key, optional: the tokens that logits are computed for, in rising order (head_tokens.c). The tensors have rows for
 * all tokens nevertheless. */
#define HEAD_TOKENS_KEY "head_tokens"

/* ---- medusa ---------------------------------------------------------------------------------------------- */

/* Keys:
 *   medusa.head_count
 *   medusa.block_count           blocks of each head
 *   medusa.output                "own": each head has an output matrix; "target": the heads use the target's LM head
 * Tensors:
 *   medusa.<head>.block.<block>.weight [H][H] and .bias [H]; both numbers begin at 0
 *   medusa.<head>.output.weight [V][H], with "own"
 *   medusa.accuracy [heads][ranks], optional: how often each head's token of each rank was right on held-out text */
enum { MEDUSA_MAX_HEADS = 16, MEDUSA_MAX_BLOCKS = 8 };

#define MEDUSA_KEY_HEAD_COUNT "medusa.head_count"
#define MEDUSA_KEY_BLOCK_COUNT "medusa.block_count"
#define MEDUSA_KEY_OUTPUT "medusa.output"

/* printf formats that take the head and the block. */
#define MEDUSA_BLOCK "medusa.%d.block.%d" /* .weight and .bias */
#define MEDUSA_OUTPUT "medusa.%d.output"  /* .weight */
#define MEDUSA_ACCURACY "medusa.accuracy"

/* ---- hydra ----------------------------------------------------------------------------------------------- */

/* Keys:
 *   hydra.head_count
 *   hydra.block_count            blocks of each head, 1 or more
 *   hydra.output                 "own": each head has an output matrix; "target": the heads use the target's LM head
 * Tensors (draft_hydra.c explains W, R and A):
 *   hydra.<head>.in.weight [H][(head+2)H] (W) and .bias [H], hydra.<head>.skip.weight [H][(head+2)H] (R)
 *   hydra.<head>.block.<block>.weight [H][H] and .bias [H] (A), from block 1 on: `in` and `skip` are the first block
 *   hydra.<head>.output.weight [V][H], with "own"
 *   hydra.<head>.skip.bias [H] and .output.bias [V], optional: the published weights have them (train/hydra.c)
 * A file of Hydra++ also has the prefix layer, whose key and tensors begin with HYDRA_PREFIX (below). */
enum { HYDRA_MAX_HEADS = 16, HYDRA_MAX_BLOCKS = 8 };

#define HYDRA_KEY_HEAD_COUNT "hydra.head_count"
#define HYDRA_KEY_BLOCK_COUNT "hydra.block_count"
#define HYDRA_KEY_OUTPUT "hydra.output"

/* A name is a printf format: HYDRA_HEAD, which takes the head, and one of the others; HYDRA_BLOCK takes the block. */
#define HYDRA_HEAD "hydra.%d."
#define HYDRA_IN "in"          /* .weight and .bias */
#define HYDRA_SKIP "skip"      /* .weight; .bias is optional */
#define HYDRA_BLOCK "block.%d" /* .weight and .bias */
#define HYDRA_OUTPUT "output"  /* .weight; .bias is optional */

#define HYDRA_PREFIX "hydra.prefix."

/* ---- redrafter ------------------------------------------------------------------------------------------- */

/* Keys:
 *   redrafter.block_count
 *   redrafter.start              the first state: "embedding" of the pending token, or "zero" before it
 * Tensors (draft_redrafter.c explains W, U and O):
 *   redrafter.w.weight [H][H], redrafter.u.weight [H][H] and .bias [H]
 *   redrafter.block.<block>.weight [2H][2H] and .bias [2H], from block 0 on
 *   redrafter.output.weight [V][2H] (O)
 * A file that was trained with token info also has the keys and tensors of token info (below). */
enum { REDRAFTER_MAX_BLOCKS = 16 };

#define REDRAFTER_KEY_BLOCK_COUNT "redrafter.block_count"
#define REDRAFTER_KEY_START "redrafter.start"

#define REDRAFTER_W "redrafter.w"            /* .weight */
#define REDRAFTER_U "redrafter.u"            /* .weight and .bias */
#define REDRAFTER_BLOCK "redrafter.block.%d" /* printf format that takes the block; .weight and .bias */
#define REDRAFTER_OUTPUT "redrafter.output"  /* .weight */

/* ---- space ----------------------------------------------------------------------------------------------- */

/* Keys:
 *   space.mask_count             masks in a group
 *   space.block_count            residual blocks that are applied to the target's hidden state at each mask
 * Tensors:
 *   space.masks [masks][H]       the vectors that the target reads in the place of a token's embedding
 *   space.<mask>.block.<block>.weight [H][H] and .bias [H]; both numbers begin at 0
 *   space.accuracy [masks][ranks], optional: how often each mask's token of each rank was right on held-out text */
enum { SPACE_MAX_MASKS = 8, SPACE_MAX_BLOCKS = 4 };

#define SPACE_KEY_MASK_COUNT "space.mask_count"
#define SPACE_KEY_BLOCK_COUNT "space.block_count"
#define SPACE_MASKS "space.masks"
#define SPACE_ACCURACY "space.accuracy"
#define SPACE_BLOCK "space.%d.block.%d" /* printf format that takes the mask and the block; .weight and .bias */

/* ---- eagle, lyanna and hydra: a transformer layer ---------------------------------------------------------- */

/* These methods have one layer with the target's heads and rope. A name is EAGLE, LYANNA or HYDRA_PREFIX and one of
 * these.
 *
 * Key:
 *   <method>.feed_forward_length F
 * Tensors:
 *   <method>.fc.weight, .bias [H], in eagle and lyanna
 *   <method>.attn_norm.weight [H], in lyanna (see lyanna.attn_norm) and hydra: eagle's layer has no such norm
 *   <method>.attn_q, _k, _v, _output.weight
 *   <method>.ffn_norm.weight [H], <method>.ffn_gate, _up, _down.weight
 *   <method>.output_norm.weight [H], only in hydra
 *
 * eagle: fc is [H][2H] and reads the token's embedding first, then the hidden state.
 *
 * lyanna has more keys:
 *   lyanna.first_token           "fused": the input of an entry is fc [E(x_{t+1}) ; h_t], embedding first, fc [H][2H]
 *                                "none": fc h_t, fc [H][H]: an ablation that measures what the token contributes
 *   lyanna.attn_norm             optional; "rms" (the default), or "none": the first layer, which was trained further
 *                                from an EAGLE drafter, has no norm before its attention; its chain is serial
 *   lyanna.chain                 optional; "serial" (the default): the input of step s + 1 is the output of step s;
 *                                "parallel": it is the first step's input plus row s of chain.inputs; steps beyond the
 *                                last row use the last row
 *   lyanna.chain.n_inputs        with "parallel": the number of those rows
 *   lyanna.later.feed_forward_length   optional; F of a layer of its own for the steps after the first, which see the
 *                                first layer's keys and values of the context and their own. Without it one layer
 *                                computes all steps
 *   lyanna.later.input           with that layer: "state": the input of step s + 1 is as above; "token": it is
 *                                later.fc [E(x_{t+1}) ; output of step s] with the token of the first input, and the
 *                                chain is serial
 *   lyanna.token_info.first_step optional; 1 (the default) or 2: the first step with token info and gate
 * and more tensors:
 *   lyanna.chain.inputs.weight [n_inputs][H], with "parallel"
 *   lyanna.later.<name>, with a later layer: the tensors above from attn_norm to ffn_down; with "token" also
 *                                lyanna.later.fc.weight [H][2H] and .bias [H]
 *
 * The files of eagle and lyanna can have token info and a confidence head (below); those of lyanna also a gate. */
#define EAGLE "eagle."
#define LYANNA "lyanna."

#define LAYER_KEY_FEED_FORWARD "feed_forward_length"
#define LAYER_FC "fc" /* computes the layer's input; .weight and .bias */
#define LAYER_FC_WEIGHT "fc.weight"
#define LAYER_FC_BIAS "fc.bias"
#define LAYER_ATTN_NORM "attn_norm.weight"
#define LAYER_ATTN_Q "attn_q.weight"
#define LAYER_ATTN_K "attn_k.weight"
#define LAYER_ATTN_V "attn_v.weight"
#define LAYER_ATTN_OUTPUT "attn_output.weight"
#define LAYER_FFN_NORM "ffn_norm.weight"
#define LAYER_FFN_GATE "ffn_gate.weight"
#define LAYER_FFN_UP "ffn_up.weight"
#define LAYER_FFN_DOWN "ffn_down.weight"
#define LAYER_OUTPUT_NORM "output_norm.weight"

#define LYANNA_KEY_FIRST_TOKEN LYANNA "first_token"
#define LYANNA_KEY_ATTN_NORM LYANNA "attn_norm"
#define LYANNA_KEY_CHAIN LYANNA "chain"
#define LYANNA_KEY_CHAIN_INPUTS LYANNA "chain.n_inputs"
#define CHAIN_INPUTS "chain.inputs.weight"
#define LYANNA_CHAIN_INPUTS LYANNA CHAIN_INPUTS
#define LAYER_LATER "later."
#define LYANNA_LATER "lyanna.later" /* the method's name for the tensors of the later layer */
#define LYANNA_KEY_LATER_INPUT LYANNA LAYER_LATER "input"
#define LYANNA_KEY_INFO_STEP LYANNA "token_info.first_step"

/* ---- eagle3 ------------------------------------------------------------------------------------------------ */

/* Names of keys and tensors are those of llama.cpp's files of the architecture eagle3, so that these are read as they
 * are. The names of keys follow EAGLE3; in a published file they have no prefix before it.
 *
 *   S number of the target's layers that are read, T hidden size of the target, D size of the drafter's vocabulary
 *   L number of layers, which is 1 in llama.cpp's files
 *
 * Keys: those of layers of the architecture llama (block_count L, embedding_length H, feed_forward_length F,
 *   attention.*, rope.*; attention.scale, a factor of scores, is 1 / sqrt(head size) if it is missing or 0),
 *   eagle3.target_layers         S numbers of layers that have run when a stream is read; extract_layers in older files
 *   eagle3.target_hidden_size    T
 *   eagle3.norm_before_residual  the residual stream of the layer begins with the normed hidden state
 *   eagle3.norm_before_fc        the streams have a norm before fc
 *   eagle3.norm_each_stream      that norm is one of each stream; not in published files
 *   eagle3.norm_output           the layer continues from its output after the final norm; not in published files
 *   eagle3.block_size            P-EAGLE: tokens that one forward predicts; not in files of llama.cpp, as the next one
 *   eagle3.mask_token_id         P-EAGLE: the token of all rows of a block but the first
 * Tensors:
 *   fc.weight [H][S T], fc.bias [H] (optional), enc.output_norm.weight [S T], with a norm before fc
 *   blk.0.attn_norm.weight [H] of the embedding, blk.0.attn_norm_2.weight [H] of the hidden state
 *   blk.0.attn_q, _k, _v.weight, which read 2H numbers, the embedding first; heads rotate pairs of neighbours
 *   blk.0.attn_output.weight, blk.0.ffn_norm.weight [H], blk.0.ffn_gate, _up, _down.weight
 *   blk.<layer>.attn_q, _k, _v, _output.bias, blk.<layer>.attn_q_norm, _k_norm.weight, optional; not in files of
 *   llama.cpp
 *   blk.<layer>.*, for later layers: the same without attn_norm_2; q, k and v read H numbers, the norm of its input
 *   mask_hidden.weight [S T], P-EAGLE: the streams of these rows
 *   output_norm.weight [H], output.weight [D][H] and token_embd.weight [V][H]; without them the target's are used
 *   d2t [D], I64, optional: the target's token for each of the drafter's tokens; without it D = V
 *   rope_freqs.weight, optional */
#define EAGLE3 "eagle3."
#define EAGLE3_KEY_LAYERS "target_layers"
#define EAGLE3_KEY_OLD_LAYERS "extract_layers"
#define EAGLE3_KEY_TARGET_WIDTH "target_hidden_size"
#define EAGLE3_KEY_NORM_BEFORE_RESIDUAL "norm_before_residual"
#define EAGLE3_KEY_NORM_BEFORE_FC "norm_before_fc"
#define EAGLE3_KEY_NORM_EACH_STREAM "norm_each_stream"
#define EAGLE3_KEY_NORM_OUTPUT "norm_output"
#define EAGLE3_KEY_BLOCK "block_size"
#define EAGLE3_KEY_MASK "mask_token_id"

#define EAGLE3_FC "fc" /* .weight; .bias is optional */
#define EAGLE3_STREAM_NORM "enc.output_norm.weight"
#define EAGLE3_LAYER "blk.%d.%s" /* printf format that takes the layer and a name such as LAYER_ATTN_NORM */
#define EAGLE3_OUTPUT_BIAS "attn_output.bias"
/* The names of biases of q, k, v and the output, and of norms of heads of q and k. */
#define EAGLE3_HEAD_VECTOR_NAMES \
    NEXTN_Q_BIAS, NEXTN_K_BIAS, NEXTN_V_BIAS, EAGLE3_OUTPUT_BIAS, NEXTN_Q_NORM, NEXTN_K_NORM
enum { EAGLE3_HEAD_VECTORS = 6 };
#define EAGLE3_HIDDEN_NORM "blk.0.attn_norm_2.weight"
#define EAGLE3_MASK_HIDDEN "mask_hidden.weight"
#define EAGLE3_OUTPUT_NORM "output_norm.weight"
#define EAGLE3_OUTPUT "output.weight"
#define EAGLE3_EMBEDDING "token_embd.weight"
#define EAGLE3_ROPE_FACTORS "rope_freqs.weight"

/* ---- layers of the form of Gemma 4's, of eagle3 and dflash ------------------------------------------------- */

/* The names of what such a layer has in addition are those of llama.cpp's files of dflash: printf formats that take the
 * layer. The last one is optional, and so is attn_v.weight, whose place attn_k.weight takes; heads of eagle3's files
 * rotate pairs, so that these have both. Scores are multiplied by attention.scale, which is 1 in these files. */
#define GEMMA_LAYER "blk.%d."
#define GEMMA_LAYER_ATTN_NORM "post_attention_norm" /* .weight [H], as the next one */
#define GEMMA_LAYER_FFN_NORM "post_ffw_norm"
#define GEMMA_POST_ATTN_NORM GEMMA_LAYER GEMMA_LAYER_ATTN_NORM ".weight"
#define GEMMA_POST_FFN_NORM GEMMA_LAYER GEMMA_LAYER_FFN_NORM ".weight"
#define GEMMA_OUT_SCALE "blk.%d.layer_output_scale.weight" /* [1] */

/* ---- dflash ------------------------------------------------------------------------------------------------ */

/* Names of keys and tensors are those of llama.cpp's files of the architecture dflash, so that these are read as they
 * are. In a published file the keys have no prefix before DFLASH. S, T and D are those of eagle3, L is the number of
 * layers.
 *
 * Keys: those of layers of the architecture qwen3 (block_count L, embedding_length H, attention.*, rope.*), with
 *   attention.scale as in eagle3, and
 *   dflash.block_size            slots of a block
 *   dflash.target_layers         S numbers of layers that have run when a stream is read
 *   dflash.mask_token_id         the token of the slots to be predicted; in a published file
 *                                tokenizer.ggml.mask_token_id
 *   dflash.target_hidden_size    T, optional
 *   dflash.attention.causal      true: a slot does not see later slots; without it false
 *   dflash.attention.causal_window   true: that holds in layers with a window; not in files of llama.cpp
 *   dflash.sample_from_anchor    true: slot i predicts the token after its own; without it true with a Markov head,
 *                                else false
 *   dflash.attention.sliding_window, .sliding_window_pattern   the window of the layers whose flag is set
 *   dflash.conv_kernel_size, .conv_group_size   DFlash 2: taps and channels of BlockConv (model.h)
 *   dflash.selector_top_k        DFlash 2: the candidates of each position
 *   dflash.embedding_scale       a factor of the embeddings of a block; without it 1, or in files that name their
 *                                target that of the target
 *   dflash.logit_scale, .final_logit_softcapping   what the LM head's logits are multiplied by, and their bound;
 *                                without them those of the target if its head is used
 * Tensors:
 *   fc.weight [H][S T], enc.output_norm.weight [H]
 *   blk.<layer>.attn_norm.weight [H], .attn_q, _k, _v, _output.weight (heads rotate halves), .attn_q_norm, .attn_k_norm
 *   and .attn_sinks.weight, .attn_q, _k, _v, _output.bias (optional), .ffn_norm.weight [H], .ffn_gate, _up,
 *   _down.weight
 *   output_norm.weight [H]
 *   output.weight [D][H], token_embd.weight [V][H], d2t [D] and rope_freqs.weight, as for eagle3
 *   DSpark, optional (logit_corrections.h has MarkovHead; r is its rank): markov_w1.weight [V][r], markov_w2.weight
 *   [D][r], conf_proj.weight [H + r] or [1][H + r] and .bias [1], both optional (with [H] also in files without a
 *   Markov head, which only forerun writes), and for a gated Markov head
 *   markov_gate.weight [r][H + r] and .bias [r], or for a recurrent one markov_joint.weight [3r][2r + H] and .bias
 *   [3r]. These two names are ours: no GGUF file of others with a gate or a recurrent head is known
 *   DFlash 2, optional: blk.<layer>.attn_conv_proj.weight and .ffn_conv_proj.weight [2 taps H / channels][H],
 *   .attn_conv_base and .ffn_conv_base [2][taps][H]; and with the rank r of the selector (logit_corrections.h has
 *   TokenSelector) selector_predecessor.weight [V][r], selector_successor.weight [V][r], selector_hidden.weight [r][H]
 *
 * Older files of the architecture dflash-draft, and Lucebox's of qwen35-dflash-draft, have other names for some of
 * them, and count target_layer_ids from the output of layer 0. */
#define DFLASH "dflash."
enum { DFLASH_MAX_SELECTOR_RANK = 4096 };

#define DFLASH_KEY_BLOCK "block_size"
#define DFLASH_KEY_LAYERS "target_layers"
#define DFLASH_KEY_MASK "mask_token_id"
#define DFLASH_VOCABULARY_MASK "tokenizer.ggml.mask_token_id"
#define DFLASH_KEY_TARGET_WIDTH "target_hidden_size"
#define DFLASH_KEY_CAUSAL "attention.causal"
#define DFLASH_KEY_CAUSAL_WINDOW "attention.causal_window"
#define DFLASH_KEY_FROM_ANCHOR "sample_from_anchor"
#define DFLASH_KEY_WINDOW "attention.sliding_window"
#define DFLASH_KEY_WINDOW_PATTERN "attention.sliding_window_pattern"
#define DFLASH_KEY_CONV_TAPS "conv_kernel_size"
#define DFLASH_KEY_CONV_GROUP "conv_group_size"
#define DFLASH_KEY_SELECTOR_RANK "selector_rank"
#define DFLASH_KEY_SELECTOR_TOP "selector_top_k"
#define DFLASH_KEY_EMBEDDING_SCALE "embedding_scale"
#define DFLASH_KEY_LOGIT_SCALE "logit_scale"
#define DFLASH_KEY_LOGIT_CAP "final_logit_softcapping"

#define DFLASH_FC "fc.weight"
#define DFLASH_CONTEXT_NORM "enc.output_norm.weight"
#define DFLASH_OUTPUT_NORM "output_norm.weight"
#define DFLASH_OUTPUT "output.weight"
#define DFLASH_EMBEDDING "token_embd.weight"
#define DFLASH_ROPE_FACTORS "rope_freqs.weight"
#define DFLASH_MARKOV_BEFORE "markov_w1.weight"
#define DFLASH_MARKOV_OUTPUT "markov_w2.weight"
#define DFLASH_MARKOV_GATE "markov_gate" /* .weight and .bias, as the next one */
#define DFLASH_MARKOV_JOINT "markov_joint"
#define DFLASH_CONFIDENCE "conf_proj"
#define DFLASH_SELECTOR_BEFORE "selector_predecessor.weight"
#define DFLASH_SELECTOR_AFTER "selector_successor.weight"
#define DFLASH_SELECTOR_HIDDEN "selector_hidden" /* .weight */
#define DFLASH_LAYER "blk.%d.%s.weight"          /* printf format of the names below */
#define DFLASH_ATTN_NORM "attn_norm"
#define DFLASH_ATTN_Q "attn_q"
#define DFLASH_ATTN_K "attn_k"
#define DFLASH_ATTN_V "attn_v"
#define DFLASH_ATTN_OUTPUT "attn_output"
#define DFLASH_Q_NORM "attn_q_norm"
#define DFLASH_K_NORM "attn_k_norm"
#define DFLASH_SINKS "attn_sinks"
#define DFLASH_FFN_NORM "ffn_norm"
#define DFLASH_FFN_GATE "ffn_gate"
#define DFLASH_FFN_UP "ffn_up"
#define DFLASH_FFN_DOWN "ffn_down"
/* printf formats of the names of vectors; q, k, v and the output can have biases */
#define DFLASH_WEIGHT(name) "blk.%d." name ".weight"
#define DFLASH_BIAS(name) "blk.%d." name ".bias"
#define DFLASH_ATTN_CONV "attn_conv_proj"
#define DFLASH_FFN_CONV "ffn_conv_proj"
#define DFLASH_CONV_BASE "blk.%d.%s_conv_base" /* printf format; attn or ffn */

/* ---- mtp --------------------------------------------------------------------------------------------------- */

/* The file is a companion of the target (Nextn in model.h): its architecture and keys, with more layers in block_count,
 * <architecture>.nextn_predict_layers, copies of its embedding, output norm and LM head, and for each layer the tensors
 * blk.<N>.<name> of a layer of the target's own, with the names of LAYER_ATTN_NORM to LAYER_FFN_DOWN above, and
 * these: */
#define NEXTN_FC "nextn.eh_proj.weight"       /* [H][2H] */
#define NEXTN_TOKEN_NORM "nextn.enorm.weight" /* [H], as the next two */
#define NEXTN_HIDDEN_NORM "nextn.hnorm.weight"
#define NEXTN_OUTPUT_NORM "nextn.shared_head_norm.weight"
#define NEXTN_Q_NORM "attn_q_norm.weight" /* [head_dim], optional, as the next one */
#define NEXTN_K_NORM "attn_k_norm.weight"
#define NEXTN_Q_BIAS "attn_q.bias" /* optional, as the next two */
#define NEXTN_K_BIAS "attn_k.bias"
#define NEXTN_V_BIAS "attn_v.bias"

/* ---- mtp, with an assistant of Gemma 4 ----------------------------------------------------------------------- */

/* Published files of the architecture gemma4-assistant, as llama.cpp's converter writes them. Each key begins with the
 * name of that architecture. They are the keys of gemma4, and these:
 *   nextn_predict_layers         the number of layers, all of which run in each step
 *   embedding_length_out         the width of the target's hidden states, T
 *   centroid_top_k (32), use_ordered_embeddings (true), n_centroids   optional, for files with clusters: how many are
 *                                computed, whether they are used, and C
 * Tensors, where H is the width of the layers:
 *   nextn.pre_projection.weight [H][2T], nextn.post_projection.weight [T][H]
 *   token_embd.weight [V][H]     the LM head; output_norm.weight [H]
 *   rope_freqs.weight            divisors of the frequencies in layers without a window, as in the target's file
 *   masked_embd_centroids.weight [C][H], masked_embd_ordering [V]   optional: the C clusters of an LM head
 *                                (cluster_head.c), and the tokens of each, V / C of them
 *   blk.<layer>.<name>: attn_norm, post_attention_norm, ffn_norm and post_ffw_norm [H], attn_q_norm [head_dim],
 *     layer_output_scale [1], attn_q, attn_output, ffn_gate, ffn_up and ffn_down, ".weight" each. There are no keys or
 *     values: a layer reads those of the target's last layer of its kind, with or without a window, that has some. */
#define ASSISTANT_KEY_LAYERS "nextn_predict_layers"
#define ASSISTANT_KEY_TARGET_WIDTH "embedding_length_out"
#define ASSISTANT_KEY_WINDOWS "attention.sliding_window_pattern" /* a flag for each layer */
#define ASSISTANT_KEY_TOP_CLUSTERS "centroid_top_k"
#define ASSISTANT_KEY_USES_CLUSTERS "use_ordered_embeddings"
#define ASSISTANT_KEY_CLUSTERS "n_centroids"
#define ASSISTANT_CENTROIDS "masked_embd_centroids.weight"
#define ASSISTANT_BEFORE "nextn.pre_projection" /* .weight */
#define ASSISTANT_AFTER "nextn.post_projection" /* .weight */
#define ASSISTANT_EMBEDDING "token_embd.weight"
#define ASSISTANT_OUTPUT_NORM "output_norm.weight"
#define ASSISTANT_ROPE_FACTORS "rope_freqs.weight"
#define ASSISTANT_LAYER "blk.%d.%s" /* printf format of the names below and of LAYER_ATTN_NORM to NEXTN_Q_NORM */
#define ASSISTANT_POST_ATTN_NORM "post_attention_norm.weight"
#define ASSISTANT_POST_FFN_NORM "post_ffw_norm.weight"
#define ASSISTANT_OUT_SCALE "layer_output_scale.weight"

/* ---- corrections of the logits ----------------------------------------------------------------------------- */

/* logit_corrections.h has what these numbers are for. The names follow the method's name and a dot.
 *
 * Token info of eagle, lyanna and redrafter; d is its rank, n the number of tokens that have info. Keys:
 *   <method>.token_info.rank     d; 0, or the key is missing: the file has no token info
 *   <method>.hot_tokens          optional; array of I32, ascending: the only tokens that have info, and whose logits
 *                                it changes; without it the whole vocabulary
 * Tensors, if d > 0:
 *   <method>.token_info.down.weight [d][H], .up.weight [n][d], .gain [n] */
#define TOKEN_INFO_KEY_RANK "token_info.rank"
#define TOKEN_INFO_KEY_HOT_TOKENS "hot_tokens"
#define TOKEN_INFO_DOWN "token_info.down" /* .weight */
#define TOKEN_INFO_UP "token_info.up"     /* .weight */
#define TOKEN_INFO_GAIN "token_info.gain"

/* The gate of lyanna's token info; r is its rank. Key:
 *   lyanna.gate.rank             r; 0, or the key is missing: the file has no gate
 * Tensors, if r > 0:
 *   lyanna.gate.state.weight [r][H], lyanna.gate.token.weight [r][H], lyanna.gate.up.weight [V][r] */
#define GATE_KEY_RANK "gate.rank"
#define GATE_STATE_FACTOR "gate.state" /* .weight */
#define GATE_TOKEN_FACTOR "gate.token" /* .weight */
#define GATE_OUTPUT "gate.up"          /* .weight */

/* The confidence head of eagle and lyanna, optional. Tensor:
 *   <method>.confidence [H + 2]  w, then b and a: the logit of the chance is  w state + b + (1 + a) logit(p),  where p
 *                                is the drafter's own estimate */
#define CONFIDENCE "confidence"
enum { CONFIDENCE_BIAS, CONFIDENCE_SLOPE, CONFIDENCE_SCALARS }; /* indices of b and a after the H weights */

#endif
