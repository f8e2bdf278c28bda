/* test_convert.c - cli/convert and `forerun convert`: a model that is taken apart and converted is the same model, for
 * every type and vocabulary (test_convert_arch.c tests every architecture); folders that are incomplete, damaged or of
 * another kind are refused. */
#define DIR "build/test-convert"

#include "convert_rig.h"
#include "hub_build.h"
#include "model_rig.h"

#include "cli/convert/convert.h"
#include "cli/convert/convert_vocab.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Room for the fixed tokens, letters and pairs of letters; more would make finding merges slow. */
static const RandomModel small = {
    .n_layer = 2, .n_embd = 32, .n_head = 4, .n_head_kv = 2, .head_dim = 16, .n_ff = 64, .n_vocab = 600, .seed = 3};

static Gguf *make_model(const char *arch, bool tied, bool biases) {
    RandomModel m = small;
    fr_error err;
    m.arch = arch, m.tied = tied, m.biases = biases;
    if (random_model_write(&m, MODEL, &err)) fail_msg("%s", err.message);
    return rig_gguf(MODEL);
}

/* ---- the same model ------------------------------------------------------------------------------------ */

static void converted_models_are_the_same(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        bool tied, biases;
        int n_parts;
        HubVocab vocab;
    } cases[] = {
        {"llama", false, false, 1, HUB_SPM},
        {"llama", true, true, 3, HUB_MERGES},
        {"qwen2", false, true, 2, HUB_SPM},
        {"qwen3", true, false, 1, HUB_MERGES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        convert_rig_clear();
        Gguf *model = make_model(cases[i].arch, cases[i].tied, cases[i].biases);
        hub_build_write(model, FOLDER,
                        &(HubBuild){.type = TYPE_F32, .n_parts = cases[i].n_parts, .vocab = cases[i].vocab});
        convert_rig_convert(TYPE_F32);
        Gguf *out = rig_gguf(OUT);
        convert_rig_compare_tensors(model, out, TYPE_F32, TYPE_F32);
        convert_rig_compare_vocabularies(model, out, cases[i].vocab == HUB_SPM);
        convert_rig_same_output("logits -m %s --tokens 1,30,40,500,7 -o - | cksum", MODEL, OUT);
        convert_rig_same_output("tokenize -m %s -p 'the inner toad reads an old thesis, \xc3\xa9t\xc3\xa9'", MODEL,
                                OUT);
        gguf_close(out);
        gguf_close(model);
    }
}

static void recommended_sampling_is_taken_over(void **state) {
    (void)state;
    float temperature = 0, top_p = 0, penalty = 0;
    uint32_t top_k = 0;
    convert_rig_clear();
    Gguf *model = make_model("llama", false, false);
    hub_build_write(model, FOLDER, &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM});
    FILE *f = fopen(FOLDER "/generation_config.json", "w");
    assert_non_null(f);
    fputs("{\"temperature\": 0.5, \"top_k\": 20, \"top_p\": 0.75, \"repetition_penalty\": 1.125, \"min_p\": \"x\"}", f);
    fclose(f);
    convert_rig_convert(TYPE_F32);
    Gguf *out = rig_gguf(OUT);
    assert_true(gguf_get_f32(out, "general.sampling.temp", &temperature) && temperature == 0.5f);
    assert_true(gguf_get_f32(out, "general.sampling.top_p", &top_p) && top_p == 0.75f);
    assert_true(gguf_get_u32(out, "general.sampling.top_k", &top_k) && top_k == 20);
    assert_true(gguf_get_f32(out, "general.sampling.penalty_repeat", &penalty) && penalty == 1.125f);
    assert_true(gguf_find_key(out, "general.sampling.min_p") < 0);
    gguf_close(out);
    gguf_close(model);
}

static void types_round_once(void **state) {
    (void)state;
    static const TensorType stored[] = {TYPE_F32, TYPE_F16, TYPE_BF16},
                            wanted[] = {TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0};
    Gguf *model = make_model("llama", false, false);
    for (size_t s = 0; s < 3; s++) {
        convert_rig_clear();
        hub_build_write(model, FOLDER, &(HubBuild){.type = stored[s], .n_parts = 1, .vocab = HUB_SPM});
        for (size_t w = 0; w < 4; w++) {
            convert_rig_convert(wanted[w]);
            Gguf *out = rig_gguf(OUT);
            convert_rig_compare_tensors(model, out, wanted[w], stored[s]);
            gguf_close(out);
        }
    }
    gguf_close(model);
}

/* The factors of Llama 3.1, by its authors' definition: frequencies with wavelengths below 8192 / 4 stay, and those
 * with wavelengths above 8192 / 1 are divided by 8. */
static void llama_3_scaling_becomes_factors(void **state) {
    (void)state;
    convert_rig_clear();
    Gguf *model = make_model("llama", false, false);
    hub_build_write(model, FOLDER,
                    &(HubBuild){.type = TYPE_F32,
                                .n_parts = 1,
                                .vocab = HUB_SPM,
                                .config = ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
                                          "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                                          "\"original_max_position_embeddings\": 8192}, \"eos_token_id\": [2, 5, 9]"});
    convert_rig_convert(TYPE_F32);
    Gguf *out = rig_gguf(OUT);
    const GgufTensor *t = gguf_find_tensor(out, "rope_freqs.weight");
    assert_non_null(t);
    assert_int_equal(t->dims[0], 8);
    for (int i = 0; i < 8; i++) {
        double wave = 2 * M_PI * pow(10000, i / 8.0), f = (double)((const float *)t->data)[i];
        if (wave < 2048) assert_true(f == 1);
        else if (wave > 8192) assert_true(f == 8);
        else assert_true(f > 1 && f < 8);
    }
    int64_t eot = 0, eom = 0;
    assert_true(gguf_get_i64(out, "tokenizer.ggml.eot_token_id", &eot) && eot == 5);
    assert_true(gguf_get_i64(out, "tokenizer.ggml.eom_token_id", &eom) && eom == 9);
    gguf_close(out);
    gguf_close(model);
}

/* Gemma's vocabulary has symbols of several spaces, and the ends of turns, as pieces that its maker defined. */
static void defined_pieces_are_found_in_the_text(void **state) {
    (void)state;
    static const char pieces[] = "\\012\\012\\012\\006\\342\\226\\201\\342\\226\\201\\030\\004"
                                 "\\012\\011\\012\\005<eot>\\030\\004";
    char command[300];
    int64_t types[2] = {0};
    GgufString spaces, turn;
    convert_rig_clear();
    Gguf *model = make_model("llama", false, false);
    hub_build_write(model, FOLDER, &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_NOTHING});
    snprintf(command, sizeof command, "printf '%s\\022\\002\\030\\002' > " FOLDER "/tokenizer.model", pieces);
    assert_int_equal(system(command), 0);
    assert_int_equal(
        system("echo '{\"added_tokens_decoder\": {\"0\": {\"content\": \"\xe2\x96\x81\xe2\x96\x81\"}, \"1\": "
               "{\"content\": \"<eot>\", \"special\": true}}}' > " FOLDER "/tokenizer_config.json"),
        0);
    convert_rig_convert(TYPE_F32);
    Gguf *out = rig_gguf(OUT);
    int64_t tokens = gguf_find_key(out, "tokenizer.ggml.tokens"),
            kinds = gguf_find_key(out, "tokenizer.ggml.token_type");
    assert_true(gguf_array_string(out, tokens, 0, &spaces) && gguf_array_string(out, tokens, 1, &turn));
    assert_true(gguf_array_i64(out, kinds, 0, &types[0]) && gguf_array_i64(out, kinds, 1, &types[1]));
    assert_true(spaces.n == 2 && memcmp(spaces.data, "  ", 2) == 0);
    assert_true(turn.n == 5 && memcmp(turn.data, "<eot>", 5) == 0);
    assert_int_equal(types[0], 4);
    assert_int_equal(types[1], 3);
    gguf_close(out);
    gguf_close(model);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static void expect_refusal(TensorType type, const char *words) {
    fr_error err = {0};
    assert_int_equal(system("echo old > " OUT), 0);
    if (convert_folder(FOLDER, OUT, &(ConvertOptions){.type = type}, &err) == FR_OK) fail_msg("not refused: %s", words);
    if (!strstr(err.message, words)) fail_msg("'%s' lacks '%s'", err.message, words);
    char text[8];
    FILE *f = fopen(OUT, "r"); /* the old file stays */
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "old\n");
}

static void bad_configs_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *config, *words;
    } cases[] = {
        {", \"architectures\": [\"GPT2LMHeadModel\"]",
         "the architecture GPT2LMHeadModel cannot be converted; these can: Llama"},
        {", \"architectures\": []", "does not name an architecture"},
        {", \"hidden_size\": 48", "is 600 x 32, but config.json asks for 600 x 48"},
        {", \"hidden_size\": -1", "hidden_size must be an integer from 2 to"},
        {", \"hidden_size\": \"32\"", "hidden_size must be an integer from 2 to"},
        {", \"num_hidden_layers\": 1e9", "num_hidden_layers must be an integer from 1 to 1024"},
        {", \"num_hidden_layers\": 1000000000", "num_hidden_layers must be an integer from 1 to 1024"},
        {", \"num_hidden_layers\": 3", "tensor model.layers.2.input_layernorm.weight is missing"},
        {", \"num_hidden_layers\": 1", "holds the tensor model.layers.1."},
        {", \"num_key_value_heads\": 5", "num_key_value_heads must be an integer from 1 to 4"},
        {", \"head_dim\": 15", "head_dim is 15, but must be even"},
        {", \"vocab_size\": 500", "has the id 500, but the model has 500 embeddings"},
        {", \"hidden_act\": \"gelu\"", "hidden_act is 'gelu'; only silu is supported"},
        {", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}", "rope scaling 'dynamic' is not supported"},
        {", \"rope_theta\": -1", "rope_theta must be a number from 1 to"},
        {", \"rms_norm_eps\": \"x\"", "rms_norm_eps must be a number"},
        {", \"partial_rotary_factor\": 0.5", "partial_rotary_factor below 1"},
        {", ", "is not JSON"},
    };
    Gguf *model = make_model("llama", false, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        convert_rig_clear();
        hub_build_write(model, FOLDER,
                        &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM, .config = cases[i].config});
        expect_refusal(TYPE_F16, cases[i].words);
    }
    gguf_close(model);
}

/* A shell command that spoils a good folder of two parts. */
static void spoiled_folders_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *command, *words;
        HubVocab vocab;
    } cases[] = {
        {"rm config.json", "holds no config.json", HUB_SPM},
        {"rm model-00002-of-00002.safetensors", "model-00002-of-00002.safetensors: cannot be opened", HUB_SPM},
        {"rm model*", "holds neither model.safetensors nor model.safetensors.index.json", HUB_SPM},
        {"truncate -s 3000 model-00001-of-00002.safetensors", "model-00001-of-00002.safetensors: ", HUB_SPM},
        {"echo '{}' > model.safetensors.index.json", "holds no weight_map", HUB_SPM},
        {"echo '{\"weight_map\": {\"a\": \"../x.safetensors\"}}' > model.safetensors.index.json", "no valid file name",
         HUB_SPM},
        {"echo '{\"weight_map\": {\"a\": 3}}' > model.safetensors.index.json", "no valid file name", HUB_SPM},
        {"echo '[' > model.safetensors.index.json", "is not JSON", HUB_SPM},
        {"echo '[]' > config.json", "must be a JSON object", HUB_SPM},
        {"rm tokenizer.model", "holds neither tokenizer.json nor tokenizer.model", HUB_SPM},
        {"printf '\\012\\001\\010' > tokenizer.model", "a piece is damaged", HUB_SPM},
        {"truncate -s 700 tokenizer.model", "is cut short", HUB_SPM},
        {": > tokenizer.model", "is not a SentencePiece model", HUB_SPM},
        {"echo hello > tokenizer.model", "is not a SentencePiece model", HUB_SPM},
        {"printf '\\022\\002\\030\\001' >> tokenizer.model", "SentencePiece model of type 1", HUB_SPM},
        {"echo '{}' > tokenizer.json", "model.vocab must be an object", HUB_MERGES},
        {"echo '{\"model\": {\"type\": \"Unigram\"}}' > tokenizer.json", "the model Unigram is not supported",
         HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}' > tokenizer.json",
         "two tokens have the id 0", HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}' > tokenizer.json", "has the id -1", HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": \"0\"}, \"merges\": []}}' > tokenizer.json", "is not an integer",
         HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": 0}}}' > tokenizer.json", "model.merges must be a list", HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"ab\"]}}' > tokenizer.json",
         "a merge must be two pieces", HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a b\", \"c\"]]}}' > tokenizer.json",
         "a merge must be two pieces", HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
         "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}}, {\"type\": \"ByteLevel\", "
         "\"use_regex\": "
         "false}]}}' > tokenizer.json",
         "does not know this pre-tokenizer, whose first pattern is x+", HUB_MERGES},
        {"echo '{\"model\": {\"vocab\": {}, \"merges\": []}, \"added_tokens\": [{\"id\": 1}]}' > tokenizer.json",
         "an added token must have", HUB_MERGES},
        {"echo '{\"added_tokens_decoder\": {\"1x\": {\"content\": \"a\"}}}' > tokenizer_config.json",
         "an added token must have", HUB_SPM},
        {"echo '{\"added_tokens_decoder\": {\"900\": {\"content\": \"a\"}}}' > tokenizer_config.json", "has the id 900",
         HUB_SPM},
    };
    Gguf *model = make_model("llama", false, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[1000];
        convert_rig_clear();
        hub_build_write(model, FOLDER, &(HubBuild){.type = TYPE_F16, .n_parts = 2, .vocab = cases[i].vocab});
        snprintf(command, sizeof command, "cd " FOLDER " && %s", cases[i].command);
        assert_int_equal(system(command), 0);
        expect_refusal(TYPE_F16, cases[i].words);
    }
    gguf_close(model);
}

/* Numbers that cannot be converted are found while the file is streamed, and the old file stays. */
static void bad_numbers_are_refused(void **state) {
    (void)state;
    static const struct {
        float value;
        TensorType type;
        const char *words;
    } cases[] = {
        {NAN, TYPE_F32, "holds NaN or infinity"},
        {INFINITY, TYPE_Q8_0, "holds NaN or infinity"},
        {70000, TYPE_F16, "too large for F16; choose --type BF16 or F32"},
    };
    for (size_t i = 0; i < 3; i++) {
        convert_rig_clear();
        Gguf *model = make_model("llama", false, false);
        const GgufTensor *t = gguf_find_tensor(model, "blk.1.ffn_up.weight");
        char *path = strdup(gguf_path(model));
        long at = (long)((const char *)t->data - (const char *)gguf_tensor(model, 0)->data);
        gguf_close(model);
        FILE *f = fopen(path, "r+b"); /* the data of all tensors is at the end of the file */
        assert_non_null(f);
        Gguf *g = rig_gguf(path);
        const GgufTensor *last = gguf_tensor(g, gguf_n_tensors(g) - 1);
        long behind = (long)((const char *)last->data - (const char *)gguf_tensor(g, 0)->data) + (long)last->bytes;
        behind += (32 - (long)last->bytes % 32) % 32;
        fseek(f, (long)gguf_file_bytes(g) - behind + at + 400, SEEK_SET);
        gguf_close(g);
        assert_int_equal(fwrite(&cases[i].value, 4, 1, f), 1);
        fclose(f);
        g = rig_gguf(path);
        hub_build_write(g, FOLDER, &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM});
        gguf_close(g);
        free(path);
        expect_refusal(cases[i].type, cases[i].words);
        expect_refusal(cases[i].type, "tensor model.layers.1.mlp.up_proj.weight");
    }
}

static void the_program_converts(void **state) {
    (void)state;
    convert_rig_clear();
    Gguf *model = make_model("qwen3", false, false);
    hub_build_write(model, FOLDER "/", &(HubBuild){.type = TYPE_F16, .n_parts = 2, .vocab = HUB_MERGES});
    gguf_close(model);
    cli_expect("convert " FOLDER "/ " OUT " 2>&1", 0, "as a GGUF file");
    cli_expect("inspect " OUT, 0, "qwen3");
    cli_expect("run -m " OUT " -p the -n 3 --draft none 2>&1", 0, "");
    cli_expect("convert " FOLDER " " FOLDER "/config.json 2>&1", 2, "OUT and FOLDER are the same file");
    cli_expect("convert " DIR "/nothing " OUT " 2>&1", 1, "is not a folder; give the folder that holds config.json");
    cli_expect("convert " MODEL " " OUT " 2>&1", 1, "is not a folder");
    cli_expect("convert " FOLDER " " OUT " --type Q4_K_M 2>&1", 2, "must be F16, BF16, F32 or Q8_0");
    cli_expect("convert 2>&1", 2, "missing folder of a model: pass FOLDER");
}

/* ---- the wire format ----------------------------------------------------------------------------------- */

static void the_wire_format_is_read(void **state) {
    (void)state;
    static const unsigned char message[] = {0x08, 0x96, 0x01, 0x12, 0x02, 'h', 'i', 0x1d, 0, 0, 0x80,
                                            0x3f, 0x21, 1,    0,    0,    0,   0,   0,    0, 0};
    Wire w = wire_begin(message, sizeof message);
    WireField f;
    assert_true(wire_next(&w, &f) && f.number == 1 && f.kind == 0 && f.value == 150);
    assert_true(wire_next(&w, &f) && f.number == 2 && f.n == 2 && memcmp(f.bytes, "hi", 2) == 0);
    assert_true(wire_next(&w, &f) && f.number == 3 && wire_float(&f) == 1);
    assert_true(wire_next(&w, &f) && f.number == 4 && f.value == 1);
    assert_false(wire_next(&w, &f));
    assert_false(w.broken);
    for (size_t n = 1; n < sizeof message; n++) { /* cut at every place except between fields */
        w = wire_begin(message, n);
        while (wire_next(&w, &f)) continue;
        assert_int_equal(w.broken, n != 3 && n != 7 && n != 12);
    }
    static const unsigned char endless[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
                               group[] = {0x0b}, zero[] = {0x00, 0x00};
    const unsigned char *const bad[] = {endless, group, zero};
    const size_t n_bad[] = {sizeof endless, sizeof group, sizeof zero};
    for (int i = 0; i < 3; i++) {
        w = wire_begin(bad[i], n_bad[i]);
        assert_false(wire_next(&w, &f));
        assert_true(w.broken);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    convert_rig_begin(argv[0], DIR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(converted_models_are_the_same),
        cmocka_unit_test(recommended_sampling_is_taken_over),
        cmocka_unit_test(types_round_once),
        cmocka_unit_test(llama_3_scaling_becomes_factors),
        cmocka_unit_test(defined_pieces_are_found_in_the_text),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(spoiled_folders_are_refused),
        cmocka_unit_test(bad_numbers_are_refused),
        cmocka_unit_test(the_program_converts),
        cmocka_unit_test(the_wire_format_is_read),
    };
    return cmocka_run_group_tests(tests, convert_rig_make_dir, convert_rig_drop_dir);
}
