"""Text of somebody else's on a terminal: a user may name a process as he likes."""


def printable(text: str, longest: int | None = None) -> str:
    r"""Return text on one line that a terminal shows and does not obey: what is not printable is spelled out, as \x1b.

    Of a text longer than `longest` characters so many are shown, and "…".
    """
    # without the codec unicode_escape, which would be read from the disk when the guard first needs it
    plain = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text[:longest])
    return plain if longest is None or len(text) <= longest else f"{plain}…"
