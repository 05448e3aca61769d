"""What ends a command with one line on stderr; every kind has its exit code."""

EXIT_CODES = GOOD, INTERNAL, DRIFT, UNKNOWN, USAGE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130


class BoxError(Exception):
    """A command cannot go on; the message says what, where, and what to do."""

    exit_code = INTERNAL


class UsageError(BoxError):
    """The command line, or what came on standard input, is not usable; nothing was read or changed."""

    exit_code = USAGE
