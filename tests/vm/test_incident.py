"""`plimsoll incident` on real kernels: what is made to happen is read back from the machine's own logs afterwards."""

import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import fakegb10
from lab.engine import small
from lab.engine.kinds import KINDS
from lab.engine.plan import Phase, Plan
from lab.machine import POLL_INTERVAL_S, Machine
from lab.progress import Progress
from lab.snapshot import Spec
from plimsoll import zipapp
from tests.vm import auditing, deploying

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(3600)]

PROGRAM = "/root/plimsoll.pyz"
STUCK = Path(__file__).parent / "stuck"
PSTORE_AT = 0x2000_0000
"""In the middle of memory: the kernel is put at its beginning and the initrd near its end."""
PSTORE = f"mem_address={PSTORE_AT:#x} mem_size=0x100000 record_size=0x20000"
KERNEL_OPTIONS = f"numa=fake=2 memmap=1M${PSTORE_AT:#x}"
"""Two nodes, so that a cpuset can lack memory while the machine does not, and a piece that survives a restart."""
REBOOT_TIMEOUT_S = 600.0
EATER = """\
#!/usr/bin/python3
import sys, time
held, most_mib = [], float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")
with open("/run/eater", "w") as beats:
    while True:
        if 8 * len(held) < most_mib:
            held.append(b"x" * (8 << 20))
        beats.seek(0)
        beats.write(f"{time.time():.3f}\\n")
        beats.flush()
        time.sleep(0.02)
"""
"""Takes memory 8 MiB at a time, and writes down when it was alive last, where that is not on a disk."""
TOLERANCE_S = 1.0
REFUSALS = 200
"""Of the driver, before the power is cut: rsyslog has written some of them by then, however slow everything is."""
WEDGE_TIMEOUT_S = 300.0
"""Memory is full after 7 s; the rest is for a host that has other work."""


@pytest.fixture(scope="module", params=["trixie", "bookworm"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine of each release with two memory nodes, the stand-in driver, and the program to be tested."""
    with Machine.restore(Spec(request.param), f"incident-{os.getpid()}") as restored:
        fakegb10.install(restored, Progress(quiet=True))
        fakegb10.send(restored, PROGRAM, zipapp.build(), "0644")
        fakegb10.send(restored, "/usr/local/bin/eater", EATER.encode(), "0755")
        # it is often quicker than the kernel's killer
        restored.succeed("systemctl mask --now systemd-oomd.service systemd-oomd.socket; sync")
        boot_with(restored, KERNEL_OPTIONS)
        yield restored


def boot_with(machine: Machine, options: str = "", *qemu_options: str) -> None:
    """Cut the power and boot with more options of the kernel's, or of QEMU's own."""
    command = machine.boot_command
    command[command.index("-append") + 1] += f" {options}" if options else ""
    machine._record = replace(machine._record, boot_command=[*command, *qemu_options])  # no public way: only here
    machine.crash(REBOOT_TIMEOUT_S)


def ask(machine: Machine, *words: str) -> dict[str, Any]:
    """Return what the program says of the machine's own logs, as JSON."""
    result = machine.run(f"python3 -I {PROGRAM} incident --json {' '.join(words)}", timeout_s=300)
    assert result.rc in (0, 3), result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def now_s(machine: Machine) -> float:
    """Return the machine's clock."""
    return float(machine.succeed("date +%s.%N"))


def events(machine: Machine, kind: str, since_s: float) -> list[dict[str, Any]]:
    """Return the events of one kind from a time on, as they are read back from disk."""
    machine.succeed("journalctl --sync; sync")
    return [event for event in ask(machine, "--since", _utc(since_s))["events"] if event["kind"] == kind]


def at_s(event: dict[str, Any]) -> float:
    """Return when an event was; the machine's time zone is UTC."""
    moment = datetime.datetime.fromisoformat(event["time"])
    return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp()


def _utc(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def eat(machine: Machine, *properties: str, most_mib: str = "", until: str) -> tuple[float, float]:
    """Let a unit take memory until a command succeeds; returns when it was alive last, and when that was seen."""
    words = " ".join(f"--property={each}" for each in properties)
    machine.succeed("rm -f /run/eater; dmesg --clear")
    machine.succeed(f"systemd-run --quiet --collect --unit=eater {words} /usr/local/bin/eater {most_mib}")
    machine.wait_until_succeeds(until, timeout_s=600)
    return float(machine.read("/run/eater")), now_s(machine)


GONE = "! systemctl is-active --quiet eater.service"


def one_kill(machine: Machine, began_s: float, alive_s: float, gone_s: float) -> dict[str, Any]:
    """Return the only kill of the eater, whose time lies between its last beat and its end, and check its invoker."""
    kills = [kill for kill in events(machine, "oom_kill", began_s) if kill["victim"]["comm"] == "eater"]
    assert len(kills) == 1, kills
    assert alive_s - TOLERANCE_S <= at_s(kills[0]) <= gone_s + TOLERANCE_S
    invoked = re.findall(r"(\S.*?) invoked oom-killer", machine.succeed("dmesg --notime"))
    assert kills[0]["invoker"]["comm"] == invoked[-1]
    return kills[0]


def test_a_global_kill(machine: Machine) -> None:
    """The victim, who asked for memory, the scope, the arithmetic and the time are those of the kernel."""
    began_s = now_s(machine)
    kill = one_kill(machine, began_s, *eat(machine, "OOMScoreAdjust=500", "OOMPolicy=continue", until=GONE))
    assert (kill["scope"], kill["constraint"]) == ("host", "CONSTRAINT_NONE")
    assert kill["victim"]["oom_score_adj"] == 500
    assert kill["why"]["rank"] == 1
    assert ask(machine, "--who", "eater.service")["events"]


def test_a_cgroup_at_its_limit(machine: Machine) -> None:
    """It is told from a shortage of the host, and is called no incident."""
    began_s = now_s(machine)
    kill = one_kill(machine, began_s, *eat(machine, "MemoryMax=64M", "MemorySwapMax=0", until=GONE))
    assert kill["scope"] == "memcg"
    assert kill["memcg"] == "/system.slice/eater.service"
    assert kill["memory"]["limit_kib"] == 64 * 1024
    assert any("reached its own limit" in each["text"] for each in ask(machine)["not_incidents"])


def test_a_cpuset_without_memory(machine: Machine) -> None:
    """One node is full and the other is not: the kernel calls it a cpuset's shortage, and so is it told."""
    assert machine.read("/sys/devices/system/node/online").strip() == "0-1"
    began_s = now_s(machine)
    properties = ("AllowedMemoryNodes=1", "MemorySwapMax=0", "OOMScoreAdjust=500")
    kill = one_kill(machine, began_s, *eat(machine, *properties, until=GONE))
    assert (kill["scope"], kill["constraint"]) == ("cpuset", "CONSTRAINT_CPUSET")


def test_a_kill_on_demand(machine: Machine) -> None:
    """SysRq-f is no incident, whoever died of it."""
    began_s = now_s(machine)
    enough = "[ $(systemctl show -p MemoryCurrent --value eater) -gt 100000000 ]"
    alive_s, _ = eat(machine, "OOMScoreAdjust=1000", most_mib="128", until=enough)
    machine.succeed("echo f >/proc/sysrq-trigger")
    machine.wait_until_succeeds(GONE, timeout_s=60)
    kill = one_kill(machine, began_s, alive_s, now_s(machine))
    assert kill["scope"] == "sysrq"


def test_earlyoom(machine: Machine) -> None:
    """The kill of a userspace killer has its victim, signal and outcome."""
    machine.succeed("apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install earlyoom", timeout_s=600)
    machine.succeed("echo 'EARLYOOM_ARGS=\"-m 15 -s 100 --prefer ^eater$\"' >/etc/default/earlyoom")
    machine.succeed("systemctl restart earlyoom")
    began_s = now_s(machine)
    alive_s, gone_s = eat(machine, until=GONE)
    machine.succeed("systemctl disable --now earlyoom")
    kills = [kill for kill in events(machine, "userspace_kill", began_s) if kill["killer"] == "earlyoom"]
    assert [kill["victim"]["comm"] for kill in kills] == ["eater"]
    assert kills[0]["signal"] == "SIGTERM"
    assert alive_s - 60 <= at_s(kills[0]) <= gone_s + TOLERANCE_S


def test_systemd_oomd(machine: Machine) -> None:
    """A kill by pressure is told with the cgroup, and is not taken for the kernel's."""
    machine.succeed(
        "mkdir -p /etc/systemd/oomd.conf.d && "
        "printf '[OOM]\\nDefaultMemoryPressureDurationSec=2s\\n' >/etc/systemd/oomd.conf.d/test.conf && "
        "systemctl unmask systemd-oomd.service systemd-oomd.socket && systemctl restart systemd-oomd"
    )
    began_s = now_s(machine)
    properties = ("MemoryHigh=64M", "ManagedOOMMemoryPressure=kill", "ManagedOOMMemoryPressureLimit=1%")
    eat(machine, *properties, until=GONE)
    machine.succeed("systemctl mask --now systemd-oomd.service systemd-oomd.socket")
    kills = [kill for kill in events(machine, "userspace_kill", began_s) if kill["killer"] == "systemd-oomd"]
    assert [kill["victim"]["unit"] for kill in kills] == ["/system.slice/eater.service"]
    assert "pressure" in kills[0]["reason"]
    assert events(machine, "oom_kill", began_s) == []


def test_a_hung_task(machine: Machine) -> None:
    """Who waits in the driver is told with where it waits; repeats of one hang are one event."""
    machine.succeed("sysctl -q kernel.hung_task_timeout_secs=5 kernel.hung_task_warnings=10")
    fakegb10.load(machine)
    began_s = now_s(machine)
    machine.succeed("systemd-run --quiet --collect --unit=holder fakegb10 lock --seconds 40")
    machine.wait_until_succeeds("[ -d /sys/module/fakegb10 ] && systemctl is-active --quiet holder")
    machine.succeed("systemd-run --quiet --collect --unit=waiter fakegb10 hold --mib 8")
    machine.wait_until_succeeds("dmesg | grep -q 'blocked for more than 1[0-9] seconds'", timeout_s=120)
    machine.succeed("systemctl kill --signal=KILL holder waiter")
    hung = events(machine, "hung_task", began_s)
    assert [each["task"]["comm"] for each in hung] == ["fakegb10"]
    assert hung[0]["count"] >= 2
    assert any("[fakegb10]" in frame for frame in hung[0]["frames"])
    machine.wait_until_fails("systemctl is-active --quiet holder || systemctl is-active --quiet waiter")
    fakegb10.unload(machine)


def operators(machine: Machine, *words: str) -> list[str]:
    """Return the operator's command line for this machine."""
    config = machine.write_home("admin") / ".ssh" / "config"
    return [str(auditing.PLIMSOLL), "incident", "-F", str(config), machine.name, *words]


def test_over_ssh(machine: Machine) -> None:
    """The operator's side has the same events as the box itself, and leaves nothing behind."""
    machine.succeed("journalctl --sync; sync")
    before = machine.succeed("ls -A /root /tmp /run /var/tmp")
    own = ask(machine)["events"]
    done = subprocess.run(operators(machine, "--json"), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    kinds = ("oom_kill", "hung_task", "lockup", "userspace_kill")
    theirs = [each for each in json.loads(done.stdout)["events"] if each["kind"] in kinds]
    ours = [each for each in own if each["kind"] in kinds]
    assert [each["kind"] for each in theirs] == [each["kind"] for each in ours]
    # when the machine booted is reckoned anew each time, from its two clocks: 0.2 ms apart
    assert [at_s(each) for each in theirs] == pytest.approx([at_s(each) for each in ours], abs=0.1)
    assert machine.succeed("ls -A /root /tmp /run /var/tmp") == before


def test_watching_over_ssh(machine: Machine) -> None:
    """A kill is told as it comes; once the operator has gone, nothing on the box waits for the next one."""
    there = "pgrep -f '[i]ncident --watch'"
    reads = f"for pid in $({there}); do readlink /proc/$pid/fd/*; done | grep -qx /dev/kmsg"
    with subprocess.Popen(operators(machine, "--watch", "--json"), stdout=subprocess.PIPE, text=True) as watching:
        machine.wait_until_succeeds(reads, timeout_s=120)
        enough = "[ $(systemctl show -p MemoryCurrent --value eater) -gt 50000000 ]"
        eat(machine, "OOMScoreAdjust=1000", most_mib="64", until=enough)
        machine.succeed("echo f >/proc/sysrq-trigger")
        assert watching.stdout
        told = json.loads(watching.stdout.readline())
        assert (told["kind"], told["scope"], told["victim"]["comm"]) == ("oom_kill", "sysrq", "eater")
        watching.terminate()
    machine.wait_until_fails(there, timeout_s=120)
    machine.wait_until_succeeds(GONE, timeout_s=60)


def install_stuck(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Build the module that does not come out of the kernel, the lab's way, and return where it lies."""
    source = tmp_path / "stuck"
    shutil.copytree(STUCK, source)
    for beside in ("build.sh", "engine.c", "fakegb10.h"):
        shutil.copy(fakegb10.SOURCE / beside, source)
    monkeypatch.setattr(fakegb10, "SOURCE", source)
    module = fakegb10.ensure_built(fakegb10.target_of(machine), Progress(quiet=True)) / fakegb10.MODULE
    fakegb10.send(machine, "/root/stuck.ko", module.read_bytes(), "0644")
    return "/root/stuck.ko"


def test_a_soft_lockup(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor, the task and the time that it was stuck are those that the kernel saw."""
    module = install_stuck(machine, tmp_path, monkeypatch)
    machine.succeed("sysctl -q kernel.watchdog_thresh=5")
    began_s = now_s(machine)
    machine.succeed(f"insmod {module} spin_s=25")
    machine.wait_until_succeeds("dmesg | grep -q 'soft lockup.*stuck:'", timeout_s=180)
    machine.wait_until_fails("pgrep -x stuck", timeout_s=180)
    machine.succeed("rmmod fakegb10; sysctl -q kernel.watchdog_thresh=10")
    found = [each for each in events(machine, "lockup", began_s) if each["type"] == "soft"]
    assert {each["task"]["comm"] for each in found} == {"stuck"}
    assert max(each["seconds"] for each in found) >= 10
    assert began_s <= at_s(found[0]) <= now_s(machine)


def test_a_panic_with_pstore(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's last words are read from what survived the restart."""
    module = install_stuck(machine, tmp_path, monkeypatch)
    machine.succeed(f"modprobe ramoops {PSTORE} && sysctl -q kernel.panic=1 && sync")
    before = deploying.boot_id(machine)
    machine.succeed(f"(sleep 1; insmod {module} panics=1) >/dev/null 2>&1 &")
    deploying.await_another_boot(machine, before, REBOOT_TIMEOUT_S)
    machine.succeed(f"modprobe ramoops {PSTORE}")
    machine.wait_until_succeeds("ls /sys/fs/pstore/dmesg-ramoops-* || ls /var/lib/systemd/pstore/*/*")
    panics = [each for each in ask(machine)["events"] if each["kind"] == "panic"]
    assert [each["reason"] for each in panics if each["fatal"]] == ["stuck: nothing goes on"]
    assert "pstore" in panics[0]["source"]["file"]


def test_a_power_cut(machine: Machine) -> None:
    """A machine that was well and is gone is class C: it started without having been stopped in order."""
    machine.succeed("sync")
    cut_s = now_s(machine)
    machine.crash(REBOOT_TIMEOUT_S)
    found = ask(machine, "--since", _utc(cut_s - 60))
    assert found["class"] == "C", found["says"]
    assert False in [each["clean_stop"] for each in found["events"] if each["kind"] == "boot"]


def test_an_orderly_restart(machine: Machine) -> None:
    """A machine that was told to restart has had no incident by it."""
    began_s = now_s(machine)
    machine.reboot(REBOOT_TIMEOUT_S)
    found = ask(machine, "--since", _utc(began_s))
    assert found["class"] is None, found["evidence"]
    assert False not in [each["clean_stop"] for each in found["events"] if each["kind"] == "boot"]


def start_engine(machine: Machine) -> None:
    """Let a model server ask the driver for more than there is, again and again."""
    total_kib = int(machine.succeed("awk '/^MemTotal/ { print $2 }' /proc/meminfo"))
    load = Plan((Phase("load", grow_percent=130, percent_per_s=20),))
    plan = small.plan_text(load, KINDS["vllm"], total_kib << 10, "/nothing")
    command = f"exec env {small.VARIABLE}={shlex.quote(plan)} {fakegb10.IN_GUEST}/{fakegb10.ENGINE} serve"
    machine.put("/root/engine.sh", command + "\n")
    machine.succeed("systemd-run --quiet --unit=engine sh /root/engine.sh")


def test_a_wedge(machine: Machine) -> None:
    """A machine whose memory a driver took, and that somebody found 40 minutes later, is class A, from its logs."""
    fakegb10.load(machine, regime="C")
    began_s = now_s(machine)
    start_engine(machine)
    # the console goes on where nothing else does
    deadline_s = time.monotonic() + WEDGE_TIMEOUT_S
    while machine.serial_log().count("NV_ERR_NO_MEMORY") < REFUSALS and time.monotonic() < deadline_s:
        time.sleep(POLL_INTERVAL_S)
    boot_with(machine, "", "-rtc", f"base={_utc(began_s + 2400)},clock=vm")
    found = ask(machine, "--since", _utc(began_s - 60))
    assert found["class"] == "A", found["evidence"]
    gaps = [each for each in found["events"] if each["kind"] == "gap"]
    assert any(1800 < each["seconds"] < 3600 for each in gaps), found["events"]
    assert any(each["kind"] == "driver_alloc_failure" for each in found["events"])
