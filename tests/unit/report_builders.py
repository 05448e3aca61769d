"""Reports as an audit makes them: of real controls, with every verdict, and of hosts that mean harm."""

import dataclasses
import itertools

from plimsoll.box.model import Judgement, Place, Verdict
from plimsoll.controls import registry
from plimsoll.fleet.report import Finding, FindingKind, HostReport, Report, WaiverNote

CONTROLS = len(registry.every_control())
"""How many controls a host of these has."""
TAKEN = "2026-07-28T10:12:00+02:00"
FACTS = {"kernel": "6.17.0-1014-nvidia", "driver": "580.95.05", "firmware": "5.36_0ACUM018", "earlyoom": None}
REASONS = {
    Verdict.UNKNOWN: "/etc/sysctl.d could not be read: Permission denied",
    Verdict.UNSUPPORTED: "this kernel has no such setting",
    Verdict.WAIVED: "tried out until the next model (until 2026-12-31); otherwise drifted: the running system has 9",
    Verdict.SHADOWED: "/etc/sysctl.d/zzz-site.conf:3 sets 438 and wins over /etc/sysctl.d/zz-plimsoll.conf",
    Verdict.PENDING: "earlyoom.service started before its file was written; restart it",
    Verdict.DRIFTED: "the running system has 438",
    Verdict.UNPERSISTED: "after a reboot it would be nothing set",
    Verdict.OK: "",
}
HOSTILE = (
    "\x1b[2J\x1b]0;pwned\x07<script>alert(1)</script>[bold red]x[/] \"quoted\" 'single' & {{ 7 * 7 }} "
    "\x00\x9b\u202e\u2028\ud800\ufffe`rm -rf`]]>\r\nplimsoll_host_reached 1"
)
"""Escapes, HTML, markup, quotes, template syntax, NUL, a C1 control, an override, a surrogate, a non-character."""
LONG = "x" * (1 << 20)


def judgement(verdict: Verdict = Verdict.OK, control: str = "kernel/kernel.sysrq", **changes: object) -> Judgement:
    """Return a judgement over a control, with the reason that goes with its verdict."""
    live = "1" if verdict in (Verdict.OK, Verdict.UNPERSISTED) else "438"
    persisted = "1" if verdict in (Verdict.OK, Verdict.DRIFTED, Verdict.PENDING) else "438"
    layer = control.partition("/")[0]
    place = Place("/etc/sysctl.d/zzz-site.conf" if verdict is Verdict.SHADOWED else "/etc/sysctl.d/zz-plimsoll.conf", 3)
    made = Judgement(control, layer, verdict, "1", live, persisted, place, REASONS[verdict])
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # the fields differ in type


def finding(**changes: object) -> Finding:
    """Return a finding of a false protection."""
    made = Finding(
        id="docker-memory-limit",
        kind=FindingKind.FALSE_PROTECTION,
        title="A memory limit on a container that CUDA does not obey",
        seen="container vllm has --memory 100g",
        why="What the driver allocates is charged to no cgroup, so the limit never bites.",
        evidence="A container with a limit of 8 GiB held 60 GiB of GPU memory.",
        source="measured on a GB10 box",
        dated="2026-05-01",
        advice="Give the engine less with `--gpu-memory-utilization`, and leave the box to the guard.",
        place=Place("/srv/compose.yaml", 14),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # as above


def host(name: str = "gx10", verdicts: tuple[Verdict, ...] = (), **changes: object) -> HostReport:
    """Return a host with every control; the first of them have `verdicts`, the rest are ok."""
    ids = [control.id for control in registry.every_control()]
    rest = itertools.repeat(Verdict.OK)
    spread = sorted(range(len(ids)), key=lambda place: place * 7 % len(ids))  # so that they fall into several layers
    by_place = dict(zip(spread, itertools.chain(verdicts, rest), strict=False))
    controls = tuple(judgement(by_place[place], control) for place, control in enumerate(ids))
    made = HostReport(name, reached=True, controls=controls, facts=FACTS, took_ms=1234)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # as above


def unreached(name: str = "gx10-lost") -> HostReport:
    """Return a host that did not answer."""
    return HostReport(name, reached=False, problem="timed out after 10 s: no banner", took_ms=10_000)


def hostile(name: str = HOSTILE) -> HostReport:
    """Return a host whose every text is hostile, and some of it a mebibyte long."""
    text = f"{HOSTILE}{LONG}"
    place = Place(HOSTILE, 1)
    bad = judgement(Verdict.DRIFTED, HOSTILE, layer=HOSTILE, wanted='["' + "[" * 100_000, live=text, persisted=HOSTILE)
    bad = dataclasses.replace(bad, decided_by=place, reason=text)
    good = dataclasses.replace(bad, verdict=Verdict.OK, id=f"trims/{HOSTILE}", layer="trims")
    texts = dict.fromkeys(("id", "title", "seen", "why", "evidence", "source", "dated", "advice"), text)
    return HostReport(
        name,
        reached=True,
        controls=(bad, good, bad),
        findings=(finding(**texts, place=place),),
        not_seen=(text,),
        facts={HOSTILE: text},
    )


def report(*hosts: HostReport, waivers: tuple[WaiverNote, ...] = ()) -> Report:
    """Return an audit of `hosts`."""
    return Report(TAKEN, hosts, waivers)


def fleet(number: int) -> Report:
    """Return an audit of a fleet in which most hosts are well, with one of every trouble."""
    troubles: dict[int, HostReport] = {
        1: host("gx10-1", (Verdict.SHADOWED, Verdict.DRIFTED, Verdict.PENDING), findings=(finding(),)),
        2: unreached("gx10-2"),
        3: host("gx10-3", tuple(Verdict), not_seen=("/root/.docker: not readable without root",)),
    }
    note = WaiverNote("kernel/kernel.sysrq", ("gx10-1", "gx10-3"), "2026-06-30", "expired")
    hosts = (troubles.get(i % 11) or host(f"gx10-{i}") for i in range(number))
    return report(*(dataclasses.replace(h, name=f"gx10-{i}") for i, h in enumerate(hosts)), waivers=(note,))


def every_kind() -> dict[str, Report]:
    """Return the reports that every form must be able to show, by what is special about them."""
    return {
        "no host": report(),
        "one good host": report(host()),
        "one unreached host": report(unreached()),
        "every verdict": report(host(verdicts=tuple(Verdict))),
        "hostile": report(hostile(), unreached(HOSTILE), waivers=(WaiverNote(HOSTILE, (HOSTILE,), HOSTILE, HOSTILE),)),
        "nothing judged": report(HostReport("bare", reached=True)),
        "fifty hosts": fleet(50),
        "without a time": dataclasses.replace(report(host()), taken=""),
    }
