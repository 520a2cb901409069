"""The environment of NCCL, EFA, gloo and torch's flight recorder, chosen from the hardware of this node.

Variables that the user has set take precedence. Those that AWS advises against are never set, and cause a warning if
the user set them.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..config import set_variables, variables

INFINIBAND = Path("/sys/class/infiniband")
AMAZON = "0x1d0f"  # PCI vendor of an Elastic Fabric Adapter
NO_PEER_MEMORY = ("A10G", "L4")  # g5 and g6: GPUs without NVLink or peer access, which communicate through host memory
SIOCGIFADDR = 0x8915
# torch still reads these, with a warning.
OLD_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}

# Recommended by old guides; each is wrong or worse today (aws-ofi-nccl 1.7, libfabric 1.18 and newer).
NEVER = {
    "FI_EFA_USE_DEVICE_RDMA": "libfabric detects it",
    "NCCL_PROTO": "it was for aws-ofi-nccl 1.5 and older; NCCL's tuner chooses better",
    "NCCL_ALGO": "NCCL's tuner chooses better",
    "NCCL_BUFFSIZE": "the plugin's tuner sets it",
    "NCCL_MIN_NCHANNELS": "the plugin's tuner sets it",
    "NCCL_SOCKET_NTHREADS": "EFA does not use it",
    "RDMAV_FORK_SAFE": "AWS advises against it",
}


@dataclass(frozen=True)
class Network:
    """The way this process communicates with others, and where each setting came from."""

    interface: str | None  # towards node 0
    efa_devices: int
    chosen: dict[str, str]  # set by Skytrain
    kept: dict[str, str]  # set by the user before

    @property
    def warnings(self) -> list[str]:
        return [
            f"{name}={value} is set in your environment: {NEVER[name]}; unset it"
            for name, value in variables(NEVER).items()
        ]

    def summary(self) -> str:
        parts = [f"EFA x {self.efa_devices}" if self.efa_devices else "no EFA"]
        if self.interface:
            parts.append(f"sockets on {self.interface}")
        if self.kept:
            parts.append("yours: " + " ".join(f"{name}={value}" for name, value in self.kept.items()))
        return ", ".join(parts)


def set_environment(device: str, nodes: int, master: str | None, gpu: str | None = None) -> Network:
    """Set the variables that are not set yet. Call it before the first process group and before the GPU is used."""
    interface = interface_towards(master) if master and nodes > 1 else None
    efa_devices = count_efa_devices()
    wanted = environment(device, nodes=nodes, interface=interface, efa=efa_devices > 0, gpu=gpu)
    kept = variables(wanted)
    # Under their old names too: torch would prefer the new names, which Skytrain sets.
    kept |= variables(old for new, old in OLD_NAMES.items() if new in wanted)
    chosen = {name: value for name, value in wanted.items() if not {name, OLD_NAMES.get(name)} & kept.keys()}
    set_variables(chosen)
    return Network(interface, efa_devices, chosen, kept)


def environment(
    device: str, *, nodes: int, interface: str | None = None, efa: bool = False, gpu: str | None = None
) -> Mapping[str, str]:
    """Return the variables that a node needs."""
    # gloo uses the address of the host name, which on Ubuntu is the loopback's.
    wanted = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    if device != "cuda":
        return wanted | {"TORCH_FR_BUFFER_SIZE": "256"}  # the flight recorder names collectives for the watchdog
    wanted |= {
        "NCCL_DEBUG": "WARN",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_FR_BUFFER_SIZE": "20000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tempfile.gettempdir()}/skytrain-nccl-",
    }
    if nodes > 1:  # within one node the loopback may be all that NCCL has
        # All but these: with only `^docker0`, NCCL once chose the loopback, and so plain TCP.
        wanted["NCCL_SOCKET_IFNAME"] = interface or "^docker,lo,veth"
    if efa:
        # With huge pages a forked data loader fails: OSError, cannot allocate memory.
        wanted["FI_EFA_USE_HUGE_PAGE"] = "0"
    if gpu and any(name in gpu.split() for name in NO_PEER_MEMORY):
        wanted["NCCL_SHM_USE_CUDA_MEMCPY"] = "1"
    return wanted


def count_efa_devices(folder: Path = INFINIBAND) -> int:
    return sum(path.read_text().strip() == AMAZON for path in folder.glob("*/device/vendor"))


def address_towards(host: str) -> str | None:
    """Return the address of this machine on the route to `host`; None without a route. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    """Return a port that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def interface_towards(host: str) -> str | None:
    """Return the interface on the route to `host`; None for the loopback."""
    address = address_towards(host)
    if address is None or address.startswith("127."):
        return None
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), None)


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of an interface; None if it has none or does not exist."""
    request = array.array("B", struct.pack("256s", interface.encode()[:15]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            fcntl.ioctl(probe, SIOCGIFADDR, request, True)
        except OSError:
            return None
    return socket.inet_ntoa(request[20:24].tobytes())
