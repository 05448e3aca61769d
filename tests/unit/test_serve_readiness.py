"""Readiness: a model is ready when it is named and completes a token, and whatever a server does is bounded."""

import dataclasses
import itertools
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.engine import kinds
from plimsoll.box.host import Host
from plimsoll.box.serve import http, readiness
from plimsoll.box.serve.model import Proof, Readiness
from plimsoll.box.serve.readiness import InFlight, Stage, ask, in_flight, prove
from tests.unit.serving import Answers, Request, saying, serving

HERE = Host()
MODELS = {"object": "list", "data": [{"id": "qwen", "object": "model"}]}
COMPLETED = {"choices": [{"text": "!"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


def wanted(url: str, **others: Any) -> Readiness:  # noqa: ANN401  # fields of a readiness
    """Return the readiness of a model called `qwen` at an address."""
    return Readiness(f"{url}/v1/models", "qwen", **others)


def answers(**changes: Callable[[Request], tuple[int, Any]]) -> Answers:
    """Return a server's answers that are all good, but for what is said otherwise."""
    good: dict[str, Callable[[Request], tuple[int, Any]]] = {
        "/v1/models": lambda _request: (200, MODELS),
        "/v1/completions": lambda _request: (200, COMPLETED),
    }
    return good | {f"/v1/{name}": answer for name, answer in changes.items()}


def test_a_model_that_is_named_and_completes_a_token_is_ready() -> None:
    """The list is asked, then one token of the model that was meant."""
    asked: list[Request] = []
    with serving(answers(), asked) as url:
        found = ask(HERE, wanted(url))
    assert found.ready
    assert [each.path for each in asked] == ["/v1/models", "/v1/completions"]
    sent = {"model": "qwen", "max_tokens": 1, "temperature": 0, "stream": False, "prompt": "The capital of France is"}
    assert asked[1].json == sent


def test_a_model_that_ends_at_once_has_answered() -> None:
    """Its first token may be the one that ends a text: it was computed all the same."""
    ended = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 0}}
    with serving(answers(completions=lambda _request: (200, ended))) as url:
        assert ask(HERE, wanted(url)).ready


def test_without_completion_the_list_is_enough() -> None:
    """A model that completes nothing, an embedding's, is ready by its name."""
    asked: list[Request] = []
    with serving(answers(), asked) as url:
        assert ask(HERE, wanted(url, completion=False)).ready
    assert len(asked) == 1


def test_a_server_for_conversations_is_asked_for_one() -> None:
    """Where there are no plain completions a message is sent."""
    asked: list[Request] = []
    chat = {"/v1/chat/completions": lambda _request: (200, COMPLETED)}
    with serving({**answers(completions=lambda _request: (404, {})), **chat}, asked) as url:
        assert ask(HERE, wanted(url)).ready
    assert asked[2].json["messages"] == [{"role": "user", "content": "The capital of France is"}]


def test_the_key_goes_along(tmp_path: Path) -> None:
    """The first line of the key file is the bearer token of both requests; without the file nothing is asked."""
    asked: list[Request] = []
    (tmp_path / "key").write_text("secret \nmore\n")
    host = Host(str(tmp_path))
    with serving(answers(), asked) as url:
        assert ask(host, wanted(url, api_key_file="/key")).ready
        missing = ask(host, wanted(url, api_key_file="/gone"))
    assert [each.headers["Authorization"] for each in asked] == ["Bearer secret", "Bearer secret"]
    assert (missing.hopeless, missing.said) == (True, "/gone: No such file or directory")


def test_nobody_there_is_waited_for() -> None:
    """A port that nothing listens at is a server that is not up yet."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = ask(HERE, wanted(f"http://127.0.0.1:{port}"))
    assert (found.stage, found.hopeless) == (Stage.CONNECTION, False)
    assert "Connection refused" in found.said


Case = tuple[Answers, Stage, bool, str]
CASES: dict[str, Case] = {
    "an answer for people": (
        answers(models=lambda _r: (200, b"<html>id: qwen</html>")), Stage.ANSWER, False, "no JSON (text/html",
    ),
    "a redirect": (
        answers(models=lambda _r: (307, b"")), Stage.ANSWER, False, "redirects (307) to 'http://127.0.0.1:9/elsewhere'",
    ),
    "still loading": (answers(models=lambda _r: (503, {"error": "Loading model"})), Stage.ANSWER, False, "loading"),
    "no key": (answers(models=lambda _r: (401, {})), Stage.ANSWER, True, "give ready.api_key_file"),
    "no such path": (answers(models=lambda _r: (404, {})), Stage.ANSWER, False, "answers 404"),
    "another model": (
        answers(models=lambda _r: (200, {"data": [{"id": "small"}]})), Stage.MODEL, True,
        "does not serve 'qwen'; it names small",
    ),
    "a longer name": (answers(models=lambda _r: (200, {"data": [{"id": "qwen2"}]})), Stage.MODEL, True, "qwen2"),
    "no model yet": (answers(models=lambda _r: (200, {"data": []})), Stage.MODEL, False, "it names none"),
    "an error with an id": (answers(models=lambda _r: (200, {"id": "qwen"})), Stage.ANSWER, False, "no list of models"),
    "a list": (answers(models=lambda _r: (200, [1])), Stage.ANSWER, False, "no list of models"),
    "deep JSON": (answers(models=lambda _r: (200, b"[" * 100_000)), Stage.ANSWER, False, "no JSON"),
    "an engine that died": (
        answers(completions=lambda _r: (500, {"error": "EngineCore encountered an issue"})), Stage.COMPLETION, False,
        "completes nothing: ",
    ),
    "no choices": (answers(completions=lambda _r: (200, {"choices": []})), Stage.COMPLETION, False, "no completion"),
    "no token": (
        answers(completions=lambda _r: (200, {"choices": [{}], "usage": {"completion_tokens": 0}})),
        Stage.COMPLETION, False, "completed no token",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_is_not_ready_is_not_called_so(case: Case) -> None:
    """A health endpoint that lies, a page for people, another model: each is named, and only some end the waiting."""
    given, stage, hopeless, said = case
    with serving(given) as url:
        found = ask(HERE, wanted(url))
    assert (found.stage, found.hopeless, found.ready) == (stage, hopeless, False)
    assert said in found.said


class Server(dict[str, Callable[[Request], tuple[int, Any]]]):
    """Answers as a model server does in one of its states; a prompt that it never answers it keeps for a second."""

    def __init__(self, kind: kinds.Kind, state: kinds.State) -> None:
        super().__init__()
        self._kind, self._status = kind, kinds.Status(state, "qwen")

    def get(self, path: str, _default: object = None) -> Callable[[Request], tuple[int, Any]]:
        """Return what answers at a path."""
        return lambda request: self._answer(path, request)

    def _answer(self, path: str, request: Request) -> tuple[int, Any]:
        answer = self._kind.answers(self._status, path, request.json or {})
        if answer is None:
            threading.Event().wait(1)
            return 500, {}
        return answer.status, answer.body if isinstance(answer.body, dict) else answer.body.encode()


STATES: tuple[kinds.State, ...] = ("ready", "loading", "failed", "stuck")
LISTENING = [(n, s) for n, kind in kinds.KINDS.items() for s in STATES if s != "loading" or kind.listens_at_once]


@pytest.mark.parametrize(("name", "state"), LISTENING)
def test_real_servers_are_ready_only_when_they_are(name: str, state: kinds.State) -> None:
    """Each names its model while it loads, after its engine has died, or while it is stuck: only a token tells."""
    with serving(Server(kinds.KINDS[name], state)) as url:
        found = ask(HERE, wanted(url), timeout_s=10 if state != "stuck" else 0.3)
    assert found.stage is (Stage.READY if state == "ready" else Stage.COMPLETION), found


@pytest.mark.parametrize(
    ("document", "ids"),
    [
        ({"models": [{"name": "a", "model": "b"}, {"name": "c"}, 5, {"id": 5}]}, ["b", "c"]),
        ({"data": [{"id": "a"}], "models": [{"id": "b"}]}, ["a"]),
    ],
)
def test_lists_of_models_of_other_servers(document: object, ids: list[str]) -> None:
    """Ollama's and llama.cpp's own form is read too; what is no id in it is left out."""
    assert readiness.model_ids(document) == ids


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def trickle(connection: socket.socket) -> None:
    """Send a byte at a time, for ever, each well within any timeout of a socket."""
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b" ")
        threading.Event().wait(0.01)


def trickle_heading(connection: socket.socket) -> None:
    """Never come to the end of a line of the heading."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x")
        threading.Event().wait(0.01)


def say_nothing(connection: socket.socket) -> None:
    """Take the request, and keep the connection until the other side closes it."""
    while connection.recv(4096):
        pass


@pytest.mark.parametrize("talk", [trickle, trickle_heading, say_nothing])
def test_a_server_that_never_comes_to_an_end_is_left(talk: Callable[[socket.socket], None]) -> None:
    """The whole of a request has one deadline: a byte now and then does not put it off."""
    began_s = time.monotonic()
    with saying(talk) as url:
        found = ask(HERE, wanted(url), timeout_s=0.15)
    assert time.monotonic() - began_s < 2
    assert (found.stage, found.hopeless) == (Stage.ANSWER, False)
    assert "no whole answer within" in found.said


def stream(connection: socket.socket) -> None:
    """Send without end, as fast as it is taken."""
    connection.sendall(HEAD + b"\r\n" + b'{"data": [')
    while True:
        connection.sendall(b'{"id": "x"},' * 4096)


def stream_chunks(connection: socket.socket) -> None:
    """Send pieces without end."""
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


@pytest.mark.parametrize("talk", [stream, stream_chunks])
def test_a_stream_is_read_up_to_a_limit(talk: Callable[[socket.socket], None]) -> None:
    """No more than 1 MiB of an answer is ever held."""
    with saying(talk) as url:
        found = ask(HERE, wanted(url))
    assert "answers more than 1 MiB" in found.said


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "closes the connection without an answer"),
        (b"SSH-2.0-OpenSSH_10.0\r\n", "no HTTP"),
        (HEAD + b"Content-Length: 500\r\n\r\n{}", "breaks off"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "breaks off"),
        (HEAD + b"X: y\r\n" * 200 + b"\r\n", "no HTTP"),
        (b"HTTP/1.1 200 " + b"x" * 70_000, "no HTTP"),
    ],
)
def test_what_is_no_http_is_one_clear_error(sent: bytes, said: str) -> None:
    """Another service at that port, and an answer that breaks off, are told as what they are."""

    def talk(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(sent)

    with saying(talk) as url:
        found = ask(HERE, wanted(url))
    assert (found.stage, found.hopeless) == (Stage.ANSWER, False)
    assert said in found.said


@settings(max_examples=25)
@given(st.binary(max_size=200), st.booleans())
def test_whatever_is_sent_is_an_answer(sent: bytes, with_head: bool) -> None:
    """Noise on that port is not ready, and no exception."""

    def talk(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall((HEAD + b"\r\n" if with_head else b"") + sent)

    with saying(talk) as url:
        assert not ask(HERE, wanted(url), timeout_s=2).ready


def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says of proxies is for other requests."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    with serving(answers()) as url:
        assert ask(HERE, wanted(url)).ready


def test_no_thread_is_left_behind() -> None:
    """A thousand looks at a server leave nothing that waits."""
    before = threading.active_count()
    with serving(answers()) as url:
        ask(HERE, wanted(url))
    deadline_s = time.monotonic() + 2
    while threading.active_count() > before and time.monotonic() < deadline_s:
        threading.Event().wait(0.01)
    assert threading.active_count() == before


def test_the_waits_grow_to_a_quarter_of_a_minute() -> None:
    """A load takes minutes: looks become rare, and never rarer than every 15 s."""
    assert list(itertools.islice(readiness.waits(), 9)) == [0.25, 0.5, 1, 2, 4, 8, 15, 15, 15]


VLLM_METRICS = b"""# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="q"} 3.0
vllm:num_requests_running{engine="1"} 1.0
vllm:num_requests_waiting{engine="0"} 2.0
"""


@pytest.mark.parametrize(
    ("path", "content", "found"),
    [
        (
            "/metrics",
            VLLM_METRICS,
            InFlight(4, 2, "metrics of vLLM"),
        ),
        (
            "/metrics", b"sglang:num_running_reqs 7\nsglang:num_queue_reqs 0\n", InFlight(7, 0, "metrics of SGLang"),
        ),
        ("/metrics", b"llamacpp:requests_processing 1\n", InFlight(1, None, "metrics of llama.cpp")),
        ("/slots", [{"is_processing": True}, {"is_processing": False}], InFlight(1, None, "slots of llama.cpp")),
    ],
)  # fmt: skip
def test_requests_in_flight(path: str, content: object, found: InFlight) -> None:
    """How many requests a stop would break off is read from each engine's own figures."""
    with serving({path: lambda _request: (200, content)}) as url:
        assert in_flight(HERE, wanted(url)) == found


def test_requests_that_cannot_be_counted_are_not_none() -> None:
    """Where neither metrics nor slots say it, the number is unknown, with the reason."""
    with serving({"/metrics": lambda _request: (200, b"go_goroutines 5\n"), "/slots": lambda _r: (501, {})}) as url:
        found = in_flight(HERE, wanted(url))
    assert (found.running, found.waiting) == (None, None)
    assert found.problem == (
        "/metrics: answers 200, and no number of requests; /slots: answers 501, and no number of requests"
    )


# --- proof -------------------------------------------------------------------------------------------------


class Slots:
    """A server that answers no prompt of full length before all slots have one, and says how long each was."""

    def __init__(self, slots: int, counted: Callable[[Any], int | None] = len, *, words_only: bool = False) -> None:
        self.together = threading.Barrier(slots)
        self.counted = counted
        self.words_only = words_only
        self.prompts: list[Any] = []

    def __call__(self, request: Request) -> tuple[int, Any]:
        """Answer a completion."""
        prompt = request.json["prompt"]
        if self.words_only and not isinstance(prompt, str):
            return 400, {"error": "prompt must be a string"}
        if len(prompt) > 8:
            self.prompts.append(prompt)
            self.together.wait(5)
        usage = {"prompt_tokens": self.counted(prompt), "completion_tokens": 1}
        return 200, {**COMPLETED, "usage": usage}


def test_every_slot_has_a_full_prompt_at_once() -> None:
    """As many prompts as slots, of the declared length, all under way at the same time, each another one."""
    slots = Slots(4)
    with serving(answers(completions=slots)) as url:
        found = prove(HERE, wanted(url), Proof(2000, 4, 10))
    assert (found.ok, found.answered, found.asked, found.prompt_tokens, found.problems) == (True, 4, 4, 2000, ())
    assert [len(each) for each in slots.prompts] == [2000] * 4
    assert len({tuple(each[:16]) for each in slots.prompts}) == 4


def test_a_server_that_takes_no_token_numbers_gets_words() -> None:
    """Then the length is what the server counts."""
    slots = Slots(2, lambda prompt: len(prompt.split()), words_only=True)
    with serving(answers(completions=slots)) as url:
        found = prove(HERE, wanted(url), Proof(500, 2, 10))
    assert (found.ok, found.prompt_tokens) == (True, 501)


def test_a_prompt_that_was_cut_proves_nothing() -> None:
    """A server that takes only the end of a long prompt has not shown that a long one fits."""
    with serving(answers(completions=Slots(2, lambda prompt: min(len(prompt), 512)))) as url:
        found = prove(HERE, wanted(url), Proof(2000, 2, 10))
    assert not found.ok
    assert found.problems == ("the server counted 512 tokens of a prompt of 2000: it was cut",)


def test_a_length_that_nobody_counted_is_not_proved() -> None:
    """Without the server's own count it is not known what was proved, and it is not called ok."""
    with serving(answers(completions=Slots(1, lambda _prompt: None))) as url:
        found = prove(HERE, wanted(url), Proof(2000, 1, 10))
    assert (found.ok, found.answered, found.prompt_tokens) == (False, 1, None)
    assert "not proved" in found.problems[0]


def test_one_slot_that_fails_fails_the_proof() -> None:
    """What the server says of it is told; the others' answers count as what they are."""

    def one_fails(request: Request) -> tuple[int, Any]:
        prompt = request.json["prompt"]
        if len(prompt) > 8 and prompt[0] == readiness.tokens(1, 1)[0]:
            return 500, {"error": "CUDA out of memory"}
        return 200, {**COMPLETED, "usage": {"prompt_tokens": len(prompt)}}

    with serving(answers(completions=one_fails)) as url:
        found = prove(HERE, wanted(url), Proof(2000, 3, 10))
    assert (found.ok, found.answered) == (False, 2)
    assert "CUDA out of memory" in found.problems[0]


def test_a_proof_has_an_end() -> None:
    """A server that dies of it without a word is not waited for beyond the declared time."""
    with saying(say_nothing) as url:
        proof = wanted(url, request_timeout_s=0.1)
        began_s = time.monotonic()
        found = prove(HERE, proof, Proof(2000, 2, 0.3))
    assert time.monotonic() - began_s < 3
    assert (found.ok, found.answered) == (False, 0)


def test_the_request_carries_what_the_url_says() -> None:
    """A path of its own and a query are kept; the completions are asked beside the list."""
    asked: list[Request] = []
    served: Answers = {
        "/llm/v1/models?x=1": lambda _request: (200, MODELS),
        "/llm/v1/completions": lambda _request: (200, COMPLETED),
    }
    with serving(served, asked) as url:
        found = ask(HERE, dataclasses.replace(wanted(url), url=f"{url}/llm/v1/models?x=1"))
    assert found.ready, found


def test_a_whole_answer_is_given_back() -> None:
    """What the server sent is what there is: status, type, and body."""
    with serving({"/x": lambda _request: (200, {"a": 1})}) as url:
        found = http.request(f"{url}/x", 5)
    assert (found.status, found.content_type, found.json()) == (200, "application/json", {"a": 1})
