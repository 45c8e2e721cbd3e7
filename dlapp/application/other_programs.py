"""Names of keys and options of other programs, and what stands for them here.

A target is ``section.key`` (``role ps.instances``), or else the text of the hint. Only an error loads this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
