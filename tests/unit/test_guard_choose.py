"""Whom the guard stops among those who hold the GPU."""

import pytest

from plimsoll.box.guard.choose import against, choose, fallback
from plimsoll.box.guard.model import Workload
from tests.unit.guarding import ARMED, kib, workload

OLD = workload("old", started_s=1.0)
NEW = workload("new", started_s=2.0)
GREW = workload("grew", started_s=0.0, grew_kib=kib(5))
GREW_MORE = workload("grew more", started_s=0.0, grew_kib=kib(6))
PREFERRED = workload("preferred", started_s=0.0, preferred=True)
PROTECTED = workload("protected", started_s=9.0, grew_kib=kib(50), protected="by the operator")
DISPLAY = workload("gdm", started_s=9.0, attributed_kib=kib(0.2), engine=None)
SILENT = workload("silent", started_s=9.0, attributed_kib=None)
LIAR = workload("vllm", started_s=9.0, holds_gpu=False, attributed_kib=None)


@pytest.mark.parametrize(
    ("present", "victim"),
    [
        ((OLD, NEW), NEW),
        ((OLD, NEW, GREW), GREW),
        ((GREW_MORE, GREW, NEW), GREW_MORE),
        ((GREW, PREFERRED), PREFERRED),
        ((OLD, PROTECTED), OLD),
        ((OLD, DISPLAY), OLD),
        ((OLD, SILENT), OLD),
        ((OLD, LIAR), OLD),
        ((DISPLAY, SILENT, LIAR, PROTECTED), None),
        ((), None),
    ],
    ids=lambda value: (
        "+".join(each.name for each in value) if isinstance(value, tuple) else getattr(value, "name", "nobody")
    ),
)
def test_the_one_that_grew_then_the_newest(present: tuple[Workload, ...], victim: Workload | None) -> None:
    """Growth goes before age, the operator's preference before both; holding the GPU alone, or a name, is nothing."""
    assert choose(present, ARMED).victim == victim
    assert choose(tuple(reversed(present)), ARMED).victim == victim


def test_everybody_is_accounted_for() -> None:
    """Each workload has a line that says what speaks for or against it."""
    present = (OLD, DISPLAY, SILENT, LIAR, PROTECTED)
    assert [name for name, _ in choose(present, ARMED).considered] == [each.name for each in present]
    assert (
        against(SILENT, ARMED) == "holds the GPU, but too little of its memory (unknown), and did not grow (0.00 GiB)"
    )


def test_a_protected_container_is_no_last_choice_either() -> None:
    """The fallback takes the largest container that may be stopped."""
    small, large = (workload(str(gib), holds_gpu=False, resident_kib=kib(gib)) for gib in (9, 30))
    mine = workload("mine", holds_gpu=False, resident_kib=kib(60), protected="by the operator")
    unit = workload("unit", kind="unit", holds_gpu=False, resident_kib=kib(70))
    assert fallback((small, mine, large, unit), ARMED) == large
