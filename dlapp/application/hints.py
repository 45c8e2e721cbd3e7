"""Hints for unknown sections and keys: the right name, also for names of keys and options of other programs.

A target is ``section.key`` (``role ps.instances``), or else the text of the hint.

Only an error loads this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dlapp.application.keys import OF_ROLES, SECTIONS, names_of
from dlapp.system.text import nearest

_AMOUNTS = "use memory, vcores and gcores in [resources]"
_LOGS = "remove it: dlapp-logs shows what the program prints"
_MOUNT = "use mode=mount in [from_hdfs], or cache.NAME in [application]"
_WAIT = "use the option --wait of dlapp-launcher"
_NO_KERBEROS = "remove it: dlapp does not use Kerberos"
_ROLES = "use a section [role NAME] for each kind of container"

OTHER_PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "Submarine": {
        "resources.containers": "num_workers",
        "role ps.instances": "num_ps",
        _AMOUNTS: "worker_resources",
        "use memory, vcores and gcores in [role ps]": "ps_resources",
        "application.command": "worker_launch_cmd",
        "role ps.command": "ps_launch_cmd",
        "application.docker_image": "worker_docker_image",
        "role ps.docker_image": "ps_docker_image",
        "application.tensorboard": "tensorboard_resources tensorboard_docker_image",
        "use path and hdfs in [checkpoint]": "checkpoint_path",
        "to_hdfs.hdfs": "saved_model_path",
        "from_hdfs.hdfs": "localization",
        _NO_KERBEROS: "keytab principal",
        _WAIT: "wait_job_finish",
    },
    "TonY": {
        "application.command": "executes",
        "application.user_dev_workspace_path": "src_dir",
        "application.user_shell_args": "task_params",
        "application.env.NAME": "shell_env containers.envs execution_env",
        "application.queue": "yarn.queue",
        "application.docker_image": "docker.containers.image docker.enabled",
        "application.pass_env": "docker_env",
        "from_hdfs.hdfs": "containers.resources",
        "role NAME.service": "untracked.jobtypes",
        "use on_failure=fail in [role NAME]": "stop-on-failure-jobtypes",
        "remove it: yarn.am_memory of the configuration is the memory of an ApplicationMaster": "am.memory",
        "use docker_image, or activate the environment where you submit": "python_venv python_binary_path",
        "remove it: dlapp finds Hadoop by HADOOP_CONF_DIR": "hdfs_classpath",
        _NO_KERBEROS: "keytab.user keytab.location",
    },
    "Kubeflow": {
        _AMOUNTS: "limits requests",
        _ROLES: "tfReplicaSpecs pytorchReplicaSpecs mpiReplicaSpecs xgbReplicaSpecs",
        "application.max_runtime": "activeDeadlineSeconds",
        "application.kill_grace": "terminationGracePeriodSeconds",
        "application.priority": "priorityClassName priorityClass",
        "application.project": "namespace",
        "application.username": "serviceAccountName serviceAccount",
        "application.hold": "suspend",
        "application.network": "hostNetwork",
        "application.hang_timeout": "livenessProbe",
        "application.tags": "annotations",
        "application.appname": "generateName",
        "resources.node_label": "nodeSelector tolerations affinity nodeAffinity",
        "resources.nodes": "nodeName",
        "resources.retries": "restartPolicy",
        "resources.containers": "completions minReplicas maxReplicas elasticPolicy",
        "resources.gcores": "nprocPerNode nvidia.com/gpu",
        "service.ports": "containerPort",
        _MOUNT: "volumeMounts persistentVolumeClaim",
        "remove it: history.age of the configuration is how long ended applications stay": "ttlSecondsAfterFinished",
        "remove it: containers end with the application, but for keep_failed in [application]": "cleanPodPolicy",
        "remove it: docker login where you submit gives dlapp your credentials": "imagePullSecrets",
    },
    "Volcano": {
        "application.gang": "minAvailable minMember",
        "application.on_container_failure": "policies",
        "application.framework": "plugins",
        "resources.retries": "maxRetry",
        "remove it: there is one scheduler; queue in [application] is a queue of the cluster": "schedulerName",
    },
    "Slurm": {
        "application.queue": "partition qos",
        "application.project": "account",
        "application.priority": "nice",
        "application.command": "wrap",
        "application.pass_env": "export",
        "application.env_file": "export-file",
        "application.kill_grace": "signal",
        "application.notify": "mail-user",
        "application.requeue": "no-requeue",
        "application.on_container_failure": "kill-on-bad-exit",
        "application.username": "uid",
        "resources.containers": "ntasks-per-node nnodes",
        "resources.vcores": "cpus-per-task cpus-per-gpu mincpus",
        "resources.memory": "mem-per-cpu mem-per-gpu mem-per-node",
        "resources.gcores": "gpus-per-node gpus-per-task gpus-per-socket",
        "resources.node_label": "constraint",
        "resources.placement": "spread-job distribution",
        "use [sweep], whose trials run with other parameters": "array",
        _LOGS: "error stdout stderr open-mode",
        _WAIT: "wait",
    },
    "Batch AI": {
        "application.docker_image": "containerSettings imageSourceRegistry",
        "application.command": "commandLine pythonScriptFilePath pythonInterpreterPath customToolkitSettings",
        "application.user_shell_args": "commandLineArgs",
        "application.env.NAME": "environmentVariables",
        "application.env_file": "secrets",
        "application.framework": "tensorFlowSettings pyTorchSettings horovodSettings caffeSettings",
        "application.max_runtime": "maxWallClockTime",
        "application.priority": "schedulingPriority",
        "application.project": "experiment experimentName",
        "resources.containers": "nodeCount workerCount processCount",
        "role ps.instances": "parameterServerCount",
        "role chief.args": "masterCommandLineArgs",
        "role worker.args": "workerCommandLineArgs",
        "role ps.args": "parameterServerCommandLineArgs",
        "from_hdfs.hdfs": "inputDirectories",
        "to_hdfs.hdfs": "outputDirectories",
        _MOUNT: "mountVolumes",
        _LOGS: "stdOutErrPathPrefix",
        "use the option --cluster of dlapp-launcher": "cluster",
        "put it in the start script": "jobPreparation",
    },
}
"""Program -> target -> its names, separated by blanks."""


def folded(name: str) -> str:
    """Return a name without separators and capitals: ``max-runtime``, ``maxRuntime`` and ``max_runtime`` are one."""
    return re.sub(r"[\s_.-]", "", name[:100].lower())


TARGETS: dict[str, str] = {
    folded(name): target for of in OTHER_PROGRAMS.values() for target, names in of.items() for name in names.split()
}
"""Folded name -> target."""

SYNONYMS = TARGETS | {
    other: key
    for key, others in (
        ("application.notify", "notifications mail email mailtype onfailure alert"),
        ("application.appname", "name jobname taskname title"),
        ("application.docker_image", "image container containerimage docker imagename"),
        (
            "application.user_dev_workspace_path",
            "workspace workingdir workingdirectory code sourcedir cwd chdir",
        ),
        ("application.user_dev_workspace_exclude_list", "exclude excludes ignore excludelist"),
        ("application.user_shell_script", "script entrypoint main program run"),
        ("application.command", "cmd"),
        ("application.user_shell_args", "args arguments parameters params argv"),
        ("application.max_runtime", "timeout timelimit walltime maxtime runtime maxduration deadline time"),
        ("application.kill_grace", "grace graceperiod terminationgraceperiod killtimeout"),
        ("application.env.NAME", "env environment envvars variables"),
        ("application.cache.NAME", "cache caches cachedir volume volumes"),
        ("application.tags", "labels tag"),
        ("application.after", "dependency dependson depends waitfor"),
        ("application.hold", "held begin"),
        ("application.username", "user owner"),
        ("application.tensorboard", "board tb logdir"),
        ("application.kind", "type apptype jobtype applicationtype"),
        ("application.view_acl", "acl viewers readers viewacls mapreducejobaclviewjob"),
        ("application.modify_acl", "modifiers admins modifyacls mapreducejobaclmodifyjob"),
        ("application.link.NAME", "link links quicklink quicklinks url urls"),
        ("service.ready", "readiness readinessprobe healthcheck health probe"),
        ("service.max_idle", "idletimeout maxidletime idle culltimeout shutdownafter"),
        ("service.ports", "port"),
        ("resources.containers", "instances replicas workers tasks ntasks numcontainers count parallelism"),
        ("resources.memory", "mem ram memorymb memorymib memorylimit"),
        ("resources.vcores", "cpu cpus cores vcpus vcpu ncpus numcpus threads"),
        ("resources.gcores", "gpus ngpus numgpus gres devices"),
        ("resources.gpu", "gpukind gputype mig migprofile"),
        ("resources.gpu_memory", "gpumem vram"),
        ("resources.retries", "retry maxretries attempts maxattempts restarts maxrestarts backofflimit"),
        ("resources.exclude_nodes", "excludehosts excludednodes"),
        ("resources.nodes", "node hosts host nodelist"),
        ("from_hdfs.hdfs", "source sources src from"),
        ("from_hdfs.input_path", "destination dest"),
        ("from_hdfs.archive", "unpack extract"),
        ("from_hdfs.mode", "stream streaming"),
        ("from_hdfs.feed.epochs", "epoch numepochs repeat"),
        ("from_hdfs.feed.shuffle", "shuffleseed feedseed"),
        ("from_hdfs.feed.buffer", "buffersize prefetch"),
        ("to_hdfs.hdfs", "target to"),
        ("to_hdfs.overwrite", "replace force"),
        ("checkpoint.every", "interval checkpointinterval"),
        ("sweep.trials", "numsamples ntrials samples maxtrials"),
        ("sweep.goal", "direction objective maximize minimize"),
        ("sweep.concurrency", "maxconcurrent maxconcurrenttrials paralleltrials njobs"),
        ("sweep.trial_time", "trialtimeout"),
        ("sweep.asha", "earlystopping scheduler rungs graceperiodsteps reductionfactor"),
    )
    for other in others.split()
}
"""Names that are often used instead: folded name -> target, as in `OTHER_PROGRAMS`."""

SECTION_SYNONYMS = {"app": "application", "job": "application", "input": "from_hdfs", "inputs": "from_hdfs"} | {
    "output": "to_hdfs",
    "outputs": "to_hdfs",
    "checkpoints": "checkpoint",
    "sweeps": "sweep",
    "search": "sweep",
    "tune": "sweep",
    "hyperparameters": "sweep",
    **{role: f"role {role}" for role in ("worker", "ps", "chief", "master", "evaluator")},
    "services": "service",
    "server": "service",
    "serve": "service",
}


NO_KEY = "write SECTION.KEY=VALUE, such as resources.memory=4g"
"""The hint on a key without a section that no section has."""
_WITH_NODES = ("resources", *OF_ROLES)
_PREFIX = re.compile(r"^(?:tony\.(?:application\.)?|role\.)")
"""Of keys of TonY, and of ``--set``."""
_ROLE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")


def nearest_section(kind: str) -> str:
    """Return a hint for an unknown section: the right section, or all sections."""
    if (right := SECTION_SYNONYMS.get(kind.lower())) is not None:
        return f"use [{right}]"
    return nearest(kind, SECTIONS)


def nearest_key(section: str, name: str) -> str:
    """Return a hint for an unknown key: the right key in this or another section, or all keys of the section.

    Args:
        section: the section with the unknown key (``from_hdfs train``); empty: none.
    """
    kind = section.partition(" ")[0]
    name = _PREFIX.sub("", name) or name
    renamed = _renamed_in(kind)
    if f"{name.lower()}s" in SECTIONS.get(kind, {}):
        return f"the nearest is {name.lower()}s"  # for example container in [resources], else a synonym for the image
    if kind in OF_ROLES and name.lower() in renamed:
        return f"use {renamed[name.lower()]}"
    short = folded(name)
    by_folded = {section: {folded(key): key for key in keys} for section, keys in SECTIONS.items()}
    own = by_folded.get(kind, {}).get(short)
    if own not in (None, name.lower()):
        return f"use {own}"  # maxRuntime, depends-on
    if kind in _WITH_NODES and short == "exclude":
        return "use exclude_nodes"
    if (right := SYNONYMS.get(short)) is not None:
        return _use(right, kind, renamed)
    if (of_section := SECTION_SYNONYMS.get(short)) not in (None, kind):
        return f"use the section [{of_section}]"
    for other, keys in by_folded.items():
        if other != kind and short in keys:
            return _use(f"{other}.{keys[short]}", kind, renamed)
    role, dot, key = name.partition(".")
    if dot and kind and kind not in OF_ROLES and _ROLE_NAME.fullmatch(role):
        of_role = key.lower() if key.lower() in SECTIONS["role"] else nearest_key(f"role {role}", key)
        if of_role in SECTIONS["role"] or (of_role.startswith("use ") and " in [" not in of_role):
            return f"use {of_role.removeprefix('use ')} in [role {role}]"
    return nearest(name, names_of(section)) if kind else NO_KEY


def _use(target: str, kind: str, renamed: Mapping[str, str]) -> str:
    """Return the hint for a target (`OTHER_PROGRAMS`) in a kind of section."""
    of, dot, key = target.partition(".")
    if not dot or of.partition(" ")[0] not in SECTIONS:
        return target
    if kind in OF_ROLES and (own := renamed.get(key, key)) in SECTIONS[kind]:
        return f"use {own}"
    if not kind:
        return f"use {target.replace(' ', '.')}"
    return f"use {key}" if of == kind else f"use {key} in [{of}]"


def _renamed_in(kind: str) -> dict[str, str]:
    """Return the names that keys have in other sections -> their names in a section."""
    renamed = {}
    for own, key in SECTIONS.get(kind, {}).items():
        renamed.update({name: own for section, name in key.names.items() if name != own and section not in OF_ROLES})
    return renamed
