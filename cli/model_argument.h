/* model_argument.h - `forerun MODEL.gguf [OPTION...]` and `forerun -m MODEL.gguf [OPTION...]`, without a command. */
#ifndef APP_MODEL_ARGUMENT_H
#define APP_MODEL_ARGUMENT_H

#include <stdbool.h>

/* The command line of a command that the words after the program's name stand for: "chat" where standard input is a
 * terminal and no prompt is given, otherwise "run". malloc'ed, its strings borrowed, NULL at its end; NULL: the first word
 * is neither a GGUF file nor -m. */
char **model_argument(int argc, char **argv, int *n_words);

/* Whether a word that is no command was meant as a file. */
bool model_argument_is_path(const char *word);

#endif
