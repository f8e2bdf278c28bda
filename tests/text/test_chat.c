/* test_chat.c - Unit tests of text/chat.c: whole conversations as the published templates write them, and which
 * templates are recognised. */
#include "testing.h"

#include "text/chat.h"

#include <string.h>

static const ChatMessage two_turns[] = {
    {"system", "Be kind."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye?"}};

static const struct {
    ChatFamily family;
    const char *with_system, *without, *one;
} expected[] = {
    {CHAT_LLAMA2, "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye? [/INST]",
     "[INST] Hi [/INST] Hello! </s><s>[INST] Bye? [/INST]", "[INST] Hi [/INST]"},
    {CHAT_LLAMA3,
     "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nBye?<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nBye?<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\n"},
    {CHAT_VICUNA, "Be kind. USER: Hi ASSISTANT: Hello!</s>USER: Bye? ASSISTANT:",
     "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
     "detailed, and polite answers to the user's questions. USER: Hi ASSISTANT: Hello!</s>USER: Bye? "
     "ASSISTANT:",
     "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
     "detailed, and polite answers to the user's questions. USER: Hi ASSISTANT:"},
    {CHAT_CHATML,
     "<|im_start|>system\nBe "
     "kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
     "<|im_start|>user\nBye?<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
     "<|im_start|>user\nBye?<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
    {CHAT_MISTRAL, "[INST] Be kind.\n\nHi [/INST] Hello!</s>[INST] Bye? [/INST]",
     "[INST] Hi [/INST] Hello!</s>[INST] Bye? [/INST]", "[INST] Hi [/INST]"},
    {CHAT_ZEPHYR,
     "<|system|>\nBe "
     "kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye?</s>\n<|assistant|>\n",
     "<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye?</s>\n<|assistant|>\n",
     "<|user|>\nHi</s>\n<|assistant|>\n"},
    {CHAT_GEMMA,
     "<start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
     "<start_of_turn>user\nBye?<end_of_turn>\n<start_of_turn>model\n",
     "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
     "<start_of_turn>user\nBye?<end_of_turn>\n<start_of_turn>model\n",
     "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"},
    {CHAT_PHI3,
     "<|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nBye?<|end|>\n"
     "<|assistant|>\n",
     "<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nBye?<|end|>\n<|assistant|>\n",
     "<|user|>\nHi<|end|>\n<|assistant|>\n"},
    {CHAT_PLAIN, "Be kind.\nUSER: Hi\nASSISTANT: Hello!</s>\nUSER: Bye?\nASSISTANT:",
     "USER: Hi\nASSISTANT: Hello!</s>\nUSER: Bye?\nASSISTANT:", "USER: Hi\nASSISTANT:"},
};

static void check(ChatFamily family, const ChatMessage *messages, int n, const char *want) {
    Buf out = {.max_bytes = 4096};
    fr_error err = {0};
    if (chat_format(family, messages, n, &out, NULL, NULL, &err))
        fail_msg("%s: %s", chat_family_name(family), err.message);
    if (strcmp(out.data, want) != 0)
        fail_msg("%s:\nwant \"%s\"\ngot  \"%s\"", chat_family_name(family), want, out.data);
    buf_free(&out);
}

static void conversations_are_written_as_published(void **state) {
    (void)state;
    assert_int_equal(sizeof expected / sizeof *expected, CHAT_FAMILY_COUNT - 1); /* every family except CHAT_NONE */
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        check(expected[i].family, two_turns, 4, expected[i].with_system);
        check(expected[i].family, two_turns + 1, 3, expected[i].without);
        check(expected[i].family, two_turns + 1, 1, expected[i].one);
    }
}

static void white_space_is_trimmed_where_the_template_does(void **state) {
    (void)state;
    const ChatMessage padded[] = {{"user", " Hi\n"}};
    check(CHAT_LLAMA2, padded, 1, "[INST] Hi [/INST]");
    check(CHAT_GEMMA, padded, 1, "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
    check(CHAT_CHATML, padded, 1, "<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n");
}

/* An answer that is sent back is the text that was generated, with white space at its ends and without a second
 * space. */
static void answers_are_given_back_as_they_were_generated(void **state) {
    (void)state;
    static const char *const answers[] = {" Hello", "Hello", "\n Hello\n "};
    static const ChatFamily with_space[] = {CHAT_LLAMA2, CHAT_VICUNA, CHAT_MISTRAL, CHAT_PLAIN};
    for (int f = CHAT_NONE + 1; f < CHAT_FAMILY_COUNT; f++) {
        bool adds_space = false;
        for (int i = 0; i < 4; i++) adds_space = adds_space || f == (int)with_space[i];
        for (int i = 0; i < 3; i++) {
            const ChatMessage m[] = {{"user", "Hi"}, {"assistant", answers[i]}, {"user", "Bye?"}};
            Buf first = {.max_bytes = 4096}, both = {.max_bytes = 4096};
            assert_int_equal(chat_format((ChatFamily)f, m, 1, &first, NULL, NULL, NULL), FR_OK);
            assert_int_equal(chat_format((ChatFamily)f, m, 3, &both, NULL, NULL, NULL), FR_OK);
            if (adds_space && answers[i][0] != ' ') assert_true(buf_append(&first, " ", 1));
            assert_true(buf_append(&first, answers[i], strlen(answers[i])));
            if (strncmp(both.data, first.data, first.n) != 0)
                fail_msg("%s: \"%s\" does not begin with \"%s\"", chat_family_name((ChatFamily)f), both.data,
                         first.data);
            buf_free(&first);
            buf_free(&both);
        }
    }
}

static void impossible_conversations_are_refused(void **state) {
    (void)state;
    static const ChatMessage tool[] = {{"tool", "42"}};
    static const ChatMessage late_system[] = {{"user", "Hi"}, {"system", "Be kind."}};
    static const ChatMessage only_system[] = {{"system", "Be kind."}};
    static const ChatMessage answer_first[] = {{"assistant", "Hello!"}, {"user", "Hi"}};
    static const ChatMessage answer_last[] = {{"user", "Hi"}, {"assistant", "Hello!"}};
    static const ChatMessage twice[] = {{"user", "Hi"}, {"user", "Hi"}};
    static const struct {
        ChatFamily family;
        const ChatMessage *messages;
        int n;
        const char *why;
    } cases[] = {
        {CHAT_NONE, two_turns, 4, "no chat template"},
        {CHAT_CHATML, two_turns, 0, "has no messages"},
        {CHAT_CHATML, tool, 1, "role 'tool'"},
        {CHAT_VICUNA, late_system, 2, "only as the first"},
        {CHAT_LLAMA2, only_system, 1, "must follow it"},
        {CHAT_LLAMA2, answer_first, 2, "take turns"},
        {CHAT_MISTRAL, answer_last, 2, "first and last"},
        {CHAT_GEMMA, twice, 2, "take turns"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Buf out = {.max_bytes = 4096};
        fr_error err = {0};
        int status = chat_format(cases[i].family, cases[i].messages, cases[i].n, &out, NULL, NULL, &err);
        if (status == FR_OK || !strstr(err.message, cases[i].why))
            fail_msg("case %zu: want \"%s\", got %d \"%s\"", i, cases[i].why, status, err.message);
        buf_free(&out);
    }
    Buf small = {.max_bytes = 10};
    assert_int_equal(chat_format(CHAT_CHATML, two_turns, 4, &small, NULL, NULL, NULL), FR_ERR_MEMORY);
    buf_free(&small);
}

static void templates_are_recognised(void **state) {
    (void)state;
    static const struct {
        ChatFamily family;
        const char *text;
    } cases[] = {
        {CHAT_LLAMA2, "{% set content = '<<SYS>>\\n' + system_message %}{{ bos_token + '[INST] ' + content + "
                      "' [/INST]' }}"},
        {CHAT_LLAMA3, "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}"},
        {CHAT_CHATML, "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"},
        {CHAT_MISTRAL, "{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}"},
        {CHAT_NONE, "{{ '[INST]' + message['content'] + '[/INST]' }}"},
        {CHAT_ZEPHYR, "{{ '<|user|>\\n' + message['content'] + eos_token }}"},
        {CHAT_PHI3, "{{'<|user|>' + '\\n' + message['content'] + '<|end|>' + '\\n' + '<|assistant|>' + '\\n'}}"},
        {CHAT_GEMMA, "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"},
        {CHAT_VICUNA, "{{ 'USER: ' + message['content'] + ' ' }}{{ 'ASSISTANT: ' + message['content'] + eos_token }}"},
        {CHAT_PLAIN, "{{ 'USER: ' + m['content'] + '\\n' }}{{ 'ASSISTANT: ' + m['content'] + eos_token + '\\n' }}"},
        {CHAT_NONE, "{{ message['content'] }}"},
        {CHAT_NONE, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ChatFamily got = chat_family_detect(cases[i].text, strlen(cases[i].text));
        if (got != cases[i].family)
            fail_msg("\"%s\": want %s, got %s", cases[i].text, chat_family_name(cases[i].family),
                     chat_family_name(got));
    }
}

static void names_and_families_agree(void **state) {
    (void)state;
    for (int f = CHAT_NONE; f < CHAT_FAMILY_COUNT; f++)
        assert_int_equal(chat_family_from_name(chat_family_name((ChatFamily)f)), f);
    assert_int_equal(chat_family_from_name("nobody"), CHAT_NONE);
}

static void our_own_model_is_plain(void **state) {
    (void)state;
    fr_error err = {0};
    Gguf *g;
    if (gguf_open(&g, "models/target.gguf", &err)) fail_msg("%s", err.message);
    assert_int_equal(chat_family_of(g), CHAT_PLAIN);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_are_written_as_published),
        cmocka_unit_test(white_space_is_trimmed_where_the_template_does),
        cmocka_unit_test(answers_are_given_back_as_they_were_generated),
        cmocka_unit_test(impossible_conversations_are_refused),
        cmocka_unit_test(templates_are_recognised),
        cmocka_unit_test(names_and_families_agree),
        cmocka_unit_test(our_own_model_is_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
