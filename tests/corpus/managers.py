"""Arrangements of system.conf, user.conf and journald.conf, asked of the managers and of a journald."""

import random

from tests.corpus.case import LINK_TO_NULL, SEED, Case, Content, with_reboots

DIRECTORIES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
ETC, RUN, LOCAL, USR = DIRECTORIES
SECTION = {"system": "Manager", "user": "Manager", "journald@corpus": "Journal"}
"""The file's name -> the section that is asked for. A journald of its own has a file of its own."""
KEYS = {
    "system": ("DefaultOOMScoreAdjust", "DefaultTimeoutStartSec", "DefaultStartLimitBurst"),
    "user": ("DefaultOOMScoreAdjust", "DefaultTimeoutStartSec", "DefaultStartLimitBurst"),
    "journald@corpus": ("SystemMaxUse",),
}
VALUES = {
    "DefaultOOMScoreAdjust": ("10", "20", "30", "lots", "-40", "1001", "0x10", ""),
    "DefaultTimeoutStartSec": ("11", "12s", "2min", "1min 5s", "70000ms"),
    "DefaultStartLimitBurst": ("3", "4", "6", "7"),
    "SystemMaxUse": ("31M", "32M", "33M", "34MB", "67108864", "40m"),
}


def _arrangements(name: str) -> dict[str, dict[str, Content]]:
    """Return named arrangements in which the files of one daemon beat and hide each other."""
    head = f"[{SECTION[name]}]\n"
    key = KEYS[name][0]
    one, two, three, bad = VALUES[key][:4]
    first, second, third, refused = (f"{head}{key}={value}\n" for value in (one, two, three, bad))
    main, drop_ins = f"{name}.conf", f"{name}.conf.d"
    drop_in = f"{ETC}/{drop_ins}/a.conf"
    return {
        "a drop-in beats the main file": {f"{ETC}/{main}": first, drop_in: second},
        "a vendor's drop-in beats the main file": {f"{ETC}/{main}": first, f"{USR}/{drop_ins}/a.conf": second},
        "drop-ins by name": {
            f"{ETC}/{drop_ins}/10.conf": first,
            f"{USR}/{drop_ins}/20.conf": second,
            f"{LOCAL}/{drop_ins}/15.conf": third,
        },
        "namesakes": dict(
            zip((f"{d}/{drop_ins}/x.conf" for d in DIRECTORIES[1:]), (first, second, third), strict=True)
        ),
        "masked drop-in": {
            f"{ETC}/{drop_ins}/x.conf": LINK_TO_NULL,
            f"{USR}/{drop_ins}/x.conf": first,
            f"{USR}/{drop_ins}/a.conf": second,
        },
        "main file of the vendor": {f"{USR}/{main}": first},
        "main files": {f"{ETC}/{main}": f"{head}\n", f"{USR}/{main}": first},
        "main file in /run": {f"{RUN}/{main}": first, f"{USR}/{main}": second},
        "masked main file": {f"{ETC}/{main}": LINK_TO_NULL, f"{LOCAL}/{main}": first},
        "a refused value leaves the one before": {f"{ETC}/{main}": first, drop_in: refused},
        "another section": {drop_in: f"{head}{key}={one}\n[Other]\n{key}={two}\n"},
        "no section": {drop_in: f"{key}={one}\n"},
        "lines that go on": {drop_in: f"{head}X=\\\n{key}={one}\n{key}=\\\n# comment\n {two}\n; {key}={three}\n"},
        "only .conf": {f"{ETC}/{drop_ins}/a": first, f"{ETC}/{drop_ins}/.b.conf": second},
    }


def _random(name: str, number: int) -> Case:
    rng = random.Random(f"{SEED} {name} {number}")  # noqa: S311  # an arrangement is no secret
    files: dict[str, Content] = {}
    for _ in range(rng.randint(2, 7)):
        directory = rng.choice(DIRECTORIES)
        file = f"{name}.conf" if rng.random() < 0.3 else f"{name}.conf.d/{rng.choice(['10-a', '50-b', '90-c'])}.conf"
        keys = [rng.choice(KEYS[name]) for _ in range(rng.randint(0, 4))]
        lines = [f"{rng.choice(['', '', '# ', '; '])}{key} = {rng.choice(VALUES[key])}\n" for key in keys]
        text = f"[{SECTION[name]}]\n" + "".join(lines)
        files[f"{directory}/{file}"] = LINK_TO_NULL if rng.random() < 0.15 else text
    return Case(f"{name}: random {number}", files, _ask(name))


def _ask(name: str) -> dict[str, object]:
    return {"manager": name, "section": SECTION[name], "keys": list(KEYS[name])}


def cases() -> list[Case]:
    """Return every arrangement."""
    found = []
    for name in SECTION:
        found += [Case(f"{name}: {what}", files, _ask(name)) for what, files in _arrangements(name).items()]
        found += [_random(name, number) for number in range(4)]
    return with_reboots(found)
