"""The bench: brings a machine of the lab into the state in which a GB10 freezes, and measures who survives it."""
