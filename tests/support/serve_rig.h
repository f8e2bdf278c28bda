/* serve_rig.h - starts the server in tests as a user would, on a free port, and talks to it over plain sockets. */
#ifndef TESTS_SERVE_RIG_H
#define TESTS_SERVE_RIG_H

#include "testing.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#define SERVE_MODEL "models/target.gguf"
enum { SERVE_WAIT_S = 60 }; /* for what takes milliseconds on an idle machine */

typedef struct ServeRig {
    pid_t pid;
    int port;
    char log[600]; /* the file of its standard error */
} ServeRig;

/* Sets the program and a folder for files, both beside the test program argv[0]. Call it first. */
void serve_rig_begin(const char *argv0);
const char *serve_rig_folder(void);
/* Starts "forerun serve ARGS --port 0" and waits until it listens. ARGS without a model gets SERVE_MODEL. */
void serve_start(ServeRig *s, const char *args);
/* SERVE_MODEL with another chat template, which must be shorter than its own. */
void serve_write_model(const char *path, const char *chat_template);
/* Starts a server with SERVE_MODEL and with `thinker`, the same weights with this chat template, such as SERVE_THINKER,
 * which begins reasoning; it is written to the file NAME of the folder. */
void serve_start_with_thinker(ServeRig *s, const char *name, const char *chat_template, const char *args);
#define SERVE_THINKER \
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" \
    "{% if add_generation_prompt %}bot: <think>{% endif -%}"
/* Sends SIGTERM, and waits for the end of the server. Returns the exit status, or -signal. */
int serve_stop(ServeRig *s);
int serve_wait_end(ServeRig *s);

typedef struct Answer {
    int status;        /* 0: the connection was closed before a whole answer came */
    char *head, *body; /* body: without the framing of chunks, followed by a '\0' */
    size_t n_body;
    bool is_whole; /* the body has the length that the head announced, or its last chunk came */
} Answer;

/* Sends one request on a connection of its own. headers: whole lines ending with "\r\n", or "". body NULL: none. */
Answer serve_request(const ServeRig *s, const char *method, const char *path, const char *headers, const char *body);
Answer serve_get(const ServeRig *s, const char *path);
Answer serve_post(const ServeRig *s, const char *path, const char *body);
void answer_free(Answer *a);
/* Sends a POST request, fails unless the status is the wanted one, and returns the JSON, which the caller releases. */
json_t *serve_json(const ServeRig *s, const char *path, int status, const char *body);
/* Returns the last token of a text without quotes and backslashes. */
int serve_last_token(const ServeRig *s, const char *text);
/* Returns the value at a path such as "choices.0.text"; NULL: there is none. */
const json_t *json_at(const json_t *root, const char *path);
const char *json_text_at(const json_t *root, const char *path);
json_int_t json_int_at(const json_t *root, const char *path);
/* Returns a gauge or counter of /metrics, by the beginning of its line. */
double serve_metric(const ServeRig *s, const char *begin);
/* Waits until it has that value. */
void serve_wait_metric(const ServeRig *s, const char *begin, double value);

/* ---- below requests ------------------------------------------------------------------------------------- */

int serve_connect(const ServeRig *s);
void serve_send(int fd, const char *bytes);
/* Reads an answer, also from a connection that stays open. */
Answer serve_read_answer(int fd);
/* Reads until `text` has come, for at most SERVE_WAIT_S. False: it has not come. */
bool serve_read_until(int fd, const char *text);
/* Returns whether the other side closes the connection within SERVE_WAIT_S; the bytes that it sends until then are
 * dropped. */
bool serve_is_closed(int fd);
/* Writes a POST request as text. */
void serve_format_post(char *out, size_t size, const char *path, const char *body);
/* Returns the text of all "data: " events of a stream: the values at `path` in each, one after the other; malloc'ed. */
char *serve_stream_text(const Answer *a, const char *path);

#endif
