"""pyinfra's configuration, read from the directory that it is started in."""

from pyinfra.context import config

# 3.10 is the first release with machine-readable results and the facts that the layers rely on
config.REQUIRE_PYINFRA_VERSION = ">=3.10,<4"

# Not only for the TCP connection: paramiko gives up the whole key exchange after it, whatever the timeout of
# the banner, so that pyinfra's 10 s fail on a box whose sshd takes 50 s to answer.
config.CONNECT_TIMEOUT = 60
