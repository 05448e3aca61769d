"""Layer driver_option (opt-in, not tested on hardware): the driver gives freed memory back instead of pooling it."""

from plimsoll.controls.record import ModuleOption, Why
from plimsoll.controls.values import Fixed

CONTROLS = (
    ModuleOption(
        id="driver_option/NVreg_EnableSystemMemoryPools",
        target="nvidia",
        name="NVreg_EnableSystemMemoryPools",
        file="/etc/modprobe.d/plimsoll.conf",
        default="0",
        value=Fixed("0"),
        why=Why(
            reason="From 590 on the driver keeps the memory of finished processes in pools that the kernel takes back "
            "only late. Without pools it is free as soon as the process is gone.",
            evidence="Three nodes with driver 610 and this option gave memory back at once and passed their "
            "benchmarks. Not tested on hardware by this project.",
            source="public report of 2026; open-gpu-kernel-modules 590.44.01, nv-vm.c and nv-reg.h",
            cost="Every allocation is zeroed again; the next model may start more slowly.",
            risk="Blocks of 2 MiB may fragment. The initramfs is rebuilt.",
            skip_if="The driver is 580 (it has no such option), or models are switched often.",
        ),
    ),
)
