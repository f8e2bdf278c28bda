/* test_http_head.c - heads of requests: the values that are read from them, and that no cut or changed head leads to a
 * read outside. */
#include "testing.h"

#include "server/http/http_server.h"

#include <stdlib.h>
#include <string.h>

static HttpHead head;
static char *bytes; /* the bytes of the last head, with exactly its length, so that sanitizers detect reads beyond it */

static int parse(const char *text, size_t n) {
    const char *why = NULL;
    free(bytes);
    bytes = malloc(n + 1);
    memcpy(bytes, text, n);
    bytes[n] = '\0';
    int status = http_head_parse(&head, bytes, n, &why);
    if (status) assert_true(strlen(why) > 10);
    return status;
}

static void a_head_is_read(void **state) {
    (void)state;
    static const char text[] = "POST /v1/a%20b?x=%31&y HTTP/1.1\r\nHost: h:80\r\ncontent-LENGTH:  12 \r\nEmpty:\r\n"
                               "Connection: Keep-Alive, Close\r\nExpect: 100-continue\r\n\r\n";
    assert_int_equal(parse(text, sizeof text - 1), 0);
    assert_string_equal(head.method, "POST");
    assert_string_equal(head.path, "/v1/a b");
    assert_string_equal(head.query, "x=%31&y");
    assert_string_equal(http_head_find(&head, "host"), "h:80");
    assert_string_equal(http_head_find(&head, "EMPTY"), "");
    assert_null(http_head_find(&head, "Hos"));
    assert_int_equal(head.content_length, 12);
    assert_false(head.keeps_alive);
    assert_true(head.expects_continue);
    assert_false(head.is_chunked);
}

static void connections_stay_open_by_version(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool keeps_alive;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: closed\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: te,close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].text, strlen(cases[i].text)), 0);
        assert_int_equal(head.keeps_alive, cases[i].keeps_alive);
    }
}

/* A head is refused wherever it is cut; a head with a changed byte is refused or read. */
static void cut_and_changed_heads(void **state) {
    (void)state;
    static const char text[] = "POST /v1/a%20b?x=%31 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n";
    char changed[sizeof text];
    for (size_t n = 0; n < sizeof text - 1; n++) assert_int_not_equal(parse(text, n), 0);
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (int c = 0; c < 256; c++) {
            memcpy(changed, text, sizeof text);
            changed[i] = (char)c;
            int status = parse(changed, sizeof text - 1);
            assert_true(status == 0 || (status >= 400 && status <= 505));
        }
    free(bytes);
    bytes = NULL;
}

static void too_many_headers(void **state) {
    (void)state;
    char text[2048] = "GET / HTTP/1.1\r\nHost: x\r\n";
    for (int i = 1; i < HTTP_MAX_HEADERS; i++) strcat(text, "A: b\r\n");
    size_t n = strlen(text);
    strcat(text, "\r\n");
    assert_int_equal(parse(text, strlen(text)), 0);
    strcpy(text + n, "A: b\r\n\r\n");
    assert_int_equal(parse(text, strlen(text)), 431);
    free(bytes);
    bytes = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read),
        cmocka_unit_test(connections_stay_open_by_version),
        cmocka_unit_test(cut_and_changed_heads),
        cmocka_unit_test(too_many_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
