"""forerun from Python: exact speculative decoding of language models in GGUF files.

This is a binding of libforerun by ctypes in one file, without other packages. The library must be installed
(libforerun.so.0), or FORERUN_LIBRARY names it.

    import forerun

    with forerun.Model("model.gguf") as model:
        print(model.generate("Once upon a time", max_tokens=40).text)
        for piece in model.stream("Once upon a time", max_tokens=40, temperature=0.8, seed=7):
            print(piece, end="", flush=True)
        chat = model.chat(system="Answer in one sentence.")
        print(chat.send("Why is the sky blue?"))

Drafting changes no text. The default is draft="auto"; draft="none" is plain decoding, and a list unites several drafts.

The structs below are those of forerun.h; tests/bindings compares each offset with the C compiler's. Each struct that
the library reads or fills by pointer ends with spare zeros: where a later library has appended fields, it finds their
defaults there, and writes nothing beyond. Threads: calls into one Model are made one at a time, by a lock.
"""

import collections
import ctypes
import os
import threading
import weakref
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint64, c_void_p

__version__ = "0.1.0"
__all__ = ["Chat", "Completion", "Error", "Model", "Stream", "library_version"]

_SPARE = ("_spare", c_char * 256)

TREE_BUDGET_AUTO = -1
_MAX_DEPTH, _MAX_COUNTERS = 64, 24
_TOKENIZE_SPECIAL, _TOKENIZE_PROMPT = 4, 8
_FINISH_ERROR = 6
_KV_TYPES = {"f16": 0, "f32": 1, "q8": 2}


class fr_error(ctypes.Structure):
    _fields_ = [("code", c_int), ("message", c_char * 508)]


class fr_model_options(ctypes.Structure):
    _fields_ = [
        ("backend", c_char_p),
        ("kernels", c_char_p),
        ("activations", c_char_p),
        ("packed_file", c_char_p),
        ("n_threads", c_int),
        ("progress", ctypes.CFUNCTYPE(None, c_void_p, c_double)),
        ("progress_user", c_void_p),
        _SPARE,
    ]


class fr_model_info(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("architecture", c_char_p),
        ("backend", c_char_p),
        ("kernels", c_char_p),
        ("activations", c_char_p),
        ("chat_family", c_char_p),
        ("n_vocab", c_int32),
        ("n_layer", c_int32),
        ("n_embd", c_int32),
        ("n_ctx_train", c_int32),
        ("weight_bytes", c_size_t),
        ("packed_error", c_char_p),
        ("chat_template_error", c_char_p),
        ("chat_reasons", c_int),
        _SPARE,
    ]


class fr_chat_message(ctypes.Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class fr_chat_options(ctypes.Structure):
    _fields_ = [
        ("chat_template", c_char_p),
        ("messages", c_char_p),
        ("tools", c_char_p),
        ("variables", c_char_p),
        ("no_generation_prompt", c_int),
        _SPARE,
    ]


class fr_chat_result(ctypes.Structure):
    _fields_ = [
        ("text", c_void_p),
        ("n_bytes", c_size_t),
        ("tokens", POINTER(c_int32)),
        ("n_tokens", c_int64),
        ("warning", c_char * 256),
        _SPARE,
    ]


class fr_engine_options(ctypes.Structure):
    _fields_ = [
        ("n_threads", c_int),
        ("n_ctx", c_int),
        ("kv_type", c_int),
        ("kv_page_size", c_int),
        ("max_requests", c_int),
        ("prefill_chunk", c_int),
        ("kv_tokens", c_int64),
        ("prefix_cache", c_int),
        ("cost_cache", c_char_p),
        ("pin_threads", c_int),
        ("drafts", POINTER(c_char_p)),
        ("n_drafts", c_int),
        ("max_queued", c_int),
        _SPARE,
    ]


class fr_engine_stats(ctypes.Structure):
    _fields_ = [
        ("n_running", c_int),
        ("n_queued", c_int),
        ("kv_tokens", c_int64),
        ("kv_tokens_running", c_int64),
        ("kv_tokens_prefixes", c_int64),
        ("kv_window_tokens", c_int64),
        ("kv_window_tokens_held", c_int64),
        ("kv_bytes", c_int64),
        _SPARE,
    ]


class fr_sampling(ctypes.Structure):
    _fields_ = [
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repeat_penalty", c_float),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("penalty_last_n", c_int32),
        ("seed", c_uint64),
    ]


class fr_logit_bias(ctypes.Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class fr_top_logprob(ctypes.Structure):
    _fields_ = [("token", c_int32), ("logprob", c_double)]


class fr_token_event(ctypes.Structure):
    _fields_ = [
        ("token", c_int32),
        ("source", c_int32),
        ("text", c_void_p),
        ("n_bytes", c_size_t),
        ("logprob", c_double),
        ("top_logprobs", POINTER(fr_top_logprob)),
        ("n_top_logprobs", c_int),
    ]


_ON_TOKEN = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(fr_token_event))


class fr_request_options(ctypes.Structure):
    _fields_ = [
        ("prompt", POINTER(c_int32)),
        ("n_prompt", c_int64),
        ("max_tokens", c_int64),
        ("sampling", fr_sampling),
        ("stops", POINTER(c_char_p)),
        ("n_stops", c_int),
        ("drafts", POINTER(c_char_p)),
        ("n_drafts", c_int),
        ("tree_budget", c_int),
        ("verify", c_char_p),
        ("allow_lossy", c_int),
        ("ignore_eos", c_int),
        ("want_logprobs", c_int),
        ("on_token", _ON_TOKEN),
        ("user", c_void_p),
        ("logit_bias", POINTER(fr_logit_bias)),
        ("n_logit_bias", c_int),
        ("n_top_logprobs", c_int),
        ("grammar", c_void_p),
        ("grammar_after", c_char_p),
        ("prediction", POINTER(c_int32)),
        ("n_prediction", c_int64),
        ("want_embedding", c_int),
        ("grammar_opening", c_char_p),
        _SPARE,
    ]


class fr_tree_node(ctypes.Structure):
    _fields_ = [("token", c_int32), ("parent", c_int32), ("source", c_int32), ("p_accept", c_float)]


class fr_counter(ctypes.Structure):
    _fields_ = [("name", c_char * 48), ("drafted", c_int64), ("accepted", c_int64)]


class fr_stats(ctypes.Structure):
    _fields_ = [
        ("n_prompt", c_int64),
        ("n_generated", c_int64),
        ("n_prompt_shared", c_int64),
        ("n_preempted", c_int64),
        ("n_recomputed", c_int64),
        ("n_steps", c_int64),
        ("acceptance_length", c_double),
        ("drafted", c_int64),
        ("accepted", c_int64),
        ("accept_histogram", c_int64 * (_MAX_DEPTH + 1)),
        ("offered_at", c_int64 * (_MAX_DEPTH + 1)),
        ("accepted_at", c_int64 * (_MAX_DEPTH + 1)),
        ("prefill_s", c_double),
        ("decode_s", c_double),
        ("draft_s", c_double),
        ("forward_s", c_double),
        ("verify_s", c_double),
        ("tokens_per_s", c_double),
        ("logits_hash", c_uint64),
        ("n_proposals", c_int64),
        ("undrafted_steps", c_int64),
        ("n_counters", c_int),
        ("counters", fr_counter * _MAX_COUNTERS),
        ("is_lossy", c_int),
        ("draft_error", c_char * 256),
        ("queue_s", c_double),
        _SPARE,
    ]


# Every struct of forerun.h, for the test of their layout.
STRUCTS = [
    fr_error, fr_model_options, fr_model_info, fr_chat_message, fr_chat_options, fr_chat_result, fr_engine_options,
    fr_engine_stats, fr_sampling, fr_logit_bias, fr_top_logprob, fr_token_event, fr_request_options, fr_counter, fr_stats,
    fr_tree_node,
]  # fmt: skip

_FUNCTIONS = {
    "fr_version": (c_char_p, []),
    "fr_free": (None, [c_void_p]),
    "fr_model_open": (c_int, [POINTER(c_void_p), c_char_p, POINTER(fr_model_options), POINTER(fr_error)]),
    "fr_model_close": (None, [c_void_p]),
    "fr_model_get_info": (None, [c_void_p, POINTER(fr_model_info)]),
    "fr_tokenize": (
        c_int,
        [c_void_p, c_char_p, c_size_t, c_uint, POINTER(POINTER(c_int32)), POINTER(c_int64), POINTER(fr_error)],
    ),
    "fr_detokenize": (
        c_int,
        [c_void_p, POINTER(c_int32), c_int64, POINTER(c_void_p), POINTER(c_size_t), POINTER(fr_error)],
    ),
    "fr_chat_apply": (
        c_int,
        [c_void_p, POINTER(fr_chat_message), c_int, POINTER(fr_chat_options), POINTER(fr_chat_result), POINTER(fr_error)],
    ),
    "fr_chat_result_free": (None, [POINTER(fr_chat_result)]),
    "fr_engine_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(fr_engine_options), POINTER(fr_error)]),
    "fr_engine_close": (None, [c_void_p]),
    "fr_engine_open_draft": (c_int, [c_void_p, c_char_p, POINTER(fr_error)]),
    "fr_engine_measure_costs": (c_int, [c_void_p, POINTER(fr_error)]),
    "fr_engine_step": (c_int, [c_void_p, POINTER(fr_error)]),
    "fr_sampling_default": (fr_sampling, []),
    "fr_request_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(fr_request_options), POINTER(fr_error)]),
    "fr_request_close": (None, [c_void_p]),
    "fr_request_finish": (c_int, [c_void_p]),
    "fr_finish_name": (c_char_p, [c_int]),
    "fr_request_error": (POINTER(fr_error), [c_void_p]),
    "fr_request_tokens": (POINTER(c_int32), [c_void_p, POINTER(c_int64)]),
    "fr_request_text": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "fr_request_get_stats": (None, [c_void_p, POINTER(fr_stats)]),
}

_library = None


def _lib():
    """The library, loaded at the first use."""
    global _library
    if _library is None:
        name = os.environ.get("FORERUN_LIBRARY") or "libforerun.so.0"
        try:
            library = ctypes.CDLL(name)
        except OSError as why:
            raise OSError(
                f"{name}: cannot be loaded ({why}); install libforerun ('make install'), or set FORERUN_LIBRARY to its path"
            ) from None
        for function, (result, arguments) in _FUNCTIONS.items():
            getattr(library, function).restype = result
            getattr(library, function).argtypes = arguments
        _library = library
    return _library


def library_version():
    """The version of the loaded libforerun."""
    return _lib().fr_version().decode()


class Error(Exception):
    """A call failed; `code` is a negative fr_code of forerun.h, and the message says what to do."""

    def __init__(self, err):
        super().__init__(err.message.decode(errors="replace"))
        self.code = err.code


def _check(status, err):
    if status < 0:
        raise Error(err)
    return status


def _bytes(text):
    return None if text is None else os.fsencode(text)


def _strings(texts):
    """An array of C strings, or None where there are none, and its length."""
    texts = [texts] if isinstance(texts, str) else list(texts or ())
    return ((c_char_p * len(texts))(*(t.encode() for t in texts)) if texts else None), len(texts)


def _plain(value):
    """A value of a C struct as one of Python."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if isinstance(value, ctypes.Array) else value


def _as_dict(struct):
    return {name: _plain(getattr(struct, name)) for name, _ in struct._fields_ if name != "_spare"}


Completion = collections.namedtuple("Completion", "text tokens finish stats")
Completion.__doc__ = 'A whole answer; finish: "eos", "stop", "length", "context" or "cancelled".'


def _collector(pieces, is_chat):
    """The callback of a request, which appends to `pieces`. It knows no Stream, so that a dropped one closes at once."""
    wants_start = is_chat

    def keep(_user, event):
        nonlocal wants_start
        e = event.contents
        text = ctypes.string_at(e.text, e.n_bytes).decode(errors="replace") if e.n_bytes else ""
        if text and wants_start:
            text = text[1:] if text[0] == " " else text  # the space of the format before an answer
            wants_start = False
        if text:
            pieces.append(text)
        return 0

    return _ON_TOKEN(keep)


class Stream:
    """An answer while it is generated: an iterator of pieces of text, each of whole characters.

    At any time: `text` and `tokens` so far, `finish` ("running", "eos", "stop", "length", "context", "cancelled"),
    and `stats`, a dict of fr_stats. close() ends it early.
    """

    def __init__(self, model, prompt, max_tokens=256, draft="auto", stop=(), **options):
        self._model, self._request, self._final, self._pieces = model, None, None, collections.deque()
        self._is_chat = bool(prompt) and isinstance(prompt[0], dict)
        o = fr_request_options(max_tokens=max_tokens, sampling=_lib().fr_sampling_default())
        sampling = {name for name, _ in fr_sampling._fields_}
        request = {name for name, _ in fr_request_options._fields_} - {"prompt", "n_prompt", "sampling", "on_token", "user", "_spare"}
        bias = options.pop("logit_bias", None) or {}  # {token: bias}
        o.logit_bias, o.n_logit_bias = (fr_logit_bias * max(1, len(bias)))(*bias.items()), len(bias)
        for name, value in options.items():
            if name not in sampling and name not in request:
                raise TypeError(f"'{name}' is not an option of a generation")
            setattr(o.sampling if name in sampling else o, name, value.encode() if isinstance(value, str) else value)
        tokens = model._prompt_tokens(prompt)
        o.prompt, o.n_prompt = (c_int32 * max(1, len(tokens)))(*tokens), len(tokens)
        o.stops, o.n_stops = _strings(stop)
        o.drafts, o.n_drafts = _strings([d for d in ([draft] if isinstance(draft, str) else draft or ()) if d != "none"])
        self._on_token = o.on_token = _collector(self._pieces, self._is_chat)  # must live as long as the request
        request, err = c_void_p(), fr_error()
        with model._lock:
            for i in range(o.n_drafts):
                model._open_draft(o.drafts[i])
            _check(_lib().fr_request_open(request, model._opened(), o, err), err)
        self._request = request
        model._streams.add(self)

    def __iter__(self):
        return self

    def __next__(self):
        while not self._pieces:
            with self._model._lock:
                if self._request is None or _lib().fr_request_finish(self._request):
                    self._end()
                    raise StopIteration
                self._model._step()
        return self._pieces.popleft()

    def _end(self):
        """Raises the error that ended the request; keeps the results and closes it otherwise."""
        if self._request is None:
            return
        if _lib().fr_request_finish(self._request) == _FINISH_ERROR:
            err = Error(_lib().fr_request_error(self._request).contents)
            self.close()
            raise err
        self.close()

    def _results(self):
        if self._final:
            return self._final
        n, n_bytes, stats = c_int64(), c_size_t(), fr_stats()
        tokens = _lib().fr_request_tokens(self._request, n)[: n.value] if self._request else []
        text = ctypes.string_at(_lib().fr_request_text(self._request, n_bytes), n_bytes.value).decode(errors="replace")
        _lib().fr_request_get_stats(self._request, stats)
        d = _as_dict(stats)
        d["counters"] = {c.name.decode(): (c.drafted, c.accepted) for c in stats.counters[: stats.n_counters]}
        finish = _lib().fr_finish_name(_lib().fr_request_finish(self._request)).decode()
        return Completion(text[self._is_chat and text[:1] == " " :], tokens, finish, d)

    text = property(lambda self: self._results().text)
    tokens = property(lambda self: self._results().tokens)
    finish = property(lambda self: self._results().finish)
    stats = property(lambda self: self._results().stats)

    def close(self):
        """Ends the generation; what was generated so far can still be read."""
        with self._model._lock:
            if self._request is not None:
                results = self._results()
                self._final = results._replace(finish="cancelled") if results.finish == "running" else results
                _lib().fr_request_close(self._request)
                self._request = None

    def __del__(self):
        if getattr(self, "_request", None) is not None:
            self.close()


class Chat:
    """A conversation: `messages` is its history, which may be edited. Options are those of Model.stream."""

    def __init__(self, model, system=None, **options):
        self.model, self.options = model, options
        self.messages = [{"role": "system", "content": system}] if system else []

    def stream(self, text, **options):
        """The answer, piece by piece. Where the iteration ends early, what was said so far is the answer."""
        self.messages = self.messages + [{"role": "user", "content": text}]
        stream = self.model.stream(self.messages, **{**self.options, **options})
        said = []
        try:
            for piece in stream:
                said.append(piece)
                yield piece
        finally:
            stream.close()
            self.messages = self.messages + [{"role": "assistant", "content": "".join(said)}]

    def send(self, text, **options):
        """The whole answer."""
        return "".join(self.stream(text, **options))


class Model:
    """A model and an engine over it.

    draft: opened at once, so that the first generation need not wait. n_ctx: longest context in tokens; 0: the
    model's, at most 4096. threads: 0: all cores. requests: streams that may be open at once. kv: "f16", "f32" or "q8".
    activations: "q16" or "q8". chat_template: a built-in format, or the text of a template; None: the model's own.
    cost_cache: a folder in which the measurements for "auto" are kept.
    """

    def __init__(self, path, *, draft=(), n_ctx=0, threads=0, requests=1, kv="f16", activations=None, backend=None,
                 chat_template=None, cost_cache=None):  # fmt: skip
        self._model = self._engine = None
        self._lock, self._streams, self._drafts = threading.RLock(), weakref.WeakSet(), set()
        self._chat_template = _bytes(chat_template)
        err, model, engine = fr_error(), c_void_p(), c_void_p()
        o = fr_model_options(backend=_bytes(backend), activations=_bytes(activations), n_threads=threads)
        _check(_lib().fr_model_open(model, os.fsencode(path), o, err), err)
        self._model = model
        e = fr_engine_options(n_threads=threads, n_ctx=n_ctx, kv_type=_KV_TYPES[kv], max_requests=requests,
                              cost_cache=_bytes(cost_cache))  # fmt: skip
        self._engine_options = e  # its strings are borrowed until the engine is closed
        try:
            _check(_lib().fr_engine_open(engine, model, e, err), err)
            self._engine = engine
            for spec in [draft] if isinstance(draft, str) else draft:
                self._open_draft(spec.encode())
        except BaseException:
            self.close()
            raise

    def _opened(self):
        if self._engine is None:
            raise ValueError("the model is closed")
        return self._engine

    def _open_draft(self, spec):
        if spec in self._drafts:
            return
        err = fr_error()
        _check(_lib().fr_engine_open_draft(self._opened(), spec, err), err)
        self._drafts.add(spec)

    def _step(self):
        err = fr_error()
        _check(_lib().fr_engine_step(self._opened(), err), err)

    @property
    def info(self):
        """A dict of fr_model_info."""
        info = fr_model_info()
        self._opened()
        _lib().fr_model_get_info(self._model, info)
        return _as_dict(info)

    def tokenize(self, text, special=False):
        """The tokens of a prompt; special: spellings such as "</s>" become the special tokens."""
        tokens, n, err, data = POINTER(c_int32)(), c_int64(), fr_error(), text.encode()
        flags = _TOKENIZE_PROMPT | (_TOKENIZE_SPECIAL if special else 0)
        self._opened()
        _check(_lib().fr_tokenize(self._model, data, len(data), flags, tokens, n, err), err)
        ids = tokens[: n.value]
        _lib().fr_free(tokens)
        return ids

    def detokenize(self, tokens):
        """The text of tokens."""
        text, n, err = c_void_p(), c_size_t(), fr_error()
        self._opened()
        _check(_lib().fr_detokenize(self._model, (c_int32 * len(tokens))(*tokens), len(tokens), text, n, err), err)
        decoded = ctypes.string_at(text, n.value).decode(errors="replace")
        _lib().fr_free(text)
        return decoded

    def chat_tokens(self, messages):
        """The tokens of a conversation, [{"role": ..., "content": ...}, ...], up to where the answer begins."""
        array = (fr_chat_message * len(messages))(*((m["role"].encode(), m["content"].encode()) for m in messages))
        options, result, err = fr_chat_options(chat_template=self._chat_template), fr_chat_result(), fr_error()
        self._opened()
        _check(_lib().fr_chat_apply(self._model, array, len(messages), options, result, err), err)
        tokens = result.tokens[: result.n_tokens]
        _lib().fr_chat_result_free(result)
        return tokens

    def _prompt_tokens(self, prompt):
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        return self.chat_tokens(prompt) if prompt and isinstance(prompt[0], dict) else list(prompt)

    def stream(self, prompt, max_tokens=256, draft="auto", stop=(), **options):
        """Begins to generate; returns a Stream.

        prompt: a text, a list of tokens, or a list of messages {"role": ..., "content": ...}. max_tokens: 0: until the
        context is full. draft: a draft as for `forerun run --draft`, or a list of them. stop: the text ends before the
        first of these strings. Further options are fields of fr_sampling (temperature, top_k, top_p, min_p, seed,
        repeat_penalty, ...) and of fr_request_options (tree_budget, verify, ignore_eos, ...).
        """
        return Stream(self, prompt, max_tokens, draft, stop, **options)

    def generate(self, prompt, **options):
        """Generates to the end; returns a Completion. Options are those of stream()."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream._results()

    def chat(self, system=None, **options):
        """A conversation with this model."""
        return Chat(self, system, **options)

    def close(self):
        """Closes the model, and streams that are open."""
        with self._lock:
            for stream in list(self._streams):
                stream.close()
            if self._engine is not None:
                _lib().fr_engine_close(self._engine)
            if self._model is not None:
                _lib().fr_model_close(self._model)
            self._engine = self._model = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_model", None) is not None:
            self.close()
