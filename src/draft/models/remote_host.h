/* remote_host.h - calls over HTTP to a server that drafts, none of which holds its caller up for longer than it wants:
 * a call whose answer is late goes on while the caller does something else. */
#ifndef MODELS_REMOTE_HOST_H
#define MODELS_REMOTE_HOST_H

#include "base/error.h"
#include "base/mem.h"

#include <stdbool.h>
#include <sys/socket.h>

typedef struct RemoteHost {
    char name[128]; /* HOST:PORT, as the user writes it */
    char key[258];  /* the API key; "": none */
    struct sockaddr_storage address;
    socklen_t address_bytes;
} RemoteHost;

/* Finds the address of HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in brackets. */
int remote_host_find(RemoteHost *h, const char *name, fr_error *err);

/* Reads the key that is the first line of a file. */
int remote_host_read_key(RemoteHost *h, const char *path, fr_error *err);

typedef enum RemoteState {
    REMOTE_IDLE,
    REMOTE_RUNS,     /* a part of the question has not been sent, or a part of the answer has not come */
    REMOTE_ANSWERED, /* status, body and body_bytes are the answer; the body is followed by a '\0' */
    REMOTE_FAILED,   /* `why` is the reason */
} RemoteState;

/* A connection, which is used for one call after the other. Zero-initialise it, except fd, which is -1. */
typedef struct RemoteCall {
    const RemoteHost *host;
    int fd; /* -1: not connected */
    RemoteState state;
    Buf question, answer;
    size_t sent_bytes;
    int status; /* of HTTP */
    const char *body;
    size_t body_bytes;
    char why[128];
} RemoteCall;

/* Begins to send "POST path" with a body of JSON. */
void remote_call_begin(RemoteCall *c, const RemoteHost *host, const char *path, const Buf *body);
/* Lets n calls go on until none of them runs any more, or until that time of clock_s. */
void remote_calls_wait(RemoteCall *const *calls, int n, double until_s);
/* Gives the call up, and closes the connection. */
void remote_call_cancel(RemoteCall *c);
void remote_call_free(RemoteCall *c);

#endif
