"""Arrangements of sysctl.d, asked of systemd-sysctl on a tree of plain files in the place of /proc/sys."""

import random

from tests.corpus.case import DIRECTORY, LINK_TO_NULL, SEED, Case, Content, with_reboots

INTERFACES = ("all", "default", "eth0", "eth0.100", "lo")
TREE = (
    "kernel/panic",
    "kernel/sysrq",
    "kernel/core_pattern",
    "vm/swappiness",
    "vm/dirty_ratio",
    *(f"net/ipv4/conf/{name}/rp_filter" for name in INTERFACES),
    *(f"net/ipv4/conf/{name}/log_martians" for name in INTERFACES),
)
DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
ETC, RUN, LOCAL, USR = DIRECTORIES
RP = "net.ipv4.conf.{}.rp_filter"

ONE_FILE = {
    "plain": "kernel.panic=20\n",
    "blanks around": " kernel.panic \t=  20 \t\n",
    "no newline at the end": "kernel.panic = 20",
    "slashes": "kernel/panic=20\n",
    "leading slash": "/kernel/panic=20\n",
    "doubled separators": "kernel..panic=20\nvm//swappiness=30\n",
    "dot that is part of a name": "net.ipv4.conf.eth0/100.rp_filter=2\n",
    "dot in a name, with slashes": "net/ipv4/conf/eth0.100/rp_filter=2\n",
    "dash": "-kernel.panic = 20\n",
    "dash and blank": "- kernel.panic = 20\n",
    "dash, key unknown": "-kernel.nothing = 1\nkernel.panic = 20\n",
    "key unknown": "kernel.nothing = 1\nkernel.panic = 20\n",
    "dash without a value takes back": "kernel.panic=20\n-kernel.panic\n",
    "dash without a value, then set": "-kernel.panic\nkernel.panic=20\n",
    "set, taken back, set": "kernel.panic=20\n-kernel.panic\nkernel.panic=30\n",
    "empty value": "kernel.core_pattern=\n",
    "empty value of blanks": "kernel.core_pattern=    \n",
    "empty value after a value": "kernel.core_pattern=core\nkernel.core_pattern=\n",
    "value with an equals sign": "kernel.core_pattern=|/usr/bin/x --a=%p\n",
    "value with quotes": 'kernel.core_pattern="core"\n',
    "no comment after a value": "kernel.panic=20 # twenty\n",
    "comments": "# kernel.panic=20\n; kernel.sysrq=1\n   # vm.swappiness=3\n\t; vm.dirty_ratio=4\n",
    "line without an equals sign": "kernel.panic 20\nkernel.sysrq=1\n",
    "key with a blank": "kernel panic=20\nkernel.sysrq=1\n",
    "twice, the last one counts": "kernel.panic=20\nkernel.panic=30\n",
    "twice, in two spellings": "kernel.panic=20\nkernel/panic=30\n",
    "twice, the same": "kernel.panic=20\nkernel.panic=20\n",
    "backslash does not join": "kernel.core_pattern=a\\\nkernel.panic=20\n",
    "carriage returns": "kernel.panic=20\r\nkernel.sysrq=1\r\n",
    "carriage returns alone": "kernel.panic=20\rkernel.sysrq=1\r",
    "byte order mark": "\ufeffkernel.panic=20\nkernel.sysrq=1\n",
    "no-break space": "kernel.core_pattern=a\u00a0\n",
    "form feed": "kernel.core_pattern=a\fb\n",
    "upper case": "KERNEL.PANIC=20\nkernel.sysrq=1\n",
    "several words": "kernel.core_pattern=4 4  1\t7\n",
    "glob": RP.format("*") + "=2\n",
    "glob with slashes": "net/ipv4/conf/*/rp_filter=2\n",
    "glob, and a name before it": RP.format("eth0") + "=1\n" + RP.format("*") + "=2\n",
    "glob, and a name after it": RP.format("*") + "=2\n" + RP.format("eth0") + "=1\n",
    "glob with an exclusion": RP.format("*") + "=2\n-" + RP.format("all") + "\n",
    "glob with an exclusion before it": "-" + RP.format("all") + "\n" + RP.format("*") + "=2\n",
    "glob with two exclusions": RP.format("*") + "=2\n-" + RP.format("all") + "\n-" + RP.format("lo") + "\n",
    "exclusion, and set by name": RP.format("*") + "=2\n-" + RP.format("all") + "\n" + RP.format("all") + "=1\n",
    "two globs": RP.format("*") + "=1\n" + RP.format("eth*") + "=2\n",
    "two globs, the wider one last": RP.format("eth*") + "=2\n" + RP.format("*") + "=1\n",
    "glob repeated": RP.format("*") + "=2\n" + RP.format("eth*") + "=1\n" + RP.format("*") + "=2\n",
    "glob repeated with another value": RP.format("*") + "=0\n" + RP.format("eth*") + "=1\n" + RP.format("*") + "=2\n",
    "glob taken back": RP.format("*") + "=2\n-" + RP.format("*") + "\n",
    "glob excluded by a narrower glob": RP.format("*") + "=2\n-" + RP.format("eth*") + "\n",
    "glob over two levels": "net.ipv4.conf.*.*=2\n",
    "glob that would cross a slash": "net.ipv4.*=2\n",
    "glob of one character": RP.format("eth?") + "=2\n",
    "glob of a set": RP.format("[al]*") + "=2\n",
    "glob of what is not in a set": RP.format("[!a]*") + "=2\n",
    "glob of what is not in a set, as in a regular expression": RP.format("[^a]*") + "=2\n",
    "braces are no glob": RP.format("{all,lo}") + "=2\n",
    "glob that matches nothing": RP.format("wlan*") + "=2\nkernel.panic=20\n",
    "glob with an empty value": "kernel.core_*=\n",
    "glob with a dash": "-" + RP.format("*") + " = 2\n",
    "the manual's own example": (
        "-net.core.default_qdisc = fq_codel\nnet.ipv4.conf.default.rp_filter = 2\nnet.ipv4.conf.*.rp_filter = 2\n"
        "-net.ipv4.conf.all.rp_filter\nnet/ipv4/conf/lo/rp_filter = 0\nkernel.core_pattern=4 4 1 7\n"
    ),
    "nothing": "",
}

SEVERAL_FILES: dict[str, dict[str, Content]] = {
    "names sort across directories": {
        f"{ETC}/10-a.conf": "kernel.panic=10\n",
        f"{USR}/50-b.conf": "kernel.panic=50\n",
        f"{LOCAL}/9-c.conf": "kernel.panic=90\n",
    },
    "a capital sorts before a small letter": {
        f"{ETC}/a.conf": "kernel.panic=10\n",
        f"{USR}/Z.conf": "kernel.panic=20\n",
    },
    "a letter sorts after 99": {f"{ETC}/99-a.conf": "kernel.panic=10\n", f"{USR}/zz.conf": "kernel.panic=20\n"},
    "no dot file": {f"{ETC}/.hidden.conf": "kernel.panic=10\n"},
    "only .conf": {
        f"{ETC}/a.conf.bak": "kernel.panic=10\n",
        f"{ETC}/b": "vm.swappiness=1\n",
        f"{ETC}/c.conf~": "x=1\n",
    },
    "namesakes": {f"{d}/50-x.conf": f"kernel.panic=1{n}\n" for n, d in enumerate(DIRECTORIES)},
    "namesakes without /etc": {f"{d}/50-x.conf": f"kernel.panic=1{n}\n" for n, d in enumerate(DIRECTORIES[1:])},
    "an empty file hides": {f"{ETC}/50-x.conf": "", f"{USR}/50-x.conf": "kernel.panic=10\n"},
    "a link to /dev/null hides": {f"{ETC}/50-x.conf": LINK_TO_NULL, f"{USR}/50-x.conf": "kernel.panic=10\n"},
    "a link to /dev/null in /run hides": {f"{RUN}/50-x.conf": LINK_TO_NULL, f"{USR}/50-x.conf": "kernel.panic=10\n"},
    "a link to /dev/null does not hide upwards": {
        f"{USR}/50-x.conf": LINK_TO_NULL,
        f"{ETC}/50-x.conf": "kernel.panic=10\n",
    },
    "a link to nowhere hides": {f"{ETC}/50-x.conf": {"link": "nowhere"}, f"{USR}/50-x.conf": "kernel.panic=10\n"},
    "a directory hides": {f"{ETC}/50-x.conf": DIRECTORY, f"{USR}/50-x.conf": "kernel.panic=10\n"},
    "a link to a file": {f"{ETC}/60-y.conf": {"link": f"{USR}/50-x.conf"}, f"{USR}/50-x.conf": "kernel.panic=10\n"},
    "sysctl.conf alone is not read": {"/etc/sysctl.conf": "kernel.panic=10\n"},
    "sysctl.conf by its link": {
        "/etc/sysctl.conf": "kernel.panic=10\n",
        f"{ETC}/99-sysctl.conf": {"link": "../sysctl.conf"},
        f"{ETC}/98-x.conf": "kernel.panic=20\nvm.swappiness=1\n",
    },
    "sysctl.conf by its link, and later than it": {
        "/etc/sysctl.conf": "kernel.panic=10\n",
        f"{ETC}/99-sysctl.conf": {"link": "../sysctl.conf"},
        f"{ETC}/zz-x.conf": "kernel.panic=20\n",
    },
    "a link to a sysctl.conf that is gone": {f"{ETC}/99-sysctl.conf": {"link": "../sysctl.conf"}},
    "a name beats a later file's glob": {
        f"{USR}/10-a.conf": RP.format("all") + "=1\n",
        f"{ETC}/90-b.conf": RP.format("*") + "=2\n",
    },
    "a later file excludes": {
        f"{USR}/10-a.conf": RP.format("*") + "=2\n",
        f"{ETC}/90-b.conf": "-" + RP.format("all") + "\n",
    },
    "a later file takes back": {f"{USR}/10-a.conf": "kernel.panic=10\n", f"{ETC}/90-b.conf": "-kernel.panic\n"},
    "the later of two spellings": {
        f"{USR}/10-a.conf": "net.ipv4.conf.eth0/100.rp_filter=1\n",
        f"{ETC}/90-b.conf": "net/ipv4/conf/eth0.100/rp_filter=2\n",
    },
    "runtime file last": {f"{RUN}/zz.conf": "kernel.panic=30\n", f"{ETC}/50-a.conf": "kernel.panic=10\n"},
    "runtime file hides and is hidden": {
        f"{RUN}/50-a.conf": "kernel.panic=30\nvm.swappiness=3\n",
        f"{ETC}/50-a.conf": "kernel.panic=10\n",
        f"{RUN}/60-b.conf": "vm.dirty_ratio=3\n",
        f"{USR}/60-b.conf": "vm.dirty_ratio=4\n",
    },
}


def _random(number: int) -> Case:
    rng = random.Random(f"{SEED} sysctl {number}")  # noqa: S311  # an arrangement is no secret
    keys = [
        "kernel.panic",
        "kernel/panic",
        "vm.swappiness",
        *(RP.format(n) for n in ("all", "lo", "eth0", "*", "eth*")),
    ]
    files: dict[str, Content] = {}
    for _ in range(rng.randint(2, 6)):
        path = f"{rng.choice(DIRECTORIES)}/{rng.choice(['10-a', '50-b', '90-c'])}.conf"
        lines = []
        for _ in range(rng.randint(0, 5)):
            key = rng.choice(keys)
            form = rng.choice(["{k}={v}", "{k} = {v}", "-{k}={v}", "-{k}", "#{k}={v}", "{k}=", "{k}={v}"])
            lines.append(form.format(k=key, v=rng.randint(0, 3)))
        files[path] = LINK_TO_NULL if rng.random() < 0.15 else "".join(f"{line}\n" for line in lines)
    return Case(f"sysctl: random {number}", files, {"keys": list(TREE)})


def cases() -> list[Case]:
    """Return every arrangement."""
    ask = {"keys": list(TREE)}
    single = [Case(f"sysctl: {name}", {f"{ETC}/50-x.conf": text}, ask) for name, text in ONE_FILE.items()]
    several = [Case(f"sysctl: {name}", files, ask) for name, files in SEVERAL_FILES.items()]
    return with_reboots([*single, *several, *map(_random, range(30))])
