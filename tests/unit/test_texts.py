"""Text of somebody else's can be shown: one line, of characters that a terminal only draws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.texts import printable


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ("vllm é 模", None, "vllm é 模"),
        ("a\x1b[2J\n", None, "a\\x1b[2J\\x0a"),
        ("\u202e\ud800", None, "\\x202e\\xd800"),
        ("abcd", 4, "abcd"),
        ("abcde", 4, "abcd…"),
        ("\x00\x00", 1, "\\x00…"),
        ("", 4, ""),
    ],
)
def test_what_is_shown(text: str, longest: int | None, expected: str) -> None:
    """What is not printable is spelled out, the rest stays; what is too long ends in an ellipsis."""
    assert printable(text, longest) == expected


@given(st.text(max_size=300), st.none() | st.integers(0, 400))
def test_any_text_is_one_plain_line(text: str, longest: int | None) -> None:
    """Whatever a text holds, what is shown of it is printable, and can be encoded."""
    shown = printable(text, longest)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
