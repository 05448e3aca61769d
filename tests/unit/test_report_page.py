"""A report as a page: whole, self-contained, and safe to open whatever the hosts said."""

import base64
import hashlib
import html.parser
import re

import pytest

from plimsoll.box.model import Verdict
from plimsoll.controls import registry
from plimsoll.fleet.page import page
from plimsoll.fleet.report import HostReport, Report
from tests.unit import report_builders as build

VOID = {"meta", "input", "br", "link", "img"}
BLOCK = {"dt", "dd", "td", "th", "li", "p", "h3", "h4"}


class Parsed(html.parser.HTMLParser):
    """The tags, attributes and text of a page; fails on a tag that is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.css = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag; a block stands apart from the text before it."""
        assert len(attrs) == len(dict(attrs)), "an attribute occurs twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in BLOCK:
            self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost tag, which must be this one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text, and the style apart from it."""
        if self.open and self.open[-1] == "style":
            self.css += data
        else:
            self.text.append(data)

    def values(self, name: str) -> list[str]:
        """Return every value of an attribute."""
        return [value or "" for _, attributes in self.tags for key, value in attributes.items() if key == name]

    @property
    def words(self) -> str:
        """The text with white space made single."""
        return re.sub(r"\s+", " ", "".join(self.text))


def parsed(report: Report) -> Parsed:
    """Return the page of a report, parsed."""
    return Parsed(page(report))


@pytest.mark.parametrize("name", build.every_kind())
def test_the_page_is_well_formed(name: str) -> None:
    """Every tag is closed, an id occurs once, every link leads to one, and the text can be written as UTF-8."""
    text = page(build.every_kind()[name])
    assert text.startswith("<!DOCTYPE html>\n")
    found = Parsed(text)
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in found.values("href")} <= set(ids)
    assert all(character == "\n" or character.isprintable() for character in text)
    assert text.encode()


@pytest.mark.parametrize("name", build.every_kind())
def test_nothing_is_loaded_and_nothing_runs(name: str) -> None:
    """There is no script, no reference outside the page, no style or handler in an attribute."""
    found = parsed(build.every_kind()[name])
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base"})
    attributes = {name for _, of_tag in found.tags for name in of_tag}
    assert not {a for a in attributes if a.startswith("on") or a in ("src", "style", "action", "srcset")}
    assert all(re.fullmatch(r"#[a-z0-9-]+", link) for link in found.values("href"))
    assert not re.search(r"url\(|@import", found.css)


def test_the_policy_allows_just_the_pages_own_style() -> None:
    """The policy forbids everything but the style whose hash it names, and that is the one in the page."""
    text = page(build.report(build.hostile()))
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert policy in Parsed(text).values("content")


def test_hostile_text_stays_text() -> None:
    """Markup, template syntax and escapes of a host are shown as they are, in text and in no attribute."""
    found = parsed(build.every_kind()["hostile"])
    assert "<script>alert(1)</script>[bold red]x[/]" in found.words
    assert "{{ 7 * 7 }}" in found.words
    assert r"\x1b[2J\x1b]0;pwned\x07" in found.words
    assert not [value for _, attributes in found.tags for value in attributes.values() if "alert" in (value or "")]


def test_long_text_is_cut() -> None:
    """Mebibytes of a host do not end up in the page, and the cut is said."""
    text = page(build.report(build.hostile()))
    assert len(text) < 200_000
    assert "more characters)" in text


def test_a_deviation_is_shown_with_all_that_is_known_of_it() -> None:
    """Verdict, values, the deciding line, the reason, what to do and why it matters are all there."""
    words = parsed(build.report(HostReport("gx10", reached=True, controls=(build.judgement(Verdict.DRIFTED),)))).words
    assert "kernel/kernel.sysrq ✗ drifted the running system has 438" in words
    assert "wanted 1 now 438 after a reboot 1 who decides /etc/sysctl.d/zz-plimsoll.conf:3" in words
    assert "What to do plimsoll explain kernel/kernel.sysrq gx10 shows which files had a say" in words
    assert "Why it matters All of sysrq:" in words


def test_the_reasons_of_every_control_are_in_the_page_once() -> None:
    """A fleet of fifty does not repeat the records: evidence, cost, risk and undo stand in one place."""
    words = parsed(build.fleet(50)).words
    for control in registry.every_control():
        assert words.count(re.sub(r"\s+", " ", control.why.skip_if.replace("`", ""))) >= 1
    assert words.count("Skip it if") == len(registry.every_control())
    assert "Undo sudo plimsoll revert --layer kernel. The value that the kernel had" in words


def test_the_overview_shows_the_worst_verdict_of_each_layer() -> None:
    """A cell says in words what is worst, how many of how many, and leads to the host."""
    controls = (
        build.judgement(Verdict.DRIFTED),
        build.judgement(Verdict.PENDING, "kernel/kernel.panic"),
        build.judgement(control="sshd/running"),
    )
    found = parsed(build.report(HostReport("gx10", reached=True, controls=controls)))
    assert "host kernel sshd findings gx10 ✗ drifted 1/2 ✓ ok 1/1 0" in found.words
    assert found.values("href")[:3] == ["#h1", "#h1", "#h1-l1"]


def test_an_unreached_host_is_never_shown_as_good() -> None:
    """It says why, counts as not told, and is unfolded."""
    found = parsed(build.report(build.host(), build.unreached()))
    assert "1 of 2 hosts as wanted 0 with drift 1 could not be told" in found.words
    assert "Not reached: timed out after 10 s: no banner (after 10.0 s)" in found.words
    assert [of.get("class") for tag, of in found.tags if tag == "details" and "open" in of] == ["host"]


def test_a_host_without_controls_is_not_shown_as_good() -> None:
    """Nothing judged is no good news."""
    found = parsed(build.report(HostReport("bare", reached=True), build.host()))
    assert "1 of 2 hosts as wanted" in found.words
    assert "no control was judged" in found.words


def test_one_host_is_told_in_controls() -> None:
    """With one host the figures are of its controls."""
    words = parsed(build.report(build.host(verdicts=(Verdict.DRIFTED, Verdict.UNKNOWN)))).words
    of_all = f"{build.CONTROLS - 2} of {build.CONTROLS} controls ok"
    assert f"{of_all} 1 with drift 1 could not be told 0 findings beside the controls" in words


def test_no_host_is_said() -> None:
    """An audit of nothing says so, and shows no figures."""
    words = parsed(build.report()).words
    assert "No host was audited." in words
    assert "as wanted" not in words


def test_facts_findings_waivers_and_what_was_not_seen_are_shown() -> None:
    """Everything that the report knows beside the controls is in the page."""
    words = parsed(build.fleet(4)).words
    for text in (
        "kernel 6.17.0-1014-nvidia driver 580.95.05",
        "earlyoom not known",
        "A memory limit on a container that CUDA does not obey false protection container vllm has --memory 100g",
        "/srv/compose.yaml:14",
        "Evidence A container with a limit of 8 GiB held 60 GiB of GPU memory. measured on a GB10 box, 2026-05-01",
        "Could not be seen /root/.docker: not readable without root",
        "expired: kernel/kernel.sysrq on gx10-1, gx10-3, until 2026-06-30",
    ):
        assert text in words


def test_many_hosts_stay_folded() -> None:
    """Fifty hosts do not bury the overview, and those that are well can be hidden."""
    found = parsed(build.fleet(50))
    hosts = [of for tag, of in found.tags if tag == "details" and (of.get("class") or "").startswith("host")]
    assert len(hosts) == 50
    assert not [of for of in hosts if "open" in of]
    assert sum(of["class"] == "host good" for of in hosts) == 35
    assert "care" in found.values("id")
