"""What machine this is, from files that vendors write in their own ways."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import platform
from tests.unit.builders import FakeHost, stock_host, write_tree


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('A="x y"\nB=z\n', {"A": "x y", "B": "z"}),
        ('V="1"\nD="d1"\n\nV="2"\nD="mer. 16 sept."\n', {"V": "2", "D": "mer. 16 sept."}),
        ("# A=1\n; B=2\nC\nD=two words\r\n", {"; B": "2", "D": "two words"}),
        ("\ufeffA = 'x'\nexport B=\"l'an\u202f1\"\r\n", {"A": "x", "B": "l'an\u202f1"}),
        ("A='never closed\n", {"A": "'never closed"}),
        ("", {}),
    ],
)
def test_release_files(text: str, expected: dict[str, str]) -> None:
    """Of a key that is repeated for every update the last value is current; quotes are optional."""
    assert platform.parse_release(text) == expected


def test_dpkg_status() -> None:
    """Only installed packages count: one that was removed and left its configuration does not."""
    text = (
        "Package: earlyoom\nStatus: deinstall ok config-files\nVersion: 1.7-1\n\n"
        "Package: systemd\nStatus: hold ok installed\nVersion: 257.13-1\nDescription: x\n .\n Version: 9\n\n"
        "Package: other\nStatus: install ok installed\nVersion: 3\n"
    )
    assert platform.parse_dpkg_status(text, ("earlyoom", "systemd")) == {"systemd": "257.13-1"}


@pytest.mark.parametrize(
    ("crypttab", "expected"),
    [
        (None, False),
        ("", False),
        ("# root UUID=x none luks\n  # indented none\n", False),
        ("root UUID=x none luks\n", True),
        ("root UUID=x - luks\n", True),
        ("root UUID=x\n", True),
        ("root UUID=x none luks,tpm2-device=auto\n", False),
        ("root UUID=x /etc/keys/root.key luks\n", False),
        ("swap /dev/x /dev/urandom swap\n", False),
        ("data UUID=x none luks,noauto\nroot UUID=y none luks\n", True),
    ],
)
def test_encrypted_root(tmp_path: Path, crypttab: str | None, expected: bool) -> None:
    """A box that asks for a passphrase at boot does not come back by itself; a key file or a TPM does not ask."""
    write_tree(tmp_path, {} if crypttab is None else {"/etc/crypttab": crypttab})
    assert platform.encrypted_root(FakeHost(root=str(tmp_path))) is expected


def test_crypttab_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """What could not be looked at is None, not False."""
    (tmp_path / "etc/crypttab").mkdir(parents=True)
    assert platform.encrypted_root(FakeHost(root=str(tmp_path))) is None


@pytest.mark.parametrize(
    ("version", "params", "expected"),
    [
        (None, None, (None, None)),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n",
            "A: 1\n",
            ("580.95.05", None),
        ),
        ("NVRM version: NVIDIA UNIX  595.99  x\n", "A: 1\nEnableSystemMemoryPools: 0\n", ("595.99", 0)),
        ("garbage", "EnableSystemMemoryPools: on\n", (None, None)),
    ],
)
def test_driver(tmp_path: Path, version: str | None, params: str | None, expected: tuple[object, object]) -> None:
    """Version and pools are the driver's own word; a driver without the option has None, not 0."""
    files = {"/proc/driver/nvidia/version": version, "/proc/driver/nvidia/params": params}
    write_tree(tmp_path, {path: text for path, text in files.items() if text is not None})
    found = platform.driver(FakeHost(root=str(tmp_path)))
    assert (found["version"], found["system_memory_pools"]) == expected


def test_next_kernel(tmp_path: Path) -> None:
    """The boot menu's link names the kernel that comes next; without it that is unknown."""
    host = FakeHost(root=str(tmp_path))
    assert platform.next_kernel(host) is None
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/vmlinuz").symlink_to("vmlinuz-6.17.0-1014-nvidia")
    assert platform.next_kernel(host) == "6.17.0-1014-nvidia"


GRUB = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
else
   set default="DEFAULT"
fi
if [ "${prev_saved_entry}" ]; then
  set saved_entry="${prev_saved_entry}"
fi
"""
OLD, NEW = "6.17.0-1014-nvidia", "7.0.0-1019-nvidia"


@pytest.mark.parametrize(
    ("default", "kept", "expected"),
    [
        ("0", "", NEW),
        ("0", f"saved_entry=gnulinux-{OLD}-advanced-x\n", NEW),
        ("Ubuntu", "", NEW),
        ("gnulinux-simple-1234-5678", "", NEW),
        (f"Advanced options for Ubuntu>Ubuntu, with Linux {OLD}", "", OLD),
        ("${saved_entry}", f"# GRUB\nsaved_entry=gnulinux-advanced-x>gnulinux-{OLD}-advanced-x\n####", OLD),
        ("${saved_entry}", "", NEW),
        ("0", f"next_entry=Ubuntu, with Linux {OLD}\n", OLD),
        ("1>2", "", None),
        ("Ubuntu, with Linux 5.4.0-1-generic", "", None),
    ],
)
def test_kernel_that_the_boot_menu_was_told_to_choose(
    tmp_path: Path, default: str, kept: str, expected: str | None
) -> None:
    """A pinned entry beats the default link; one that names no kernel here leaves the next one unknown."""
    files = {f"/boot/vmlinuz-{release}": "" for release in (OLD, NEW)}
    write_tree(tmp_path, {**files, "/boot/grub/grub.cfg": GRUB.replace("DEFAULT", default), "/boot/grub/grubenv": kept})
    (tmp_path / "boot/vmlinuz").symlink_to(f"vmlinuz-{NEW}")
    assert platform.next_kernel(FakeHost(root=str(tmp_path))) == expected


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (None, None),
        ("kernel/net/a.ko:\n", False),
        ("kernel/drivers/nvidiafb.ko.zst:\nkernel/nvidia-drm.ko: kernel/nvidia.ko\n", False),
        ("kernel/nvidia-580-open/nvidia.ko.zst: kernel/x.ko\n", True),
        ("updates/dkms/nvidia.ko:\n", True),
    ],
)
def test_kernels(tmp_path: Path, modules: str | None, expected: bool | None) -> None:
    """Each kernel in /boot is listed, with whether depmod knows the driver's own module for it."""
    files = {"/boot/vmlinuz-6.17": "", "/boot/config-6.17": ""}
    write_tree(tmp_path, files if modules is None else files | {"/lib/modules/6.17/modules.dep": modules})
    assert platform.kernels(FakeHost(root=str(tmp_path))) == [{"release": "6.17", "nvidia_module": expected}]


def test_firmware(tmp_path: Path) -> None:
    """The GPU's firmware is what it runs, `N/A` is none; on disk counts what holds an image for this processor."""
    host = FakeHost(root=str(tmp_path))
    assert (platform.gsp_firmware(host), platform.firmware_files(host)) == (None, [])
    information = "/proc/driver/nvidia/gpus/000f:01:00.0/information"
    images = ("580.159.03/gsp_ga10x.bin", "580.173.02/gsp_tu10x.bin.zst", "580.95.05/README", "gsp/gsp.bin")
    write_tree(tmp_path, {f"/lib/firmware/nvidia/{image}": "" for image in images})
    write_tree(tmp_path, {information: "Model: x\nGPU Firmware: \t N/A\n"})
    assert (platform.gsp_firmware(host), platform.firmware_files(host)) == (None, ["580.159.03", "580.173.02"])
    write_tree(tmp_path, {information: "Model: x\nGPU Firmware: \t 580.95.05\nGPU Excluded:\t No\n"})
    assert platform.gsp_firmware(host) == "580.95.05"


@pytest.mark.parametrize(
    ("banner", "expected"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  x\n", True),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  x\n", False),
        ("", None),
    ],
)
def test_flavour_of_the_driver(tmp_path: Path, banner: str, expected: bool | None) -> None:
    """The driver says itself whether it is the open one."""
    write_tree(tmp_path, {"/proc/driver/nvidia/version": banner})
    assert platform.driver(FakeHost(root=str(tmp_path)))["open_module"] is expected


def test_container(tmp_path: Path) -> None:
    """A container is told by systemd's own file, or by docker's."""
    host = FakeHost(root=str(tmp_path))
    assert platform.container(host) is None
    write_tree(tmp_path, {"/.dockerenv": ""})
    assert platform.container(host) == "docker"
    write_tree(tmp_path, {"/run/systemd/container": "lxc\n"})
    assert platform.container(host) == "lxc"


def test_watchdogs(tmp_path: Path) -> None:
    """Each device is listed with what its driver says; a field that it has not is None."""
    write_tree(tmp_path, {"/sys/class/watchdog/watchdog0/state": "active\n"})
    (device,) = platform.watchdogs(FakeHost(root=str(tmp_path)))
    assert (device["name"], device["state"], device["timeout"]) == ("watchdog0", "active", None)


def test_platform_of_a_stock_machine(tmp_path: Path) -> None:
    """A machine of its own with systemd is described; one without dpkg has no packages, rather than none installed."""
    found = platform.read(stock_host(tmp_path))
    assert (found["pid1"], found["systemd_running"], found["container"], found["cgroup2"]) == (
        "systemd",
        True,
        None,
        True,
    )
    assert found["mem_total_kib"] == 127533056
    assert platform.packages(stock_host(tmp_path), ()) == {"systemd": "257.13-1"}
    assert platform.packages(FakeHost(root=f"{tmp_path}/none"), ()) is None


@given(st.text(st.sampled_from("Package: Status:\nVersion: installed ok A='\"\\=#"), max_size=120))
def test_any_text_can_be_parsed(text: str) -> None:
    """No content of a release or status file breaks a parser."""
    platform.parse_release(text)
    platform.parse_dpkg_status(text, ("A",))
