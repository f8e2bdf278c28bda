/* killer.c - stops commands that write files: by kill -9 at a random moment, and by a full disk.
 *
 * After a kill each output file is the old one or complete, records that were written one by one are whole lines except
 * for the last, and the same command, run again, ends with the bytes of an undisturbed run. A full disk (RLIMIT_FSIZE,
 * and /dev/full for standard output) must end with an error message, the old files and no temporary file; then the same
 * command succeeds. */
#include "jobs.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Undisturbed {
    bool is_done, is_sound;
    double seconds;
    JobResult result;
} Undisturbed;

static const char *after_kill = "killed, it left an output file that is neither the old one nor complete";

static bool writes_files(const Job *j) { return j->outputs[0] || j->grows[0]; }

/* The last line may be incomplete, so it is removed. */
static void cut_to_lines(const char *path) {
    Buf is;
    if (!file_read(path, &is)) return;
    size_t n = is.n;
    while (n > 0 && is.data[n - 1] != '\n') n--;
    if (n < is.n) file_write(path, is.data, n);
    buf_free(&is);
}

/* Runs the job again, as a user would after the accident, and compares everything. */
static void run_again(Torture *t, const Job *j, const Undisturbed *u, bool was_started, const char *how) {
    char line[4096], path[2 * TORTURE_PATH];
    Child c;
    job_child(t, j, line, sizeof line, &c);
    char resume[] = "--resume";
    snprintf(path, sizeof path, "%s/new.gguf.checkpoint", t->out);
    if (was_started && j->resumes && file_exists(path)) child_words(&c, resume);
    child_run(&c);
    t->n_runs++;
    const char *fault = child_fault(&c);
    if (!fault && c.rc != 0) fault = "run again, it failed";
    if (!fault) fault = job_files_fault(t, j, &u->result, true);
    char what_case[96];
    snprintf(what_case, sizeof what_case, "%s, run again after %s", j->name, how);
    if (fault) torture_fault(t, what_case, fault, &c);
    child_free(&c);
}

static void attack_by_kill(Torture *t, const Job *j, const Undisturbed *u) {
    char line[4096], path[2 * TORTURE_PATH];
    Child c;
    job_prepare(t, j);
    job_child(t, j, line, sizeof line, &c);
    c.kill_after_s = u->seconds * 1.1 * (double)torture_below(t, 1000) / 1000 + 1e-4;
    child_run(&c);
    t->n_runs++;
    for (int i = 0; i < JOB_FILES && j->grows[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", t->out, j->grows[i]);
        cut_to_lines(path);
    }
    const char *fault = c.was_killed && c.signal ? NULL : child_fault(&c);
    if (!fault && job_files_fault(t, j, &u->result, false)) fault = after_kill;
    if (fault) torture_fault(t, j->name, fault, &c);
    run_again(t, j, u, true, "kill -9");
    child_free(&c);
}

static void attack_by_full_disk(Torture *t, const Job *j, const Undisturbed *u) {
    char line[4096];
    size_t most = 1;
    Child c;
    for (int i = 0; i < JOB_FILES; i++) {
        if (u->result.files[i].n > most) most = u->result.files[i].n;
        if (u->result.grown[i].n > most) most = u->result.grown[i].n;
    }
    job_prepare(t, j);
    job_child(t, j, line, sizeof line, &c);
    c.file_bytes = (int64_t)torture_below(t, most + most / 4 + 16);
    child_run(&c);
    t->n_runs++;
    const char *fault = child_fault(&c);
    /* Records may end anywhere then; running the command again must repair that. */
    bool is_cut = c.rc != 0 && j->grows[0];
    if (!fault && !is_cut) fault = job_fault(t, j, &u->result, &c);
    if (!fault) fault = job_leftover(t, j);
    char what_case[96];
    snprintf(what_case, sizeof what_case, "%s, disk full", j->name);
    if (fault) torture_fault(t, what_case, fault, &c);
    run_again(t, j, u, c.rc != 0, "a full disk");
    child_free(&c);
}

/* Standard output that cannot be written must give an error, unless the command prints nothing there. */
static void attack_standard_output(Torture *t, const Job *j, const Undisturbed *u) {
    char line[4096];
    Child c;
    job_prepare(t, j);
    job_child(t, j, line, sizeof line, &c);
    c.output = "/dev/full";
    child_run(&c);
    t->n_runs++;
    const char *fault = child_fault(&c);
    if (!fault && c.rc == 0 && u->result.out.n > 0) fault = "it ended with 0, but standard output was full";
    if (fault) torture_fault(t, j->name, fault, &c);
    child_free(&c);
}

static void attack(Torture *t, const Job *j, Undisturbed *u, uint64_t round) {
    if (!u->is_done) {
        char line[4096];
        Child c;
        u->is_done = true;
        u->is_sound = job_reference(t, j, &u->result);
        job_prepare(t, j);
        job_child(t, j, line, sizeof line, &c);
        child_run(&c);
        u->seconds = c.seconds;
        child_free(&c);
    }
    if (!u->is_sound) return;
    if (!writes_files(j)) attack_standard_output(t, j, u);
    else if (round % 2) attack_by_full_disk(t, j, u);
    else attack_by_kill(t, j, u);
}

int main(int argc, char **argv) {
    Torture t;
    torture_begin(&t, "killer", argc, argv);
    torture_make_kit(&t);
    Undisturbed *all = calloc((size_t)jobs_count(), sizeof *all);
    fr_assert(all);
    for (uint64_t round = 0; torture_goes_on(&t); round++)
        for (int i = 0; i < jobs_count() && torture_goes_on(&t); i++) {
            const Job *j = jobs_get(i);
            /* Standard output is the same in every round. */
            bool is_wanted = writes_files(j) || (round == 0 && !j->is_slow);
            if (is_wanted && (!t.only || strstr(j->name, t.only))) attack(&t, j, &all[i], round);
        }
    for (int i = 0; i < jobs_count(); i++) job_result_free(&all[i].result);
    free(all);
    return torture_end(&t);
}
