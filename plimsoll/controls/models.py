"""Layer models: what `plimsoll serve` is to run, who may start and stop it, and what starts with the box."""

import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plimsoll.box import declarations
from plimsoll.box.guard import last_resort
from plimsoll.box.model import Wanted
from plimsoll.box.serve import config, keys
from plimsoll.box.serve.model import Compose, Model
from plimsoll.controls import box
from plimsoll.controls.record import Action, Control, Declaration, Why
from plimsoll.controls.values import Fixed
from plimsoll.policy import Policy

FILE = config.DIRECTORY + "/{unit}" + config.SUFFIX
AT_BOOT = "/etc/systemd/system/multi-user.target.d/plimsoll.conf"
SUDOERS = "/etc/sudoers.d/plimsoll"
BOOT_UNIT = "plimsoll-serve@{model}.service"
UNCLEAN = last_resort.MARK


# --- what the files declare -------------------------------------------------------------------------


def toml(name: str, document: Mapping[str, Any]) -> str:
    """Return the content of a model's file, in the order in which the box lists its keys; comments are none of it."""
    sections = []
    for section, known in keys.BY_SECTION.items():
        given = {key: document[section][key] for key in known if key in document.get(section, {})}
        if given:
            sections.append("\n".join([f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in given.items())]))
    return "\n\n".join([f"# models/model:{name}", *sections]) + "\n"


def _toml(value: Any) -> str:  # noqa: ANN401  # what the box takes for one of its keys
    """Return a value as TOML writes it: as JSON does but for tables, as long as JSON escapes no pair of surrogates."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    # the one character that JSON leaves as it is and TOML does not take so
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def parsed(policy: Policy) -> list[Model]:
    """Return the policy's models as the box will read them."""
    return [config.parse(toml(name, document), FILE.format(unit=name)) for name, document in policy.documents().items()]


def at_boot(policy: Policy) -> list[str]:
    """Return the units that start the models which are to start with the box."""
    return [BOOT_UNIT.format(model=model.name) for model in parsed(policy) if model.at_boot]


_OF_ONE = {"start": ("", " --prove"), "stop": ("",), "restart": ("",), "check": ("",)}
"""What an operator may do with one model, with which options; the other half of a cluster is asked by `check`."""


def commands(names: Iterable[str]) -> list[str]:
    """Return the commands of operators, to the word: a pattern of sudo's would take more than it is meant to."""
    known = sorted(names)
    one = [f"{verb} {name}{option}" for name in known for verb, options in _OF_ONE.items() for option in options]
    two = [f"switch {old} {new}" for old, new in itertools.permutations(known, 2)]
    shown = [f"status{name}{json_}" for name in ("", *(f" {each}" for each in known)) for json_ in ("", " --json")]
    return [f"{box.WRAPPER} serve {words}" for words in (*one, *two, *shown)]


def spared(policy: Policy) -> Iterator[str]:
    """Yield the guard's selectors for models that it may not stop.

    A compose service is called as compose calls it where nobody has chosen a name: PROJECT-SERVICE-NUMBER.
    """
    for model in parsed(policy):
        if not model.guard_may_kill:
            yield f"unit:{_container(model.place) if isinstance(model.place, Compose) else model.unit}"


def _container(place: Compose) -> str:
    directory = posixpath.basename(posixpath.dirname(place.file))
    project = re.sub(r"[^a-z0-9_-]", "", directory.lower()).lstrip("_-")
    return f"{project}-{place.service}-[0-9]*"


# --- the records ------------------------------------------------------------------------------------


class _FromPolicy(Fixed):
    """Made from a section of the policy, and not given as one value."""

    @property
    def describes(self) -> str:
        """Where to set it."""
        return f"made from the policy's {self.value}"

    def parse(self, raw: object) -> str:
        """Refuse: there is a section of the policy for this."""
        raise ValueError(f"is {self.describes}, or null to leave it alone, not {raw!r}")


class _Models(Declaration):
    def declared(self, policy: Policy) -> dict[str, Any]:
        """Return every model's sections."""
        return dict(policy.documents())


class _AtBoot(Declaration):
    def declared(self, policy: Policy) -> dict[str, Any]:
        """Return the units to be started, if there are any."""
        units = at_boot(policy)
        return {self.target: units} if units else {}

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Make systemd read it; that starts nothing."""
        del wanted
        return (("daemon-reload",),)


class _Operators(Declaration):
    def declared(self, policy: Policy) -> dict[str, Any]:
        """Return who may run what, if there is anybody."""
        groups = list(dict.fromkeys(policy.serve.operators))
        return {self.target: {"groups": groups, "commands": commands(policy.models)}} if groups else {}


CONTROLS: tuple[Control, ...] = (
    _Models(
        id="models/model",
        name=declarations.MODEL,
        sets="what `plimsoll serve` knows of the model NAME: how it runs, what it needs, when it is ready",
        target="NAME",
        file=FILE,
        default="{}",
        targets=lambda _state: (),
        value=_FromPolicy("section models"),
        why=Why(
            reason="What a model needs, when it is ready and what takes its place is said in one place, for every "
            "host, and is checked before anything is connected to.",
            evidence="A start script that worked out the shortfall, printed it and went on put a second model of "
            "87 GiB beside the first; the kernel then ended an editor.",
            source="field report from a DGX Spark, 2026",
            cost="None: a file is read when somebody starts, stops or asks for the model.",
            risk="What a file names is run by root. It is readable by everybody on the host, so that keys belong in "
            "files of their own.",
            skip_if="Models are started by something else.",
        ),
    ),
    _AtBoot(
        id="models/at-boot",
        name=declarations.AT_BOOT,
        sets="which models are started when the box starts, each by `plimsoll-serve@NAME.service`",
        target="multi-user.target",
        file=AT_BOOT,
        default="[]",
        value=_FromPolicy("models with run.at_boot"),
        why=Why(
            reason="Opt-in (run.at_boot of a model). A model that is to be there without anybody is started like any "
            "other: admitted, waited for, and followed by its fallback; one after the other.",
            evidence="A service that brings a model of 87 GiB back at every boot takes the choice away from whoever "
            f"needs the memory, so that it is off; after an unclean boot ({UNCLEAN}) none is started.",
            source="field report from a DGX Spark, 2026; systemd.unit(5)",
            cost="The memory of the model.",
            risk="A model that takes the box down does so again at the next boot, unless the guard's last resort is "
            "on, which leaves that mark.",
            skip_if="Somebody starts models by hand.",
        ),
    ),
    _Operators(
        id="models/operators",
        name=declarations.OPERATORS,
        sets="the groups whose members may start and stop models as root, without a password",
        target="sudoers",
        file=SUDOERS,
        default='{"groups": [], "commands": []}',
        value=_FromPolicy("serve.operators and the names of models"),
        why=Why(
            reason="Opt-in (serve.operators). Starting and stopping need root; who may do so unattended gets exactly "
            "these commands without a password, for exactly the models of the policy.",
            evidence="A script that calls sudo and meets a password prompt waits for ever, which breaks every start "
            "that nobody watches.",
            source="field report from a DGX Spark, 2026; sudoers(5)",
            cost="None.",
            risk="Who may start a model decides who else loses memory. Who can write what a model runs, such as its "
            "compose file, has root's rights by it.",
            skip_if="Only root starts models.",
        ),
    ),
)
