"""pyinfra's configuration, read from the directory that it is started in."""

import atexit
import gc
import sys

from pyinfra.context import config

from plimsoll.provision.exits import refuse_nobody, tell_of_interrupts

# 3.10 is the first release with machine-readable results and the facts that the layers rely on
config.REQUIRE_PYINFRA_VERSION = ">=3.10,<4"

# Not only for the TCP connection: paramiko gives up the whole key exchange after it, whatever the timeout of
# the banner, so that pyinfra's 10 s fail on a box whose sshd takes 50 s to answer.
config.CONNECT_TIMEOUT = 60

# pyinfra lets Python keep nothing that it has compiled, for the sake of scripts such as this one; Plimsoll's own
# modules would be compiled anew in each run. Whoever asks Python for the same in another way is left alone.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

# At its end Python would look once more through all that was imported: 0.16 s of the 1.3 that a quiet run took.
atexit.register(gc.freeze)

# A mistyped host would end in exit code 0 with nothing done, and so would Ctrl-C.
refuse_nobody()
tell_of_interrupts()
