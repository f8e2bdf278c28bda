/* test_chat_input.c - messages of several lines, and the turns of a conversation. */
#include "testing.h"

#include "cli/chat/line_editor.h"
#include "cli/chat/chat_session.h"

#include <stdlib.h>
#include <string.h>

/* ---- lines to messages --------------------------------------------------------------------------------- */

/* Feeds lines that are separated by ' ', and appends each message or command to `out` in brackets, with '!' before a
 * command. */
static const char *messages_of(const char *lines) {
    static char out[1000];
    ChatInput in = {.text.max_bytes = CHAT_INPUT_MAX_BYTES};
    out[0] = '\0';
    for (bool has_more = true; has_more;) {
        size_t n = strcspn(lines, "\n");
        chat_input_add(&in, lines, n);
        has_more = lines[n] == '\n';
        lines += n + 1;
        if (!has_more && in.state != CHAT_INPUT_MESSAGE && in.state != CHAT_INPUT_COMMAND) chat_input_end(&in);
        if (in.state != CHAT_INPUT_MESSAGE && in.state != CHAT_INPUT_COMMAND) continue;
        strcat(strcat(strcat(out, in.state == CHAT_INPUT_COMMAND ? "![" : "["), in.text.data), "]");
    }
    buf_free(&in.text);
    return out;
}

static void messages_have_several_lines(void **state) {
    (void)state;
    static const struct {
        const char *lines, *messages;
    } cases[] = {
        {"hello", "[hello]"},
        {"a\nb", "[a][b]"},
        {"a\n\n  \nb", "[a][b]"},
        {"", ""},
        {"a \\\nb \\\nc\nd", "[a \nb \nc][d]"},
        {"\"\"\"a\nb\n\"\"\"\nc", "[a\nb\n][c]"},
        {"\"\"\"\n\n a\\\n\"\"\"", "[\n\n a\\\n]"},
        {"\"\"\"one line\"\"\"", "[one line]"},
        {"\"\"\"\"\"\"\na", "[a]"},
        {"say \"\"\"", "[say \"\"\"]"},
        {"/help\n/save x y", "![/help]![/save x y]"},
        {" /etc is a folder", "[ /etc is a folder]"},
        {"\"\"\"/etc\"\"\"", "[/etc]"},
        {"a \\\n/help", "[a \n/help]"},
        {"\"\"\"not closed\nat all", "[not closed\nat all\n]"},
        {"not closed \\", "[not closed \n]"},
        {"\"\"\"", ""},
        {"\\", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(messages_of(cases[i].lines), cases[i].messages) != 0)
            fail_msg("'%s' gives %s, not %s", cases[i].lines, messages_of(cases[i].lines), cases[i].messages);
}

static void what_is_too_long_is_dropped(void **state) {
    (void)state;
    ChatInput in = {.text.max_bytes = 8};
    assert_int_equal(chat_input_add(&in, "\"\"\"1234", 7), CHAT_INPUT_QUOTED);
    assert_int_equal(chat_input_add(&in, "56789", 5), CHAT_INPUT_TOO_LONG);
    assert_int_equal(chat_input_add(&in, "abc", 3), CHAT_INPUT_MESSAGE);
    assert_string_equal(in.text.data, "abc");
    chat_input_add(&in, "a\\", 2);
    chat_input_drop(&in);
    assert_int_equal(chat_input_end(&in), CHAT_INPUT_EMPTY);
    buf_free(&in.text);
}

/* ---- turns --------------------------------------------------------------------------------------------- */

/* "user: a|assistant: b|" */
static const char *text_of(const ChatTurns *t, bool with_last_answer) {
    static char out[1000];
    fr_chat_message *messages;
    int n;
    assert_int_equal(chat_turns_messages(t, with_last_answer, &messages, &n, NULL), 0);
    out[0] = '\0';
    for (int i = 0; i < n; i++) strcat(strcat(strcat(strcat(out, messages[i].role), ": "), messages[i].content), "|");
    free(messages);
    return out;
}

static void turns_are_asked_answered_and_dropped(void **state) {
    (void)state;
    ChatTurns t = {0};
    const int32_t context[] = {1, 2, 3};
    assert_null(chat_turns_last(&t));
    assert_false(chat_turns_undo(&t));
    chat_turns_set_system(&t, "be kind", NULL);
    chat_turns_ask(&t, "why?xx", 4, NULL);
    assert_string_equal(text_of(&t, true), "system: be kind|user: why?|");
    chat_turns_answer(&t, "because", 7, context, 3, NULL);
    assert_string_equal(text_of(&t, true), "system: be kind|user: why?|assistant: because|");
    assert_string_equal(text_of(&t, false), "system: be kind|user: why?|");
    assert_memory_equal(chat_turns_last(&t)->context, context, sizeof context);
    chat_turns_ask(&t, "how?", 4, NULL);
    assert_string_equal(text_of(&t, false), "system: be kind|user: why?|assistant: because|user: how?|");
    chat_turns_answer(&t, "so", 2, NULL, 0, NULL);
    chat_turns_answer(&t, "thus", 4, NULL, 0, NULL);
    assert_string_equal(text_of(&t, true), "system: be kind|user: why?|assistant: because|user: how?|assistant: thus|");
    assert_true(chat_turns_undo(&t));
    assert_string_equal(text_of(&t, true), "system: be kind|user: why?|assistant: because|");
    chat_turns_set_system(&t, "", NULL);
    for (int i = 0; i < 40; i++) {
        chat_turns_ask(&t, "x", 1, NULL);
        chat_turns_answer(&t, "y", 1, context, 3, NULL);
    }
    assert_int_equal(t.n, 41);
    for (int i = 0; i < t.n; i++) assert_int_equal(t.items[i].context != NULL, i >= t.n - CHAT_TURNS_CONTEXTS);
    chat_turns_clear(&t);
    assert_string_equal(text_of(&t, true), "");
    chat_turns_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_have_several_lines),
        cmocka_unit_test(what_is_too_long_is_dropped),
        cmocka_unit_test(turns_are_asked_answered_and_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
