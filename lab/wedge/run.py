"""One run: a fresh machine, a defence, a workload, and logins from outside for two minutes."""

import os
import platform
import shlex
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from lab import fakegb10
from lab.errors import GuestError, LabError
from lab.machine import Machine
from lab.progress import Progress
from lab.snapshot import Spec, ensure_snapshot
from lab.wedge import defences, disk, kills, quiet, recording, ship, verdict
from lab.wedge.case import Case
from lab.wedge.places import PLACES, Place
from lab.wedge.probe import Login, Prober, Seen
from lab.wedge.results import Run
from lab.wedge.scenarios import SCENARIOS

WINDOW_S = 120.0
MEMORY_MIB = 1536
IDLE_LOGINS = 5
FIRST_LOGINS = 2
"""They bring sshd's and the shell's files into memory: 5.9 s after a restore, then 1.9 s."""
START_TIMEOUT_S = 60.0
SYNC_TIMEOUT_S = 30.0
ANSWER_S = 5.0
TOOK_SHARE = 0.2
"""Of memory; every scenario takes 30 % at least. Who took less did not run, and proves nothing."""
VERSIONS = (
    "uname -r; systemctl --version | head -n 1 | cut -d ' ' -f 2; "
    "dpkg-query --show --showformat '${Version}\\n' openssh-server; "
    "dpkg-query --show --showformat '${Version}\\n' earlyoom 2>/dev/null"
)


def spec_of(case: Case) -> Spec:
    """The machine that a case needs."""
    return Spec(memory_mib=MEMORY_MIB, containers=PLACES[case.place].needs_containers, arch=case.arch)


def machine_key(spec: Spec, progress: Progress) -> str:
    """Name a machine by its saved state, which is made if it is not there. Raises LabError."""
    snapshot = ensure_snapshot(spec, progress)
    return f"{snapshot.disk.parent.name}/{snapshot.disk.name}"


def login_command(machine: Machine) -> list[str]:
    """A fresh login that does nothing."""
    config = machine.write_home("admin") / ".ssh" / "config"
    return ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "ControlPath=none", machine.name, "true"]


def begin_login(command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a login."""
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)


def idle_time_s(machine: Machine) -> float:
    """What a login takes before anything happens: the median, without the first ones. Raises GuestError."""
    command = login_command(machine)
    logins = []
    for _ in range(FIRST_LOGINS + IDLE_LOGINS):
        prober = Prober(partial(begin_login, command), lambda _: None, time.monotonic())
        logins += prober.run(window_s=0.001)
    try:
        return verdict.idle_s(logins[FIRST_LOGINS:])
    except ValueError as error:
        raise GuestError(f"{machine.name}: {error}") from None


@dataclass(frozen=True)
class Observed:
    """What a run brings home.

    `start_s` is the workload's start by the machine's own clock, since 1970; `problem` is what it has said when it
    failed.
    """

    start_s: float
    logins: list[Login]
    load: quiet.Load
    console: str
    logs: disk.Logs
    problem: str = ""


class Starter(threading.Thread):
    """Starts the workload beside the logins: where the machine freezes meanwhile, nothing waits for it."""

    def __init__(self, machine: Machine, place: Place, command: str) -> None:
        super().__init__(daemon=True)
        self._machine = machine
        self._place = place
        self._script = place.script.format(command=command)
        self.problem = ""

    def run(self) -> None:
        """Run the place's script; what it says when it fails is the problem."""
        try:
            if self._place.by == "ssh":
                done = self._machine.ssh(self._script, "admin", START_TIMEOUT_S)
                failed, said = done.returncode != 0, done.stderr
            else:
                result = self._machine.run(self._script, START_TIMEOUT_S)
                failed, said = bool(result.rc), result.err
        except (GuestError, subprocess.TimeoutExpired):
            # frozen in between: the logins tell it
            return
        if failed:
            self.problem = f"the workload could not be started: {said.strip()}"


def run(case: Case, fingerprint: str, progress: Progress) -> Run:
    """Make one run. Raises LabError when the machine could not be brought to where it begins."""
    scenario, place = SCENARIOS[case.scenario], PLACES[case.place]
    with Machine.restore(spec_of(case), f"wedge-{os.getpid()}", progress=progress) as machine:
        # nobody asks it anything, and as a process of Python it would be the machine's largest
        ship.install(machine, progress, small=True)
        # before the defence: on a box the driver is there when it is set up
        fakegb10.load(machine, regime=case.regime)
        memory_kib = int(machine.succeed("awk '/^MemTotal/ { print $2 }' /proc/meminfo"))
        command = ship.install_model(machine, scenario, case.plan(), memory_kib * 1024)
        progress.say(f"{case}: preparing the defence")
        defences.prepare(defences.DEFENCES[case.defence], machine)
        ship.start_session(machine)
        found = versions(machine)
        ship.start_recorder(machine)
        idle_s = idle_time_s(machine)
        progress.say(f"{case}: a login to the idle machine takes {idle_s:.1f} s; starting {shlex.quote(command)}")
        observed = observe(machine, place, command, partial(tell, progress))
    made = assess(case, observed, idle_s, memory_kib)
    facts = {"memory_kib": memory_kib, "versions": found, "host": host_facts(machine)}
    return {**asdict(case), "fingerprint": fingerprint, **made, "machine": facts}


def tell(progress: Progress, login: Login) -> None:
    """Show a login that has ended."""
    what = "came back after" if login.ok else "no answer in" if login.timed_out else "cut off after"
    progress.say(f"  login begun at {login.at_s:5.1f} s: {what} {login.took_s:.1f} s")


def versions(machine: Machine) -> dict[str, str]:
    """What runs in the machine."""
    names = ("kernel", "systemd", "openssh", "earlyoom")
    return dict(zip(names, machine.run(VERSIONS).out.split("\n"), strict=False))


def host_facts(machine: Machine) -> str:
    """What the machine ran on, for people: figures of different hosts cannot be compared."""
    command = machine.boot_command
    accelerator = command[command.index("-accel") + 1].partition(",")[0]
    done = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True)
    return f"{platform.machine()}, {os.cpu_count()} cores, {done.stdout.splitlines()[0]}, {accelerator}"


def observe(machine: Machine, place: Place, command: str, seen: Seen) -> Observed:
    """Start the workload and log in for WINDOW_S; then cut the power and read console and disk."""
    starter = Starter(machine, place, command)
    ahead_s = clock_ahead_s(machine)
    before = quiet.usage(machine.qemu_pid)
    start_s, started_s = time.time() + ahead_s, time.monotonic()
    starter.start()
    logins = Prober(partial(begin_login, login_command(machine)), seen, started_s).run(WINDOW_S)
    load = quiet.between(before, quiet.usage(machine.qemu_pid))
    starter.join(ANSWER_S)
    if logins and logins[-1].ok and not starter.is_alive():
        sync(machine)
    console = machine.serial_log()
    machine.cut_power()
    logs = disk.read(machine.directory, machine.boot_command)
    return Observed(start_s, logins, load, console, logs, starter.problem)


def clock_ahead_s(machine: Machine) -> float:
    """By how much the machine's clock is ahead of this host's: it is set from here, which takes its time."""
    before_s = time.time()
    there_s = float(machine.succeed("date +%s.%N"))
    return there_s - (before_s + time.time()) / 2


def sync(machine: Machine) -> None:
    """Let a machine that answers write its logs out; one that does not loses them, as a box would."""
    try:
        machine.run("journalctl --sync; sync", SYNC_TIMEOUT_S)
    except GuestError:
        return


def assess(case: Case, observed: Observed, idle_s: float, memory_kib: int) -> Run:
    """Judge what was observed: a run's part of the schema."""
    scenario = SCENARIOS[case.scenario]
    logins = observed.logins
    recorded = recording.samples(observed.console, observed.start_s)
    killed, bystanders = killed_in(case, observed)
    return {
        "at": datetime.fromtimestamp(observed.start_s, UTC).isoformat(timespec="seconds"),
        "discarded": observed.load.complaint() or not_run(recorded, memory_kib, observed.problem),
        "survived": verdict.survived(logins),
        "idle_login_s": idle_s,
        "logins": [login._asdict() for login in logins],
        "recovery_s": verdict.recovery_s(logins, idle_s),
        "killed": [kill._asdict() for kill in killed],
        "bystanders_killed": [kill._asdict() for kill in bystanders],
        "must_live": scenario.must_live,
        "lowest_mem_free_kib": recording.lowest_free_kib(recorded),
        "load": observed.load._asdict(),
        "logs": kept(observed),
        "asked": [list(point) for point in case.plan().timeline()],
        "samples": [list(sample) for sample in recorded],
    }


def not_run(recorded: list[recording.Sample], memory_kib: int, problem: str) -> str:
    """Why the recording says nothing about the workload; empty where it does.

    `problem` is what its start has said: a machine that freezes meanwhile may make that fail as well.
    """
    before = [s.mem_free_kib for s in recorded if s.mem_free_kib is not None and s.at_s < 0]
    lowest = recording.lowest_free_kib(recorded)
    if not before or lowest is None:
        return "nothing was recorded in the machine"
    if before[-1] - lowest < TOOK_SHARE * memory_kib:
        return problem or f"the workload did not run: it took {(before[-1] - lowest) >> 10} MiB"
    return ""


def killed_in(case: Case, observed: Observed) -> tuple[list[kills.Kill], list[kills.Kill]]:
    """Everybody who was killed, and of these who should not have been."""
    scenario = SCENARIOS[case.scenario]
    logs = observed.logs
    since = [entry for entry in logs.journal or () if entry.at_s >= observed.start_s]
    kernel = [*recording.kernel_lines(observed.console), *(logs.kern_log or ())]
    is_engine = partial(kills.is_engine, comms=scenario.comms, cgroup=PLACES[case.place].cgroup)
    messages = ((entry.identifier, entry.message) for entry in since if not entry.is_kernel)
    found = kills.collected(kernel, messages, logs.guard, is_engine)
    return found, [kill for kill in found if scenario.must_live or not is_engine(kill)]


def kept(observed: Observed) -> dict[str, Any]:
    """How many of the kernel's lines on the incident each log has, and when the journal ends; None: not looked at."""
    logs = observed.logs
    journal = None if logs.journal is None else [e for e in logs.journal if e.at_s >= observed.start_s]
    last_s = max((entry.at_s for entry in journal or ()), default=None)
    return {
        "console_lines": kills.count_incidents(recording.kernel_lines(observed.console)),
        "kern_log_lines": None if logs.kern_log is None else kills.count_incidents(logs.kern_log),
        "journal_lines": None if journal is None else kills.count_incidents(e.message for e in journal if e.is_kernel),
        "journal_ends_at_s": None if last_s is None else round(last_s - observed.start_s, 1),
        "problems": list(logs.problems),
    }


def discarded(case: Case, fingerprint: str, why: LabError) -> Run:
    """The record of a run that did not come about."""
    return {
        **asdict(case),
        "fingerprint": fingerprint,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "discarded": str(why).splitlines()[0],
        "survived": False,
        "logins": [],
        "killed": [],
        "bystanders_killed": [],
        "recovery_s": None,
        "samples": [],
    }
