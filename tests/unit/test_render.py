"""The files that a host gets: whole, said by whom, and read back by the resolver as they were meant."""

import json
import shlex
from typing import Any

import pytest

from plimsoll.box.cmdline import module_options, parse_environment_file
from plimsoll.box.model import WANTED_SCHEMA, Kind, Wanted
from plimsoll.box.resolve import ini_value, parse_ini
from plimsoll.box.resolve_sysctl import sysctl_value
from plimsoll.box.words import split_words
from plimsoll.controls import box, registry, render
from plimsoll.policy import Policy
from tests.unit.builders import file, sysctl, unit_property

SYNC = Wanted("j/s", "j", Kind.MANAGER_PROPERTY, "journald", "5s", name="SyncIntervalSec", section="Journal", file="/j")
OPTION = Wanted("d/o", "d", Kind.MODULE_OPTION, "nvidia", "0", name="NVreg_X", file="/m")
ARGUMENTS = ["-r", "60", "--prefer", "^(a|b)$"]
DAEMON = Wanted("earlyoom/arguments", "earlyoom", Kind.CMDLINE, "e.service", json.dumps(ARGUMENTS), file="/e")


def _one(wanted: Wanted, *more: Wanted) -> dict[str, Any]:
    (found,) = render.layer_files(wanted.layer, [wanted, *more], [])
    return file(found.path, found.content.decode())


def test_sysctl_file() -> None:
    """Every key is set to its value."""
    text = _one(sysctl("kernel.panic", "20"), sysctl("vm.swappiness", "1"))
    for key, value in (("kernel.panic", "20"), ("vm.swappiness", "1")):
        winner = sysctl_value([text], key).winner
        assert winner is not None
        assert winner.value == value


def test_section_files() -> None:
    """Properties stand in their sections, those of several sections in one file too."""
    low, slice_ = unit_property("x", "MemoryMin", "1M"), unit_property("x", "MemoryLow", "2M", "Slice")
    text = _one(low, slice_)
    assert [(a.section, a.key, a.value) for a in parse_ini(text)] == [
        ("Service", "MemoryMin", "1M"),
        ("Slice", "MemoryLow", "2M"),
    ]
    winner = ini_value([_one(SYNC)], "Journal", "SyncIntervalSec").winner
    assert winner is not None


def test_module_file() -> None:
    """The option is set for its module."""
    assert [a.value for a in module_options([_one(OPTION)], "", "nvidia", "NVreg_X")] == ["0"]


def test_daemon_file() -> None:
    """The arguments come out of the file as they went in."""
    value, _line = parse_environment_file(_one(DAEMON)["text"])["EARLYOOM_ARGS"]
    assert split_words(value, c_escapes=False) == ARGUMENTS


@pytest.mark.parametrize("wanted", [sysctl("kernel.panic", "20"), SYNC, OPTION, DAEMON], ids=lambda w: w.kind)
def test_every_file_says_whose_it_is(wanted: Wanted) -> None:
    """The first lines name the layer and the undo, every setting its control, and the last line ends."""
    text = _one(wanted)["text"]
    assert text.startswith("# Written by plimsoll")
    assert f"plimsoll revert --layer {wanted.layer}" in text
    assert f"# {wanted.id}\n" in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_what_follows_a_change() -> None:
    """The actions of all controls of a file follow its change, each once; what keeps no file has none."""
    one, two = sysctl("a.b", "1"), sysctl("a.c", "2")
    state = Wanted("k/u", "kernel", Kind.UNIT_STATE, "x.service", "enabled active")
    follow = [(one, (("x", "1"),)), (two, (("x", "1"), ("y",)))]
    (found,) = render.layer_files("kernel", [one, two, state], follow)
    assert found.after == (("x", "1"), ("y",))


def test_own_files() -> None:
    """The program, its wrapper and units are files of the layer box; all but the list of what is wanted are judged."""
    files = {f.path: f for f in render.box_files((sysctl("a.b", "1"),), Policy())}
    assert files[box.PROGRAM].is_program
    assert files[box.WRAPPER].mode == "0755"
    assert [path for path, f in files.items() if not f.judged] == [box.WANTED]
    assert {f"{box.UNIT_DIRECTORY}/{unit}" for unit in box.UNITS} <= files.keys()
    wrapper = files[box.WRAPPER].content.decode().splitlines()
    assert wrapper[0] == "#!/bin/sh"
    assert shlex.split(wrapper[-1])[-2:] == ["$@", f"3<{box.PROGRAM}"]


def test_wanted_document() -> None:
    """What the box judges itself by holds every control, and reads back as the same records."""
    wanted = (sysctl("a.b", "1"), SYNC)
    document = json.loads(render.wanted_document(wanted, ("/bin/mail", "-s", "x y")))
    assert document["schema"] == WANTED_SCHEMA
    assert document["notify_command"] == ["/bin/mail", "-s", "x y"]
    assert [Wanted.from_json(c) for c in document["controls"]] == list(wanted)


def test_rendering_is_repeatable() -> None:
    """The same policy makes the same bytes: a second run can tell that nothing has changed."""
    assert [f.sha256 for f in render.box_files((), Policy())] == [f.sha256 for f in render.box_files((), Policy())]


def test_every_kind_with_a_file_has_a_template() -> None:
    """No control with a file of its own is left without one."""
    for control in registry.every_control():
        if control.file:
            path = control.file.format(unit="x")
            value = "[]" if control.kind is Kind.CMDLINE else control.default
            wanted = Wanted(control.id, control.layer, control.kind, "x", value, control.name, control.section, path)
            assert render.layer_files(control.layer, [wanted], [])
