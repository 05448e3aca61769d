"""A box for `plimsoll serve`: files below a root, real processes, and a systemd that is two short shell scripts.

Its units are real processes with real ends, started outside of the test's own group, and a supervisor that notes how
they ended. What is fake of it is only the manager.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from plimsoll.box.host import Host
from plimsoll.box.serve.acting import Act
from plimsoll.box.serve.locking import myself

GIB = 1 << 20
DEADLINE_S = 120
"""Of every model: no test waits for it."""
MEMINFO = """\
MemTotal:       127533056 kB
MemFree:        {available} kB
MemAvailable:   {available} kB
Buffers:                0 kB
Cached:                 0 kB
AnonPages:              0 kB
KReclaimable:           0 kB
SReclaimable:           0 kB
SUnreclaim:             0 kB
"""
SYSTEMCTL = r"""#!/bin/sh
verb=$1; shift
for word in "$@"; do case $word in --signal=*) signal=${word#--signal=SIG} ;; esac; unit=$word; done
u=$UNITS/$unit
echo "$verb $*" >>"$UNITS/calls"
alive() { [ -e "$u.pid" ] && [ ! -e "$u.exit" ]; }
case $verb in
start)
    [ -x "$u" ] || { echo "Unit $unit not found." >&2; exit 5; }
    alive && exit 0
    rm -f "$u.pid" "$u.exit" "$u.stopped"
    setsid "$UNITS/supervise" "$u" "$u" </dev/null >/dev/null 2>&1 &
    while [ ! -e "$u.pid" ]; do sleep 0.01; done ;;
stop) touch "$u.stopped"; if alive; then kill -TERM "$(cat "$u.pid")" 2>/dev/null; fi ;;
kill) p=$(cat "$u.pid") && { kill "-$signal" -- "-$p" || kill "-$signal" "$p"; } 2>/dev/null ;;
is-active) alive ;;
reset-failed) alive || rm -f "$u.pid" "$u.exit" "$u.stopped" ;;
show)
    pid=0 active=inactive sub=dead result=success code=0 status=0
    if alive; then pid=$(cat "$u.pid") active=active sub=running
    elif [ -e "$u.exit" ]; then
        status=$(cat "$u.exit")
        if [ "$status" != 0 ] && [ ! -e "$u.stopped" ]; then
            active=failed sub=failed result=exit-code code=1
            [ "$status" -gt 128 ] && result=signal code=2 status=$((status - 128))
        fi
    fi
    load=not-found; { [ -e "$u" ] || [ -e "$u.pid" ]; } && load=loaded
    printf '%s\n' "LoadState=$load" "ActiveState=$active" "SubState=$sub" "MainPID=$pid" ControlGroup= \
        "Result=$result" "ExecMainCode=$code" "ExecMainStatus=$status" ;;
esac
"""
SYSTEMD_RUN = r"""#!/bin/sh
echo "run $*" >>"$UNITS/calls"
while [ "$1" != -- ]; do case $1 in --unit=*) unit=${1#--unit=} ;; esac; shift; done; shift
u=$UNITS/$unit
[ -e "$u.pid" ] && { echo "Unit $unit was already loaded." >&2; exit 1; }
setsid "$UNITS/supervise" "$u" "$@" </dev/null >/dev/null 2>&1 &
while [ ! -e "$u.pid" ]; do sleep 0.01; done
"""
SUPERVISE = r"""#!/bin/sh
u=$1; shift
setsid "$@" &
echo $! >"$u.new" && mv "$u.new" "$u.pid"
wait $!
echo $? >"$u.exit"
"""
NOTHING = "#!/bin/sh\nexit 0\n"


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Box:
    """The box; `said` is what the acts have told."""

    root: Path
    host: Host
    said: list[str] = field(default_factory=list)

    @property
    def units(self) -> Path:
        """Where the manager keeps its units: a script of a unit's name is its program."""
        return self.root / "units"

    @property
    def act(self) -> Act:
        """Somebody who acts."""
        return Act(self.host, myself("a test"), self.said.append)

    def available(self, gib: float) -> None:
        """Have so much memory available."""
        self.write("/proc/meminfo", MEMINFO.format(available=round(gib * GIB)))

    def write(self, path: str, text: str) -> None:
        """Write a file, whole or not at all."""
        real = self.root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        new = real.with_name(f"{real.name}.new")
        new.write_text(text)
        new.rename(real)

    def unit(self, name: str, script: str = "exec sleep 60") -> None:
        """Make a unit of a shell script."""
        _executable(self.units / name, f"#!/bin/sh\n{script}\n")

    def declare(self, name: str, port: int, **sections: dict[str, Any]) -> None:
        """Write a model's file: a unit NAME.service that needs 10 GiB, ready on a port, unless sections say more."""
        url = f"http://127.0.0.1:{port}/v1/models"
        found: dict[str, dict[str, Any]] = {
            "run": {"unit": f"{name}.service"},
            "need": {"gib": 10, "weights": ["/weights"]},
            "ready": {"url": url, "model_id": name, "deadline_s": DEADLINE_S, "request_timeout_s": 5},
            "stop": {"grace_s": 2, "reclaim_timeout_s": 5},
        }
        for section, values in sections.items():
            found[section] = found.get(section, {}) | values if section != "run" else values
        text = "".join(
            f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            for section, values in found.items()
        )
        self.write(f"/etc/plimsoll/models.d/{name}.toml", text)

    def calls(self) -> str:
        """What the manager was asked."""
        path = self.units / "calls"
        return path.read_text() if path.exists() else ""

    def pid(self, unit: str) -> int:
        """The main process of a unit."""
        return int((self.units / f"{unit}.pid").read_text())

    def end_all(self) -> None:
        """Kill whatever a unit has left."""
        for path in self.units.glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.killpg(int(path.read_text()), signal.SIGKILL)


@contextmanager
def box(root: Path, available_gib: float = 110) -> Iterator[Box]:
    """Make a box with so much memory available, and end what it has left."""
    for directory in ("bin", "units", "etc/plimsoll/models.d", "proc/sys/vm", "proc/net", "run", "weights"):
        (root / directory).mkdir(parents=True)
    for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN), ("journalctl", NOTHING)):
        _executable(root / "bin" / name, text)
    _executable(root / "units" / "supervise", SUPERVISE)
    (root / "weights" / "model.safetensors").write_bytes(b"\0" * 4096)
    environment = {"PATH": f"{root}/bin:/usr/bin:/bin", "UNITS": f"{root}/units", "LC_ALL": "C"}
    made = Box(root, Host(str(root), environment))
    made.write("/proc/sys/kernel/random/boot_id", "b0071d\n")
    made.write("/proc/net/tcp", "  sl  local_address rem_address   st\n")
    made.write("/proc/buddyinfo", "Node 0, zone   Normal " + "100 " * 10 + "20000\n")
    made.available(available_gib)
    try:
        yield made
    finally:
        made.end_all()


class Server(ThreadingHTTPServer):
    """A model server's HTTP side, in a thread: what it serves can be changed at any time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: list[str] = []
        """Empty: still loading."""
        self.asked = threading.Event()
        self.completes = True
        self.prompt_tokens = 4

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.set()
        if not self.server.models:
            self._answer(503, {"error": "loading"})
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": each} for each in self.server.models]})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.completes:
            self._answer(500, {"error": "EngineCore encountered an issue"})
            return
        choices = [{"index": 0, "text": " x", "finish_reason": "length"}]
        self._answer(
            200, {"choices": choices, "usage": {"prompt_tokens": self.server.prompt_tokens, "completion_tokens": 1}}
        )

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class calls it so
        """Print nothing."""


@contextmanager
def serving(*models: str) -> Iterator[Server]:
    """Have a server that names these models; none: it is loading."""
    server = Server()
    server.models = list(models)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
