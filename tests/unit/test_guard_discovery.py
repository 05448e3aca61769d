"""Discovery: containers' names, what the driver told, and whom to ask to go, from the files of one host."""

import json
import time
from pathlib import Path

from plimsoll.box.guard import names
from plimsoll.box.guard.discovery import Discovery
from plimsoll.box.guard.gpu import Told
from plimsoll.box.guard.model import Process
from plimsoll.box.host import Host
from tests.unit.builders import write_tree
from tests.unit.guard_trees import DOCKER, GIB, OTHER_ID, SESSION, Shown
from tests.unit.protection_builders import container_files

UNIT = "/system.slice/vllm.service"


def test_names_from_files(tmp_path: Path) -> None:
    """Containers' names come from docker's, podman's and kubelet's files, each for the user whose it is."""
    podman = json.dumps([{"id": OTHER_ID, "names": ["granite"]}, {"id": 7}, "odd"])
    write_tree(
        tmp_path,
        {
            **container_files({}, {"Name": "/qwen"}),
            names.PODMAN: podman,
            f"/home/ada/{names.PODMAN_OF_USER}": podman.replace("granite", "adas"),
            f"{names.KUBERNETES_LOGS}/vllm-7f_prod_server-{'ef' * 32}.log": "",
        },
    )
    found_names, problems = names.read(Host(str(tmp_path)), {1000: "/home/ada"})
    assert found_names == {
        (None, "a1" * 6): "qwen",
        (None, OTHER_ID[:12]): "granite",
        (1000, OTHER_ID[:12]): "adas",
        (None, "ef" * 6): "prod/server",
    }
    assert problems == ()


def test_names_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    """A broken file costs its own names only, and is named."""
    write_tree(tmp_path, {names.PODMAN: "{"})
    found_names, problems = names.read(Host(str(tmp_path)), {})
    assert found_names == {}
    assert len(problems) == 1


def test_discovery(tmp_path: Path) -> None:
    """One look finds the container by its name, what the driver tells of it, and whom to ask to go."""
    cgroup = f"/system.slice/docker-{'a1' * 32}.scope"
    Shown(10, "vllm", cgroup, argv=["vllm", "serve"], links=["/dev/nvidia-uvm"]).write(tmp_path)
    write_tree(tmp_path, container_files({}, {"Name": "/qwen"}))
    told = Told({10: 60 * GIB}, asked_s=time.monotonic())
    look = Discovery(Host(str(tmp_path))).look(time.monotonic(), told, 20 * GIB)
    (one,) = look.workloads
    assert (one.name, one.attributed_kib, one.engine, one.kind) == ("qwen", 60 * GIB, "vllm", "container")
    assert look.targets[one.key].processes == (Process(10, 100),)
    assert look.computing == {one.key}


def test_discovery_forgets_what_was_told_of_the_dead(tmp_path: Path) -> None:
    """Memory that the driver told of a process is not put to a later one with its number."""
    Shown(10, "vllm", UNIT, start=10**9, links=["/dev/nvidia-uvm"]).write(tmp_path)
    told = Told({10: 60 * GIB}, asked_s=time.monotonic())
    (one,) = Discovery(Host(str(tmp_path))).look(time.monotonic(), told, 20 * GIB).workloads
    assert one.attributed_kib is None


def test_virtual_machines_are_said(tmp_path: Path) -> None:
    """That nobody looks into virtual machines is said where there are some."""
    Shown(10, "qemu-system-aar", SESSION).write(tmp_path)
    problems = Discovery(Host(str(tmp_path))).look(1.0, Told(), None).problems
    assert problems == ("what runs inside virtual machines is not seen, and 1 run here",)


def test_discovery_sees_who_is_deaf(tmp_path: Path) -> None:
    """The first process of a container that does not handle SIGTERM is passed over for the one below it."""
    deaf = Shown(10, "sh", DOCKER, ppid=5).write(tmp_path)
    (deaf / "status").write_text("NSpid:\t10\t1\nSigCgt:\t0000000000010002\n")
    Shown(11, "vllm", DOCKER, ppid=10, argv=["vllm", "serve"], links=["/dev/nvidia-uvm"]).write(tmp_path)
    look = Discovery(Host(str(tmp_path))).look(1.0, Told(), None)
    assert [each.pid for each in look.targets[DOCKER].processes] == [11]
