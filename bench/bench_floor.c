/* bench_floor.c - whether a drafter under the automatic budget ever falls below plain decoding: by the length of the
 * answers and by how many clients there are.
 *
 *   bench_floor MODEL.gguf PROMPTS.jsonl [-d DRAFT]... [-a 8,16,64,512] [-c 1,4,16,32] [-r ROUNDS] [-t THREADS]
 *   bench_floor models/target.gguf spec_bench.jsonl -d suffix -d auto -d eagle:file=models/eagle.gguf \
 *               -d lyanna:file=models/lyanna.gguf -d sps:model=models/draft.gguf
 *
 * PROMPTS.jsonl has one object per line with "turns", of which the first is the prompt. A cell is a drafter, a length
 * and a number of clients. In each of its rounds, plain decoding and the drafter answer the same prompts one right
 * after the other, in alternating order. Both have fresh engines, so that no drafter has seen these answers before, and
 * no prefix cache. Other prompts are answered first, so that the memory of the engines has been touched. All clients
 * send a prompt at once and wait for their answers, several times in succession, so that a round has about as many
 * tokens as --tokens demands. The time includes the prompts. A cell's ratio is the median over its rounds of
 * (plain time / drafted time). With --cpu times are processor time of this process, which other programs disturb less;
 * use one thread then.
 *
 * Exit status 1: a ratio is below --floor, or a drafter changed a text. */
#include <forerun.h>

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PROMPTS = 1024, MAX_CLIENTS = 256, MAX_ROUNDS = 101, MAX_LIST = 16 };

typedef struct List {
    int n, values[MAX_LIST];
} List;

/* What one engine took for one round. */
typedef struct Side {
    double seconds;
    double draft_s, forward_s, verify_s; /* sums over the requests, which share their steps */
    long long tokens, steps, drafted, accepted, proposals;
    uint64_t hash;
} Side;

static struct {
    const char *model, *prompts, *drafts[MAX_LIST];
    List answers, clients;
    int n_drafts, n_rounds, n_threads, n_prompt_max, tokens_per_round;
    double floor, temperature;
    bool cpu, is_verbose;
} o = {.answers = {4, {8, 16, 64, 512}},
       .clients = {4, {1, 4, 16, 32}},
       .n_rounds = 9,
       .n_prompt_max = 256,
       .tokens_per_round = 4096,
       .floor = 0.98};

static struct {
    int32_t *tokens;
    int64_t n;
} prompts[MAX_PROMPTS];
static int n_prompts;

static void die(const char *what) {
    fprintf(stderr, "bench_floor: %s\n", what);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(o.cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void read_prompts(const fr_model *model) {
    FILE *f = fopen(o.prompts, "r");
    if (!f) die("the prompts cannot be read");
    json_t *record;
    fr_error err;
    while (n_prompts < MAX_PROMPTS && (record = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *text = json_string_value(json_array_get(json_object_get(record, "turns"), 0));
        if (text) {
            int64_t *n = &prompts[n_prompts].n;
            if (fr_tokenize(model, text, strlen(text), FR_TOKENIZE_PROMPT, &prompts[n_prompts].tokens, n, &err))
                die(err.message);
            if (*n > o.n_prompt_max) *n = o.n_prompt_max;
            n_prompts++;
        }
        json_decref(record);
    }
    fclose(f);
    if (n_prompts == 0) die("there are no prompts");
}

/* Adds the statistics of a request that has ended to the side, and closes it. */
static void finish(fr_request *r, Side *side) {
    fr_stats s = {.struct_size = sizeof s};
    fr_draft_stats of_drafts = {.struct_size = sizeof of_drafts};
    fr_request_get_stats(r, &s);
    fr_request_get_draft_stats(r, &of_drafts);
    side->tokens += s.n_generated, side->steps += s.n_steps;
    side->drafted += s.drafted, side->accepted += s.accepted, side->proposals += of_drafts.n_proposals;
    side->draft_s += s.draft_s, side->forward_s += s.forward_s, side->verify_s += s.verify_s;
    side->hash = side->hash * 31 + s.logits_hash;
    fr_request_close(r);
}

/* All clients ask at once, and the engine runs until they have their answers. */
static void run_batch(fr_engine *e, const char *draft, int n_clients, int n_tokens, int first, Side *side) {
    fr_request *requests[MAX_CLIENTS];
    fr_error err;
    double start_s = now();
    for (int i = 0; i < n_clients; i++) {
        int k = (first + i) % n_prompts;
        fr_request_options options = {.struct_size = sizeof options,
                                      .prompt = prompts[k].tokens,
                                      .n_prompt = prompts[k].n,
                                      .max_tokens = n_tokens,
                                      .sampling = fr_sampling_default(),
                                      .drafts = &draft,
                                      .n_drafts = draft != NULL,
                                      .ignore_eos = 1};
        options.sampling.temperature = (float)o.temperature;
        options.sampling.seed = (uint64_t)(first + i) + 1;
        if (fr_request_open(&requests[i], e, &options, &err)) die(err.message);
    }
    int status;
    while ((status = fr_engine_step(e, &err)) > 0) {}
    if (status < 0) die(err.message);
    side->seconds += now() - start_s;
    for (int i = 0; i < n_clients; i++) finish(requests[i], side);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static fr_engine *open_engine(const fr_model *model, const char *draft, int n_clients) {
    const fr_engine_options options = {.struct_size = sizeof options,
                                       .n_threads = o.n_threads,
                                       .max_requests = n_clients,
                                       .prefix_cache = -1};
    fr_engine *e;
    fr_error err;
    if (fr_engine_open(&e, model, &options, &err)) die(err.message);
    if (fr_engine_measure_costs(e, &err)) die(err.message);
    if (draft && fr_engine_open_draft(e, draft, &err)) die(err.message);
    return e;
}

/* Measures a cell. Returns its ratio; 0: a text was changed. */
static double measure(const fr_model *model, const char *draft, int n_clients, int n_tokens, Side sums[2]) {
    int n_batches = o.tokens_per_round / (n_clients * n_tokens);
    if (n_batches < 1) n_batches = 1;
    double ratios[MAX_ROUNDS];
    for (int round = 0; round < o.n_rounds; round++) {
        fr_engine *engines[2] = {open_engine(model, NULL, n_clients), open_engine(model, draft, n_clients)};
        Side warm_up = {.seconds = 0}, sides[2] = {{.seconds = 0}, {.seconds = 0}};
        for (int k = 0; k < 2; k++)
            run_batch(engines[k], k ? draft : NULL, n_clients, n_tokens < 64 ? n_tokens : 64,
                      n_prompts / 2 + round * n_clients, &warm_up);
        for (int i = 0; i < n_batches; i++)
            for (int k = 0; k < 2; k++) {
                int drafted = (i + k + round) % 2, first = (round * n_batches + i) * n_clients;
                run_batch(engines[drafted], drafted ? draft : NULL, n_clients, n_tokens, first, &sides[drafted]);
            }
        if (sides[0].hash != sides[1].hash) return 0;
        ratios[round] = sides[0].seconds / sides[1].seconds;
        for (int k = 0; k < 2; k++) {
            fr_engine_close(engines[k]);
            sums[k].seconds += sides[k].seconds, sums[k].tokens += sides[k].tokens, sums[k].steps += sides[k].steps;
            sums[k].drafted += sides[k].drafted, sums[k].accepted += sides[k].accepted;
            sums[k].proposals += sides[k].proposals, sums[k].draft_s += sides[k].draft_s;
            sums[k].forward_s += sides[k].forward_s, sums[k].verify_s += sides[k].verify_s;
        }
    }
    return median(ratios, o.n_rounds);
}

static void print_cell(const char *draft, int n_clients, int n_tokens, double ratio, const Side sums[2]) {
    double steps = (double)sums[1].steps;
    printf("%-32s %7d %7d %8.3f %9.0f %8.2f %10.2f %10.2f", draft, n_tokens, n_clients, ratio,
           (double)sums[0].tokens / sums[0].seconds, (double)sums[1].tokens / steps, (double)sums[1].drafted / steps,
           (double)sums[1].proposals / steps);
    for (int k = 0; k < 2 && o.is_verbose; k++)
        printf("   %s us/token/client: draft %.1f forward %.1f verify %.1f", k ? "drafted" : "plain",
               1e6 * sums[k].draft_s / (double)sums[k].tokens, 1e6 * sums[k].forward_s / (double)sums[k].tokens,
               1e6 * sums[k].verify_s / (double)sums[k].tokens);
    printf("%s\n", ratio == 0 ? "   TEXT CHANGED" : ratio < o.floor ? "   below" : "");
    fflush(stdout);
}

static void read_list(struct argp_state *state, char *text, List *out) {
    out->n = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        if (out->n == MAX_LIST || (out->values[out->n++] = atoi(word)) < 1) argp_error(state, "a list is wrong");
    }
}

static int parse(int key, char *arg, struct argp_state *state) {
    switch (key) {
    case 'd':
        if (o.n_drafts == MAX_LIST) argp_error(state, "there are too many drafts");
        o.drafts[o.n_drafts++] = arg;
        return 0;
    case 'a': read_list(state, arg, &o.answers); return 0;
    case 'c': read_list(state, arg, &o.clients); return 0;
    case 'r': o.n_rounds = atoi(arg); return 0;
    case 't': o.n_threads = atoi(arg); return 0;
    case 'n': o.tokens_per_round = atoi(arg); return 0;
    case 'p': o.n_prompt_max = atoi(arg); return 0;
    case 'T': o.temperature = strtod(arg, NULL); return 0;
    case 'f': o.floor = strtod(arg, NULL); return 0;
    case 'C': o.cpu = true; return 0;
    case 'v': o.is_verbose = true; return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) o.model = arg;
        else if (state->arg_num == 1) o.prompts = arg;
        else argp_usage(state);
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2) argp_usage(state);
        for (int i = 0; i < o.clients.n; i++)
            if (o.clients.values[i] > MAX_CLIENTS) argp_error(state, "there are too many clients");
        if (o.n_rounds < 1 || o.n_rounds > MAX_ROUNDS) argp_error(state, "-r must be from 1 to 101");
        if (o.n_prompt_max < 1) argp_error(state, "-p must be at least 1");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"draft", 'd', "DRAFT", 0, "a draft to measure; may be given several times (auto)", 0},
        {"answers", 'a', "LIST", 0, "tokens of an answer (8,16,64,512)", 0},
        {"clients", 'c', "LIST", 0, "clients at once (1,4,16,32)", 0},
        {"rounds", 'r', "N", 0, "rounds of a cell (9)", 0},
        {"threads", 't', "N", 0, "threads (one per physical core)", 0},
        {"tokens", 'n', "N", 0, "tokens of a round, about (4096)", 0},
        {"prompt", 'p', "N", 0, "prompts are cut to N tokens (256)", 0},
        {"temp", 'T', "X", 0, "temperature (0)", 0},
        {"floor", 'f', "X", 0, "the least ratio that is not below (0.98)", 0},
        {"cpu", 'C', NULL, 0, "count processor time in place of wall time", 0},
        {"verbose", 'v', NULL, 0, "print the parts of the time", 0},
        {0}};
    const struct argp argp = {table, parse, "MODEL.gguf PROMPTS.jsonl", NULL, NULL, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    if (o.n_drafts == 0) o.drafts[o.n_drafts++] = "auto";
    fr_error err;
    fr_model *model;
    if (fr_model_open(&model, o.model, NULL, &err)) die(err.message);
    read_prompts(model);
    printf("%-32s %7s %7s %8s %9s %8s %10s %10s\n", "draft", "tokens", "clients", "ratio", "plain t/s", "accepted",
           "drafted/st", "propos./st");
    int n_below = 0;
    for (int i = 0; i < o.n_drafts; i++)
        for (int a = 0; a < o.answers.n; a++)
            for (int c = 0; c < o.clients.n; c++) {
                Side sums[2] = {{.seconds = 0}, {.seconds = 0}};
                double ratio = measure(model, o.drafts[i], o.clients.values[c], o.answers.values[a], sums);
                print_cell(o.drafts[i], o.clients.values[c], o.answers.values[a], ratio, sums);
                n_below += ratio < o.floor;
            }
    for (int i = 0; i < n_prompts; i++) fr_free(prompts[i].tokens);
    fr_model_close(model);
    return n_below > 0;
}
