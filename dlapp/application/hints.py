"""Hints for unknown sections and keys: the right name, also for names of other programs.

Only an error loads this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dlapp.application.keys import OF_ROLES, SECTIONS, names_of
from dlapp.application.other_programs import TARGETS, folded
from dlapp.system.text import nearest

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
"""Names that are often used instead: folded name -> target, as in `dlapp.application.other_programs`."""

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
    """Return the hint for a target (`dlapp.application.other_programs`) in a kind of section."""
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
