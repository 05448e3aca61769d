"""A GB10 without a GB10: a Debian machine in QEMU, booted once and restored in seconds."""
