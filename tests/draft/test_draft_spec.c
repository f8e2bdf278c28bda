/* test_draft_spec.c - unit tests of draft/drafter.c: opening drafters from "method:key=value,...", and the interface of
 * every method. */
#include "draft_rig.h"

#include "base/error.h"

#include <string.h>

static const DrafterEnv env = {.n_vocab = 100, .max_sequences = 2};

static void drafters_open_or_name_the_fault(void **state) {
    (void)state;
    Drafter *d = (Drafter *)&env;
    assert_int_equal(drafter_open(&d, "none", &env, 0, NULL), FR_OK);
    assert_null(d);
    drafter_close(d);
    assert_int_equal(drafter_open(&d, "ngram-trie:n=8,live=0", &env, 3, NULL), FR_OK);
    assert_int_equal(d->source, 3);
    assert_ptr_equal(d->class, drafter_find("ngram-trie"));
    drafter_close(d);
    const struct {
        const char *text, *message;
    } bad[] = {
        {"", "'' is not a drafter: write method or method:key=value"},
        {":n=1", "':n=1' is not a drafter"},
        {"pld:", "'pld:': write key=value after the colon"},
        {"trie", "unknown drafter 'trie'; known drafters: none, auto, ngram-trie, "},
        {"ngram-tree",
         "unknown drafter 'ngram-tree'; did you mean 'ngram-trie'? Known drafters: none, auto, ngram-trie, "},
        {"a-method-name-that-is-longer-than-any-method:n=1",
         "unknown drafter 'a-method-name-that-is-longer-than-any-m'; known"},
        {"pld:n", "pld: 'n' must be written key=value"},
        {"pld:n=", "must be written key=value"},
        {"pld:=1", "must be written key=value"},
        {"pld:n=1,", "must be written key=value"},
        {"pld:n=1,,length=2", "must be written key=value"},
        {"pld:n=1,n=2", "pld: 'n' is set twice"},
        {"sps", "sps: missing draft model: write sps:model=FILE"},
        {"eagle:depth=3", "eagle: missing drafter file: write eagle:file=FILE"},
        {"lyanna:file=x,resample=17", "lyanna: 'resample=17' must be off or an integer from 0 to 16"},
        {"medusa:file=x,tree=2", "medusa: 'tree=2' must be dynamic or static"},
        {"rsd-c:model=x,branch=3-",
         "rsd-c: 'branch=3-' must be 1 to 64 integers from 1 to 64 joined by '-', such as 3-2-1"},
        {"none:n=1", "'none' has no options"},
        {"ngram-trie:window=3", "ngram-trie: unknown option 'window' (the options are rule, n, prefix, live"},
        {"ngram-trie:rule=worst", "ngram-trie: 'rule=worst' must be best or paper"},
        {"ngram-trie:n=3", "ngram-trie: 'n=3' must be above 'prefix=3'"},
        {"ngram-trie:prefix=0", "ngram-trie: 'prefix=0' must be an integer from 1 to 64"},
        {"ngram-trie:prefix=3x", "'prefix=3x' must be an integer"},
        {"ngram-trie:live=2", "'live=2' must be 0, 1 or auto"},
        {"ngram-trie:n=99999999999999999999", "must be an integer from 2 to 512"},
        {"pld:match=nearest", "pld: 'match=nearest' must be earliest or latest"},
        {"pld:length=0", "pld: 'length=0' must be an integer from 1 to 511"},
        {"suffix:factor=-1", "'factor=-1' must be a number from 0 to 64"},
        {"suffix:factor=nan", "'factor=nan' must be a number"},
        {"suffix:min_prob=0.1x", "'min_prob=0.1x' must be a number from 0 to 1"},
        {"rest:min_match=9,max_match=8,index=x", "rest: 'min_match=9' must be at most 'max_match=8'"},
        {"rest", "rest: missing index of a corpus (`forerun index` builds one): write rest:index=FILE"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fr_error err = {0};
        d = (Drafter *)&env;
        assert_int_equal(drafter_open(&d, bad[i].text, &env, 0, &err), FR_ERR_ARGUMENT);
        assert_null(d);
        if (!strstr(err.message, bad[i].message)) fail_msg("'%s': '%s'", bad[i].text, err.message);
    }
}

static void methods_describe_themselves(void **state) {
    (void)state;
    int n = 0;
    for (const DrafterClass *const *c = drafter_classes(); *c; c++, n++) {
        assert_ptr_equal(drafter_find((*c)->name), *c);
        assert_true(strlen((*c)->summary) > 10);
        assert_non_null((*c)->option_table);
        for (const Option *o = (*c)->option_table; o->key; o++) {
            assert_true((o->default_value || o->default_help || o->required) && strlen(o->help) > 5);
            assert_true(drafter_has_option(*c, o->key));
        }
        assert_false(drafter_has_option(*c, "no-such-option"));
        Buf help = {.max_bytes = 1 << 16};
        assert_true(drafter_options_help(&help, *c, 4, 100));
        buf_free(&help);
    }
    assert_true(n >= 1);
    assert_null(drafter_find("none"));
}

/* Checks the requirements of the engine for every method, including new ones. Methods that need a file fail to open
 * without it, with an error that names the method. */
static void every_method_obeys_the_interface(void **state) {
    (void)state;
    enum { V = 64, N = 400, N_PROMPT = 100 };
    static const int32_t budgets[] = {0, 1, 2, 7, 40, TREE_MAX_NODES - 1};
    static int no_target; /* never read */
    const DrafterEnv whole = {.n_vocab = V, .max_sequences = 2, .target = (const Gguf *)&no_target};
    static Tree t;
    int32_t text[N];
    int n_opened = 0;
    rig_fill_text(text, N, 6);
    for (const DrafterClass *const *c = drafter_classes(); *c; c++) {
        Drafter *d;
        fr_error err = {0};
        if (drafter_open(&d, (*c)->name, &whole, 5, &err)) {
            if (!strstr(err.message, (*c)->name)) fail_msg("%s: '%s'", (*c)->name, err.message);
            continue;
        }
        n_opened++;
        for (int round = 0; round < 3; round++)
            for (int32_t q = 0; q < 2; q++) {
                rig_feed(d, q, text, N_PROMPT - 90 * q, N / 2 + q);
                for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
                    rig_propose(d, q, text[N / 2 + q - 1], budgets[i], V, &t);
                    for (int32_t k = 1; k < t.n; k++) assert_int_equal(t.nodes[k].source, 5);
                }
                assert_int_equal((*c)->propose(d, NULL, NULL, NULL, 0, &err), FR_OK); /* no sequence proposes */
                if (round < 2) (*c)->end(d, q);
            }
        drafter_close(d); /* while both sequences are running */
    }
    assert_true(n_opened >= 7);
}

/* Appends the spec and a blank; "stop" is refused. */
static int note_spec(void *out, const char *spec, fr_error *err) {
    if (strcmp(spec, "sps:model=stop") == 0) return error_set(err, FR_ERR_ARGUMENT, "stop");
    strcat(strcat(out, spec), " ");
    return FR_OK;
}

static void a_plus_before_a_method_unites(void **state) {
    (void)state;
    static const struct {
        const char *text, *specs;
        bool has_auto;
    } cases[] = {
        {"pld", "pld ", false},
        {"pld+suffix:history=0", "pld suffix:history=0 ", false},
        {"pld:n=2+none+lookahead", "pld:n=2 none lookahead ", false},
        {"auto", "ngram-trie lookahead-trie ", true},
        {"pld+auto", "pld ngram-trie lookahead-trie ", true},
        {"auto+pld", "ngram-trie lookahead-trie pld ", true},
        {"automatic", "automatic ", false},
        {"pld+automatic", "pld+automatic ", false},
        {"specinfer:models=a.gguf+b.gguf+pld", "specinfer:models=a.gguf+b.gguf pld ", false},
        {"rest:index=c++", "rest:index=c++ ", false},
        {"sps:model=a+suffixes.gguf", "sps:model=a+suffixes.gguf ", false},
        {"pld+", "pld+ ", false},
        {"", " ", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char specs[200] = "";
        assert_int_equal(drafter_each(cases[i].text, note_spec, specs, NULL), FR_OK);
        if (strcmp(specs, cases[i].specs) != 0) fail_msg("'%s' names '%s'", cases[i].text, specs);
        assert_int_equal(drafter_names_auto(cases[i].text), cases[i].has_auto);
    }
    char specs[200] = "";
    assert_int_equal(drafter_each("pld+sps:model=stop+suffix", note_spec, specs, NULL), FR_ERR_ARGUMENT);
    assert_string_equal(specs, "pld ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafters_open_or_name_the_fault),
        cmocka_unit_test(every_method_obeys_the_interface),
        cmocka_unit_test(methods_describe_themselves),
        cmocka_unit_test(a_plus_before_a_method_unites),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
