"""`plimsoll fit` from the command line: verdicts, exit codes, the document, and the box it judges."""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import cli_fit
from plimsoll.box.errors import BoxError
from plimsoll.box.fit import box as boxes
from plimsoll.box.fit.model import GIB, CannotTellError, Verdict
from plimsoll.box.guard import config
from plimsoll.box.host import Host
from plimsoll.policy import Ladder
from tests.unit import test_docs
from tests.unit.fit_builders import LLAMA_8B, gib, write_model

KIB = 1024
MEMINFO: Mapping[str, int] = {
    "MemTotal": 127533056, "MemFree": 100000000, "MemAvailable": 118000000, "KReclaimable": 600000,
    "SReclaimable": 500000,
}  # fmt: skip


def _run(*words: str, host: Host | None = None) -> int:
    parser = argparse.ArgumentParser()
    cli_fit.fit_arguments(parser.add_subparsers(dest="command", required=True).add_parser("fit"))
    return cli_fit.fit(parser.parse_args(["fit", *words]), host or Host(), b"")


def _document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    test_docs._fits("fit", document)
    return document


def _meminfo(tmp_path: Path, **changes: int | None) -> str:
    values = {**MEMINFO, **changes}
    path = tmp_path / "meminfo"
    path.write_text("".join(f"{name}: {value} kB\n" for name, value in values.items() if value is not None))
    return str(path)


@pytest.mark.parametrize(
    ("utilization", "code", "verdict"), [("0.3", 0, "fits"), ("0.80", 2, "tight"), ("0.95", 2, "no"), ("0.1", 2, "no")]
)
def test_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], utilization: str, code: int, verdict: str
) -> None:
    """0 is for what fits alone: what is tight must not be started by a script that goes on at 0."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    words = ("--", "vllm", "serve", str(model), "--max-model-len", "8192", "--gpu-memory-utilization", utilization)
    assert _run("--mem-total-gib", "121.6", "--json", *words) == code
    document = _document(capsys)
    assert document["verdict"] == verdict
    assert document["engine"] == "vllm"
    assert document["flags"]["--gpu-memory-utilization"] == float(utilization)


def test_the_document_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The need is the sum of the items; every item has its basis, every flag its unit."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    _run("--mem-total-gib", "121.6", "--json", "--", "vllm", "serve", str(model), "--gpu-memory-utilization", "0.5")
    document = _document(capsys)
    assert document["need_bytes"] == sum(item["bytes"] for item in document["items"])
    assert all(item["basis"] for item in document["items"])
    assert document["engines"][0]["settings"][0]["unit"] == "fraction of the whole pool"
    assert document["margins"][2]["line"] == "floor"


def test_several_engines_are_one_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two engines that fit alone do not fit together."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    command = f"serve {model} --gpu-memory-utilization 0.5"
    service = f"image: x/vllm\n    volumes: ['{tmp_path}:{tmp_path}']\n    command: {command}"
    path = tmp_path / "compose.yml"
    path.write_text(f"services:\n  a:\n    {service}\n  b:\n    {service}\n")
    common = ("--mem-total-gib", "121.6", "--json", "--compose", str(path))
    assert _run(*common, "a") == 0
    capsys.readouterr()
    assert _run(*common) == 2
    assert set(_document(capsys)["flags"]) == {"a", "b"}


def test_models_that_are_swapped_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of models that replace each other the largest counts."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    entry = f"vllm serve {model} --gpu-memory-utilization"
    path = tmp_path / "config.yaml"
    path.write_text(f"models:\n  a:\n    cmd: {entry} 0.5\n  b:\n    cmd: {entry} 0.4\n")
    assert _run("--mem-total-gib", "121.6", "--json", "--", str(path)) == 0
    document = _document(capsys)
    assert document["kept_bytes"]["likely"] < 0.6 * 121.6 * GIB


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--", "ls"), 3, "starts no model server"),
        (("--", "./not-there.sh", "big"), 3, "./not-there.sh: there is no such file here"),
        (("--", "docker", "start", "chat"), 3, "keeps the command that it was made with"),
        (("--", "ollama run some-model"), 3, "ask about `ollama serve`"),
        (("--", "docker", "model", "run", "ai/some"), 3, "Docker's own server chooses"),
        (("--", "docker", "run", "--gpus", "all", "nvcr.io/nim/meta/some:1"), 3, "a NIM image chooses"),
        (("--compose", "/no/such.yml"), 3, "cannot be read"),
        (("--unit", "no-such-unit"), 3, "no such unit"),
        (("--pid", "999999999"), 3, "process 999999999"),
        (("--pid", "0"), 4, "no number of a process"),
        (("--pid", "1", "--", "vllm"), 4, "exclude each other"),
        (("--unit", ""), 4, "name of a unit"),
        (("--mem-total-gib", "0", "--", "vllm"), 4, "no size"),
        (("--mem-total-gib", "nan", "--", "vllm"), 4, "no size"),
        (("--meminfo", "/no/such", "--", "vllm"), 4, "/no/such"),
        (("--meminfo", "/dev/zero", "--", "vllm"), 4, "no regular file"),
    ],
)
def test_questions_that_cannot_be_answered(words: tuple[str, ...], code: int, why: str) -> None:
    """What cannot be told is 3, what is no question is 4; each is one line that says what and where."""
    with pytest.raises(BoxError, match=why) as caught:
        _run(*words)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)


def test_a_document_for_what_cannot_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json there is a document even where nothing was found."""
    with pytest.raises(CannotTellError):
        _run("--json", "--", "ls")
    document = _document(capsys)
    assert (document["verdict"], document["engine"]) == ("unknown", None)


# --- the box ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "available", "note"),
    [
        ({}, (118000000 - 100000) * KIB, ""),
        ({"KReclaimable": 99218750, "SReclaimable": 314573, "MemAvailable": 116916224},
         (116916224 - 99218750 + 314573) * KIB, "cannot be had by a model"),
        ({"KReclaimable": None}, None, "KReclaimable missing"),
        ({"CmaTotal": 0, "CmaFree": 940604}, (118000000 - 100000) * KIB, "CmaFree"),
    ],
)  # fmt: skip
def test_what_is_available(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, int | None], available: int | None, note: str
) -> None:
    """Of a saved meminfo that is available which a driver can have; without a field it is unknown, and that is said."""
    _run("--json", "--meminfo", _meminfo(tmp_path, **changes))
    document = _document(capsys)
    assert document["available_bytes"] == available
    assert any(note in each for each in document["warnings"]) if note else not document["warnings"]


@pytest.mark.parametrize(("utilization", "expected"), [("0.2", 3), ("0.95", 2)])
def test_without_what_is_available(tmp_path: Path, utilization: str, expected: int) -> None:
    """Where available memory is unknown nothing fits for certain, and what is more than MemAvailable does not."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    meminfo = _meminfo(tmp_path, KReclaimable=None)
    words = ("vllm", "serve", str(model), "--max-model-len", "4096", "--gpu-memory-utilization", utilization)
    assert _run("--meminfo", meminfo, "--", *words) == expected


def test_a_meminfo_of_nothing(tmp_path: Path) -> None:
    """A meminfo without MemTotal is no box."""
    with pytest.raises(BoxError, match="MemTotal"):
        _run("--meminfo", _meminfo(tmp_path, MemTotal=None))


def test_a_box_in_use_holds_less(tmp_path: Path) -> None:
    """What fits an empty box does not fit beside a model that runs, although MemAvailable says so (regime C)."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    words = ("--", "vllm", "serve", str(model), "--max-model-len", "4096", "--gpu-memory-utilization", "0.3")
    assert _run("--meminfo", _meminfo(tmp_path), *words) == 0
    in_use = _meminfo(tmp_path, MemAvailable=116916224, KReclaimable=99218750)
    assert _run("--meminfo", in_use, *words) == 2


def test_the_lines_of_the_guard(tmp_path: Path) -> None:
    """The lines come from guard.toml where there is one, else they are the defaults, scaled to the machine."""
    small = boxes.of_size(60.8)
    assert [round(each / GIB, 2) for each in (small.lines.slow_leave, small.lines.slow_enter, small.lines.floor)] == [
        4.5,
        4.0,
        1.5,
    ]
    (tmp_path / "etc/plimsoll").mkdir(parents=True)
    (tmp_path / "etc/plimsoll/guard.toml").write_text(
        "[lines]\nslow_leave_gib = 7\nslow_enter_gib = 6\nfloor_gib = 2\n"
    )
    lines = boxes.lines(Host(str(tmp_path)), 121 * GIB)
    assert (lines.slow_leave, lines.slow_enter, lines.floor) == (7 * GIB, 6 * GIB, 2 * GIB)
    assert lines.basis.endswith("guard.toml")


def test_the_lines_are_those_of_the_guard() -> None:
    """Without a guard.toml the lines are the guard's own defaults for this machine, and those of the policy."""
    total_kib = 127533056
    own, guard = boxes.scaled_lines(total_kib * KIB), config.load("", "guard.toml", total_kib).settings.lines
    policy = Ladder().scaled(total_kib)
    for mine, theirs, third in (
        (own.slow_leave, guard.slow_leave_kib, policy.slow_leave_kib),
        (own.slow_enter, guard.slow_enter_kib, policy.slow_enter_kib),
        (own.floor, guard.floor_kib, policy.floor_kib),
    ):
        assert abs(mine // KIB - theirs) <= 1
        assert abs(mine // KIB - third) <= 1


IOMEM = """\
00000000-00000fff : Reserved
80000000-8fffffff : reserved
90000000-208fffffff : System RAM
  90010000-91ffffff : Kernel code
  92000000-92ffffff : reserved
  93000000-937fffff : Kernel data
2090000000-2097ffffff : reserved
  2090000000-2090ffffff : reserved
"""


def test_where_the_memory_of_a_box_went(tmp_path: Path) -> None:
    """What firmware reserves, the kernel's image, and 64 bytes for each page of 4 KiB are told apart."""
    for name, text in (("proc/iomem", IOMEM), ("sys/class/dmi/id/product_name", "NVIDIA GB10 system\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    account = boxes.account(Host(str(tmp_path)))
    ram = 0x208FFFFFFF - 0x90000000 + 1
    assert (account.physical, account.system_ram) == (128 * GIB, ram)
    assert account.struct_pages == ram // 64
    assert account.kernel == 0x91FF0000 + 0x800000 - 0x90000000
    assert account.reserved == 0x1000 + 0x10000000 + 0x1000000 + 0x8000000


def test_addresses_that_only_root_sees() -> None:
    """Where every address is 0, as others than root see them, nothing is added up."""
    assert boxes.parse_iomem("00000000-00000000 : System RAM\n  00000000-00000000 : Kernel code\n") == {}


def test_the_box_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the box is described, and what a model may keep of it."""
    assert _run("--meminfo", _meminfo(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "MemTotal 121.6 GiB" in out
    assert "a model may keep       103." in out


def test_the_table_says_what_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the items with their basis, the margins, what the cache carries, the verdict, and what to try."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    _run("--mem-total-gib", "121.6", "--", "vllm", "serve", str(model), "--gpu-memory-utilization", "0.9")
    out = capsys.readouterr().out
    parts = ("15.0 GiB: sum of the tensors", "start only", "the cache carries", "floor", "VERDICT: does not fit")
    advice = ("largest that fits: --gpu-memory-utilization 0.7", "to paste:", "try first:")
    for part in (*parts, *advice):
        assert part in out, part


def test_what_is_advised_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags to paste fit, and one step more would not."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    words = ("--mem-total-gib", "121.6", "--json", "--", "vllm", "serve", str(model))
    _run(*words)
    flag, value = _document(capsys)["engines"][0]["flags_to_paste"].split()
    assert _run(*words, flag, value) == 0
    assert _run(*words, flag, f"{float(value) + 0.01:.2f}") == 2


def test_a_fixed_cache_is_advised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no fraction leaves the margins, a fixed size of the cache is advised if one fits."""
    model = write_model(tmp_path / "m", {**LLAMA_8B, "max_position_embeddings": 8192}, gib(71))
    words = ("--mem-total-gib", "121.6", "--json", "--", "vllm", "serve", str(model))
    assert _run(*words, "--gpu-memory-utilization", "0.7") == 2
    flag, value = _document(capsys)["engines"][0]["flags_to_paste"].split()
    assert flag == "--kv-cache-memory-bytes"
    assert _run(*words, flag, value) == 0
    assert _run(*words, flag, f"{int(value[:-1]) + 1}G") == 2
    capsys.readouterr()
    _run(*words, "--gpu-memory-utilization", "0.7")
    trial = _document(capsys)["engines"][0]["trial_start"]
    assert _run(*words, *trial.split()) == 0


def test_advice_is_beside_what_else_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a second engine in the same question, what is advised for the first leaves it its room."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    path = tmp_path / "start.sh"
    first = f"vllm serve {model} --max-model-len 8192 --gpu-memory-utilization"
    path.write_text(f"{first} 0.3 &\n")
    _run("--mem-total-gib", "121.6", "--json", "--", str(path))
    alone = _document(capsys)["engines"][0]["flags_to_paste"]
    path.write_text(f"{first} 0.3 &\n{first} 0.25\n")
    _run("--mem-total-gib", "121.6", "--json", "--", str(path))
    beside = _document(capsys)["engines"][0]["flags_to_paste"]
    assert float(beside.split()[1]) < float(alone.split()[1]) - 0.2


_LOADED = (
    "import sys; sys.path.insert(0, {root!r})\n"
    "import argparse\n"
    "from plimsoll.box import cli_fit\n"
    "from plimsoll.box.host import Host\n"
    "parser = argparse.ArgumentParser()\n"
    "cli_fit.fit_arguments(parser)\n"
    "words = ['--mem-total-gib', '121.6', '--', 'vllm', 'serve', {model!r}]\n"
    "cli_fit.fit(parser.parse_args(words), Host(), b'')\n"
    "print(*(name for name in sys.modules if name.startswith('plimsoll.box.')))\n"
)


def test_only_what_is_needed_is_loaded(tmp_path: Path) -> None:
    """A command for one engine does not load the others, the shell, YAML, GGUF, or the guard: each costs start-up."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    code = _LOADED.format(root=str(Path(cli_fit.__file__).parents[2]), model=str(model))
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("plimsoll.box.") for name in ran.stdout.splitlines()[-1].split()}
    others = ("sglang", "llama", "ollama", "shell", "compose", "routers", "units", "yaml_subset", "gguf", "profile")
    assert not loaded & {*(f"fit.{name}" for name in others), "guard.config", "state", "verify", "platform"}
    assert "fit.vllm" in loaded


def test_exit_codes_are_for_verdicts() -> None:
    """Every verdict has its exit code."""
    assert set(cli_fit.EXIT_CODES) == set(Verdict)


def test_a_terminal_gets_rows_of_its_width_and_flags_to_paste_stay_one_line() -> None:
    """What is longer than the terminal is broken between words and set in; what is pasted is not broken."""
    rows = cli_fit._wrapped("  budget  " + "what is taken " * 20, 80)
    assert len(rows) > 1
    assert max(map(len, rows)) <= 80
    assert all(row.startswith(" " * 6) for row in rows[1:])
    paste = "  to paste: " + "--max-model-len 8192 " * 10
    assert cli_fit._wrapped(paste, 80) == [paste]


def test_a_size_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that is only a size is not told with that size twice."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    _run("--mem-total-gib", "121.6", "--", "vllm", "serve", str(model), "--max-model-len", "8192")
    assert "\nOn a machine of 121.6 GiB:\n" in capsys.readouterr().out
