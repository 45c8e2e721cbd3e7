"""dlapp: deep-learning programs on shared GPUs, from one properties file and one command.

The public API: ``from dlapp import AppSpec, Client``. It is loaded on first use, because
every command imports this package.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes longer to load than all of this
if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.client.application import Application, as_completed
    from dlapp.client.logs import LogPiece
    from dlapp.errors import DlappError
    from dlapp.sweep.results import SweepResults, TrialState, TrialView
    from dlapp.sweep.spec import (
        AshaSpec,
        Distribution,
        DistributionKind,
        Goal,
        GridParameter,
        Sampler,
        SweepCommit,
        SweepSpec,
        TrialTable,
    )
    from dlapp.value import replace
    from dlapp.values.access import AccessList
    from dlapp.values.ids import ApplicationId
    from dlapp.values.report import ApplicationView, Cause, FinalStatus, State
    from dlapp.values.spec import (
        AppSpec,
        Dependency,
        Framework,
        Gang,
        InputSpec,
        OnFailure,
        OutputFrom,
        OutputSpec,
        PayloadCache,
        Placement,
        Resources,
        RoleFailure,
        RoleSpec,
        Until,
    )
    from dlapp.values.start_conditions import After, RequiredEnd
    from dlapp.version import __version__ as __version__

__all__ = [
    "AccessList",
    "After",
    "AppSpec",
    "Application",
    "ApplicationId",
    "ApplicationView",
    "AshaSpec",
    "Cause",
    "CheckpointSpec",
    "Client",
    "Dependency",
    "Distribution",
    "DistributionKind",
    "DlappError",
    "FinalStatus",
    "Framework",
    "Gang",
    "Goal",
    "GridParameter",
    "InputSpec",
    "LogPiece",
    "OnFailure",
    "OutputFrom",
    "OutputSpec",
    "PayloadCache",
    "Placement",
    "RequiredEnd",
    "Resources",
    "RoleFailure",
    "RoleSpec",
    "Sampler",
    "State",
    "SweepCommit",
    "SweepResults",
    "SweepSpec",
    "TrialState",
    "TrialTable",
    "TrialView",
    "Until",
    "as_completed",
    "replace",
]

_HOME = {
    name: module
    for module, names in (
        ("client", "Client"),
        ("client.application", "Application as_completed"),
        ("client.logs", "LogPiece"),
        ("errors", "DlappError"),
        ("sweep.results", "SweepResults TrialState TrialView"),
        (
            "sweep.spec",
            "AshaSpec Distribution DistributionKind Goal GridParameter Sampler SweepCommit SweepSpec TrialTable",
        ),
        ("value", "replace"),
        ("values.access", "AccessList"),
        ("values.ids", "ApplicationId"),
        ("values.report", "ApplicationView Cause FinalStatus State"),
        ("values.start_conditions", "After RequiredEnd"),
        ("version", "__version__"),
    )
    for name in names.split()
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that has it; all that are not named above are of `dlapp.values.spec`."""
    if name not in __all__ and name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'values.spec')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
