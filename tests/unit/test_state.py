"""The whole state of a machine that is a directory."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import state
from plimsoll.box.host import Host
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
    assert found["manager_files"]["system"] == {"mains": [], "drop_ins": []}
    assert found["modules"]["nvidia"] == {"loaded": False, "files": []}
    assert found["units"]["ssh.service"] == {"error": "systemd does not run here"}


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
    """Every main file is there, the most important first, and the drop-ins of every directory."""
    write_tree(tmp_path, {"/usr/lib/systemd/journald.conf": "u", "/etc/systemd/journald.conf": "e"})
    write_tree(tmp_path, {"/usr/lib/systemd/journald.conf.d/a.conf": "", "/run/systemd/journald.conf.d/b.conf": ""})
    found = state.manager_files(FakeHost(root=str(tmp_path)), "journald")
    assert [f["text"] for f in found["mains"]] == ["e", "u"]
    assert [f["path"].split("/")[1] for f in found["drop_ins"]] == ["run", "usr"]


SSHD = "/etc/ssh/sshd_config"


def _names(found: list[dict[str, Any]]) -> list[str]:
    return [f["path"].removeprefix("/etc/ssh/") for f in found]


def test_sshd_files(tmp_path: Path) -> None:
    """The main file comes first, then all that can be included, nested or below a Match, each file once."""
    texts = {
        SSHD: "Include sshd_config.d/*.conf\nInclude /etc/ssh/once.conf once.conf nothing.conf ~/x\n",
        f"{SSHD}.d/b.conf": "Match User x\nInclude more/[!a].conf\n",
        f"{SSHD}.d/a.conf": "Include /etc/ssh/sshd_config\n",
        f"{SSHD}.d/.c.conf": "",
        f"{SSHD}.d/d.txt": "",
        "/etc/ssh/more/a.conf": "",
        "/etc/ssh/more/b.conf": "",
        "/etc/ssh/once.conf": "",
    }
    write_tree(tmp_path, texts)
    found = _names(state.sshd_files(FakeHost(root=str(tmp_path))))
    assert found == ["sshd_config", "sshd_config.d/a.conf", "sshd_config.d/b.conf", "once.conf", "more/b.conf"]


def test_sshd_files_that_are_too_many(tmp_path: Path) -> None:
    """The reading ends at its bound with an error in the place of the next file, not in silence."""
    write_tree(tmp_path, {SSHD: "Include many/*\n", **{f"/etc/ssh/many/{n:03}": "" for n in range(100)}})
    found = state.sshd_files(FakeHost(root=str(tmp_path)))
    assert len(found) == state.MAX_SSHD_FILES + 1
    assert "error" not in found[-2]
    assert "more than 64 files" in found[-1]["error"]


def test_sshd_file_that_sshd_refuses(tmp_path: Path) -> None:
    """A file with quotes that do not match is read, and nothing that it includes is looked for."""
    write_tree(tmp_path, {SSHD: 'Include "a\n', "/etc/ssh/a": ""})
    assert _names(state.sshd_files(FakeHost(root=str(tmp_path)))) == ["sshd_config"]


def test_file_of_ufw(tmp_path: Path) -> None:
    """Another file that ufw is told to apply is read in the place of its own."""
    write_tree(tmp_path, {"/etc/ufw/ufw.conf": "ENABLED=yes\n", "/etc/ufw/sysctl.conf": "", "/etc/own": "y=1"})
    write_tree(tmp_path, {"/etc/default/ufw": '# x\nIPT_SYSCTL="/etc/own"\n'})
    assert state.sysctl_files(FakeHost(root=str(tmp_path)))["ufw"]["path"] == "/etc/own"


def test_profiles_of_tuned(tmp_path: Path) -> None:
    """What an active profile includes comes before it; a file in /etc replaces one in /usr, and a circle ends."""
    write_tree(
        tmp_path,
        {
            "/etc/tuned/active_profile": "gpu extra\n",
            "/usr/lib/tuned/gpu/tuned.conf": "[main]\ninclude=throughput\n[sysctl]\nvm.x=1\n",
            "/usr/lib/tuned/profiles/throughput/tuned.conf": "[main]\ninclude=gpu\n",
            "/etc/tuned/profiles/extra/tuned.conf": "",
            "/usr/lib/tuned/extra/tuned.conf": "",
        },
    )
    found = state.tuned_profiles(FakeHost(root=str(tmp_path)))
    assert [f["path"] for f in found] == [
        "/usr/lib/tuned/profiles/throughput/tuned.conf",
        "/usr/lib/tuned/gpu/tuned.conf",
        "/etc/tuned/profiles/extra/tuned.conf",
    ]


@pytest.mark.parametrize("active", ["", "../../../secret", "nothing"])
def test_no_profile_of_tuned(tmp_path: Path, active: str) -> None:
    """Without an active profile, or with one that is none, nothing is read."""
    write_tree(tmp_path, {"/etc/tuned/active_profile": active, "/secret/tuned.conf": ""})
    assert state.tuned_profiles(FakeHost(root=str(tmp_path))) == []


def test_files_with_a_dot_are_not_read(tmp_path: Path) -> None:
    """Systemd passes over names that begin with a dot, whatever they end in."""
    write_tree(tmp_path, {"/etc/sysctl.d/.a.conf": "", "/etc/systemd/system.conf.d/.b.conf": ""})
    host = FakeHost(root=str(tmp_path))
    assert state.sysctl_files(host)["sysctl_d"] == []
    assert state.manager_files(host, "system")["drop_ins"] == []


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A FIFO or a device where a file belongs is an error in its place: nothing is opened, nobody waited for."""
    write_tree(tmp_path, {"/etc/sysctl.d/a.conf": "x=1"})
    os.mkfifo(tmp_path / "etc/sysctl.d/b.conf")
    (tmp_path / "etc/sysctl.d/c.conf").symlink_to("/dev/zero")
    (tmp_path / "etc/sysctl.d/d.conf").symlink_to("d.conf")
    files = state.sysctl_files(Host(str(tmp_path)))["sysctl_d"]
    assert [file.get("error") for file in files] == [
        None,
        "is not a regular file",
        "is not a regular file",
        "Too many levels of symbolic links",
    ]
