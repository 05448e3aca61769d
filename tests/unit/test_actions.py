"""The steps that change a running system: what they overwrite, what they run, and what they refuse."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plimsoll.box import actions, apply, ledger, revert
from plimsoll.box.actions import ACTIONS, ActionError, Pending
from plimsoll.box.host import Ran
from plimsoll.box.model import PLAN_SCHEMA
from plimsoll.box.resolve_sysctl import sysctl_key
from plimsoll.controls import registry
from tests.unit.builders import FakeHost, write_tree


@dataclass(frozen=True)
class Answering(FakeHost):
    """A host on which commands, known by words that they contain, answer as they are told to."""

    answers: dict[str, Ran] = field(default_factory=dict)

    def run(self, *argv: str, timeout_s: float = 20, given: str | None = None) -> Ran:
        """Return the first answer whose words are in the command; else answer as FakeHost does."""
        line = " ".join(argv)
        for words, answer in self.answers.items():
            if words in line:
                self.calls.append(argv)
                return answer
        return super().run(*argv, timeout_s=timeout_s, given=given)


def _verbs(host: FakeHost) -> list[str]:
    """Return what was done to units, questions left out."""
    return [" ".join(c[1:]).replace("-- ", "") for c in host.calls if c[0] == "systemctl" and c[1] != "show"]


def test_kernel_value(tmp_path: Path) -> None:
    """A value is observed before it is written, at the path of its key."""
    write_tree(tmp_path, {"/proc/sys/net/ipv4/conf/eth0.100/rp_filter": "1\n"})
    host = FakeHost(root=str(tmp_path))
    key = "net.ipv4.conf.eth0/100.rp_filter"
    assert ACTIONS["sysctl"].observe(host, key, "2") == [{"kind": "sysctl", "key": key, "old": "1"}]
    assert ACTIONS["sysctl"].perform(host, key, "2") == f"{key} = 2"
    assert (tmp_path / f"proc/sys/{sysctl_key(key)}").read_text() == "2"


def test_kernel_value_that_cannot_be_written(tmp_path: Path) -> None:
    """A key that is not there has nothing to be put back, and writing it is an error with the path."""
    host = FakeHost(root=str(tmp_path))
    assert ACTIONS["sysctl"].observe(host, "a.b", "1") == []
    with pytest.raises(ActionError, match="/proc/sys/a/b: writing 1: No such file"):
        ACTIONS["sysctl"].perform(host, "a.b", "1")


def test_cgroup_value(tmp_path: Path) -> None:
    """Of `default 100` the weight is what is put back."""
    path = "/sys/fs/cgroup/x/io.weight"
    write_tree(tmp_path, {path: "default 100\n"})
    host = FakeHost(root=str(tmp_path))
    assert ACTIONS["cgroup"].observe(host, path, "1000") == [{"kind": "cgroup", "key": path, "old": "100"}]
    ACTIONS["cgroup"].perform(host, path, "1000")
    assert (tmp_path / path[1:]).read_text() == "1000"


def test_controller_is_switched_on_from_the_root_down(tmp_path: Path) -> None:
    """A cgroup file that is not there gets its controller in every ancestor that lacks it; a kernel without is told."""
    tops = {f"/sys/fs/cgroup{group}/cgroup.subtree_control": "memory\n" for group in ("", "/system.slice")}
    write_tree(tmp_path, {**tops, "/sys/fs/cgroup/system.slice/x.service/memory.min": "0\n"})
    host = FakeHost(root=str(tmp_path))
    said = ACTIONS["cgroup"].perform(host, "/sys/fs/cgroup/system.slice/x.service/io.weight", "1000")
    assert "this kernel has no io.weight" in said
    assert {(tmp_path / path[1:]).read_text() for path in tops} == {"+io"}


def test_every_action_of_a_control_is_known() -> None:
    """What controls ask for exists, and each action has its place among the others."""
    named = {a[0] for c in registry.every_control() for a in getattr(c, "activation", ())}
    assert named <= ACTIONS.keys()
    order = sorted(ACTIONS, key=lambda name: ACTIONS[name].order)
    assert order.index("fetch") < order.index("install") < order.index("sysctl")
    assert order.index("daemon-reload") < order.index("cgroup") < order.index("restart")
    assert order.index("sshd-check") < order.index("start") < order.index("restart")


def test_sshd_is_not_restarted_with_a_broken_configuration(tmp_path: Path) -> None:
    """What sshd -t refuses is said with its own last line."""
    host = Answering(root=str(tmp_path), answers={"sshd -t": Ran(255, "", "x: line 3: Bad configuration option")})
    with pytest.raises(ActionError, match=r"line 3: Bad configuration option.*sshd was not restarted"):
        ACTIONS["sshd-check"].perform(host)


@pytest.mark.parametrize(
    ("lines", "ports"),
    [
        ("[::]:22 (Stream)\n0.0.0.0:2222 (Stream)\n", {"22", "2222"}),
        ("22 (Stream)", {"22"}),
        ("/run/x.sock (Stream)\n[::]:53 (Datagram)", set()),
        ("port 22\nport 2022\nlistenaddress [::]:22\nx11displayoffset 10\n", {"22", "2022"}),
        ("", set()),
    ],
)
def test_listening_ports(lines: str, ports: set[str]) -> None:
    """Ports are read from systemd's sockets and from sshd's own settings."""
    assert actions.listening_ports(lines) == ports


def test_retiring_the_socket_keeps_the_order_of_its_links(tmp_path: Path) -> None:
    """The socket is disabled and forgotten before it is stopped, and sshd runs before and after."""
    answers = {"-p Listen": Ran(0, "[::]:22 (Stream)\n", ""), "sshd -T": Ran(0, "port 22\n", "")}
    host = Answering(root=str(tmp_path), answers=answers)
    ACTIONS["retire-socket"].perform(host, "ssh.socket", "ssh.service")
    assert _verbs(host) == [
        "disable ssh.socket",
        "daemon-reload",
        "start ssh.service",
        "stop ssh.socket",
        "restart ssh.service",
    ]


def test_a_port_that_only_the_socket_has_is_refused(tmp_path: Path) -> None:
    """Retiring a socket whose port sshd does not have would lose it: refused with the port, nothing done."""
    answers = {"-p Listen": Ran(0, "[::]:2222 (Stream)\n", ""), "sshd -T": Ran(0, "port 22\n", "")}
    host = Answering(root=str(tmp_path), answers=answers)
    with pytest.raises(ActionError, match="listens on port 2222"):
        ACTIONS["retire-socket"].perform(host, "ssh.socket", "ssh.service")
    assert _verbs(host) == []


def test_started_at_boot_without_an_alias(tmp_path: Path) -> None:
    """A unit gets the one link that starts it at boot, nothing is enabled, and a revert takes the link away."""
    link = "/etc/systemd/system/multi-user.target.wants/ssh.service"
    fragment = "/usr/lib/systemd/system/ssh.service"
    host = FakeHost(root=str(tmp_path), units={"ssh.service": {"FragmentPath": fragment}})
    wanted = {"schema": PLAN_SCHEMA, "layer": "sshd", "files": [], "actions": [["start-at-boot", "ssh.service"]]}
    for _run in range(2):
        list(apply.apply(wanted, host))
        assert Path(host.path(link)).readlink() == Path(fragment)
    assert set(_verbs(host)) == {"daemon-reload"}
    assert [entry["key"] for entry in ledger.load(host)] == [link]
    assert list(revert.revert(host, None)) == [("done", f"remove {link}"), ("done", "then daemon-reload")]
    assert not Path(host.path(link)).is_symlink()


@pytest.mark.parametrize(("enablement", "times"), [("enabled", 0), ("disabled", 1), ("enabled-runtime", 1)])
def test_what_is_enabled_is_not_enabled_again(tmp_path: Path, enablement: str, times: int) -> None:
    """Enabling costs reloads: a unit that its package has enabled for good is left as it is."""
    host = FakeHost(root=str(tmp_path), units={"earlyoom.service": {"UnitFileState": enablement}})
    ACTIONS["enable"].perform(host, "earlyoom.service")
    assert _verbs(host).count("enable --no-reload earlyoom.service") == times


def test_a_unit_without_a_file_is_not_started_at_boot(tmp_path: Path) -> None:
    """Where there is no unit file nothing is linked, and the error says so."""
    with pytest.raises(ActionError, match="no unit file"):
        ACTIONS["start-at-boot"].perform(FakeHost(root=str(tmp_path)), "ssh.service")


def test_what_systemd_does_not_answer_is_not_recorded(tmp_path: Path) -> None:
    """A unit whose state cannot be read is an error, not one that was never there."""
    host = FakeHost(root=str(tmp_path), failing={("systemctl", "show"): "no answer"})
    with pytest.raises(ActionError, match="no answer"):
        ACTIONS["start"].observe(host, "ssh.service")


def test_sshd_is_not_stopped_while_nobody_else_listens(tmp_path: Path) -> None:
    """Putting sshd back to `not running` is refused unless its socket listens in its place."""
    units = {"ssh.service": {"ActiveState": "active"}, "ssh.socket": {"ActiveState": "inactive"}}
    host = FakeHost(root=str(tmp_path), units=units)
    with pytest.raises(ActionError, match="no login would work"):
        actions.set_unit(host, "ssh.service", ["stop"])
    units["ssh.socket"]["ActiveState"] = "active"
    actions.set_unit(host, "ssh.service", ["stop"])
    assert _verbs(host) == ["stop ssh.service"]


def test_a_service_runs_again_when_its_socket_failed(tmp_path: Path) -> None:
    """Where a socket cannot be started, the service that made room for it is running again before the error is told."""
    units = {"x.service": {"ActiveState": "active"}}
    answers = {"-p Triggers": Ran(0, "x.service\n", ""), "start -- x.socket": Ran(1, "", "busy")}
    host = Answering(root=str(tmp_path), units=units, answers=answers)
    with pytest.raises(ActionError, match="busy"):
        actions.set_unit(host, "x.socket", ["start"])
    assert units["x.service"]["ActiveState"] == "active"


# --- packages ---------------------------------------------------------------------------------------


def test_moved_packages() -> None:
    """Everything that apt would install, upgrade or remove is seen."""
    text = "NOTE: x\nInst earlyoom (1.7)\nInst libc6 [2.39] (2.40)\nRemv nvidia-x [1]\nConf earlyoom (1.7)\n"
    assert actions.moved_packages(text) == ["earlyoom", "libc6", "nvidia-x"]


@pytest.mark.parametrize(
    "package", ["nvidia-driver-595", "libnvidia-x", "linux-image-6.17", "dgx-release", "linux-nvidia"]
)
def test_a_driver_is_never_moved(tmp_path: Path, package: str) -> None:
    """An installation that would touch a driver, a kernel or NVIDIA's kit is refused before anything is fetched."""
    answers = {"--simulate install": Ran(0, f"Inst earlyoom (1)\nInst {package} [1] (2)\n", "")}
    host = Answering(root=str(tmp_path), answers=answers)
    with pytest.raises(ActionError, match=f"would also change {package}: refused"):
        ACTIONS["fetch"].perform(host, "earlyoom")
    assert not any("--download-only" in call for call in host.calls)


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        ("--simulate install", "is not to be had: Unable to locate"),
        ("--download-only", "could not be fetched: Unable to locate"),
    ],
)
def test_no_source_is_pending(tmp_path: Path, failing: str, words: str) -> None:
    """Without a source the package can wait: that is no failure of the host."""
    host = Answering(root=str(tmp_path), answers={failing: Ran(100, "", "E: x\nUnable to locate")})
    with pytest.raises(Pending, match=words):
        ACTIONS["fetch"].perform(host, "earlyoom")


@pytest.mark.parametrize(
    ("message", "error"),
    [("E: Could not get lock /var/lib/dpkg/lock-frontend", Pending), ("dpkg: error processing", ActionError)],
)
def test_failed_installation(tmp_path: Path, message: str, error: type[Exception]) -> None:
    """Another package manager at work is a reason to wait, anything else an error."""
    host = Answering(root=str(tmp_path), answers={"-y install": Ran(100, "", message)})
    with pytest.raises(error):
        ACTIONS["install"].perform(host, "earlyoom")


@pytest.mark.parametrize(
    ("status", "recorded"),
    [
        (Ran(0, "installed", ""), []),
        (Ran(1, "", "no packages found"), ["absent"]),
        (Ran(0, "not-installed", ""), ["absent"]),
        (Ran(0, "config-files", ""), ["config-files"]),
    ],
)
def test_a_package_of_theirs_is_not_recorded(tmp_path: Path, status: Ran, recorded: list[str]) -> None:
    """Only a package that was not installed before is ours to take away."""
    host = Answering(root=str(tmp_path), answers={"dpkg-query": status})
    assert [e["old"] for e in ACTIONS["install"].observe(host, "earlyoom")] == recorded


def test_removing_takes_nothing_else_along(tmp_path: Path) -> None:
    """A package on which somebody else's has come to depend stays, and the other is named."""
    simulated = Ran(0, "Purg earlyoom [1]\nPurg theirs [1]\n", "")
    host = Answering(root=str(tmp_path), answers={"--simulate purge": simulated})
    with pytest.raises(ActionError, match="theirs would be removed too"):
        actions.remove_package(host, "earlyoom", "absent")
    assert not any(call[-3:] == ("-y", "purge", "earlyoom") for call in host.calls)


@pytest.mark.parametrize(("old", "verb"), [("absent", "purge"), ("config-files", "remove")])
def test_their_configuration_stays(tmp_path: Path, old: str, verb: str) -> None:
    """A package that had left its configuration behind before us does so again."""
    host = FakeHost(root=str(tmp_path))
    assert actions.remove_package(host, "earlyoom", old) == "removed the package earlyoom"
    assert host.calls[-1][-3:] == ("-y", verb, "earlyoom")


def test_the_watchdog_gets_its_configured_time_back(tmp_path: Path) -> None:
    """What somebody told the running manager is taken back with the value that stands for none."""
    host = FakeHost(root=str(tmp_path))
    actions.ACTIONS["watchdog"].perform(host)
    assert host.calls[-1][:2] == ("busctl", "set-property")
    assert host.calls[-1][-3:] == ("RuntimeWatchdogUSec", "t", "18446744073709551615")
