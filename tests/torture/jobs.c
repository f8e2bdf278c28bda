/* jobs.c - the table of command lines, and the comparison of a run's outputs with those of a run that nothing
 * disturbed. */
#include "jobs.h"

#include "all_drafters.h"
#include "base/error.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "-m %k/target.gguf -t 1 "
#define RUN "run " TARGET "-p abab -n 12 "
#define SAMPLED "--temp 1 --seed 3 "
/* BF16, because loading OpenBLAS loads libgfortran, which calls itself until the stack is full if an allocation fails
 * at that moment. */
#define TRAIN \
    TARGET "--precision bf16 --data %k/data.jsonl --steps 3 --batch 1 --length 16 --valid 0 --force -o %o/new.gguf "
#define TRAINED \
    .outputs = {"new.gguf"}, \
    .may_stay = {"new.gguf.log.jsonl", "new.gguf.checkpoint", "new.gguf.checkpoint.previous"}, .resumes = true

/* Each method of `forerun train` that makes a drafter has a job of its name and a job "train NAME": the one below, or
 * one with default options. */
static const Job table[] = {
    {.name = "no command", .line = ""},
    {.name = "help", .line = "--help"},
    {.name = "help of run", .line = "run --help"},
    {.name = "help of train", .line = "train lyanna --help"},
    {.name = "version", .line = "--version"},
    {.name = "bash completions", .line = "--completions bash"},
    {.name = "zsh completions", .line = "--completions zsh"},
    {.name = "fish completions", .line = "--completions fish"},
    {.name = "man", .line = "--man"},
    {.name = "unknown command", .line = "rum"},
    {.name = "unknown option", .line = "run --tokenz 3"},
    {.name = "missing option", .line = "distill-data"},
    {.name = "missing file", .line = "run -m %k/nowhere.gguf -p a"},
    {.name = "train without method", .line = "train"},
    {.name = "inspect", .line = "inspect --tensors %k/target.gguf"},
    {.name = "inspect as JSON", .line = "inspect --json --tensors %k/eagle.gguf"},
    {.name = "tokenize", .line = "tokenize -m %k/chat.gguf --pieces --bos -f %k/text.txt"},
    {.name = "tokenize as JSON", .line = "tokenize -m %k/target.gguf --json", .input = "text.txt"},
    {.name = "decode", .line = "tokenize -m %k/target.gguf -d 70,71,72"},
    {.name = "run", .line = RUN "--draft none"},
    {.name = "run sampled", .line = RUN SAMPLED "--draft none --top-p 0.9 --top-k 40 --repeat-penalty 1.1 --stop xyz"},
    {.name = "run chat",
     .line = "run -m %k/chat.gguf -t 1 --chat --system abc -f - -n 6 --draft none --color=always",
     .input = "text.txt"},
    {.name = "chat",
     .line = "chat -m %k/chat.gguf -t 1 -n 6 --temp 1 --seed 2 --draft suffix",
     .input = "chat.txt",
     .may_stay = {"chat.json"}},
    {.name = "run with threads", .line = "run -m %k/target.gguf -t 2 -p abab -n 12 --draft none --kv q8 --act q8"},
    {.name = "run on the reference", .line = RUN "--backend reference --draft pld"},
    {.name = "run qwen2", .line = "run -m %k/qwen2.gguf -t 1 -p abab -n 6 --draft none"},
    {.name = "run qwen3", .line = "run -m %k/qwen3.gguf -t 1 -p abab -n 6 --draft none"},
    {.name = "stats",
     .needs_drafters = true,
     .line = RUN "--stats --logprobs --draft ngram-trie --stats-json %o/stats.json",
     .outputs = {"stats.json"}},
    {.name = "record", .line = RUN "--draft none --record %o/kept.jsonl", .may_stay = {"kept.jsonl"}},
    {.name = "auto", .line = RUN "--draft auto"},
    {.name = "text drafters",
     .line = RUN "--draft ngram-trie --draft pld --draft llma --draft suffix --draft lookahead-trie"},
    {.name = "recycling", .line = RUN "--draft recycling --draft lookahead"},
    {.name = "rest", .line = RUN "--draft rest:index=%k/corpus.index"},
    {.name = "sps", .needs_drafters = true, .line = RUN SAMPLED "--draft sps:model=%k/draft.gguf --verify chain"},
    {.name = "rsd-c",
     .needs_drafters = true,
     .line = RUN SAMPLED "--draft rsd-c:model=%k/draft.gguf --verify recursive"},
    {.name = "rsd-s",
     .needs_drafters = true,
     .line = RUN SAMPLED "--draft rsd-s:model=%k/draft.gguf --verify recursive"},
    {.name = "spectr", .needs_drafters = true, .line = RUN SAMPLED "--draft spectr:model=%k/draft.gguf --verify k-seq"},
    {.name = "specinfer",
     .needs_drafters = true,
     .line = RUN SAMPLED "--draft specinfer:models=%k/draft.gguf+%k/draft.gguf --verify multi-round"},
    {.name = "block", .needs_drafters = true, .line = RUN SAMPLED "--draft sps:model=%k/draft.gguf --verify block"},
    {.name = "typical",
     .needs_drafters = true,
     .line = RUN SAMPLED "--draft medusa:file=%k/medusa.gguf --verify typical --lossy"},
    {.name = "eagle",
     .needs_drafters = true,
     .line = RUN SAMPLED "--draft eagle:file=%k/eagle.gguf --verify recursive"},
    {.name = "redrafter", .line = RUN "--draft redrafter:file=%k/redrafter.gguf --draft suffix"},
    {.name = "medusa", .line = RUN "--draft medusa:file=%k/medusa.gguf,tree=static"},
    {.name = "mtp", .line = "run -m %k/nextn.gguf -t 1 -p abab -n 12 --draft mtp"},
    {.name = "compare",
     .has_times = true,
     .line = "compare " TARGET "-p abab -n 6 --runs 1 --draft suffix --draft pld"},
    {.name = "bench",
     .has_times = true,
     .line = "bench " TARGET "%k/questions.jsonl --raw --runs 1 -n 4 --chain none --draft suffix --json %o/bench.json",
     .outputs = {"bench.json"}},
    {.name = "bench in parallel",
     .has_times = true,
     .line = "bench " TARGET "%k/questions.jsonl --raw --runs 1 -n 4 --parallel 1,2 --draft pld"},
    {.name = "replay", .line = "replay -m %k/target.gguf %k/trace.jsonl --calibration"},
    {.name = "replay as JSON", .line = "replay -m %k/target.gguf %k/trace.jsonl --json --draft suffix"},
    {.name = "study toy", .line = "study toy --json %o/toy.json", .outputs = {"toy.json"}},
    {.name = "study length",
     .has_times = true,
     .needs_drafters = true,
     .line = "study length " TARGET "--draft-model %k/draft.gguf -f %k/study.jsonl -n 2 --runs 1 --json %o/study.json",
     .outputs = {"study.json"}},
    {.name = "logits", .line = "logits " TARGET "--tokens 70,71,72,73 -o %o/logits.f32", .outputs = {"logits.f32"}},
    {.name = "index",
     .line = "index -m %k/target.gguf %k/data.jsonl.zst %k/text.txt -o %o/new.index",
     .outputs = {"new.index"}},
    {.name = "distill",
     .line = "distill-data -m %k/chat.gguf -t 1 %k/prompts.jsonl -n 4 --draft suffix -o %o/answers.jsonl",
     .grows = {"answers.jsonl"}},
    {.name = "train lyanna",
     .line = "train lyanna " TRAIN "--rank 4 --ff 32 --hot-tokens 40 --gate-rank 3 --chain parallel",
     TRAINED},
    {.name = "train eagle", .line = "train eagle " TRAIN "--ff 32 --head-tokens 40", TRAINED},
    {.name = "train redrafter", .line = "train redrafter " TRAIN "--blocks 0", TRAINED},
    {.name = "train medusa", .line = "train medusa " TRAIN "--steps-ahead 2", TRAINED},
    {.name = "train hydra", .line = "train hydra " TRAIN "--steps-ahead 2 --lm-head target", TRAINED},
    {.name = "train space", .line = "train space " TRAIN "--steps-ahead 2", TRAINED},
    {.name = "train eagle3", .line = "train eagle3 " TRAIN "--ff 32 --hot-tokens 40 --layers 1,0", TRAINED},
    {.name = "train eagle3 with blocks",
     .line = "train eagle3 " TRAIN "--ff 32 --depth 2 --chain parallel --anchors 4 --layers 1,0",
     TRAINED},
    {.name = "train dflash",
     .line = "train dflash " TRAIN "--ff 32 --depth 1 --block 3 --anchors 4 --layers 1,0 --conv-taps 2 --conv-group 8 "
             "--selector-rank 3",
     TRAINED},
    {.name = "train dflash with the heads of DSpark",
     .line = "train dflash " TRAIN "--ff 32 --depth 1 --block 3 --anchors 4 --layers 1,0 --markov rnn --markov-rank 3 "
             "--confidence",
     TRAINED},
    {.name = "train target",
     .line = "train target --vocab %k/target.gguf --data %k/data.jsonl.zst --layers 1 --width 16 --heads 2 --length 16 "
             "--batch 2 "
             "--steps 40 --checkpoint-every 1 -t 1 --force -o %o/new.gguf",
     .outputs = {"new.gguf"},
     .may_stay = {"new.gguf.log.jsonl", "new.gguf.checkpoint", "new.gguf.checkpoint.previous"},
     .resumes = true},
    {.name = "import eagle",
     .line = "import-drafter eagle -m %k/target.gguf %k/eagle -o %o/new.gguf",
     .outputs = {"new.gguf"}},
    {.name = "import medusa",
     .line = "import-drafter medusa -m %k/target.gguf %k/medusa.safetensors -o %o/new.gguf",
     .outputs = {"new.gguf"}},
    {.name = "quantize",
     .line = "quantize %k/qwen2.gguf %o/new.gguf --type Q4_0 --requantize -t 1",
     .outputs = {"new.gguf"}},
    {.name = "convert", .line = "convert %k/hub %o/new.gguf --type Q8_0", .outputs = {"new.gguf"}},
    {.name = "imatrix",
     .line = "imatrix " TARGET "%k/text.txt -c 8 --windows 1 -o %o/new.imatrix",
     .outputs = {"new.imatrix"}},
    {.name = "perplexity", .line = "perplexity " TARGET "%k/text.txt -c 8 --base %k/target.gguf"},
    {.name = "repack", .line = "repack -m %k/target.gguf -t 1"}, /* from now on, runs map the file that it wrote */
    {.name = "perf", .line = "perf " TARGET "--seconds 0.01 --rows 1 --ctx 8 --parts 1 --json", .is_slow = true},
};
enum { N_TABLE = sizeof table / sizeof *table, MAX_DEFAULTS = 64 };

static Job defaults[MAX_DEFAULTS];
static int n_defaults;

/* Adds the job unless the table has one of its name. */
static void add_default(const Job *j, const char *name, const char *line) {
    static char names[MAX_DEFAULTS][32], lines[MAX_DEFAULTS][512];
    for (int i = 0; i < N_TABLE; i++)
        if (strcmp(table[i].name, name) == 0) return;
    fr_assert(n_defaults < MAX_DEFAULTS);
    snprintf(names[n_defaults], sizeof names[0], "%s", name);
    snprintf(lines[n_defaults], sizeof lines[0], "%s", line);
    defaults[n_defaults] = *j;
    defaults[n_defaults].name = names[n_defaults];
    defaults[n_defaults].line = lines[n_defaults];
    n_defaults++;
}

static void make_defaults(void) {
    static const Job runs = {.input = NULL}, trains = {TRAINED};
    for (const char *const *m = trained_methods(); *m; m++) {
        char name[32], line[512];
        snprintf(line, sizeof line, "%s--draft %s:file=%%k/%s.gguf", RUN, *m, *m);
        add_default(&runs, *m, line);
        snprintf(name, sizeof name, "train %s", *m);
        snprintf(line, sizeof line, "%s %s", name, TRAIN);
        add_default(&trains, name, line);
    }
}

int jobs_count(void) {
    if (n_defaults == 0) make_defaults();
    return N_TABLE + n_defaults;
}

const Job *jobs_get(int i) { return i < N_TABLE ? &table[i] : &defaults[i - N_TABLE]; }

static const char old_text[] = "the old file\n";

static const char *path_in(const Torture *t, const char *name) {
    static char path[2 * TORTURE_PATH];
    snprintf(path, sizeof path, "%s/%s", t->out, name);
    return path;
}

void job_prepare(const Torture *t, const Job *j) {
    folder_empty(t->out);
    for (int i = 0; i < JOB_FILES && j->outputs[i]; i++)
        file_write(path_in(t, j->outputs[i]), old_text, strlen(old_text));
}

void job_child(const Torture *t, const Job *j, char *line, size_t size, Child *c) {
    static char input[2 * TORTURE_PATH];
    torture_expand(t, j->line, line, size);
    torture_child(t, c, line);
    if (!j->input) return;
    snprintf(input, sizeof input, "%s/%s", t->kit, j->input);
    c->input = input;
}

/* ---- comparison ------------------------------------------------------------------------------------------------ */

/* Replaces each number, with sign, point and exponent, by one '#', and each run of blanks by one blank, because tables
 * are aligned. */
static void mask(Buf *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        char ch = b->data[i];
        bool is_number = isdigit((unsigned char)ch) || (n > 0 && b->data[n - 1] == '#' && strchr(".+-eE", ch));
        if (is_number) ch = '#';
        bool repeats = n > 0 && b->data[n - 1] == ch && (ch == '#' || ch == ' ');
        if (!repeats) b->data[n++] = ch;
    }
    b->n = n;
    b->data[n] = '\0';
}

static bool same(const Buf *a, const Buf *b) { return a->n == b->n && memcmp(a->data, b->data, a->n) == 0; }

static Buf copy_of(const Buf *from) {
    Buf to = {.max_bytes = 1 << 28};
    fr_assert(buf_append(&to, from->data ? from->data : "", from->n));
    return to;
}

static void read_output(const Torture *t, const char *name, Buf *out) {
    if (!file_read(path_in(t, name), out)) fr_assert(buf_append(out, "", 0));
}

void job_result_free(JobResult *r) {
    buf_free(&r->out);
    for (int i = 0; i < JOB_FILES; i++) buf_free(&r->files[i]), buf_free(&r->grown[i]);
}

/* Runs the job into *r; any documented exit status is allowed. */
static bool run_undisturbed(Torture *t, const Job *j, JobResult *r) {
    char line[4096];
    Child c;
    *r = (JobResult){.is_masked = false};
    job_prepare(t, j);
    job_child(t, j, line, sizeof line, &c);
    child_run(&c);
    const char *fault = child_fault(&c);
    const char *leftover = job_leftover(t, j);
    if (!fault && leftover) fault = leftover;
    if (!fault && c.rc != 0 && (j->outputs[0] || j->grows[0])) fault = "it failed although nothing disturbed it";
    if (fault) torture_fault(t, j->name, fault, &c);
    r->out = copy_of(&c.out);
    for (int i = 0; i < JOB_FILES && j->outputs[i]; i++) read_output(t, j->outputs[i], &r->files[i]);
    for (int i = 0; i < JOB_FILES && j->grows[i]; i++) read_output(t, j->grows[i], &r->grown[i]);
    child_free(&c);
    return !fault;
}

/* Numbers that differ between two runs are masked; outputs that still differ are not compared later. */
static void settle(Buf *a, Buf *b, bool *is_masked, bool *varies) {
    if (same(a, b)) return;
    mask(a), mask(b);
    *is_masked = true;
    *varies = !same(a, b);
}

bool job_reference(Torture *t, const Job *j, JobResult *r) {
    JobResult again;
    bool sound = run_undisturbed(t, j, r);
    sound = run_undisturbed(t, j, &again) && sound;
    settle(&r->out, &again.out, &r->is_masked, &r->out_varies);
    r->out_varies = r->out_varies || j->has_times;
    for (int i = 0; i < JOB_FILES && j->outputs[i]; i++) r->files_vary[i] = !same(&r->files[i], &again.files[i]);
    job_result_free(&again);
    return sound;
}

/* Returns whether the file consists of whole lines of the complete one, from the first on. */
static bool is_beginning(const Buf *part, const Buf *whole) {
    bool at_line_end = part->n == 0 || part->data[part->n - 1] == '\n';
    return at_line_end && part->n <= whole->n && memcmp(part->data, whole->data, part->n) == 0;
}

const char *job_files_fault(const Torture *t, const Job *j, const JobResult *r, bool succeeded) {
    const char *fault = NULL;
    for (int i = 0; i < JOB_FILES && j->outputs[i]; i++) {
        Buf is;
        read_output(t, j->outputs[i], &is);
        bool is_old = is.n == strlen(old_text) && memcmp(is.data, old_text, is.n) == 0;
        bool is_new = r->files_vary[i] ? is.n > strlen(old_text) : same(&is, &r->files[i]);
        if (succeeded && !is_new)
            fault = "it ended with 0, but its output file differs from that of an undisturbed run";
        if (!succeeded && !is_old && !is_new)
            fault = "it failed, and its output file is neither the old one nor complete";
        buf_free(&is);
    }
    for (int i = 0; i < JOB_FILES && j->grows[i]; i++) {
        Buf is;
        read_output(t, j->grows[i], &is);
        if (succeeded && !same(&is, &r->grown[i]))
            fault = "it ended with 0, but its records are not those of a whole run";
        if (!succeeded && !is_beginning(&is, &r->grown[i])) fault = "it failed, and left records that are not whole";
        buf_free(&is);
    }
    return fault;
}

static bool is_among(const char *const names[JOB_FILES], const char *name) {
    for (int i = 0; i < JOB_FILES && names[i]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

const char *job_leftover(const Torture *t, const Job *j) {
    const char *fault = NULL;
    DIR *folder = opendir(t->out);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        const char *name = entry->d_name;
        bool is_expected = name[0] == '.'
                               ? name[1] == '\0' || strcmp(name, "..") == 0
                               : is_among(j->outputs, name) || is_among(j->grows, name) || is_among(j->may_stay, name);
        if (!is_expected) fault = "it left a temporary file behind";
    }
    if (folder) closedir(folder);
    return fault;
}

const char *job_fault(const Torture *t, const Job *j, const JobResult *r, const Child *c) {
    const char *fault = job_files_fault(t, j, r, c->rc == 0);
    if (fault) return fault;
    bool lacks_drafter = j->needs_drafters &&
                         (strstr(c->out.data, "switched off") || strstr(c->err.data, "switched off"));
    if (c->rc == 0 && !r->out_varies && !lacks_drafter) {
        Buf is = copy_of(&c->out);
        if (r->is_masked) mask(&is);
        if (!same(&is, &r->out)) fault = "it ended with 0, but printed something other than an undisturbed run";
        buf_free(&is);
    }
    return fault ? fault : job_leftover(t, j);
}
