"""A report on a terminal."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from plimsoll.box.model import Verdict
from plimsoll.fleet.advice import BY_SEVERITY, advice, matters, reason_for, worst
from plimsoll.fleet.report import HostReport, Report, WaiverNote
from plimsoll.fleet.table import STYLES, show
from plimsoll.fleet.text import printable, readable
from tests.unit import report_builders as build


@pytest.fixture(autouse=True)
def _no_forced_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def shown(report: Report, *, every: bool = False, terminal: bool = False) -> str:
    """Return what `show` writes at 80 columns."""
    file = io.StringIO()
    show(report, Console(file=file, width=80, force_terminal=terminal), every=every)
    return file.getvalue()


def unfolded(text: str) -> str:
    """Return the text with its lines joined, for what may have been folded."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("name", build.every_kind())
def test_it_fits_80_columns_and_is_plain_text_when_piped(name: str) -> None:
    """No line is longer than 80, and nothing but printable characters and line ends comes out."""
    text = shown(build.every_kind()[name])
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(character == "\n" or character.isprintable() for character in text)


def test_a_terminal_gets_the_verdicts_colours() -> None:
    """On a terminal there are escapes of ours; the hostile ones stay visible text."""
    text = shown(build.report(build.hostile()), terminal=True)
    assert "\x1b[1;31mdrifted" in text
    assert "\x1b[2J" not in text
    assert r"\x1b[2J" in text
    assert "\x1b]0;" not in text


def test_markup_of_a_host_is_text() -> None:
    """What looks like rich markup is shown as it is."""
    assert "[bold red]x[/]" in unfolded(shown(build.report(build.hostile("[bold red]x[/]"))))


def test_a_deviation_is_shown_with_all_that_is_known_of_it() -> None:
    """Verdict, control, values, the deciding line and the reason are there; what is ok is not."""
    text = unfolded(shown(build.report(HostReport("gx10", reached=True, controls=_DRIFT))))
    assert "drifted kernel/kernel.sysrq wanted 1, now 438, after a reboot 1" in text
    assert "decided by /etc/sysctl.d/zz-plimsoll.conf:3 the running system has 438" in text
    assert "kernel.panic" not in text


_DRIFT = (build.judgement(Verdict.DRIFTED), build.judgement(control="recovery/kernel.panic"))


def test_a_place_that_the_reason_names_is_not_repeated() -> None:
    """The reason of a shadowed control names the line that wins, and that is enough."""
    text = unfolded(
        shown(build.report(HostReport("gx10", reached=True, controls=(build.judgement(Verdict.SHADOWED),))))
    )
    assert "decided by" not in text
    assert text.count("/etc/sysctl.d/zzz-site.conf:3") == 1


def test_every_shows_what_is_ok_too() -> None:
    """With `every` each control is listed."""
    text = shown(build.report(HostReport("gx10", reached=True, controls=_DRIFT)), every=True)
    assert "recovery/kernel.panic" in text


def test_the_worst_comes_first() -> None:
    """The deviations of a host are in the order of their severity."""
    text = shown(build.report(build.host(verdicts=tuple(reversed(Verdict)))))
    listed = re.findall(r"^  (\w+) +\w+/", text, re.MULTILINE)
    assert listed == [verdict.value for verdict in BY_SEVERITY if verdict is not Verdict.OK]


def test_several_hosts_begin_with_a_line_for_each() -> None:
    """The overview names every host with its counts and kernel; a host that is well gets no more than that."""
    text = shown(build.fleet(4))
    overview, _, rest = text.partition("\n\n")
    assert re.search(rf"gx10-0 +{build.CONTROLS} ok +0 +6\.17\.0-1014-nvidia", overview)
    assert re.search(r"gx10-2 +not reached: timed out", overview)
    assert "gx10-0" not in rest
    assert f"gx10-1: 1 shadowed, 1 drifted, 1 pending, {build.CONTROLS - 3} ok" in rest


def test_an_unreached_host_says_why() -> None:
    """The problem is named, and no control is said to be ok."""
    text = shown(build.report(build.unreached()))
    assert "not reached: timed out after 10 s: no banner" in text
    assert "ok" not in text


def test_a_host_without_controls_is_not_said_to_be_ok() -> None:
    """Nothing judged is said as such."""
    assert "bare: no control was judged" in shown(build.report(HostReport("bare", reached=True)))


def test_no_host_is_said() -> None:
    """An audit of nothing says so."""
    assert shown(build.report()).strip() == "no host was audited"


def test_findings_waivers_and_what_was_not_seen_are_shown() -> None:
    """They stand beside the controls, and in the totals."""
    note = WaiverNote("kernel/kernel.sysrq", ("a", "b"), "2026-06-30", "expired")
    host = build.host(findings=(build.finding(),), not_seen=("/root/.docker: not readable",))
    text = unfolded(shown(build.report(host, waivers=(note,))))
    for part in ("false A memory limit on a container that CUDA does not obey", "container vllm has --memory 100g"):
        assert part in text
    assert "not seen /root/.docker: not readable" in text
    assert "expired kernel/kernel.sysrq on a, b, until 2026-06-30" in text
    assert text.rstrip().endswith(f"hosts reached: 1 of 1; {build.CONTROLS} ok; findings: 1; could not be seen: 1")


def test_long_text_is_cut() -> None:
    """A host that sends mebibytes cannot fill the terminal."""
    assert len(shown(build.report(build.hostile()))) < 20_000


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\u202e\u2066\u200f", r"\u202e\u2066\u200f"),
        ("\u2028\u2029\u0085", r"\u2028\u2029\x85"),
        ("\ud800\ufffe", r"\ud800\ufffe"),
        ("Größe 漢 [b]<i>&", "Größe 漢 [b]<i>&"),
        ("abcdef", "abcd… (2 more characters)"),
        (None, "None"),
    ],
)
def test_printable_makes_control_characters_visible(raw: object, safe: str) -> None:
    """Controls, overrides, separators and surrogates become escapes; letters of any script stay."""
    assert printable(raw, 4 if raw == "abcdef" else 2000) == safe


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "none"),
        ("", "nothing set"),
        ('["-m", "5,2", "a b"]', "-m 5,2 'a b'"),
        ('["not json', '["not json'),
        ('["a", 1]', '["a", 1]'),
        (f"{'ab' * 32} 0644", "abababababab… 0644"),
        ("\x1b", r"\x1b"),
        (7, "7"),
    ],
)
def test_values_are_shown_for_people(value: object, said: str) -> None:
    """A command line is shown as typed, a hash by its beginning, anything else as it is."""
    assert readable(value) == said


def test_a_nested_list_is_no_trap() -> None:
    """A value nested deeper than a parser goes is shown as text."""
    nested = '["' + '",' + "[" * 1900
    assert readable(nested) == nested


def test_good_and_bad_have_colours_of_their_own() -> None:
    """Only the verdicts that fail an audit are left to red."""
    assert set(Verdict) - set(STYLES) == {Verdict.SHADOWED, Verdict.DRIFTED, Verdict.UNPERSISTED}


# --- what to do, and why it matters -----------------------------------------------------------------


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_advice(verdict: Verdict) -> None:
    """Whatever the verdict, there is a sentence that says what to do, and no other verdict has the same."""
    said = {v: advice(build.judgement(v), "gx10") for v in Verdict}
    assert said[verdict].endswith(".")
    assert list(said.values()).count(said[verdict]) == 1


def test_advice_names_the_file_and_the_commands() -> None:
    """A shadowed control's advice names the line that wins; a drifted one's the commands to type."""
    assert "`/etc/sysctl.d/zzz-site.conf:3`" in advice(build.judgement(Verdict.SHADOWED), "gx10")
    said = advice(build.judgement(Verdict.DRIFTED), "gx10")
    assert "`plimsoll explain kernel/kernel.sysrq gx10`" in said
    assert "`pyinfra gx10 deploy.py`" in said


def test_a_name_with_a_space_is_quoted_in_a_command() -> None:
    """What is copied from the advice is one argument."""
    assert "`pyinfra 'a; b' deploy.py`" in advice(build.judgement(Verdict.DRIFTED), "a; b")


def test_a_control_of_several_units_has_its_records_reasons() -> None:
    """The unit at the end of an id does not hide the record, nor does the colon within one."""
    for control, record in (
        ("slices/login:MemoryMin:dbus.service", "slices/login:MemoryMin"),
        ("slices/system.slice:MemoryMin", "slices/system.slice:MemoryMin"),
        ("trims/cups.service", "trims/UNIT"),
    ):
        reason = reason_for(build.judgement(control=control))
        assert reason is not None
        assert reason.record == record
        assert reason.undo.startswith("`sudo plimsoll revert --layer ")


def test_a_file_matters_for_its_layer() -> None:
    """A file has no record; why it matters says what its layer is for."""
    assert "earlyoom: " in matters(build.judgement(control="earlyoom/file:/etc/default/earlyoom"))


def test_an_unknown_control_has_no_invented_reasons() -> None:
    """A layer or control that this version does not know gets no words, whatever it is called."""
    for control in ("os/file:/x", "nonsense", "kernel/", "", "../../x/file:/y"):
        assert matters(build.judgement(control=control)) == ""


def test_worst_of_nothing_is_none() -> None:
    """Of no judgement there is no worst; of several it is the one that a reader must see first."""
    assert worst(()) is None
    mixed = [build.judgement(v) for v in (Verdict.OK, Verdict.PENDING, Verdict.UNKNOWN, Verdict.DRIFTED)]
    assert worst(mixed) is Verdict.UNKNOWN
    assert worst(dataclasses.replace(j, verdict=Verdict.OK) for j in mixed) is Verdict.OK


def test_what_is_unknown_for_one_reason_shares_an_entry() -> None:
    """Three controls that nobody can read are told of at once, two one by one; with `every` each has its own."""
    ids = ["kernel/a", "slices/b", "guard/c"]
    nowhere = [build.judgement(Verdict.UNKNOWN, i, reason="systemd does not run here") for i in ids]
    text = unfolded(shown(build.report(HostReport("gx10", reached=True, controls=tuple(nowhere)))))
    assert "unknown systemd does not run here kernel/a, slices/b, guard/c" in text
    for report, every in ((nowhere[:2], False), (nowhere, True)):
        told = shown(build.report(HostReport("gx10", reached=True, controls=tuple(report))), every=every)
        assert told.count("systemd does not run here") == len(report)
