"""The whole state of a machine that is a directory."""

import json
from pathlib import Path

import pytest

from plimsoll.box import state
from plimsoll.box.model import Request
from tests.unit.builders import FakeHost, stock_host, write_tree


def test_state_survives_json(tmp_path: Path) -> None:
    """What is read is plain JSON and holds every section that was asked for."""
    request = Request(sysctls=("vm.min_free_kbytes", "no.such"), units=("ssh.service",), files=("/etc/x",))
    found = state.read(request, stock_host(tmp_path))
    assert json.loads(json.dumps(found)) == found
    assert found["sysctl"] == {"vm.min_free_kbytes": {"value": "45056"}, "no.such": {"absent": True}}
    assert found["files"] == {"/etc/x": {"absent": True}}
    assert found["units"]["ssh.service"]["show"]["Id"] == "ssh.service"
    assert found["ledger"] == {"sysctls": {}, "files": {}}


def test_bare_directory_is_a_machine_of_unknowns(tmp_path: Path) -> None:
    """Where there is nothing to read the state is complete all the same: None and errors, no exception."""
    host = FakeHost(root=str(tmp_path), failing={("systemctl",): "no bus"})
    found = state.read(Request(packages=("earlyoom",), modules=("nvidia",)), host)
    assert found["packages"] is None
    assert found["room"]["/etc"] == {"error": "No such file or directory"}
    assert found["manager_files"]["system"] == {"main": None, "drop_ins": []}
    assert found["modules"]["nvidia"] == {"loaded": False, "files": []}
    assert found["units"]["ssh.service"] == {"error": "systemctl show: no bus"}


def test_sysctl_key_with_a_dot_in_a_name(tmp_path: Path) -> None:
    """The value of a key is read at its path, a dot in an interface's name included."""
    write_tree(
        tmp_path, {"/proc/sys/net/ipv4/conf/eth0.100/rp_filter": "2\n", "/proc/sys/kernel/printk": "4\t4\t1\t7\n"}
    )
    request = Request(sysctls=("net.ipv4.conf.eth0/100.rp_filter", "kernel.printk"))
    found = state.read(request, FakeHost(root=str(tmp_path)))["sysctl"]
    assert [v["value"] for v in found.values()] == ["2", "4 4 1 7"]


def test_sysctl_files(tmp_path: Path) -> None:
    """Directories come in their order of importance, ufw only where it is on, and /etc/sysctl.conf apart."""
    write_tree(tmp_path, {"/usr/lib/sysctl.d/a.conf": "", "/etc/sysctl.d/b.conf": "", "/etc/sysctl.d/README": ""})
    write_tree(
        tmp_path, {"/etc/sysctl.conf": "x=1", "/etc/ufw/sysctl.conf": "y=1", "/etc/ufw/ufw.conf": "ENABLED=no\n"}
    )
    host = FakeHost(root=str(tmp_path))
    found = state.sysctl_files(host)
    assert [f["path"] for f in found["sysctl_d"]] == ["/etc/sysctl.d/b.conf", "/usr/lib/sysctl.d/a.conf"]
    assert found["etc_sysctl_conf"]["text"] == "x=1"
    assert found["ufw"] is None
    write_tree(tmp_path, {"/etc/ufw/ufw.conf": "ENABLED=yes\n"})
    assert state.sysctl_files(host)["ufw"]["text"] == "y=1"


@pytest.mark.parametrize("kind", ["dangling", "directory", "null"])
def test_sysctl_file_that_sets_nothing(tmp_path: Path, kind: str) -> None:
    """A link to a sysctl.conf that is gone, as an upgrade leaves it, is no file that could not be read."""
    path = tmp_path / "etc/sysctl.d/99-sysctl.conf"
    path.parent.mkdir(parents=True)
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"dangling": "../sysctl.conf", "null": "/dev/null"}[kind])
    (found,) = state.sysctl_files(FakeHost(root=str(tmp_path)))["sysctl_d"]
    assert found == {"path": "/etc/sysctl.d/99-sysctl.conf", "masked": True}


def test_managed_files(tmp_path: Path) -> None:
    """A file of ours is told from a link, a directory and nothing; a large one travels without its text."""
    write_tree(tmp_path, {"/a": "text\n", "/big": "x" * state.MAX_SHOWN_BYTES})
    (tmp_path / "a").chmod(0o640)
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "dir").mkdir()
    host = FakeHost(root=str(tmp_path))
    found = state.managed_file(host, "/a")
    assert (found["text"], found["mode"]) == ("text\n", "0640")
    assert len(found["sha256"]) == 64
    assert state.managed_file(host, "/big")["text"] is None
    assert state.managed_file(host, "/link") == {"link": "/dev/null"}
    assert state.managed_file(host, "/dir") == {"error": "is not a regular file"}
    assert state.managed_file(host, "/a/below") == {"absent": True}


def test_manager_files(tmp_path: Path) -> None:
    """Systemd reads one main file, the most important, and the drop-ins of every directory."""
    write_tree(tmp_path, {"/usr/lib/systemd/journald.conf": "u", "/etc/systemd/journald.conf": "e"})
    write_tree(tmp_path, {"/usr/lib/systemd/journald.conf.d/a.conf": "", "/run/systemd/journald.conf.d/b.conf": ""})
    found = state.manager_files(FakeHost(root=str(tmp_path)), "journald")
    assert found["main"]["text"] == "e"
    assert [f["path"].split("/")[1] for f in found["drop_ins"]] == ["run", "usr"]


def test_sshd_files_in_order_of_inclusion(tmp_path: Path) -> None:
    """Of sshd's settings the first one counts, so the directory comes before the main file."""
    write_tree(
        tmp_path, {"/etc/ssh/sshd_config": "", "/etc/ssh/sshd_config.d/b.conf": "", "/etc/ssh/sshd_config.d/a.conf": ""}
    )
    found = state.sshd_files(FakeHost(root=str(tmp_path)))
    assert [f["path"].rpartition("/")[2] for f in found] == ["a.conf", "b.conf", "sshd_config"]
