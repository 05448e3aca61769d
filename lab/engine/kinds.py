"""The model servers that can be stood in for: their processes' names, their ports, and what they answer. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

State = Literal["loading", "ready", "failed", "stuck"]


@dataclass(frozen=True)
class Status:
    """What a model server would say of itself if it were honest."""

    state: State
    model: str


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; the body is text, or a document."""

    status: HTTPStatus
    body: str | dict[str, Any] = ""


Answers = Callable[[Status, str, Mapping[str, Any]], Answer | None]
"""From status, path and the request's document to the answer; None: none will ever come."""


@dataclass(frozen=True)
class Kind:
    """One model server.

    `driver_class` is how the driver books its memory in use. `worker`: the title of the process that holds the
    memory, empty where the server itself does. `listens_at_once`: before the model is loaded.
    """

    name: str
    port: int
    driver_class: Literal["plain", "vmm"]
    worker: str
    listens_at_once: bool
    answers: Answers = field(repr=False)

    @property
    def comms(self) -> tuple[str, ...]:
        """What the kernel calls its processes: at most 15 characters."""
        return tuple(name[:15] for name in (self.name, self.worker) if name)


def completion(status: Status, asked: Mapping[str, Any]) -> Answer:
    """A short answer to a prompt: a list of tokens, or a text, of which each word is one."""
    choice = {"index": 0, "text": " and so on", "logprobs": None, "finish_reason": "length"}
    prompt = asked.get("prompt", "")
    tokens = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
    usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
    document = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": status.model, "choices": [choice]}
    return Answer(HTTPStatus.OK, {**document, "usage": usage})


def models(status: Status, owner: str, **more: object) -> Answer:
    """The list of models, which has one."""
    card = {"id": status.model, "object": "model", "created": 0, "owned_by": owner, **more}
    return Answer(HTTPStatus.OK, {"object": "list", "data": [card]})


def openai_error(status: HTTPStatus, message: str, kind: str, param: str | None = None) -> Answer:
    """An error as the servers written in Python tell it."""
    return Answer(status, {"error": {"message": message, "type": kind, "param": param, "code": status.value}})


def llama_error(status: HTTPStatus, message: str, kind: str) -> Answer:
    """An error as llama.cpp tells it."""
    return Answer(status, {"error": {"code": status.value, "message": message, "type": kind}})


def python_server(status: Status, path: str, document: Mapping[str, Any], owner: str) -> Answer | None:
    """What vLLM and SGLang have in common; `/health` is their own."""
    if path == "/v1/models":
        return models(status, owner, root=status.model, parent=None, max_model_len=8192)
    if path != "/v1/completions":
        return openai_error(HTTPStatus.NOT_FOUND, "Not Found", "NotFoundError")
    if status.state == "stuck":
        return None
    if status.state == "failed":
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        return openai_error(HTTPStatus.INTERNAL_SERVER_ERROR, message, "InternalServerError")
    asked = document.get("model", status.model)
    if asked != status.model:
        message = f"The model `{asked}` does not exist."
        return openai_error(HTTPStatus.NOT_FOUND, message, "NotFoundError", "model")
    return completion(status, document)


def vllm(status: Status, path: str, document: Mapping[str, Any]) -> Answer | None:
    """As vLLM: healthy is a server whose engine process has not died, also when that is stuck and answers nothing."""
    if path == "/health":
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE if status.state == "failed" else HTTPStatus.OK)
    return python_server(status, path, document, "vllm")


def sglang(status: Status, path: str, document: Mapping[str, Any]) -> Answer | None:
    """As SGLang: it asks its scheduler for a token, and was seen to report 200 for an hour after that had died."""
    if path in ("/health", "/health_generate"):
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE if status.state == "loading" else HTTPStatus.OK)
    return python_server(status, path, document, "sglang")


def llama_server(status: Status, path: str, document: Mapping[str, Any]) -> Answer | None:
    """As llama.cpp: 503 while it loads, but its model is in the list; healthy after a start that failed.

    It has one model, and does not ask which is meant.
    """
    if path == "/v1/models":
        return models(status, "llamacpp", meta=None if status.state == "loading" else {"n_ctx_train": 8192})
    if status.state == "loading":
        return llama_error(HTTPStatus.SERVICE_UNAVAILABLE, "Loading model", "unavailable_error")
    if path == "/health":
        return Answer(HTTPStatus.OK, {"status": "ok"})
    if path != "/v1/completions":
        return llama_error(HTTPStatus.NOT_FOUND, "File Not Found", "not_found_error")
    if status.state == "failed":
        return llama_error(HTTPStatus.INTERNAL_SERVER_ERROR, "failed to process the prompt", "server_error")
    return None if status.state == "stuck" else completion(status, document)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("vllm", 8000, "vmm", "VLLM::EngineCore", listens_at_once=False, answers=vllm),
        Kind("sglang", 30000, "vmm", "sglang::scheduler", listens_at_once=False, answers=sglang),
        Kind("llama-server", 8080, "plain", "", listens_at_once=True, answers=llama_server),
    )
}


def body_bytes(answer: Answer) -> tuple[bytes, str]:
    """Return an answer's body and its content type."""
    if isinstance(answer.body, str):
        return answer.body.encode(), "text/plain; charset=utf-8"
    return json.dumps(answer.body).encode(), "application/json"
