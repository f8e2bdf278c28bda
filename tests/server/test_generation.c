/* test_generation.c - the end of a generation between the two threads: whatever is posted at which time, the event loop
 * gets the end exactly once, and nothing is delivered after it. */
#include "testing.h"

#include "server/engine/generation.h"

#include <string.h>

typedef struct Watch {
    int n_news, n_ends;
    bool ends_meanwhile; /* the engine thread ends the generation while its news are being delivered */
} Watch;

static void end(Generation *g) {
    g->result->finish = FR_FINISH_EOS;
    generation_end(g);
}

static void on_news(Generation *g) {
    Watch *w = g->user;
    TokenBatch fresh = {.tokens = NULL};
    w->n_news++;
    assert_int_equal(w->n_ends, 0);
    if (w->ends_meanwhile && w->n_news == 1) end(g);
    bool has_ended = generation_take(g, &fresh);
    token_batch_free(&fresh);
    if (!has_ended) return;
    assert_int_equal(g->result->finish, FR_FINISH_EOS);
    w->n_ends++;
    generation_free(g);
}

static Generation *begin(Mailbox *mailbox, Watch *w) {
    Generation *g = generation_new(
        NULL, &(fr_request_options){.struct_size = sizeof(fr_request_options), .n_prompt = 0}, mailbox);
    assert_non_null(g);
    g->on_news = on_news;
    g->user = w;
    return g;
}

static void an_end_during_a_delivery_is_delivered_by_itself(void **state) {
    (void)state;
    Mailbox mailbox;
    fr_error err;
    assert_int_equal(mailbox_open(&mailbox, &err), FR_OK);
    Watch w = {.ends_meanwhile = true};
    mailbox_post(&mailbox, &begin(&mailbox, &w)->message);
    mailbox_deliver(&mailbox);
    assert_int_equal(w.n_news, 2);
    assert_int_equal(w.n_ends, 1);
    mailbox_close(&mailbox);
}

static void news_and_the_end_are_one_delivery_where_both_wait(void **state) {
    (void)state;
    Mailbox mailbox;
    fr_error err;
    assert_int_equal(mailbox_open(&mailbox, &err), FR_OK);
    Watch w = {.n_news = 0};
    Generation *g = begin(&mailbox, &w);
    mailbox_post(&mailbox, &g->message);
    end(g);
    mailbox_deliver(&mailbox);
    assert_int_equal(w.n_news, 1);
    assert_int_equal(w.n_ends, 1);
    mailbox_close(&mailbox);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_end_during_a_delivery_is_delivered_by_itself),
                                       cmocka_unit_test(news_and_the_end_are_one_delivery_where_both_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
