"""YAML that remembers lines and refuses what programs read differently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import yaml_lines
from plimsoll.yaml_lines import YamlError, parse


def _message(text: str) -> str:
    with pytest.raises(YamlError) as caught:
        parse(text.encode())
    return f"{caught.value.line}: {caught.value.message}"


def test_lines_of_keys_and_items() -> None:
    """Each key and each item of a list knows its line, and what is not there has that of its surroundings."""
    document = parse(b"# comment\na:\n  b: 1\nc:\n- x\n-\n  y\n")
    assert document.value == {"a": {"b": 1}, "c": ["x", "y"]}
    assert document.lines["a", "b"] == 3
    assert document.lines["c", 1] == 7
    assert document.line(("a", "missing", "deeper")) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("yes", "yes"),
        ("on", "on"),
        ("No", "No"),
        ("True", "True"),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("8.5", 8.5),
        (".5", 0.5),
        ("1.5e3", 1500.0),
        ("64M", "64M"),
        ("2026-01-31", "2026-01-31"),
        ("'0644'", "0644"),
        ('"1:30"', "1:30"),
        ("192.0.2.10", "192.0.2.10"),
        ("VLLM::.*", "VLLM::.*"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    """Only true and false are booleans, only plain decimal numbers are numbers, the rest is text."""
    document = parse(f"key: {text}\n".encode())
    assert document.value == {"key": value}
    assert isinstance(document.value, dict)
    assert type(document.value["key"]) is type(value)


@pytest.mark.parametrize(
    "text",
    ["0644", "010", "08", "0x1F", "0o17", "0b1", "1_000", "1:30", "10:20:30", "1e3", ".nan", "-.inf", ".Inf"],
)
def test_ambiguous_numbers_are_refused(text: str) -> None:
    """A number that YAML versions read differently is refused with its line and what to write instead."""
    assert _message(f"# first\nkey: {text}\n") == (
        f"2: programs read {text} differently: write a plain decimal number, or put it in quotes"
    )


def test_huge_numbers_are_refused() -> None:
    """A number that no program can hold is an error and not infinity."""
    assert "is no finite number" in _message("a: 1.0e999")
    assert "is no number" in _message(f"a: {'9' * 5000}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "4: the key 'c' is there twice (first on line 3)"),
        ("a:\n\tb: 1\n", "2: a tab where YAML allows none: use spaces"),
        ("1: a\n", "1: the key '1' must be text: put it in quotes"),
        ("true: a\n", "1: the key 'true' must be text: put it in quotes"),
        ("[a]: b\n", "1: a key must be text, not a list or a mapping"),
        (
            "a: !!python/object:os.system x\n",
            "1: the tag 'tag:yaml.org,2002:python/object:os.system': write plain YAML",
        ),
        ("a: !!set {b: null}\n", "1: the tag 'tag:yaml.org,2002:set': write plain YAML"),
        ("a: &x [*x]\n", "1: an anchor that contains itself"),
        ("a: *nowhere\n", "1: found undefined alias 'nowhere'"),
        ("a: [1\nb: 2\n", "2: while parsing a flow sequence, expected ',' or ']', but got ':'"),
        ("a: 1\n---\nb: 1\n", "2: expected a single document in the stream, but found another document"),
        ("a:\n  <<: text\n", "2: '<<' needs a mapping or a list of mappings"),
        ("a: 1\nb: \x07\n", "2: the control character U+0007: remove it"),
    ],
)
def test_broken_yaml(text: str, message: str) -> None:
    """Each trap is one message with its line."""
    assert _message(text) == message


def test_not_utf8() -> None:
    """Bytes of another encoding are an error with their line."""
    with pytest.raises(YamlError, match="not UTF-8") as caught:
        parse(b"a: 1\nb: \xe4\n")
    assert caught.value.line == 2


def test_deep_nesting() -> None:
    """A file nested beyond the parser's depth is an error and no crash."""
    assert "nested too deeply" in _message("[" * 5000)


def test_aliases_of_aliases_do_not_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that stands for billions of values is refused."""
    monkeypatch.setattr(yaml_lines, "MAX_NODES", 1000)
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    assert "too many aliases of aliases" in _message("\n".join(lines))


def test_anchors_and_merge_keys() -> None:
    """Anchors are values in each place, and a mapping's own keys beat what is merged into it."""
    document = parse(b"x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: {<<: [{a: 7}, *x]}\n")
    assert document.value == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}, "z": {"a": 7, "b": 2}}
    assert document.lines["y", "b"] == 2


def test_byte_order_mark() -> None:
    """An editor's byte order mark is no part of the first key."""
    assert parse(b"\xef\xbb\xbfa: 1\n").value == {"a": 1}


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!<>|'\"#%@`?, \n\t01.~", max_size=200).map(str.encode))
def test_parse_raises_nothing_else(data: bytes) -> None:
    """Whatever the bytes, the outcome is a document or a YamlError with a line."""
    try:
        document = parse(data)
    except YamlError as error:
        assert error.line >= 1
        assert error.message
    else:
        assert all(line >= 1 for line in document.lines.values())
