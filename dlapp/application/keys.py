"""Sections and keys of a properties file: the only table of them.

Each key is a row: where it stands, its form, the field of the spec that its value sets, its default and its line of
documentation. Parsing, defaults, keywords of Python, docs/properties.md and the schema for editors are derived from it.
A key that several sections have is one row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dlapp.application import forms
from dlapp.application.forms import Form
from dlapp.config import read_events
from dlapp.sweep import spec as sweep
from dlapp.sweep.text_forms import (
    OPTUNA_PRUNERS,
    read_asha,
    read_distribution,
    read_metric,
    read_sampler,
)
from dlapp.system.text import shown
from dlapp.values import spec
from dlapp.values.access import AccessList, read_access_list
from dlapp.values.idle_guard import IdleGuard, read_idle_guard
from dlapp.values.rules import Limit
from dlapp.values.start_conditions import read_after

NOT_BUILT = "is not built yet"
ENV = "env."
CACHE = "cache."
LINK = "link."
"""Prefixes of keys of ``[application]`` that set a variable, the path of a cache, or a link, each."""
GRID = "grid."
RANDOM = "random."
"""Prefixes of keys of ``[sweep]`` that set a parameter each."""
NAME = "NAME"
"""Stands for the user's part of a key's name: ``env.NAME``."""
OF_ROLES = ("role", "service")
"""Sections that describe a role; they always have a NAME."""
NAMED = (*OF_ROLES, "from_hdfs", "to_hdfs")
"""Sections that may appear several times, each with another NAME: ``[from_hdfs train]``."""
REQUIRED_SECTIONS = ("application",)
_NOT_IN_A_FILE = re.compile(r"[\x00\ud800-\udfff]")
_OF_A_CONTAINER = ("resources", *OF_ROLES)
_ORDER = ("application", "resources", *OF_ROLES, "from_hdfs", "to_hdfs", "checkpoint", "sweep")


class PropertyKey(NamedTuple):
    """One key.

    Args:
        names: section -> name of the key in it; the first section is the one whose documentation describes it.
        form: how its value is read.
        meaning: one line of documentation, in Markdown.
        default: as documented, in Markdown; where sections differ, section -> default. Empty: nothing.
        field: the field of the section's value that it sets (`dlapp.application.build`); a field of a value in it
            after a dot. Empty: a special one.
        limit: of its number.
        required: a section without it is refused.
        may_be_empty: an empty value is valid.
        keeps_quotes: quotes around the whole value are part of it.
        is_built: False for a key that is known, and refused.
        keyword: its name in Python, if that is another one.
    """

    names: Mapping[str, str]
    form: Form
    meaning: str = ""
    default: str | Mapping[str, str] = ""
    field: str = ""
    limit: Limit | None = None
    required: bool = False
    may_be_empty: bool = False
    keeps_quotes: bool = False
    is_built: bool = True
    keyword: str = ""

    def read(self, text: str) -> Any:
        """Return the value of the text of a file.

        Raises:
            ValueError: the value is invalid; the message is the problem.
            SpecError: the same.
        """
        if not self.is_built:
            raise ValueError(NOT_BUILT)
        form = self.form
        if not form.lines and "\n" in text:
            raise ValueError("continues in the next line, which begins with a blank; this key takes one line")
        if not form.splits and text[:1] in ("'", '"') and text.find(text[0], 1) < 0:
            raise ValueError(f"the quote {text[0]} before {shown(text[1:21])} does not close")
        bare = without_quotes(text)
        if not bare and not self.may_be_empty:
            raise ValueError("is empty")
        return self._limited(form.read(text if self.keeps_quotes else bare))

    def take(self, value: Any) -> Any:
        """Return the value of an object of Python, or of its text, which has no further quotes.

        Raises:
            ValueError: the value is invalid; the message is the problem.
            SpecError: the same.
        """
        if not self.is_built:
            raise ValueError(NOT_BUILT)
        try:
            taken = self.form.read(value) if isinstance(value, str) and self.form.takes_text else self.form.take(value)
            for text in taken if isinstance(taken, tuple) else (taken,):
                if isinstance(text, str) and (found := _NOT_IN_A_FILE.search(text)):
                    raise ValueError(f"has the character U+{ord(found[0]):04X} in it")
            return self._limited(taken)
        except TypeError as wanted:
            raise ValueError(f"is {value!r}, it must be {wanted}") from None

    def default_in(self, section: str) -> str:
        """Return the documented default in a section."""
        return self.default if isinstance(self.default, str) else self.default.get(section, "")

    def _limited(self, value: Any) -> Any:
        if self.limit is not None and value is not None and (problem := self.limit.problem(value)):
            raise ValueError(problem)
        return value


def _in(*sections: str, **names: str) -> dict[str, str]:
    """Return section -> name of a key that has the same name in all sections, which is the first argument."""
    name, *others = sections
    return {**dict.fromkeys(others, name), **names}


def _application(name: str) -> dict[str, str]:
    return {"application": name}


KEYS: tuple[PropertyKey, ...] = (
    PropertyKey(
        _application("appname"),
        forms.TEXT,
        "the displayed name",
        "required",
        field="appname",
        required=True,
        keeps_quotes=True,
    ),
    PropertyKey(
        _application("user_dev_workspace_path"),
        forms.PATH,
        "the directory with your program; dlapp packs it, and unpacks it in each container",
        "required for a script",
        field="workspace",
        keyword="workspace",
    ),
    PropertyKey(
        {"application": "user_shell_script", "role": "script", "service": "script"},
        forms.PATH,
        "the start script, relative to the workspace",
        {
            "application": "required, or `command`",
            "role": "the program of `[application]`, with its arguments",
            "service": "required, or `command`",
        },
        field="script",
        keyword="script",
    ),
    PropertyKey(
        _in("command", "application", *OF_ROLES),
        forms.COMMAND,
        "a program with its arguments, in place of a script: split like a POSIX shell does, and run without a shell; "
        "without a workspace it starts in an empty directory",
        field="command",
    ),
    PropertyKey(
        {"application": "user_shell_args", "role": "args", "service": "args"},
        forms.ARGUMENTS,
        "arguments of the script or command, split like a POSIX shell does, `$'\\n'` understood, nothing expanded "
        "([below](#user_shell_args))",
        {
            "application": "none",
            "role": "those of `[application]`, if the role has no program of its own",
            "service": "none",
        },
        field="args",
        may_be_empty=True,
        keyword="args",
    ),
    PropertyKey(
        _application("username"),
        forms.USERNAME,
        "the displayed user; grants no rights. On a cluster the Hadoop user ([yarn.md](yarn.md))",
        "the operating system's user",
        field="username",
    ),
    PropertyKey(
        _in("docker_image", "application", *OF_ROLES),
        forms.IMAGE,
        "run the program in this image",
        {
            "application": "a plain process",
            "role": "that of `[application]`",
            "service": "that of `[application]`",
        },
        field="docker_image",
    ),
    PropertyKey(
        _in("workdir", "application", *OF_ROLES),
        forms.WORKDIR,
        "the directory of the image in which `command` starts; the workspace is at `/workspace`",
        {
            "application": "the workspace",
            "role": "that of `[application]`",
            "service": "that of `[application]`",
        },
        field="workdir",
    ),
    PropertyKey(
        _in("gpu_capabilities", "application", *OF_ROLES),
        forms.CAPABILITIES,
        "parts of NVIDIA's driver for programs in Docker, in addition to `compute` and `utility`: `video`, `graphics`, "
        "`display`, `compat32`, `ngx`, or `all`, if the node allows them ([docker.md](docker.md#driver-capabilities))",
        {
            "application": "those that the image names",
            "role": "that of `[application]`",
            "service": "that of `[application]`",
        },
        field="gpu_capabilities",
    ),
    PropertyKey(
        _application("network"),
        forms.NETWORK,
        "Docker's network: `bridge`, `none`, `host` or the name of a network, if the node allows it "
        "([docker.md](docker.md#the-network))",
        "`runtime.docker.network`, `bridge`",
        field="network",
    ),
    PropertyKey(
        _application("user_dev_workspace_exclude_list"),
        forms.LIST,
        "gitignore patterns of files to leave out of the archive, separated by commas or lines",
        "none",
        field="exclude",
        may_be_empty=True,
        keyword="exclude",
    ),
    PropertyKey(
        _application("user_dev_workspace_exclude_defaults"),
        forms.BOOLEAN,
        "also leave out `.git`, `.venv`, `__pycache__` and `node_modules`, at any depth; `!.git` in the list above "
        "packs one of them. The launcher prints what it left out",
        "`true`",
        field="exclude_defaults",
        keyword="exclude_defaults",
    ),
    PropertyKey(
        _application("max_runtime"),
        forms.DURATION,
        "soft-kill the application after this time; it counts as timed out ([its output](payload.md#output))",
        "no limit",
        field="max_runtime_s",
        limit=spec.POSITIVE,
    ),
    PropertyKey(
        _application("kill_grace"),
        forms.DURATION,
        "time between SIGTERM and SIGKILL",
        "`30s`",
        field="kill_grace_s",
        limit=spec.DURATION,
    ),
    PropertyKey(
        _application("output_patience"),
        forms.DURATION,
        "how long output waits for space, or for a file system that does not answer "
        "([data.md](data.md#no-space-for-the-output))",
        "`1d`",
        field="output_patience_s",
        limit=spec.DURATION,
    ),
    PropertyKey(
        _application("service_patience"),
        forms.DURATION,
        "how long a container waits for a service that does not answer, before its program runs: HDFS, ZooKeeper, a "
        "registry, on one machine also Docker ([below](#service_patience))",
        "`1h`",
        field="service_patience_s",
        limit=spec.DURATION,
    ),
    PropertyKey(
        _application("hang_timeout"),
        forms.DURATION,
        "a program that [reports progress](payload.md#report-progress-and-metrics) fails if it then reports nothing "
        "for this time ([below](#hang_timeout))",
        "none",
        field="hang_timeout_s",
        limit=spec.POSITIVE,
    ),
    PropertyKey(
        _application("hang_idle"),
        forms.BOOLEAN,
        "`true`: a program that never reports counts as hanging if it uses neither CPU nor GPU for `hang_timeout` "
        "([below](#hang_timeout))",
        "`false`",
        field="hang_idle",
    ),
    PropertyKey(
        _application("idle_guard"),
        forms.value_of(read_idle_guard, "UTILISATION,WINDOW,ACTION or off", IdleGuard),
        "`UTILISATION,WINDOW,ACTION`: the action on idle GPUs: `warn`, `notify` or `stop`; `off`: none "
        "([below](#idle_guard))",
        "`defaults.idle_guard`, `off`",
        field="idle_guard",
    ),
    PropertyKey(
        _application("notify"),
        forms.listed(read_events, "events"),
        "the events that notify you, or `all` or `none` ([notifications.md](notifications.md))",
        "`notify.events`",
        field="notify",
    ),
    PropertyKey(
        _application("keep_failed"),
        forms.DURATION,
        "how long dlapp keeps the container of a failed program, so that you can inspect it with `dlapp-exec`: `30m`, "
        "up to `1d` ([below](#keep_failed))",
        "`0s`",
        field="keep_failed_s",
        limit=spec.KEEP_FAILED,
    ),
    PropertyKey(
        _application("after"),
        forms.listed(read_after, "ids"),
        "`ID[:ok\\|any\\|failed], ...`: the application starts after the end of these applications "
        "([below](#after-hold-and-requeue))",
        "none",
        field="after",
        may_be_empty=True,
    ),
    PropertyKey(
        _application("hold"),
        forms.BOOLEAN,
        "`true`: wait for [`dlapp-release`](commands.md#dlapp-release-id); the same as `dlapp-launcher --hold`",
        "`false`",
        field="hold",
    ),
    PropertyKey(
        _application("requeue"),
        forms.BOOLEAN,
        "`true`: on one machine, start the application again if the machine was restarted while it ran "
        "([below](#after-hold-and-requeue))",
        "`false`",
        field="requeue",
    ),
    PropertyKey(
        _application("on_container_failure"),
        forms.member(spec.ContainerFailure),
        "`stop`: if a container fails, end the others; the application has failed. `continue`: the others finish "
        "([below](#on_container_failure))",
        "`stop`",
        field="on_container_failure",
    ),
    PropertyKey(
        _application("kind"),
        forms.member(spec.Kind),
        "`batch`; `service`: an application of services only, which runs until it is ended "
        "([services.md](services.md#an-application-of-services))",
        "`batch`",
        field="kind",
    ),
    PropertyKey(
        _application("tensorboard"),
        forms.TENSORBOARD,
        "`true`: run a TensorBoard on the output, or on the checkpoint's directory, while the program runs; a path: on "
        "this directory of the workspace ([services.md](services.md#tensorboard))",
        "`false`",
    ),
    PropertyKey(
        _application(f"{LINK}{NAME}"),
        forms.LINK_TARGET,
        "`ROLE:PORT/path`: a link to a web page of a container while it runs ([services.md](services.md#links))",
        "none",
        keyword="links",
    ),
    PropertyKey(
        _application("view_acl"),
        forms.value_of(read_access_list, "users and groups", AccessList),
        "`USER,USER GROUP,GROUP`: other users who may see the application and reach the ports of its programs "
        "([below](#view_acl-and-modify_acl))",
        "you alone",
        field="view_acl",
    ),
    PropertyKey(
        _application("modify_acl"),
        forms.value_of(read_access_list, "users and groups", AccessList),
        "in the same form, other users who may end it, and on a cluster release it ([below](#view_acl-and-modify_acl))",
        "you alone",
        field="modify_acl",
    ),
    PropertyKey(
        _application(f"{CACHE}{NAME}"),
        forms.CACHE_PATH,
        "a directory that stays on the node between runs, for models and packages; its path in Docker "
        "([data.md](data.md#caches-of-programs))",
        "none",
        keyword="caches",
    ),
    PropertyKey(
        _in(f"{ENV}{NAME}", "application", *OF_ROLES),
        forms.VARIABLE,
        "an environment variable of the program; dlapp never shows its value. In a role it is for this role only, "
        "or has another value than in `[application]`; `--env` replaces both",
        may_be_empty=True,
        keyword="env",
    ),
    PropertyKey(
        _application("env_file"),
        forms.PATH,
        "a file of `NAME=value` lines, mode 0600",
    ),
    PropertyKey(
        _application("pass_env"),
        forms.VARIABLES,
        "names of variables that the script gets from the launcher's environment: `OMP_NUM_THREADS, HF_HOME`; the "
        "launcher prints a note if one is not set",
    ),
    PropertyKey(
        _application("project"),
        forms.TEXT,
        "a label in dlapp-status and dlapp-list; on a cluster also a tag of YARN (`project:NAME`)",
        field="project",
    ),
    PropertyKey(
        _application("comment"),
        forms.TEXT,
        "a sentence of yours on this run, kept with its specification (`Client.submission`, `--print-spec`)",
        "none",
        field="comment",
    ),
    PropertyKey(
        _application("tags"),
        forms.LIST,
        "labels in dlapp-status and dlapp-list; on a cluster also tags of YARN",
        field="tags",
    ),
    PropertyKey(
        _application("framework"),
        forms.member(spec.Framework),
        "the programs train one network together: `tensorflow`, `pytorch`, `torchrun`, `jax`, `mpi`, `dmlc` or "
        "`none` ([frameworks.md](frameworks.md), [distributed.md](distributed.md))",
        "`none`",
        field="framework",
    ),
    PropertyKey(
        _application("gang"),
        forms.member(spec.Gang),
        "which programs start together: `all`, `role` or `none` ([below](#gangs))",
        "`all` with a `[role NAME]` or a `framework`, else `none`",
        field="gang",
    ),
    PropertyKey(
        _application("gang_window"),
        forms.DURATION,
        "how long a gang may hold some of its containers and GPUs while it waits for the others; `90s`, `10m`, `1h`",
        "`10m`",
        field="gang_window_s",
        limit=spec.DURATION,
    ),
    PropertyKey(
        _application("failure_settle"),
        forms.DURATION,
        "how long the other programs of a gang may take to end before the last failure ends the application "
        "([below](#gangs))",
        "`30s`",
        field="failure_settle_s",
        limit=spec.DURATION,
    ),
    PropertyKey(
        _application("success"),
        forms.SUCCESS,
        "the roles that decide the end of the application ([below](#what-decides))",
        "`all`; [TensorFlow](distributed.md#tensorflow) has another default",
        field="success",
    ),
    PropertyKey(
        _application("queue"),
        forms.QUEUE,
        "the queue of the cluster; without effect on one machine",
        field="queue",
    ),
    PropertyKey(
        _application("priority"),
        forms.COUNT,
        "the highest starts first; on one machine among your own applications, and against those of other users within "
        "the operator's limits ([team.md](team.md#the-order))",
        "0",
        field="priority",
        limit=spec.PRIORITY,
    ),
    PropertyKey(
        {"resources": "containers", "role": "instances", "service": "instances"},
        forms.COUNT,
        "the number of containers; all run at the same time, so the application waits until all fit. A file with roles "
        "has `instances` in each of them, and no `containers`",
        "`1`",
        field="instances",
        limit=spec.INSTANCES,
        keyword="containers",
    ),
    PropertyKey(
        _in("memory", *_OF_A_CONTAINER),
        forms.MEMORY,
        "`4g`, `4GB`, `1.5g`, `512m`, in powers of 1024; a bare number is MiB, and below 64 the launcher prints a "
        "warning (`did you mean 4g?`)",
        {"resources": "`4g`", "role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="resources.memory_mib",
        limit=spec.AMOUNT,
    ),
    PropertyKey(
        _in("vcores", *_OF_A_CONTAINER),
        forms.COUNT,
        "cores",
        {"resources": "`1`", "role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="resources.vcores",
        limit=spec.AMOUNT,
    ),
    PropertyKey(
        _in("gcores", *_OF_A_CONTAINER),
        forms.GCORES,
        "GPUs",
        {
            "resources": "`auto`: 1 where there are GPUs, else 0",
            "role": "that of `[resources]`",
            "service": "that of `[resources]`",
        },
        field="resources.gcores",
        limit=spec.GCORES,
    ),
    PropertyKey(
        _in("retries", "resources", "role"),
        forms.COUNT,
        "how often a container starts again after its script failed; see below",
        {"resources": "`0`", "role": "that of `[resources]`"},
        field="retries",
        limit=spec.RETRIES,
    ),
    PropertyKey(
        _in("placement", "resources"),
        forms.choice("pack", "spread"),
        "the GPUs of a container: `pack` close together, `spread` far apart and far from those in use",
        "`pack`",
    ),
    PropertyKey(
        _in("gpu", *_OF_A_CONTAINER),
        forms.GPU_KIND,
        "the kind of GPUs: `whole`; `mig`: one slice of a GPU that is split by MIG; `mig:1g.10gb`: a slice of this "
        "profile, as nvidia-smi names it ([gpu.md](gpu.md#slices-and-memory))",
        {"resources": "`whole`", "role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="placement.gpu",
    ),
    PropertyKey(
        _in("gpu_memory", *_OF_A_CONTAINER),
        forms.GPU_MEMORY,
        "the least memory of each GPU as its maker counts it, in powers of 1000: `40g`, `24GB`; the GPU with the least "
        "memory that is enough is taken",
        {"role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="placement.gpu_memory_mb",
        limit=spec.GPU_MEMORY,
    ),
    PropertyKey(
        _in("cuda_visible_devices", *_OF_A_CONTAINER),
        forms.choice(*spec.VISIBLE_DEVICES),
        "how `CUDA_VISIBLE_DEVICES` names the GPUs: `uuid`, or `index` for programs that need numbers "
        "([payload.md](payload.md#gpus)); `auto` is `uuid`, and in Docker leaves the variable unset",
        {"resources": "`auto`", "role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="placement.cuda_visible_devices",
    ),
    PropertyKey(
        _in("nodes", *_OF_A_CONTAINER),
        forms.NODES,
        "the nodes of a cluster that containers may run on, by their names in YARN; without effect on one machine",
        {"role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="placement.nodes",
    ),
    PropertyKey(
        _in("exclude_nodes", *_OF_A_CONTAINER),
        forms.NODES,
        "the nodes that they may not run on",
        {"role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="placement.exclude_nodes",
    ),
    PropertyKey(
        _in("node_label", *_OF_A_CONTAINER),
        forms.LABEL,
        "the label of the nodes that they run on",
        {"role": "that of `[resources]`", "service": "that of `[resources]`"},
        field="placement.node_label",
    ),
    PropertyKey(_in("prefer_nodes", "resources"), forms.TEXT, is_built=False),
    PropertyKey(_in("gpu_model", "resources"), forms.TEXT, is_built=False),
    PropertyKey(
        _in("depends_on", *OF_ROLES),
        forms.DEPENDENCIES,
        "the roles that this role waits for, separated by commas ([below](#waiting-for-other-roles))",
        "none",
        field="depends_on",
    ),
    PropertyKey(
        _in("service", "role"),
        forms.BOOLEAN,
        "`true`: the role serves the others; it does not decide, and ends with them",
        "`false`",
        field="service",
    ),
    PropertyKey(
        _in("ports", *OF_ROLES),
        forms.COUNT,
        "the number of TCP ports of its node that each container gets (at most 100); they are in the "
        "[roster](payload.md#finding-the-other-containers). In Docker the network is then `host`",
        {
            "role": "`0`; with a `framework` `1`, with `mpi` [more](distributed.md#open-mpi)",
            "service": "`1`",
        },
        field="ports",
        limit=spec.PORTS,
    ),
    PropertyKey(
        _in("on_failure", "role"),
        forms.member(spec.RoleFailure),
        "after a failure of the program, if `retries` are left: `restart` the container alone, or `restart_gang`; "
        "`fail`: the application fails at once, also if the role is a service and with `on_container_failure=continue`",
        "`restart_gang` in a gang, else `restart`",
        field="on_failure",
    ),
    PropertyKey(
        _in("ready", "service"),
        forms.READY,
        "when it is ready: `port`, `http:/path` or `report` ([services.md](services.md#ports-and-readiness))",
        "`port`",
        field="ready",
    ),
    PropertyKey(
        _in("max_idle", "service"),
        forms.DURATION,
        "with `kind=service`: the application ends after this time without a connection",
        "never",
        field="max_idle_s",
        limit=spec.POSITIVE,
    ),
    PropertyKey(
        _in("hdfs", "from_hdfs"),
        forms.LOCATIONS,
        "the sources, one per line; patterns such as `train/*` are allowed",
        "required",
        field="sources",
        required=True,
    ),
    PropertyKey(
        _in("input_path", "from_hdfs"),
        forms.PATH,
        "the destination, relative to the workspace; dlapp creates it",
        "required",
        field="input_path",
        required=True,
    ),
    PropertyKey(
        _in("archive", "from_hdfs"),
        forms.choice("keep", "unpack"),
        "`unpack`: unpack the files, which are tar or zip archives; or `keep`",
        "`keep`",
    ),
    PropertyKey(
        _in("mode", "from_hdfs"),
        forms.choice("copy", "list", "feed", "mount"),
        "`list`: fetch nothing, and write a file `input_path` with the name of each file in a line; `feed`: [send the "
        "records while the program runs](data.md#feed); `mount`: [mount a directory](data.md#mounted-input); or `copy`",
        "`copy`",
    ),
    PropertyKey(
        _in("shard", "from_hdfs"),
        forms.BOOLEAN,
        "each container gets a part of the files; with `mode=feed` each container of a role",
        "`false`; `true` with `mode=feed`",
        field="shard",
    ),
    PropertyKey(
        _in("optional", "from_hdfs"),
        forms.BOOLEAN,
        "a source without a match is not an error; `input_path` is then empty",
        "`false`",
        field="optional",
    ),
    PropertyKey(
        _in("feed.format", "from_hdfs"),
        forms.member(spec.FeedFormat),
        "with `mode=feed`, the kind of record: `files`, `lines`, `tar`, `tfrecord` or `parquet`",
        "`files`",
        field="feed.format",
    ),
    PropertyKey(
        _in("feed.epochs", "from_hdfs"),
        forms.COUNT,
        "with `mode=feed`, how often all records are sent",
        "`1`",
        field="feed.epochs",
        limit=spec.EPOCHS,
    ),
    PropertyKey(
        _in("feed.shuffle", "from_hdfs"),
        forms.COUNT,
        "with `mode=feed`, a whole number, the seed of the order; each epoch has a different order",
        "by name",
        field="feed.shuffle",
        limit=spec.FEED_SEED,
    ),
    PropertyKey(
        _in("feed.buffer", "from_hdfs"),
        forms.SIZE,
        "with `mode=feed`, the limit of data fetched ahead in each container",
        "`1g`",
        field="feed.buffer_bytes",
        limit=spec.FEED_BUFFER,
    ),
    PropertyKey(
        _in("output_path", "to_hdfs"),
        forms.PATH,
        "the file or directory to store, relative to the workspace; not a pattern",
        "required",
        field="output_path",
        required=True,
    ),
    PropertyKey(_in("hdfs", "to_hdfs"), forms.LOCATION, "the target", "required", field="target", required=True),
    PropertyKey(
        _in("overwrite", "to_hdfs"),
        forms.BOOLEAN,
        "replace an existing target, in one step when the new output is complete; files that dlapp did not write are "
        "kept beside it ([payload.md](payload.md#output))",
        "`false`",
        field="overwrite",
    ),
    PropertyKey(
        _in("keep_previous", "to_hdfs"),
        forms.COUNT,
        "with `overwrite=true`: how many former outputs are kept beside the target ([data.md](data.md#former-outputs))",
        "`0`",
        field="keep_previous",
        limit=spec.PREVIOUS,
    ),
    PropertyKey(
        _in("sync", "to_hdfs"),
        forms.DURATION,
        "while the script runs, copy new and changed files to `<target>.live/` at this interval, such as `60s` "
        "([data.md](data.md#live-copies))",
        "never",
        field="sync_s",
        limit=spec.INTERVAL,
    ),
    PropertyKey(
        _in("on_failure", "to_hdfs"),
        forms.member(spec.OnFailure),
        "`keep` or `drop` the output of a failed application",
        "`keep`",
        field="on_failure",
    ),
    PropertyKey(
        _in("output_from", "to_hdfs"),
        forms.member(spec.OutputFrom),
        "with a `framework`, the containers that must create `output_path`: `first` (of the deciding role) or `all`; "
        "for the others an empty directory is stored",
        "`first`",
        field="output_from",
    ),
    PropertyKey(
        _in("path", "checkpoint"),
        forms.PATH,
        "the directory, relative to the workspace",
        "required",
        field="path",
        required=True,
    ),
    PropertyKey(
        _in("hdfs", "checkpoint"),
        forms.LOCATION,
        "the directory for the checkpoints, with a subdirectory for each application, named by its id. It cannot be in "
        "an output",
        "`<first output>.checkpoints`; required without an output",
        field="target",
    ),
    PropertyKey(
        _in("every", "checkpoint"),
        forms.DURATION,
        "time between two copies, at least `1s`",
        "`10m`",
        field="every_s",
        limit=spec.INTERVAL,
    ),
    PropertyKey(
        _in("keep", "checkpoint"),
        forms.COUNT,
        "the number of checkpoints to keep",
        "`3`",
        field="keep",
        limit=spec.CHECKPOINTS,
    ),
    PropertyKey(
        _in("role", "checkpoint"),
        forms.ROLE_NAME,
        "with several containers: copy the directory of the first container of this role, or with `all` of each "
        "container ([which is restored where](payload.md#checkpoints-of-several-containers))",
        "the first role that decides the application's success",
        field="role",
    ),
    PropertyKey(
        _in(f"{GRID}{NAME}", "sweep"),
        forms.VALUES,
        "values of a parameter: `0.1, 0.01`; one with a comma in double quotes. All combinations are tried",
        keeps_quotes=True,
    ),
    PropertyKey(
        _in(f"{RANDOM}{NAME}", "sweep"),
        forms.value_of(read_distribution, "distribution", sweep.Distribution)._replace(lines=True),
        "the distribution that a parameter is drawn from: `uniform(0, 1)`, `loguniform(1e-5, 0.1)`, `int(1, 8)` (both "
        "ends included), `choice(sgd, adam)`",
        keeps_quotes=True,
    ),
    PropertyKey(
        _in("list", "sweep"),
        forms.PATH,
        "a file with one trial per row: CSV with a header (`.csv`), or JSON lines (`.jsonl`, `.ndjson`)",
    ),
    PropertyKey(
        _in("sampler", "sweep"),
        forms.text(read_sampler, "sampler"),
        "`grid`, `random`, `list`, or `optuna:NAME` with NAME one of `tpe`, `random`, `cmaes`, `gp`: Optuna chooses "
        "the parameters of `random.NAME` ([sweeps.md](sweeps.md#optuna))",
        "as the parameters are given",
    ),
    PropertyKey(
        _in("pruner", "sweep"),
        forms.choice(*OPTUNA_PRUNERS),
        "with Optuna: `median`, `halving` or `hyperband` stops trials early",
        "none",
        field="optuna_pruner",
    ),
    PropertyKey(
        _in("trials", "sweep"),
        forms.COUNT,
        "the number of trials, at most 10,000; of a grid or list the first ones",
        "all; required for `random.NAME`",
        field="trials",
        limit=sweep.TRIALS,
    ),
    PropertyKey(
        _in("seed", "sweep"),
        forms.COUNT,
        "the seed of the random draws",
        "`0`",
        field="seed",
        limit=sweep.SEED,
    ),
    PropertyKey(
        _in("metric", "sweep"),
        forms.text(read_metric, "metric"),
        "the metric that compares the trials, as the program [reports it](payload.md#report-progress-and-metrics)",
        "none",
        field="metric",
    ),
    PropertyKey(
        _in("goal", "sweep"),
        forms.member(sweep.Goal),
        "`max` or `min`: which is better",
        "required with `metric`",
        field="goal",
    ),
    PropertyKey(
        _in("asha", "sweep"),
        forms.value_of(read_asha, "RUNGS:FACTOR", sweep.AshaSpec),
        "`RUNGS:FACTOR`, as `1, 3, 9: 3`: compare the trials at these steps; one of FACTOR trials continues "
        "([sweeps.md](sweeps.md#early-stopping))",
        "none",
        field="asha",
    ),
    PropertyKey(
        _in("concurrency", "sweep"),
        forms.COUNT,
        "how many trials run at once, at most `containers` times `trials_per_container`",
        "all that fit",
        field="concurrency",
        limit=sweep.TRIALS,
    ),
    PropertyKey(
        _in("trials_per_container", "sweep"),
        forms.COUNT,
        "how many trials share a container",
        "`1`",
        field="trials_per_container",
        limit=sweep.TRIALS_PER_CONTAINER,
    ),
    PropertyKey(
        _in("trial_time", "sweep"),
        forms.DURATION,
        "how long the program of a trial may run",
        "no limit",
        field="trial_time_s",
        limit=sweep.TRIAL_TIME,
    ),
    PropertyKey(
        _in("retries", "sweep"),
        forms.COUNT,
        "how often a trial starts again after its program failed",
        "`0`",
        field="retries",
        limit=sweep.TRIAL_RETRIES,
    ),
    PropertyKey(
        _in("max_failures", "sweep"),
        forms.COUNT,
        "the sweep ends when more trials have failed",
        "no limit",
        field="max_failures",
        limit=sweep.TRIAL_FAILURES,
    ),
    PropertyKey(
        _in("commit", "sweep"),
        forms.member(sweep.SweepCommit),
        "`end`: the output of all trials is committed together; `trial`: that of each when it has ended "
        "([sweeps.md](sweeps.md#output))",
        "`end`",
        field="commit",
    ),
)


def _by_section() -> dict[str, dict[str, PropertyKey]]:
    found: dict[str, dict[str, PropertyKey]] = {section: {} for section in _ORDER}
    for key in KEYS:
        for section, name in key.names.items():
            found[section][name] = key
    return found


SECTIONS: Mapping[str, Mapping[str, PropertyKey]] = _by_section()
"""Section -> name of a key in it -> the key; ``env.NAME`` stands for all variables."""


def key_of(section: str, name: str) -> PropertyKey | None:
    """Return the key ``name`` of a section (``from_hdfs train``); None: there is no such key."""
    keys = SECTIONS[section.partition(" ")[0]]
    if (found := keys.get(name)) is not None and not name.endswith(f".{NAME}"):
        return found
    prefix, dot, _ = name.partition(".")
    return keys.get(f"{prefix}.{NAME}") if dot else None


def names_of(section: str) -> list[str]:
    """Return the keys that a section may have, without those that are not implemented."""
    return [name for name, key in SECTIONS[section.partition(" ")[0]].items() if key.is_built]


def named_keys(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each setting of a key such as ``env.NAME``, whose prefix is ``env.``."""
    for key, value in settings.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), value


def without_quotes(text: str) -> str:
    """Return ``text`` without the quotes around the whole of it, if there are any.

    The last character must close the first quote: ``'a b' 'c d'`` is unchanged.
    """
    if len(text) >= 2 and text[0] in "'\"" and text.find(text[0], 1) == len(text) - 1:
        return text[1:-1]
    return text
