"""pyinfra's configuration: checked before anything else is read."""

# 3.10 is the first release with machine-readable results and the facts that the layers rely on
REQUIRE_PYINFRA_VERSION = ">=3.10,<4"
