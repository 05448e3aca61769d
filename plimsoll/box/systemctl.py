"""What `systemctl show` says, and where cgroups are: all that it takes to know what became of a process."""

CGROUP = "/sys/fs/cgroup"
SHOW_TIMEOUT_S = 90
"""systemd answers nobody while it reads its units anew, which took 15 s in a virtual machine on a busy host."""


def parse_show(text: str) -> list[dict[str, str]]:
    """Return `systemctl show` output as one mapping a unit; a repeated property keeps its values a line each."""
    blocks = []
    for paragraph in text.strip().split("\n\n"):
        found: dict[str, str] = {}
        for line in paragraph.splitlines():
            key, equals, value = line.partition("=")
            if equals:
                found[key] = f"{found[key]}\n{value}" if key in found else value
        if found:
            blocks.append(found)
    return blocks
