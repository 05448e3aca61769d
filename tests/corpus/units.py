"""Arrangements of units and their drop-ins, asked of PID 1.

All arrangements of one batch lie on the machine at once, each with units of its own names: one daemon-reload
serves them all. The second batch has drop-ins for whole types of units, which every unit sees.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count, pairwise

from tests.corpus.case import LINK_TO_NULL, SEED, Case, Content

ETC, RUN, LOCAL, USR = (f"{d}/systemd/system" for d in ("/etc", "/run", "/usr/local/lib", "/usr/lib"))
CONTROL, RUN_CONTROL, ATTACHED, TRANSIENT = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/etc/systemd/system.attached",
    "/run/systemd/transient",
)  # fmt: skip
DIRECTORIES = (CONTROL, RUN_CONTROL, TRANSIENT, ETC, ATTACHED, RUN, LOCAL, USR)
SERVICE_KEYS = (
    "OOMScoreAdjust", "MemoryMin", "MemoryLow", "CPUWeight", "IOWeight", "Nice", "Restart", "Environment",
    "EnvironmentFile", "ExecStart",
)  # fmt: skip
UNIT_KEYS = ("Description", "After", "Wants")
BASE = "[Unit]\nDescription=base\n[Service]\nType=oneshot\nExecStart=/bin/true base\n"
SLICE = "[Unit]\nDescription=base\n[Slice]\nMemoryMin=16M\n"
TYPE_WIDE: dict[str, Content] = {
    f"{ETC}/service.d/zz-corpus.conf": "[Service]\nOOMScoreAdjust=111\nEnvironment=WIDE=1\n",
    f"{USR}/service.d/50-corpus.conf": "[Service]\nNice=4\n",
    f"{ETC}/slice.d/50-corpus.conf": "[Slice]\nMemoryLow=48M\n",
}
"""What the units of the second batch share; nothing that runs is changed by any of it."""


def _s(text: str) -> str:
    """Return a drop-in for a service from `Key=value; Key=value`."""
    return "[Service]\n" + "".join(f"{line.strip()}\n" for line in text.split(" | "))


Files = Mapping[str, Content]
Arrangement = Callable[[str], Files]
"""From the stem of a name to the files, in which `{stem}.service` is the unit that is asked for."""


def _in_directories(n: str) -> Files:
    texts = {f"{d}/{n}.service.d/{i}0.conf": _s(f"Nice={i} | Environment=V{i}=1") for i, d in enumerate(DIRECTORIES)}
    return {f"{USR}/{n}.service": BASE, **texts}


def _namesakes(n: str) -> Files:
    texts = {f"{d}/{n}.service.d/x.conf": _s(f"Nice={i}") for i, d in enumerate(DIRECTORIES)}
    return {f"{USR}/{n}.service": BASE, **texts}


def _fragments(n: str) -> Files:
    return {f"{d}/{n}.service": f"{BASE}Nice={i}\n" for i, d in enumerate((ETC, RUN, LOCAL, USR))}


def _with(fragment: str, **drop_ins: str) -> Arrangement:
    """Return a unit with drop-ins `a`, `b`… in /etc."""
    return lambda n: {
        f"{USR}/{n}.service": fragment,
        **{f"{ETC}/{n}.service.d/{name}.conf": text for name, text in drop_ins.items()},
    }


SERVICES: dict[str, Arrangement] = {
    "no drop-in": _with(BASE),
    "one drop-in": _with(BASE, a=_s("OOMScoreAdjust=-1000 | MemoryMin=256M | CPUWeight=1000 | IOWeight=1000")),
    "later name wins": _with(BASE, a=_s("OOMScoreAdjust=1 | Nice=1"), b=_s("OOMScoreAdjust=2")),
    "every directory": _in_directories,
    "namesakes in every directory": _namesakes,
    "fragments in every directory": _fragments,
    "fragment in /etc replaces the vendor's": lambda n: {
        f"{USR}/{n}.service": BASE + "OOMScoreAdjust=5\n",
        f"{ETC}/{n}.service": BASE.replace("base", "mine"),
        f"{USR}/{n}.service.d/a.conf": _s("Nice=3"),
    },
    "fragment in /run": lambda n: {f"{RUN}/{n}.service": BASE + "Nice=5\n", f"{USR}/{n}.service": BASE + "Nice=6\n"},
    "fragment and drop-in in /run": lambda n: {
        f"{USR}/{n}.service": BASE + "Nice=6\n",
        f"{RUN}/{n}.service.d/x.conf": _s("Nice=7"),
        f"{ETC}/{n}.service.d/a.conf": _s("Nice=8"),
    },
    "edited with systemctl edit": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{ETC}/{n}.service.d/override.conf": _s("OOMScoreAdjust=7"),
        f"{ETC}/{n}.service.d/plimsoll.conf": _s("OOMScoreAdjust=-5"),
        f"{ETC}/{n}.service.d/aaa.conf": _s("OOMScoreAdjust=9"),
    },
    "set with set-property": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{CONTROL}/{n}.service.d/50-MemoryMin.conf": _s("MemoryMin=64M"),
        f"{ETC}/{n}.service.d/plimsoll.conf": _s("MemoryMin=256M"),
        f"{ETC}/{n}.service.d/10-a.conf": _s("MemoryMin=128M | MemoryLow=32M"),
    },
    "set with set-property --runtime": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{RUN_CONTROL}/{n}.service.d/50-MemoryMin.conf": _s("MemoryMin=64M"),
        f"{ETC}/{n}.service.d/10-a.conf": _s("MemoryMin=128M | MemoryLow=32M"),
    },
    "set with set-property, hiding a namesake": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{CONTROL}/{n}.service.d/50-CPUWeight.conf": _s("CPUWeight=300"),
        f"{ETC}/{n}.service.d/50-CPUWeight.conf": _s("CPUWeight=200 | IOWeight=200"),
    },
    "drop-in masked": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{USR}/{n}.service.d/x.conf": _s("Nice=3"),
        f"{ETC}/{n}.service.d/x.conf": LINK_TO_NULL,
    },
    "drop-in emptied": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{USR}/{n}.service.d/x.conf": _s("Nice=3"),
        f"{ETC}/{n}.service.d/x.conf": "",
    },
    "drop-in masked in /run": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{USR}/{n}.service.d/x.conf": _s("Nice=3"),
        f"{RUN}/{n}.service.d/x.conf": LINK_TO_NULL,
    },
    "drop-in masked below only": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{USR}/{n}.service.d/x.conf": LINK_TO_NULL,
        f"{ETC}/{n}.service.d/x.conf": _s("Nice=3"),
    },
    "drop-in is a link to nowhere": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{USR}/{n}.service.d/x.conf": _s("Nice=3"),
        f"{ETC}/{n}.service.d/x.conf": {"link": "nowhere"},
    },
    "drop-in is a link": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{USR}/{n}.txt": _s("Nice=3"),
        f"{ETC}/{n}.service.d/x.conf": {"link": f"{USR}/{n}.txt"},
    },
    "files that are no drop-ins": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{ETC}/{n}.service.d/x": _s("Nice=3"),
        f"{ETC}/{n}.service.d/y.conf.bak": _s("Nice=4"),
        f"{ETC}/{n}.service.d/.z.conf": _s("Nice=5"),
    },
    "masked": lambda n: {f"{USR}/{n}.service": BASE, f"{ETC}/{n}.service": LINK_TO_NULL},
    "masked by an empty file": lambda n: {f"{USR}/{n}.service": BASE, f"{ETC}/{n}.service": ""},
    "masked in /run": lambda n: {f"{USR}/{n}.service": BASE, f"{RUN}/{n}.service": LINK_TO_NULL},
    "masked in /run, not in /etc": lambda n: {f"{ETC}/{n}.service": BASE, f"{RUN}/{n}.service": LINK_TO_NULL},
    "masked, with a drop-in": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{ETC}/{n}.service": LINK_TO_NULL,
        f"{ETC}/{n}.service.d/a.conf": _s("Nice=4"),
    },
    "alias": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{ETC}/{n}-a.service": {"link": f"{USR}/{n}.service"},
        f"{ETC}/{n}-a.service.d/y.conf": _s("Nice=5 | OOMScoreAdjust=5"),
        f"{ETC}/{n}.service.d/x.conf": _s("Nice=4"),
    },
    "alias with a namesake": lambda n: {
        f"{USR}/{n}.service": BASE,
        f"{ETC}/{n}-a.service": {"link": f"{n}.service"},
        f"{ETC}/{n}-a.service.d/x.conf": _s("Nice=5"),
        f"{USR}/{n}.service.d/x.conf": _s("Nice=4"),
    },
    "list reset": _with(BASE, a=_s("ExecStart= | ExecStart=/bin/true mine")),
    "list reset twice": _with(
        BASE, a=_s("ExecStart= | ExecStart=/bin/true one"), b=_s("ExecStart= | ExecStart=/bin/true two")
    ),
    "list added to": _with(BASE, a=_s("ExecStart=/bin/true more")),
    "list emptied": _with(BASE.replace("Type=oneshot\n", "") + "ExecStop=/bin/true\n", a=_s("ExecStart=")),
    "environment added to and reset": _with(
        BASE + "Environment=A=1\n",
        a=_s("Environment=B=2 C=3"),
        b=_s("Environment= | Environment=D=4"),
        c=_s("Environment=E=5"),
    ),
    "environment reset at the end": _with(BASE + "Environment=A=1\n", z=_s("Environment=")),
    "environment of the same name twice": _with(BASE + "Environment=A=1\n", a=_s("Environment=A=2")),
    "environment files": _with(
        BASE + "EnvironmentFile=/etc/corpus-a\n",
        a=_s("EnvironmentFile=-/etc/corpus-b"),
        b=_s("EnvironmentFile= | EnvironmentFile=/etc/corpus-c"),
    ),
    "dependencies are not reset": _with(
        "[Unit]\nAfter=corpus-a.target\nWants=corpus-a.target\n" + BASE,
        a="[Unit]\nAfter=\nWants=\nAfter=corpus-b.target corpus-c.target\n",
    ),
    "scalar reset": _with(
        BASE + "Nice=3\n",
        a=_s("MemoryMin=64M | MemoryLow=32M | CPUWeight=300 | Restart=always"),
        b=_s("MemoryMin= | CPUWeight="),
    ),
    "value refused": _with(
        BASE,
        a=_s("OOMScoreAdjust=5 | MemoryMin=64M | CPUWeight=300"),
        b=_s("OOMScoreAdjust=1001 | MemoryMin=64MB | CPUWeight=0"),
    ),
    "value refused, none before": _with(BASE, a=_s("OOMScoreAdjust=lots | MemoryMin=64m | IOWeight=10001")),
    "value written otherwise": _with(
        BASE, a=_s("OOMScoreAdjust=0x10 | MemoryMin=1G 512M | CPUWeight=+20 | MemoryLow=1.5M")
    ),
    "infinity": _with(BASE, a=_s("MemoryMin=infinity | MemoryLow=1K"), b=_s("MemoryLow=infinity")),
    "empty score": _with(BASE, a=_s("OOMScoreAdjust=5"), b=_s("OOMScoreAdjust=")),
    "another section": _with(BASE, a="[Unit]\nOOMScoreAdjust=5\nDescription=other\n[X-Own]\nNice=5\n"),
    "no section": _with(BASE, a="OOMScoreAdjust=5\n[Service]\nNice=5\n"),
    "section twice": _with(BASE, a="[Service]\nNice=1\n[Unit]\nDescription=x\n[Service]\nNice=2\n"),
    "comments": _with(BASE, a="[Service]\n# Nice=1\n; Nice=2\n  # Nice=3\nNice=4\n[Unit]\nDescription=a ; b # c\n"),
    "lines that go on": _with(BASE, a="[Service]\nEnvironment=A=1 \\\n# comment\n  B=2 \\\n; comment\nC=3\nNice=2\n"),
    "line that goes on into nothing": _with(BASE, a="[Service]\nNice=2 \\\n\nOOMScoreAdjust=3\n"),
    "two backslashes": _with(BASE, a="[Unit]\nDescription=a \\\\\n[Service]\nNice=2\n"),
    "broken header ends the file": _with(BASE, a="[Service]\nNice=2\n[Service\nNice=3\n", b=_s("OOMScoreAdjust=3")),
    "carriage returns": _with(BASE, a="[Service]\r\nNice=2\r\nOOMScoreAdjust=3\r\n"),
    "byte order mark": _with(BASE, a="\ufeff[Service]\nNice=2\n"),
    "blanks": _with(BASE, a="[Service]\n  Nice  =  2  \n\tOOMScoreAdjust\t=\t3\n"),
    "keys have one spelling": _with(BASE, a="[Service]\nnice=2\n[service]\nNice=3\n"),
    "not there": lambda n: {f"{ETC}/{n}.service.d/a.conf": _s("Nice=3")},
    "prefix": lambda n: {
        f"{USR}/{n}-b.service": BASE,
        f"{ETC}/{n}-.service.d/a.conf": _s("Nice=3 | OOMScoreAdjust=3"),
        f"{USR}/{n}-b.service.d/b.conf": _s("Nice=4"),
    },
    "prefix, later name": lambda n: {
        f"{USR}/{n}-b.service": BASE,
        f"{ETC}/{n}-.service.d/z.conf": _s("Nice=3"),
        f"{ETC}/{n}-b.service.d/b.conf": _s("Nice=4"),
    },
    "prefix in /etc hides the unit's own in /usr": lambda n: {
        f"{USR}/{n}-b.service": BASE,
        f"{ETC}/{n}-.service.d/x.conf": _s("Nice=3"),
        f"{USR}/{n}-b.service.d/x.conf": _s("Nice=4"),
    },
    "prefix masks": lambda n: {
        f"{USR}/{n}-b.service": BASE,
        f"{ETC}/{n}-b.service.d/x.conf": LINK_TO_NULL,
        f"{ETC}/{n}-.service.d/x.conf": _s("Nice=3"),
    },
    "template": lambda n: {
        f"{USR}/{n}@.service": BASE,
        f"{ETC}/{n}@.service.d/a.conf": _s("Nice=3 | OOMScoreAdjust=3"),
        f"{ETC}/{n}@i.service.d/b.conf": _s("Nice=4"),
        f"{ETC}/{n}@j.service.d/c.conf": _s("Nice=5"),
    },
    "template and instance, namesakes": lambda n: {
        f"{USR}/{n}@.service": BASE,
        f"{ETC}/{n}@.service.d/x.conf": _s("Nice=3"),
        f"{ETC}/{n}@i.service.d/x.conf": _s("Nice=4"),
    },
    "instance with a fragment of its own": lambda n: {
        f"{USR}/{n}@.service": BASE,
        f"{USR}/{n}@i.service": BASE.replace("base", "own"),
        f"{ETC}/{n}@.service.d/x.conf": _s("Nice=3"),
    },
}
ASKED = {"prefix": "{}-b.service", "template": "{}@i.service", "instance": "{}@i.service"}
"""The first word of an arrangement's name -> the unit that is asked for, where it is not `{stem}.service`."""


def _instance_of_a_prefix(n: str) -> Files:
    names = (f"{n}-b@c", f"{n}-b@", f"{n}-", f"{n}-@c", f"{n}-@")
    files: dict[str, Content] = {f"{USR}/{n}-b@.service": BASE}
    files |= {f"{ETC}/{name}.service.d/{i}.conf": _s(f"Environment=V{i}=1") for i, name in enumerate(names)}
    for i, (more, less) in enumerate(pairwise(names)):
        files[f"{ETC}/{more}.service.d/same{i}.conf"] = _s(f"Environment=MORE{i}=1")
        files[f"{ETC}/{less}.service.d/same{i}.conf"] = _s(f"Environment=LESS{i}=1")
    return files


def _slices(n: str) -> Files:
    return {
        f"{USR}/{n}-b-c.slice": SLICE,
        f"{ETC}/{n}-.slice.d/a.conf": "[Slice]\nMemoryMin=32M\nMemoryLow=64M\n",
        f"{ETC}/{n}-b-.slice.d/b.conf": "[Slice]\nMemoryMin=24M\n",
        f"{USR}/{n}-b-c.slice.d/0.conf": "[Slice]\nMemoryMin=8M\nCPUWeight=50\n",
    }


WIDE: dict[str, tuple[str, Arrangement]] = {
    "type-wide drop-ins": ("{}.service", _with(BASE, a=_s("Nice=1"), zzz=_s("Environment=LATE=1"))),
    "type-wide, a later name": ("{}.service", _with(BASE, zzz=_s("OOMScoreAdjust=7 | Nice=7"))),
    "type-wide, an earlier name": ("{}.service", _with(BASE, a=_s("OOMScoreAdjust=7 | Nice=7"))),
    "type-wide in /etc, hidden by /usr": (
        "{}.service",
        lambda n: {f"{USR}/{n}.service": BASE, f"{USR}/{n}.service.d/zz-corpus.conf": _s("Nice=2")},
    ),
    "type-wide, masked for one unit": (
        "{}.service",
        lambda n: {f"{USR}/{n}.service": BASE, f"{ETC}/{n}.service.d/zz-corpus.conf": LINK_TO_NULL},
    ),
    "type-wide, hidden by the prefix": (
        "{}-b.service",
        lambda n: {f"{USR}/{n}-b.service": BASE, f"{ETC}/{n}-.service.d/50-corpus.conf": _s("Nice=2")},
    ),
    "type-wide, hidden by the template": (
        "{}@i.service",
        lambda n: {f"{USR}/{n}@.service": BASE, f"{ETC}/{n}@.service.d/50-corpus.conf": _s("Nice=2")},
    ),
    "type-wide, hidden in /run": (
        "{}.service",
        lambda n: {f"{USR}/{n}.service": BASE, f"{RUN}/{n}.service.d/zz-corpus.conf": _s("Nice=2")},
    ),
    "type-wide and set-property": (
        "{}.service",
        lambda n: {f"{USR}/{n}.service": BASE, f"{CONTROL}/{n}.service.d/50-CPUWeight.conf": _s("CPUWeight=5")},
    ),
    "type-wide for slices": ("{}.slice", lambda n: {f"{USR}/{n}.slice": SLICE}),
    "type-wide for slices, hidden": (
        "{}.slice",
        lambda n: {f"{USR}/{n}.slice": SLICE, f"{USR}/{n}.slice.d/50-corpus.conf": "[Slice]\nMemoryMin=1M\n"},
    ),
}


def _random(number: int) -> Arrangement:
    def make(n: str) -> Files:
        rng = random.Random(f"{SEED} unit {number}")  # noqa: S311  # an arrangement is no secret
        values = {
            "Nice": "12345", "OOMScoreAdjust": ["1", "-2", "3", "x", ""], "MemoryMin": ["1M", "2M", "3MB", ""],
            "Environment": ["A=1", "B=2", ""], "ExecStart": ["", "/bin/true a", "/bin/true b"],
        }  # fmt: skip
        files: dict[str, Content] = {f"{USR}/{n}-b.service": BASE}
        if rng.random() < 0.3:
            files[f"{rng.choice([ETC, RUN, LOCAL])}/{n}-b.service"] = f"{BASE}Nice=9\n"
        for _ in range(rng.randint(2, 7)):
            base, owner = rng.choice(DIRECTORIES), rng.choice([f"{n}-b", f"{n}-b", f"{n}-"])
            keys = [rng.choice(list(values)) for _ in range(rng.randint(1, 4))]
            text = "[Service]\n" + "".join(f"{key}={rng.choice(values[key])}\n" for key in keys)
            name = rng.choice(["10-a", "50-b", "90-c"])
            files[f"{base}/{owner}.service.d/{name}.conf"] = LINK_TO_NULL if rng.random() < 0.15 else text
        return files

    return make


def _arrangements() -> Iterator[tuple[str, str, Arrangement, bool]]:
    """Yield what it is about, the unit that is asked for, its files, and whether it belongs in the second batch."""
    for what, arrangement in SERVICES.items():
        first_word = what.replace(",", "").split()[0]
        yield what, ASKED.get(first_word, "{}.service"), arrangement, False
    yield "alias asked for by its alias", "{}-a.service", SERVICES["alias"], False
    yield "instance of a prefix", "{}-b@c.service", _instance_of_a_prefix, False
    yield "slices with prefixes", "{}-b-c.slice", _slices, False
    for number in range(20):
        yield f"random {number}", "{}-b.service", _random(number), False
    for what, (unit, arrangement) in WIDE.items():
        yield what, unit, arrangement, True


def _ask(unit: str) -> dict[str, object]:
    keys = [("Service", key) for key in SERVICE_KEYS]
    if unit.endswith(".slice"):
        keys = [("Slice", key) for key in ("MemoryMin", "MemoryLow", "CPUWeight")]
    return {"unit": unit, "keys": [*keys, *(("Unit", key) for key in UNIT_KEYS)]}


def batches() -> list[list[Case]]:
    """Return every arrangement, those that can lie on one machine at the same time together."""
    found: list[list[Case]] = [[], []]
    numbers = count()
    for what, unit, arrangement, wide in _arrangements():
        for rebooted in (False, True):
            stem = f"corpus{next(numbers)}"
            files = {**arrangement(stem), **(TYPE_WIDE if wide else {})}
            if not rebooted or any(path.startswith("/run/") for path in files):
                name = f"unit: {what}" + (", after a reboot" if rebooted else "")
                found[wide].append(Case(name, files, _ask(unit.format(stem)), rebooted=rebooted))
    return found


def cases() -> list[Case]:
    """Return every arrangement."""
    return [case for batch in batches() for case in batch]
