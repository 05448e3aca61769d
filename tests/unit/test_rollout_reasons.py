"""One line that says why a host could not be done, out of whatever its deploy said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.fleet.rollout.reasons import MAX_REASON, explained, reason_in

CONNECTING = "--> Connecting to hosts...\n    No host key for gx10 found in known_hosts\n"
LOGS = {
    "full": (
        "    [gx10] plimsoll: /etc/x: No space left on device; try again\n \x1b[31m[gx10] Error: executed\x1b[0m\n",
        "its disk is full (/etc/x: No space left on device",
    ),
    "sudo": ("    [gx10] sudo: a password is required\n", "sudo is refused there (sudo: a password is required)"),
    "another key": (
        "@@@@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!   @\nHost key verification failed.\n",
        "it shows another host key than known_hosts has",
    ),
    "paramiko's words for that": (
        "    [gx10] Host key for gx10 does not match\n", "it shows another host key than known_hosts has",
    ),
    "no key": (CONNECTING, "known_hosts has no key of it"),
    "lost": ("[gx10] Error: SSH session not active\n", "its connection was lost (Error: SSH session not active)"),
    "killed": (
        "--> Starting operation: Layer box\n    [gx10] Error: executed 0 commands\n",
        "its connection was lost, or what ran there was killed (Error: executed 0 commands)",
    ),
    "a reason before that": (
        "[gx10] plimsoll: /etc/x: Is a directory; mend this\n[gx10] Error: executed 0 commands\n",
        "/etc/x: Is a directory; mend this",
    ),
    "busy": (
        "[gx10] plimsoll: another plimsoll is changing this host; try again\n", "another plimsoll is changing it",
    ),
    "taken back": (
        "[gx10] said a lot\n[gx10] the layer sshd was taken back: no fresh login to gx10 after 3 tries\n--> later\n",
        "the layer sshd was taken back: no fresh login to gx10 after 3 tries",
    ),
    "drift": (
        "[gx10] 2 of 40 controls are not as they should be:\n[gx10] kernel/a: drifted: has 1\n[gx10] kernel/b: x\n",
        "2 of 40 controls are not as they should be: kernel/a: drifted: has 1",
    ),
    "a traceback": ("Traceback (most recent call last):\n  File x\nKeyError: 'y'\n", "KeyError: 'y'"),
    "nothing": (" \n\n", "it said nothing"),
    "something": ("--> Loading\nhello\n", "hello"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_what_a_log_says(name: str) -> None:
    """The line that tells most is found among the rest, and explained where its meaning is known."""
    log, reason = LOGS[name]
    assert reason_in(log).startswith(reason)


@given(st.text())
def test_it_is_always_one_line(text: str) -> None:
    """Whatever a host says, the reason is one printable line of bounded length."""
    for line in (reason_in(text), explained(text)):
        assert line.isprintable()
        assert len(line) <= MAX_REASON + 100


def test_a_line_without_a_known_meaning() -> None:
    """It is passed on as it is."""
    assert explained("kex_exchange_identification: x") == "kex_exchange_identification: x"
