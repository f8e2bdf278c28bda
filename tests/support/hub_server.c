/* hub_server.c - serves one connection after the other, with one request each, which is enough for a client that waits
 * for its answers. */
#include "hub_server.h"

#include "testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GARBAGE "SSH-2.0-OpenSSH_9.2\r\n"
#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const HubServerFile *files;
static int n_files, listener = -1, port;
static pid_t child;
static const char *log_path;

int hub_server_port(void) { return port; }

static void read_line(const char *command, char *text, size_t size) {
    FILE *f = popen(command, "r");
    assert_non_null(f);
    if (!fgets(text, (int)size, f)) text[0] = '\0';
    pclose(f);
    text[strcspn(text, " \n")] = '\0';
}

void hub_server_sha256(const char *path, char text[65]) {
    char command[700];
    snprintf(command, sizeof command, "sha256sum '%s'", path);
    read_line(command, text, 65);
}

static void git_id(const char *path, long bytes, char text[41]) {
    char command[700];
    snprintf(command, sizeof command, "(printf 'blob %ld\\0'; cat '%s') | sha1sum", bytes, path);
    read_line(command, text, 41);
}

static long size_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (long)st.st_size : -1;
}

/* ---- a connection -------------------------------------------------------------------------------------- */

typedef struct Request {
    char path[600], range[80], if_range[200], authorization[200];
} Request;

static void take_header(const char *text, const char *name, char *out, size_t size) {
    const char *at = strcasestr(text, name);
    out[0] = '\0';
    if (at) snprintf(out, size, "%.*s", (int)strcspn(at + strlen(name), "\r\n"), at + strlen(name));
}

static bool read_request(int c, Request *r) {
    char text[16384];
    size_t n = 0;
    ssize_t got;
    text[0] = '\0';
    while (!strstr(text, "\r\n\r\n") && n + 1 < sizeof text && (got = read(c, text + n, sizeof text - 1 - n)) > 0) {
        n += (size_t)got;
        text[n] = '\0';
    }
    if (sscanf(text, "GET %599s ", r->path) != 1) return false;
    take_header(text, "\r\nRange: ", r->range, sizeof r->range);
    take_header(text, "\r\nIf-Range: ", r->if_range, sizeof r->if_range);
    take_header(text, "\r\nAuthorization: ", r->authorization, sizeof r->authorization);
    FILE *log = fopen(log_path, "a");
    if (log) fprintf(log, "%s range=%s if-range=%s auth=%s\n", r->path, r->range, r->if_range, r->authorization);
    if (log) fclose(log);
    return true;
}

static void send_all(int c, const char *bytes, size_t n) {
    for (ssize_t sent; n > 0 && (sent = send(c, bytes, n, MSG_NOSIGNAL)) > 0; n -= (size_t)sent) bytes += sent;
}

static void answer(int c, const char *status, const char *headers, const char *body) {
    char text[20000];
    int n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n%s", status,
                     strlen(body), headers, body);
    send_all(c, text, (size_t)n);
}

/* ---- the list ----------------------------------------------------------------------------------------- */

static void put_file(char *body, size_t size, const HubServerFile *f) {
    char hash[65], *at = body + strlen(body);
    size_t left = size - strlen(body);
    long bytes = size_of(f->content) + f->wrong_size;
    if (f->is_small) {
        git_id(f->content, bytes, hash);
        snprintf(at, left, ",{\"rfilename\":\"%s\",\"size\":%ld,\"blobId\":\"%s\"}", f->path, bytes, hash);
        return;
    }
    hub_server_sha256(f->content, hash);
    snprintf(at, left,
             ",{\"rfilename\":\"%s\",\"size\":%ld,\"blobId\":\"" COMMIT
             "\",\"lfs\":{\"sha256\":\"%s\",\"size\":%ld,\"pointerSize\":134}}",
             f->path, bytes, f->wrong_hash ? f->wrong_hash : hash, bytes);
}

static void answer_list(int c, const char *repo) {
    char body[16000] = "{\"id\":\"test\",\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"README.md\",\"size\":3}";
    if (strcmp(repo, "private") == 0) answer(c, "401 Unauthorized", "", "{\"error\":\"Invalid username\"}");
    else if (strcmp(repo, "gated") == 0) answer(c, "403 Forbidden", "X-Error-Code: GatedRepo\r\n", "gated");
    else if (strcmp(repo, "nothing") == 0) answer(c, "404 Not Found", "", "not found");
    else if (strcmp(repo, "notjson") == 0) answer(c, "200 OK", "", "<html>");
    else if (strcmp(repo, "noform") == 0) answer(c, "200 OK", "", "[1,2]");
    else if (strcmp(repo, "garbage") == 0) send_all(c, GARBAGE, sizeof GARBAGE - 1);
    else if (strcmp(repo, "astray") == 0) answer(c, "302 Found", "Location: /garbage\r\n", "");
    else if (strcmp(repo, "nosha") == 0) answer(c, "200 OK", "", "{\"siblings\":[]}");
    else {
        for (int i = 0; i < n_files; i++)
            if (strcmp(files[i].repo, repo) == 0) put_file(body, sizeof body, &files[i]);
        strcat(body, "]}");
        answer(c, "200 OK", "Content-Type: application/json\r\n", body);
    }
}

/* ---- downloads ------------------------------------------------------------------------------------------ */

static void send_file(int c, const HubServerFile *f, const char *repo, int n_asked, const Request *r) {
    bool is_first = n_asked == 1, knows_ranges = strcmp(repo, "norange") != 0, trickles = strcmp(repo, "trickle") == 0;
    bool is_cut = is_first &&
                  (!knows_ranges || !strcmp(repo, "cut") || !strcmp(repo, "changed") || !strcmp(repo, "badrange"));
    const char *etag = strcmp(repo, "changed") == 0 && !is_first ? "\"other\"" : "\"one\"";
    long bytes = size_of(f->content), from = 0;
    bool is_ranged = knows_ranges && sscanf(r->range, "bytes=%ld-", &from) == 1 && from < bytes &&
                     (!r->if_range[0] || strcmp(r->if_range, etag) == 0);
    char *content = malloc((size_t)bytes + 1), head[600], range[120] = "";
    FILE *in = fopen(f->content, "rb");
    assert_true(content && in && fread(content, 1, (size_t)bytes, in) == (size_t)bytes);
    fclose(in);
    if (!is_ranged) from = 0;
    if ((trickles || strcmp(repo, "badrange") == 0) && n_asked % 2 == 0) from /= 2;
    if (strcmp(repo, "long") == 0) content[bytes++] = 'x';
    if (is_ranged) snprintf(range, sizeof range, "Content-Range: bytes %ld-%ld/%ld\r\n", from, bytes - 1, bytes);
    int n = snprintf(
        head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %ld\r\nETag: %s\r\nConnection: close\r\n%s%s\r\n",
        is_ranged ? "206 Partial Content" : "200 OK", bytes - from, etag, trickles ? "Retry-After: 1\r\n" : "", range);
    send_all(c, head, (size_t)n);
    send_all(c, content + from, (size_t)(trickles ? 1000 : is_cut ? bytes / 3 : bytes - from));
    free(content);
}

static void answer_download(int c, const char *repo, const char *path, int n_asked, const Request *r) {
    char location[900];
    snprintf(location, sizeof location, "Location: http://localhost:%d%s?signed=1\r\n", port, r->path);
    if (strcmp(repo, "moved") == 0 && !strstr(r->path, "signed")) answer(c, "302 Found", location, "");
    else if (strcmp(repo, "loop") == 0) answer(c, "302 Found", location, "");
    else if (strcmp(repo, "scheme") == 0) answer(c, "302 Found", "Location: file:///etc/hostname\r\n", "");
    else if (strcmp(repo, "flaky") == 0 && n_asked < 3) answer(c, "500 Internal Server Error", "", "oops");
    else if (strcmp(repo, "down") == 0) answer(c, "503 Service Unavailable", "Retry-After: 100000\r\n", "");
    else {
        for (int i = 0; i < n_files; i++)
            if (strcmp(files[i].repo, repo) == 0 && strcmp(files[i].path, path) == 0) {
                send_file(c, &files[i], repo, n_asked, r);
                return;
            }
        answer(c, "404 Not Found", "", "no such file");
    }
}

static void serve(int c) {
    static char last[80];
    static int n_asked; /* successive downloads from the same repository */
    Request r;
    char repo[80], path[400];
    if (!read_request(c, &r)) return;
    if (sscanf(r.path, "/api/models/test/%79[^?]?blobs=true", repo) == 1) answer_list(c, repo);
    else if (sscanf(r.path, "/test/%79[^/]/resolve/" COMMIT "/%399[^?]", repo, path) == 2) {
        n_asked = strcmp(last, repo) == 0 ? n_asked + 1 : 1;
        strcpy(last, repo);
        answer_download(c, repo, path, n_asked, &r);
    } else if (strcmp(r.path, "/garbage") == 0) send_all(c, GARBAGE, sizeof GARBAGE - 1);
    else answer(c, "400 Bad Request", "", "unknown path");
}

/* ---- the process ---------------------------------------------------------------------------------------- */

void hub_server_start(const HubServerFile *all, int n, const char *log) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n_at = sizeof at;
    files = all, n_files = n, log_path = log;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &n_at), 0);
    port = ntohs(at.sin_port);
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child > 0) return;
    alarm(300); /* the server ends even if the test is killed */
    for (;;) {
        int c = accept(listener, NULL, NULL);
        if (c < 0) continue;
        serve(c);
        shutdown(c, SHUT_WR);
        close(c);
    }
}

void hub_server_stop(void) {
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    if (listener >= 0) close(listener);
    child = 0, listener = -1;
}
