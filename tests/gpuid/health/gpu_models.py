"""Ten GPU models as data: what NVML answers for each, idle, and what follows from it.

Sources: [q] ``nvidia-smi -q -x`` of such a model with drivers 570 to 595, from NVIDIA/k8s-test-infra, tests/e2e/go/
assertions/nvidiasmi/testdata/hardware; [d] data sheet of the model; [n] NVML API Reference; [w] CUDA on WSL User Guide,
and XuehaiPan/nvitop#30, rapidsai/cudf#9955; [v] Virtual GPU Software Management SDK User Guide, "Managing vGPUs from a
guest VM". What a page does not say is the answer of the model's nearest relative with a capture.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.services.containers.nvml_stub import LINK_DOWN, MIB, NVSWITCH, StubDevice

_NO_ECC = "ECC errors"


class GpuModel(NamedTuple):
    """One GPU model.

    Args:
        stub: its answers.
        slowdown_c: the temperature at which it slows down; None: it does not report that.
        unverified: why it cannot be said that nobody uses it.
        unreported: what it does not report of its health.
        notes: the notes for an operator.
        unknown: fields of a sample that it does not report.
        is_wsl: under WSL2.
    """

    stub: StubDevice
    slowdown_c: int | None
    unverified: str = ""
    unreported: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    is_wsl: bool = False


def _stub(name: str, mib: int, **answers: object) -> StubDevice:
    defaults: dict[str, object] = {
        "numa": 0,
        "utilization": 0,
        "millijoules": 60_000,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "clock_reasons": 0x1,  # idle
        "remap_pending": 0,
        "fabric": None,
    }
    return StubDevice(name=name, memory_bytes=mib * MIB, **(defaults | answers))  # type: ignore[arg-type]


_UNSUPPORTED = 3
GPU_MODELS = {
    # [q] A cloud's half of the lanes, page retirement and no row remapping.
    "T4": GpuModel(
        _stub(
            *("Tesla T4", 15360),
            reserved=448 * MIB,
            temperature=33,
            slowdown=93,
            milliwatts=33_510,
            pages_pending=0,
            remap_pending=None,
            pcie_width=8,
        ),
        slowdown_c=93,
        notes=("PCIe has 8 of 16 lanes",),
    ),
    # [d] Six links; ECC and page retirement as T4.
    "V100": GpuModel(
        _stub(
            *("Tesla V100-SXM2-16GB", 16384),
            reserved=224 * MIB,
            temperature=36,
            slowdown=87,
            milliwatts=41_000,
            pages_pending=0,
            remap_pending=None,
            nvlinks=(LINK_DOWN,) * 6,
        ),
        slowdown_c=87,
    ),
    # [q] The first with remapped rows, the last with temperatures as thresholds; no state of its fabric.
    "A100": GpuModel(
        _stub(
            *("NVIDIA A100-SXM4-40GB", 40960),
            reserved=518 * MIB,
            temperature=33,
            slowdown=89,
            milliwatts=49_680,
            nvlinks=(NVSWITCH,) * 12,
        ),
        slowdown_c=89,
    ),
    # [q] 29 °C is 58 below its maximum, and it slows down 2 above that.
    "H100": GpuModel(
        _stub(
            *("NVIDIA H100 80GB HBM3", 81559),
            reserved=480 * MIB,
            temperature=29,
            slowdown=None,
            margin=58,
            slowdown_margin=-2,
            milliwatts=68_570,
            fabric=3,
            nvlinks=(NVSWITCH,) * 18,
        ),
        slowdown_c=89,
    ),
    # [d] As H100, with more memory.
    "H200": GpuModel(
        _stub(
            *("NVIDIA H200", 143771),
            reserved=652 * MIB,
            temperature=31,
            slowdown=None,
            margin=56,
            slowdown_margin=-2,
            milliwatts=76_000,
            fabric=3,
            fabric_health=0x2A,  # full bandwidth, no recovery, no unhealthy route
            nvlinks=(NVSWITCH,) * 18,
        ),
        slowdown_c=89,
    ),
    # [d] [n] Its memory is a NUMA node, in which Linux keeps pages; alone it has no NVLink partner, and no fabric.
    "GH200": GpuModel(
        _stub(
            *("NVIDIA GH200 480GB", 97871),
            reserved=576 * MIB,
            used=1240 * MIB,
            memory_node=1,
            temperature=34,
            slowdown=None,
            margin=52,
            slowdown_margin=-2,
            milliwatts=98_000,
            nvlinks=(LINK_DOWN,) * 18,
        ),
        slowdown_c=88,
        unverified="its memory is NUMA node 1 of the machine",
    ),
    # [q] A cloud's half of the lanes.
    "L40S": GpuModel(
        _stub(
            *("NVIDIA L40S", 46068),
            reserved=609 * MIB,
            temperature=29,
            slowdown=None,
            margin=59,
            slowdown_margin=-2,
            milliwatts=65_640,
            pcie_width=8,
        ),
        slowdown_c=90,
        notes=("PCIe has 8 of 16 lanes",),
    ),
    # [d] A desktop: no ECC, no row remapping, persistence mode off, Xorg draws on it.
    "RTX 4090": GpuModel(
        _stub(
            *("NVIDIA GeForce RTX 4090", 24564),
            reserved=347 * MIB,
            used=310 * MIB,
            graphics=(1,),
            numa=None,
            temperature=41,
            slowdown=None,
            margin=43,
            slowdown_margin=-2,
            milliwatts=18_000,
            ecc=None,
            remap_pending=None,
            persistence=0,
        ),
        slowdown_c=86,
        unreported=(_NO_ECC,),
    ),
    # [w] Memory of Windows' desktop is in use by nobody; memory v2 is an unknown error, processes an empty list, and
    # there is no /dev/nvidia0.
    "WSL2": GpuModel(
        _stub(
            *("NVIDIA GeForce RTX 3090", 24576),
            minor=-1,
            used=1079 * MIB,
            numa=None,
            temperature=42,
            slowdown=None,
            milliwatts=31_000,
            millijoules=None,
            ecc=None,
            remap_pending=None,
            mode=None,
            utilization=None,
            recovery=None,
            clock_reasons=None,
            errors=(
                ("nvmlDeviceGetMemoryInfo_v2", 999),
                ("nvmlDeviceGetMigMode", _UNSUPPORTED),
                ("nvmlEventSetCreate", _UNSUPPORTED),
                ("nvmlDeviceRegisterEvents", _UNSUPPORTED),
                ("nvmlDeviceGetMPSComputeRunningProcesses", _UNSUPPORTED),
            ),
        ),
        slowdown_c=None,
        unverified="the driver does not list processes",
        unreported=("processes", "slowdown temperature", _NO_ECC, "utilisation"),
        notes=("nvmlDeviceGetMemoryInfo: Unknown Error",),
        unknown=("utilisation", "processes", "energy_j"),
        is_wsl=True,
    ),
    # [v] What belongs to the physical GPU is not supported in a guest.
    "vGPU": GpuModel(
        _stub(
            *("GRID V100D-32C", 32768),
            used=1650 * MIB,
            reserved=None,
            temperature=None,
            slowdown=None,
            milliwatts=None,
            millijoules=None,
            ecc=None,
            remap_pending=None,
            recovery=None,
            pcie_width=None,
            pcie_max_width=None,
            clock_reasons=None,
            numa=None,
            errors=(
                ("nvmlDeviceGetComputeRunningProcesses", _UNSUPPORTED),
                ("nvmlDeviceGetGraphicsRunningProcesses", _UNSUPPORTED),
                ("nvmlDeviceGetMPSComputeRunningProcesses", _UNSUPPORTED),
                ("nvmlDeviceRegisterEvents", _UNSUPPORTED),
            ),
        ),
        slowdown_c=None,
        unverified="the driver does not list processes",
        unreported=("processes", "temperature", "slowdown temperature", _NO_ECC),
        unknown=("power_w", "temperature_c", "processes", "energy_j"),
    ),
}
