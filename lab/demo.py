"""`make try`: hardens a real Debian machine over SSH, in the lab, exactly as a real box would be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lab.errors import LabError
from lab.machine import Machine
from lab.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
NAME = "gx10"
USER = "admin"
EXIT_INTERRUPTED = 130

_NEXT = f"""
That was a virtual machine. It still runs; look around in it, and end it:
    .venv/bin/python -m lab ssh
    .venv/bin/python -m lab ssh-config >.lab/ssh_config
    PLIMSOLL_INVENTORY=lab/hosts.yml .venv/bin/plimsoll audit {NAME} -F .lab/ssh_config
    .venv/bin/python -m lab down
For a real box that `ssh {NAME}` reaches, see first what would change, then change it:
    .venv/bin/pyinfra {NAME} deploy.py --dry --diff
    .venv/bin/pyinfra {NAME} deploy.py"""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a pyinfra that knows the lab's machine and not the user's own hosts."""
    kept = {key: value for key, value in os.environ.items() if key != "SSH_AUTH_SOCK"}
    return {**kept, "HOME": str(home), "PLIMSOLL_INVENTORY": str(ROOT / "lab" / "hosts.yml")}


def up() -> None:
    """Start the machine as `python -m lab up` does. Raises LabError, whose cause that command has told."""
    done = subprocess.run([sys.executable, "-m", "lab", "up", "--name", NAME], cwd=ROOT, check=False)
    if done.returncode:
        raise LabError(f"the lab's machine did not start (exit code {done.returncode})")


def deploy(home: Path) -> int:
    """Run pyinfra as a user would and return its exit code."""
    pyinfra = Path(sys.executable).with_name("pyinfra")
    return subprocess.run([pyinfra, "-y", NAME, "deploy.py"], cwd=ROOT, env=environment(home), check=False).returncode


def main() -> int:
    """Start the machine, harden it, and say what to type next; the exit code is that of what failed."""
    progress = Progress()
    try:
        up()
        progress.say(f"hardening {NAME} over SSH as {USER}: pyinfra -y {NAME} deploy.py")
        code = deploy(Machine.attach(NAME).write_home(USER))
        progress.say("hardened and verified" if code == 0 else f"pyinfra failed with exit code {code}")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if code == 0:
        print(_NEXT)
    return code


if __name__ == "__main__":
    sys.exit(main())
