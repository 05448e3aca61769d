"""A stand-in model server, which takes memory as the real ones do over time and answers as they do."""
