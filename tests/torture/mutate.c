/* mutate.c - feeds damaged files of every kind to the commands that read them.
 *
 * A mutant is made from a sound file of the kit by the mutators of its kind (mutators.h), and depends only on the seed
 * and its number. The command must accept it or refuse it with an error message: no signal, no hang, no excessive
 * memory, no raw control bytes on a terminal, and valid JSON with --json. Mutants that showed a fault are kept in
 * build/torture/mutate/kept. */
#include "mutators.h"

#include "all_drafters.h"
#include "base/error.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_LINES = 12, MAX_METHODS = 32, TIMEOUT_S = 20, MOST_MIB = 1024 };

/* The first character describes the output: '.': anything; '!': no control bytes; '{': JSON without control bytes, if
 * it succeeds. %m is the mutant, %n the name of its kind. */
typedef struct Kind {
    const char *name, *file; /* the sound file in the kit */
    Mutator *mutate;
    const char *place;     /* the place of the mutant below %o; NULL: the name of the file */
    const char *beside[2]; /* a sound file that is copied, and its place below %o */
    bool is_cache;         /* %o/cache is the cache folder */
    const char *lines[MAX_LINES];
} Kind;

#define TARGET "-m %k/target.gguf -t 1 "
#define MODEL_LINES \
    "!inspect --tensors %m", "{inspect --json --tensors %m", "!tokenize -m %m -f %k/text.txt --special", \
        ".run -m %m -t 1 -p abab -n 6 --draft none --stats", \
        ".run -m %m -t 1 --backend reference -p ab -n 3 --draft none", \
        "!logits -m %m -t 1 --tokens 1,2,3 -o %o/result", "!quantize %m %o/result --type Q4_K_M --requantize", \
        "!index -m %m %k/data.jsonl -o %o/result", ".run " TARGET "-p abab -n 8 --draft sps:model=%m"
#define TRAIN "!train redrafter " TARGET "--type q8_0 --blocks 0 --batch 1 --length 16 --valid 0 --force "

static const Kind fixed_kinds[] = {
    {"model", "target.gguf", mutate_gguf,
     .lines = {MODEL_LINES,
               "!train target --vocab %m --data %k/data.jsonl --layers 1 --width 16 --heads 2 --length 16 --batch "
               "1 --steps 2 -t 1 -o %o/result"}},
    {"chat", "chat.gguf", mutate_gguf,
     .lines = {"!inspect %m", ".run -m %m -t 1 --chat -p abc -n 4 --draft none",
               "!tokenize -m %m --pieces -f %k/text.txt",
               "!bench -m %m -t 1 %k/questions.jsonl --runs 1 -n 3 --chain none --draft suffix"}},
    {"qwen2", "qwen2.gguf", mutate_gguf, .lines = {"!inspect %m", ".run -m %m -t 1 -p abab -n 4 --draft none"}},
    {"qwen3", "qwen3.gguf", mutate_gguf, .lines = {MODEL_LINES}},
    {"nextn", "nextn.gguf", mutate_gguf,
     .lines = {"!inspect %m", ".run -m %m -t 1 -p abab -n 10 --draft mtp",
               ".run -m %m -t 1 --backend reference -p ab -n 6 --draft mtp"}},
    {"index", "corpus.index", mutate_index,
     .lines = {".run " TARGET "-p abab -n 12 --draft rest:index=%m",
               "!replay -m %k/target.gguf %k/trace.jsonl -d rest:index=%m"}},
    {"checkpoint", "half.gguf.checkpoint", mutate_checkpoint,
     .lines = {TRAIN "--data %k/data.jsonl --steps 5000 --checkpoint-every 40 -o %o/half.gguf --resume",
               "!inspect %m"}},
    {"medusa weights", "medusa.safetensors", mutate_safetensors,
     .lines = {"!import-drafter medusa -m %k/target.gguf %m -o %o/result",
               "!import-drafter -m %k/target.gguf hydra %m -o %o/r2"}},
    {"eagle weights", "eagle/model.safetensors", mutate_safetensors, .place = "model.safetensors",
     .lines = {"!import-drafter eagle -m %k/target.gguf %m -o %o/result"}},
    {"config", "eagle/config.json", mutate_json, .place = "config.json",
     .beside = {"eagle/model.safetensors", "model.safetensors"},
     .lines = {"!import-drafter eagle -m %k/target.gguf %o -o %o/result"}},
    {"data", "data.jsonl", mutate_json,
     .lines = {"!index -m %k/target.gguf %m -o %o/result", TRAIN "--data %m --steps 2 -o %o/result",
               "!distill-data " TARGET "%m -n 2 -o %o/result",
               "!distill-data " TARGET "%m --begin-texts 2 -n 2 -o %o/result"}},
    {"packed data", "data.jsonl.zst", mutate_zstd,
     .lines = {"!index -m %k/target.gguf %m -o %o/result", TRAIN "--data %m --steps 2 -o %o/result"}},
    {"prompts", "prompts.jsonl", mutate_json, .lines = {"!distill-data " TARGET "%m -n 2 -o %o/result"}},
    {"questions", "questions.jsonl", mutate_json,
     .lines = {"!bench " TARGET "%m --raw --runs 1 -n 3 --chain none --draft suffix --json %o/result"}},
    {"traces", "trace.jsonl", mutate_json,
     .lines = {"!replay -m %k/target.gguf %m", "{replay -m %k/target.gguf %m --json --draft suffix"}},
    {"study prompts", "study.jsonl", mutate_json,
     .lines = {"!study length " TARGET "--draft-model %k/draft.gguf -f %m -n 1 --runs 1"}},
    {"costs", "cost.txt", mutate_cost, .is_cache = true,
     .lines = {".run " TARGET "-p abab -n 20 --draft auto",
               ".run " TARGET "-p abab -n 20 --draft suffix --tree-budget auto"}},
    {"text", "text.txt", mutate_blind,
     .lines = {"!tokenize -m %k/chat.gguf -f %m --pieces", "{tokenize -m %k/chat.gguf -f %m --json",
               ".run " TARGET "-f %m -n 2 --draft none", "!index -m %k/target.gguf %m -o %o/result"}},
};
enum { N_FIXED = sizeof fixed_kinds / sizeof *fixed_kinds };

/* The kinds above, and the drafter file of each method. */
static Kind kinds[N_FIXED + MAX_METHODS];
static uint64_t n_kinds;

static void list_kinds(void) {
    static char files[MAX_METHODS][40];
    memcpy(kinds, fixed_kinds, sizeof fixed_kinds);
    n_kinds = N_FIXED;
    for (const char *const *m = trained_methods(); *m; m++) {
        char *file = files[n_kinds - N_FIXED];
        fr_assert(n_kinds - N_FIXED < MAX_METHODS);
        snprintf(file, sizeof files[0], "%s.gguf", *m);
        kinds[n_kinds++] = (Kind){
            *m, file, mutate_gguf,
            .lines = {"!inspect --tensors %m", "{inspect --json %m", ".run " TARGET "-p abab -n 10 --draft %n:file=%m",
                      ".run " TARGET "-p abab -n 10 --temp 1 --verify recursive --draft %n:file=%m",
                      "!train %n " TARGET "--data %k/data.jsonl --steps 1 --batch 1 --length 16 --valid 0 --force "
                      "--init %m -o %o/result"}};
    }
}

static void place_of(const Torture *t, const Kind *k, char out[TORTURE_PATH * 2]) {
    Buf name;
    char file[TORTURE_PATH + 16];
    snprintf(out, TORTURE_PATH * 2, "%s/%s", t->out, k->place ? k->place : k->file);
    if (!k->is_cache) return;
    snprintf(file, sizeof file, "%s/cost.name", t->kit);
    fr_assert(file_read(file, &name));
    snprintf(out, TORTURE_PATH * 2, "%s/cache", t->out), mkdir(out, 0777);
    snprintf(out, TORTURE_PATH * 2, "%s/cache/forerun", t->out), mkdir(out, 0777);
    snprintf(out, TORTURE_PATH * 2, "%s/cache/forerun/%s", t->out, name.data);
    buf_free(&name);
}

static void read_kit(const Torture *t, const char *name, Buf *out) {
    char path[2 * TORTURE_PATH];
    snprintf(path, sizeof path, "%s/%s", t->kit, name);
    fr_assert(file_read(path, out));
}

/* Empties the folder of outputs, and writes the mutant and the file beside it. */
static void lay_out(Torture *t, const Kind *k, const Buf *mutant, const char *path) {
    folder_empty(t->out);
    char place[2 * TORTURE_PATH];
    place_of(t, k, place); /* its folders */
    file_write(path, mutant->data, mutant->n);
    if (!k->beside[0]) return;
    Buf sound;
    read_kit(t, k->beside[0], &sound);
    snprintf(place, sizeof place, "%s/%s", t->out, k->beside[1]);
    file_write(place, sound.data, sound.n);
    buf_free(&sound);
}

/* `text` with another text for each `mark`. */
static void replace(const char *text, const char *mark, const char *by, char *out, size_t size) {
    const char *at;
    size_t n = 0;
    for (; (at = strstr(text, mark)); text = at + strlen(mark))
        n += (size_t)snprintf(out + n, size - n, "%.*s%s", (int)(at - text), text, by);
    snprintf(out + n, size - n, "%s", text);
}

static const char *fault_of(const Child *c, char what) {
    const char *fault = child_fault(c);
    if (fault) return fault;
    if (c->memory_mib && c->peak_mib > MOST_MIB) return "it took more than 1 GiB of memory";
    if (what != '.' && has_control_bytes(c->out.data, c->out.n)) return "it printed control bytes on standard output";
    if (what != '{' || c->rc != 0) return NULL;
    json_error_t error;
    bool is_json = true;
    for (size_t at = 0, n; at < c->out.n && is_json; at += n) { /* one object or several, one after the other */
        json_t *j = json_loadb(c->out.data + at, c->out.n - at,
                               JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        is_json = j != NULL;
        n = is_json ? (size_t)error.position : 0;
        json_decref(j);
        while (at + n < c->out.n && (c->out.data[at + n] == '\n' || c->out.data[at + n] == ' ')) n++;
        if (n == 0) break;
    }
    return is_json ? NULL : "its output is not JSON";
}

static void keep(const Torture *t, const Kind *k, const Buf *mutant, uint64_t number, const char *path) {
    char kept[2 * TORTURE_PATH];
    snprintf(kept, sizeof kept, "%s/kept", t->folder), mkdir(kept, 0777);
    snprintf(kept, sizeof kept, "%s/kept/%s-%llu-%llu", t->folder,
             k->file[0] == 'e' && strchr(k->file, '/') ? strchr(k->file, '/') + 1 : k->file,
             (unsigned long long)t->seed, (unsigned long long)number);
    file_write(kept, mutant->data, mutant->n);
    printf("  its mutant: cp '%s' '%s'\n", kept, path);
}

static void attack(Torture *t, const Kind *k, uint64_t number) {
    Buf mutant;
    char path[2 * TORTURE_PATH], named[2048], text[4096], line[8192], cache[TORTURE_PATH + 32];
    t->random = (t->seed << 32) + number * 0x632be59bd9b4e019u;
    read_kit(t, k->file, &mutant);
    for (uint64_t n = 1 + torture_below(t, 2); n > 0; n--) k->mutate(t, &mutant);
    folder_empty(t->out);
    place_of(t, k, path);
    int n_lines = 0;
    while (n_lines < MAX_LINES && k->lines[n_lines]) n_lines++;
    const char *which = k->lines[torture_below(t, (uint64_t)n_lines)];
    Child c;
    lay_out(t, k, &mutant, path);
    replace(which + 1, "%n", k->name, named, sizeof named);
    replace(named, "%m", path, text, sizeof text);
    torture_expand(t, text, line, sizeof line);
    torture_child(t, &c, line);
    snprintf(cache, sizeof cache, "XDG_CACHE_HOME=%s/cache", t->out);
    if (k->is_cache) c.env[0] = cache;
    c.memory_mib = t->memory_mib, c.timeout_s = TIMEOUT_S;
    child_run(&c);
    t->n_runs++;
    const char *fault = fault_of(&c, which[0]);
    char what_case[64];
    snprintf(what_case, sizeof what_case, "%s: %.*s", k->name, (int)strcspn(which + 1, " "), which + 1);
    if (fault && torture_fault(t, what_case, fault, &c)) keep(t, k, &mutant, number, path);
    child_free(&c);
    buf_free(&mutant);
}

int main(int argc, char **argv) {
    Torture t;
    torture_begin(&t, "mutate", argc, argv);
    torture_make_kit(&t);
    list_kinds();
    for (uint64_t number = 0; torture_goes_on(&t); number++) {
        const Kind *k = &kinds[number % n_kinds];
        if (!t.only || strstr(k->name, t.only)) attack(&t, k, number);
    }
    return torture_end(&t);
}
