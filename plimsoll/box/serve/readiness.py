"""Whether a model truly answers: its list of models names it, and one token comes back. Health endpoints lie.

Also how many requests are in flight, and the proof that real use fits: a prompt of full length in every slot at once.
"""

import errno
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from plimsoll.box.guard.places import printable
from plimsoll.box.host import Host
from plimsoll.box.serve import http
from plimsoll.box.serve.model import Proof, Readiness

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 15.0
LIST_TIMEOUT_S = 10.0
"""A list of models is at hand, or the server is busy with loading."""
METRICS_TIMEOUT_S = 5.0
MAX_TEXT = 200
_LOADING = (429, 500, 502, 503, 504)
"""What servers answer that are still loading, or proxies whose server is."""
_NOT_THERE = (404, 405, 501)
_DENIED = (401, 403)
_OK = 200
_PROMPT = "The capital of France is"


class Stage(StrEnum):
    """How far it got."""

    CONNECTION = "connection"
    ANSWER = "answer"
    MODEL = "model"
    COMPLETION = "completion"
    READY = "ready"


@dataclass(frozen=True)
class Answer:
    """What one look at a server came to."""

    stage: Stage
    said: str
    hopeless: bool = False
    """Waiting will not mend it: it serves something else, or the URL is wrong."""

    @property
    def ready(self) -> bool:
        """Whether the model answers."""
        return self.stage is Stage.READY


@dataclass(frozen=True)
class InFlight:
    """Requests that a server works on, and that wait for it; None where it does not say."""

    running: int | None = None
    waiting: int | None = None
    source: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Proved:
    """What became of as many prompts as there are slots, sent at once."""

    ok: bool
    answered: int
    asked: int
    prompt_tokens: int | None
    """The shortest prompt as the server counted it; None where it does not say."""
    took_s: float
    problems: tuple[str, ...] = ()


def waits() -> Iterator[float]:
    """Yield how long to wait before each further look, in seconds: ever longer, for a load takes minutes."""
    wait_s = FIRST_WAIT_S
    while True:
        yield wait_s
        wait_s = min(LONGEST_WAIT_S, wait_s * 2)


def ask(host: Host, readiness: Readiness, timeout_s: float | None = None) -> Answer:
    """Look once whether the model is ready; takes `timeout_s` at the most, and never raises for what a server does.

    Without it the list of models has 10 s, and the completion what its file says.
    """
    ends_s = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        headers = _headers(host, readiness)
    except OSError as error:
        return Answer(Stage.CONNECTION, f"{readiness.api_key_file}: {error.strerror}", hopeless=True)
    found = _ask_models(readiness, headers, _left(LIST_TIMEOUT_S, ends_s))
    if found is not None or not readiness.completion:
        return found or Answer(Stage.READY, f"names {readiness.model_id}")
    return _ask_completion(readiness, headers, _left(readiness.request_timeout_s, ends_s))


def _left(at_most_s: float, ends_s: float | None) -> float:
    return at_most_s if ends_s is None else max(0.05, min(at_most_s, ends_s - time.monotonic()))


def _headers(host: Host, readiness: Readiness) -> dict[str, str]:
    """Return what makes the server let us in; raises OSError for a key file that cannot be read, or holds no key."""
    if not readiness.api_key_file:
        return {}
    lines = host.text(readiness.api_key_file).splitlines()
    key = lines[0].strip() if lines else ""
    if not re.fullmatch(r"[!-~]+", key):
        raise OSError(errno.EINVAL, "its first line is no key: letters, digits and signs of ASCII, without a space")
    return {"Authorization": f"Bearer {key}"}


# --- the list of models ------------------------------------------------------------------------------------


def _ask_models(readiness: Readiness, headers: Mapping[str, str], timeout_s: float) -> Answer | None:
    """Return why it is not ready by its list of models, None where that is as it should be."""
    try:
        response = http.request(readiness.url, timeout_s, headers=headers)
        refused = _refused(response, readiness.url)
        if refused is not None:
            return refused
        listed = model_ids(response.json())
    except http.NoConnectionError as error:
        return Answer(Stage.CONNECTION, str(error))
    except http.AnswerError as error:
        return Answer(Stage.ANSWER, f"{readiness.url} {error}")
    if readiness.model_id in listed:
        return None
    named = ", ".join(printable(each) for each in listed[:3]) or "none"
    # an empty list may fill; another model stays another model
    return Answer(Stage.MODEL, f"does not serve {readiness.model_id!r}; it names {named}", hopeless=bool(listed))


def _refused(response: http.Response, url: str) -> Answer | None:
    if response.status == _OK or response.location:
        return None
    said = f"{url} answers {response.status}"
    if response.status in _DENIED:
        return Answer(Stage.ANSWER, f"{said}: it wants a key: give ready.api_key_file", hopeless=True)
    if response.status in _LOADING:
        return Answer(Stage.ANSWER, f"{said}: still loading")
    # a server that is starting may not have all of its paths yet
    return Answer(Stage.ANSWER, f"{said}: {_excerpt(response)}")


def model_ids(document: Any) -> list[str]:  # noqa: ANN401  # whatever a server says
    """Return the ids of a list of models as OpenAI, Ollama and llama.cpp write it; raises AnswerError for no such."""
    if not isinstance(document, dict):
        raise http.AnswerError("answers JSON that is no list of models")
    for name in ("data", "models"):
        rows = document.get(name)
        if isinstance(rows, list):
            ids = (row.get("id") or row.get("model") or row.get("name") for row in rows if isinstance(row, dict))
            return [each for each in ids if isinstance(each, str)]
    raise http.AnswerError("answers JSON that is no list of models (neither `data` nor `models`)")


def _excerpt(response: http.Response) -> str:
    return printable(response.body[:MAX_TEXT].decode("utf-8", "replace")) or "nothing"


# --- one token ---------------------------------------------------------------------------------------------


def _ask_completion(readiness: Readiness, headers: Mapping[str, str], timeout_s: float) -> Answer:
    try:
        _complete(readiness, headers, timeout_s, _PROMPT)
    except http.NoConnectionError as error:
        return Answer(Stage.CONNECTION, str(error))
    except http.AnswerError as error:
        return Answer(Stage.COMPLETION, f"names {readiness.model_id}, but completes nothing: {error}")
    return Answer(Stage.READY, f"names {readiness.model_id} and completed one token")


def _complete(readiness: Readiness, headers: Mapping[str, str], timeout_s: float, prompt: object) -> int | None:
    """Have one token completed; return how long the prompt was by the server's count, None where it does not say.

    Servers for conversations alone have no path for plain completions.
    """
    ends_s = time.monotonic() + timeout_s
    asked = {"model": readiness.model_id, "max_tokens": 1, "temperature": 0, "stream": False}
    base = _beside(readiness.url, "completions")
    response = http.request(base, timeout_s, content={**asked, "prompt": prompt}, headers=headers)
    if response.status in _NOT_THERE and isinstance(prompt, str):
        chat = {**asked, "messages": [{"role": "user", "content": prompt}]}
        base = _beside(readiness.url, "chat/completions")
        response = http.request(base, _left(timeout_s, ends_s), content=chat, headers=headers)
    if response.status != _OK:
        raise http.AnswerError(f"{base} answers {response.status}: {_excerpt(response)}")
    return _understood(response.json())


def _understood(document: Any) -> int | None:  # noqa: ANN401  # as above
    """Return the prompt's length as counted; raises AnswerError for what is no completion of a token."""
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(choices, list) or not choices:
        raise http.AnswerError("answers JSON without `choices`: no completion")
    usage = document.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    # a model that ends at once has said so, and was computed; one whose engine gave up was not
    ended = isinstance(choices[0], dict) and choices[0].get("finish_reason") == "stop"
    if counted.get("completion_tokens") == 0 and not ended:
        raise http.AnswerError("completed no token")
    length = counted.get("prompt_tokens")
    return length if isinstance(length, int) and not isinstance(length, bool) else None


def _beside(url: str, name: str) -> str:
    """Return the URL of another path of the same API: beside `models`, else below /v1."""
    netloc, target = http.split(url)
    path, found, _rest = target.partition("?")[0].rpartition("/models")
    return f"http://{netloc}{path if found else '/v1'}/{name}"


# --- in flight ---------------------------------------------------------------------------------------------

_GAUGES: Mapping[str, tuple[str, str]] = {
    "vLLM": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "SGLang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}
"""What runs and what waits, by engine."""
_SAMPLE = re.compile(r"^([a-z:_]+)(?:\{[^}\n]*\})?\s+([0-9.eE+]+)(?:\s|$)", re.MULTILINE)


def in_flight(host: Host, readiness: Readiness) -> InFlight:
    """Return how many requests a server has, by its metrics, else by llama.cpp's slots; never raises for the server."""
    problems = []
    for path, read in (("/metrics", _of_metrics), ("/slots", _of_slots)):
        try:
            url = f"http://{http.split(readiness.url)[0]}{path}"
            response = http.request(url, METRICS_TIMEOUT_S, headers=_headers(host, readiness))
            found = read(response) if response.status == _OK else None
        except (http.AnswerError, OSError) as error:
            problems.append(f"{path}: {error}")
            continue
        if found is not None:
            return found
        problems.append(f"{path}: answers {response.status}, and no number of requests")
    return InFlight(problem="; ".join(problems))


def _of_metrics(response: http.Response) -> InFlight | None:
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(response.body.decode("utf-8", "replace")):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            sums[name] = sums.get(name, 0.0) + number
    for engine, (running, waiting) in _GAUGES.items():
        if running in sums:
            queue = sums.get(waiting)
            return InFlight(round(sums[running]), None if queue is None else round(queue), f"metrics of {engine}")
    return None


def _of_slots(response: http.Response) -> InFlight | None:
    slots = response.json()
    if not isinstance(slots, list) or not all(isinstance(each, dict) for each in slots):
        return None
    return InFlight(sum(each.get("is_processing") is True for each in slots), None, "slots of llama.cpp")


# --- proof -------------------------------------------------------------------------------------------------

_TOKENS = range(100, 1000)
"""Numbers that every vocabulary has, and that are no special tokens in any that is known."""
_STEP = 17
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ENOUGH_SHARE = 0.95
"""Of the declared length, what counts as that long: a prompt of words is only about as long as it should be."""


def prove(host: Host, readiness: Readiness, proof: Proof) -> Proved:
    """Send a prompt of the declared length to every slot at once, and have one token completed of each.

    Memory at idle says nothing: the compute buffers of a full prompt are taken when the first one comes.
    """
    began_s = time.monotonic()
    ends_s = began_s + proof.timeout_s
    try:
        headers = _headers(host, readiness)
    except OSError as error:
        return Proved(False, 0, proof.slots, None, 0.0, (f"{readiness.api_key_file}: {error.strerror}",))
    by_words = _needs_words(readiness, headers, ends_s)

    def send(slot: int) -> int | None:
        prompt = words(slot, proof.prompt_tokens) if by_words else tokens(slot, proof.prompt_tokens)
        return _complete(readiness, headers, _left(proof.timeout_s, ends_s), prompt)

    lengths, problems = _all_at_once(send, proof.slots)
    return _proved(proof, lengths, problems, time.monotonic() - began_s)


def _needs_words(readiness: Readiness, headers: Mapping[str, str], ends_s: float) -> bool:
    """Say whether a server takes no prompt of token numbers, whose length would be exact."""
    try:
        _complete(readiness, headers, _left(readiness.request_timeout_s, ends_s), tokens(0, 8))
    except http.AnswerError:
        return True
    return False


def tokens(slot: int, length: int) -> list[int]:
    """Return a prompt as token numbers; each slot's begins otherwise, or one cache entry would serve them all."""
    count = len(_TOKENS)
    return [_TOKENS[(slot * 101 + index * _STEP + index // count) % count] for index in range(length)]


def words(slot: int, length: int) -> str:
    """Return a prompt of as many common words, which most vocabularies hold as one token each."""
    first = f"{slot}:"
    return " ".join([first, *(_WORDS[(slot + index * 3 + index // 10) % len(_WORDS)] for index in range(length))])


def _all_at_once(send: Callable[[int], int | None], slots: int) -> tuple[list[int | None], list[str]]:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # with logging, and only a proof needs it

    lengths: list[int | None] = []
    problems: list[str] = []
    with ThreadPoolExecutor(slots) as pool:
        for future in [pool.submit(send, slot) for slot in range(slots)]:
            try:
                lengths.append(future.result())
            except http.AnswerError as error:
                problems.append(str(error))
    return lengths, list(dict.fromkeys(problems))


def _proved(proof: Proof, lengths: Sequence[int | None], problems: Sequence[str], took_s: float) -> Proved:
    known = [each for each in lengths if each is not None]
    shortest = min(known, default=None)
    notes = list(problems)
    if shortest is not None and shortest < proof.prompt_tokens * ENOUGH_SHARE:
        notes.append(f"the server counted {shortest} tokens of a prompt of {proof.prompt_tokens}: it was cut")
    elif lengths and len(known) < len(lengths):
        notes.append("the server does not say how long the prompts were: that they were whole is not proved")
    ok = len(lengths) == proof.slots and not notes
    return Proved(ok, len(lengths), proof.slots, shortest, took_s, tuple(notes))
