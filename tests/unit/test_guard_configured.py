"""The configuration that a host has: by which defaults, and what is never taken for none."""

import argparse
import hashlib
from pathlib import Path

import pytest

from plimsoll.box import cli_guard, cli_replay, cli_reserve
from plimsoll.box.guard import config, configured, glance
from plimsoll.box.guard.config import REFERENCE_KIB, ConfigError
from plimsoll.box.guard.model import KIB_PER_GIB, Lines
from plimsoll.box.host import Host
from tests.unit.builders import write_tree

HALF = {"/proc/meminfo": f"MemTotal: {REFERENCE_KIB // 2} kB\n"}
HALF_LINES = Lines(3 * KIB_PER_GIB // 2, 4 * KIB_PER_GIB, 9 * KIB_PER_GIB // 2)
ALL_LINES = "[lines]\nslow_leave_gib = 9\nslow_enter_gib = 8\nfloor_gib = 3\n"


def _host(root: Path, **files: str) -> Host:
    write_tree(root, {{"toml": config.PATH, "meminfo": "/proc/meminfo"}[name]: text for name, text in files.items()})
    return Host(str(root))


def test_without_a_file_the_lines_are_scaled(tmp_path: Path) -> None:
    """A host without guard.toml has the default lines for its own MemTotal, and no hash."""
    write_tree(tmp_path, HALF)
    loaded = configured.load(Host(str(tmp_path)))
    assert (loaded.config.settings.lines, loaded.sha256) == (HALF_LINES, "")


def test_the_hash_is_of_what_was_read(tmp_path: Path) -> None:
    """The hash is that of the file's bytes, also where they are no UTF-8."""
    content = b"# \xff\n" + ALL_LINES.encode()
    write_tree(tmp_path, {**HALF, config.PATH: ""})
    (tmp_path / config.PATH.lstrip("/")).write_bytes(content)
    loaded = configured.load(Host(str(tmp_path)))
    assert loaded.config.settings.lines == Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
    assert loaded.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("meminfo", ["", "MemTotal: x kB\n", "MemTotal: 0 kB\n", "MemFree: 5 kB\n"])
def test_without_memtotal_the_file_has_to_give_the_lines(meminfo: str, tmp_path: Path) -> None:
    """Where MemTotal is unknown no line is guessed: those of the file hold, and the missing ones are named."""
    host = _host(tmp_path, meminfo=meminfo, toml=ALL_LINES)
    assert configured.load(host).config.settings.lines.floor_kib == 3 * KIB_PER_GIB
    _host(tmp_path, toml="[lines]\nslow_enter_gib = 12\n")
    with pytest.raises(ConfigError, match="MemTotal is not known") as caught:
        configured.load(host)
    (fault,) = str(caught.value).splitlines()
    assert fault.startswith(f"{config.PATH}:1: ")
    assert fault.endswith("give lines.slow_leave_gib, lines.floor_gib")


def test_a_file_that_cannot_be_read_is_not_none(tmp_path: Path) -> None:
    """A directory of that name is an error of the host, not a host without a configuration."""
    host = _host(tmp_path, meminfo=HALF["/proc/meminfo"])
    (tmp_path / config.PATH.lstrip("/")).mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        configured.load(host)
    seen, problems = glance.look(host)
    assert seen.settings.lines == HALF_LINES
    assert f"{config.PATH}: Is a directory: the lines are the defaults" in problems


@pytest.mark.parametrize(("toml", "said"), [(None, "there is no"), ("[lines]\nflor = 1\n", "unknown key lines.flor")])
def test_a_look_says_why_it_goes_by_the_defaults(toml: str | None, said: str, tmp_path: Path) -> None:
    """Where nobody guards, a missing or faulty file is told beside the default lines; also without MemTotal."""
    write_tree(tmp_path, {} if toml is None else {config.PATH: toml})
    seen, problems = glance.look(Host(str(tmp_path)))
    assert seen.settings.lines == Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
    assert [each for each in problems if "the lines are the defaults" in each]
    write_tree(tmp_path, HALF)
    seen, problems = glance.look(Host(str(tmp_path)))
    assert seen.settings.lines == HALF_LINES
    assert [each for each in problems if said in each]


def _lines_of_reserve(host: Host, monkeypatch: pytest.MonkeyPatch) -> Lines:
    found: list[Lines] = []

    def reserve(_arguments: object, _host: object, _store: object, lines: Lines, _meminfo: object) -> int:
        found.append(lines)
        return 0

    monkeypatch.setattr(cli_reserve, "_need_access", lambda _host: None)
    monkeypatch.setattr(cli_reserve, "_reserve", reserve)
    parser = argparse.ArgumentParser()
    cli_reserve.reserve_arguments(parser)
    cli_reserve.reserve(parser.parse_args(["--for", "x.service"]), host, b"")
    return found[0]


@pytest.mark.parametrize("toml", [None, "[lines]\nfloor_gib = 1\n"])
def test_all_go_by_the_same(toml: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status, reserve and replay have the guard's lines of one host, with its file and without."""
    write_tree(tmp_path, {**HALF, **({} if toml is None else {config.PATH: toml})})
    host = Host(str(tmp_path))
    expected = configured.load(host).config.settings.lines
    assert glance.look(host)[0].settings.lines == expected
    assert _lines_of_reserve(host, monkeypatch) == expected
    settings, total_kib = cli_replay._settings(None, host, None)
    assert (settings.lines, total_kib) == (expected, REFERENCE_KIB // 2)


def test_a_recording_of_another_machine_has_that_ones_lines(tmp_path: Path) -> None:
    """A replay scales the default lines to the machine that was recorded."""
    write_tree(tmp_path, HALF)
    settings, _total = cli_replay._settings(None, Host(str(tmp_path)), REFERENCE_KIB)
    assert settings.lines.floor_kib == 3 * KIB_PER_GIB


def test_a_reload_without_a_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that goes by the defaults, since there is no file, has read what there is."""
    said = {"program_sha256": None, "config_sha256": "", "sample_age_s": 0}
    monkeypatch.setattr("plimsoll.box.heartbeat.read", lambda _host: said)
    host = Host(str(tmp_path))
    assert cli_guard._not_yet(host) == ""
    write_tree(tmp_path, {config.PATH: ALL_LINES})
    assert "does not yet go by" in cli_guard._not_yet(host)
