"""Hints for unknown sections and keys: the right name, also for names of other programs.

Only an error loads this module.
"""

from __future__ import annotations

import re

from dlapp.application.keys import OF_ROLES, SECTIONS, names_of
from dlapp.system.text import nearest

SYNONYMS = {
    other: key
    for key, others in (
        ("application.notify", "notifications mail email mailtype onfailure alert"),
        ("application.appname", "name jobname taskname title"),
        ("application.docker_image", "image container containerimage docker imagename"),
        (
            "application.user_dev_workspace_path",
            "workspace workdir workingdir workingdirectory code sourcedir cwd chdir",
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
        ("resources.gcores", "gpu gpus ngpus numgpus gres devices"),
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
"""Names of keys in other programs: folded name -> section and key."""

SECTION_SYNONYMS = {"app": "application", "job": "application", "input": "from_hdfs", "inputs": "from_hdfs"} | {
    "output": "to_hdfs",
    "outputs": "to_hdfs",
    "checkpoints": "checkpoint",
    "sweeps": "sweep",
    "search": "sweep",
    "tune": "sweep",
    "hyperparameters": "sweep",
    "services": "service",
    "server": "service",
    "serve": "service",
}


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
    renamed = _renamed_in(kind)
    if f"{name.lower()}s" in SECTIONS.get(kind, {}):
        return f"the nearest is {name.lower()}s"  # for example container in [resources], else a synonym for the image
    if kind in OF_ROLES and name.lower() in renamed:
        return f"use {renamed[name.lower()]}"
    folded = re.sub(r"[\s_.-]", "", name[:100].lower())
    if (right := SYNONYMS.get(folded)) is not None:
        of, _, key = right.partition(".")
        if kind in OF_ROLES and (own := renamed.get(key, key)) in SECTIONS[kind]:
            return f"use {own}"
        if not kind:
            return f"use {right}"
        return f"use {key}" if of == kind else f"use {key} in [{of}]"
    if (right := SECTION_SYNONYMS.get(folded)) not in (None, kind):
        return f"use the section [{right}]"
    for other, keys in SECTIONS.items():
        if other != kind and name.lower() in keys:
            return f"use {name.lower()} in [{other}]" if kind else f"use {other}.{name.lower()}"
    return nearest(name, names_of(section)) if kind else "write SECTION.KEY=VALUE, such as resources.memory=4g"


def _renamed_in(kind: str) -> dict[str, str]:
    """Return the names that keys have in other sections -> their names in a section."""
    renamed = {}
    for own, key in SECTIONS.get(kind, {}).items():
        renamed.update({name: own for section, name in key.names.items() if name != own and section not in OF_ROLES})
    return renamed
