"""The box judges itself, and never says good of what it could not read."""

import json
from pathlib import Path

import pytest

from plimsoll.box import verify
from plimsoll.box.model import AUDIT_SCHEMA, WANTED_SCHEMA, Judgement, Place, Verdict, Waiver
from tests.unit.builders import FakeHost, stock_host, sysctl, write_tree

WANTED = sysctl("kernel.panic", "0", waiver=Waiver("why", "2027-01-01"))


def _document(**changes: object) -> str:
    whole = {"schema": WANTED_SCHEMA, "notify_command": ["/bin/tell", "me"], "controls": [WANTED.to_json()]}
    return json.dumps({**whole, **changes})


def _judgement(verdict: Verdict) -> Judgement:
    return Judgement(f"a/{verdict}", "a", verdict, "1", "2", None, Place("/f", 3), "because")


def test_what_was_left_is_read(tmp_path: Path) -> None:
    """Controls and the command come back as they were written, waivers included."""
    write_tree(tmp_path, {verify.PATH: _document()})
    assert verify.load_wanted(FakeHost(root=str(tmp_path))) == ([WANTED], ["/bin/tell", "me"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is missing: this host was not deployed to"),
        ("", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        (_document(schema="plimsoll.wanted/9"), "schema plimsoll.wanted/9, expected"),
        (_document(controls=[{"id": "x"}]), "damaged"),
        (_document(controls=[{**WANTED.to_json(), "kind": "moon"}]), "damaged"),
        (_document(controls=[{**WANTED.to_json(), "new_field": 1}]), "damaged"),
        (_document(controls=None), "damaged"),
    ],
)
def test_what_cannot_be_read_is_one_error(tmp_path: Path, text: str | None, words: str) -> None:
    """A list that is missing, damaged or of another version is said with its path."""
    if text is not None:
        write_tree(tmp_path, {verify.PATH: text})
    with pytest.raises(verify.WantedError, match=words) as caught:
        verify.load_wanted(FakeHost(root=str(tmp_path)))
    assert str(caught.value).startswith(verify.PATH)


def test_a_host_is_judged_by_its_live_state(tmp_path: Path) -> None:
    """What is read for the judgement is what the controls need."""
    (judged,) = verify.judge_host(stock_host(tmp_path), [sysctl("kernel.panic", "20")])
    assert (judged.verdict, judged.live, judged.wanted) == (Verdict.DRIFTED, "0", "20")


def test_audit_document() -> None:
    """The document has the keys that other programs rely on, and survives JSON."""
    document = verify.report("box", [_judgement(Verdict.SHADOWED)])
    assert json.loads(json.dumps(document)) == document
    (control,) = document["hosts"]["box"]["controls"]
    assert document["schema"] == AUDIT_SCHEMA
    assert document["hosts"]["box"]["reached"] is True
    assert control == {
        "id": "a/shadowed", "layer": "a", "verdict": "shadowed", "wanted": "1", "live": "2", "persisted": None,
        "decided_by": {"file": "/f", "line": 3}, "reason": "because",
    }  # fmt: skip


def test_lines_for_a_person() -> None:
    """Everything but what is good has its line, and the last one counts all."""
    lines = verify.lines([_judgement(v) for v in (Verdict.OK, Verdict.OK, Verdict.PENDING)])
    assert lines == ["pending     a/pending  because", "2 ok, 1 pending"]
    assert verify.lines([]) == [""]


def test_a_name_cannot_steer_the_terminal() -> None:
    """A process that somebody gave a name with control characters in it is named with them spelled out."""
    judgement = Judgement("a/x", "a", Verdict.PENDING, "1", "2", None, None, "\x1b[2J\r (pid 7) has 300")
    assert verify.lines([judgement])[0] == r"pending     a/x  \x1b[2J\x0d (pid 7) has 300"


@pytest.mark.parametrize("verdict", Verdict)
def test_who_is_told(verdict: Verdict) -> None:
    """Somebody is told of what is bad and of what could not be looked at, and of nothing else."""
    expected = verdict in {Verdict.UNKNOWN, Verdict.DRIFTED, Verdict.SHADOWED, Verdict.UNPERSISTED}
    assert verify.should_notify([_judgement(Verdict.OK), _judgement(verdict)]) is expected


def test_a_command_that_fails_is_said(tmp_path: Path) -> None:
    """The report goes to the command; that it could not be delivered is not lost."""
    host = FakeHost(root=str(tmp_path), failing={("/bin/tell",): "no route"})
    assert verify.notify(host, ["/bin/tell", "me"], {}) == "/bin/tell: no route"
    assert verify.notify(host, ["/bin/other"], {}) == ""
