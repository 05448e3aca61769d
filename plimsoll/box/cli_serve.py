"""`plimsoll serve`: start and stop models so that `stop && start` is always safe, and say what became of them."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN, UsageError
from plimsoll.box.host import Host

if TYPE_CHECKING:
    from plimsoll.box.serve.acting import Act

DEFAULT_ADJ = -500
"""After all that people run (0 to 300), and before sshd and the guard (-1000)."""
_MAX_DIGITS = 10
"""Of a process's number; a model may be called by one that is longer."""
_PACKAGE = "plimsoll.box.serve"


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    start = _of_model(verbs, "start", "admit it, start it, and wait until it truly answers; else its fallback")
    start.add_argument("--prove", action="store_true", help="then send what real use sends, before it counts as ready")
    _of_model(verbs, "stop", "end it, and wait until its memory is back")
    _of_model(verbs, "restart", "stop, then start")
    _of_model(verbs, "check", "say whether it may start now, and change nothing")
    _of_model(verbs, "attend", "wait for its end; for its unit")
    switch = verbs.add_parser("switch", help="stop one model and start another")
    switch.add_argument("old", help="the model that runs")
    switch.add_argument("name", help="the one that takes its place")
    status = verbs.add_parser("status", help="all models: what they are, what they take, how they last ended")
    status.add_argument("name", nargs="?", help="only this one")
    status.add_argument("--json", action="store_true", help="print the document plimsoll.serve/1")
    protect = verbs.add_parser("protect", help="set the oom_score_adj of what runs already")
    protect.add_argument("target", help="a model's name, or a process's number")
    protect.add_argument("--adj", type=int, default=DEFAULT_ADJ, help=f"the score, {DEFAULT_ADJ} without it")
    protect.add_argument("--force", action="store_true", help="allow -1000")
    run = verbs.add_parser("run", help="run a long job outside of this login")
    run.add_argument("name", help="what the job is called; its unit is job-NAME.service")
    run.add_argument("--user", help="as whom; without it as who called sudo")
    # the rest as it is: a command may have a -- of its own
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="and its arguments")
    _of_model(verbs, "peak", "the most that it has taken, by every measure, and what each does not see")


def _of_model(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", verb: str, what: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(verb, help=what, description=what)
    parser.add_argument("name", help="the model: a file NAME.toml in /etc/plimsoll/models.d")
    return parser


def serve(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Do what the verb says: 0, 2 where a model did not become ready or is not gone, 3, 4, 75 refused now."""
    return _VERBS[arguments.verb](arguments, host)


def say(text: str) -> None:
    """Tell a person how far it is; that nobody listens any more stops nothing."""
    with suppress(OSError):
        print(f"plimsoll: {text}", file=sys.stderr, flush=True)


# --- verbs that act ---------------------------------------------------------------------------------


def _start(arguments: argparse.Namespace, host: Host) -> int:
    with _acting(host, f"start {arguments.name}") as act:
        return _started(act, arguments.name, prove=arguments.prove)


def _started(act: "Act", name: str, *, prove: bool = False) -> int:
    return int(_module("starting").start(act, _model(act, name), prove=prove))


def _stop(arguments: argparse.Namespace, host: Host) -> int:
    with _acting(host, f"stop {arguments.name}", ending=arguments.name) as act:
        return _stopped(act, arguments.name)


def _stopped(act: "Act", name: str) -> int:
    return int(_module("stopping").stop(act, _model(act, name)))


def _restart(arguments: argparse.Namespace, host: Host) -> int:
    with _acting(host, f"restart {arguments.name}", ending=arguments.name) as act:
        return _stopped(act, arguments.name) or _started(act, arguments.name)


def _switch(arguments: argparse.Namespace, host: Host) -> int:
    if arguments.old == arguments.name:
        raise UsageError(f"serve switch: {arguments.name} is the same model; plimsoll serve restart {arguments.name}")
    with _acting(host, f"switch {arguments.old} {arguments.name}", ending=arguments.old) as act:
        _module("checking").check_instead(act, _model(act, arguments.name), _model(act, arguments.old))
        return _stopped(act, arguments.old) or _started(act, arguments.name)


def _check(arguments: argparse.Namespace, host: Host) -> int:
    with _acting(host, f"check {arguments.name}", repairs=False) as act:
        granted = _module("checking").check(act, _model(act, arguments.name))
        needed, admitted = granted.needed, granted.admitted
        for note in granted.notes:
            act.say(note)
        print(f"{arguments.name} may start: {needed.basis}; {_module('records').gib(admitted.left_kib)} stay available")
    return GOOD


def _attend(arguments: argparse.Namespace, host: Host) -> int:
    _need_root()
    return int(_module("attending").attend(host, arguments.name, say))


def _run(arguments: argparse.Namespace, host: Host) -> int:
    _need_root()
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    unit = _module("jobs").run(host, arguments.name, words, arguments.user)
    print(f"{unit} runs; its output: journalctl -f -u {unit}; its end: systemctl stop {unit}")
    return GOOD


def _protect(arguments: argparse.Namespace, host: Host) -> int:
    scores = _module("scores")
    adj = scores.checked(arguments.adj, force=arguments.force)
    pids = _pids(host, arguments.target)
    before = {pid: scores.current(host, pid) for pid in pids}
    problems = [problem for pid in pids if (problem := scores.put(host, pid, adj))]
    for problem in problems:
        say(problem)
    for pid in pids:
        print(f"pid {pid}: oom_score_adj {before[pid]} -> {scores.current(host, pid)}")
    return DRIFT if problems else GOOD


def _pids(host: Host, target: str) -> Sequence[int]:
    if target.isascii() and target.isdigit() and len(target) <= _MAX_DIGITS:
        if _module("scores").current(host, int(target)) is None:
            raise UsageError(f"serve protect: there is no process {target}")
        return [int(target)]
    seen = _module("launch").launcher(host, _module("config").load(host, target)).look()
    if not seen.pids:
        raise UsageError(f"serve protect: {target} does not run: {seen.said}")
    return list(seen.pids)


# --- verbs that only look ---------------------------------------------------------------------------


def _status(arguments: argparse.Namespace, host: Host) -> int:
    overview = _module("overview")
    found = overview.document(host, arguments.name)
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(overview.lines(found)))
    unknown = found["problems"] or any(each["problem"] for each in found["models"])
    return UNKNOWN if unknown else GOOD


def _peak(arguments: argparse.Namespace, host: Host) -> int:
    found = _module("peaking").look(host, _module("config").load(host, arguments.name))
    print("\n".join(found.lines))
    return UNKNOWN if found.nothing else GOOD


# --- what they have in common -----------------------------------------------------------------------


def _module(name: str) -> Any:  # noqa: ANN401  # by name, because nothing of a zipapp is kept compiled
    return import_module(f"{_PACKAGE}.{name}")


def _model(act: "Act", name: str) -> Any:  # noqa: ANN401  # a Model; what reads it is imported when it is needed
    return _module("config").load(act.host, name)


@contextmanager
def _acting(host: Host, words: str, *, ending: str = "", repairs: bool = True) -> Iterator["Act"]:
    """Hold the lock, and repair what was cut off before; a login that ends meanwhile ends nothing.

    The words are the verb and the models that it is for; a file that is faulty is found before anything is done.
    """
    _need_root()
    names = words.split()[1:]
    for name in names:
        _module("config").load(host, name)
    with _signals(), _module("locking").exclusively(host, f"plimsoll serve {words}") as actor:
        act = _module("acting").Act(host, actor, say)
        if repairs:
            repairing = _module("repairing")
            repairing.repair(act, repairing.Asked(frozenset(names), frozenset({ending} - {""})))
        yield act


@contextmanager
def _signals() -> Iterator[None]:
    """Take SIGTERM for an interruption, which cleans up, and go on without a terminal."""
    chosen: dict[signal.Signals, Callable[[int, FrameType | None], Any] | signal.Handlers] = {
        signal.SIGTERM: _interrupt,
        # what a shell has started in its background ignores it
        signal.SIGINT: _interrupt,
        signal.SIGHUP: signal.SIG_IGN,
    }
    before = {number: signal.signal(number, handler) for number, handler in chosen.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _need_root() -> None:
    if os.geteuid() != 0:
        raise UsageError(
            "this needs root: use sudo, which asks nobody for a password where its rule for plimsoll serve is deployed"
        )


_VERBS: dict[str, Callable[[argparse.Namespace, Host], int]] = {
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "switch": _switch,
    "check": _check,
    "attend": _attend,
    "run": _run,
    "protect": _protect,
    "status": _status,
    "peak": _peak,
}
