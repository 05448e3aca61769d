"""The subset of YAML: the same as PyYAML where it is understood, an error with the line where it is not."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.fit import yaml_subset


class _Texts(yaml.BaseLoader):
    """PyYAML with every scalar as a text."""


def _reference(text: str) -> object:
    loader = _Texts(text)
    try:
        node = loader.get_single_node()
        assert not isinstance(node, yaml.CollectionNode) or node.tag
        return _plain(node)
    finally:
        loader.dispose()


def _plain(node: yaml.Node | None) -> object:
    if isinstance(node, yaml.ScalarNode):
        return "" if node.style is None and node.value in ("", "~", "null", "Null", "NULL") else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    return _mapping(node) if isinstance(node, yaml.MappingNode) else ""


def _mapping(node: yaml.MappingNode) -> dict[Any, Any]:
    own: dict[Any, Any] = {}
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.value == "<<":
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        else:
            own[key.value] = _plain(value)
    for each in merged:
        below = _plain(each)
        assert isinstance(below, dict)
        own = {**below, **own}
    return own


COMPOSE = """\
# a comment
x-common: &common
  image: ${IMAGE:-vllm/vllm-openai:latest}   # what runs
  environment: &env
    HF_HOME: /hf
    EMPTY:
    QUOTED: "a # b: c"
services:
  one:
    <<: *common
    command: >
      --model a/b
      --max-model-len 4096

        --indented
      --last
    ports: ["8000:8000", '8001:8001']
    volumes:
    - ./a:/b
    - type: bind
      source: /x
      target: /y
    deploy: {resources: {limits: {memory: 64g}}, replicas: 1}
  two:
    <<: [*common]
    environment:
      <<: *env
      HF_HOME: /other
    command:
      - --model
      - |
        two
        lines
      - plain text over
        two lines
    healthcheck:
      test: ["CMD-SHELL", "curl -sf http://localhost:8000/health || exit 1"]
"""


@pytest.mark.parametrize(
    "text",
    [
        COMPOSE,
        "",
        "a: 1\n",
        "---\na: 1\n...\n",
        "- a\n-  b\n-\n  c\n- - d\n  - e\n",
        "a:\n- b\n- c\nd: e\n",
        "a: |\n  x\n   y\n\nb: |-\n  x\nc: |+\n  x\n\nd: >-\n  a\n  b\n\n  c\n",
        "a: 'it''s'\nb: \"tab\\there \\x41 \\u00e4\"\nc: ''\n",
        'a: "two\n  lines"\nb: [1,\n  2, {c: d}]\n',
        "a: b\n  c\n  d\ne: f\n",
        "a: http://x:80/y#z\nb: c #d\n",
        "a: {b: c, 'd': \"e\", f: }\ng: []\nh: {}\n",
        "a: null\nb: ~\nc: 'null'\n",
        "a: |2\n    x\n   y\n",
        "a: >\n  one\n\n\n  two\n    three\n  four\n",
        "a:\n    b:\n        c: d\n    e: f\n",
        "'a b': c\n\"d\": e\n",
        "a: -1\nb: -c\n",
    ],
)
def test_the_same_as_pyyaml(text: str) -> None:
    """What is understood comes to what PyYAML makes of it."""
    assert yaml_subset.plain(yaml_subset.parse(text)) == _reference(text)


_KEYS = st.sampled_from(["a", "b-c", "image", "x_y", "d e"])
_LEAVES = st.sampled_from(
    ["", "1", "text", "a b", "${X:-1}", "a: b", "# no", "it's", 'say "x"', "line\nline\n", " lead", "-x", "*y"]
)
_TREES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=12
)


@given(_TREES, st.sampled_from([None, True, False]), st.sampled_from([2, 4]))
def test_what_pyyaml_writes(tree: object, flow: bool | None, indent: int) -> None:
    """Whatever PyYAML writes of texts, lists and mappings is read back as it was, or refused."""
    text = yaml.safe_dump(tree, default_flow_style=flow, indent=indent, allow_unicode=True, width=60)
    try:
        found = yaml_subset.plain(yaml_subset.parse(text))
    except yaml_subset.YamlError:
        return
    assert found == _reference(text)


@given(st.text(alphabet="ab: -#'\"\n&*<[]{},|>!?%0\t", max_size=50))
def test_any_text(text: str) -> None:
    """Whatever a text holds: an error, or exactly what PyYAML makes of it where PyYAML takes it."""
    try:
        found = yaml_subset.plain(yaml_subset.parse(text))
    except yaml_subset.YamlError:
        return
    try:
        expected = _reference(text)
    except (yaml.YAMLError, AssertionError):
        return
    assert found == expected


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: !reset null\n", 1, "!reset"),
        ("a: 1\na: 2\n", 2, "twice"),
        ("a:\n\t- b\n", 2, "tab"),
        ("a: *b\n", 1, "names nothing"),
        ("a: &b\n  c: *b\n", 2, "cycle"),
        ("a: [1, 2\n", 1, "not closed"),
        ('a: "x\n', 1, "not closed"),
        ("a: b: c\n", 1, "colon"),
        ("a:\n   b: 1\n  c: 2\n", 3, "indented"),
        ("%YAML 1.2\n---\na: 1\n", 1, "directives"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("? a\n: b\n", 1, "key"),
        ("a: |x\n  b\n", 1, "no head"),
        ('a: "\\q"\n', 1, "quotes"),
        ("<<: 1\n", 1, "takes a mapping"),
    ],
)
def test_what_is_not_understood(text: str, line: int, why: str) -> None:
    """What is not in the subset is an error on its line, and nothing is guessed."""
    with pytest.raises(yaml_subset.YamlError, match=why) as caught:
        yaml_subset.parse(text)
    assert caught.value.line == line


def test_aliases_that_multiply() -> None:
    """Ten lines of aliases that stand for a thousand million values are refused at once."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(yaml_subset.YamlError, match="larger"):
        yaml_subset.parse("\n".join(lines))


def test_nesting_without_an_end() -> None:
    """A thousand levels are refused, not a crash."""
    for text in ("[" * 1000, "\n".join(" " * i + f"a{i}:" for i in range(1000)), "- " * 1000 + "a"):
        with pytest.raises(yaml_subset.YamlError):
            yaml_subset.parse(text)
