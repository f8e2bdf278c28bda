#!/usr/bin/env python3
"""test_python.py - the Python binding, with the library of this build: FORERUN_LIBRARY, or build/release/libforerun.so.

It runs in the root of the project and reports as cmocka does, for tests/support/run_tests.c.
"""

import os
import subprocess
import sys
import traceback

sys.dont_write_bytecode = True
sys.path[:0] = ["bindings/python", "tests/bindings"]
os.environ.setdefault("FORERUN_LIBRARY", os.path.abspath("build/release/libforerun.so"))

import forerun  # noqa: E402
import layout  # noqa: E402

MODEL, PROGRAM, PROMPT = "models/target.gguf", "build/release/forerun", "Once upon a time"


def bound_layout():
    bound = {}
    for struct in forerun.STRUCTS:
        fields = {name: (getattr(struct, name).offset, getattr(struct, name).size) for name, *_ in struct._fields_}
        bound[struct.__name__] = {"size": __import__("ctypes").sizeof(struct), "fields": fields}
    return bound


def program(*options):
    """The output of `forerun run`, without the newline that it adds."""
    return subprocess.run([PROGRAM, "run", "-m", MODEL, *options], check=True, capture_output=True, text=True).stdout[:-1]


def structs_have_the_layout_of_the_c_compiler():
    found = layout.differences(layout.layout(), bound_layout(), "bindings/python/forerun.py")
    assert not found, "\n" + "\n".join(found)


def structs_only_grow_at_their_end():
    """Every struct of the header of version 0.1 has its fields at their old places; one without struct_size has not changed."""
    now = layout.layout()
    for name, old in layout.layout("tests/api_0/forerun.h").items():
        new, n = now[name], len(old["fields"])
        assert [f[:3] for f in new["fields"][:n]] == [f[:3] for f in old["fields"]], name
        is_sized = bool(n) and old["fields"][0][0] == "struct_size"
        assert is_sized or new == old, name
        if is_sized and len(new["fields"]) > n:  # an older program may have left anything in its padding
            assert new["fields"][n][1] >= old["size"], f"{name}.{new['fields'][n][0]} is in the padding of version 0.1"


def a_field_that_is_missing_is_named():
    """The comparison itself distinguishes an appended field, a wrong type and a removed field."""
    bound, compiled = bound_layout(), layout.layout()
    compiled["fr_stats"]["fields"].append(["new_count", 5000, 8, "int64_t new_count"])
    (sentence,) = [s for s in layout.differences(compiled, bound, "X") if "new_count" in s]
    assert "add it to the struct" in sentence and "int64_t new_count" in sentence
    del bound["fr_sampling"]["fields"]["top_p"]
    bound["fr_sampling"]["fields"]["seed"] = (32, 4)
    found = [s for s in layout.differences(layout.layout(), bound, "X") if s.startswith("fr_sampling.")]
    assert len(found) == 2 and "top_p" in found[0] and "correct its type" in found[1], found


def raised(call):
    """The type and the text of the exception of a call."""
    try:
        call()
    except Exception as why:
        return type(why), str(why)
    raise AssertionError("nothing was raised")


def wrong_values_do_not_reach_c():
    """C would read them as pointers, cut their upper bits off, or end them at a zero."""
    with forerun.Model(MODEL) as model:
        cases = [
            (TypeError, "'grammar'", {"grammar": 5}),
            (TypeError, "'user'", {"user": 5}),
            (TypeError, "'n_prompt'", {"n_prompt": 5}),
            (TypeError, "'struct_size'", {"struct_size": 5}),
            (ValueError, "max_tokens must be from -9223372036854775808", {"max_tokens": 2**64 + 3}),
            (TypeError, "max_tokens must be an integer, not float", {"max_tokens": 3.0}),
            (TypeError, "max_tokens must be an integer, not NoneType", {"max_tokens": None}),
            (ValueError, "top_k must be from -2147483648 to 2147483647", {"top_k": 2**32 + 1}),
            (ValueError, "tree_budget must be from", {"tree_budget": -(2**31) - 1}),
            (ValueError, "seed must be from 0 to 18446744073709551615", {"seed": -1}),
            (ValueError, "seed must be from 0", {"seed": 2**64}),
            (TypeError, "temperature must be a number, not str", {"temperature": "hot"}),
            (ValueError, "temperature must be at most", {"temperature": 1e300}),
            (ValueError, "temperature must be at most", {"temperature": 10**400}),
            (TypeError, "verify must be a string, not int", {"verify": 5}),
            (ValueError, "stop contains a zero byte", {"stop": "a\0b"}),
            (TypeError, "stop must be a string or a list", {"stop": 5}),
            (TypeError, "stop must be a string, not int", {"stop": [5]}),
            (TypeError, "draft must be a string, not int", {"draft": [5]}),
            (TypeError, "logit_bias must be a dict", {"logit_bias": [1]}),
            (ValueError, "a token of logit_bias", {"logit_bias": {2**32: 1.0}}),
            (TypeError, "a bias of logit_bias", {"logit_bias": {1: "x"}}),
            (ValueError, "prediction[1] must be from", {"prediction": [1, 2**40]}),
            (TypeError, "prediction must be a list of tokens", {"prediction": 5}),
        ]
        for kind, words, options in cases:
            got = raised(lambda o=options: model.generate(PROMPT, **o))
            assert got[0] is kind and words in got[1], (options, got)
        for prompt, kind, words in [
            ([1, 2**32 + 1], ValueError, "the prompt[1] must be from"),
            ([1, "x"], TypeError, "the prompt[1] must be an integer"),
            (5, TypeError, "the prompt must be a text"),
            ([{"role": "user"}], ValueError, "a message has no content"),
            ([{"role": "user", "content": "a\0b"}], ValueError, "content contains a zero byte"),
        ]:
            got = raised(lambda p=prompt: model.generate(p))
            assert got[0] is kind and words in got[1], (prompt, got)
        assert raised(lambda: model.detokenize([2**32 + 5]))[0] is ValueError
        assert raised(lambda: model.tokenize(5))[0] is TypeError
        assert model.generate(PROMPT, max_tokens=3, ignore_eos=True, seed=2**64 - 1, top_k=2**31 - 1).finish == "length"
        ids = model.tokenize(PROMPT)
        assert model.generate(PROMPT, max_tokens=5, draft="prediction", prediction=ids).finish == "length"
    for options, kind, words in [
        ({"n_ctx": 2**32 + 64}, ValueError, "n_ctx must be from"),
        ({"threads": 2**40}, ValueError, "threads must be from"),
        ({"requests": "2"}, TypeError, "requests must be an integer"),
        ({"kv": "f8"}, ValueError, "kv must be one of f16"),
        ({"backend": 5}, TypeError, "backend must be a string"),
        ({"draft": 5}, TypeError, "draft must be a string"),
    ]:
        got = raised(lambda o=options: forerun.Model(MODEL, **o))
        assert got[0] is kind and words in got[1], (options, got)
    assert raised(lambda: forerun.Model("a\0b"))[0] is ValueError


def versions_agree():
    assert forerun.library_version() == forerun.__version__


def generates_what_the_program_generates():
    with forerun.Model(MODEL) as model:
        greedy = model.generate(PROMPT, max_tokens=40)
        assert greedy.text == program("-p", PROMPT, "-n", "40", "--temp", "0"), greedy.text
        assert greedy.finish == "length" and len(greedy.tokens) == 40
        assert greedy.stats["n_generated"] == 40 and greedy.stats["n_steps"] <= 40
        sampled = model.generate(PROMPT, max_tokens=40, temperature=0.8, top_p=0.9, seed=7)
        assert sampled.text == program("-p", PROMPT, "-n", "40", "--temp", "0.8", "--top-p", "0.9", "--seed", "7")


def drafting_changes_no_text():
    with forerun.Model(MODEL, draft="suffix") as model:
        plain = model.generate(PROMPT, max_tokens=60, draft="none", temperature=0.7, seed=3)
        assert plain.stats["n_steps"] == 60 and plain.stats["drafted"] == 0
        for draft in ("auto", "suffix", ["ngram-trie", "pld"]):
            drafted = model.generate(PROMPT, max_tokens=60, draft=draft, temperature=0.7, seed=3)
            assert drafted.text == plain.text and drafted.stats["logits_hash"] == plain.stats["logits_hash"]
        # a budget of its own, because an automatic one may find that nothing pays on a busy machine
        fixed = model.generate(PROMPT, max_tokens=60, draft=["ngram-trie", "pld"], tree_budget=8, temperature=0.7, seed=3)
        assert fixed.text == plain.text and fixed.stats["drafted"] > 0


def a_stream_is_the_text_in_pieces():
    with forerun.Model(MODEL, requests=2) as model:
        whole = model.generate(PROMPT, max_tokens=30).text
        stream = model.stream(PROMPT, max_tokens=30)
        assert stream.finish == "running"
        other = model.stream(PROMPT, max_tokens=30, temperature=1.0)  # two at once
        assert "".join(p for pair in zip(stream, other) for p in pair[:1]) == whole[: len(stream.text)]
        pieces = list(model.stream(PROMPT, max_tokens=30)) if not other.close() and not stream.close() else []
        assert len(pieces) > 5 and "".join(pieces) == whole
        early = model.stream(PROMPT, max_tokens=30)
        first = next(early)
        early.close()
        assert early.finish == "cancelled" and early.text.startswith(first) and not list(early)
        for _ in range(5):  # a dropped stream gives its place back
            next(model.stream(PROMPT, max_tokens=30))


def text_ends_before_a_stop_string():
    with forerun.Model(MODEL) as model:
        whole = model.generate(PROMPT, max_tokens=60).text
        stop = whole[40:46]
        stopped = model.generate(PROMPT, max_tokens=60, stop=stop)
        assert stopped.finish == "stop" and stopped.text == whole[: whole.index(stop)]
        assert "".join(model.stream(PROMPT, max_tokens=60, stop=[stop])) == stopped.text


def a_chat_has_a_history():
    with forerun.Model(MODEL) as model:
        chat = model.chat(system="You are kind.", max_tokens=20)
        answer = chat.send("Who are you?")
        assert answer and chat.messages[-1] == {"role": "assistant", "content": answer}
        alone = program("--chat", "--system", "You are kind.", "-p", "Who are you?", "-n", "20", "--temp", "0")
        assert answer == alone.removeprefix(" "), (answer, alone)
        second = "".join(chat.stream("Why?"))
        assert [m["role"] for m in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
        assert second == model.generate(chat.messages[:-1], max_tokens=20).text
        for _ in chat.stream("Go on."):
            break
        assert chat.messages[-1]["role"] == "assistant"
        assert "".join(model.stream("", max_tokens=1)) is not None  # the place of the broken-off answer is free


def tokens_and_back():
    with forerun.Model(MODEL) as model:
        ids = model.tokenize("Größe 😀 </s>")
        assert model.detokenize(ids).endswith("Größe 😀 </s>")
        assert len(model.tokenize("</s>", special=True)) < len(model.tokenize("</s>"))
        assert model.generate(model.tokenize(PROMPT), max_tokens=5).text == model.generate(PROMPT, max_tokens=5).text
        assert model.info["architecture"] == "llama" and model.info["n_vocab"] == 4096


def expect_error(call, code, words):
    try:
        call()
    except forerun.Error as why:
        assert why.code == code and words in str(why), why
    else:
        raise AssertionError("no error")


def errors_are_exceptions():
    expect_error(lambda: forerun.Model("/nonexistent.gguf"), -2, "/nonexistent.gguf")
    with forerun.Model(MODEL, n_ctx=64) as model:
        expect_error(lambda: model.generate("a " * 100), -6, "longer than the context")
        expect_error(lambda: model.generate(PROMPT, draft="magic"), -1, "magic")
        expect_error(lambda: model.generate(PROMPT, top_p=0.0), -1, "top")
        assert model.generate(PROMPT, max_tokens=0).finish in ("context", "eos")
        try:
            model.generate(PROMPT, topp=1)
        except TypeError as why:
            assert "topp" in str(why)
    try:
        model.generate(PROMPT)
    except ValueError as why:
        assert "closed" in str(why)
    else:
        raise AssertionError("a closed model generates")


TESTS = [
    structs_have_the_layout_of_the_c_compiler,
    structs_only_grow_at_their_end,
    a_field_that_is_missing_is_named,
    versions_agree,
    wrong_values_do_not_reach_c,
    generates_what_the_program_generates,
    drafting_changes_no_text,
    a_stream_is_the_text_in_pieces,
    text_ends_before_a_stop_string,
    a_chat_has_a_history,
    tokens_and_back,
    errors_are_exceptions,
]


def main():
    failed = []
    for test in TESTS:
        try:
            test()
        except Exception:
            failed.append(test.__name__)
            traceback.print_exc()
    print(f"[  PASSED  ] {len(TESTS) - len(failed)} test(s).")
    if failed:
        print(f"[  FAILED  ] {len(failed)} test(s): {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
