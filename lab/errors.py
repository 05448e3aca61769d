"""The errors that a caller of the lab can meet."""


class LabError(Exception):
    """Something about the lab that its user can act on; the message says what to do."""

    exit_code = 1


class UsageError(LabError):
    """A request that the lab cannot fulfil."""

    exit_code = 4


class HostError(LabError):
    """This host lacks what the lab needs."""

    exit_code = 3


class GuestError(LabError):
    """The machine did not do what was asked of it."""
