/* jobs.h - the command lines that the allocation sweep and the killer attack: every command of `forerun`, with the
 * files that it reads and writes. */
#ifndef TORTURE_JOBS_H
#define TORTURE_JOBS_H

#include "torture.h"

enum { JOB_FILES = 4 };

typedef struct Job {
    const char *name;
    const char *line;  /* its words; %k and %o as in torture_expand */
    const char *input; /* standard input, below the kit; NULL: none */
    /* The files below %o that it writes and replaces as a whole: after a failure each has its old content. Those in
     * `grows` are written line by line instead: after a failure they may hold any number of whole lines of the
     * complete file, or their old content. Those in `may_stay` may be there at the end, with any content. */
    const char *outputs[JOB_FILES], *grows[JOB_FILES], *may_stay[JOB_FILES];
    bool resumes;   /* if a kill left new.gguf.checkpoint, it must be run again with --resume */
    bool has_times; /* even its layout depends on the time it takes: standard output is not compared */
    bool is_slow;   /* takes seconds */
    /* A drafter that runs out of memory is switched off, and the program reports that. With the default rule no token
     * changes; but the output of this job may change, because it prints statistics or the rule's random choices depend
     * on the drafts. */
    bool needs_drafters;
} Job;

int jobs_count(void);
const Job *jobs_get(int i);

/* Empties the folder of outputs, and fills it with the old files. */
void job_prepare(const Torture *t, const Job *j);
/* The child that runs the job; `line` is room for its words. */
void job_child(const Torture *t, const Job *j, char *line, size_t size, Child *c);

/* The files and the output of a run without a failure. */
typedef struct JobResult {
    Buf out, files[JOB_FILES], grown[JOB_FILES];
    bool is_masked; /* in `out`, numbers are replaced by '#', because they differ from run to run */
    bool out_varies, files_vary[JOB_FILES]; /* they differ from run to run even so */
} JobResult;
void job_result_free(JobResult *r);

/* Runs the job twice, and finds the parts of its output that are the same in both. False: it failed, which is
 * printed. */
bool job_reference(Torture *t, const Job *j, JobResult *r);
/* Returns the fault of the files and the standard output after a run that succeeded (rc 0) or not; NULL: there is
 * none. */
const char *job_fault(const Torture *t, const Job *j, const JobResult *r, const Child *c);
/* The same only for the files; with `whole`, each must be the old or the new one. */
const char *job_files_fault(const Torture *t, const Job *j, const JobResult *r, bool succeeded);
/* Returns a file below %o that no run may leave there; NULL: there is none. */
const char *job_leftover(const Torture *t, const Job *j);

#endif
