"""A user's use of the embedded engine: the state directory, the caller's rows, and the amounts of this machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from dlapp.cluster.local import views
from dlapp.cluster.local.attempts import is_alive
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.row import DONE, RUNNING, WAITING, ApplicationRow
from dlapp.cluster.local.runner.election import ensure_runner, is_runner_alive, wake_runner
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.cluster.local.settings import RunnerSettings, settings_of
from dlapp.cluster.local.state import StateDir, open_state
from dlapp.errors import ConfigError, Denied, DlappError, NotFound
from dlapp.scheduler.amounts import Amounts
from dlapp.system.machine import boot_id
from dlapp.system.owners import user_name
from dlapp.system.processes.spawn import PROGRAM
from dlapp.value import Closeable

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.locations import HdfsPlace
    from dlapp.scheduler.values import Policy


class LocalSession(Closeable):
    """A user's use of this machine's engine.

    Args:
        config: the configuration.
        program: how dlapp's own processes are started; replaced in tests.
        acting_in: the state directory of the user that this child process of root's runs as; None: the configured one.
        nvml: calls NVML; None: a process of its own.

    Attributes:
        state: the directory of the engine's state.
        is_others: that directory is another user's, and the caller is root.
        is_acting: this is such a child process; it starts no runner and no program.

    Raises:
        ConfigError: the state directory cannot be used (for example on a network file system).
        Denied: it is another user's.
    """

    def __init__(
        self,
        config: Config,
        *,
        program: Sequence[str] = PROGRAM,
        acting_in: StateDir | None = None,
        nvml: NvmlProcess | None = None,
    ) -> None:
        self.config, self.program = config, program
        self.settings: RunnerSettings = settings_of(config, program)
        local = config.local
        self.state: StateDir = acting_in or open_state(local.state_dir, shared=local.shared, of_others=True)
        self.is_acting = acting_in is not None
        self.uid = os.geteuid()
        self.is_others = self.state.uid != self.uid
        self._by_thread = threading.local()
        self._given_nvml = nvml

    def close(self) -> None:
        """Close this thread's database connection."""
        if (queue := getattr(self._by_thread, "queue", None)) is not None:
            queue.close()

    def queue(self) -> Queue:
        """Return this thread's connection to the caller's rows."""
        queue: Queue | None = getattr(self._by_thread, "queue", None)
        if queue is None:
            queue = self._by_thread.queue = Queue(self.state)
        return queue

    def refuse_if_others(self) -> None:
        """Raise Denied if the state directory is another user's."""
        if self.is_others:
            name = user_name(self.state.uid)
            raise Denied(
                f"local.state_dir: {self.state.path} is {name}'s: root may inspect it and end its applications; to "
                "submit, run this as that user, or set HOME, as sudo -H does"
            )

    # ---- rows ----

    @property
    def has_no_rows(self) -> bool:
        """Return whether there is no database; a process that acts for another user creates none."""
        return self.is_acting and not os.path.lexists(self.state.database)

    def row(self, application_id: str) -> ApplicationRow:
        """Return the row of one of the caller's applications. Raises NotFound."""
        if self.has_no_rows or (row := self.queue().row(application_id)) is None:
            raise NotFound(f"{application_id} is not known on this machine (dlapp-list -a shows what is)")
        return row

    def is_foreign(self, application_id: str) -> bool:
        """Return whether an application is not the caller's, but may belong to another user of a shared directory."""
        return self.state.shared and self.queue().row(application_id) is None

    def own_view(self, application_id: str) -> dict[str, Any]:
        """Return the view of one of the caller's applications as JSON. Raises NotFound."""
        alive, has_runner, row = self._inspect(application_id)
        waiting = self.waiting() if row.state == WAITING else QueueOrder()
        application_dir = self.state.application(row.id)
        return views.view_of(row, application_dir, boot_id(), waiting, alive=alive, has_runner=has_runner)

    def _inspect(self, application_id: str) -> tuple[bool, bool, ApplicationRow]:
        """Return whether an application is alive, whether it had a runner otherwise, and its row. Raises NotFound."""
        row = self.row(application_id)
        if row.state != RUNNING:
            return False, False, row
        alive, has_runner = self.is_alive(row.id), False
        if not alive:
            has_runner = is_runner_alive(self.state, self.state.uid)
            alive = self.is_alive(row.id)
        return alive, has_runner, self.row(application_id)

    def is_alive(self, application_id: str) -> bool:
        """Return whether a process of one of the caller's applications exists."""
        return is_alive(self.state.application(application_id))

    def waiting(self) -> QueueOrder:
        """Return all waiting applications in queue order."""
        from dlapp.cluster.local.capacity import capacity_of
        from dlapp.cluster.local.client.queue_order import order_of

        rows = self.queue().rows("state IN ('waiting', 'running')")
        return order_of(self.state, rows, readable_policy(), partial(capacity_of, self.settings, 0))

    # ---- the runner ----

    def ensure_runner(self, *, wake: bool = True, stay: bool = False) -> None:
        """Start the caller's runner if none is running; see `dlapp.cluster.local.runner.election.ensure_runner`."""
        ensure_runner(self.state, self.settings, wake=wake, stay=stay)

    def nudge_runner(self) -> None:
        """Let the caller's runner look at its rows now; start one if there is none."""
        with contextlib.suppress(DlappError, OSError):
            if self.is_acting:
                wake_runner(self.state, self.uid)
            else:
                self.ensure_runner()

    def is_settled(self, row: ApplicationRow) -> bool:
        """Return whether the runner has settled an ended application."""
        # A child that acts for root starts no runner. The next command of the user starts one, which settles the row.
        return self.row(row.id).state == DONE or (self.is_acting and not is_runner_alive(self.state, self.uid))

    # ---- this machine ----

    @cached_property
    def hdfs(self) -> tuple[HdfsPlace | None, str]:
        """Return the HDFS configured on this machine, or else why there is none."""
        from dlapp.hadoop.configuration import read_configuration
        from dlapp.login import own_login

        try:
            site = read_configuration(self.config.yarn.conf_dir)
            return site.hdfs(own_login(), self.config.storage.hdfs), ""
        except ConfigError as error:
            return None, str(error)  # an error only for paths on HDFS

    def capacity(self) -> Amounts:
        """Return the usable capacity of this machine: memory [MiB], vcores, gcores."""
        from dlapp.cluster.local.capacity import capacity_of

        return capacity_of(self.settings, self.gcores())

    def gcores(self) -> int:
        """Return the number of GPUs that applications can have; 0 while NVIDIA's driver does not work."""
        return self.usable(self.gpus()[0])

    def has_whole_gpus(self) -> bool:
        """Return whether ``gcores=auto`` means one GPU: slices are given only to those who ask for them."""
        if not (devices := self.gpus()[0]):
            return False
        from dlapp.gpuid.needs import PLAIN, count_for

        return count_for(PLAIN, devices) > 0

    def usable(self, devices: Sequence[Device]) -> int:
        """Return how many of this machine's GPUs and slices applications may have."""
        return len(devices) if self.settings.gcores is None else min(len(devices), self.settings.gcores)

    def gpus(self) -> tuple[Sequence[Device], DlappError | None]:
        """Return the GPUs and slices of this machine, none if its applications may have none, and why they are not
        known if the driver does not work."""
        if self.settings.gcores == 0:
            return (), None
        from dlapp.gpuid.health.nvml import NvmlError, has_library

        if not has_library():
            return (), None
        from dlapp.gpuid.stores.machine import MachineLedger

        try:
            return MachineLedger(self.settings.lock_dir, nvml=self.nvml).devices(), None
        except NvmlError as error:
            return (), error

    @cached_property
    def nvml(self) -> NvmlProcess:
        """Return what calls NVML."""
        from dlapp.gpuid.health.nvml_subprocess import NvmlProcess

        return self._given_nvml or NvmlProcess()


def readable_policy() -> Policy:
    """Return the operator's policy, or the defaults if it is invalid: the runner then starts nothing and logs why."""
    from dlapp.cluster.local.queue_state import read_policy

    try:
        return read_policy()
    except ConfigError:
        from dlapp.scheduler.values import Policy

        return Policy()
