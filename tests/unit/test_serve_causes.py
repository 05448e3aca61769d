"""What ended a model is told by those who keep records of it, and is unknown where nobody does."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.guard.records import SCHEMA
from plimsoll.box.host import Host
from plimsoll.box.serve import causes
from plimsoll.box.serve.causes import Cause, CauseKind, Ended, Evidence, Exit, Kill, decide

BEGAN_S = 1_782_911_000.0
DIED_S = BEGAN_S + 500
ID = "ab" * 32
ENDED = Ended("qwen.service", "", (4711, 4712), BEGAN_S)


def journal(program: str, *texts: str, at_s: float = DIED_S, **fields: str) -> list[str]:
    """Return records of the journal as journalctl prints them."""
    own = {"_TRANSPORT": "kernel"} if program == "kernel" else {"SYSLOG_IDENTIFIER": program}
    stamp = {"__REALTIME_TIMESTAMP": str(round(at_s * 1e6)), "__MONOTONIC_TIMESTAMP": "500000000"}
    return [json.dumps({**stamp, **own, **fields, "MESSAGE": text}) for text in texts]


def oom(
    pid: int, comm: str, group: str, constraint: str = "CONSTRAINT_NONE", begins: str = "Out of memory"
) -> list[str]:
    """Return what the kernel writes of a victim."""
    memcg = f",oom_memcg={group}" if constraint == "CONSTRAINT_MEMCG" else ",global_oom"
    return journal(
        "kernel",
        "dashboard-servi invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
        f"oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0{memcg},task_memcg={group},"
        f"task={comm},pid={pid},uid=1000",
        f"{begins}: Killed process {pid} ({comm}) total-vm:164222812kB, anon-rss:31651260kB, file-rss:0kB, "
        "shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:200",
    )


def signalled(pid: int, cgroup: str, at_s: float = DIED_S, **others: Any) -> str:  # noqa: ANN401  # fields of a record
    """Return a record of the guard's about a victim that it has signalled."""
    victim = {"name": "qwen.service", "cgroup": cgroup, "processes": [{"pid": pid, "start_ticks": 1}]}
    at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    text = "floor: kill qwen.service: 2.90 GiB available, below the floor of 3.00 GiB"
    fields: dict[str, Any] = {"schema": SCHEMA, "kind": "signalled", "at": at, "victim": victim, "text": text}
    return json.dumps({**fields, **others})


Find = Callable[..., Cause]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """Return a search on a box whose journal, units and guard's records are given."""

    def search(
        lines: Sequence[str] = (), shown: str = "", guard: Sequence[str] = (), ended: Ended = ENDED, code: int = 0
    ) -> Cause:
        tools = tmp_path / "bin"
        tools.mkdir()
        (tmp_path / "journal").write_text("\n".join([*lines, ""]))
        (tmp_path / "shown").write_text(shown or "LoadState=not-found\nExecMainCode=0\nExecMainStatus=0\n")
        for name, file in (("journalctl", "journal"), ("systemctl", "shown")):
            script = tools / name
            failing = f"echo No journal files were opened >&2; exit {code}" if code and name == "journalctl" else ""
            script.write_text(f"#!/bin/sh\n{failing}\nexec cat {tmp_path / file}\n")
            script.chmod(0o755)
        log = tmp_path / "var/log/plimsoll/guard.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("\n".join([*guard, ""]))
        host = Host(str(tmp_path), {"PATH": f"{tools}:/usr/bin:/bin"})
        return causes.find(host, ended, pauses_s=())

    return search


def test_the_kernels_oom_killer(find: Find) -> None:
    """A victim with the model's number is named, with whose allocation it was and the score that made it the first."""
    found = find(oom(4711, "llama-server", "/user.slice/user-1000.slice/session-3.scope"))
    assert found.kind is CauseKind.KERNEL
    assert found.said == (
        "the kernel's OOM killer took llama-server (pid 4711, oom_score_adj 200) for want of memory on the box; "
        "the allocation was dashboard-servi's"
    )
    assert any("Killed process 4711" in each or "oom-kill" in each for each in found.evidence)


def test_a_process_of_its_cgroup_is_its_own(find: Find) -> None:
    """A rank that nobody knew the number of counts by its unit."""
    assert find(oom(99, "VLLM::EngineCor", "/system.slice/qwen.service")).kind is CauseKind.KERNEL


def test_a_limit_is_not_want_of_memory(find: Find) -> None:
    """What docker's --memory ended is told apart from a box that had none left."""
    group = f"/system.slice/docker-{ID}.scope"
    lines = oom(99, "python3", group, "CONSTRAINT_MEMCG", "Memory cgroup out of memory")
    found = find(lines, ended=dataclasses.replace(ENDED, unit="", container=ID[:12]))
    assert found.kind is CauseKind.KERNEL_CGROUP
    assert "for the limit of /system.slice/docker-abab" in found.said


@pytest.mark.parametrize(
    ("pid", "group", "at_s"),
    [
        (1, "/system.slice/other.service", DIED_S),
        (1, "/system.slice/qwen.service.d/x", DIED_S),
        (1, "/system.slice/my-qwen.service", DIED_S),
        (4711, "/system.slice/qwen.service", BEGAN_S - 60),
    ],
)
def test_anothers_end_is_not_its_own(pid: int, group: str, at_s: float, find: Find) -> None:
    """Neither a bystander's kill nor one of before it was started explains its end."""
    stamp = {"__REALTIME_TIMESTAMP": str(round(at_s * 1e6))}
    lines = [json.dumps(json.loads(each) | stamp) for each in oom(pid, "python3", group)]
    found = find(lines)
    assert (found.kind, found.said) == (
        CauseKind.UNKNOWN, "what ended it is not known: neither its manager nor the journal says",
    )  # fmt: skip


@pytest.mark.parametrize(("pid", "cgroup"), [(4712, "/x"), (1, "/system.slice/qwen.service")])
def test_the_guard(pid: int, cgroup: str, find: Find) -> None:
    """What the guard has stopped is in its own records, by process and by cgroup."""
    found = find(guard=["torn {", signalled(pid, cgroup)])
    assert found.kind is CauseKind.GUARD
    assert found.said.startswith("the guard stopped it: floor: kill qwen.service: 2.90 GiB available")


def test_what_the_guard_only_would_have_done_is_no_cause(find: Find) -> None:
    """A decision of a rule that is not armed has ended nobody."""
    would = signalled(4711, "/system.slice/qwen.service", kind="decision", armed=False)
    assert find(guard=[would]).kind is CauseKind.UNKNOWN


def test_earlyoom(find: Find) -> None:
    """Earlyoom names the process that it sent the signal to."""
    text = 'sending SIGTERM to process 4711 uid 1000 "vllm": oom_score 946, VmRSS 32 MiB'
    found = find(journal("earlyoom", text))
    assert found.kind is CauseKind.EARLYOOM
    assert found.said == "earlyoom stopped vllm (pid 4711) by SIGTERM"


def test_systemd_oomd(find: Find) -> None:
    """Systemd-oomd names the cgroup, and why."""
    text = (
        "Killed /system.slice/qwen.service due to memory pressure for /system.slice being 61.07% > 50.00% for > 20s "
        "with reclaim activity"
    )
    found = find(journal("systemd-oomd", text))
    assert found.kind is CauseKind.OOMD
    assert "memory pressure for /system.slice being 61.07%" in found.said


def test_the_first_of_several_kills_is_the_cause(find: Find) -> None:
    """Who came first has ended it; what came after is evidence as well."""
    late = journal(
        "earlyoom", 'sending SIGKILL to process 4711 uid 0 "vllm": oom_score 1, VmRSS 1 MiB', at_s=DIED_S + 9
    )
    found = find(late, guard=[signalled(4711, "/x")])
    assert found.kind is CauseKind.GUARD
    assert len(found.evidence) == 2


@pytest.mark.parametrize(
    ("shown", "kind", "said"),
    [
        ("Result=oom-kill\nExecMainCode=2\nExecMainStatus=9", CauseKind.KERNEL, "there is no record of it"),
        ("Result=exit-code\nExecMainCode=1\nExecMainStatus=1", CauseKind.EXIT, "with exit code 1"),
        ("Result=exit-code\nExecMainCode=1\nExecMainStatus=137", CauseKind.SIGNAL, "SIGKILL ended it; by whom"),
        ("Result=signal\nExecMainCode=2\nExecMainStatus=9", CauseKind.SIGNAL, "somebody did it by hand"),
        ("Result=core-dump\nExecMainCode=3\nExecMainStatus=11", CauseKind.SIGNAL, "SIGSEGV ended it; a fault of"),
        ("Result=timeout\nExecMainCode=2\nExecMainStatus=9", CauseKind.TIMEOUT, "systemd ended it: timeout"),
        ("Result=success\nExecMainCode=1\nExecMainStatus=0", CauseKind.STOPPED, "it ended in order"),
        ("Result=success\nExecMainCode=0\nExecMainStatus=0", CauseKind.UNKNOWN, "is not known"),
        ("LoadState=not-found\nExecMainCode=1\nExecMainStatus=1", CauseKind.UNKNOWN, "is not known"),
    ],
)  # fmt: skip
def test_what_the_manager_says(shown: str, kind: CauseKind, said: str, find: Find) -> None:
    """Without a record of a kill it is systemd that knows how the main process ended."""
    found = find(shown=f"{shown}\n")
    assert found.kind is kind
    assert said in found.said


def test_a_transient_unit_that_is_gone_is_told_by_the_journal(find: Find) -> None:
    """Systemd has said how it ended before it forgot the unit."""
    lines = journal(
        "systemd",
        "other.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED",
        "qwen.service: Main process exited, code=killed, status=9/KILL",
        "qwen.service: Failed with result 'oom-kill'.",
    )
    found = find(lines)
    assert found.kind is CauseKind.KERNEL
    assert found.evidence[0] == "qwen.service: Main process exited, code=killed, status=9/KILL"


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ({"Running": False, "ExitCode": 137, "OOMKilled": True}, CauseKind.KERNEL),
        ({"Running": False, "ExitCode": 137, "OOMKilled": False}, CauseKind.SIGNAL),
        ({"Running": False, "ExitCode": 2, "OOMKilled": False}, CauseKind.EXIT),
        ({"Running": True, "ExitCode": 0, "OOMKilled": False}, CauseKind.UNKNOWN),
        ({"ExitCode": "x"}, CauseKind.UNKNOWN),
    ],
)
def test_what_the_containers_daemon_says(state: dict[str, object], kind: CauseKind, find: Find, tmp_path: Path) -> None:
    """Of a container the daemon's own file tells the exit code, without the daemon being asked."""
    directory = tmp_path / f"var/lib/docker/containers/{ID}"
    directory.mkdir(parents=True)
    (directory / "config.v2.json").write_text(json.dumps({"State": state}))
    assert find(ended=dataclasses.replace(ENDED, unit="", container=ID[:12])).kind is kind


def test_a_containers_file_is_where_the_daemon_keeps_it(find: Find, tmp_path: Path) -> None:
    """A daemon whose data lies on another disk says where."""
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text('{"data-root": "/data/docker"}')
    directory = tmp_path / f"data/docker/containers/{ID}"
    directory.mkdir(parents=True)
    (directory / "config.v2.json").write_text('{"State": {"Running": false, "ExitCode": 3}}')
    found = find(ended=dataclasses.replace(ENDED, unit="", container=ID))
    assert (found.kind, found.said) == (CauseKind.EXIT, "it ended by itself, with exit code 3")


def test_what_could_not_be_read_is_said(find: Find) -> None:
    """Without the journal a SIGKILL is by nobody that is known, and the reason is the journal."""
    found = find(shown="Result=signal\nExecMainCode=2\nExecMainStatus=9\n", code=1)
    assert found.kind is CauseKind.SIGNAL
    assert "by whom is not known: journalctl: No journal files were opened" in found.said
    assert found.problems == ("journalctl: No journal files were opened",)


def test_a_record_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    """The journal has the kernel's line a moment after the process has gone: it is looked at again."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "late").write_text("\n".join([*oom(4711, "vllm", "/x"), ""]))
    marker = tmp_path / "asked"
    script = f"#!/bin/sh\nif [ -e {marker} ]; then exec cat {tmp_path / 'late'}; fi\ntouch {marker}\n"
    for name, text in (("journalctl", script), ("systemctl", "#!/bin/sh\nexit 0\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    host = Host(str(tmp_path), {"PATH": f"{tools}:/usr/bin:/bin"})
    assert causes.find(host, ENDED, pauses_s=(0.0, 60.0)).kind is CauseKind.KERNEL


def test_a_kill_of_anybody_within_its_time_is_not_enough() -> None:
    """Only its own processes, its unit and its container make a kill its cause."""
    kill = Kill(CauseKind.EARLYOOM, DIED_S, "earlyoom stopped x", "raw", 5, ("docker-cdcd.scope",))
    found = decide(ENDED, Evidence((kill,), Exit(code=1)))
    assert found.kind is CauseKind.EXIT
    until = dataclasses.replace(ENDED, until_unix_s=DIED_S - 60)
    own = dataclasses.replace(kill, pid=4711)
    assert decide(until, Evidence((own,))).kind is CauseKind.UNKNOWN
    assert decide(ENDED, Evidence((own,))).kind is CauseKind.EARLYOOM
