/* cluster_head.c - the LM head of the assistants of Gemma 4 E2B and E4B (Google 2026; transformers,
 * Gemma4AssistantMaskedEmbedder), which computes the logits of some clusters of tokens only.
 *
 * The problem. An assistant has four narrow layers and 262,144 tokens, so that its LM head is nearly all of it.
 *
 * The idea. The vocabulary is divided into C clusters of equally many tokens, which were found when the assistant was
 * trained. Each cluster has a centroid, a vector of the width H of the layers. A state f is first compared with the
 * centroids, and then only with the tokens of the best clusters:
 *
 *     scores  = centroids f                              [C]
 *     best    = the n_top clusters of greatest score     32 of 2,048 in the published files
 *     logits  = W_t f for each token t of these clusters, -infinity for the others
 *
 *     tokens           12  7  3 | 0  9  1 | 4 ...        the list masked_embd_ordering, three tokens to a cluster here
 *     scores            2.1       -.3       1.7
 *     logits, n_top 2   .5 .1 .9  -inf..    .2 ...
 *
 * transformers gives the other tokens the least of the computed logits minus 1, so that a draw could still choose them;
 * here they are never drafted. The choice between the computed ones is the same.
 *
 * The rows of a cluster become a matrix of their own when the file is opened, because they are not neighbours in the
 * file. Rows are quantised by themselves, so that a logit has the same bits as in the whole head.
 *
 * Cost: C + n_top V / C rows of H numbers in the place of V, 6,144 for 262,144, and the memory of a second copy of the
 * head. When it loses: where the best token is in a cluster whose centroid is not near. Proof:
 * tests/draft/test_draft_mtp_assistant.c. */
#include "draft/learned/assistant.h"

#include "draft/learned/learned_files.h"

#include <math.h>
#include <string.h>

/* Copies the rows of the tokens of all clusters, and opens a matrix for each cluster. */
static int open_rows(ClusterHead *c, const GgufTensor *head, fr_error *err) {
    LearnedDrafter *l = c->learned;
    size_t row_bytes = head->bytes / (size_t)head->dims[1];
    char *rows;
    GgufTensor *tensors;
    const ArenaItem items[] = {ARENA_ITEM(&rows, (size_t)head->dims[1] * row_bytes), ARENA_ITEM(&tensors, c->n),
                               ARENA_ITEM(&c->rows, c->n)};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "an LM head in clusters", err);
    for (int32_t i = 0; i < c->n && !status; i++) {
        char *of_cluster = rows + (size_t)i * (size_t)c->n_each * row_bytes;
        for (int32_t k = 0; k < c->n_each; k++)
            memcpy(of_cluster + (size_t)k * row_bytes,
                   (const char *)head->data + (size_t)c->tokens[i * c->n_each + k] * row_bytes, row_bytes);
        tensors[i] = *head;
        tensors[i].dims[1] = c->n_each;
        tensors[i].bytes = (size_t)c->n_each * row_bytes;
        tensors[i].data = of_cluster;
        status = l->backend->linear_open(&c->rows[i], l->device, l->weights, &tensors[i], NULL, 1, err);
    }
    return status;
}

int cluster_head_open(ClusterHead *c, LearnedDrafter *learned, const GgufTensor *head, int32_t n_top,
                      const GgufTensor **centroids, fr_error *err) {
    const char *path = gguf_path(learned->file.gguf);
    const GgufTensor *t = gguf_find_tensor(learned->file.gguf, ASSISTANT_CENTROIDS);
    int32_t n_vocab = (int32_t)head->dims[1];
    int64_t n = t->n_dims == 2 ? t->dims[1] : 0;
    if (n < 1 || n > n_vocab || n_vocab % n)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s has %lld clusters, which do not divide %d tokens evenly",
                         path, ASSISTANT_CENTROIDS, (long long)n, n_vocab);
    if (n_top > n)
        return error_set(err, FR_ERR_FORMAT, "%s: %s is %d, but there are only %lld clusters", path,
                         ASSISTANT_KEY_TOP_CLUSTERS, n_top, (long long)n);
    *c = (ClusterHead){.learned = learned, .n = (int32_t)n, .n_top = n_top, .n_each = n_vocab / (int32_t)n};
    const LearnedBuffer buffers[] = {{&c->hidden, head->dims[0]}, {&c->logits, (int64_t)n_top * c->n_each}};
    int status = drafter_file_matrix(&learned->file, ASSISTANT_CENTROIDS, head->dims[0], n, centroids, err);
    if (!status) status = drafter_file_clusters(&learned->file, n_vocab, &c->tokens, err);
    if (!status) status = learned_open_buffers(learned, buffers, ARENA_COUNT(buffers), err);
    return status ? status : open_rows(c, head, err);
}

void cluster_head_close(ClusterHead *c) {
    for (int32_t i = 0; c->rows && i < c->n; i++) learned_linear_close(c->learned, c->rows[i]);
    mem_free(c->tokens);
}

void cluster_head_logits(ClusterHead *c, const float *scores, const float *hidden, float *logits) {
    const LearnedDrafter *l = c->learned;
    int32_t best[TOP_K_MAX], n = logits_top_k(scores, c->n, c->n_top, best);
    learned_write(c->hidden, 0, hidden, c->hidden->n);
    for (int32_t k = 0; k < n; k++)
        l->backend->linear(l->device, c->rows[best[k]], LINEAR_SET, (Slice){c->hidden, 0}, 1,
                           (Slice){c->logits, (int64_t)k * c->n_each});
    buffer_pull(c->logits, 0, (int64_t)n * c->n_each);
    for (int32_t i = 0; i < l->n_vocab; i++) logits[i] = -INFINITY;
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = 0; i < c->n_each; i++)
            logits[c->tokens[best[k] * c->n_each + i]] = c->logits->floats[k * c->n_each + i];
}
