"""What a policy may give as a value, and how it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controls.values import Fixed, Integer, Size, Span, ValueSpec


@pytest.mark.parametrize(
    ("spec", "raw", "written"),
    [
        (Integer(0, 511), 0, "0"),
        (Integer(-1, 10), -1, "-1"),
        (Integer(0, 10), 10, "10"),
        (Size(), "256M", "256M"),
        (Size(), " 1G 512M ", "1G 512M"),
        (Size(), "64G", "64G"),
        (Span(1, 300), "5s", "5s"),
        (Span(1, 300), "5min", "5min"),
        (Span(10, 600), "1min 30s", "1min 30s"),
        (Fixed("0"), 0, "0"),
        (Fixed("enabled active"), "enabled active", "enabled active"),
    ],
)
def test_accepted(spec: ValueSpec, raw: object, written: str) -> None:
    """A value in range is written as it was given."""
    assert spec.parse(raw) == written


REFUSED: list[tuple[ValueSpec, list[object]]] = [
    (Integer(0, 511), [-1, 512, "1", 1.0, True, None, "0x1", []]),
    (Size(), ["256MB", "1GiB", "256m", "65G", "0", "0M", "256", 256, "lots", "-1G", "", None, "15%", "infinity"]),
    (Size(), ["512M 1G"]),
    # the kernel would round them down to whole pages, and be found to drift for ever
    (Size(), ["0.3G", "1000000B", "1G 1B", "100K"]),
    (Span(1, 300), ["5", 5, "0s", "301s", "6min", "5M", "infinity", "soon", "", None]),
    (Fixed("0"), [1, "", None, False, "0 "]),
]


@pytest.mark.parametrize(("spec", "raw"), [(spec, raw) for spec, raws in REFUSED for raw in raws])
def test_refused(spec: ValueSpec, raw: object) -> None:
    """What systemd would ignore, has no unit or is out of range is refused with what is wanted."""
    with pytest.raises(ValueError, match=r"(must|can only) be .*not ") as caught:
        spec.parse(raw)
    assert str(caught.value).endswith(repr(raw))


@given(
    st.sampled_from([Integer(0, 9), Size(), Span(1, 9), Fixed("x")]),
    st.none() | st.booleans() | st.integers() | st.text(),
)
def test_any_scalar_is_accepted_or_refused(spec: ValueSpec, raw: object) -> None:
    """No value breaks a spec; what is accepted is accepted again in the form in which it is written."""
    try:
        written = spec.parse(raw)
    except ValueError as error:
        assert repr(raw) in str(error)
    else:
        assert spec.parse(int(written) if isinstance(raw, int) else written) == written
