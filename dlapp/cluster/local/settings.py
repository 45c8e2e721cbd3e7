"""Settings of a runner and an ApplicationMaster: parts of the configuration of the command that started them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlapp.config import Config

_FIELDS = (
    *("memory_mib", "vcores", "gcores", "lock_dir", "docker_host", "docker_network", "docker_gpu_mode"),
    *("cache_limit_bytes", "cache_age_s", "payload_cache_limit_bytes", "history_age_s", "history_limit_bytes"),
    *("kill_grace_max_s", "program", "am_attempts"),
)


class RunnerSettings:
    """Parts of the configuration, in a form that travels to other processes.

    A plain class: that of a dataclass would cost the runner more time than its work.

    Args:
        memory_mib, vcores, gcores: how much may be used; None: what there is.
        am_attempts: how many ApplicationMasters an application may have, one after the other.
        program: how our own processes are started; tests put theirs in its place.
    """

    memory_mib: int | None
    vcores: int | None
    gcores: int | None
    lock_dir: str
    docker_host: str
    docker_network: str
    docker_gpu_mode: str
    cache_limit_bytes: int
    cache_age_s: float
    payload_cache_limit_bytes: int
    history_age_s: float
    history_limit_bytes: int
    kill_grace_max_s: float
    program: tuple[str, ...]
    am_attempts: int

    def __init__(self, values: dict[str, Any]) -> None:
        values = {"am_attempts": 1, **values}  # an application of an earlier version has one
        for name in _FIELDS:
            setattr(self, name, values[name])
        self.program = tuple(values["program"])

    def to_json(self) -> dict[str, Any]:
        """The values by name."""
        return {name: getattr(self, name) for name in _FIELDS}


def settings_of(config: Config, program: Sequence[str]) -> RunnerSettings:
    """Return the parts of a configuration that other processes need."""
    local, docker = config.local, config.runtime.docker
    return RunnerSettings(
        {
            "memory_mib": local.memory_mib,
            "vcores": local.vcores,
            "gcores": local.gcores,
            "lock_dir": config.gpuid.lock_dir,
            "docker_host": docker.host,
            "docker_network": docker.network,
            "docker_gpu_mode": docker.gpu_mode,
            "cache_limit_bytes": config.storage.cache_limit_bytes,
            "cache_age_s": config.storage.cache_age_s,
            "payload_cache_limit_bytes": config.storage.payload_cache_limit_bytes,
            "history_age_s": config.history.age_s,
            "history_limit_bytes": config.history.limit_bytes,
            "kill_grace_max_s": config.runtime.kill_grace_max_s,
            "program": list(program),
            "am_attempts": local.am_attempts,
        }
    )
