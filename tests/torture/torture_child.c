/* torture_child.c - runs one command with limits on time, memory and the size of files, keeps its output, and judges
 * its exit. The child gets a process group of its own, so that no process that it starts survives it. */
#include "torture.h"

#include "base/system.h"
#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_OUTPUT = 4 << 20, CHUNK = 1 << 16 };

void child_init(Child *c) {
    *c = (Child){.file_bytes = -1, .out = {.max_bytes = MAX_OUTPUT}, .err = {.max_bytes = MAX_OUTPUT}};
}

void child_free(Child *c) {
    buf_free(&c->out);
    buf_free(&c->err);
}

void child_words(Child *c, char *text) {
    int n = 0;
    while (c->words[n]) n++;
    for (char *at, *word = strtok_r(text, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
        fr_assert(n + 1 < TORTURE_WORDS);
        for (char *space = word; (space = strchr(space, SPACE_IN_WORD));) *space = ' ';
        c->words[n++] = word;
    }
    c->words[n] = NULL;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

static void redirect(const char *path, int flags, int to) {
    int fd = open(path, flags);
    if (fd < 0 || dup2(fd, to) < 0) _exit(126);
    close(fd);
}

static _Noreturn void become(const Child *c, int out, int err) {
    setpgid(0, 0);
    redirect(c->input ? c->input : "/dev/null", O_RDONLY, STDIN_FILENO);
    if (dup2(err, STDERR_FILENO) < 0) _exit(126);
    if (c->output) redirect(c->output, O_WRONLY, STDOUT_FILENO);
    else if (dup2(out, STDOUT_FILENO) < 0) _exit(126);
    for (int i = 0; c->env[i]; i++) putenv((char *)(uintptr_t)c->env[i]);
    rlim_t memory = (rlim_t)c->memory_mib << 20, file = (rlim_t)c->file_bytes;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (c->memory_mib) setrlimit(RLIMIT_AS, &(struct rlimit){memory, memory});
    if (c->file_bytes >= 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){file, file});
    }
    execv(c->words[0], (char *const *)(uintptr_t)c->words);
    _exit(127);
}

/* Reads the available bytes; false at the end of the stream. */
static bool drain(int fd, Buf *to, bool *flooded) {
    char chunk[CHUNK];
    ssize_t n = read(fd, chunk, sizeof chunk);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n > 0 && !buf_append(to, chunk, (size_t)n)) *flooded = true;
    return n > 0;
}

/* Kills the group when its time has come; returns the milliseconds until then. */
static int check_time(Child *c, pid_t pid, double begin) {
    double now = clock_s() - begin, timeout = c->timeout_s > 0 ? c->timeout_s : 30;
    if (c->kill_after_s > 0 && now >= c->kill_after_s && !c->was_killed) {
        c->was_killed = true;
        kill(-pid, SIGKILL);
    }
    if (now >= timeout && !c->timed_out && !c->was_killed) {
        c->timed_out = true;
        kill(-pid, SIGKILL);
    }
    if (c->timed_out || c->was_killed) return 100;
    double next = c->kill_after_s > 0 && c->kill_after_s < timeout ? c->kill_after_s : timeout;
    return (int)(1000 * (next - now)) + 1;
}

static void listen_to(Child *c, pid_t pid, int out, int err, double begin) {
    struct pollfd fds[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        if (poll(fds, 2, check_time(c, pid, begin)) <= 0) continue;
        for (int i = 0; i < 2; i++)
            if (fds[i].fd >= 0 && fds[i].revents && !drain(fds[i].fd, i ? &c->err : &c->out, &c->flooded))
                fds[i].fd = -1;
    }
}

static void collect(Child *c, pid_t pid, double begin) {
    struct rusage usage;
    int status = 0;
    while (wait4(pid, &status, WNOHANG, &usage) == 0) {
        (void)check_time(c, pid, begin);
        usleep(200);
    }
    kill(-pid, SIGKILL); /* processes that it started and left */
    c->seconds = clock_s() - begin;
    c->peak_mib = usage.ru_maxrss >> 10;
    c->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    c->rc = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void child_run(Child *c) {
    int out[2], err[2];
    buf_clear(&c->out);
    buf_clear(&c->err);
    c->timed_out = c->was_killed = c->flooded = false;
    fr_assert(buf_append(&c->out, "", 0) && buf_append(&c->err, "", 0));
    fr_assert(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
    fflush(NULL);
    double begin = clock_s();
    pid_t pid = fork();
    fr_assert(pid >= 0);
    if (pid == 0) become(c, out[1], err[1]);
    setpgid(pid, pid);
    close(out[1]), close(err[1]);
    listen_to(c, pid, out[0], err[0], begin);
    collect(c, pid, begin);
    close(out[0]), close(err[0]);
}

/* ---- judgement ---------------------------------------------------------------------------------------------- */

/* Returns the length of the UTF-8 character at s, whose code point is put into *code; 0: there is no character. */
static size_t utf8_char(const unsigned char *s, size_t n, uint32_t *code) {
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xf0 && s[0] < 0xf8 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc2 ? 2 : 0;
    if (length == 0 || length > n || s[0] >= 0xf8) return 0;
    *code = length == 1 ? s[0] : s[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (s[i] & 0x3fu);
    }
    return length;
}

bool has_control_bytes(const char *bytes, size_t n) {
    for (size_t i = 0, step; i < n; i += step) {
        uint32_t code = 0;
        step = utf8_char((const unsigned char *)bytes + i, n - i, &code);
        if (step == 0 || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0)) return true;
    }
    return false;
}

/* An error message has at least three words of letters. */
static bool has_sentence(const Buf *err) {
    int n_words = 0;
    bool in_word = false;
    for (size_t i = 0; i < err->n; i++) {
        bool is_letter = isalpha((unsigned char)err->data[i]) != 0;
        n_words += is_letter && !in_word;
        in_word = is_letter;
    }
    return n_words >= 3;
}

const char *child_fault(const Child *c) {
    if (c->timed_out) return "it did not end within its time";
    if (c->was_killed) return NULL;
    if (c->signal == SIGSEGV) return "it died of SIGSEGV";
    if (c->signal == SIGABRT) return "it died of SIGABRT";
    if (c->signal == SIGBUS) return "it died of SIGBUS";
    if (c->signal == SIGFPE) return "it died of SIGFPE";
    if (c->signal) return "it died of a signal";
    if (c->rc < 0 || c->rc > 2) return "its exit status is none of 0, 1 and 2";
    if (c->rc && !has_sentence(&c->err)) return "it failed without an error message";
    if (has_control_bytes(c->err.data, c->err.n)) return "it printed control bytes on standard error";
    return c->flooded ? "it printed more than 4 MiB" : NULL;
}

static void print_word(Buf *out, const char *word) {
    fr_assert(buf_append(out, "'", 1));
    for (const char *s = word; *s; s++) fr_assert(*s == '\'' ? buf_append(out, "'\\''", 4) : buf_append(out, s, 1));
    fr_assert(buf_append(out, "' ", 2));
}

void child_print(const Child *c, Buf *out) {
    char limits[96] = "";
    if (c->memory_mib) snprintf(limits, sizeof limits, "ulimit -v %lld; ", (long long)c->memory_mib << 10);
    if (c->file_bytes >= 0)
        snprintf(limits, sizeof limits, "trap '' XFSZ; ulimit -f %lld; ", (long long)(c->file_bytes + 1023) >> 10);
    fr_assert(buf_append(out, "(", 1) && buf_append(out, limits, strlen(limits)) && buf_append(out, "env ", 4));
    for (int i = 0; c->env[i]; i++) print_word(out, c->env[i]);
    for (int i = 0; c->words[i]; i++) print_word(out, c->words[i]);
    fr_assert(buf_append(out, "< ", 2));
    print_word(out, c->input ? c->input : "/dev/null");
    if (c->output) fr_assert(buf_append(out, "> ", 2));
    if (c->output) print_word(out, c->output);
    fr_assert(buf_append(out, ")", 1));
}
