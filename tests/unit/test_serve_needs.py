"""What a model needs: declared, else computed from its command, and never less than its weights on the disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.fit.model import CannotTellError
from plimsoll.box.host import Host
from plimsoll.box.serve.model import Cluster, Command, Compose, Model, Need, Unit
from plimsoll.box.serve.needs import checkpoint_files, needed
from tests.unit.fit_builders import LLAMA_8B, QWEN3_NEXT_GGUF, gib, write_gguf, write_model
from tests.unit.serving import kib, model

MEMINFO = "MemTotal: 127506841 kB\nMemAvailable: 118489088 kB\nKReclaimable: 9 kB\nSReclaimable: 9 kB\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a box of 121.6 GiB of which 113 are free, with a model of 40 GiB of weights."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    write_model(tmp_path / "srv/qwen", LLAMA_8B, gib(40))
    return tmp_path


def command(*words: str, **others: Any) -> Model:  # noqa: ANN401  # fields of a model
    """Return a model that is a command."""
    return model(place=Command(words), **others)


VLLM = ("/opt/vllm/bin/vllm", "serve", "/srv/qwen", "--gpu-memory-utilization", "0.6")


def test_a_declared_need_is_taken_as_it_is(root: Path) -> None:
    """What the operator declares is the peak and what stays, and says so."""
    found = needed(Host(str(root)), command(*VLLM, need=Need(kib(92))))
    assert (found.peak_kib, found.steady_kib, found.exact) == (kib(92), kib(92), True)
    assert found.basis == "declared as need.gib"
    assert found.weights_kib == kib(40)


@pytest.mark.parametrize("weights", [(), ("/srv/qwen",)])
def test_less_than_its_weights_is_not_believed(weights: tuple[str, ...], root: Path) -> None:
    """A declaration below the size of the weights is raised to it, and called wrong."""
    found = needed(Host(str(root)), command(*VLLM, need=Need(kib(20), None, weights)))
    assert abs(found.peak_kib - kib(40)) <= 1
    assert not found.exact
    assert found.basis == "the size of its weights, which is more than the 20.00 GiB declared as need.gib"
    assert found.notes == ("need.gib is less than the weights alone: mend it",)


def test_without_a_declaration_it_is_computed(root: Path) -> None:
    """0.6 of 121.6 GiB is what vLLM divides; what stays is more than that, and the start may take more still."""
    found = needed(Host(str(root)), command(*VLLM))
    assert found.exact
    assert kib(0.6 * 121.6) < found.steady_kib < found.peak_kib
    assert "computed from how vllm is started" in found.basis


def test_a_unit_is_read(root: Path) -> None:
    """The command of a unit is computed as if it were given."""
    directory = root / "etc/systemd/system"
    directory.mkdir(parents=True)
    (directory / "qwen.service").write_text(f"[Service]\nExecStart={' '.join(VLLM)}\n")
    host = Host(str(root))
    assert needed(host, model(place=Unit("qwen.service"))) == needed(host, command(*VLLM))


def test_a_compose_service_is_read(root: Path) -> None:
    """Of a compose file only the model's own service counts."""
    arguments = json.dumps(list(VLLM[2:]))
    text = f"services:\n  big:\n    image: x\n  vllm:\n    image: vllm/vllm-openai\n    command: {arguments}\n"
    text += '    volumes: ["/srv/qwen:/srv/qwen"]\n'
    (root / "srv/compose.yaml").write_text(text)
    host = Host(str(root))
    found = needed(host, model(place=Compose("/srv/compose.yaml", "vllm")))
    assert (found.peak_kib, found.exact) == (needed(host, command(*VLLM)).peak_kib, True)


def test_a_need_that_cannot_be_computed_is_at_least_the_weights(root: Path) -> None:
    """An engine whose flags are not known takes its weights at least, and more: that is said."""
    found = needed(Host(str(root)), command("/opt/own/server", need=Need(weights=("/srv/qwen",))))
    assert abs(found.peak_kib - kib(40)) <= 1
    assert not found.exact
    assert found.basis == "the least it can take: the size of its weights"
    assert "starts no model server that is known here" in found.notes[0]


def test_what_is_not_known_of_an_architecture_leaves_the_least(root: Path) -> None:
    """Weights in a model of an unknown kind are counted, what comes on top is not made up."""
    directory = write_model(root / "srv/odd", {"model_type": "nobody-knows"}, gib(10))
    words = ("/opt/vllm/bin/vllm", "serve", f"/{directory.relative_to(root)}", "--kv-cache-memory-bytes", "auto")
    found = needed(Host(str(root)), command(*words))
    assert not found.exact
    assert found.peak_kib >= kib(10) - 1


def test_nothing_known_is_an_error_that_says_what_to_give(root: Path) -> None:
    """Without a need, a command that is understood, and weights, nothing is guessed."""
    with pytest.raises(CannotTellError, match=r"give need\.gib in /etc/plimsoll/models\.d/qwen\.toml") as error:
        needed(Host(str(root)), command("/opt/own/server"))
    assert error.value.exit_code == 3


def test_declared_weights_that_are_not_there_are_an_error(root: Path) -> None:
    """A path without weights is a slip, not a model of no size."""
    with pytest.raises(CannotTellError, match=r"need\.weights: /srv/gone: no weights there"):
        needed(Host(str(root)), command(*VLLM, need=Need(weights=("/srv/gone",))))


def test_weights_beyond_the_engines_budget_never_start(root: Path) -> None:
    """40 GiB of weights in 0.2 of the box is refused whatever is free."""
    found = needed(Host(str(root)), command(*VLLM[:4], "0.2"))
    assert "alone are more than the budget" in found.never


def test_half_of_the_weights_on_each_host_of_a_cluster(root: Path) -> None:
    """A model on two hosts has half of its weights on each."""
    need = Need(kib(1), None, ("/srv/qwen",))
    found = needed(Host(str(root)), command(*VLLM, need=need, cluster=Cluster("gx10-b")))
    assert abs(found.peak_kib - kib(20)) <= 1


def test_weights_in_a_graphics_card_are_not_the_boxs(root: Path) -> None:
    """A GPU with memory of its own takes the weights there: the box's memory is what was declared."""
    gpu = root / "proc/driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA RTX PRO 6000\n")
    found = needed(Host(str(root)), command(*VLLM, need=Need(kib(12), None, ("/srv/qwen",))))
    assert (found.peak_kib, found.exact) == (kib(12), True)


def test_the_files_of_a_checkpoint(root: Path) -> None:
    """Its weights are named as the host has them, of one form only, and a split file with all of its parts."""
    host = Host(str(root))
    write_model(root / "srv/qwen", LLAMA_8B, gib(1))
    (root / "srv/qwen/consolidated.safetensors").write_bytes(b"x")
    (root / "srv/qwen/tokenizer.json").write_bytes(b"x")
    assert checkpoint_files(host, command(*VLLM)) == ("/srv/qwen/model.safetensors",)
    for part in (1, 2):
        write_gguf(root / f"srv/q-0000{part}-of-00002.gguf", QWEN3_NEXT_GGUF)
    declared = command("/opt/own/server", need=Need(weights=("/srv/q-00001-of-00002.gguf",)))
    assert checkpoint_files(host, declared) == ("/srv/q-00001-of-00002.gguf", "/srv/q-00002-of-00002.gguf")
    assert checkpoint_files(host, command("/opt/own/server")) == ()


def test_a_snapshot_of_links_counts_each_file_once(root: Path) -> None:
    """In a cache of Hugging Face's the names are links: they are followed, and a file of two names counts once."""
    snapshot = root / "cache/snapshots/abc"
    snapshot.mkdir(parents=True)
    blob = root / "cache/blob"
    with blob.open("wb") as file:
        file.truncate(gib(2))
    for name in ("a.safetensors", "b.safetensors"):
        (snapshot / name).symlink_to(blob)
    found = needed(Host(str(root)), command("/opt/own/server", need=Need(weights=("/cache/snapshots/abc",))))
    assert found.peak_kib == kib(2)
