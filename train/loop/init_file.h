/* init_file.h - a drafter's file as the initial values of a training run. */
#ifndef LOOP_INIT_FILE_H
#define LOOP_INIT_FILE_H

#include "train/nets/net.h"

/* Replaces all parameters of the trainer, which trains that network for that target, by those in the file, converted
 * to floats. A file of another method, target or shape is refused, and the message names what differs; the parameters
 * are then undefined. *fingerprint is that of the new values. */
int init_file_read(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                   uint64_t *fingerprint, fr_error *err);

#endif
