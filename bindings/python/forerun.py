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

The structs below are those of forerun.h; tests/bindings compares each offset with the C compiler's. Structs that can grow
begin with struct_size, so that this module also works with later libraries. Threads may share a Model: a lock makes its
calls one at a time.

Values are checked before they reach C: a wrong type raises TypeError, and a number that does not fit raises ValueError.
"""

import collections
import ctypes
import math
import operator
import os
import threading
import weakref
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint64, c_void_p

__version__ = "0.1.0"
__all__ = ["Chat", "Completion", "Error", "Model", "Stream", "library_version"]

TREE_BUDGET_AUTO = -1
_MAX_DEPTH, _MAX_COUNTERS = 64, 24
_TOKENIZE_SPECIAL, _TOKENIZE_PROMPT = 4, 8
_FINISH_ERROR = 6
_KV_TYPES = {"f16": 0, "f32": 1, "q8": 2}


class _Sized(ctypes.Structure):
    """A struct that can grow: its first field tells the library how much of it this module knows."""

    def __init__(self, **values):
        super().__init__(**values)
        self.struct_size = ctypes.sizeof(self)


class fr_error(ctypes.Structure):
    _fields_ = [("code", c_int), ("message", c_char * 508)]


class fr_model_options(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("kernels", c_char_p),
        ("activations", c_char_p),
        ("packed_file", c_char_p),
        ("n_threads", c_int),
        ("progress", ctypes.CFUNCTYPE(None, c_void_p, c_double)),
        ("progress_user", c_void_p),
        ("n_ranks", c_int64),
    ]


class fr_model_info(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("architecture", c_char_p),
        ("backend", c_char_p),
        ("kernels", c_char_p),
        ("activations", c_char_p),
        ("chat_family", c_char_p),
        ("chat_template_error", c_char_p),
        ("chat_reasons", c_int),
        ("n_vocab", c_int32),
        ("n_layer", c_int32),
        ("n_embd", c_int32),
        ("n_ctx_train", c_int32),
        ("weight_bytes", c_size_t),
        ("packed_error", c_char_p),
    ]


class fr_chat_message(ctypes.Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class fr_chat_options(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("no_generation_prompt", c_int),
        ("chat_template", c_char_p),
        ("messages", c_char_p),
        ("tools", c_char_p),
        ("variables", c_char_p),
    ]


class fr_chat_result(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("text", c_void_p),
        ("n_bytes", c_size_t),
        ("tokens", POINTER(c_int32)),
        ("n_tokens", c_int64),
        ("warning", c_char * 256),
    ]


class fr_engine_options(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_threads", c_int),
        ("pin_threads", c_int),
        ("n_ctx", c_int),
        ("kv_type", c_int),
        ("kv_page_size", c_int),
        ("max_requests", c_int),
        ("max_queued", c_int),
        ("prefill_chunk", c_int),
        ("prefix_cache", c_int),
        ("n_drafts", c_int),
        ("drafts", POINTER(c_char_p)),
        ("kv_tokens", c_int64),
        ("cost_cache", c_char_p),
        ("max_gap_s", c_double),
    ]


class fr_engine_stats(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_running", c_int),
        ("n_queued", c_int),
        ("kv_tokens", c_int64),
        ("kv_tokens_running", c_int64),
        ("kv_tokens_prefixes", c_int64),
        ("kv_window_tokens", c_int64),
        ("kv_window_tokens_held", c_int64),
        ("kv_bytes", c_int64),
        ("n_ranks", c_int),
        ("n_exchanges", c_int64),
        ("exchanged_bytes", c_int64),
        ("exchange_s", c_double),
        ("exchange_latency_s", c_double),
        ("exchange_bytes_per_s", c_double),
        ("n_divided_drafts", c_int),
        ("draft_whole_s", c_double),
        ("draft_divided_s", c_double),
        ("draft_divided_is_measured", c_int),
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


class fr_token_event(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("token", c_int32),
        ("source", c_int32),
        ("text", c_void_p),
        ("n_bytes", c_size_t),
        ("logprob", c_double),
        ("n_top_logprobs", c_int),
        ("top_logprobs", POINTER(fr_top_logprob)),
    ]


_ON_TOKEN = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(fr_token_event))


class fr_request_options(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("prompt", POINTER(c_int32)),
        ("n_prompt", c_int64),
        ("max_tokens", c_int64),
        ("sampling", fr_sampling),
        ("logit_bias", POINTER(fr_logit_bias)),
        ("stops", POINTER(c_char_p)),
        ("drafts", POINTER(c_char_p)),
        ("n_logit_bias", c_int),
        ("n_stops", c_int),
        ("n_drafts", c_int),
        ("tree_budget", c_int),
        ("verify", c_char_p),
        ("allow_lossy", c_int),
        ("ignore_eos", c_int),
        ("prediction", POINTER(c_int32)),
        ("n_prediction", c_int64),
        ("grammar", c_void_p),
        ("grammar_after", c_char_p),
        ("grammar_opening", c_char_p),
        ("want_logprobs", c_int),
        ("n_top_logprobs", c_int),
        ("want_embedding", c_int),
        ("on_token", _ON_TOKEN),
        ("user", c_void_p),
        ("reasoning_end", c_char_p),
        ("reasoning_opening", c_char_p),
        ("max_reasoning", c_int64),
        ("no_logits_hash", c_int64),
    ]


class fr_tree_node(ctypes.Structure):
    _fields_ = [("token", c_int32), ("parent", c_int32), ("source", c_int32), ("p_accept", c_float)]


class fr_counter(ctypes.Structure):
    _fields_ = [("name", c_char * 48), ("drafted", c_int64), ("accepted", c_int64)]


class fr_stats(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_prompt", c_int64),
        ("n_generated", c_int64),
        ("n_prompt_shared", c_int64),
        ("n_preempted", c_int64),
        ("n_recomputed", c_int64),
        ("n_steps", c_int64),
        ("drafted", c_int64),
        ("accepted", c_int64),
        ("acceptance_length", c_double),
        ("tokens_per_s", c_double),
        ("queue_s", c_double),
        ("prefill_s", c_double),
        ("decode_s", c_double),
        ("draft_s", c_double),
        ("forward_s", c_double),
        ("verify_s", c_double),
        ("is_lossy", c_int),
        ("logits_hash", c_uint64),
        ("plain_s", c_double),
        ("n_prompt_read", c_int64),
    ]


class fr_draft_stats(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_proposals", c_int64),
        ("n_undrafted_steps", c_int64),
        ("accept_histogram", c_int64 * (_MAX_DEPTH + 1)),
        ("offered_at", c_int64 * (_MAX_DEPTH + 1)),
        ("accepted_at", c_int64 * (_MAX_DEPTH + 1)),
        ("n_counters", c_int64),
        ("counters", fr_counter * _MAX_COUNTERS),
        ("shared_vocab", c_double),
    ]


# Every struct of forerun.h, for the test of their layout.
STRUCTS = [
    fr_error, fr_model_options, fr_model_info, fr_chat_message, fr_chat_options, fr_chat_result, fr_engine_options,
    fr_engine_stats, fr_sampling, fr_logit_bias, fr_top_logprob, fr_token_event, fr_request_options, fr_counter, fr_stats,
    fr_draft_stats, fr_tree_node,
]  # fmt: skip

_FUNCTIONS = {
    "fr_version": (c_char_p, []),
    "fr_free": (None, [c_void_p]),
    "fr_model_open": (c_int, [POINTER(c_void_p), c_char_p, POINTER(fr_model_options), POINTER(fr_error)]),
    "fr_model_close": (None, [c_void_p]),
    "fr_model_get_info": (c_int, [c_void_p, POINTER(fr_model_info)]),
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
    "fr_request_finish_reason": (c_int, [c_void_p]),
    "fr_finish_name": (c_char_p, [c_int]),
    "fr_request_error": (POINTER(fr_error), [c_void_p]),
    "fr_request_tokens": (POINTER(c_int32), [c_void_p, POINTER(c_int64)]),
    "fr_request_text": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "fr_request_get_stats": (c_int, [c_void_p, POINTER(fr_stats)]),
    "fr_request_get_draft_stats": (c_int, [c_void_p, POINTER(fr_draft_stats)]),
    "fr_request_draft_error": (c_char_p, [c_void_p]),
}

_library = None


def _library_beside():
    """The library that `make install` put beneath the same PREFIX as this module, in a folder that the linker does not
    know; None if there is none."""
    folder = os.path.dirname(os.path.abspath(__file__))
    for _ in range(2):  # lib/python3.11/site-packages, lib/python3/dist-packages or lib/forerun/python
        folder = os.path.dirname(folder)
        path = os.path.join(folder, "libforerun.so.0")
        if os.path.exists(path):
            return path
    return None


def _lib():
    """The library, which is loaded at the first use."""
    global _library
    if _library is None:
        name = os.environ.get("FORERUN_LIBRARY") or "libforerun.so.0"
        try:
            library = ctypes.CDLL(name)
        except OSError as why:
            beside = _library_beside() if name == "libforerun.so.0" else None
            if beside is None:
                raise OSError(
                    f"{name}: cannot be loaded ({why}); install libforerun ('make install'), or set FORERUN_LIBRARY to "
                    "its path"
                ) from None
            library = ctypes.CDLL(beside)
        for function, (result, arguments) in _FUNCTIONS.items():
            getattr(library, function).restype = result
            getattr(library, function).argtypes = arguments
        _library = library
    return _library


def library_version():
    """The version of the loaded libforerun."""
    return _lib().fr_version().decode()


class Error(Exception):
    """A call that failed: `code` is a negative fr_code of forerun.h, and the message says what to do."""

    def __init__(self, err):
        super().__init__(err.message.decode(errors="replace"))
        self.code = err.code


def _check(status, err):
    if status < 0:
        raise Error(err)
    return status


_INTEGERS = {c_int: (32, True), c_int32: (32, True), c_int64: (64, True), c_uint64: (64, False), c_size_t: (64, False)}
_FLOAT_MAX = 3.4028234663852886e38


def _integer(name, value, c_type):
    """Returns value as an int that fits into a C type. ctypes would cut off the upper bits."""
    bits, is_signed = _INTEGERS[c_type]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {number}")
    return number


def _real(name, value):
    """Returns value as a float that a C float can hold."""
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except TypeError:
        raise TypeError(f"{name} must be a number, not {type(value).__name__}") from None
    except OverflowError:
        number = 2 * _FLOAT_MAX
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise ValueError(f"{name} must be at most {_FLOAT_MAX:g} in magnitude, not {value}")
    return number


def _text(name, value):
    """Returns the bytes of a string without zeros, which would end it in C; None stays None."""
    if value is None:
        return None
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    data = value.encode() if isinstance(value, str) else value
    if b"\0" in data:
        raise ValueError(f"{name} contains a zero byte")
    return data


def _path(name, value):
    return None if value is None else _text(name, os.fsencode(value))


def _list(name, values):
    """Returns a list of strings; a single string is a list of one."""
    if values is None or isinstance(values, str):
        return [values] if values else []
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{name} must be a string or a list of strings, not {type(values).__name__}") from None


def _strings(name, values):
    """Returns an array of C strings and its length; the array is None if there are no strings."""
    data = [_text(name, v) for v in values]
    if None in data:
        raise TypeError(f"{name} must be strings, not None")
    return ((c_char_p * len(data))(*data) if data else None), len(data)


def _tokens(name, values):
    """Returns an array of tokens and its length."""
    try:
        ids = [_integer(f"{name}[{i}]", v, c_int32) for i, v in enumerate(values)]
    except TypeError as why:
        if "must be an integer" in str(why):
            raise
        raise TypeError(f"{name} must be a list of tokens, not {type(values).__name__}") from None
    return (c_int32 * max(1, len(ids)))(*ids), len(ids)


def _biases(bias):
    """Returns {token: bias} as an array, and its length."""
    if not isinstance(bias, dict):
        raise TypeError(f"logit_bias must be a dict of biases by token, not {type(bias).__name__}")
    pairs = [(_integer("a token of logit_bias", t, c_int32), _real("a bias of logit_bias", b)) for t, b in bias.items()]
    return (fr_logit_bias * max(1, len(pairs)))(*pairs), len(pairs)


def _message(message):
    """Returns a message {"role": ..., "content": ...} as a pair of C strings."""
    if not isinstance(message, dict):
        raise TypeError(f"a message must be a dict with role and content, not {type(message).__name__}")
    pair = tuple(_text(key, message.get(key)) for key in ("role", "content"))
    if None in pair:
        raise ValueError(f"a message has no {'role' if pair[0] is None else 'content'}")
    return pair


# The options that Stream takes by name: numbers and strings of fr_sampling and fr_request_options.
_OPTIONS = {name: c_type for name, c_type in fr_sampling._fields_}
_OPTIONS.update(
    (name, c_type)
    for name, c_type in fr_request_options._fields_
    if (c_type in _INTEGERS or c_type is c_char_p) and name != "struct_size" and not name.startswith(("n_", "grammar"))
)
_OPTIONS["n_top_logprobs"] = c_int


def _set_option(options, name, value):
    if name not in _OPTIONS:
        raise TypeError(f"'{name}' is not an option of a generation")
    c_type = _OPTIONS[name]
    if c_type is c_char_p:
        value = _text(name, value)
    else:
        value = _real(name, value) if c_type is c_float else _integer(name, value, c_type)
    setattr(options.sampling if hasattr(options.sampling, name) else options, name, value)


def _plain(value):
    """Returns a value of a C struct as a value of Python."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if isinstance(value, ctypes.Array) else value


def _as_dict(struct):
    return {name: _plain(getattr(struct, name)) for name, _ in struct._fields_ if name != "struct_size"}


Completion = collections.namedtuple("Completion", "text tokens finish stats")
Completion.__doc__ = 'A whole answer; finish: "eos", "stop", "length", "context" or "cancelled".'


def _collector(pieces, is_chat):
    """Makes the callback of a request, which appends to `pieces`. It has no reference to the Stream, so that a Stream that
    is dropped closes at once."""
    wants_start = is_chat

    def keep(_user, event):
        nonlocal wants_start
        e = event.contents
        text = ctypes.string_at(e.text, e.n_bytes).decode(errors="replace") if e.n_bytes else ""
        if text and wants_start:
            text = text[1:] if text[0] == " " else text  # the space that the chat format puts before an answer
            wants_start = False
        if text:
            pieces.append(text)
        return 0

    return _ON_TOKEN(keep)


class Stream:
    """An answer while it is generated: an iterator of pieces of text, each of whole characters.

    These can be read at any time: `text` and `tokens` so far, `finish` ("running", "eos", "stop", "length", "context",
    "cancelled"), and `stats`, a dict of fr_stats and fr_draft_stats. close() ends the generation early.
    """

    def __init__(self, model, prompt, max_tokens=256, draft="auto", stop=(), **options):
        self._model, self._request, self._final, self._pieces = model, None, None, collections.deque()
        self._is_chat = isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)
        o = fr_request_options(sampling=_lib().fr_sampling_default())
        o.logit_bias, o.n_logit_bias = _biases(options.pop("logit_bias", None) or {})
        o.prediction, o.n_prediction = _tokens("prediction", options.pop("prediction", None) or ())
        for name, value in {"max_tokens": max_tokens, **options}.items():
            _set_option(o, name, value)
        o.prompt, o.n_prompt = _tokens("the prompt", model._prompt_tokens(prompt))
        o.stops, o.n_stops = _strings("stop", _list("stop", stop))
        o.drafts, o.n_drafts = _strings("draft", [d for d in _list("draft", draft) if d != "none"])
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
                if self._request is None or _lib().fr_request_finish_reason(self._request):
                    self._end()
                    raise StopIteration
                self._model._step()
        return self._pieces.popleft()

    def _end(self):
        """Closes a request that has ended, and keeps its results; raises the error if one ended it."""
        if self._request is None:
            return
        if _lib().fr_request_finish_reason(self._request) == _FINISH_ERROR:
            err = Error(_lib().fr_request_error(self._request).contents)
            self.close()
            raise err
        self.close()

    def _results(self):
        if self._final:
            return self._final
        n, n_bytes, stats, drafts = c_int64(), c_size_t(), fr_stats(), fr_draft_stats()
        tokens = _lib().fr_request_tokens(self._request, n)[: n.value] if self._request else []
        text = ctypes.string_at(_lib().fr_request_text(self._request, n_bytes), n_bytes.value).decode(errors="replace")
        _lib().fr_request_get_stats(self._request, stats)
        _lib().fr_request_get_draft_stats(self._request, drafts)
        d = {**_as_dict(stats), **_as_dict(drafts)}
        d["counters"] = {c.name.decode(): (c.drafted, c.accepted) for c in drafts.counters[: drafts.n_counters]}
        d["draft_error"] = _lib().fr_request_draft_error(self._request).decode(errors="replace")
        finish = _lib().fr_finish_name(_lib().fr_request_finish_reason(self._request)).decode()
        return Completion(text[self._is_chat and text[:1] == " " :], tokens, finish, d)

    text = property(lambda self: self._results().text)
    tokens = property(lambda self: self._results().tokens)
    finish = property(lambda self: self._results().finish)
    stats = property(lambda self: self._results().stats)

    def close(self):
        """Ends the generation. What has been generated so far can still be read."""
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
        """Yields the answer piece by piece. If the iteration ends early, the pieces so far are the answer."""
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
        """Returns the whole answer."""
        return "".join(self.stream(text, **options))


class Model:
    """A model and an engine over it.

    draft: drafts to open at once, so that the first generation need not wait for them. n_ctx: the longest context in
    tokens; 0: the model's, but at most 4096. threads: how many threads compute; 0: one for each core. requests: how many
    streams may be open at once. kv: "f16", "f32" or "q8". activations: "q16" or "q8". chat_template: the name of a
    built-in format, or the text of a template; None: the model's own. cost_cache: a folder that keeps the measurements
    for "auto".
    """

    def __init__(self, path, *, draft=(), n_ctx=0, threads=0, requests=1, kv="f16", activations=None, backend=None,
                 chat_template=None, cost_cache=None):  # fmt: skip
        self._model = self._engine = None
        self._lock, self._streams, self._drafts = threading.RLock(), weakref.WeakSet(), set()
        self._chat_template = _text("chat_template", chat_template)
        if kv not in _KV_TYPES:
            raise ValueError(f"kv must be one of {', '.join(_KV_TYPES)}, not {kv!r}")
        err, model, engine = fr_error(), c_void_p(), c_void_p()
        n_threads = _integer("threads", threads, c_int)
        o = fr_model_options(backend=_text("backend", backend), activations=_text("activations", activations),
                             n_threads=n_threads)  # fmt: skip
        e = fr_engine_options(n_threads=n_threads, n_ctx=_integer("n_ctx", n_ctx, c_int), kv_type=_KV_TYPES[kv],
                              max_requests=_integer("requests", requests, c_int),
                              cost_cache=_path("cost_cache", cost_cache))  # fmt: skip
        _check(_lib().fr_model_open(model, _path("path", path), o, err), err)
        self._model = model
        try:
            _check(_lib().fr_engine_open(engine, model, e, err), err)
            self._engine = engine
            for spec in _list("draft", draft):
                self._open_draft(_text("draft", spec))
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
        """The fields of fr_model_info as a dict."""
        info = fr_model_info()
        self._opened()
        _lib().fr_model_get_info(self._model, info)
        return _as_dict(info)

    def tokenize(self, text, special=False):
        """Returns the tokens of a prompt. special: names such as "</s>" become the special tokens."""
        if not isinstance(text, str):
            raise TypeError(f"the text must be a string, not {type(text).__name__}")
        tokens, n, err, data = POINTER(c_int32)(), c_int64(), fr_error(), text.encode()
        flags = _TOKENIZE_PROMPT | (_TOKENIZE_SPECIAL if special else 0)
        self._opened()
        _check(_lib().fr_tokenize(self._model, data, len(data), flags, tokens, n, err), err)
        ids = tokens[: n.value]
        _lib().fr_free(tokens)
        return ids

    def detokenize(self, tokens):
        """Returns the text of tokens."""
        text, n, err = c_void_p(), c_size_t(), fr_error()
        ids, n_ids = _tokens("the tokens", tokens)
        self._opened()
        _check(_lib().fr_detokenize(self._model, ids, n_ids, text, n, err), err)
        decoded = ctypes.string_at(text, n.value).decode(errors="replace")
        _lib().fr_free(text)
        return decoded

    def chat_tokens(self, messages):
        """Returns the tokens of a conversation, [{"role": ..., "content": ...}, ...], up to where the answer begins."""
        array = (fr_chat_message * len(messages))(*map(_message, messages))
        options, result, err = fr_chat_options(chat_template=self._chat_template), fr_chat_result(), fr_error()
        self._opened()
        _check(_lib().fr_chat_apply(self._model, array, len(messages), options, result, err), err)
        tokens = result.tokens[: result.n_tokens]
        _lib().fr_chat_result_free(result)
        return tokens

    def _prompt_tokens(self, prompt):
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        if not isinstance(prompt, (list, tuple)):
            raise TypeError(f"the prompt must be a text, a list of tokens or of messages, not {type(prompt).__name__}")
        return self.chat_tokens(prompt) if prompt and isinstance(prompt[0], dict) else prompt

    def stream(self, prompt, max_tokens=256, draft="auto", stop=(), **options):
        """Begins to generate, and returns a Stream.

        prompt: a text, a list of tokens, or a list of messages {"role": ..., "content": ...}. max_tokens: the most
        tokens to generate; 0: until the context is full. draft: a draft as for `forerun run --draft`, or a list of
        drafts. stop: strings; the text ends before the first of them. Further options are fields of fr_sampling
        (temperature, top_k, top_p, min_p, seed, repeat_penalty, ...) and of fr_request_options (tree_budget,
        verify, ignore_eos, ...), logit_bias (a dict of biases by token) and prediction (a list of tokens).
        """
        return Stream(self, prompt, max_tokens, draft, stop, **options)

    def generate(self, prompt, **options):
        """Generates to the end, and returns a Completion. Options are those of stream()."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream._results()

    def chat(self, system=None, **options):
        """Begins a conversation with this model."""
        return Chat(self, system, **options)

    def close(self):
        """Closes the model and its open streams."""
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
