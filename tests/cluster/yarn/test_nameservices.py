"""An application on two nameservices, whose client has a mount table as its default file system."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.values.report import Cause
from tests.services.hadoop import Hadoop, NoHadoop, _write_xml, read_configuration


@pytest.mark.slow
def test_an_application_reads_and_writes_on_two_nameservices_by_their_mount_table(
    hadoop: Hadoop, tmp_path: Path
) -> None:
    name, user = f"t{os.urandom(4).hex()}", getpass.getuser()
    try:
        second = Hadoop.start(parts=("nn", "dn"), name_cache="name-2")
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    with second:
        files = HdfsFiles(HdfsPlace("hdfs://second", (second.hdfs_url,), Login(user)))
        files.write_atomic(f"hdfs://second/{name}/in/a", b"of the second")
        conf = tmp_path / "conf"
        shutil.copytree(hadoop.configuration, conf)
        table = "fs.viewfs.mounttable.all"
        _write_xml(
            conf / "yarn-site.xml",
            read_configuration(conf / "yarn-site.xml")
            | {
                "fs.defaultFS": "viewfs://all",
                "dfs.nameservices": "first,second",
                "dfs.namenode.rpc-address.first": f"127.0.0.1:{hadoop.ports['nn']}",
                "dfs.namenode.http-address.first": hadoop.hdfs_url.removeprefix("http://"),
                "dfs.ha.namenodes.second": "away,nn",
                "dfs.namenode.http-address.second.away": "127.0.0.1:1",
                "dfs.namenode.http-address.second.nn": second.hdfs_url.removeprefix("http://"),
                f"{table}.link./user": "hdfs://first/user",
                f"{table}.link./there": f"hdfs://second/{name}",
            },
        )
        (tmp_path / "w").mkdir()
        (tmp_path / "w/run.sh").write_text("#!/bin/sh\ncp -r in o1 && cp -r in o2\n")
        file = tmp_path / "app.properties"
        file.write_text(
            "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=run.sh\n[resources]\nmemory=256m\n"
            f"[from_hdfs]\nhdfs=/there/in/*\ninput_path=in\n[to_hdfs one]\noutput_path=o1\nhdfs={name}\n"
            "[to_hdfs two]\noutput_path=o2\nhdfs=viewfs://all/there/out\n"
        )
        config = {"cluster": "yarn", "yarn.conf_dir": str(conf), "yarn.python": sys.executable}
        client = Client(load_config(config))
        with closing(client.engine):
            view = client.wait(client.submit(str(file)), timeout_s=240)
        assert (view.cause, view.diagnostics) == (Cause.SUCCEEDED, "")
        assert [output.target for output in view.outputs] == [
            f"hdfs://127.0.0.1:{hadoop.ports['nn']}/user/{user}/{name}",
            f"hdfs://second/{name}/out",
        ]
        assert files.read_bytes(f"hdfs://second/{name}/out/a", 99) == b"of the second"
        first = HdfsFiles(HdfsPlace("hdfs://first", (hadoop.hdfs_url,), Login(user)))
        assert first.read_bytes(f"hdfs://first/user/{user}/{name}/a", 99) == b"of the second"
        assert files.names(f"hdfs://second/{name}") == ["in", "out"]
