"""The resolver of effective values beside the real programs: systemd-sysctl, systemd, journald and sshd."""

import json
from pathlib import Path

import pytest

from lab.machine import Machine
from tests.corpus import kinds
from tests.corpus.compare import disagreements

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]

ANSWER_TIMEOUT_S = 900.0
"""A daemon-reload takes 3.3 s under software emulation, and each arrangement of system.conf needs one."""
PROGRAM = "/root/corpus.py"
# one kind on one release is the sample of every run; each takes one to three minutes under emulation
RELEASES = [
    pytest.param("trixie", marks=pytest.mark.machine(release="trixie")),
    pytest.param("bookworm", marks=[pytest.mark.machine(release="bookworm"), pytest.mark.slow]),
]
KINDS = ["sysctl", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sshd", "units", "managers"))]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_resolver_agrees_with_the_real_programs(machine: Machine, kind: str, release: str, tmp_path: Path) -> None:
    """For every arrangement of files the resolver says what the program that reads them does."""
    assert release in machine.read("/etc/os-release")
    machine.put(PROGRAM, kinds.GUEST.read_text())
    asked = machine.run(kinds.command(kind, PROGRAM), ANSWER_TIMEOUT_S, kinds.question(kind).encode())
    assert asked.rc == 0, asked.err
    answers = json.loads(asked.out)
    cases = kinds.cases(kind)
    assert answers.keys() == {case.name for case in cases}
    wrong = []
    for number, case in enumerate(cases):
        found = disagreements(case, answers[case.name], tmp_path / str(number))
        if found:
            wrong.append("\n".join([f"=== {case.name}", *found, case.shown()]))
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n\n".join(wrong)
