"""`plimsoll fit` about a box that this machine is not: `--meminfo FILE` or `--mem-total-gib X`."""

from plimsoll.fleet.anywhere import OfBox

command = OfBox("fit", short_help="Say whether a model would fit into a box.")
