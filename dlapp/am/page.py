"""The page that a browser sees at the control address: read-only, no script, nothing secret."""

from __future__ import annotations

from dlapp.report import ApplicationView, ContainerView

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1d2330 }
h1 { font-size: 1.3rem; margin: 0 } p { margin: .2rem 0 1.2rem; color: #556 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .7rem .3rem 0 }
th { border-bottom: 2px solid #ccd; font-weight: 600 } td { border-bottom: 1px solid #e6e8ef }
td.n { text-align: right; font-variant-numeric: tabular-nums } .bad { color: #b3261e } .good { color: #1b7f3b }
"""


def page(view: ApplicationView) -> str:
    """The view as HTML. A browser loads it again every two seconds while the application runs."""
    # html costs two milliseconds to import, and most applications are never looked at.
    from html import escape

    refresh = "" if view.state.ended else '<meta http-equiv="refresh" content="2">'
    rows = "".join(_row(one) for one in view.containers)
    outputs = "".join(
        f"<li>{escape(one.target)}: {'committed' if one.committed else escape(one.partial or 'not yet')}</li>"
        for one in view.outputs
    )
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}
<meta name="viewport" content="width=device-width"><title>{escape(view.appname)}</title><style>{_STYLE}</style></head>
<body><h1>{escape(view.appname)}</h1>
<p>{view.application_id} &middot; {escape(view.username)} &middot; {view.state.value} &middot;
{escape(view.phase)} {escape(view.diagnostics)}</p>
<table><thead><tr><th>container</th><th>role</th><th>phase</th><th>host</th><th>GPUs</th><th>end</th></tr></thead>
<tbody>{rows}</tbody></table><ul>{outputs}</ul></body></html>
"""


def _row(one: ContainerView) -> str:
    from html import escape

    reported = "" if one.step is None else f"step {one.step} "
    reported += " ".join(f"{name}={value:.4g}" for name, value in one.metrics.items())
    share = "" if one.progress is None else f" {one.progress:.0%}"
    if one.exit_code is None and one.signal is None:
        end = ""
    else:
        good = one.exit_code == 0
        said = f"exit code {one.exit_code}" if one.signal is None else f"signal {one.signal}"
        end = f'<span class="{"good" if good else "bad"}">{said}</span>'
    return (
        f'<tr><td class="n">{one.index}</td><td>{escape(one.role)} {one.role_index}</td>'
        f"<td>{one.phase.value}{share} {escape(one.detail)} {escape(reported)}</td><td>{escape(one.host)}</td>"
        f"<td>{', '.join(f'gpu{n}' for n in one.gpus)}</td><td>{end} {escape(one.message)}</td></tr>"
    )
