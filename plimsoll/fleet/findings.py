"""What is wrong on a host that no control covers, and what Plimsoll depends on there. Pure.

`load_rules` reads the rules; `findings` applies them to a state as `plimsoll.box.state.read` returns it. Everything
in a state is the word of a host and may be of any form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plimsoll.box.model import Place
from plimsoll.controls.preflight import KILLERS
from plimsoll.fleet import sshd
from plimsoll.fleet.report import Finding, FindingKind
from plimsoll.fleet.rulebook import PLATFORM, Record, Rule, load_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from plimsoll.box.model import State

__all__ = ["Rule", "facts", "findings", "load_rules", "platform_records"]

MAX_OBSERVATIONS = 2000
MAX_FINDINGS_OF_A_RULE = 20
"""A host with a hundred containers has one habit, not a hundred findings."""
NEXT = "next"
GIB_KIB = 1 << 20
MAX_FACT = 4096
"""Characters of a fact: as long as a command line of the kernel may be."""


def findings(state: State, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    """Return what `rules` find on a host: false protections first, in the order of the rules."""
    observed = _section(state, "protections").get("observations")
    records = [each for each in _list(observed)[:MAX_OBSERVATIONS] if isinstance(each, Mapping)]
    records += [*platform_records(state), *sshd.records(state.get("sshd_files"))]
    found = [finding for rule in rules for finding in _found(rule, records)]
    return tuple(sorted(found, key=lambda each: each.kind is FindingKind.KNOWN_BAD))


def _found(rule: Rule, records: Iterable[Record]) -> Iterator[Finding]:
    hits = [record for record in records if _concerns(rule, record) and rule.holds(record)]
    seen = dict.fromkeys((_seen(rule, record), _place(record)) for record in hits)
    left_out = len(seen) - MAX_FINDINGS_OF_A_RULE
    for text, place in list(seen)[:MAX_FINDINGS_OF_A_RULE]:
        yield _finding(rule, text, place)
    if left_out > 0:
        yield _finding(rule, f"{left_out} more like these", None)


def _concerns(rule: Rule, record: Record) -> bool:
    kind = record.get("kind")
    return kind in rule.looks_at and (kind != PLATFORM or record.get("boot") in rule.applies)


def _seen(rule: Rule, record: Record) -> str:
    text = rule.describe(record)
    return f"{text} (the kernel that boots next)" if record.get("boot") == NEXT else text


def _place(record: Record) -> Place | None:
    file, line = record.get("file"), record.get("line")
    known = isinstance(file, str) and file != "" and isinstance(line, int) and not isinstance(line, bool)
    return Place(str(file), int(str(line))) if known else None


def _finding(rule: Rule, seen: str, place: Place | None) -> Finding:
    return Finding(
        id=rule.id,
        kind=FindingKind(rule.kind),
        title=rule.title,
        seen=seen,
        why=rule.why,
        evidence=rule.evidence,
        source=rule.source,
        dated=rule.dated,
        advice=rule.advice,
        place=place,
    )


# --- the platform -----------------------------------------------------------------------------------


def platform_records(state: State) -> list[Record]:
    """Return the platform as records: the one that runs, and what is known of the one that boots next.

    Of the next one the kernel, its driver module and the machine are known; which driver it will load, its command
    line and its memory are not.
    """
    running = _running(state)
    platform = _section(state, "platform")
    following = platform.get("next_kernel")
    if following in (None, running["kernel"]):
        return [running]
    kept = ("kind", "architecture", "board_vendor", "board_name", "product_name", "bios_version", "bios_date")
    machine = {key: running[key] for key in (*kept, "os_id", "os_version", "dgx_release", "dgx_ota", "mem_total_kib")}
    unknown = dict.fromkeys(running)
    coming = {"boot": NEXT, "kernel": following, "nvidia_module": _module(platform, following)}
    # A machine that has the driver now wants it after the next boot too.
    return [running, {**unknown, **machine, **coming, "driver": running["driver"]}]


def _running(state: State) -> dict[str, Any]:
    platform = _section(state, "platform")
    driver, release = _section(platform, "driver"), _section(platform, "os_release")
    dgx, memory = _section(platform, "dgx_release"), _section(state, "memory")
    meminfo = _section(memory, "meminfo")
    machine = ("kernel", "cmdline", "architecture", "board_vendor", "board_name", "product_name", "bios_version")
    return {
        "kind": PLATFORM,
        "boot": "running",
        **{key: platform.get(key) for key in machine},
        "bios_date": platform.get("bios_date"),
        "nvidia_module": _module(platform, platform.get("kernel")),
        "driver": driver.get("version"),
        "open_module": driver.get("open_module"),
        "firmware": driver.get("firmware"),
        "firmware_files": driver.get("firmware_files"),
        "system_memory_pools": driver.get("system_memory_pools"),
        "os_id": release.get("ID"),
        "os_version": release.get("VERSION_ID"),
        "dgx_release": dgx.get("DGX_SWBUILD_VERSION"),
        "dgx_ota": dgx.get("DGX_OTA_VERSION"),
        "cma_total_kib": meminfo.get("CmaTotal"),
        "cma_free_kib": meminfo.get("CmaFree"),
        "mem_total_kib": platform.get("mem_total_kib"),
        "regime": memory.get("regime"),
    }


def _module(platform: Mapping[str, Any], release: object) -> object:
    kernels = (each for each in _list(platform.get("kernels")) if isinstance(each, Mapping))
    return next((each.get("nvidia_module") for each in kernels if each.get("release") == release), None)


def _section(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# --- facts ------------------------------------------------------------------------------------------


def facts(state: State) -> dict[str, str | None]:
    """Return what Plimsoll depends on and does not set; None where it is not known or not there."""
    platform, packages = _section(state, "platform"), _section(state, "packages")
    here = _running(state)
    return {
        "kernel": _text(here["kernel"]),
        "next_kernel": _text(platform.get("next_kernel")),
        "kernel_command_line": _text(here["cmdline"]),
        "driver": _text(here["driver"]),
        "gsp_firmware": _text(here["firmware"]),
        "board": _joined(here["board_vendor"], here["product_name"] or here["board_name"]),
        "bios": _joined(here["bios_version"], here["bios_date"]),
        "os_release": _text(_section(platform, "os_release").get("PRETTY_NAME"))
        or _joined(here["os_id"], here["os_version"]),
        "dgx_os": _text(here["dgx_ota"]) or _text(here["dgx_release"]),
        "systemd": _text(packages.get("systemd")) or _text(_section(state, "manager").get("Version")),
        "openssh": _text(packages.get("openssh-server")),
        "earlyoom": _text(packages.get("earlyoom")),
        "mem_total": _gib(here["mem_total_kib"]),
        "other_killers": _text(_killers(state)),
        "swap": _text(_swap(state)),
    }


def _text(value: object) -> str | None:
    return None if value in (None, "") else str(value)[:MAX_FACT]


def _joined(*values: object) -> str | None:
    known = [text for text in map(_text, values) if text]
    return " ".join(known) or None


def _gib(kib: object) -> str | None:
    return f"{kib / GIB_KIB:.1f} GiB" if isinstance(kib, int) else None


def _killers(state: State) -> str | None:
    """Name the killers that run beside earlyoom, by their unit or their process; `none` if none was seen."""
    units = _section(state, "units")
    active = {u for u in KILLERS if _section(_section(units, u), "show").get("ActiveState") == "active"}
    observed = [each for each in _list(_section(state, "protections").get("observations")) if isinstance(each, Mapping)]
    killers = (each for each in observed[:MAX_OBSERVATIONS] if each.get("kind") == "killer")
    running = {str(each.get("unit") or f"{each.get('name')}.service") for each in killers}
    ray = {"ray" for each in observed[:MAX_OBSERVATIONS] if each.get("kind") == "ray" and each.get("enabled") is True}
    looked = "units" in state or "protections" in state
    return ", ".join(sorted(active | running | ray)) or ("none" if looked else None)


def _swap(state: State) -> str | None:
    """Return the sizes of swap, not how full it is, which differs from one minute to the next."""
    swaps = _section(state, "memory").get("swaps")
    if not isinstance(swaps, list):
        return None
    rows = [each for each in swaps if isinstance(each, Mapping)]
    return ", ".join(f"{row.get('path')} {_gib(row.get('size_kib'))}" for row in rows) or "none"
