"""The backstop runs with exactly the wanted arguments, fires where it says, and takes the model server."""

import re

import pytest

from lab.machine import Machine
from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

PREFER = "^(vllm|VLLM::.*|llama-server|ollama|sglang::schedul)$"
PID = "systemctl show -p MainPID --value earlyoom.service"
SERVER = "/usr/local/bin/llama-server"
GROWS = "import time\nheld = []\nwhile True:\n    held.append(b'x' * (8 << 20))\n    time.sleep(0.05)\n"
BYSTANDER = "import time; held = b'x' * (500 << 20); open('/run/bystander', 'w').close(); time.sleep(3600)"


def arguments(machine: Machine) -> list[str]:
    """Return what the running daemon was really started with."""
    raw = machine.succeed(f"tr '\\0' '\\n' </proc/$({PID})/cmdline")
    return raw.splitlines()[1:]


def said_at_start(machine: Machine) -> str:
    """Return what the running daemon printed when it started and since."""
    query = "journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID=$(systemctl show -p InvocationID --value earlyoom)"
    return machine.wait_until_succeeds(f"{query} | grep -B20 -A5 '^mem avail:'")


def announced_gib(run: deploying.Run) -> float:
    """Return the level below which the deploy said that earlyoom would act, as the host was loaded then."""
    found = re.findall(r"earlyoom would send SIGTERM below ([\d.]+) GiB as loaded now", run.err)
    assert found, run.err
    return float(found[-1])


def check_firing_point(machine: Machine, run: deploying.Run, percent: int) -> None:
    """Compare what the deploy announced with what the daemon prints: its percentage, of the total that it counts."""
    said = said_at_start(machine)
    shown = re.search(r"SIGTERM when mem avail <= *([\d.]+)%|SIGTERM when mem <= *([\d.]+)%", said)
    total = re.search(r"mem avail: +\d+ of +(\d+) MiB", said)
    assert shown, said
    assert total, said
    assert float(shown[1] or shown[2]) == percent
    fires_at_gib = percent / 100 * int(total[1]) / 1024
    assert announced_gib(run) == pytest.approx(fires_at_gib, rel=0.05)


def test_it_runs_with_exactly_the_wanted_arguments(hardened: Deployed) -> None:
    """The regular expression with its brackets and bars arrives as one argument; nothing is added or lost."""
    wanted = ["-r", "60", "-m", "6,4", "-s", "100,100", "-g", "--prefer", PREFER]
    assert arguments(hardened.machine) == wanted


def test_it_fires_where_the_deploy_says(hardened: Deployed) -> None:
    """On 1.8 the level is a percentage of what is available or anonymous; the deploy and the daemon agree on it."""
    assert "earlyoom v1.8" in said_at_start(hardened.machine)
    check_firing_point(hardened.machine, deploying.deploy(hardened.machine), 6)


def test_the_older_version_gets_its_own_arguments(hardened_bookworm: Deployed) -> None:
    """On Debian 12, whose 1.7 counts percentages of MemTotal, 5 and 3 are chosen; deploy and daemon agree again."""
    machine = hardened_bookworm.machine
    assert arguments(machine) == ["-r", "60", "-m", "5,3", "-s", "100,100", "-g", "--prefer", PREFER]
    assert "earlyoom v1.7" in said_at_start(machine)
    check_firing_point(machine, hardened_bookworm.run, 5)


@pytest.mark.slow
def test_patterns_of_the_policy_arrive_unharmed(machine: Machine) -> None:
    """Patterns with dollar signs, brackets and a per cent sign reach the daemon as they stand in the inventory."""
    patterns = ["^a$", "b[^%]{2}", "$HOME", "c|d", ".*e", "f%n", "[$](g)"]
    deploying.deploy(machine, {"earlyoom": {"prefer": patterns}})
    assert arguments(machine)[-1] == f"^({'|'.join(patterns)})$"
    assert deploying.plan(machine, {"earlyoom": {"prefer": patterns}}) == []


def test_it_takes_the_model_server_and_nobody_else(hardened: Deployed) -> None:
    """When memory runs out the llama-server that grows is ended, not a larger bystander, and sshd never stops."""
    machine = hardened.machine
    machine.succeed(f"cp $(readlink -f /usr/bin/python3) {SERVER}")
    machine.put("/run/bystander.py", BYSTANDER)
    machine.put("/run/grows.py", GROWS)
    listener = machine.succeed("systemctl show -p MainPID --value ssh.service")
    try:
        machine.succeed("systemd-run --quiet --unit=bystander python3 /run/bystander.py")
        machine.wait_until_succeeds("test -e /run/bystander")
        machine.succeed(f"systemd-run --quiet --unit=server {SERVER} /run/grows.py")
        machine.wait_until_succeeds("! systemctl is-active --quiet server", timeout_s=180)
        journal = machine.succeed("journalctl --no-pager -o cat -u earlyoom")
        assert re.search(r'sending SIGTERM to process \d+ uid 0 "llama-server"', journal), journal
        assert machine.succeed("systemctl is-active bystander").strip() == "active"
        assert machine.succeed("systemctl show -p MainPID --value ssh.service") == listener
        assert machine.ssh("true").returncode == 0
    finally:
        machine.succeed(f"systemctl stop bystander server 2>/dev/null; systemctl reset-failed; rm {SERVER}")


@pytest.mark.slow
def test_a_daemon_with_other_arguments_is_found_and_restarted(hardened: Deployed) -> None:
    """Arguments that were changed behind its file are drift, and the next deploy starts it with the wanted ones."""
    machine = hardened.machine
    machine.succeed(
        "cp /etc/default/earlyoom /run/kept; echo 'EARLYOOM_ARGS=\"-m 15\"' >/etc/default/earlyoom;"
        "systemctl restart earlyoom; cp /run/kept /etc/default/earlyoom"
    )
    assert "earlyoom/arguments" in deploying.not_ok(machine)
    assert deploying.deploy(machine).changed() == ["Layer earlyoom"]
    assert PREFER in arguments(machine)
