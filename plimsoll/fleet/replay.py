"""`plimsoll replay FILE` over a recording that was brought from a box."""

from plimsoll.fleet.anywhere import OfBox

command = OfBox("replay", short_help="Say what the guard would have done.")
