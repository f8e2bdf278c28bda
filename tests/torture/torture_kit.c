/* torture_kit.c - the small sound files that are attacked: models, learned drafters, an index, training data, a
 * checkpoint, published weights, a cost file. Models have one layer, so that a command takes some milliseconds. */
#include "torture.h"

#include "all_drafters.h"
#include "base/error.h"
#include "base/system.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

static const char *path_in(const Torture *t, const char *name) {
    static char path[2 * TORTURE_PATH];
    snprintf(path, sizeof path, "%s/%s", t->kit, name);
    return path;
}

static void write_text(const Torture *t, const char *name, const char *text) {
    file_write(path_in(t, name), text, strlen(text));
}

/* Writes the committed file without its first `skip` bytes. */
static void copy(const Torture *t, const char *from, size_t skip, const char *name) {
    Buf bytes;
    if (!file_read(from, &bytes) || bytes.n <= skip) {
        fprintf(stderr, "%s: is missing; run this program in the root of the project\n", from);
        exit(2);
    }
    file_write(path_in(t, name), bytes.data + skip, bytes.n - skip);
    buf_free(&bytes);
}

static void run(const Torture *t, const char *program, const char *arguments) {
    char line[4096], path[2 * TORTURE_PATH];
    Child c;
    torture_expand(t, arguments, line, sizeof line);
    torture_child(t, &c, line);
    snprintf(path, sizeof path, "%s/%s", t->tools, program);
    if (strcmp(program, "forerun") != 0) c.words[0] = path;
    child_run(&c);
    if (c.rc != 0 || c.signal) {
        Buf command = {.max_bytes = 1 << 16};
        child_print(&c, &command);
        fprintf(stderr, "the kit cannot be made: %s\n%s\n", command.data, c.err.data);
        exit(2);
    }
    child_free(&c);
}

static void make_models(const Torture *t) {
#define SMALL "--layers 1 --dim 32 --heads 2 --kv-heads 1 --ffn 32 --tie "
    copy(t, "tests/fuzz/target.gguf", 0, "target.gguf");
    copy(t, "tests/fuzz/corpus/corpus_index/sound", 0, "corpus.index");
    for (const char *const *m = trained_methods(); *m; m++) {
        char from[128], to[64];
        snprintf(from, sizeof from, "tests/fuzz/corpus/drafter_file/%s", *m);
        snprintf(to, sizeof to, "%s.gguf", *m);
        copy(t, from, 1, to);
    }
    run(t, "make_model", SMALL "--vocab 270 --type F16 --ctx 64 --seed 8 -o %k/draft.gguf");
    run(t, "make_model", SMALL "--vocab-from models/draft.gguf --type Q4_0 --ctx 256 --seed 9 -o %k/chat.gguf");
    run(t, "make_model",
        "--arch qwen2 --layers 1 --dim 256 --heads 4 --kv-heads 2 --ffn 256 --tie --vocab 270 --type Q4_K_M --ctx 64 "
        "-o "
        "%k/qwen2.gguf");
    run(t, "make_model",
        "--arch qwen35 --layers 2 --attention-every 2 --mtp 1 --dim 32 --heads 2 --kv-heads 1 --ffn 32 --tie --vocab "
        "270 "
        "--type F16 --ctx 64 -o %k/nextn.gguf");
    run(t, "make_model", "--arch qwen3 " SMALL "--vocab 270 --type BF16 --ctx 64 -o %k/qwen3.gguf");
}

static void make_texts(const Torture *t) {
    Buf data = {.max_bytes = 1 << 20};
    char line[4096];
    for (int i = 0; i < 12; i++) {
        int n = snprintf(line, sizeof line,
                         "{\"text\":\"abc abc %d \\u00e4\\n abc def abc abc\"}\n"
                         "{\"prompt\":\"what is %d\",\"response\":\"it is an abc, \\\"abc\\\"\"}\n"
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"hello %d\"},"
                         "{\"role\":\"assistant\",\"content\":\"abc abc\"}]}\n",
                         i, i, i);
        fr_assert(buf_append(&data, line, (size_t)n));
    }
    snprintf(
        line, sizeof line,
        "abc\n\"\"\"abc\nabc\"\"\"\n/regenerate\n/save %s/chat.json\n/undo\n/load %s/chat.json\nabc \\\nabc\n/quit\n",
        t->out, t->out);
    write_text(t, "chat.txt", line);
    write_text(t, "data.jsonl", data.data);
    char *packed = malloc(ZSTD_compressBound(data.n));
    size_t n_packed = packed ? ZSTD_compress(packed, ZSTD_compressBound(data.n), data.data, data.n, 3) : 0;
    fr_assert(n_packed > 0 && !ZSTD_isError(n_packed));
    file_write(path_in(t, "data.jsonl.zst"), packed, n_packed);
    free(packed);
    buf_free(&data);
    write_text(t, "text.txt", "A plain text, abc abc abc.\nIts second line is \xc3\xa4\xe2\x82\xac.\n");
    write_text(t, "prompts.jsonl",
               "{\"prompt\":\"abc\"}\n{\"prompt\":\"what is it\",\"category\":\"x\"}\n"
               "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}\n{\"prompt\":\"def\"}\n");
    write_text(t, "questions.jsonl",
               "{\"question_id\":1,\"category\":\"a\",\"turns\":[\"abc\",\"and def\"]}\n"
               "{\"question_id\":2,\"category\":\"b\",\"turns\":[\"def abc\"]}\n");
    write_text(t, "study.jsonl", "{\"category\":\"a\",\"prompt\":\"abc abc\"}\n");
    write_text(t, "trace.jsonl",
               "{\"prompt\":\"abc abc\",\"response\":\" abc abc def\",\"category\":\"a\"}\n"
               "{\"prompt\":\"def\",\"response\":\"def def\"}\n");
}

/* ---- published weights ------------------------------------------------------------------------------------ */

typedef struct Published {
    Buf header, data;
} Published;

static void add(Published *p, const char *name, int n_out, int n_in) {
    char text[256];
    size_t begin = p->data.n, n = (size_t)(n_out ? n_out : 1) * (size_t)n_in;
    for (size_t i = 0; i < n; i++) {
        float x = (float)((int)(i * 7919 % 101) - 50) / 400;
        fr_assert(buf_append(&p->data, &x, sizeof x));
    }
    int k = n_out ? snprintf(text, sizeof text, "%d,%d", n_out, n_in) : snprintf(text, sizeof text, "%d", n_in);
    char shape[64];
    memcpy(shape, text, (size_t)k + 1);
    k = snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                 p->header.n > 1 ? "," : "", name, shape, begin, p->data.n);
    fr_assert(buf_append(&p->header, text, (size_t)k));
}

static void write_published(const Torture *t, Published *p, const char *name) {
    Buf file = {.max_bytes = 1 << 24};
    fr_assert(buf_append(&p->header, "}", 1));
    uint64_t n = p->header.n;
    fr_assert(buf_append(&file, &n, sizeof n) && buf_append(&file, p->header.data, p->header.n));
    fr_assert(buf_append(&file, p->data.data, p->data.n));
    file_write(path_in(t, name), file.data, file.n);
    buf_free(&file), buf_free(&p->header), buf_free(&p->data);
}

static Published begin_published(void) {
    Published p = {.header = {.max_bytes = 1 << 20}, .data = {.max_bytes = 1 << 24}};
    fr_assert(buf_append(&p.header, "{", 1));
    return p;
}

static void make_published(const Torture *t) {
    enum { H = 32, V = 270, FF = 32 };
    Published p = begin_published();
    add(&p, "0.0.linear.weight", H, H), add(&p, "0.0.linear.bias", 0, H), add(&p, "0.1.weight", V, H);
    write_published(t, &p, "medusa.safetensors");
    if (mkdir(path_in(t, "eagle"), 0777) != 0) exit(2);
    p = begin_published();
    add(&p, "fc.weight", H, 2 * H), add(&p, "fc.bias", 0, H);
    add(&p, "layers.0.self_attn.q_proj.weight", H, H), add(&p, "layers.0.self_attn.k_proj.weight", H / 2, H);
    add(&p, "layers.0.self_attn.v_proj.weight", H / 2, H), add(&p, "layers.0.self_attn.o_proj.weight", H, H);
    add(&p, "layers.0.post_attention_layernorm.weight", 0, H), add(&p, "layers.0.mlp.gate_proj.weight", FF, H);
    add(&p, "layers.0.mlp.up_proj.weight", FF, H), add(&p, "layers.0.mlp.down_proj.weight", H, FF);
    write_published(t, &p, "eagle/model.safetensors");
    write_text(t, "eagle/config.json",
               "{\"architectures\": [\"LlamaForCausalLM\"], \"num_attention_heads\": 2, \"num_key_value_heads\": 1}\n");
}

/* Writes a model as Hugging Face publishes it, for `convert`. */
static void make_hub(const Torture *t) {
    enum { H = 32, V = 12, FF = 32 };
    Published p = begin_published();
    if (mkdir(path_in(t, "hub"), 0777) != 0) exit(2);
    add(&p, "model.embed_tokens.weight", V, H), add(&p, "model.norm.weight", 0, H), add(&p, "lm_head.weight", V, H);
    add(&p, "model.layers.0.input_layernorm.weight", 0, H), add(&p, "model.layers.0.self_attn.q_proj.weight", H, H);
    add(&p, "model.layers.0.self_attn.k_proj.weight", H / 2, H);
    add(&p, "model.layers.0.self_attn.v_proj.weight", H / 2, H);
    add(&p, "model.layers.0.self_attn.o_proj.weight", H, H);
    add(&p, "model.layers.0.post_attention_layernorm.weight", 0, H);
    add(&p, "model.layers.0.mlp.gate_proj.weight", FF, H), add(&p, "model.layers.0.mlp.up_proj.weight", FF, H);
    add(&p, "model.layers.0.mlp.down_proj.weight", H, FF);
    write_published(t, &p, "hub/model.safetensors");
    write_text(t, "hub/config.json",
               "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 32, \"intermediate_size\": 32, "
               "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 12, "
               "\"max_position_embeddings\": 64}\n");
    write_text(
        t, "hub/tokenizer.json",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [[\"a\", \"b\"]]}, "
        "\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}], "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}}\n");
}

/* ---- files that the program itself leaves --------------------------------------------------------------------- */

/* A training run is killed as soon as its first checkpoint is there. */
static void make_checkpoint(const Torture *t) {
    char line[4096], path[2 * TORTURE_PATH];
    snprintf(path, sizeof path, "%s", path_in(t, "half.gguf.checkpoint"));
    for (int tries = 1; tries <= 10 && !file_exists(path); tries++) {
        Child c;
        torture_expand(
            t,
            "train redrafter -m %k/target.gguf --data %k/data.jsonl --type q8_0 --blocks 0 --batch 1 --length 16 "
            "--valid 0 --steps 5000 --checkpoint-every 40 -t 1 -o %k/half.gguf",
            line, sizeof line);
        torture_child(t, &c, line);
        c.kill_after_s = 0.25 * tries;
        child_run(&c);
        child_free(&c);
    }
}

/* Copies the costs that a run has kept, if there are any. */
static bool copy_cost_file(const Torture *t) {
    char folder[2 * TORTURE_PATH];
    bool is_copied = false;
    snprintf(folder, sizeof folder, "%s", path_in(t, "cache/forerun"));
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, "cost-", 5) == 0) {
            char from[1024];
            snprintf(from, sizeof from, "%.600s/%.200s", folder, entry->d_name);
            copy(t, from, 0, "cost.txt");
            write_text(t, "cost.name", entry->d_name);
            is_copied = true;
        }
    if (dir) closedir(dir);
    return is_copied;
}

/* Costs that other programs disturbed are not kept, so it may take some attempts. */
static void make_cost_file(const Torture *t) {
    if (mkdir(path_in(t, "cache"), 0777) != 0) exit(2);
    for (int i = 0; i < 20 && !copy_cost_file(t); i++)
        run(t, "forerun", "run -m %k/target.gguf -p abab -n 20 -t 1 --draft auto");
}

void torture_make_kit(Torture *t) {
    make_models(t);
    make_texts(t);
    make_published(t);
    make_hub(t);
    make_checkpoint(t);
    make_cost_file(t);
    t->begin_s = clock_s();
}
