"""From a host's state to findings and facts: false protections, known-bad platforms, now and after the next boot."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import memory, platform, protections, units
from plimsoll.box.model import Place, State
from plimsoll.fleet import findings as under_test
from plimsoll.fleet.findings import facts, findings, load_rules, platform_records
from plimsoll.fleet.report import Finding, FindingKind
from tests.unit.builders import FakeHost, process_files, stock_host, write_tree

RULES = load_rules()
ID = "b2" * 32
BAD_KERNEL = "7.0.0-1019-nvidia"


def state_of(host: FakeHost) -> dict[str, Any]:
    """Return the sections of a state that findings and facts are made from, after a trip through JSON."""
    here = platform.read(host)
    seen = memory.read(host, here["driver"])
    packages = platform.packages(host, ())
    observed = protections.read(host, units.processes(host), seen, here["driver"]["version"], packages)
    state = {"platform": here, "memory": seen, "packages": packages, "protections": observed, "units": {}}
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def ids(state: State) -> list[str]:
    """Return which rules find something."""
    return [finding.id for finding in findings(state, RULES)]


def test_stock_machine_has_no_findings(tmp_path: Path) -> None:
    """A machine on which nothing was done, and that runs no engine, gives no reason for a finding."""
    assert findings(state_of(stock_host(tmp_path)), RULES) == ()


def test_container_in_front_of_a_finding(tmp_path: Path) -> None:
    """A finding names what was seen and where, with the rule's reason and evidence."""
    directory = f"/var/lib/docker/containers/{ID}"
    limits = {"Memory": 64 << 30, "Runtime": "nvidia", "RestartPolicy": {"Name": "no"}}
    write_tree(tmp_path, {f"{directory}/hostconfig.json": json.dumps(limits)})
    write_tree(tmp_path, {f"{directory}/config.v2.json": '{"Name": "/vllm", "State": {"Running": true}}'})
    (found,) = findings(state_of(stock_host(tmp_path)), RULES)
    rule = next(rule for rule in RULES if rule.id == "container-memory-limit")
    assert found == Finding(
        id="container-memory-limit",
        kind=FindingKind.FALSE_PROTECTION,
        title=rule.title,
        seen="container vllm: --memory 64 GiB of 121.6 GiB in the box, running: True",
        why=rule.why,
        evidence=rule.evidence,
        source=rule.source,
        dated="2026-08-23",
        advice=rule.advice,
        place=Place(f"{directory}/hostconfig.json", 0),
    )


USER_UNIT = """\
[Service]
OOMScoreAdjust=800
MemoryMax=256M
Restart=always
RestartSec=30
ExecStart=/usr/bin/env -i HOME=/home/u /usr/bin/docker run --rm --gpus all --ipc host \\
  --memory 128g --memory-swap 128g --oom-score-adj 800 --entrypoint python3 \\
  ghcr.io/x/vllm /opt/wrapper.py serve /models --gpu-memory-utilization ${UTIL}
"""
MONITOR = "[Service]\nExecStart=%h/.local/bin/sysmon.sh\nRestart=always\nRestartSec=5\nOOMScoreAdjust=-900\n"
TEMPLATE = (
    "[Service]\nUser=__USER__\nExecStart=__DIR__/.venv/bin/python __DIR__/app.py\nRestart=on-failure\nRestartSec=5\n"
)


def test_units_as_they_are_found_in_the_field(tmp_path: Path) -> None:
    """A limit on a docker client, a restart into memory in use and a score that cannot be are found, others are not."""
    user = "/home/u/.config/systemd/user"
    files = {f"{user}/llm.service": USER_UNIT, f"{user}/sysmon.service": MONITOR}
    write_tree(tmp_path, files | {"/etc/systemd/system/panel.service": TEMPLATE})
    found = findings(state_of(stock_host(tmp_path)), RULES)
    assert [(each.id, each.place) for each in found] == [
        ("unit-container-limit", Place(f"{user}/llm.service", 6)),
        ("unit-container-limit-above-memory", Place(f"{user}/llm.service", 6)),
        ("unit-limit-on-docker-client", Place(f"{user}/llm.service", 3)),
        ("user-unit-score-negative", Place(f"{user}/sysmon.service", 5)),
        ("unit-restart-at-once", Place(f"{user}/llm.service", 4)),
    ]


def test_ollama_restarts_as_it_likes(tmp_path: Path) -> None:
    """It loads nothing before it is asked, so its usual unit is no finding."""
    unit = "[Service]\nExecStart=/usr/local/bin/ollama serve\nRestart=always\nRestartSec=3\n"
    write_tree(tmp_path, {"/etc/systemd/system/ollama.service": unit})
    assert ids(state_of(stock_host(tmp_path))) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m\0002\0-s\00080", ["earlyoom-waits-for-swap"]),
        ("-m\00015\0-s\0005", ["earlyoom-waits-for-swap"]),
        ("-r\00060\0-m\0005,3\0-s\000100,100\0-g", []),
        ("-m\0005,3\0-s\000100,100\0--dryrun", ["earlyoom-dry-run"]),
    ],
)
def test_earlyoom_of_the_field(tmp_path: Path, arguments: str, expected: list[str]) -> None:
    """Arguments that let two boxes lock up are found; those that take swap out of the condition are not."""
    files = process_files(9, "earlyoom") | {"/proc/9/cmdline": f"/usr/bin/earlyoom\0{arguments}\0"}
    host = stock_host(tmp_path, **files)
    swap = {"/proc/meminfo": host.text("/proc/meminfo") + "SwapTotal: 16777212 kB\nSwapFree: 14983000 kB\n"}
    write_tree(tmp_path, swap)
    assert ids(state_of(host)) == expected


def test_pressure_limit_counts_while_systemd_oomd_runs(tmp_path: Path) -> None:
    """A slice in which systemd-oomd would kill is found with its line, and only if somebody acts on it."""
    path = "/etc/systemd/system/user.slice.d/oomd.conf"
    host = stock_host(tmp_path, **{path: "[Slice]\nManagedOOMMemoryPressure=kill\n"})
    assert ids(state_of(host)) == []
    write_tree(tmp_path, process_files(5, "systemd-oomd"))
    found = {each.id: each.place for each in findings(state_of(host), RULES)}
    assert found == {"systemd-oomd": None, "oomd-pressure-kill": Place(path, 2)}


# --- the platform -----------------------------------------------------------------------------------


def with_kernel(root: Path, running: str, following: str, **files: str) -> FakeHost:
    """Return a host that runs one kernel and boots another one next."""
    host = stock_host(root, **files)
    write_tree(root, {"/proc/sys/kernel/osrelease": f"{running}\n", f"/boot/vmlinuz-{following}": ""})
    (root / "boot/vmlinuz").unlink(missing_ok=True)
    (root / "boot/vmlinuz").symlink_to(f"vmlinuz-{following}")
    return host


@pytest.mark.parametrize(
    ("running", "following", "expected"),
    [
        (BAD_KERNEL, BAD_KERNEL, [f"kernel {BAD_KERNEL}"]),
        (BAD_KERNEL, "6.17.0-1032-nvidia", [f"kernel {BAD_KERNEL}"]),
        ("6.17.0-1032-nvidia", BAD_KERNEL, [f"kernel {BAD_KERNEL} (the kernel that boots next)"]),
        ("6.17.0-1032-nvidia", "6.17.0-1031-nvidia", []),
    ],
)
def test_known_bad_kernel(tmp_path: Path, running: str, following: str, expected: list[str]) -> None:
    """Both the kernel that runs and the one that comes are judged, and one that is both only once."""
    found = findings(state_of(with_kernel(tmp_path, running, following)), RULES)
    assert [each.seen for each in found] == expected


def test_next_kernel_without_driver(tmp_path: Path) -> None:
    """A kernel that was installed without the driver's module is named before it boots."""
    following = "6.17.0-1032-nvidia"
    files = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  x\n",
        f"/lib/modules/{following}/modules.dep": "kernel/net/x.ko.zst:\nkernel/drivers/video/nvidiafb.ko.zst:\n",
    }
    host = with_kernel(tmp_path, "6.17.0-1014-nvidia", following, **files)
    assert ids(state_of(host)) == ["next-kernel-without-driver"]
    write_tree(tmp_path, {f"/lib/modules/{following}/modules.dep": "updates/dkms/nvidia.ko.zst:\n"})
    assert ids(state_of(host)) == []


def test_driver_and_firmware(tmp_path: Path) -> None:
    """A driver that runs with another version's firmware, or whose own is gone from the disk, is found."""
    information = "Model: \t\t NVIDIA GB10\nGPU Firmware: \t 580.159.03\nGPU Excluded:\t No\n"
    host = stock_host(
        tmp_path,
        **{
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.173.02  x\n",
            "/proc/driver/nvidia/gpus/000f:01:00.0/information": information,
            "/lib/firmware/nvidia/580.159.03/gsp_ga10x.bin": "",
            "/lib/firmware/nvidia/ga102/gsp/gsp.bin": "",
        },
    )
    assert ids(state_of(host)) == ["driver-and-firmware-differ", "driver-firmware-missing"]
    write_tree(tmp_path, {"/lib/firmware/nvidia/580.173.02/gsp_ga10x.bin": ""})
    write_tree(tmp_path, {"/proc/driver/nvidia/gpus/000f:01:00.0/information": "GPU Firmware: \t N/A\n"})
    assert ids(state_of(host)) == []


def test_handover_that_holds_memory(tmp_path: Path) -> None:
    """Free CMA above all CMA is a finding, with both figures; CMA that adds up is none."""
    host = stock_host(tmp_path)
    write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 127533056 kB\nCmaTotal: 0 kB\nCmaFree: 940604 kB\n"})
    (found,) = findings(state_of(host), RULES)
    assert (found.id, found.place) == ("handover-holds-memory", None)
    assert found.seen == "CmaFree 918.6 MiB exceeds CmaTotal 0 KiB, kernel 6.17.0-1014-nvidia"


def test_what_boots_next_is_not_known_to_have_what_runs(tmp_path: Path) -> None:
    """Of the coming kernel neither command line nor memory is known, the machine is."""
    host = with_kernel(
        tmp_path, "6.14.0-nvidia", "6.17.0-1032-nvidia", **{"/sys/class/dmi/id/board_vendor": "NVIDIA\n"}
    )
    running, following = platform_records(state_of(host))
    assert set(running) == set(following)
    assert (following["kernel"], following["board_vendor"]) == ("6.17.0-1032-nvidia", "NVIDIA")
    assert (following["cmdline"], following["cma_free_kib"], running["cmdline"]) == (None, None, "root=/dev/x quiet")


# --- what a host may say ----------------------------------------------------------------------------


def test_many_of_a_kind_are_summed_up() -> None:
    """A host cannot flood a report: of one rule only so many findings are listed, the rest is counted."""
    observed = [{"kind": "killer", "name": "systemd-oomd", "subject": f"oomd {number}"} for number in range(100)]
    found = findings({"protections": {"observations": observed}}, RULES)
    assert len(found) == under_test.MAX_FINDINGS_OF_A_RULE + 1
    assert found[-1].seen == "80 more like these"


def test_false_protections_come_first() -> None:
    """What somebody relies on goes before what the platform is."""
    observed = [{"kind": "killer", "name": "systemd-oomd", "subject": "oomd"}]
    found = findings({"platform": {"kernel": BAD_KERNEL}, "protections": {"observations": observed}}, RULES[::-1])
    assert [each.kind for each in found] == [FindingKind.FALSE_PROTECTION, FindingKind.KNOWN_BAD]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("kernel", "next_kernel", "kernels", "driver", "os_release", "meminfo", "swaps", "observations", "cmdline")


@given(st.dictionaries(st.sampled_from(("platform", "memory", "protections", "packages", "units", "manager")),
                       JSON | st.dictionaries(st.sampled_from(KEYS), JSON)))  # fmt: skip
def test_a_lying_host(hostile: dict[str, Any]) -> None:
    """Any JSON in place of a state gives findings and facts of the right form, never an error."""
    for found in findings(hostile, RULES):
        assert Finding.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert all(value is None or isinstance(value, str) for value in facts(hostile).values())


# --- facts ------------------------------------------------------------------------------------------


def test_facts(tmp_path: Path) -> None:
    """What is depended on and not set is named as a person would, unknown is None and absent is said."""
    host = with_kernel(
        tmp_path,
        "6.14.0-nvidia",
        BAD_KERNEL,
        **{
            "/sys/class/dmi/id/board_vendor": "NVIDIA\n",
            "/sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n",
            "/sys/class/dmi/id/bios_version": "5.36_0ACUM018\n",
            "/sys/class/dmi/id/bios_date": "08/06/2025\n",
            "/etc/os-release": 'ID=ubuntu\nPRETTY_NAME="Ubuntu 24.04.4 LTS"\n',
            "/etc/dgx-release": 'DGX_SWBUILD_VERSION="7.2.3"\nDGX_OTA_VERSION="7.5.0"\nDGX_OTA_VERSION="7.6.0"\n',
            **process_files(5, "systemd-oomd", cgroup="/system.slice/systemd-oomd.service"),
        },
    )
    state = state_of(host) | {"units": {"bustd.service": {"show": {"ActiveState": "active"}}}}
    assert facts(state) == {
        "kernel": "6.14.0-nvidia",
        "next_kernel": BAD_KERNEL,
        "kernel_command_line": "root=/dev/x quiet",
        "driver": None,
        "gsp_firmware": None,
        "board": "NVIDIA NVIDIA_DGX_Spark",
        "bios": "5.36_0ACUM018 08/06/2025",
        "os_release": "Ubuntu 24.04.4 LTS",
        "dgx_os": "7.6.0",
        "systemd": "257.13-1",
        "openssh": None,
        "earlyoom": None,
        "mem_total": "121.6 GiB",
        "other_killers": "bustd.service, systemd-oomd.service",
        "swap": "/swap.img 16.0 GiB",
    }


def test_facts_of_nothing() -> None:
    """Of a host that said nothing all facts are unknown, other killers included."""
    assert set(facts({}).values()) == {None}
    assert facts({"units": {}, "memory": {"swaps": []}})["other_killers"] == "none"
    assert facts({"units": {}, "memory": {"swaps": []}})["swap"] == "none"
