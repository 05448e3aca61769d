"""pyinfra facts: thin; they run plimsoll/box/state.py on the host and return its JSON."""
