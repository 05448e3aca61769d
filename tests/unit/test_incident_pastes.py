"""What people do to a log before anybody reads it, and lines that look like trouble on a healthy machine."""

# ruff: noqa: E501  # log lines are as long as they are printed

import time

import pytest

from plimsoll.box.incident import reader, timeline
from plimsoll.box.incident.model import Event, OomKill
from plimsoll.box.incident.report import lines
from tests.unit.incident_logs import NOW_S, answer

ASKED = "php-fpm invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0"
KILLED = (
    "Out of memory: Killed process 2128 (mysqld) total-vm:480000kB, anon-rss:300000kB, file-rss:0kB, shmem-rss:0kB, "
    "UID:27 pgtables:900kB oom_score_adj:0"
)
LOST = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
"""
CORRECTED = """\
[ 90.812399] pcieport 0000:00:1c.0: AER: Correctable error message received from 0000:01:00.0
[ 90.812400] pcieport 0000:00:1c.0: AER: aer_status: 0x00001000, aer_mask: 0x00002000
"""
SYSLOG = "Jan  5 02:12:02 box kernel: "


def events_of(text: str) -> list[Event]:
    """Return what one source says happened."""
    return [timed.event for timed in timeline.build([reader.read("log", [text.encode()])], NOW_S).events]


def head_of(text: str) -> str:
    """Return the first line that a person is shown."""
    return next(lines(timeline.build([reader.read("log", [text.encode()])], NOW_S), {}))


def the_kill(text: str) -> OomKill:
    """Return the only event, which is a kill."""
    (found,) = events_of(text)
    assert isinstance(found, OomKill)
    return found


@pytest.mark.parametrize(
    "before",
    ["    ", "\t", " ", ">     ", "- ", "+", "* ", "   12 ", "12: ", "syslog-1  | ", "[pod/web-5/nginx] "],
)
@pytest.mark.parametrize(
    "stamp", [SYSLOG, "[123456.790000] ", "[Mon Jan  5 02:12:02 2026] ", "2026-01-05T02:12:02+00:00 box kernel: "]
)
def test_marks_before_a_stamp(before: str, stamp: str) -> None:
    """An indented block, a quotation, a list, a patch, numbers, a container's name: the stamp and the names are read."""
    kill = the_kill("".join(f"{before}{stamp}{message}\n" for message in (ASKED, KILLED)))
    assert kill.invoker is not None
    assert kill.invoker.comm == "php-fpm"
    assert kill.victim is not None
    assert (kill.victim.pid, kill.victim.comm) == (2128, "mysqld")
    assert kill.stamp.wall_s is not None or kill.stamp.uptime_s == 123456.79


@pytest.mark.parametrize(
    "text",
    [
        f"Mar  3 14:22:10 alpine kern.err kernel: [ 8812.444455] {KILLED}",
        f"2026-01-05T02:12:02.123456789Z {SYSLOG}{KILLED}",
        f'{{"log":"[12345.600000] {KILLED}\\n","stream":"stdout","time":"2026-01-05T02:12:02.123456789Z"}}',
        f"{SYSLOG}{KILLED}".replace(" ", "\xa0"),
        f"41066.536886] {KILLED}",
    ],
)
def test_stamps_of_others(text: str) -> None:
    """BusyBox names the facility, Docker stamps anew or wraps in JSON, a page's blanks do not break, a bracket is lost."""
    kill = the_kill(f"{text}\n")
    assert kill.victim is not None
    assert kill.victim.comm == "mysqld"
    assert kill.stamp.wall_s is not None or kill.stamp.uptime_s == 41066.536886


@pytest.mark.parametrize(
    "table",
    [
        "[49689.294425] Unreclaimable slab info:\n[49689.294426] Name     Used    Total\n[49689.3] x_map  3207098KB  3375622KB\n",
        " r  b   swpd   free   buff  cache   si   so\n 1  0      0 123456   1234  56789    0    0\n",
        "Time MemFree Used\n02:12:00 1234 5678\n",
    ],
)
def test_a_log_below_a_table(table: str) -> None:
    """A table at the beginning does not make a recording of the log below it."""
    kill = the_kill(f"{table}{SYSLOG}{KILLED}\n")
    assert kill.victim is not None
    assert kill.victim.comm == "mysqld"


def test_a_message_that_looks_like_structured_data() -> None:
    """Four words and a bracket behind an uptime are the kernel's own words."""
    (found,) = events_of("[   24.248411] general protection fault: 0000 [#1] SMP KASAN\n")
    assert found.kind == "panic"


def test_a_reaper_has_nothing_to_add() -> None:
    """What it left over is not what the victim had."""
    shorter = KILLED.partition(", UID")[0]
    reaped = "oom_reaper: reaped process 2128 (mysqld), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
    kill = the_kill(f"{shorter}\n{reaped}\n")
    assert kill.victim is not None
    assert (kill.victim.anon_rss_kib, kill.reaped) == (300000, True)


def test_a_mail_as_it_was_sent() -> None:
    """Its encoding is taken off before anybody looks at names."""
    summary = "oom-kill:constraint=3DCONSTRAINT_NONE,nodemask=3D(null),global_oom,task_memcg=3D/,tas=\nk=3Dip,pid=3D2765,uid=3D0"
    kill = the_kill(f"[ 8812.334455] {summary}\n")
    assert kill.victim is not None
    assert (kill.victim.pid, kill.victim.comm) == (2765, "ip")


def test_one_kill_in_three_forms() -> None:
    """dmesg, dmesg -T and syslog in one paste tell of one kill, which has a date then."""
    forms = ["[ 8812.444455] ", "[Mon Jan  5 02:12:02 2026] ", "Jan  5 02:12:03 box kernel: [ 8812.444455] "]
    text = "\n".join(f"{form}{KILLED}" for form in forms)
    (timed,) = timeline.build([reader.read("log", [text.encode()])], NOW_S).events
    assert timed.moment.axis == "wall"
    assert len(timed.event.again) == 2


@pytest.mark.parametrize(
    ("line", "outcome", "said"),
    [
        ("Out of memory and no killable processes...", "nobody_found", "it found nobody whom it may kill"),
        (
            "Memory cgroup out of memory: OOM victim 99 (stress-ng-vm) is already exiting. Skip killing the task",
            "already_exiting",
            "stress-ng-vm (99), which was ending already and was not killed",
        ),
    ],
)
def test_a_killer_that_kills_nobody(line: str, outcome: str, said: str) -> None:
    """It was called, and the kernel says that it took nobody."""
    text = f"[  50.0] {ASKED}\n[  50.1] {line}\n"
    assert the_kill(text).outcome == outcome
    assert any(said in each for each in lines(timeline.build([reader.read("log", [text.encode()])], NOW_S), {}))


def test_a_victim_that_the_kernel_names_twice() -> None:
    """With memory.oom.group set, the one that was chosen is named again with all others."""
    group = "Tasks in /a.scope are going to be killed due to memory.oom.group set"
    other = KILLED.replace("2128 (mysqld)", "2129 (helper)")
    found = events_of("".join(f"[  50.{n}] {each}\n" for n, each in enumerate([KILLED, group, KILLED, other])))
    assert [(event.victim.comm, event.group) for event in found if isinstance(event, OomKill) and event.victim] == [
        ("mysqld", True),
        ("helper", True),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[    0.812399] pcieport 0000:00:1c.0: AER: enabled with IRQ 122\n",
        "[    0.812399] pcieport 0000:00:1c.0: DPC: error containment capabilities: Int Msg #0, RPExt+\n",
        CORRECTED,
        "[1984687.769162] INFO: task jbd2/sda3-8:373 blocked for more than 120 seconds.\n",
    ],
)
def test_what_happens_to_healthy_machines(text: str) -> None:
    """A start, an error that was corrected, a slow disk: no incident."""
    assert answer(text)["class"] is None


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (LOST, "0000:b3:00.0"),
        ("[ 8000.100000] pcieport 0000:64:02.0: DPC: containment event, status:0x1f01 source:0x0000\n", "0000:64:02.0"),
        ("[ 8000.1] pcieport 0000:64:02.0: AER: Uncorrectable (Fatal) error message received from x\n", "0000:64:02.0"),
    ],
)
def test_a_card_that_is_gone(text: str, device: str) -> None:
    """Class E, with the device and the time, in however many lines it is told."""
    assert answer(text)["class"] == "E"
    assert head_of(text).startswith("boot+")
    shown = list(lines(timeline.build([reader.read("log", [text.encode()])], NOW_S), {}))
    assert any(device in line for line in shown[1:])


def test_a_report_an_hour_is_no_silence() -> None:
    """It reports once an hour by default (earlyoom), and also when it is started: nothing was silent."""
    times = ["09:00", "10:00", "11:00", "11:05", "12:05", "13:05"]
    line = "mem avail: 27949 of 31880 MiB (87.67%), swap free: 2048 of 2048 MiB (100.00%)"
    text = "".join(f"Oct 07 {time}:00 box earlyoom[812]: {line}\n" for time in times)
    assert answer(text)["class"] is None
    # four minutes at an even minute are
    minutes = [0, 1, 2, 3, 4, 8]
    text = "".join(f"Oct 07 09:{minute:02}:00 box earlyoom[812]: {line}\n" for minute in minutes)
    assert [event.kind for event in events_of(text)] == ["gap"]


def test_what_others_report_is_not_nothing() -> None:
    """Without a line of the kernel's the head says that a manager reports a kill."""
    text = "Jan  5 02:12:02 box systemd[1]: web.service: Failed with result 'oom-kill'.\n"
    assert head_of(text) == "Found no record of the kernel's, but others report an OOM kill, 1 in all, in 1 source."


def test_points_of_an_old_kernel() -> None:
    """Nobody has less than one point, and what the kernel printed is told beside the arithmetic."""
    rows = [
        "[ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name",
        "[  100]     0   100    10000     5000      20        0          -998 pause",
    ]
    memory = [
        "Mem-Info:", "active_anon:5000 inactive_anon:0 isolated_anon:0", "1000000 pages RAM",
        "0 pages HighMem/MovableOnly", "20000 pages reserved", *rows,
    ]  # fmt: skip
    kill = "Out of memory: Kill process 100 (pause) score 0 or sacrifice child"
    done = "Killed process 100 (pause) total-vm:40000kB, anon-rss:20000kB, file-rss:0kB, shmem-rss:0kB"
    text = "".join(f"[  50.{n:02}] {each}\n" for n, each in enumerate([ASKED, *memory, kill, done]))
    shown = list(lines(timeline.build([reader.read("log", [text.encode()])], NOW_S), {}))
    (points,) = [each for each in shown if "points, " in each]
    assert ": 1 points, " in points
    assert points.endswith("the kernel says 0")


def test_a_line_of_marks_is_read_at_once() -> None:
    """A line that anybody can write to a log costs no more than its length."""
    began_s = time.process_time()
    for text in ("a] " * 30_000 + ASKED, "OOM victim 1 (" * 6_000, "Swap used (" * 16_000):
        events_of(f"[  50.0] {text}\n")
    assert time.process_time() - began_s < 5
