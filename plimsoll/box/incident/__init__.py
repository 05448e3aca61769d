"""What happened, from the logs: bytes -> lines -> events -> one time line -> a class with its evidence.

`scan` cuts bytes into the lines that can matter, `prefix` and `journal` take the stamps off, `kernel`, `oom`,
`userspace`, `boots` and `recording` read the messages, `reader` runs them over one source; `timeline` puts the
sources together, `classify` and `victim` say what it means, `document`, `report` and `page` show it, `answering` gives
what was asked for. `wire` takes findings to another machine, `watching` tells of events as they come. Only `sources`,
`watching` and the end of `answering` touch files and programs. Events are what the logs say; the class is an opinion,
with its grounds.
"""
