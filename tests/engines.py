"""Every engine that there is, as tests of whole applications see it: one test runs on each, by the fixture `engine`.

Slow ones run on YARN in a full run alone: they are marked `on_yarn_when_full`.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.login import Login
from tests.applications import Process, application_dir, processes, processes_of, run, status, wait_for
from tests.services.hadoop import Hadoop
from tests.tiers import FULL

on_yarn_when_full = pytest.mark.parametrize(
    "engine", ["local", *([pytest.param("yarn", marks=pytest.mark.hadoop)] if FULL else [])], indirect=True
)


class Control(NamedTuple):
    """Address of an ApplicationMaster, and the secret that its tokens are made of."""

    url: str
    secret: str


class Engine:
    """One engine, which the commands use in this test, with the place where its applications' input and output lie.

    Args:
        directory: of the test.
        state_dir: of the embedded engine.
        hadoop: the cluster; None: it is the embedded one.
    """

    def __init__(self, directory: Path, state_dir: Path, hadoop: Hadoop | None) -> None:
        self.name = "local" if hadoop is None else "yarn"
        self.directory, self.state_dir, self.hadoop = directory, state_dir, hadoop
        self._began_ms = time.time_ns() // 1_000_000
        self._files: Any = None
        self.root = str(directory / "files")
        if hadoop is not None:
            from dlapp.hadoop.configuration import read_configuration
            from dlapp.storage.hdfs.staging import HdfsStagingFiles

            self._files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
            self.root = f"/user/{getpass.getuser()}/tests/{time.time_ns():x}"

    def close(self) -> None:
        """End what the test left running, and see that nothing of it stays."""
        if self.hadoop is None:
            left = [path.name for path in self.state_dir.glob("*/applications/application_*")]
        else:
            left = self._unfinished()
            for application in left:
                print(run("dlapp-status", "--json", application).out)  # shown where the test has failed
        for application in left:
            run("dlapp-kill", application)
        if self.hadoop is None:
            wait_for("the end of all processes", lambda: not processes(self.state_dir))
        else:
            what = f"the end of all processes of {', '.join(left)}"
            wait_for(what, lambda: not any(self.processes(application) for application in left))
        if self._files is not None:
            self._files.remove(self._location("").rstrip("/"))
            self._files.close()

    def _unfinished(self) -> list[str]:
        assert self.hadoop is not None
        query = f"user={getpass.getuser()}&startedTimeBegin={self._began_ms}&states=NEW,SUBMITTED,ACCEPTED,RUNNING"
        found = self.hadoop.get(f"{self.hadoop.rm_url}/ws/v1/cluster/apps?{query}")["apps"]
        return [item["id"] for item in (found or {}).get("app", ())]

    def client(self) -> Client:
        """One that uses it."""
        return Client(load_config())

    # ---- input and output ----

    def _location(self, path: str) -> str:
        return f"{self._files.home.rpartition('/user/')[0]}{self.root}/{path}"

    def put(self, path: str, content: str | bytes) -> str:
        """Write a file where input comes from; what to call it in a properties file."""
        data = content.encode() if isinstance(content, str) else content
        if self._files is None:
            Path(self.root, path).parent.mkdir(parents=True, exist_ok=True)
            Path(self.root, path).write_bytes(data)
        else:
            self._files.make(self._location(path).rpartition("/")[0], 0o755)
            self._files.write(self._location(path), data, 0o644)
        return f"{self.root}/{path}"

    def tree(self, path: str) -> dict[str, str]:
        """Relative path -> content of all files of a directory."""
        if self._files is None:
            root = Path(self.root, path)
            return {
                str(item.relative_to(root)): item.read_text(errors="replace")
                for item in sorted(root.rglob("*"))
                if item.is_file()
            }
        found: dict[str, str] = {}

        def walk(below: str) -> None:
            here = self._location(path + below)
            names = self._files.names(here)
            if names == [""]:  # so WebHDFS lists a file
                found[below.lstrip("/")] = self._files.read(here, max_bytes=1 << 26).decode(errors="replace")
                return
            for name in names:
                walk(f"{below}/{name}")

        walk("")
        return found

    def names(self, path: str) -> list[str]:
        """Names in a directory."""
        return os.listdir(Path(self.root, path)) if self._files is None else self._files.names(self._location(path))

    def beside(self, path: str) -> list[str]:
        """Names that lie beside a target and begin with its name."""
        if self._files is None:
            names = [item.name for item in Path(self.root, path).parent.iterdir()]
        else:
            names = self._files.names(self._location(path).rpartition("/")[0])
        return [name for name in names if name.startswith(f"{path.rpartition('/')[2]}.")]

    def remove(self, path: str) -> None:
        """Remove what lies there."""
        if self._files is None:
            if (one := Path(self.root, path)).is_file():
                one.unlink()
            shutil.rmtree(one, ignore_errors=True)
        else:
            self._files.remove(self._location(path))

    # ---- what there is of an application ----

    def processes(self, application: str) -> list[Process]:
        """The living processes of an application's containers: am, task, payload (all else in them).

        Of the embedded engine those of all applications, but its runner: an ApplicationMaster that was started before
        it was needed does not show whose it became.
        """
        if self.hadoop is None:
            return [process for process in processes(self.state_dir) if process.role != "runner"]
        return processes_of(application)

    def master(self, application: str) -> int:
        """Return the process of its ApplicationMaster."""
        if self.hadoop is None:
            return int(json.loads((application_dir(self.state_dir, application) / "am.json").read_text())["pid"])

        def look() -> list[int]:
            found = [process.pid for process in self.processes(application) if process.role == "am"]
            return found if len(found) == 1 else []  # a child that it forks has its command line at first

        return wait_for("its ApplicationMaster", look)[0]

    def kill_master(self, application: str) -> None:
        """SIGKILL its ApplicationMaster as soon as its containers outlive that.

        1. A NodeManager tells the ResourceManager once a second which containers run.
        2. Those that it has not heard of when an ApplicationMaster dies, the ResourceManager takes away.
        """
        if self.hadoop is not None:
            from dlapp.values.ids import ContainerId
            from tests.cluster.yarn.on_yarn import until_heard_of

            living = [
                container["container_id"]
                for container in status(application)["containers"]
                if container["finished_ms"] is None
            ]
            until_heard_of(self.hadoop, *map(ContainerId.from_text, living))
        os.kill(self.master(application), signal.SIGKILL)

    def runners(self) -> list[Process]:
        """The embedded engine's runner, where it runs."""
        return [process for process in processes(self.state_dir) if process.role == "runner"]

    def log_page(self, application: str, container: str, stream: str) -> str:
        """A pattern for where ``dlapp-status`` says that the log of a container is, once the application has ended."""
        if self.hadoop is None:
            home = application_dir(self.state_dir, application)
            return re.escape(f"file://{home}/containers/{container}/{stream}")
        nodes = "|".join(map(re.escape, self.hadoop.nodes))
        server = re.escape(f"{self.hadoop.timeline_url}/applicationhistory/logs")
        return rf"{server}/({nodes})/{container}/{container}/{getpass.getuser()}/{stream}/\?start=-4096"

    def is_settled(self, application: str) -> bool:
        """Return whether the outputs of an application that has ended are settled; on YARN who looks at it does that.

        An ApplicationMaster that is killed when it has written the history leaves its staging directory to the user's
        next submission.
        """
        if self.hadoop is None:
            return True
        home = f"{self._files.home}/.dlapp"
        is_staged = bool(status(application)) and application in self._files.names(f"{home}/staging")
        return not is_staged or f"{application}.json" in self._files.names(f"{home}/history")

    def control(self, application: str) -> Control:
        """Return where its ApplicationMaster listens, and its secret: on YARN that is in its credentials alone."""
        if self.hadoop is None:
            home = application_dir(self.state_dir, application)
            url = json.loads((home / "am.json").read_text())["control_url"]
            return Control(url, json.loads((home / "secrets.json").read_text())["control_secret"])
        from dlapp.cluster.yarn.am_plan import AmPlan
        from dlapp.hadoop.tokens import Credentials

        staging = f"{self._files.home}/.dlapp/staging/{application}"
        url = json.loads(self._files.read(f"{staging}/am.json", max_bytes=1 << 26))["control_url"]
        master = self.master(application)
        variables = dict(text.partition("=")[::2] for text in Path(f"/proc/{master}/environ").read_text().split("\0"))
        credentials = Credentials.decode(Path(variables["HADOOP_TOKEN_FILE_LOCATION"]).read_bytes())
        return Control(url, AmPlan.from_credentials(credentials).secrets.control_secret)
