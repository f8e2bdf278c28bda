/* line_editor.c - reads lines with libedit, so that Ctrl-C ends a line and not the program; stores typed lines; joins
 * lines into messages.
 *
 * libedit restarts a read that a signal interrupts, and its signal handlers pass SIGINT on to the program. So this file
 * reads the characters: after SIGINT it hands libedit a Ctrl-C, a key that is bound to end the line. Here it also
 * notices that the terminal has a new size, or that the program continues after Ctrl-Z.
 *
 * libedit reads characters in the encoding of the locale. If there is none (LANG is not set, as in many containers), it
 * would drop every byte that is not ASCII, so C.UTF-8 is used.
 *
 * This file must not include text/tokenizer.h, because histedit.h has a type Tokenizer, too. */
#include "base/error.h"
#include "base/files.h"
#include "base/os.h"
#include "cli/chat/line_editor.h"
#include "cli/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

struct LineEditor {
    EditLine *edit; /* NULL: the input is not a terminal */
    History *lines;
    const char *prompt, *history;
    bool was_interrupted; /* Ctrl-C ended the current line */
    char *line;           /* [size] from getline, or a copy of libedit's line */
    size_t size;
};

enum { CONTROL_C = 3 };

/* These sequences make a terminal mark pasted text with ESC [200~ before it and ESC [201~ after it, or stop that. */
#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

static LineEditor *editor_of(EditLine *edit) {
    void *editor = NULL;
    el_get(edit, EL_CLIENTDATA, &editor);
    return editor;
}

/* ---- signals --------------------------------------------------------------------------------------------
 *
 * A handler sets a flag and an event. The thread that waits for a key polls the event together with the terminal, so
 * that it notices a signal whichever thread handles it. System calls are restarted, so that a signal loses no
 * output. */

static volatile sig_atomic_t was_interrupted, was_resized, was_continued;
static OsEvent wake;

static void note(int signal_number) {
    int saved = errno;
    if (signal_number == SIGINT) was_interrupted = 1;
    if (signal_number == SIGWINCH) was_resized = 1;
    if (signal_number == SIGCONT) was_continued = 1;
    os_event_set(&wake);
    errno = saved;
}

/* From now on Ctrl-C does not end the program. */
static int terminal_signals_begin(fr_error *err) {
    if (!os_event_open(&wake))
        return error_set(err, FR_ERR_IO, "no event for signals can be opened: %s", strerror(errno));
    static const int signals[] = {SIGINT, SIGWINCH, SIGCONT};
    const struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
    return FR_OK;
}

bool terminal_signals_interrupted(void) { return was_interrupted; }
void terminal_signals_forget_interrupt(void) { was_interrupted = 0; }

static bool take(volatile sig_atomic_t *flag) {
    bool is_set = *flag;
    *flag = 0;
    return is_set;
}

/* Returns whether the terminal has a new size, or the program was stopped and continues; true once for each event. */
static bool terminal_signals_take_resize(void) { return take(&was_resized); }
static bool terminal_signals_take_continue(void) { return take(&was_continued); }

/* Waits until a byte can be read from fd. False: a signal came first, or poll failed. */
static bool terminal_signals_wait(int fd) {
    struct pollfd files[] = {{.fd = wake.fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    if (poll(files, 2, -1) < 0) return false;
    if (!files[0].revents) return true;
    (void)os_event_take(&wake);
    return false;
}

/* ---- characters ---------------------------------------------------------------------------------------- */

/* Adapts libedit to changes of the terminal before the next byte is read. */
static void follow_terminal(EditLine *edit) {
    if (terminal_signals_take_resize()) el_resize(edit);
    if (!terminal_signals_take_continue()) return;
    el_set(edit, EL_PREP_TERM, 0); /* the shell has set the terminal to its own mode, which libedit does not know */
    el_set(edit, EL_PREP_TERM, 1);
    el_set(edit, EL_REFRESH);
}

/* libedit's hook for reading a character. Returns 1; or 0 at the end of the input, or -1 after an error. Invalid bytes
 * are skipped. */
static int read_character(EditLine *edit, wchar_t *out) {
    mbstate_t state = {0};
    for (;;) {
        char byte;
        follow_terminal(edit);
        if (terminal_signals_interrupted()) {
            *out = CONTROL_C;
            return 1;
        }
        if (!terminal_signals_wait(STDIN_FILENO)) continue;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        size_t n_used = mbrtowc(out, &byte, 1, &state);
        if (n_used == 0 || n_used == 1) return 1;
        if (n_used == (size_t)-1) state = (mbstate_t){0};
    }
}

/* Runs on Ctrl-C: the key, or the character that read_character returns after SIGINT. */
static unsigned char end_line(EditLine *edit, int key) {
    (void)key;
    LineEditor *e = editor_of(edit);
    e->was_interrupted = true;
    terminal_signals_forget_interrupt();
    return CC_NEWLINE;
}

/* Runs on the key ESC [200~: inserts pasted text with its line ends, so that a pasted paragraph becomes one message,
 * not a message for each line. Control characters other than tabs, and line ends at the end of the text, are left
 * out. */
static unsigned char take_paste(EditLine *edit, int key) {
    static const wchar_t end[] = L"\033[201~";
    enum { N_END = sizeof end / sizeof *end - 1 };
    (void)key;
    size_t n = 0, n_end = 0, capacity = 256;
    wchar_t *text = malloc(capacity * sizeof *text), c;
    while (text && n_end < N_END && el_wgetc(edit, &c) == 1 && c != CONTROL_C) {
        n_end = c == end[n_end] ? n_end + 1 : c == end[0] ? 1 : 0;
        if (c == L'\r') c = L'\n';
        if (c < L' ' && c != L'\n' && c != L'\t') continue;
        text[n++] = c;
        if (n + 1 < capacity) continue;
        wchar_t *grown = realloc(text, (capacity *= 2) * sizeof *text);
        if (!grown) free(text);
        text = grown;
    }
    if (!text) return CC_ERROR;
    if (n_end == N_END) n -= N_END - 1; /* all characters of the end mark but ESC are in the text */
    while (n > 0 && text[n - 1] == L'\n') n--;
    text[n] = L'\0';
    int status = n > 0 ? el_winsertstr(edit, text) : 0;
    free(text);
    if (n_end < N_END) return end_line(edit, CONTROL_C);
    return status ? CC_ERROR : CC_REFRESH;
}

static char *prompt_of(EditLine *edit) { return (char *)editor_of(edit)->prompt; }

/* ---- opening ------------------------------------------------------------------------------------------- */

static void add_line(void *editor, const char *line) {
    LineEditor *e = editor;
    HistEvent event;
    history(e->lines, &event, H_ENTER, line);
}

static void choose_encoding(void) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static int open_edit(LineEditor *e, fr_error *err) {
    HistEvent event;
    choose_encoding();
    signals_keep_terminal(STDIN_FILENO, PASTE_OFF);
    e->lines = history_init();
    e->edit = el_init("forerun", stdin, stdout, stderr);
    if (!e->lines || !e->edit) return error_memory(err, "a line editor", 1);
    history(e->lines, &event, H_SETSIZE, LINE_HISTORY_MAX);
    history(e->lines, &event, H_SETUNIQUE, 1);
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, prompt_of);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_SIGNAL, 0);
    el_set(e->edit, EL_HIST, history, e->lines);
    el_set(e->edit, EL_GETCFN, read_character);
    el_source(e->edit, NULL); /* ~/.editrc */
    el_wset(e->edit, EL_ADDFN, L"forerun-end-line", L"End the line without sending it",
            end_line); /* el_set would leak memory */
    el_wset(e->edit, EL_ADDFN, L"forerun-paste", L"Insert what is pasted", take_paste);
    el_set(e->edit, EL_BIND, "^[[200~", "forerun-paste", NULL);
    el_set(e->edit, EL_BIND, "^C", "forerun-end-line", NULL);
    el_set(e->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    if (e->history) line_history_read(e->history, add_line, e);
    return FR_OK;
}

int line_editor_open(LineEditor **out, bool is_terminal, const char *history_path, fr_error *err) {
    LineEditor *e = calloc(1, sizeof *e);
    *out = e;
    if (!e) return error_memory(err, "a line editor", sizeof *e);
    e->history = history_path;
    int status = is_terminal ? terminal_signals_begin(err) : FR_OK;
    if (!status && is_terminal) status = open_edit(e, err);
    if (status) {
        line_editor_close(e);
        *out = NULL;
    }
    return status;
}

void line_editor_close(LineEditor *e) {
    if (!e) return;
    if (e->edit) el_end(e->edit);
    if (e->lines) history_end(e->lines);
    free(e->line);
    free(e);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static LineResult read_plain(LineEditor *e, const char **line, size_t *n) {
    ssize_t got = getline(&e->line, &e->size, stdin);
    if (got < 0) return feof(stdin) ? LINE_END : LINE_FAILED;
    if (got > 0 && e->line[got - 1] == '\n') got--;
    if (got > 0 && e->line[got - 1] == '\r') got--;
    e->line[got] = '\0';
    *line = e->line;
    *n = (size_t)got;
    return LINE_READ;
}

/* Remembers a line that is not blank, unless it equals the previous one. */
static void remember(LineEditor *e, const char *line) {
    HistEvent last = {0};
    if (line[strspn(line, " \t")] == '\0') return;
    if (history(e->lines, &last, H_FIRST) == 0 && last.str && strcmp(last.str, line) == 0) return;
    add_line(e, line);
    bool has_one_line = !strchr(line, '\n'); /* the file cannot store a text of several lines */
    if (e->history && has_one_line) line_history_append(e->history, line);
}

/* Sends a sequence to the terminal, unless it has no escape sequences. */
static void ask_terminal(const char *what) {
    const char *terminal = getenv("TERM");
    if (!terminal || strcmp(terminal, "dumb") == 0) return;
    fputs(what, stdout);
    fflush(stdout);
}

LineResult line_editor_read(LineEditor *e, const char *prompt, const char **line, size_t *n) {
    if (!e->edit) return read_plain(e, line, n);
    int count = 0;
    e->prompt = prompt;
    e->was_interrupted = false;
    ask_terminal(PASTE_ON);
    const char *typed = el_gets(e->edit, &count);
    ask_terminal(PASTE_OFF);
    if (e->was_interrupted) {
        putchar('\n');
        return LINE_INTERRUPTED;
    }
    if (!typed || count <= 0) return LINE_END;
    free(e->line);
    e->line = strdup(typed);
    if (!e->line) return LINE_FAILED;
    e->size = strlen(e->line) + 1;
    *n = strlen(e->line);
    while (*n > 0 && (e->line[*n - 1] == '\n' || e->line[*n - 1] == '\r')) (*n)--;
    e->line[*n] = '\0';
    *line = e->line;
    remember(e, e->line);
    return LINE_READ;
}

/* ---- the file of typed lines --------------------------------------------------------------------------
 *
 * Each line is appended in one write as soon as it is typed, so that several sessions can share the file, and a session
 * that is killed loses nothing. A session that finds more than twice LINE_HISTORY_MAX lines replaces the file by the
 * last ones. Only the user may read the file, because it holds what was typed to a model. */

enum { MAX_FILE_BYTES = 16 << 20 };

/* Creates the missing folders of the path, which only the user can enter. */
static bool make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool exists = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!exists) return false;
    }
    return true;
}

const char *line_history_path(void) {
    static char path[4096];
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool given = state && state[0] == '/'; /* the XDG standard: a relative path is ignored */
    if (!given && (!home || home[0] != '/')) return NULL;
    int n = snprintf(path, sizeof path, "%s%s/forerun/chat_history", given ? state : home,
                     given ? "" : "/.local/state");
    return n > 0 && (size_t)n < sizeof path && make_folders(path) ? path : NULL;
}

/* Opens the file if it is a regular file of this user; else returns -1. */
static int open_file(const char *path, int flags, struct stat *st) {
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0) return -1;
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid()) return fd;
    close(fd);
    return -1;
}

/* Reads the end of the file as a malloc'ed string; NULL: it cannot be read. */
static char *read_end(const char *path) {
    struct stat st;
    int fd = open_file(path, O_RDONLY, &st);
    if (fd < 0) return NULL;
    off_t skipped = st.st_size > MAX_FILE_BYTES ? st.st_size - MAX_FILE_BYTES : 0;
    size_t size = (size_t)(st.st_size - skipped), n = 0;
    char *text = malloc(size + 1);
    ssize_t got;
    while (text && n < size && (got = pread(fd, text + n, size - n, skipped + (off_t)n)) > 0) n += (size_t)got;
    close(fd);
    if (text) text[n] = '\0';
    return text;
}

/* Returns the last LINE_HISTORY_MAX lines of the text; *n_lines: the number of all its lines. */
static char *last_lines(char *text, int *n_lines) {
    size_t n = strlen(text);
    char *begin = text;
    *n_lines = 0;
    for (size_t i = n; i-- > 0;) {
        if (text[i] != '\n' || i + 1 == n) continue;
        if (++*n_lines == LINE_HISTORY_MAX) begin = text + i + 1;
    }
    *n_lines += n > 0;
    return begin;
}

static void replace(const char *path, const char *text) {
    ReplaceFile file;
    fr_error err;
    if (replace_file_begin(&file, path, &err)) return;
    fputs(text, file.file);
    (void)replace_file_end(&file, FR_OK, &err);
}

void line_history_read(const char *path, void (*add)(void *user, const char *line), void *user) {
    char *text = read_end(path);
    if (!text) return;
    int n_lines;
    char *line = last_lines(text, &n_lines);
    if (n_lines > 2 * LINE_HISTORY_MAX) replace(path, line);
    while (*line) {
        char *end = line + strcspn(line, "\n"), ended = *end;
        *end = '\0';
        if (*line) add(user, line);
        line = ended ? end + 1 : end;
    }
    free(text);
}

void line_history_append(const char *path, const char *line) {
    struct stat st;
    char *text;
    int n = asprintf(&text, "%s\n", line);
    if (n < 0) return;
    int fd = open_file(path, O_WRONLY | O_APPEND | O_CREAT, &st);
    if (fd >= 0) {
        ssize_t written = write(fd, text, (size_t)n);
        (void)written; /* if the disk is full, the line is lost */
        close(fd);
    }
    free(text);
}

/* ---- messages -------------------------------------------------------------------------------------------
 *
 * Messages of several lines are written as in ollama (""") or llama-cli (a backslash at the end of a line). Blank lines
 * between messages are skipped. A line is a command only if '/' is the first character of a message. A message that
 * begins with '/' needs a space before it, or is written between """. */

static const char quotes[] = "\"\"\"";
enum { N_QUOTES = sizeof quotes - 1 };

static bool begins_with_quotes(const char *line, size_t n) {
    return n >= N_QUOTES && memcmp(line, quotes, N_QUOTES) == 0;
}

static bool ends_with_quotes(const char *line, size_t n) {
    return n >= N_QUOTES && memcmp(line + n - N_QUOTES, quotes, N_QUOTES) == 0;
}

static bool is_blank(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n') return false;
    return true;
}

void chat_input_drop(ChatInput *in) {
    buf_clear(&in->text);
    in->state = CHAT_INPUT_EMPTY;
}

/* Appends a piece of the message; `next` is the state after it. */
static ChatInputState append(ChatInput *in, const char *text, size_t n, bool ends_line, ChatInputState next) {
    bool fits = buf_append(&in->text, text, n) && (!ends_line || buf_append(&in->text, "\n", 1));
    return in->state = fits ? next : CHAT_INPUT_TOO_LONG;
}

static ChatInputState add_quoted(ChatInput *in, const char *line, size_t n) {
    if (ends_with_quotes(line, n)) {
        append(in, line, n - N_QUOTES, false, CHAT_INPUT_QUOTED);
        return in->state == CHAT_INPUT_TOO_LONG ? in->state : chat_input_end(in);
    }
    return append(in, line, n, true, CHAT_INPUT_QUOTED);
}

static ChatInputState add_plain(ChatInput *in, const char *line, size_t n) {
    if (n > 0 && line[n - 1] == '\\') return append(in, line, n - 1, true, CHAT_INPUT_CONTINUED);
    return append(in, line, n, false, CHAT_INPUT_MESSAGE);
}

ChatInputState chat_input_add(ChatInput *in, const char *line, size_t n) {
    if (in->state == CHAT_INPUT_QUOTED) return add_quoted(in, line, n);
    if (in->state == CHAT_INPUT_CONTINUED) return add_plain(in, line, n);
    chat_input_drop(in);
    if (is_blank(line, n)) return CHAT_INPUT_EMPTY;
    if (line[0] == '/') return append(in, line, n, false, CHAT_INPUT_COMMAND);
    if (begins_with_quotes(line, n)) return add_quoted(in, line + N_QUOTES, n - N_QUOTES);
    return add_plain(in, line, n);
}

ChatInputState chat_input_end(ChatInput *in) {
    bool is_open = in->state == CHAT_INPUT_QUOTED || in->state == CHAT_INPUT_CONTINUED;
    if (!is_open || is_blank(in->text.data, in->text.n)) chat_input_drop(in);
    else in->state = CHAT_INPUT_MESSAGE;
    return in->state;
}
