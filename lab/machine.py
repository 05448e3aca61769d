"""A virtual machine, in the manner of the NixOS test driver."""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from lab import qemu, sshfiles
from lab.errors import GuestError, UsageError
from lab.keys import keys
from lab.paths import locked, machines_dir
from lab.progress import Progress
from lab.shell import Result, Shell
from lab.snapshot import Snapshot, Spec, ensure_snapshot, reboot

COMMAND_TIMEOUT_S = 120.0
"""`systemctl disable` took more than 60 s on a host that ran three other machines: a reload for each of two links."""
RESTORE_TIMEOUT_S = 60.0
REBOOT_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 15
# between two looks at a state that sends no event
POLL_INTERVAL_S = 0.5
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
RECORD = "machine.json"


@dataclass(frozen=True)
class Record:
    """What is written down about a machine, so that another process can find it."""

    name: str
    release: str
    memory_mib: int
    ubuntu_ssh: bool
    port: int
    pid: int
    dies_with_us: bool
    # QEMU's argument list that boots the disk, for the day the power is cut
    boot_command: list[str]
    owner_pid: int = 0
    containers: bool = False
    arch: str = field(default_factory=platform.machine)

    @property
    def spec(self) -> Spec:
        """What kind of machine it is."""
        return Spec(self.release, self.memory_mib, self.ubuntu_ssh, self.containers, self.arch)

    def orphaned(self) -> bool:
        """Whether it has died with the process that it belonged to."""
        return self.dies_with_us and not (Path("/proc") / str(self.owner_pid)).exists()

    def save(self, directory: Path) -> None:
        """Write it whole or not at all."""
        scratch = directory / f"{RECORD}.new"
        scratch.write_text(json.dumps(asdict(self), indent=2) + "\n")
        scratch.rename(directory / RECORD)


def directory_of(name: str) -> Path:
    """Where the machine lives. Raises UsageError for a name that is no host name."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no host name: small letters, digits and inner hyphens, at most 63")
    return machines_dir() / name


def read_record(name: str) -> Record | None:
    """What was written down last under this name, whether or not it runs."""
    try:
        return Record(**json.loads((directory_of(name) / RECORD).read_text()))
    except (FileNotFoundError, TypeError):  # TypeError: written by another version of the lab
        return None


def record_of(name: str) -> Record | None:
    """The record of a machine that runs; None where there is none, or its QEMU has ended."""
    record = read_record(name)
    return record if record and qemu.is_ours(record.pid, directory_of(name)) else None


def names() -> list[str]:
    """All names under which something is written down."""
    return sorted(path.parent.name for path in machines_dir().glob(f"*/{RECORD}"))


def forget_orphans() -> None:
    """Remove what machines left whose process was killed: 250 MB each."""
    for name in filter(is_orphan, names()):
        with locked(lock_of(name)):
            if is_orphan(name):
                forget(name)


def is_orphan(name: str) -> bool:
    """Whether a machine of this name is left over: its process and its QEMU have both ended."""
    record = read_record(name)
    return bool(record and record.orphaned() and not record_of(name))


def lock_of(name: str) -> Path:
    """Held by whoever starts a machine of this name."""
    return machines_dir() / f"{name}.lock"


def forget(name: str) -> None:
    """End a machine and remove what it left."""
    qemu.end_all(directory_of(name))
    shutil.rmtree(directory_of(name), ignore_errors=True)
    sshfiles.remove_homes(name)


def running() -> list[Record]:
    """All machines that run, by name."""
    return [record for name in names() if (record := record_of(name))]


class Machine:
    """One machine. Commands run as root over the out-of-band shell unless they say ssh."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._directory = directory_of(record.name)
        self._shell = Shell(self._directory / qemu.SHELL_SOCKET)

    @classmethod
    def restore(
        cls, spec: Spec, name: str = "gx10", *, progress: Progress | None = None, dies_with_us: bool = True
    ) -> Self:
        """Restore a booted machine under `name`; images and snapshots that are missing are made first.

        With `dies_with_us` it ends with this process, and must be started from its main thread, because the
        kernel ties it to the thread. Raises UsageError (the name is taken), LabError.
        """
        if dies_with_us and threading.current_thread() is not threading.main_thread():
            raise UsageError(f"{name} would end with this thread: start it from the main thread")
        directory_of(name)
        progress = progress or Progress(quiet=True)
        snapshot = ensure_snapshot(spec, progress)
        forget_orphans()
        with locked(lock_of(name)):
            if record_of(name):
                raise UsageError(f"{name} is running already: python -m lab down --name {name}")
            machine = cls._start(spec, name, snapshot, dies_with_us=dies_with_us)
            progress.say(f"restored; setting the clock of {name}")
            try:
                machine.bring_up_to_date()
            except BaseException:
                machine.close()
                raise
        return machine

    @classmethod
    def attach(cls, name: str) -> Self:
        """A machine that another process started. Raises UsageError when none of this name runs."""
        record = record_of(name)
        if not record:
            raise UsageError(f"no machine {name} is running: python -m lab up --name {name}")
        return cls(record)

    @classmethod
    def _start(cls, spec: Spec, name: str, snapshot: Snapshot, *, dies_with_us: bool) -> Self:
        forget(name)
        directory = directory_of(name)
        directory.mkdir(parents=True)
        # QEMU writes into the file that it restores from, so every machine has a copy of its own
        copy = ["cp", "--reflink=auto", "--sparse=always", str(snapshot.disk), str(directory / qemu.DISK)]
        subprocess.run(copy, check=True)
        port = qemu.free_port()
        boot = qemu.command_line(snapshot.hardware, name, port)
        pid = qemu.start([*boot, *qemu.RESTORE], directory, dies_with_us=dies_with_us)
        record = Record(
            **asdict(spec),
            name=name,
            port=port,
            pid=pid,
            dies_with_us=dies_with_us,
            boot_command=boot,
            owner_pid=os.getpid(),
        )
        record.save(directory)
        return cls(record)

    def bring_up_to_date(self) -> None:
        """Give a restored machine the present time and its own name."""
        name = shlex.quote(self.name)
        self._await_answer("its restoration", RESTORE_TIMEOUT_S)
        self.succeed(
            f"date --utc --set @{time.time():.3f} && hostname {name} && hostname >/etc/hostname && "
            r"printf '127.0.0.1 localhost\n127.0.1.1 %s\n' " + f"{name} >/etc/hosts"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name it was started under, which is its host name."""
        return self._record.name

    @property
    def release(self) -> str:
        """The Debian release."""
        return self._record.release

    @property
    def directory(self) -> Path:
        """Where its files are while it exists."""
        return self._directory

    @property
    def boot_command(self) -> list[str]:
        """QEMU's argument list that boots its disk."""
        return list(self._record.boot_command)

    @property
    def qemu_pid(self) -> int:
        """The process that runs it."""
        return self._record.pid

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 that leads to its port 22."""
        return self._record.port

    def execute(self, cmd: str, timeout_s: float = COMMAND_TIMEOUT_S) -> tuple[int, str]:
        """Exit status and standard output. Raises GuestError when it does not end in time."""
        result = self.run(cmd, timeout_s)
        if result.rc is None:
            raise GuestError(f"{self.name}: not done in {timeout_s:g} s: {cmd}\n{result.out}{result.err}")
        return result.rc, result.out

    def run(self, cmd: str, timeout_s: float = COMMAND_TIMEOUT_S, stdin: bytes = b"") -> Result:
        """Run in bash as root. Raises GuestError when QEMU or the whole machine is gone."""
        try:
            return self._shell.run(cmd, timeout_s, stdin)
        except TimeoutError:
            raise GuestError(f"{self.name}: the machine does not answer; asked: {cmd}") from None
        except (GuestError, OSError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> GuestError:
        if qemu.is_ours(self._record.pid, self._directory):
            return GuestError(f"{self.name}: {error}")
        return GuestError(f"{self.name}: QEMU has ended; it printed: {qemu.log_tail(self._directory)}")

    def succeed(self, cmd: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Standard output. Raises GuestError with all output when the exit status is not 0."""
        result = self.run(cmd, timeout_s)
        if result.rc != 0:
            how = f"not done in {timeout_s:g} s" if result.rc is None else f"exit {result.rc}"
            raise GuestError(f"{self.name}: {how}: {cmd}\n{result.out}{result.err}")
        return result.out

    def fail(self, cmd: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Standard output. Raises GuestError when the exit status is 0."""
        rc, out = self.execute(cmd, timeout_s)
        if rc == 0:
            raise GuestError(f"{self.name}: succeeded, and should not have: {cmd}\n{out}")
        return out

    def wait_until_succeeds(self, cmd: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Repeat until the exit status is 0; return that output. Raises GuestError at the deadline."""
        return self._repeat(cmd, timeout_s, succeeds=True)

    def wait_until_fails(self, cmd: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Repeat until the exit status is not 0; return that output. Raises GuestError at the deadline."""
        return self._repeat(cmd, timeout_s, succeeds=False)

    def _repeat(self, cmd: str, timeout_s: float, *, succeeds: bool) -> str:
        deadline_s = time.monotonic() + timeout_s
        while True:
            result = self.run(cmd, max(1.0, deadline_s - time.monotonic()))
            if result.rc is not None and (result.rc == 0) is succeeds:
                return result.out
            if time.monotonic() >= deadline_s:
                wanted = "succeed" if succeeds else "fail"
                raise GuestError(f"{self.name}: did not {wanted} in {timeout_s:g} s: {cmd}\n{result.out}{result.err}")
            time.sleep(POLL_INTERVAL_S)

    def wait_for_unit(self, unit: str, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        """Wait until a unit is active. Raises GuestError at the deadline, or once it has failed."""
        quoted = shlex.quote(unit)
        state = self.wait_until_succeeds(
            f"state=$(systemctl is-active {quoted}); echo $state; [ $state = active ] || [ $state = failed ]",
            timeout_s,
        )
        if state.strip() == "failed":
            raise GuestError(f"{self.name}: {unit} failed\n{self.run(f'systemctl status --full {quoted}').out}")

    def wait_for_ssh(self, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        """Wait until a login works. Raises GuestError at the deadline with what ssh said last."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            # an attempt made before the network is up hangs until it is given up
            login = self._ssh("true", "root", timeout_s, "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}")
            if login.returncode == 0:
                return
            if time.monotonic() >= deadline_s:
                raise GuestError(f"{self.name}: no login in {timeout_s:g} s: {login.stderr.strip()}")
            time.sleep(POLL_INTERVAL_S)

    def reboot(self, timeout_s: float = REBOOT_TIMEOUT_S) -> None:
        """Reboot in order; returns when shell and ssh answer again."""
        try:
            reboot(self._shell, self._directory, timeout_s)
        except TimeoutError:
            raise self._not_back("a reboot", timeout_s) from None
        self._await_login(timeout_s)

    def cut_power(self) -> None:
        """End it as a power cut does; its disk and its console's log stay in `directory` until `close`."""
        self._shell.close()
        qemu.end(self._record.pid, self._directory)

    def crash(self, timeout_s: float = REBOOT_TIMEOUT_S) -> None:
        """Cut the power and boot the disk: what was not flushed is lost. Returns when ssh answers."""
        self.cut_power()
        pid = qemu.start(self._record.boot_command, self._directory, dies_with_us=self._record.dies_with_us)
        self._record = replace(self._record, pid=pid)
        self._record.save(self._directory)
        self._await_answer("a power cut", timeout_s)
        self._await_login(timeout_s)

    def _await_login(self, timeout_s: float) -> None:
        # whatever came of the boot: whether a login works is what counts
        self.run("systemctl is-system-running --wait", timeout_s)
        self.wait_for_ssh(timeout_s)

    def _await_answer(self, after: str, timeout_s: float) -> None:
        try:
            self._shell.await_boot_id(time.monotonic() + timeout_s)
        except TimeoutError:
            raise self._not_back(after, timeout_s) from None
        except GuestError as error:
            raise self._explained(error) from error

    def _not_back(self, after: str, timeout_s: float) -> GuestError:
        console = qemu.console_tail(self._directory)
        return GuestError(f"{self.name}: not back {timeout_s:g} s after {after}; {console}")

    def ssh(
        self, cmd: str, user: str = "admin", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run over a fresh connection; exit status 255 is ssh's own. Raises subprocess.TimeoutExpired."""
        return self._ssh(cmd, user, timeout_s)

    def _ssh(self, cmd: str, user: str, timeout_s: float, *options: str) -> subprocess.CompletedProcess[str]:
        config = self.write_home(user) / ".ssh" / "config"
        fresh = ["-F", str(config), "-o", "BatchMode=yes", "-o", "ControlPath=none"]
        return subprocess.run(
            ["ssh", *fresh, *options, self.name, cmd],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def write_home(self, user: str = "admin") -> Path:
        """A directory that as HOME lets any ssh client find this machine by its name."""
        return sshfiles.write_home(self.name, self.port, user, keys())

    def put(self, path: str, text: str) -> None:
        """Write a file in the machine."""
        result = self.run(f"cat >{shlex.quote(path)}", stdin=text.encode())
        if result.rc != 0:
            raise GuestError(f"{self.name}: cannot write {path}: {result.err.strip()}")

    def read(self, path: str) -> str:
        """The content of a file in the machine."""
        return self.succeed(f"cat {shlex.quote(path)}")

    def serial_log(self) -> str:
        """All that the machine printed on its console, over all boots since it was restored."""
        return (self._directory / qemu.SERIAL_LOG).read_text(errors="replace")

    def close(self) -> None:
        """End the machine and remove what it left."""
        self._shell.close()
        forget(self.name)
