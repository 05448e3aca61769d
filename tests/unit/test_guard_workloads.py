"""What could be stopped: where a process is decides, not what it calls itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard.choose import choose
from plimsoll.box.guard.config import Selector
from plimsoll.box.guard.model import Lines, Process, Settings, Workload
from plimsoll.box.guard.places import place_of, printable
from plimsoll.box.guard.processes import Seen
from plimsoll.box.guard.workloads import Found, Wishes, workloads
from tests.unit.guard_trees import DOCKER, GIB, GRAPHICS, ID, OTHER_ID, SESSION, USER_MANAGER, UVM, seen

SETTINGS = Settings(Lines(3 * GIB, 8 * GIB, 9 * GIB))
UNIT = "/system.slice/vllm.service"
SLURM = "/system.slice/slurmstepd.scope"
NSPAWN = "/machine.slice/systemd-nspawn@ai.service"


def found(*members: Seen, told: dict[int, int | None] | None = None, **wishes: object) -> tuple[Found, ...]:
    """Return what is found among these processes."""
    return workloads(members, told, Wishes(**wishes))  # type: ignore[arg-type]  # a test may give any of its fields


def only(*members: Seen, told: dict[int, int | None] | None = None, **wishes: object) -> Workload:
    """Return the one workload that is found."""
    (one,) = found(*members, told=told, **wishes)
    return one.workload


# --- where it runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "kind", "root", "name"),
    [
        (DOCKER, "container", DOCKER, ID[:12]),
        (f"/my.slice/my-models.slice/docker-{ID}.scope", "container", None, ID[:12]),
        (f"/docker/{ID}", "container", None, ID[:12]),
        (f"/docker/{ID}/workers/3", "container", f"/docker/{ID}", ID[:12]),
        (f"{USER_MANAGER}/user.slice/docker-{ID}.scope", "container", None, ID[:12]),
        (f"{USER_MANAGER}/app.slice/docker-{ID}.scope", "container", None, ID[:12]),
        (f"/machine.slice/libpod-{ID}.scope/container", "container", f"/machine.slice/libpod-{ID}.scope", ID[:12]),
        (f"{UNIT}/libpod-payload-{ID}", "unit", UNIT, "vllm.service"),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", "container", None, ID[:12]),
        (f"/kubepods/burstable/pod7/{ID}", "container", None, ID[:12]),
        (f"/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}", "container", None, ID[:12]),
        (f"{DOCKER}/docker/{OTHER_ID}", "container", DOCKER, ID[:12]),
        (UNIT, "unit", UNIT, "vllm.service"),
        (f"{UNIT}/payload/sub", "unit", UNIT, "vllm.service"),
        ("/system.slice/run-u17.service", "unit", None, "run-u17.service"),
        ("/system.slice/system-llama.slice/llama@8080.service", "unit", None, "llama@8080.service"),
        (f"{USER_MANAGER}/app.slice/vllm.service", "unit", None, "vllm.service"),
        (f"{USER_MANAGER}/app.slice/run-rb1.scope", "scope", None, "run-rb1.scope"),
        (SESSION, "session", SESSION, "session-3.scope"),
        (f"{USER_MANAGER}/app.slice/vte-spawn-1.scope", "session", None, "vte-spawn-1.scope"),
        ("/system.slice/cron.service", "session", None, "cron.service"),
        (f"{SLURM}/job_7/step_0", "session", SLURM, "slurmstepd.scope"),
        ("/lxc.payload.c1/system.slice/vllm.service", "container", "/lxc.payload.c1", "c1"),
        ("/lxc/101/ns", "container", "/lxc/101", "101"),
        (f"{NSPAWN}/payload/system.slice/vllm.service", "container", NSPAWN, "ai"),
        ("/odd/place", "session", "/odd/place", "place"),
    ],
)  # fmt: skip
def test_place(cgroup: str, kind: str, root: str | None, name: str) -> None:
    """A cgroup belongs to the outermost container, unit, scope or session around it, whoever manages it."""
    place = place_of(cgroup)
    assert (place.kind, place.cgroup, place.name, place.never) == (kind, root or cgroup, name, None)
    assert place.whole is (kind != "session")


@pytest.mark.parametrize(
    "cgroup",
    [
        "/init.scope",
        "/system.slice/ssh.service",
        "/system.slice/system-sshd.slice/sshd@4-10.0.0.1:22-10.0.0.2:5000.service",
        "/system.slice/systemd-journald.service",
        "/system.slice/systemd-logind.service",
        "/system.slice/systemd-udevd.service/udev",
        "/system.slice/dbus.service",
        "/system.slice/NetworkManager.service",
        "/system.slice/tailscaled.service",
        "/system.slice/snap.tailscale.tailscaled.service",
        "/system.slice/docker.service",
        "/system.slice/containerd.service",
        "/system.slice/nvidia-persistenced.service",
        "/system.slice/nvidia-dcgm.service",
        "/system.slice/gdm.service",
        "/system.slice/plimsoll-guard.service",
        "/machine.slice/machine-qemu\\x2d1\\x2dwin.scope",
    ],
)
def test_what_must_go_on(cgroup: str) -> None:
    """Whatever runs in the system's own units, or in a virtual machine, is never stopped, though it holds the GPU."""
    one = only(seen(cgroup, "vllm", devices=UVM, engine="vllm"), told={})
    assert one.protected is not None
    assert choose([one], SETTINGS).victim is None


@pytest.mark.parametrize(
    "cgroup",
    [
        f"{USER_MANAGER}/app.slice/ssh.service",
        f"{USER_MANAGER}/docker.service",
        f"{USER_MANAGER}/app.slice/systemd-journald.service",
        f"{USER_MANAGER}/app.slice/plimsoll-guard.service",
        "/odd/ssh.service",
    ],
)
def test_names_of_the_systems_units_protect_nobody_else(cgroup: str) -> None:
    """A user's own unit that is called as one of the system's is a unit as any other."""
    engine = seen(cgroup, devices=UVM)
    assert only(engine, told={engine.pid: 90 * GIB}).protected is None


@pytest.mark.parametrize("name", ["sshd", "systemd", "sshd: root@pts/0", "dockerd", "(sd-pam)", "Xorg", "sshd: /usr/s"])
def test_a_process_is_not_what_it_calls_itself(name: str) -> None:
    """A name of 15 characters protects nobody: what holds the GPU's memory is a victim."""
    liar = seen(DOCKER, name, devices=UVM, argv=(name,))
    one = only(liar, told={liar.pid: 90 * GIB})
    assert choose([one], SETTINGS).victim == one


def test_an_engine_by_name_only() -> None:
    """What calls itself vllm and holds no GPU is seen, and is no victim."""
    one = only(seen(UNIT, "vllm", engine="vllm", resident_kib=50 * GIB))
    assert choose([one], SETTINGS).victim is None
    assert not one.holds_gpu


def test_ordinary_processes_are_no_workloads() -> None:
    """Neither units nor logins without GPU are kept; a container is, for it may be the largest."""
    nothing = found(seen("/system.slice/cups.service"), seen(SESSION, "bash"), seen("/"), seen(DOCKER, "nginx"))
    assert [each.workload.kind for each in nothing] == ["container"]


def test_users_manager_and_who_hides_beside_it() -> None:
    """A user's manager is never a victim; what its user has moved into its cgroup is."""
    scope = f"{USER_MANAGER}/init.scope"
    manager = seen(scope, "systemd", pid=900, ppid=1, devices=UVM)
    hidden = seen(scope, "systemd", pid=901, ppid=900, devices=UVM)
    one = only(manager, hidden, told={901: 90 * GIB, 900: GIB})
    assert [process.pid for process in one.processes] == [901]
    assert one.protected is None


def test_the_guard_and_its_children() -> None:
    """The guard, what it started, and the unit that it runs in are left alone, wherever that is."""
    guard = seen(SESSION, "plimsoll", pid=70, ppid=60, devices=UVM)
    child = seen(SESSION, "nvidia-smi", pid=71, ppid=70, pgrp=71, devices=UVM)
    assert found(guard, child, own_pid=70) == ()
    beside = seen("/system.slice/kit.service", devices=UVM)
    assert only(beside, own_cgroup="/system.slice/kit.service").protected == "the guard itself runs in it"


def test_ranks_in_a_sleeping_container() -> None:
    """Engines brought in by `docker exec` are the container: it goes as a whole, but sleep is not asked."""
    sleep = seen(
        DOCKER,
        "sleep",
        pid=10,
        ppid=5,
        argv=(
            "sleep",
            "infinity",
        ),
        start_ticks=50,
    )
    rank = seen(DOCKER, "python3", pid=20, ppid=5, devices=UVM, start_ticks=900)
    worker = seen(f"{DOCKER}/ranks", "python3", pid=21, ppid=20, devices=UVM, start_ticks=950)
    (one,) = found(sleep, rank, worker, told={20: GIB, 21: 60 * GIB})
    assert one.workload.whole_cgroup
    assert {each.pid for each in one.workload.processes} == {10, 20, 21}
    assert one.workload.attributed_kib == 61 * GIB
    assert one.target.processes == (Process(20, 900),)
    assert "1 main processes that hold nothing" in one.target.why
    assert one.workload.started_s == 9.0, "as old as the engine, not as the container"


def test_a_container_is_asked_by_its_first_process() -> None:
    """`docker stop` asks the first process of a container, and so is done where the engine is below it."""
    init = seen(DOCKER, "tini", pid=10, ppid=5)
    engine = seen(DOCKER, "vllm", pid=11, ppid=10, devices=UVM, engine="vllm")
    (one,) = found(init, engine)
    assert [each.pid for each in one.target.processes] == [10]


def test_a_deaf_first_process_is_passed_over() -> None:
    """The kernel gives SIGTERM to no first process of a container that does not handle it: its child is asked."""
    shell = seen(DOCKER, "sh", pid=10, ppid=5)
    engine = seen(DOCKER, "vllm", pid=11, ppid=10, devices=UVM, engine="vllm")
    rank = seen(DOCKER, "VLLM::EngineCor", pid=12, ppid=11, devices=UVM, engine="vllm")
    (one,) = found(shell, engine, rank, deaf=frozenset({10}))
    assert [each.pid for each in one.target.processes] == [11]
    assert "1 that SIGTERM does not end" in one.target.why


def test_the_init_of_a_whole_system_is_not_asked() -> None:
    """In a container with a system of its own the engine is asked, not its systemd, which would only start anew."""
    nspawn = seen(f"{NSPAWN}/supervisor", "systemd-nspawn", pid=9, ppid=1)
    init = seen(f"{NSPAWN}/payload/init.scope", "systemd", pid=10, ppid=9)
    engine = seen(f"{NSPAWN}/payload/system.slice/vllm.service", "vllm", pid=11, ppid=10, devices=UVM)
    (one,) = found(nspawn, init, engine)
    assert [each.pid for each in one.target.processes] == [11]
    assert {each.pid for each in one.workload.processes} == {9, 10, 11}


def test_a_login_survives() -> None:
    """Of a login session only the engine's process group goes, and of that only who belongs to the engine."""
    shell = seen(SESSION, "bash", pid=10, ppid=9)
    script = seen(SESSION, "bash", pid=20, ppid=10, pgrp=20)
    server = seen(
        SESSION,
        "vllm",
        pid=21,
        ppid=20,
        pgrp=20,
        engine="vllm",
        argv=(
            "vllm",
            "serve",
        ),
    )
    core = seen(SESSION, "VLLM::EngineCor", pid=22, ppid=21, pgrp=20, devices=UVM, engine="vllm")
    tracker = seen(SESSION, "python3", pid=23, ppid=22, pgrp=20)
    editor = seen(SESSION, "vim", pid=30, ppid=10)
    (one,) = found(shell, script, server, core, tracker, editor)
    assert {each.pid for each in one.workload.processes} == {21, 22, 23}
    assert not one.workload.whole_cgroup
    assert one.workload.key == f"{SESSION}#pgrp=20@100"
    assert one.workload.name == "vllm"
    assert [each.pid for each in one.target.processes] == [21]


def test_two_jobs_of_one_login() -> None:
    """Two engines started from one shell are two workloads."""
    first = seen(SESSION, "llama-server", pid=20, devices=UVM, start_ticks=100, engine="llama-server")
    second = seen(
        SESSION,
        "python3",
        pid=30,
        devices=UVM,
        start_ticks=200,
        argv=(
            "python3",
            "/home/a/train.py",
            "--fast",
        ),
    )
    assert sorted(each.workload.name for each in found(first, second)) == ["llama-server", "train.py"]


def test_ray_workers() -> None:
    """Ray's workers belong to the unit that the raylet runs in; from a login, to the group that they are in."""
    raylet = seen("/system.slice/ray.service", "raylet", pid=10, ppid=1)
    worker = seen("/system.slice/ray.service", "ray::RayWorkerW", pid=11, ppid=10, devices=UVM, engine="vllm")
    assert only(raylet, worker).key == "/system.slice/ray.service"
    in_login = seen(SESSION, "ray::RayWorkerW", pid=21, ppid=20, pgrp=20, devices=UVM, engine="vllm")
    assert only(seen(SESSION, "raylet", pid=20), in_login).processes == (Process(21, 100),)


# --- what it holds ----------------------------------------------------------------------------------


def test_attribution() -> None:
    """What the driver tells counts; not listed is nothing, not told is unknown, and unknown is not nothing."""
    engine = seen(UNIT, devices=UVM, pid=10)
    assert only(engine, told=None).attributed_kib is None
    assert only(engine, told={10: None}, told_s=9).attributed_kib is None
    assert only(engine, told={10: 5}, told_s=9).attributed_kib == 5
    assert only(engine, told={}, told_s=9).attributed_kib == 0
    assert only(engine, told={}, told_s=0.5).attributed_kib is None, "it started after nvidia-smi was asked"


def test_what_the_driver_names_holds_the_gpu() -> None:
    """A process that the driver names holds the GPU, though its open files cannot be read."""
    one = only(seen(UNIT, pid=10, devices=None), told={10: 60 * GIB})
    assert one.holds_gpu
    assert choose([one], SETTINGS).victim == one


def test_display_server_is_no_victim() -> None:
    """A compositor has the GPU open and is not listed by the driver: it is left alone, and does not compute."""
    (one,) = found(seen(f"{USER_MANAGER}/session.slice/gnome.service", devices=GRAPHICS), told={}, told_s=9)
    assert choose([one.workload], SETTINGS).victim is None
    assert not one.computes


@pytest.mark.parametrize(
    ("devices", "computes"), [(UVM, True), (GRAPHICS, False), (frozenset({"/dev/fakegb10"}), True)]
)
def test_who_computes(devices: frozenset[str], computes: object) -> None:
    """To compute needs the driver's device for memory; another device that was configured is enough by itself."""
    (one,) = found(seen(UNIT, devices=devices))
    assert one.computes is computes


# --- what the operator says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (Selector("cgroup", "/system.slice/*"), True),
        (Selector("cgroup", "/system.slice"), False),
        (Selector("unit", "vllm.*"), True),
        (Selector("unit", "llama.service"), False),
        (Selector("command", "vllm"), True),
        (Selector("command", "serve"), False),
    ],
)
def test_protect_and_prefer(selector: Selector, matches: object) -> None:
    """An operator protects or prefers by cgroup, unit or program."""
    engine = seen(
        UNIT,
        devices=UVM,
        argv=(
            "/opt/bin/vllm",
            "serve",
        ),
    )
    assert (only(engine, protect=(selector,)).protected is not None) is matches
    assert only(engine, prefer=(selector,)).preferred is matches


def test_a_users_unit_does_not_take_the_name_of_a_protected_one() -> None:
    """To protect a unit protects the system's, not one of that name that a user made."""
    protect = (Selector("unit", "vllm.service"),)
    assert only(seen(UNIT, devices=UVM), protect=protect).protected is not None
    users = seen(f"{USER_MANAGER}/app.slice/vllm.service", devices=UVM)
    assert only(users, protect=protect).protected is None
    assert only(users, protect=(Selector("unit", "1000/vllm.service"),)).protected is not None


def test_container_names() -> None:
    """A container is called by its name, also by the operator and by reservations; not by another user's."""
    known = {(None, ID[:12]): "qwen"}
    one = only(seen(DOCKER, devices=UVM), names=known, protect=(Selector("unit", "qwen"),))
    assert one.name == "qwen"
    assert one.protected is not None
    assert {"qwen", ID, ID[:12], DOCKER} <= one.selectors
    forged = seen(f"{USER_MANAGER}/user.slice/docker-{ID}.scope", devices=UVM)
    assert only(forged, names=known, protect=(Selector("unit", "qwen"),)).protected is None


def test_selectors() -> None:
    """A reservation calls a unit by its name, its cgroup or a process; a user's unit with his number before it."""
    engine = seen(UNIT, pid=10, devices=UVM)
    assert {"vllm.service", UNIT, "pid:10"} == only(engine).selectors
    assert "1000/vllm.service" in only(seen(f"{USER_MANAGER}/app.slice/vllm.service", devices=UVM)).selectors
    assert only(seen(SESSION, pid=12, devices=UVM)).selectors == {"pid:12"}


def test_reserved_ones_are_seen_before_they_open_the_gpu() -> None:
    """What a reservation is of is a workload though it does not hold the GPU yet."""
    assert found(seen(UNIT, "loader")) == ()
    assert only(seen(UNIT, "loader"), reserved=frozenset({"vllm.service"})).name == "vllm.service"


@given(st.text(max_size=300))
def test_names_break_no_terminal(text: str) -> None:
    """Whatever a name holds, what is shown of it is printable and short."""
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= 4 * 120 * 3


@given(st.lists(st.text("ab/.-@:[]0123456789scopeslicervdk \x1b\\", max_size=80), max_size=6))
def test_any_cgroup_has_a_place(parts: list[str]) -> None:
    """There is no cgroup that cannot be placed, and its place is the cgroup or something above it."""
    path = "/" + "/".join(part.replace("/", "_") for part in parts)
    place = place_of(path)
    assert path.startswith(place.cgroup) or place.cgroup == path
