"""`plimsoll ssh-config`: where the block goes, what it leaves alone, and what ssh makes of it."""

import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.fleet import cli, ssh_config

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the ssh client is not installed")

OURS = {
    "serveraliveinterval": "15",
    "serveralivecountmax": "12",
    "controlpersist": "86400",
    "controlmaster": "auto",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home directory that the command works in."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _config(home: Path, text: str) -> Path:
    path = home / ".ssh" / "config"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(text.encode())
    path.chmod(0o600)
    return path


def _in_force(text: str, host: str = "gx10") -> dict[str, str]:
    found = ssh_config.effective(text, host)
    return {key: found[key] for key in OURS}


def test_prints_the_block(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --merge the block is printed and nothing is written."""
    assert cli.run(["ssh-config", "gx10"]) == 0
    out, err = capsys.readouterr()
    assert "Host gx10\n    ServerAliveInterval 15\n    ServerAliveCountMax 12\n    ControlMaster auto\n" in out
    assert "    ControlPath ~/.ssh/cm-%C\n    ControlPersist 24h\n" in out
    assert err == ""
    assert list(home.iterdir()) == []


CONFIGS = {
    "empty": "",
    "comments only": "# mine\n\n",
    "the same host": "Host gx10\n  HostName 192.0.2.1\n  ServerAliveInterval 60\n  ControlPath none\n",
    "another host": "Host other\n  User x\n",
    "global options": "# mine\nServerAliveInterval 60\nControlMaster no\nHost gx10\n  User x\n",
    "everything": "Host *\n  ServerAliveInterval 60\n  ControlPersist 5\n",
    "a pattern": "Host gx*\n\tServerAliveCountMax=1\n",
    "match": "Match host gx10\n  ControlMaster ask\n",
    "match all": "Match all\n  ControlMaster ask\n",
    "no newline at the end": "Host gx10\n  ServerAliveInterval 60",
    "carriage returns": "Host gx10\r\n  ServerAliveInterval 60\r\n",
    "lower case and equals": "host=gx10\nserveraliveinterval=60\n",
    "in quotes": 'Host "gx10"\n  ServerAliveInterval "60"\n',
}


@needs_ssh
@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS.keys())
def test_our_values_win(text: str) -> None:
    """The ssh client uses the block's values whatever the file says; the file's own lines are all kept."""
    merged = ssh_config.merge(text, "gx10")
    assert _in_force(merged) == OURS
    assert merged.endswith(text)
    assert ssh_config.merge(merged, "gx10") == merged


@needs_ssh
def test_other_hosts_are_not_touched() -> None:
    """What ssh uses for another host is the same as before, global options included."""
    text = "ServerAliveInterval 60\nUser everybody\nHost other\n  ControlMaster ask\n"
    merged = ssh_config.merge(text, "gx10")
    assert _in_force(merged, "other") == _in_force(text, "other")
    assert _in_force(merged, "other")["serveraliveinterval"] == "60"
    assert _in_force(merged, "third")["serveraliveinterval"] == "60"


@needs_ssh
def test_two_hosts() -> None:
    """Blocks for several hosts stand side by side, and merging either again changes nothing."""
    merged = ssh_config.merge(ssh_config.merge("ServerAliveInterval 60\n", "a"), "b")
    assert ssh_config.merge(merged, "a") == merged
    assert ssh_config.merge(merged, "b") == merged
    assert _in_force(merged, "a") == _in_force(merged, "b") == OURS
    assert _in_force(merged, "c")["serveraliveinterval"] == "60"


@needs_ssh
def test_a_block_that_lost_its_place_moves_up() -> None:
    """A block that the user's lines have got in front of is moved to where it wins."""
    merged = "Host gx10\n  ServerAliveInterval 60\n" + ssh_config.merge("", "gx10")
    again = ssh_config.merge(merged, "gx10")
    assert _in_force(again) == OURS
    assert again.count("# plimsoll begin gx10") == 1
    assert again.endswith("Host gx10\n  ServerAliveInterval 60\n")


def test_an_older_block_is_replaced() -> None:
    """What an earlier version wrote between the marks is replaced."""
    old = "# plimsoll begin gx10: old\nHost gx10\n  ServerAliveInterval 1\n# plimsoll end gx10\nHost x\n"
    assert ssh_config.merge(old, "gx10") == ssh_config.merge("Host x\n", "gx10")


@pytest.mark.parametrize(
    "text",
    [
        "# plimsoll begin gx10: x\nHost gx10\n",
        "# plimsoll end gx10\n",
        "# plimsoll end gx10\n# plimsoll begin gx10\n",
        ssh_config.block("gx10") * 2,
    ],
)
def test_damaged_marks(text: str) -> None:
    """Marks without their partner are an error: what lies between cannot be known."""
    with pytest.raises(ssh_config.MergeError, match="damaged"):
        ssh_config.merge(text, "gx10")


@given(st.text(alphabet=st.sampled_from("Host gx10*=#\n\r\t\"'UserMatch\x0c\u2028"), max_size=120))
def test_merge_keeps_every_byte(text: str) -> None:
    """Removing the block gives back exactly what was there, and a second merge is the first."""
    merged = ssh_config.merge(text, "gx10")
    assert merged.endswith(text)
    assert merged.removesuffix(text) in (ssh_config.block("gx10"), ssh_config.block("gx10", closed=True))
    assert ssh_config.merge(merged, "gx10") == merged


@needs_ssh
def test_creates_the_file(home: Path) -> None:
    """A missing ~/.ssh/config is made, readable by its owner only."""
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 0
    config = home / ".ssh" / "config"
    assert config.read_text() == ssh_config.block("gx10")
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700


@needs_ssh
def test_merges_in_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Merging keeps the mode, leaves no other file, and the second time has nothing to do."""
    config = _config(home, "Host \xe4\n  ServerAliveInterval 60\n")
    config.chmod(0o640)
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 0
    merged = config.read_bytes()
    assert merged.endswith("Host \xe4\n  ServerAliveInterval 60\n".encode())
    before = config.stat()
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert config.stat().st_mtime_ns == before.st_mtime_ns
    assert stat.S_IMODE(before.st_mode) == 0o640
    assert [path.name for path in config.parent.iterdir()] == ["config"]


@needs_ssh
def test_bytes_that_are_no_utf8_survive(home: Path) -> None:
    """A file in another encoding keeps its bytes."""
    config = _config(home, "")
    config.write_bytes(b"# gr\xfc\xdfe\nHost x\n")
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 0
    assert config.read_bytes().endswith(b"# gr\xfc\xdfe\nHost x\n")


@needs_ssh
def test_follows_a_symlink(home: Path) -> None:
    """A config that is a link to a file elsewhere stays a link; the file is what changes."""
    real = home / "dotfiles" / "ssh_config"
    real.parent.mkdir()
    real.write_text("Host x\n")
    (home / ".ssh").mkdir(mode=0o700)
    link = home / ".ssh" / "config"
    link.symlink_to(real)
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 0
    assert link.is_symlink()
    assert "Host gx10" in real.read_text()


@needs_ssh
def test_dry_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry shows the difference and leaves everything as it was."""
    config = _config(home, "Host x\n")
    assert cli.run(["ssh-config", "gx10", "--merge", "--dry"]) == 0
    out = capsys.readouterr().out
    assert "+Host gx10\n" in out
    assert " Host x\n" in out
    assert config.read_text() == "Host x\n"


@needs_ssh
def test_tells_what_it_overrides(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value of the user's own for this host that no longer counts is told."""
    _config(home, "Host gx10\n  ServerAliveInterval 60\n")
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 0
    assert "own serveraliveinterval 60 for gx10 no longer counts" in capsys.readouterr().err


@needs_ssh
def test_tells_what_shadows_it(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """When ssh uses another value all the same, that is told, and the exit code is 2."""
    _config(home, "")
    monkeypatch.setattr(ssh_config, "merge", lambda _, host: "ServerAliveInterval 60\n" + ssh_config.block(host))
    assert cli.run(["ssh-config", "gx10", "--merge", "--dry"]) == 2
    assert "shadowed: ssh uses serveraliveinterval 60 for gx10" in capsys.readouterr().err


@needs_ssh
def test_a_file_that_ssh_refuses(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that ssh itself cannot read is left alone, with ssh's own words."""
    config = _config(home, "Host x\n  NoSuchOption 1\n")
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 4
    assert "Bad configuration option: nosuchoption" in capsys.readouterr().err
    assert config.read_text() == "Host x\n  NoSuchOption 1\n"


def test_without_an_ssh_client(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ssh the block is merged, but nobody claims that its values win: exit code 3."""
    monkeypatch.setenv("PATH", str(home))
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 3
    assert "not checked" in capsys.readouterr().err
    assert (home / ".ssh" / "config").read_text() == ssh_config.block("gx10")


@needs_ssh
def test_a_failed_write_leaves_the_file_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the new file cannot be put in place, the old one is there and nothing else."""
    config = _config(home, "Host x\n")

    def _fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", _fail)
    assert cli.run(["ssh-config", "gx10", "--merge"]) == 4
    assert config.read_text() == "Host x\n"
    assert [path.name for path in config.parent.iterdir()] == ["config"]


@pytest.mark.parametrize("host", ["a b", "*", "-oProxyCommand=x", "a\nHost *", "!a", ""])
def test_no_host_name(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no host name or alias would change the meaning of the file: usage error."""
    assert cli.run(["ssh-config", "--", host]) == 4
    assert "is no host name or alias" in capsys.readouterr().err
