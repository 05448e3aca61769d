"""Units as systemd, files, cgroups and processes have them, on a machine that is a directory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import systemctl, units
from tests.unit.builders import FakeHost, process_files, stock_host, write_tree

ETC, USR = "/etc/systemd/system", "/usr/lib/systemd/system"


def test_show_output() -> None:
    """Units are separated by an empty line; values may hold `=`, and a repeated property keeps all its lines."""
    text = "Id=a.service\nListen=1 (Stream)\nListen=2 (Stream)\nEnvironment=A=1\n\nId=b.service\nMainPID=0\n\n"
    assert systemctl.parse_show(text) == [
        {"Id": "a.service", "Listen": "1 (Stream)\n2 (Stream)", "Environment": "A=1"},
        {"Id": "b.service", "MainPID": "0"},
    ]


def test_unit_is_read_under_its_own_name(tmp_path: Path) -> None:
    """A unit asked for by its alias is read with the files, the process and the cgroup of the real one."""
    host = stock_host(tmp_path, **{f"{USR}/ssh.service": "[Service]\n"})
    host.units["sshd.service"] = host.units["ssh.service"]
    found = units.read(host, ["sshd.service"])["sshd.service"]
    assert [f["path"] for f in found["fragments"]] == [f"{USR}/ssh.service"]
    assert found["process"]["oom_score_adj"] == -1000
    assert [c["path"] for c in found["cgroup"]] == [
        "/sys/fs/cgroup/system.slice/ssh.service",
        "/sys/fs/cgroup/system.slice",
    ]


def test_no_answer_of_systemd_is_an_error_for_each_unit(tmp_path: Path) -> None:
    """Where systemctl fails every unit says so; a template, which it cannot show, is read from files all the same."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    host = FakeHost(root=str(tmp_path), failing={("systemctl",): "Failed to connect to bus"})
    found = units.read(host, ["ssh.service", "user@.service"])
    assert found["ssh.service"] == {"error": "systemctl show: Failed to connect to bus"}
    assert found["user@.service"]["drop_ins"] == []
    assert units.manager(host) == {}


@pytest.mark.parametrize(
    ("files", "aliases", "expected"),
    [
        ({f"{ETC}/a-b.service.d/x.conf": "", f"{USR}/a-b.service.d/y.conf": ""}, [], ["etc", "usr"]),
        ({f"{ETC}/a-.service.d/x.conf": "", f"{USR}/a-b.service.d/x.conf": ""}, [], ["etc", "usr"]),
        ({f"{ETC}/service.d/x.conf": "", f"{USR}/a-b.service.d/x.conf": ""}, [], ["usr", "etc"]),
        ({f"{ETC}/s.service.d/x.conf": "", f"{USR}/a-b.service.d/x.conf": ""}, ["s.service"], ["usr", "etc"]),
        ({f"{ETC}/s.service.d/x.conf": ""}, [], []),
        ({f"{ETC}/a-b.service.d/x.txt": ""}, [], []),
    ],
)
def test_which_drop_in_hides_which(
    tmp_path: Path, files: dict[str, str], aliases: list[str], expected: list[str]
) -> None:
    """/etc goes before /usr/lib, the unit before its aliases, and what is for the whole type comes last."""
    write_tree(tmp_path, files)
    found = units.drop_ins(FakeHost(root=str(tmp_path)), "a-b.service", aliases)
    assert [f["path"].split("/")[1] for f in found] == expected


def test_merged_directories_count_once(tmp_path: Path) -> None:
    """/lib that is a link to /usr/lib does not make two files of one."""
    write_tree(tmp_path, {f"{USR}/a.service.d/x.conf": ""})
    (tmp_path / "lib").symlink_to("usr/lib")
    assert len(units.drop_ins(FakeHost(root=str(tmp_path)), "a.service")) == 1


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("a@i.service", [f"{USR}/a@i.service", f"{ETC}/a@.service"]),
        ("a@j.service", [f"{ETC}/a@.service"]),
        ("a@.service", [f"{ETC}/a@.service"]),
    ],
)
def test_fragments_of_an_instance(tmp_path: Path, unit: str, expected: list[str]) -> None:
    """An instance without a fragment of its own has its template's; one of its own goes before it."""
    write_tree(tmp_path, {f"{ETC}/a@.service": "", f"{USR}/a@i.service": "", f"{USR}/a.service": ""})
    found = units.files_of(FakeHost(root=str(tmp_path)), unit)
    assert [f["path"] for f in found["fragments"]] == expected


@pytest.mark.parametrize("target", ["/dev/null", "/nowhere"])
def test_links_to_nothing_mask(tmp_path: Path, target: str) -> None:
    """A drop-in that is a link to /dev/null or to nowhere sets nothing and hides its namesakes."""
    write_tree(tmp_path, {f"{ETC}/a.service.d/y.conf": "", f"{USR}/a.service.d/x.conf": ""})
    (tmp_path / f"{ETC[1:]}/a.service.d/x.conf").symlink_to(target)
    found = units.drop_ins(FakeHost(root=str(tmp_path)), "a.service")
    assert [(f["path"].split("/")[1], f.get("masked", False)) for f in found] == [
        ("etc", True),
        ("etc", False),
        ("usr", False),
    ]


def test_process(tmp_path: Path) -> None:
    """A process is read whatever its name holds; its start is in seconds."""
    write_tree(tmp_path, process_files(42, "a) (b c", score=-5, cgroup="/x/y.service", started=250))
    found = units.process(FakeHost(root=str(tmp_path)), 42)
    assert found is not None
    assert (found["comm"], found["oom_score_adj"], found["cgroup"]) == ("a) (b c", -5, "/x/y.service")
    assert found["started_s"] == 250 / os.sysconf("SC_CLK_TCK")
    assert found["uid"] == os.getuid()


@pytest.mark.parametrize("missing", ["stat", "cmdline", "oom_score_adj"])
def test_process_that_ends_while_it_is_read(tmp_path: Path, missing: str) -> None:
    """A process that is gone in the middle of the reading is no process, and no error."""
    write_tree(tmp_path, process_files(42, "x"))
    (tmp_path / f"proc/42/{missing}").unlink()
    assert units.process(FakeHost(root=str(tmp_path)), 42) is None


@given(st.text(st.sampled_from("()1 2\n\0ax-"), max_size=40))
def test_any_stat_can_be_read(text: str) -> None:
    """No content of /proc/PID/stat breaks the reader."""

    class Proc(FakeHost):
        def text(self, path: str) -> str:
            del path
            return text

    units.process(Proc(), os.getpid())
    systemctl.parse_show(text)


def test_processes_that_matter(tmp_path: Path) -> None:
    """Those of sshd, user managers and sessions matter, and what a user runs with a higher score."""
    in_manager = "/user.slice/user-0.slice/user@0.service/app.slice/x.scope"
    files = {
        **process_files(8, "code", score=300, cgroup=in_manager),
        **process_files(9, "cat", cgroup=in_manager),
        **process_files(14, "kthreadd"),
        "/proc/14/cmdline": "",
        **process_files(10, "sshd-session"),
        **process_files(11, "bash", cgroup="/user.slice/user-0.slice/session-1.scope"),
        **process_files(12, "systemd", cgroup="/user.slice/user-0.slice/user@0.service/init.scope"),
        **process_files(13, "cron", cgroup="/system.slice/cron.service"),
        "/proc/meminfo": "",
    }
    write_tree(tmp_path, files)
    found = units.processes(FakeHost(root=str(tmp_path)))
    assert sorted(p["pid"] for p in found) == [8, 9, 10, 11, 12, 13]
    assert sorted(p["pid"] for p in found if units.matters(p)) == [8, 10, 11, 12]


def test_arguments_are_cut() -> None:
    """Of a process's arguments two travel: the rest may be long, and may be a secret."""
    assert units.shortened({"pid": 1, "argv": ["a", "b", "--token"]}) == {"pid": 1, "argv": ["a", "b"]}


def test_engines(tmp_path: Path) -> None:
    """Model servers are found by a name cut at 15 characters, or by their first arguments."""
    files = process_files(10, "VLLM::EngineCor") | process_files(11, "python3") | process_files(12, "sshd")
    files["/proc/11/cmdline"] = "python3\0/opt/vllm/serve\0"
    write_tree(tmp_path, files)
    found = units.processes(FakeHost(root=str(tmp_path)))
    assert sorted(p["pid"] for p in found if units.is_engine(p)) == [10, 11]


def test_cgroup_of_a_slice_in_which_nothing_runs() -> None:
    """Systemd names no cgroup for an empty slice; its own name is it, unless it is nested."""
    assert units.default_cgroup("system.slice") == "/system.slice"
    assert units.default_cgroup("a-b.slice") == ""
    assert units.default_cgroup("ssh.service") == ""
