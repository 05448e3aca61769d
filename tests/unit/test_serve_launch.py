"""Launchers: real processes under a manager that is two scripts, and a docker that is one."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.box.errors import UNKNOWN
from plimsoll.box.guard.places import place_of
from plimsoll.box.host import Host
from plimsoll.box.serve import attendant, config, jobs, launch
from plimsoll.box.serve.launch import LaunchError, NoAnswerError
from plimsoll.box.serve.model import Command, Docker, Model
from plimsoll.box.serve.watching import members, until, watching
from tests.unit.serve_box import Box

DOCKER = r"""#!/bin/sh
echo "docker $*" >>"$UNITS/calls"
c=$UNITS/container
become() { echo "$@" >"$c.new"; mv "$c.new" "$c"; }
case "$*" in
*" ps --all --quiet "*) [ -e "$c" ] && echo c0ffee0123456789 ; true ;;
*" up --no-start "*) become created 0 0 ;;
*" up --detach "*) setsid sleep 60 >/dev/null 2>&1 & become running $! 0 ;;
inspect*) read -r status pid code <"$c"; echo "c0ffee0123456789 $status $pid $code /srv-vllm-1" ;;
stop*|kill*) read -r status pid code <"$c"; kill -9 "$pid"; become exited 0 137 ;;
*) echo "unknown command" >&2; exit 1 ;;
esac
"""


def declared(b: Box, **run: object) -> Model:
    """Return a model that runs as these keys say."""
    b.declare("m", 8000, run=dict(run))
    return config.load(b.host, "m")


def test_a_unit_is_started_seen_and_ended(b: Box) -> None:
    """What systemd says of it, its main process, and that it is gone."""
    b.unit("m.service")
    launched = launch.launcher(b.host, declared(b, unit="m.service"))
    assert not launched.look().there
    launched.prepare()
    launched.start()
    seen = launched.look()
    assert (seen.there, seen.main_pid, seen.pids) == (True, b.pid("m.service"), (b.pid("m.service"),))
    assert seen.said == "active (running)"
    assert launched.selector == "m.service"
    with watching(seen.pids) as watch:
        launched.ask_to_end()
        assert watch.wait(30)
        assert watch.ended == {seen.main_pid}
    assert until(lambda: not launched.look().there, 30)


def test_a_unit_that_is_not_there_is_said_to_be_so(b: Box) -> None:
    """The words are systemd's, with the unit's name."""
    launched = launch.launcher(b.host, declared(b, unit="nobody.service"))
    assert launched.look().said == "no such unit is loaded"
    with pytest.raises(LaunchError, match=r"systemctl start nobody\.service: Unit nobody\.service not found"):
        launched.start()


def test_a_manager_that_does_not_answer_is_no_model_that_does_not_run(b: Box) -> None:
    """Exit 3: nothing is known, and nothing is concluded from it."""
    model = declared(b, unit="m.service")
    (b.root / "bin/systemctl").write_text("#!/bin/sh\necho 'Connection timed out' >&2\nexit 1\n")
    with pytest.raises(NoAnswerError, match="Connection timed out") as raised:
        launch.launcher(b.host, model).look()
    assert raised.value.exit_code == UNKNOWN


def test_a_command_becomes_a_transient_unit(b: Box) -> None:
    """In system.slice, with its score, user, directory and variables, and words that no shell takes apart."""
    command = Command(("/bin/sh", "-c", "sleep 60 # it's one word"), "nobody", "/srv", {"A": "1 2"})
    model = replace(declared(b, command=["/bin/true"]), oom_score_adj=-300, place=command)
    words = launch.transient(model.unit, command, model)
    assert words[words.index("--") + 1 :] == ("/bin/sh", "-c", "sleep 60 # it's one word")
    expected = {
        "--slice=system.slice", "--property=OOMScoreAdjust=-300", "--property=User=nobody", "--setenv=A=1 2",
        "--property=WorkingDirectory=/srv", "--property=Restart=no", "--property=TimeoutStopSec=2",
    }  # fmt: skip
    assert expected <= set(words)
    launched = launch.launcher(b.host, model)
    launched.start()
    assert launched.look().main_pid == b.pid(model.unit)
    launched.kill()
    assert until(lambda: not launched.look().there, 30)
    assert launched.look().said == "failed: signal, status 9"
    launched.forget()
    launched.start()
    assert launched.look().there


def test_the_guard_may_stop_a_model_and_not_its_attendant(b: Box) -> None:
    """A name decides what the guard spares: a model's unit, or a job's, must not be taken for one of the system's."""
    model = declared(b, command=["/bin/true"])
    for unit, spared in ((model.unit, False), (jobs.unit_of("x"), False), (attendant.unit_of("m"), True)):
        assert bool(place_of(f"/system.slice/{unit}").never) is spared, unit


def test_a_compose_service_is_created_named_started_and_ended(b: Box) -> None:
    """Its container has a name for the guard before it runs."""
    (b.root / "bin/docker").write_text(DOCKER)
    (b.root / "bin/docker").chmod(0o755)
    launched = launch.launcher(b.host, declared(b, compose="/srv/compose.yaml", service="vllm"))
    assert not launched.look().there
    launched.prepare()
    assert launched.selector == "c0ffee012345"
    assert not launched.look().there
    launched.start()
    seen = launched.look()
    assert (seen.there, seen.container, seen.selector) == (True, "c0ffee0123456789", "c0ffee012345")
    launched.ask_to_end()
    assert until(lambda: not launched.look().there, 30)
    assert launched.look().said == "srv-vllm-1: exited, exit code 137"
    assert "compose --file /srv/compose.yaml up --detach vllm" in b.calls()
    assert "docker stop -t 2 c0ffee0123456789" in b.calls()


def test_a_docker_that_refuses_is_heard(b: Box) -> None:
    """Nothing is known of a service whose daemon does not answer."""
    (b.root / "bin/docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    (b.root / "bin/docker").chmod(0o755)
    launched = launch.launcher(b.host, declared(b, compose="/srv/compose.yaml", service="vllm"))
    with pytest.raises(NoAnswerError, match="Cannot connect"):
        launched.look()
    with pytest.raises(LaunchError, match="Cannot connect"):
        launched.start()


def test_a_rootless_daemon_is_asked_by_its_user() -> None:
    """With his socket and his home, which has his credentials."""
    words = launch.docker_client(Docker("root", "/run/user/0/docker.sock"))
    assert words[:4] == ("runuser", "--user", "root", "--")
    assert {"DOCKER_HOST=unix:///run/user/0/docker.sock", "HOME=/root"} <= set(words)
    assert launch.docker_client(None) == ("docker",)
    with pytest.raises(LaunchError, match="there is no user nobody-here"):
        launch.docker_client(Docker("nobody-here", "/x"))


def test_members_of_a_cgroup_and_below(tmp_path: Path) -> None:
    """All processes of a service count, also those in cgroups that it made itself."""
    inner = tmp_path / "sys/fs/cgroup/system.slice/m.service/inner"
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text("7\n8\n")
    (inner.parent / "cgroup.procs").write_text("5\n0\n")
    host = Host(str(tmp_path))
    assert members(host, "/system.slice/m.service") == (5, 7, 8)
    assert members(host, "/system.slice/other.service") == ()
    assert members(host, "/") == ()


def test_one_that_has_ended_before_is_seen_at_once() -> None:
    """A watch on a number that nobody has is no watch that waits."""
    with watching([2**22 - 1]) as watch:
        assert watch.wait(None)
        assert watch.ended == {2**22 - 1}
    with watching([]) as watch:
        assert watch.is_empty
        assert not watch.wait(0)


def test_a_job_runs_outside_of_the_login(b: Box) -> None:
    """As who called sudo, where he stands, and with a name that a second one of the same name is refused."""
    host = replace(b.host, environment={**b.host.environment, "SUDO_USER": "alice"})
    assert jobs.run(host, "train", ["/bin/sleep", "60"]) == "job-train.service"
    assert f"--property=User=alice --property=WorkingDirectory={Path.cwd()}" in b.calls()
    assert "--slice=system.slice" in b.calls()
    with pytest.raises(LaunchError, match="already loaded"):
        jobs.run(host, "train", ["/bin/sleep", "60"])


def test_the_scripts_need_a_shell() -> None:
    """What stands in for systemd is run by sh and setsid."""
    assert shutil.which("setsid")
