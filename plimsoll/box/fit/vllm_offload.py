"""What vLLM keeps of its cache on the host: its own offloading, and connectors (`--kv-transfer-config`). Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll.box.fit import sizes
from plimsoll.box.fit.flags import Read
from plimsoll.box.fit.model import GIB, Amount, CannotTellError, Item

NAME = "KV offloading"
MAX_CONNECTORS = 20
_EXTRA = "kv_connector_extra_config"
_LMCACHE_DEFAULT_GIB = 5.0
_NATIVE = ("OffloadingConnector", "SimpleCPUOffloadConnector")
_OWN_SPECS = (None, "CPUOffloadingSpec", "TieringOffloadingSpec")


def items(read: Read, environment: Mapping[str, str], ranks: int, unknowns: list[str]) -> list[Item]:
    """Return what is taken for `ranks` ranks on this machine; what cannot be told is added to `unknowns`."""
    offloaded = read.get("--kv-offloading-size")
    if offloaded:
        size = Amount.exactly(round(offloaded * GIB))
        return [Item(NAME, size, "--kv-offloading-size, GiB over all ranks")]
    try:
        return [_item(each, environment, ranks) for each in _connectors(read.get("--kv-transfer-config") or {})]
    except CannotTellError as error:
        unknowns.append(f"--kv-transfer-config: {error}")
        return []


def _connectors(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the configurations of connectors, those inside of a MultiConnector each; raises CannotTellError."""
    if not config:
        return
    if config.get("kv_connector") != "MultiConnector":
        yield config
        return
    inner = _extra(config).get("connectors")
    if not isinstance(inner, list) or not 0 < len(inner) <= MAX_CONNECTORS:
        raise CannotTellError("MultiConnector names no connectors: what they take is not known")
    for each in inner:
        if not isinstance(each, dict) or each.get("kv_connector") == "MultiConnector":
            raise CannotTellError("a connector inside of MultiConnector is not understood")
        yield each


def _extra(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a connector, which may be written with dots (`--kv-transfer-config.….…`) as well."""
    extra = config.get(_EXTRA)
    dotted = {key.removeprefix(f"{_EXTRA}."): value for key, value in config.items() if key.startswith(f"{_EXTRA}.")}
    return {**(extra if isinstance(extra, dict) else {}), **dotted}


def _item(config: Mapping[str, Any], environment: Mapping[str, str], ranks: int) -> Item:
    name, extra = config.get("kv_connector"), _extra(config)
    if name in _NATIVE and extra.get("spec_name") in _OWN_SPECS:
        size = _number(extra.get("cpu_bytes_to_use"), "cpu_bytes_to_use")
        return Item(NAME, Amount.exactly(round(size)), f"cpu_bytes_to_use of {name}, pinned in the host's memory")
    if name == "LMCacheConnectorV1":
        return _lmcache(extra, environment, ranks)
    raise CannotTellError(f"what the connector {name} takes of the host's memory is not known here")


def _lmcache(extra: Mapping[str, Any], environment: Mapping[str, str], ranks: int) -> Item:
    if "LMCACHE_CONFIG_FILE" in environment:
        raise CannotTellError("LMCACHE_CONFIG_FILE says what LMCache takes, and is not read here")
    variable = "LMCACHE_MAX_LOCAL_CPU_SIZE"
    written = extra.get("lmcache.max_local_cpu_size", environment.get(variable, _LMCACHE_DEFAULT_GIB))
    size = round(_number(written, variable) * GIB) * ranks
    return Item(NAME, Amount.exactly(size), f"{variable} {written} GiB of LMCache for each rank, pinned at the start")


def _number(value: object, name: str) -> float:
    """Return a size above 0; raises CannotTellError for none."""
    number = sizes.real(str(value))
    if number is None or number <= 0:
        raise CannotTellError(f"{name} {'is missing' if value is None else f'{value} is no size'}")
    return number
