"""The programs: `vllm`, `sglang`, `llama-server`, and an ordinary one that takes the same memory.

A model is a directory with the plan (`plan.json`) and the weights, or a file in it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

from lab.engine import small, titles
from lab.engine.kinds import KINDS, Kind, State, Status, body_bytes
from lab.engine.life import Life, RefusedError
from lab.engine.memory import DriverMemory, Memory, OrdinaryMemory
from lab.engine.plan import Plan
from lab.guest.fakegb10 import memory_total_bytes

PLAN, WEIGHTS = "plan.json", "weights"
ORDINARY = "batch-job"
"""The name of the ordinary program."""
MODEL_OPTIONS = ("-m", "--model", "--model-path")


@dataclass(frozen=True)
class Call:
    """What a command line asks for; of the hundreds of options only these two matter here."""

    model: Path
    port: int

    @property
    def directory(self) -> Path:
        """Where the model lies."""
        return self.model if self.model.is_dir() else self.model.parent


def parse(words: Sequence[str], default_port: int) -> Call:
    """Read a command line as the real servers have it. Raises ValueError when it names no model."""
    model, port = None, default_port
    rest = list(words[1:] if words[:1] == ["serve"] else words)
    while rest:
        word = rest.pop(0)
        if word in MODEL_OPTIONS and rest:
            model = rest.pop(0)
        elif word == "--port" and rest:
            port = int(rest.pop(0))
        elif not word.startswith("-") and model is None:
            model = word
    if model is None:
        raise ValueError("no model: name the directory that holds plan.json")
    return Call(Path(model), port)


# --- the process that holds the memory --------------------------------------------------------------


def at_sigterm(act: Callable[[], object]) -> None:
    """Do it at the first SIGTERM, in a thread of its own, whatever the others do then.

    A handler would run in the main thread, which learns of a signal only from a call that is interrupted: one that
    comes just before the call is seen after it, and these calls wait for ever. Comes before every other thread.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def wait() -> None:
        signal.sigwait([signal.SIGTERM])
        act()

    threading.Thread(target=wait, daemon=True).start()


def end_when_asked(ends_after_s: float | None) -> None:
    """End so long after SIGTERM, in the middle of whatever is done then; None: never."""
    if ends_after_s is None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return
    delay_s = ends_after_s

    def end() -> None:
        time.sleep(delay_s)
        os._exit(0)

    at_sigterm(end)


def memory_of(plan: Plan) -> Memory:
    """The memory that a plan takes."""
    return DriverMemory(KINDS[plan.engine].driver_class) if plan.memory == "driver" else OrdinaryMemory()


def live(plan: Plan, directory: Path, tell: Callable[[State], None]) -> NoReturn:
    """Live by the plan until somebody ends this process."""
    total_bytes = memory_total_bytes(Path("/proc/meminfo").read_text())
    weights = directory / WEIGHTS
    # unbuffered: the page cache is what is to be filled, not this process
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(weights.open("rb", buffering=0)) if weights.exists() else None
        Life(plan, memory_of(plan), file, total_bytes, tell).run()
        while True:
            signal.pause()


def read_plan(directory: Path) -> Plan:
    """The plan of a model. Raises ValueError or OSError."""
    return Plan.from_json((directory / PLAN).read_text())


# --- the process that answers -----------------------------------------------------------------------


class Server:
    """The HTTP side of one model server."""

    def __init__(self, kind: Kind, call: Call) -> None:
        self._kind = kind
        self._port = call.port
        self._status = Status("loading", str(call.model))
        self._listening = False

    def become(self, state: State) -> None:
        """Take note of a state; the port opens when the real server's would."""
        self._status = replace(self._status, state=state)
        if not self._listening and (self._kind.listens_at_once or state != "loading"):
            self._listening = True
            server = ThreadingHTTPServer(("", self._port), self._handler())
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """Answers by the state of the outer server."""

            def do_GET(self) -> None:
                """Answer a question."""
                self._reply({})

            def do_POST(self) -> None:
                """Answer a request that has a document."""
                size = int(self.headers.get("Content-Length") or 0)
                try:
                    document = json.loads(self.rfile.read(size) or b"{}")
                except ValueError:
                    document = {}
                self._reply(document if isinstance(document, dict) else {})

            def _reply(self, document: dict[str, Any]) -> None:
                answer = outer._kind.answers(outer._status, self.path, document)
                if answer is None:
                    # as a real one that is stuck: the connection stays open
                    threading.Event().wait()
                    return
                body, content_type = body_bytes(answer)
                self.send_response(answer.status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class calls it so
                """Print nothing: a real one's access log is no part of this."""

        return Handler


# --- how they start ---------------------------------------------------------------------------------


def program() -> str:
    """The file that this code runs from: what Python is given to start it again."""
    return os.environ.get(titles.PROGRAM) or str(Path(__file__).parents[2])


def serve(name: str, words: Sequence[str]) -> NoReturn:
    """Run the model server `name` with these arguments; never returns."""
    kind = KINDS[name]
    try:
        call = parse(words, kind.port)
        plan = read_plan(call.directory)
    except (OSError, ValueError) as error:
        sys.exit(f"{name}: {error}")
    if kind.worker:
        answer_for_worker(kind, call, plan)
    titles.become(program(), [name, *words], {"role": "whole", "kind": name, "words": list(words)})


def serve_small(engine: str, name: str, words: Sequence[str]) -> NoReturn:
    """Run the model server `name` as the small processes of the program `engine`; never returns."""
    try:
        call = parse(words, KINDS[name].port)
        total_bytes = memory_total_bytes(Path("/proc/meminfo").read_text())
        plan = small.plan_text(read_plan(call.directory), KINDS[name], total_bytes, str(call.directory / WEIGHTS))
    except (OSError, ValueError) as error:
        sys.exit(f"{name}: {error}")
    os.execve(engine, [name, *words], {**os.environ, small.VARIABLE: plan})


def run_whole(kind: Kind, words: Sequence[str]) -> NoReturn:
    """One process that answers and holds the memory."""
    titles.take([kind.name, *words], kind.name)
    call = parse(words, kind.port)
    plan = read_plan(call.directory)
    end_when_asked(plan.ends_after_s)
    server = Server(kind, call)
    server.become("loading")
    end_by_plan(plan, call.directory, server.become)


def run_worker(kind: Kind, directory: Path, descriptor: int) -> NoReturn:
    """The process that holds the memory for another, which it tells its states."""
    titles.die_with_parent()
    titles.take([kind.worker], kind.worker)
    plan = read_plan(directory)
    end_when_asked(plan.ends_after_s)
    with os.fdopen(descriptor, "w") as pipe:

        def tell(state: State) -> None:
            pipe.write(f"{state}\n")
            pipe.flush()

        end_by_plan(plan, directory, tell)


def end_by_plan(plan: Plan, directory: Path, tell: Callable[[State], None]) -> NoReturn:
    """Live by the plan; a driver that refuses ends the process where the plan says so."""
    try:
        live(plan, directory, tell)
    except RefusedError:
        sys.exit(1)


def answer_for_worker(kind: Kind, call: Call, plan: Plan) -> NoReturn:
    """Answer requests for a process of its own that holds the memory, and end when that does."""
    reading, writing = os.pipe()
    role = {"role": "worker", "kind": kind.name, "directory": str(call.directory), "pipe": writing}
    argv = titles.command(program(), [kind.worker])
    worker = subprocess.Popen(argv, env=titles.environment(program(), role), pass_fds=[writing])
    os.close(writing)
    ending = threading.Event()

    def pass_on() -> None:
        ending.set()
        worker.send_signal(signal.SIGTERM)

    if plan.ends_after_s is None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        at_sigterm(pass_on)
    server = Server(kind, call)
    for state in states(reading):
        server.become(state)
    status = worker.wait()
    if not ending.is_set():
        print(f"{kind.worker} has ended with {status}", file=sys.stderr, flush=True)
    sys.exit(0 if ending.is_set() else 1)


def states(descriptor: int) -> Iterator[State]:
    """Each state that the worker tells, until it has ended."""
    with os.fdopen(descriptor) as pipe:
        for line in pipe:
            state: State = line.strip()  # type: ignore[assignment]  # what run_worker writes
            yield state


def run_ordinary(words: Sequence[str]) -> NoReturn:
    """An ordinary program: no requests, no other name."""
    try:
        directory = parse(words, 0).directory
        plan = read_plan(directory)
    except (OSError, ValueError) as error:
        sys.exit(f"{ORDINARY}: {error}")
    end_when_asked(plan.ends_after_s)
    live(plan, directory, lambda _state: None)


def main() -> NoReturn:
    """Go on in the role that the process before this one has chosen."""
    role = json.loads(os.environ[titles.ROLE])
    kind = KINDS[role["kind"]]
    if role["role"] == "worker":
        run_worker(kind, Path(role["directory"]), role["pipe"])
    run_whole(kind, role["words"])
