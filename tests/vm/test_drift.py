"""Every kind of drift, made for real: the verdict, the file and the line; and no false alarm without one."""

from dataclasses import dataclass

import pytest

from lab.machine import Machine
from tests.vm import auditing, deploying
from tests.vm.deploying import OPTED_IN, Deployed, Policy

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

SYSCTL = "/etc/sysctl.d/zz-plimsoll.conf"
SSH_DROP_IN = "/etc/systemd/system/ssh.service.d/plimsoll.conf"
EARLYOOM = "/etc/default/earlyoom"
RELOAD = "systemctl daemon-reload"
APPLY = "sysctl -q kernel.sysrq=1"
SSH_MIN = "echo 67108864 >/sys/fs/cgroup/system.slice/ssh.service/memory.min"
# While it is disabled its alias sshd.service is a unit of its own, which does not exist; when it is enabled, systemd
# 257 may put that one's state over the running service's at a later reload, and take it for dead while it runs.
ENABLE = (
    f"systemctl enable -q ssh.service; {RELOAD}; {RELOAD}; systemctl is-active -q ssh.service || "
    f"{{ pkill -x sshd; systemctl start ssh.service; {SSH_MIN}; }}"
)


ALL_OF_THE_KERNEL = {
    f"kernel/{key}": "unpersisted"
    for key in (
        "kernel.sysrq", "kernel.hung_task_timeout_secs", "kernel.hung_task_warnings", "vm.min_free_kbytes",
        "vm.watermark_boost_factor",
    )
}  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """One kind of drift."""

    name: str
    make: str
    """Shell commands that somebody else might have given."""
    says: dict[str, str]
    """By control: the verdict, and `FILE:LINE` where a file decides; ` *` stands for any place or none."""
    mend: str


def _kept(path: str, change: str) -> tuple[str, str]:
    """Return the commands that change a file of ours and put it back, owner, mode and times included."""
    return f"cp -a {path} /run/kept; {change}", f"rm -f {path}; cp -a /run/kept {path}"


def _file(name: str, path: str, change: str, says: dict[str, str]) -> Drift:
    make, mend = _kept(path, change)
    return Drift(name, make, says, mend)


FILES = [
    _file("a line of ours is edited", SYSCTL, f"sed -i 's/^kernel.sysrq.*/kernel.sysrq = 0/' {SYSCTL}",
          {f"kernel/file:{SYSCTL}": f"drifted {SYSCTL}:0", "kernel/kernel.sysrq": "unpersisted *"}),
    _file("our file is deleted", SYSCTL, f"rm {SYSCTL}",
          {f"kernel/file:{SYSCTL}": f"drifted {SYSCTL}:0", **ALL_OF_THE_KERNEL}),
    _file("our file is replaced by a link to nothing", SYSCTL, f"ln -sf /dev/null {SYSCTL}",
          {f"kernel/file:{SYSCTL}": f"drifted {SYSCTL}:0", **ALL_OF_THE_KERNEL}),
    _file("our file can be written by anybody", SYSCTL, f"chmod 0666 {SYSCTL}",
          {f"kernel/file:{SYSCTL}": f"drifted {SYSCTL}:0"}),
    _file("our file belongs to somebody else", SYSCTL, f"chown admin {SYSCTL}",
          {f"kernel/file:{SYSCTL}": f"drifted {SYSCTL}:0"}),
    _file("our drop-in is deleted", SSH_DROP_IN, f"rm {SSH_DROP_IN}",
          {f"sshd/file:{SSH_DROP_IN}": f"drifted {SSH_DROP_IN}:0", "sshd/MemoryMin:ssh.service": "unpersisted",
           "sshd/CPUWeight:ssh.service": "unpersisted", "sshd/IOWeight:ssh.service": "unpersisted"}),
    _file("the program is replaced", "/usr/local/lib/plimsoll/plimsoll.pyz",
          "echo >>/usr/local/lib/plimsoll/plimsoll.pyz",
          {"box/file:/usr/local/lib/plimsoll/plimsoll.pyz": "drifted /usr/local/lib/plimsoll/plimsoll.pyz:0"}),
]  # fmt: skip

KERNEL = [
    Drift("a value is set by hand", "sysctl -q kernel.sysrq=438", {"kernel/kernel.sysrq": "drifted *"}, APPLY),
    Drift("a later file wins and was applied",
          "printf '# mine\\nkernel.sysrq = 16\\n' >/etc/sysctl.d/zzz-admin.conf; sysctl -q --system",
          {"kernel/kernel.sysrq": "shadowed /etc/sysctl.d/zzz-admin.conf:2"},
          f"rm /etc/sysctl.d/zzz-admin.conf; {APPLY}"),
    Drift("a later file wins from the next boot on", "echo kernel/sysrq=16 >/etc/sysctl.d/zzz-admin.conf",
          {"kernel/kernel.sysrq": "shadowed /etc/sysctl.d/zzz-admin.conf:1"}, "rm /etc/sysctl.d/zzz-admin.conf"),
    Drift("a later file of a package wins", "echo kernel.sysrq=16 >/usr/lib/sysctl.d/zzzz.conf",
          {"kernel/kernel.sysrq": "shadowed /usr/lib/sysctl.d/zzzz.conf:1"}, "rm /usr/lib/sysctl.d/zzzz.conf"),
    Drift("two keys of ours are taken over",
          "printf 'vm.min_free_kbytes=20000\\n\\n-kernel.sysrq=0\\n' >/etc/sysctl.d/zzz-admin.conf",
          {"kernel/vm.min_free_kbytes": "shadowed /etc/sysctl.d/zzz-admin.conf:1",
           "kernel/kernel.sysrq": "shadowed /etc/sysctl.d/zzz-admin.conf:3"}, "rm /etc/sysctl.d/zzz-admin.conf"),
]  # fmt: skip

UNITS = [
    Drift("systemctl set-property", "systemctl set-property ssh.service MemoryMin=1M",
          # 50-MemoryMin.conf sorts before ours: it is in force only until systemd reads its files again
          {"sshd/MemoryMin:ssh.service": "drifted *"},
          f"rm -r /etc/systemd/system.control/ssh.service.d; {RELOAD}; {SSH_MIN}"),
    Drift("systemctl set-property --runtime", "systemctl set-property --runtime ssh.service MemoryMin=1M",
          {"sshd/MemoryMin:ssh.service": "drifted *"},
          f"rm -r /run/systemd/system.control/ssh.service.d; {RELOAD}; {SSH_MIN}"),
    Drift("a later drop-in wins",
          "printf '[Service]\\nMemoryMin=2M\\n' >/etc/systemd/system/ssh.service.d/zz.conf; "
          f"{RELOAD}; echo 2097152 >/sys/fs/cgroup/system.slice/ssh.service/memory.min",
          {"sshd/MemoryMin:ssh.service": "shadowed /etc/systemd/system/ssh.service.d/zz.conf:2"},
          f"rm /etc/systemd/system/ssh.service.d/zz.conf; {RELOAD}; {SSH_MIN}"),
    Drift("a drop-in of an alias wins",
          "mkdir /etc/systemd/system/sshd.service.d; "
          f"printf '[Service]\\nMemoryMin=2M\\n' >/etc/systemd/system/sshd.service.d/zz.conf; {RELOAD}",
          {"sshd/MemoryMin:ssh.service": "shadowed /etc/systemd/system/sshd.service.d/zz.conf:2"},
          f"rm -r /etc/systemd/system/sshd.service.d; {RELOAD}; {SSH_MIN}"),
    Drift("a score is set on sshd",
          "printf '[Service]\\nOOMScoreAdjust=-1000\\n' >/etc/systemd/system/ssh.service.d/zz.conf; "
          f"{RELOAD}; systemctl restart ssh.service",
          {"sshd/sessions:ssh.service": "shadowed /etc/systemd/system/ssh.service.d/zz.conf:2"},
          f"rm /etc/systemd/system/ssh.service.d/zz.conf; {RELOAD}; systemctl restart ssh.service; {SSH_MIN}"),
    Drift("the cgroup is written to", "echo 0 >/sys/fs/cgroup/system.slice/ssh.service/memory.min",
          {"sshd/MemoryMin:ssh.service": "drifted *"}, SSH_MIN),
    Drift("an ancestor is unprotected", "echo 0 >/sys/fs/cgroup/system.slice/memory.min",
          {"slices/system.slice:MemoryMin": "drifted *", "sshd/MemoryMin:ssh.service": "drifted *",
           "journald/MemoryMin": "drifted *", "guard/MemoryMin": "drifted *",
           **{f"slices/login:MemoryMin:{unit}.service": "drifted *"
              for unit in ("dbus", "systemd-logind", "systemd-networkd", "rsyslog")}},
          "echo 201326592 >/sys/fs/cgroup/system.slice/memory.min"),
    Drift("sshd is not started at boot", "systemctl disable -q ssh.service",
          {"sshd/running:ssh.service": "unpersisted *"}, ENABLE),
    Drift("the watch over the settings is off", "systemctl disable -q --now plimsoll-verify.timer",
          {"box/plimsoll-verify.timer": "drifted *"}, "systemctl enable -q --now plimsoll-verify.timer"),
]  # fmt: skip

MANAGERS = [
    Drift("another file sets journald",
          "printf '[Journal]\\nSyncIntervalSec=5m\\n' >/etc/systemd/journald.conf.d/zz.conf",
          {"journald/SyncIntervalSec": "shadowed /etc/systemd/journald.conf.d/zz.conf:2"},
          "rm /etc/systemd/journald.conf.d/zz.conf"),
    Drift("another file sets the default score of user managers",
          "printf '[Manager]\\n\\nDefaultOOMScoreAdjust=200\\n' >/etc/systemd/user.conf.d/zz.conf",
          {"user_manager/DefaultOOMScoreAdjust": "shadowed /etc/systemd/user.conf.d/zz.conf:3"},
          "rm /etc/systemd/user.conf.d/zz.conf"),
    Drift("the user manager is preferred again",
          "echo 300 >/proc/$(systemctl show -p MainPID --value user@1000.service)/oom_score_adj",
          {"user_manager/OOMScoreAdjust": "pending *", "user_manager/DefaultOOMScoreAdjust": "pending *"},
          "echo 0 >/proc/$(systemctl show -p MainPID --value user@1000.service)/oom_score_adj"),
    Drift("journald's score is changed",
          "echo 0 >/proc/$(systemctl show -p MainPID --value systemd-journald)/oom_score_adj",
          {"journald/OOMScoreAdjust": "drifted *"},
          "echo -1000 >/proc/$(systemctl show -p MainPID --value systemd-journald)/oom_score_adj"),
]  # fmt: skip

_ARGUMENTS_MAKE, _ARGUMENTS_MEND = _kept(EARLYOOM, f"""sed -i 's/-s 100,100/-s 10/' {EARLYOOM}""")
EARLYOOM_DRIFTS = [
    Drift("earlyoom's file is edited", _ARGUMENTS_MAKE,
          {f"earlyoom/file:{EARLYOOM}": f"drifted {EARLYOOM}:0", "earlyoom/arguments": "unpersisted *"},
          _ARGUMENTS_MEND),
    Drift("earlyoom's file is edited, and it was restarted", f"{_ARGUMENTS_MAKE}; systemctl restart earlyoom",
          {f"earlyoom/file:{EARLYOOM}": f"drifted {EARLYOOM}:0", "earlyoom/arguments": "drifted *"},
          f"{_ARGUMENTS_MEND}; systemctl restart earlyoom"),
    Drift("a drop-in starts earlyoom with other arguments",
          "mkdir -p /etc/systemd/system/earlyoom.service.d; "
          "printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/earlyoom -m 2 -s 80\\n' "
          f">/etc/systemd/system/earlyoom.service.d/override.conf; {RELOAD}; systemctl restart earlyoom",
          {"earlyoom/arguments": "shadowed /etc/systemd/system/earlyoom.service.d/override.conf:3"},
          f"rm -r /etc/systemd/system/earlyoom.service.d; {RELOAD}; systemctl restart earlyoom"),
    Drift("earlyoom runs with older arguments, as after an upgrade that restarted it too early",
          f"{_ARGUMENTS_MAKE}; systemctl restart earlyoom; {_ARGUMENTS_MEND}",
          {"earlyoom/arguments": "pending *"}, "systemctl restart earlyoom"),
    Drift("earlyoom is stopped", "systemctl stop earlyoom",
          {"earlyoom/running": "drifted", "earlyoom/arguments": "drifted *"}, "systemctl start earlyoom"),
    Drift("earlyoom is masked", "systemctl stop earlyoom; systemctl mask -q earlyoom",
          {"earlyoom/running": "drifted *", "earlyoom/arguments": "drifted *"},
          "systemctl unmask -q earlyoom; systemctl start earlyoom"),
    Drift("earlyoom is not started at boot", "systemctl disable -q earlyoom",
          {"earlyoom/running": "unpersisted *"}, "systemctl enable -q earlyoom"),
    Drift("earlyoom was killed for good", "systemctl kill -s KILL earlyoom; systemctl stop earlyoom",
          {"earlyoom/running": "drifted", "earlyoom/arguments": "drifted *"}, "systemctl start earlyoom"),
]  # fmt: skip

DEFAULT_LAYERS = [*FILES, *KERNEL, *UNITS, *MANAGERS, *EARLYOOM_DRIFTS]

OPT_IN_LAYERS = [
    Drift("the watchdog is switched off by a later file",
          "printf '[Manager]\\nRuntimeWatchdogSec=0\\n' >/etc/systemd/system.conf.d/zz.conf; systemctl daemon-reexec",
          {"recovery/RuntimeWatchdogSec": "shadowed /etc/systemd/system.conf.d/zz.conf:2"},
          "rm /etc/systemd/system.conf.d/zz.conf; systemctl daemon-reexec"),
    Drift("the watchdog is closed", "busctl set-property org.freedesktop.systemd1 /org/freedesktop/systemd1 "
          "org.freedesktop.systemd1.Manager RuntimeWatchdogUSec t 0",
          {"recovery/RuntimeWatchdogSec": "drifted *"},
          "busctl set-property org.freedesktop.systemd1 /org/freedesktop/systemd1 "
          "org.freedesktop.systemd1.Manager RuntimeWatchdogUSec t 18446744073709551615"),
    Drift("a panic no longer restarts", "sysctl -q kernel.panic=0", {"recovery/kernel.panic": "drifted *"},
          "sysctl -q kernel.panic=1"),
    Drift("a trimmed unit is back", "systemctl unmask -q lab-dashboard.service; systemctl start lab-dashboard.service",
          {"trims/lab-dashboard.service": "drifted *"},
          "systemctl stop lab-dashboard.service; systemctl mask -q lab-dashboard.service"),
]  # fmt: skip


def judged_alike(machine: Machine, drift: Drift, policy: Policy | None) -> None:
    """Make a drift, audit, and mend it; what is said must be what is expected, and the rest ok."""
    try:
        machine.succeed(drift.make)
        ran = auditing.audit(machine, "--json", policy=policy)
        found = deviations(ran)
    finally:
        machine.succeed(drift.mend)
    shown = {i: said.split()[0] + " *" if drift.says.get(i, "").endswith(" *") else said for i, said in found.items()}
    assert shown == drift.says
    assert ran.code == (2 if {said.split()[0] for said in found.values()} - {"pending"} else 0)


def deviations(ran: auditing.Ran) -> dict[str, str]:
    """Return what deviates, but for what this kernel or driver does not have."""
    return {i: said for i, said in auditing.deviations(ran).items() if not said.startswith("unsupported")}


def test_a_host_without_drift_ends_with_0(hardened: Deployed) -> None:
    """Right after a deploy over a sudo login, with a user manager running, there is nothing to say."""
    ran = auditing.audit(hardened.machine, "--json")
    assert auditing.deviations(ran) == {}
    assert ran.code == 0


@pytest.mark.slow
@pytest.mark.parametrize("drift", DEFAULT_LAYERS, ids=lambda drift: drift.name)
def test_drift_is_named(hardened: Deployed, drift: Drift) -> None:
    """The audit says what has drifted, and which file and line decides."""
    judged_alike(hardened.machine, drift, None)


@pytest.mark.slow
@pytest.mark.parametrize("drift", OPT_IN_LAYERS, ids=lambda drift: drift.name)
def test_drift_of_opt_in_layers_is_named(opted_in: Deployed, drift: Drift) -> None:
    """The same for the layers that a policy has to ask for."""
    judged_alike(opted_in.machine, drift, OPTED_IN)


@pytest.mark.slow
def test_no_false_alarm(hardened: Deployed) -> None:
    """A reload of systemd, an upgrade of packages and a reboot change nothing that matters."""
    machine = hardened.machine
    machine.succeed("systemctl daemon-reload")
    assert auditing.audit(machine, "--json").code == 0
    machine.succeed("apt-get update && apt-get -y upgrade", timeout_s=deploying.DEPLOY_TIMEOUT_S)
    assert auditing.deviations(auditing.audit(machine, "--json")) == {}
    machine.reboot()
    ran = auditing.audit(machine, "--json")
    assert auditing.deviations(ran) == {}
    assert ran.code == 0
