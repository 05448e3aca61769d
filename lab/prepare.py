"""Makes the machine that `make try` restores, without any Python package: beside their installation."""

import sys

from lab.errors import LabError
from lab.progress import Progress
from lab.snapshot import Spec, ensure_snapshot


def main() -> int:
    """Build and boot what is not in the cache; the exit code is the lab's."""
    try:
        ensure_snapshot(Spec(), Progress())
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
