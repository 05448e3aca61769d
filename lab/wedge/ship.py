"""What the bench brings into a machine: the stand-in model server, the recorder, a model, and sshd's patience."""

import io
import shlex
import zipfile
from pathlib import Path

from lab import fakegb10
from lab.engine.main import ORDINARY, PLAN, WEIGHTS
from lab.engine.plan import Plan
from lab.image import GUEST
from lab.machine import Machine
from lab.progress import Progress
from lab.wedge.scenarios import Scenario

LAB = Path(__file__).resolve().parents[1]
ARCHIVE = f"{fakegb10.IN_GUEST}/engine.pyz"
RECORDER = f"{fakegb10.IN_GUEST}/recorder.py"
MODELS = f"{fakegb10.IN_GUEST}/models"
COMMANDS = "/usr/local/bin"
START = """\
#!/usr/bin/python3
import sys
sys.path.insert(0, "{archive}")
from lab.engine import main
{call}
"""
SESSION = f"{fakegb10.IN_GUEST}/session.sh"
SSHD = """\
MaxStartups 1000
PerSourcePenalties no
"""
"""Otherwise sshd turns the bench itself away: logins that hang and are given up look to it like an attack."""
SSHD_FILE = "/etc/ssh/sshd_config.d/00-bench.conf"


def archive() -> bytes:
    """The stand-in as one file that Python runs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("__main__.py", "from lab.engine import main\nmain.main()\n")
        made.writestr("lab/__init__.py", "")
        made.writestr("lab/guest/__init__.py", "")
        made.write(GUEST / "fakegb10.py", "lab/guest/fakegb10.py")
        for file in sorted((LAB / "engine").glob("*.py")):
            made.write(file, f"lab/engine/{file.name}")
    return buffer.getvalue()


def programs(*, small: bool = False) -> dict[str, str]:
    """The commands by name: scripts, as those of the real servers that are written in Python.

    `small`: they become processes of C, which take the same memory and answer no requests.
    """
    call = f'main.serve_small("{fakegb10.IN_GUEST}/{fakegb10.ENGINE}", ' if small else "main.serve("
    calls = {name: f'{call}"{name}", sys.argv[1:])' for name in ("vllm", "sglang", "llama-server")}
    calls[ORDINARY] = "main.run_ordinary(sys.argv[1:])"
    return {name: START.format(archive=ARCHIVE, call=call) for name, call in calls.items()}


def install(machine: Machine, progress: Progress, *, small: bool = False) -> None:
    """Bring everything that does not depend on the scenario; `small` as for `programs`. Raises LabError."""
    fakegb10.install(machine, progress)
    fakegb10.send(machine, ARCHIVE, archive(), "0644")
    fakegb10.send(machine, SESSION, (GUEST / "session.sh").read_bytes(), "0755")
    fakegb10.send(machine, RECORDER, (GUEST / "recorder.py").read_bytes(), "0644")
    for name, text in programs(small=small).items():
        fakegb10.send(machine, f"{COMMANDS}/{name}", text.encode(), "0755")
    options = [line for line in SSHD.splitlines() if machine.release != "bookworm" or "Penalties" not in line]
    machine.put(SSHD_FILE, "\n".join(options) + "\n")
    machine.succeed("systemctl restart ssh.service")


def install_model(machine: Machine, scenario: Scenario, plan: Plan, memory_bytes: int) -> str:
    """Bring the model of a scenario; returns the command line that serves it."""
    directory = f"{MODELS}/{scenario.name}"
    fakegb10.send(machine, f"{directory}/{PLAN}", plan.to_json().encode(), "0644")
    # a file of holes costs no disk, and fills the page cache all the same
    size = int(memory_bytes * plan.read_percent / 100)
    machine.succeed(f"truncate --size={size} {shlex.quote(f'{directory}/{WEIGHTS}')}")
    model = {"llama-server": ["-m", f"{directory}/{WEIGHTS}"], "sglang": ["serve", "--model-path", directory]}
    words = model.get(scenario.program, ["serve", directory])
    return shlex.join([f"{COMMANDS}/{scenario.program}", *words])


def start_session(machine: Machine) -> None:
    """Start what a desktop's session is made of: whom the OOM killer shoots before the model server."""
    # the manager would end them all for one that is shot: on a box each is a unit of its own, and dies alone
    options = "--quiet --user --machine=admin@.host --unit=desktop -p OOMPolicy=continue"
    machine.succeed(f"systemd-run {options} {SESSION}")


def start_recorder(machine: Machine) -> None:
    """Record to the console from now on, whatever happens to the machine."""
    options = "--quiet --unit=recorder --slice=lab.slice -p OOMScoreAdjust=-1000 -p MemoryMin=32M"
    machine.succeed(f"systemd-run {options} /usr/bin/python3 -I -S {RECORDER}")
