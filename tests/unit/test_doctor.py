"""Whether this machine is ready: with the real programs of OpenSSH, and a home that the test makes."""

import datetime
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plimsoll.fleet import cli, doctor, doctor_hosts
from plimsoll.fleet.doctor_checks import Check, Health, exit_code, grouped, ran
from plimsoll.fleet.doctor_hosts import Agent
from plimsoll.inventory import Host, load
from plimsoll.policy import Policy

NO_AGENT = Agent(frozenset(), "there is none")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a key that is open and one that has a passphrase."""
    directory = tmp_path_factory.mktemp("keys")
    for name, passphrase in (("open", ""), ("locked", "secret")):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(directory / name)]
        subprocess.run(command, check=True)
    return directory


@pytest.fixture
def config(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return what writes a configuration of ssh for the host gx10, with a known key unless told otherwise."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.chdir(tmp_path)

    def write(*lines: str, key: str = "open", known: str = "192.0.2.1") -> Path:
        host_key = " ".join((keys / "open.pub").read_text().split()[:2])
        (tmp_path / "known_hosts").write_text("".join(f"{name} {host_key}\n" for name in known.split()))
        beside = [f"IdentityFile {keys / key}", "GlobalKnownHostsFile none", "HostName 192.0.2.1"]
        file = tmp_path / "config"
        file.write_text(
            "\n".join(["Host *", f"UserKnownHostsFile {tmp_path}/known_hosts", "Host gx10", *lines, *beside])
        )
        return file

    return write


def gx10(**changes: object) -> Host:
    """Return the host."""
    return Host("gx10", (), Policy(), (), **changes)  # type: ignore[arg-type]  # any of its fields


def found(file: Path, host: Host | None = None, agent: Agent = NO_AGENT) -> dict[str, Check]:
    """Return what was found for the host, by subject."""
    return {check.subject: check for check in doctor_hosts.checks(host or gx10(), file, agent)}


# --- the host's key ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "known", "health", "said"),
    [
        ((), "192.0.2.1", Health.GOOD, "known"),
        ((), "198.51.100.7", Health.BAD, "not known"),
        (("Port 2222",), "[192.0.2.1]:2222", Health.GOOD, "known"),
        (("Port 2222",), "192.0.2.1", Health.BAD, "not known"),
        (("HostKeyAlias box",), "box", Health.BAD, "no HostKeyAlias"),
        (("HostKeyAlias box",), "box 192.0.2.1", Health.GOOD, "known"),
    ],
)
def test_a_host_key(config: Callable[..., Path], lines: tuple[str, ...], known: str, health: Health, said: str) -> None:
    """The key has to be known to both clients: pyinfra's knows neither an alias nor the system's file."""
    check = found(config(*lines, known=known))["host key"]
    assert (check.health, said in check.said) == (health, True)
    assert bool(check.advice) == (health is Health.BAD)


def test_the_inventory_says_where_a_host_is(config: Callable[..., Path]) -> None:
    """Address and port of the inventory are those that the key is looked for by."""
    file = config(known="[198.51.100.7]:2200")
    assert found(file)["host key"].health is Health.BAD
    assert found(file, gx10(address="198.51.100.7", port=2200))["host key"].health is Health.GOOD


# --- the operator's key -----------------------------------------------------------------------------


def test_an_open_key(config: Callable[..., Path]) -> None:
    """A key without a passphrase needs no agent."""
    assert found(config())["own key"].health is Health.GOOD


def test_a_locked_key(config: Callable[..., Path], keys: Path) -> None:
    """One with a passphrase needs an agent that has it; another key in the agent may do or not."""
    file = config(key="locked")
    check = found(file)["own key"]
    assert check.health is Health.BAD
    assert f"ssh-add {keys / 'locked'}" in check.advice
    loaded = Agent(frozenset([(keys / "locked.pub").read_text().split()[1]]))
    assert found(file, agent=loaded)["own key"].health is Health.GOOD
    assert found(file, agent=Agent(frozenset(["AAAA"])))["own key"].health is Health.NOTE


def test_no_key(config: Callable[..., Path]) -> None:
    """Without a key and an agent nobody logs in by himself."""
    check = found(config(key="missing"))["own key"]
    assert (check.health, "ssh-keygen" in check.advice) == (Health.BAD, True)


@pytest.fixture
def agent(keys: Path) -> Iterator[str]:
    """Run an agent with one key; returns its socket."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("there is no ssh-agent")
    directory = Path(os.environ.get("TMPDIR", "/tmp")) / f"agent-{os.getpid()}"  # noqa: S108  # a socket's short path
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(directory)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            done = ran("ssh-add", "-q", str(keys / "open"), SSH_AUTH_SOCK=str(directory))
            assert done.code == 0, done.err
            yield str(directory)
        finally:
            process.terminate()
            directory.unlink(missing_ok=True)


def test_an_agent_of_its_own(config: Callable[..., Path], agent: str) -> None:
    """The agent that a host's configuration names is the one that is asked."""
    assert found(config("IdentityAgent none", key="missing"))["own key"].health is Health.BAD
    check = found(config(f"IdentityAgent {agent}", key="missing"))["own key"]
    assert (check.health, "1 keys" in check.said) == (Health.NOTE, True)


# --- names and jump hosts ---------------------------------------------------------------------------


def test_a_name_that_nobody_knows(config: Callable[..., Path]) -> None:
    """By a name that it cannot resolve itself pyinfra finds no host, which is said before."""
    file = config("HostName no-such-host.invalid")
    assert found(file)["name"].health is Health.BAD
    jumping = found(config("HostName no-such-host.invalid", "ProxyJump 192.0.2.9"))["name"]
    assert (jumping.health, "@ssh/NAME" in jumping.advice) == (Health.NOTE, True)


def test_a_file_of_the_same_name(config: Callable[..., Path]) -> None:
    """What lies in the working directory under the host's name is what pyinfra would read."""
    file = config()
    assert found(file)["name"].health is Health.GOOD
    Path("gx10").mkdir()
    assert found(file)["name"].health is Health.NOTE


@pytest.mark.parametrize(
    ("lines", "known", "health"),
    [
        (("ProxyJump me@192.0.2.9",), "192.0.2.1 192.0.2.9", Health.GOOD),
        (("ProxyJump me@192.0.2.9:2222",), "192.0.2.1 [192.0.2.9]:2222", Health.GOOD),
        (("ProxyJump 192.0.2.9",), "192.0.2.1", Health.BAD),
        (("ProxyJump behind",), "192.0.2.1 behind", Health.BAD),
    ],
)
def test_a_jump_host(config: Callable[..., Path], lines: tuple[str, ...], known: str, health: Health) -> None:
    """A jump host that is not known stops pyinfra, and one behind another is left out by it."""
    file = config(*lines, known=known)
    file.write_text(f"Host behind\nProxyJump 192.0.2.8\n{file.read_text()}")
    assert found(file)["jump host"].health is health


def test_a_configuration_that_ssh_refuses(config: Callable[..., Path]) -> None:
    """It is told in ssh's own words, and nothing is said about the rest."""
    checks = found(config("NoSuchOption yes"))
    assert list(checks) == ["ssh config"]
    assert "nosuchoption" in checks["ssh config"].said


# --- this machine -----------------------------------------------------------------------------------


def test_versions() -> None:
    """What is required and missing or too old is named; what belongs to another purpose is not."""
    required = ["click>=8.1", "rich>=1000", "no-such-package", "nor-this; extra == 'dev'"]
    python, packages = doctor.versions(required)
    assert python.health is Health.GOOD
    assert packages.health is Health.BAD
    assert packages.said.startswith("rich is ")
    assert packages.said.endswith(">=1000 is wanted; no-such-package is not installed")
    assert [check.health for check in doctor.versions(["click>=8.1"])] == [Health.GOOD, Health.GOOD]


def test_the_working_directory(tmp_path: Path) -> None:
    """The repository's root is where pyinfra finds its settings, and nowhere else."""
    assert doctor.working_directory(doctor.ROOT).health is Health.GOOD
    assert doctor.working_directory(tmp_path).health is Health.NOTE


def test_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenSSH nothing else is worth a look."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.programs().health is Health.BAD
    assert doctor.of_hosts([gx10()], None) == []


def test_a_waiver_that_has_run_out(tmp_path: Path) -> None:
    """It is named, and so is an inventory without hosts."""
    file = tmp_path / "hosts.yml"
    waiver = "waivers: [{control: kernel/kernel.sysrq, hosts: [all], reason: x, until: 2026-01-31}]"
    file.write_text(f"hosts: {{gx10: {{}}}}\n{waiver}\n")
    day = datetime.date(2026, 1, 31)
    subjects = [[c.subject for c in doctor.of_inventory(load(file), day + datetime.timedelta(n))] for n in (0, 1)]
    assert subjects == [["inventory", "rules"], ["inventory", "waivers", "rules"]]
    file.write_text("hosts: {}\n")
    assert next(doctor.of_inventory(load(file), day)).health is Health.NOTE


# --- the whole --------------------------------------------------------------------------------------


def test_equal_findings_are_one() -> None:
    """Fifty hosts with the same finding are one line, and the subjects keep their order."""
    checks = [
        Check(subject, Health.GOOD if name != "c" else Health.BAD, "known", hosts=(name,))
        for name in "abc"
        for subject in ("name", "host key")
    ]
    assert [(c.subject, c.hosts) for c in grouped(checks)] == [
        ("name", ("a", "b")),
        ("name", ("c",)),
        ("host key", ("a", "b")),
        ("host key", ("c",)),
    ]


@pytest.mark.parametrize(
    ("healths", "code"),
    [
        ([], 0),
        ([Health.GOOD, Health.NOTE], 0),
        ([Health.BAD, Health.GOOD], 2),
        ([Health.BAD, Health.UNKNOWN], 3),
        ([Health.INVALID, Health.UNKNOWN], 4),
    ],
)
def test_exit_codes(healths: list[Health], code: int) -> None:
    """The worst finding decides."""
    assert exit_code(Check("x", health, "") for health in healths) == code


def test_the_command(
    config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says who is affected, as JSON too, and ends with 2 for what has to be mended, 4 for a bad inventory."""
    monkeypatch.setenv("PLIMSOLL_INVENTORY", str(tmp_path / "hosts.yml"))
    (tmp_path / "hosts.yml").write_text("hosts: {gx10: {}}\n")
    file = config(known="elsewhere")
    assert cli.run(["doctor", "-F", str(file)]) == 2
    assert "gx10: not known" in capsys.readouterr().out
    assert cli.run(["doctor", "-F", str(file), "--json", "gx10"]) == 2
    document = json.loads(capsys.readouterr().out)
    (key,) = (check for check in document["checks"] if check["subject"] == "host key")
    assert (document["schema"], key["health"], key["hosts"]) == ("plimsoll.doctor/1", "bad", ["gx10"])
    (tmp_path / "hosts.yml").write_text("hosts: {gx10: {port: x}}\n")
    assert cli.run(["doctor", "-F", str(file)]) == 4
    assert "port must be a whole number" in " ".join(capsys.readouterr().out.split())
