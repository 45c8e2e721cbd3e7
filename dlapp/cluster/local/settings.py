"""Settings of a runner and of an ApplicationMaster: parts of the configuration of the command that started them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlapp.config import Config


class RunnerSettings:
    """Parts of the configuration, in a form that is passed to other processes.

    It is a plain class, because the definition of a dataclass takes longer than a runner's work.

    Args:
        memory_mib, vcores, gcores: amounts for all applications; None: the machine's.
        am_attempts: maximum number of ApplicationMasters of an application, one after the other.
        program: how dlapp's own processes are started; replaced in tests.
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
        values = {"am_attempts": 1, **values}  # applications of an earlier version have no such value, and one attempt
        for name in RunnerSettings.__annotations__:
            setattr(self, name, values[name])
        self.program = tuple(values["program"])

    def to_json(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))


def settings_of(config: Config, program: Sequence[str]) -> RunnerSettings:
    """Return the settings for other processes from a configuration."""
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
