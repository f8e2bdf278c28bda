/* test_chat_terminal.c - `forerun chat` and `run` in a terminal: keys, colours, closing lines, Ctrl-C, remembered
 * lines. */
#include "cli_rig.h"
#include "pty_rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>

#define DIR "build/test-chat-terminal"
#define TARGET "-m models/target.gguf "
#define SLOW TARGET "--backend reference --draft none --ignore-eos "

static Pty p;

static int begin(void **state) {
    (void)state;
    unsetenv("NO_COLOR");
    setenv("XDG_STATE_HOME", DIR, 1); /* a relative path, which is ignored */
    setenv("LC_ALL", "C", 1);
    if (system("rm -rf " DIR " && mkdir -p " DIR)) return -1;
    char *folder = realpath(DIR, NULL);
    setenv("HOME", folder, 1);
    free(folder);
    return 0;
}

static void a_conversation_is_held_in_a_terminal(void **state) {
    (void)state;
    pty_open(&p, "%s chat " TARGET "-n 30 --draft suffix+pld --tree-budget 4");
    pty_expect(&p, "/help lists the commands");
    pty_expect(&p, "This model is very small (8 MB)");
    pty_expect(&p, "Drafters: \033[32msuffix\033[0m, \033[36mpld\033[0m; the model's own tokens have no colour.");
    pty_expect(&p, ">>> ");
    pty_send(&p, "a cat a cat a cat a cat a cat a cat\r");
    pty_expect(&p, " tokens/s, ");
    pty_expect(&p, " tokens per step; plain decoding: about ");
    pty_expect(&p, " tokens/s]");
    pty_expect(&p, ">>> ");
    pty_send(&p, "Tell \\\r");
    pty_expect(&p, "... ");
    pty_send(&p, "me more.\r");
    pty_expect(&p, " tokens/s]");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/undo\r");
    pty_expect(&p, "Dropped with its answer: Tell \\nme more.");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/system gr\xc3\xbc\xc3\x9f"
                 "e\r"); /* although the locale is C */
    pty_expect(&p, "System message: gr\xc3\xbc\xc3\x9f"
                   "e");
    pty_expect(&p, ">>> ");
    pty_send(&p, "\004");
    assert_int_equal(pty_close(&p), 0);
}

static void interrupts_end_a_line_or_an_answer(void **state) {
    (void)state;
    int n_tokens = 0;
    pty_open(&p,
             "%s chat " SLOW "--chat-template chatml --temp 0"); /* only Ctrl-C ends these answers, which are lines of
                                                                  * "<p>" */
    pty_expect(&p, ">>> ");
    pty_send(&p, "/quit");
    pty_expect(&p, "/quit");
    pty_send(&p, "\003");
    pty_expect(&p, "Ctrl-D or /quit ends the conversation.");
    pty_expect(&p, ">>> ");
    pty_send(&p, "Tell \\\r");
    pty_expect(&p, "... ");
    pty_send(&p, "\003");
    pty_expect(&p, ">>> "); /* the message is dropped */
    for (int i = 0; i < 2; i++) {
        pty_send(&p, "Hello, who are you?\r");
        pty_expect(&p, "\r\n");
        pty_expect(&p, ">");
        pty_send(&p, "\003");
        pty_expect(&p, "(interrupted)");
        pty_expect(&p, " tokens/s]");
        pty_expect(&p, ">>> ");
        pty_send(&p, "/stats\r");
        pty_expect(&p, "The last answer: ");
        pty_expect(&p, ">>> ");
        assert_int_equal(sscanf(strstr(p.text, "The last answer: "), "The last answer: %d", &n_tokens), 1);
        if (n_tokens > 300) fail_msg("%d tokens were generated", n_tokens);
        if (i > 0) break;
        pty_send(&p, "/clear\r"); /* a further answer depends on where this one was cut: after 7 tokens it has no '>' */
        pty_expect(&p, "Forgot 1 turn.");
        pty_expect(&p, ">>> ");
    }
    pty_send(&p, "/undo\r");
    pty_expect(&p, "Dropped with its answer: Hello, who are you?");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/quit\r");
    assert_int_equal(pty_close(&p), 0);
}

/* A prompt is read in steps of 256 tokens. */
static void an_interrupt_also_ends_the_reading_of_a_prompt(void **state) {
    (void)state;
    static char line[1200];
    for (int i = 0; i < 270; i++) strcat(line, "of ");
    strcat(line, "x\r");
    pty_open(&p, "%s chat " SLOW);
    pty_expect(&p, ">>> ");
    pty_send(&p, line);
    pty_expect(&p, "x\r\n");
    pty_send(&p, "\003");
    pty_expect(&p, "interrupted before the answer began, so the conversation stays as it\r\nwas");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/undo\r");
    pty_expect(&p, "there is no turn that could be dropped");
    pty_send(&p, "\004");
    assert_int_equal(pty_close(&p), 0);
}

/* A shell sets the terminal to its own mode when a program is stopped, and leaves that mode when the program
 * continues. */
static void a_stopped_conversation_goes_on(void **state) {
    (void)state;
    struct termios mode;
    pty_open(&p, "%s chat " TARGET "-n 5");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/temp 0.2");
    pty_expect(&p, "/temp 0.2");
    kill(p.pid, SIGSTOP);
    assert_int_equal(tcgetattr(p.fd, &mode), 0);
    assert_false(mode.c_lflag & ICANON);
    mode.c_lflag |= ICANON | ECHO;
    assert_int_equal(tcsetattr(p.fd, TCSANOW, &mode), 0);
    kill(p.pid, SIGCONT);
    pty_expect(&p, "/temp 0.2"); /* the line is shown again */
    pty_send(&p, "5");
    assert_int_equal(tcgetattr(p.fd, &mode), 0);
    assert_false(mode.c_lflag & (ICANON | ECHO));
    pty_send(&p, "\r");
    pty_expect(&p, "Temperature 0.25");
    pty_send(&p, "\004");
    assert_int_equal(pty_close(&p), 0);
}

/* While a line is edited, the terminal does not echo. The shell that continues there expects that it does. */
static void a_signal_that_ends_the_program_restores_the_terminal(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGHUP, SIGQUIT};
    struct termios mode;
    int pid = 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pty_open(&p, "sh -c 'sh -c \"echo pid=\\$\\$; exec %s chat " TARGET "-n 5\"; stty -a'");
        pty_expect(&p, ">>> ");
        assert_int_equal(sscanf(strstr(p.text, "pid="), "pid=%d", &pid), 1);
        pty_send(&p, "x");
        pty_expect(&p, "x");
        assert_int_equal(tcgetattr(p.fd, &mode), 0);
        assert_false(mode.c_lflag & (ICANON | ECHO));
        assert_int_equal(kill(pid, signals[i]), 0);
        pty_expect(&p, "speed");
        pty_close(&p);
        if (!strstr(p.text, " icanon") || !strstr(p.text, " echo ")) fail_msg("signal %d: %s", signals[i], p.text);
    }
}

/* A terminal brackets pasted text if the program asks for that. */
static void pasted_lines_are_one_message(void **state) {
    (void)state;
    pty_open(&p, "%s chat " TARGET "-n 5");
    pty_expect(&p, "\033[?2004h");
    pty_expect(&p, ">>> ");
    pty_send(&p, "See: \033[200~first \033[31mline\r\r/second\tline\nand no more\r\033[201~!\r");
    pty_expect(&p, "\033[?2004l");
    pty_expect(&p, " tokens/s");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/undo\r");
    pty_expect(&p, "Dropped with its answer: See: first [31mline\\n\\n/second\\x09line\\nand no more!");
    pty_expect(&p, ">>> ");
    pty_send(&p, "\033[200~\r\033[201~/temp 0.5\r");
    pty_expect(&p, "Temperature 0.5");
    pty_expect(&p, ">>> ");
    pty_send(&p, "\033[200~never ended\003");
    pty_expect(&p, "Ctrl-D or /quit ends the conversation.");
    pty_expect(&p, ">>> ");
    pty_send(&p, "\004");
    assert_int_equal(pty_close(&p), 0);
    pty_open(&p, "env TERM=dumb %s chat " TARGET "-n 5");
    pty_expect(&p, ">>> ");
    pty_send(&p, "\004");
    assert_int_equal(pty_close(&p), 0);
    assert_null(strstr(p.text, "2004"));
}

static void typed_lines_are_remembered(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(system("rm -rf " DIR "/.local"), 0);
    for (int i = 0; i < 2; i++) {
        pty_open(&p, "%s chat " TARGET "-n 5");
        pty_expect(&p, ">>> ");
        if (i == 1) {
            pty_send(&p, "\033[A\033[A"); /* the lines of the first session */
            pty_send(&p, "\r");
            pty_expect(&p, "Temperature 0.25");
            pty_expect(&p, ">>> ");
        }
        pty_send(&p, "/temp 0.25\r");
        pty_expect(&p, "Temperature 0.25");
        pty_expect(&p, ">>> ");
        pty_send(&p, "/quit\r");
        assert_int_equal(pty_close(&p), 0);
        assert_int_equal(stat(DIR "/.local/state/forerun/chat_history", &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    pty_open(&p, "env -u HOME %s chat " TARGET "-n 5");
    pty_expect(&p, ">>> ");
    pty_send(&p, "/temp 0.75\r");
    pty_expect(&p, "Temperature 0.75");
    pty_send(&p, "\004");
    assert_int_equal(pty_close(&p), 0);
    assert_int_equal(system("grep -q 0.25 " DIR "/.local/state/forerun/chat_history && "
                            "! grep -rq 0.75 " DIR),
                     0);
}

static void no_color_is_respected(void **state) {
    (void)state;
    pty_open(&p, "env NO_COLOR=1 %s chat " TARGET "-n 30 --draft suffix+pld --tree-budget 4");
    pty_expect(&p, ">>> ");
    pty_send(&p, "a cat a cat a cat a cat a cat a cat\r");
    pty_expect(&p, "tokens per step");
    pty_send(&p, "/drafts\r");
    pty_expect(&p, "Drafters: suffix (");
    pty_send(&p, "/quit\r");
    assert_int_equal(pty_close(&p), 0);
    if (strstr(p.text, "\033[3") || strstr(p.text, "\033[2m")) fail_msg("coloured: %s", p.text);
    pty_open(&p, "env TERM=dumb %s chat " TARGET "-n 30 --draft suffix+pld --tree-budget 4");
    pty_expect(&p, ">>> ");
    pty_send(&p, "a cat a cat a cat a cat a cat a cat\r");
    pty_expect(&p, "tokens per step");
    pty_send(&p, "/quit\r");
    assert_int_equal(pty_close(&p), 0);
    if (strstr(p.text, "\033[3") || strstr(p.text, "\033[2m")) fail_msg("coloured: %s", p.text);
}

static void a_model_without_a_command_opens_a_conversation(void **state) {
    (void)state;
    static const char *const commands[] = {"%s models/target.gguf -n 5", "%s -m models/target.gguf -n 5"};
    for (int i = 0; i < 2; i++) {
        pty_open(&p, commands[i]);
        pty_expect(&p, "/help lists the commands");
        pty_expect(&p, ">>> ");
        pty_send(&p, "\004");
        assert_int_equal(pty_close(&p), 0);
    }
}

static void run_ends_with_one_line(void **state) {
    (void)state;
    pty_open(&p, "%s run " TARGET "-n 30 -p 'a cat a cat a cat a cat a cat' --draft suffix");
    pty_expect(&p, " tokens/s, ");
    pty_expect(&p, " tokens per step]");
    assert_int_equal(pty_close(&p), 0);
    pty_open(&p, "%s run " TARGET "-n 30 -p 'a cat a cat a cat a cat a cat' --stats");
    pty_expect(&p, "seed ");
    assert_int_equal(pty_close(&p), 0);
    assert_null(strstr(p.text, "tokens/s]")); /* the summary has all figures */
    pty_open(&p, "%s run " TARGET);
    pty_expect(&p, "missing prompt: pass -p TEXT or -f FILE, or pipe it in; 'forerun chat' holds a conversation");
    assert_int_equal(pty_close(&p), 2);
}

/* At this temperature every byte occurs, including control characters. */
static void answers_do_not_control_the_terminal(void **state) {
    (void)state;
    pty_open(&p,
             "env NO_COLOR=1 %s chat " TARGET "-n 900 --temp 20 --top-k 0 --top-p 1 --min-p 0 --seed 1 --ignore-eos");
    pty_expect(&p, ">>> ");
    pty_send(&p, "Hello\r");
    pty_expect(&p, "Hello\r\n\033[?2004l");
    const char *answer = p.text + p.n_seen;
    pty_expect(&p, " tokens/s");
    int n_escaped = 0;
    for (const char *at = answer; at < p.text + p.n_seen; at++) {
        if (*at == '\b') { /* the beginning of a word is erased, and the word moves to the next line */
            at += strspn(at, "\b");
            assert_int_equal(strncmp(at, "\033[K", 3), 0);
            at += 3;
        }
        n_escaped += *at == '\\' && at[1] == 'x';
        if ((unsigned char)*at < ' ' && !strchr("\r\n\t", *at))
            fail_msg("a control character, %d, in '%s'", *at, answer);
    }
    assert_true(n_escaped > 0);
    pty_send(&p, "/quit\r");
    assert_int_equal(pty_close(&p), 0);
}

static void a_text_cannot_change_the_direction_of_writing(void **state) {
    (void)state;
    pty_open(&p, "%s run " TARGET "-n 30 -p x --draft none --regex 'a\xe2\x80\xae"
                 "b'");
    pty_expect(&p, "a\\xe2\\x80\\xaeb");
    assert_int_equal(pty_close(&p), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_is_held_in_a_terminal),
        cmocka_unit_test(interrupts_end_a_line_or_an_answer),
        cmocka_unit_test(an_interrupt_also_ends_the_reading_of_a_prompt),
        cmocka_unit_test(a_stopped_conversation_goes_on),
        cmocka_unit_test(a_signal_that_ends_the_program_restores_the_terminal),
        cmocka_unit_test(pasted_lines_are_one_message),
        cmocka_unit_test(typed_lines_are_remembered),
        cmocka_unit_test(no_color_is_respected),
        cmocka_unit_test(a_model_without_a_command_opens_a_conversation),
        cmocka_unit_test(run_ends_with_one_line),
        cmocka_unit_test(answers_do_not_control_the_terminal),
        cmocka_unit_test(a_text_cannot_change_the_direction_of_writing),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
