"""Text of somebody else's on a terminal: a user may name a process as he likes."""


def printable(text: str) -> str:
    r"""Return text that a terminal shows and does not obey: what is not printable is spelled out, as \x1b."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)
