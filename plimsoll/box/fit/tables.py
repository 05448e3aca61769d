"""The tables of flags by engine, and which flags decide about memory. Pure."""

from collections.abc import Mapping

from plimsoll.box.fit import llama_flags, sglang_flags, vllm_flags
from plimsoll.box.fit.flags import Table

TABLES: Mapping[str, Table] = {
    "vllm": vllm_flags.TABLE,
    "sglang": sglang_flags.TABLE,
    "llama.cpp": llama_flags.TABLE,
}
_DECIDE = frozenset(
    name for table in TABLES.values() for flag in table.flags for name in (flag.name, *flag.other_names)
)


def decides(flag: str) -> bool:
    """Say whether a flag decides about memory for any engine, be it written with `_` or not to its end."""
    name = flag.replace("_", "-") if flag.startswith("--") else flag
    return name in _DECIDE or (name.startswith("--") and any(each.startswith(name) for each in _DECIDE))
