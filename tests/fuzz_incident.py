"""Mutated logs for `plimsoll incident`, by hand: python -m tests.fuzz_incident --count 100000.

Whatever stands in a log, reading it ends in time, in bounded memory and without an error, and so does showing it. An
input that does not is written to a file, and the run ends.
"""

import argparse
import json
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from plimsoll.box.incident import document, page, reader, report, timeline, wire
from plimsoll.box.incident.redact import Redactor
from tests.unit.incident_logs import NOW_S
from tests.unit.incident_logs import report as kill
from tests.unit.test_incident_cli import EVERYTHING

CPU_S = 10.0
"""The slowest of 10,000 took 0.6 s on a busy machine."""
MORE_MIB = 64
"""What a run may take beyond what it took after the first hundred inputs."""
WARM = 100
MAX_BYTES = 256 << 10
PIECES = (
    b"\x00" * 4096, b"\x1b[31m", b"\xff\xfe", b"\r", b"\n", b"9" * 5000, b"-", b"(" * 300, b"[", b"]", b"\xc3\x28",
    b"{", b'{"MESSAGE":', b"oom-kill:constraint=", b"Killed process ", b"NVRM: ", b"NVRM: Xid (PCI:",
    b" invoked oom-killer: ", b"-- Reboot --", b"INFO: task ", b"<3>", b"Mem-Info:", b"[ pid ] uid name",
    b"message repeated 99999999999 times: [", b"2026-02-30T25:61:61+99:99 ", b"Feb 29 23:59:60 ",
    b"t,avail_GiB\n1,2\n", b"| a | b |\n|---|---|\n", b"1e999",
)  # fmt: skip
"""What a reader could trip over."""


def seeds() -> list[bytes]:
    """Return logs of every kind that is read, in several forms of stamps."""
    plain = ["\n".join(lines) for lines in (kill(), kill(0, order=-1), kill(300, rss=1))]
    stamped = [
        "\n".join(f"[{100 + n / 1000:12.6f}] {line}" for n, line in enumerate(text.splitlines())) for text in plain
    ]
    records = [
        "\n".join(
            json.dumps(
                {"MESSAGE": line, "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": str(1_790_000_000_000_000 + n)}
            )
            for n, line in enumerate(text.splitlines())
        )
        for text in plain
    ]
    return [*EVERYTHING, *(text.encode() for text in (*plain, *stamped, *records))]


def _cut(content: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(content) + 1)
    del content[at : at + dice.choice((1, 3, 40, 400, 4000))]


def _flip(content: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 8, 64))):
        if content:
            content[dice.randrange(len(content))] = dice.randrange(256)


def _insert(content: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(content) + 1)
    content[at:at] = dice.choice(PIECES) * dice.choice((1, 1, 1, 7))


def _repeat(content: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(content) + 1)
    content[at:at] = content[at : at + dice.choice((20, 200, 2000))] * dice.choice((2, 9, 60))


def _shuffle(content: bytearray, dice: random.Random) -> None:
    lines = content.split(b"\n")
    dice.shuffle(lines)
    content[:] = b"\n".join(lines)


def _wrap(content: bytearray, dice: random.Random) -> None:
    width = dice.choice((40, 72, 79, 80, 120))
    content[:] = b"\n".join(content[at : at + width] for at in range(0, len(content), width))


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (_cut, _flip, _insert, _repeat, _shuffle, _wrap)


def mutated(dice: random.Random, pool: list[bytes]) -> bytes:
    """Return one input: one or two logs, changed a few times."""
    content = bytearray(b"\n".join(dice.sample(pool, dice.choice((1, 1, 2)))))
    for _ in range(dice.choice((1, 2, 4, 8))):
        dice.choice(MUTATIONS)(content, dice)
        del content[MAX_BYTES:]
    return bytes(content)


def read(content: bytes, dice: random.Random) -> None:
    """Read an input in blocks of any size, and make all that can be made of it."""
    size = dice.choice((1000, 65_536, MAX_BYTES))
    found = reader.read("log", [content[at : at + size] for at in range(0, len(content), size)], NOW_S)
    line = timeline.build([found], NOW_S)
    answer = document.document(line, {})
    json.dumps(Redactor(document.hosts_of(line)).value(answer))
    "\n".join(report.lines(line, {}, verbose=True))
    page.page(line, {})
    document.who(line, "llama-server")
    receiver = wire.Receiver()
    for text in wire.of_findings(found):
        receiver.take(text)


def _too_slow(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {CPU_S:g} s of processor time")


def _memory_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _check_memory(warm_mib: int | None) -> None:
    if warm_mib is not None and _memory_mib() > warm_mib + MORE_MIB:
        raise MemoryError(f"{_memory_mib()} MiB, and {warm_mib} after the first {WARM} inputs")


def main() -> int:
    """Go through inputs; returns 0 when all were read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input: each has its own seed")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-incident.log"), help="where an input is written")
    arguments = parser.parse_args()
    signal.signal(signal.SIGVTALRM, _too_slow)
    pool, began_s, slowest_s, warm_mib = seeds(), time.process_time(), 0.0, 0
    for number in range(arguments.first, arguments.first + arguments.count):
        dice = random.Random(number)  # noqa: S311  # to be repeated, not to be secret
        content = mutated(dice, pool)
        started_s = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        try:
            read(content, dice)
            _check_memory(warm_mib if number - arguments.first > WARM else None)
        except BaseException:
            arguments.keep.write_bytes(content)
            print(f"input {number} is in {arguments.keep}", file=sys.stderr)
            raise
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        slowest_s = max(slowest_s, time.process_time() - started_s)
        if number - arguments.first == WARM:
            warm_mib = _memory_mib()
        if number % 1000 == 0:
            print(f"{number}: {time.process_time() - began_s:.0f} s, slowest {slowest_s:.2f} s, {_memory_mib()} MiB")
            sys.stdout.flush()
    print(f"{arguments.count} inputs, {time.process_time() - began_s:.0f} s of processor time, {_memory_mib()} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
