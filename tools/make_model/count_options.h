/* count_options.h - options of a tool whose values are whole numbers, as a table. */
#ifndef COUNT_OPTIONS_H
#define COUNT_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct CountOption {
    const char *name;
    size_t field; /* the offset of its int64_t in the plan */
    int64_t most; /* the least is 1 */
    const char *help;
} CountOption;

/* The keys of the options in argp: the first has COUNT_OPTION_KEY. Other long options begin at OTHER_OPTION_KEY. */
enum { COUNT_OPTION_KEY = 256, MAX_COUNT_OPTIONS = 64, OTHER_OPTION_KEY = COUNT_OPTION_KEY + MAX_COUNT_OPTIONS };

/* Fills `out`, which has room for n + n_other, with the options of a table and with others, whose last is {0}. */
void count_options_list(struct argp_option *out, const CountOption *table, size_t n, const struct argp_option *others,
                        size_t n_other);

/* Sets the number that `key` stands for, and returns true; false if the key is none of the table's. */
bool count_option_parse(const CountOption *table, size_t n, int key, const char *arg, struct argp_state *state,
                        void *plan);

/* Reads a whole number from 1 to `most`, or ends the program with an error. */
int64_t count_parse(struct argp_state *state, const char *arg, int64_t most);

/* Ends the program with an error if `out` cannot be written, or is the file `source` (NULL: none), which `name`
 * describes. Files are checked before the work, which may take minutes. */
void output_option_check(struct argp_state *state, const char *out, const char *source, const char *name);

#endif
