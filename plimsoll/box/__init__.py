"""What runs on the host: standard library only, shipped as one zipapp, started with ``python3 -I``."""
