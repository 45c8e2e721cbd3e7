"""Style sheet of the pages. All pairs of colours for text have a contrast of at least 4.5 (WCAG 2, level AA)."""

from __future__ import annotations

STYLE = """\
:root{--paper:#fff;--ink:#1b2130;--soft:#566074;--line:#d5dae4;--good:#176b35;--bad:#a8201a;--link:#1b4fa8;
--starting:#8894ab;--pulling:#7d6bc4;--unpacking:#b29be0;--fetching:#2f7fc2;--leasing:#d9a21b;--waiting:#e6c566;
--running:#2a9d5b;--storing:#12808a;--releasing:#aab3c4;--failed:#a8201a;--unknown:#8894ab;--band:#2a9d5b33}
@media(prefers-color-scheme:dark){:root{--paper:#12151d;--ink:#e7eaf1;--soft:#a4aec2;--line:#343b4b;--good:#67d391;
--bad:#ff948c;--link:#8ab6ff;--starting:#7c88a0;--running:#45b876;--failed:#ff7b72;--band:#45b87640}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem;background:var(--paper);
color:var(--ink)}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
h3{font-size:.95rem;margin:.8rem 0 .2rem}
p{margin:.2rem 0;overflow-wrap:anywhere}
a{color:var(--link)}
.soft{color:var(--soft)}
.good{color:var(--good)}
.bad{color:var(--bad)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.4rem 0}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
pre{font:12.5px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;
border-left:3px solid var(--line);padding-left:.7rem}
summary{cursor:pointer}
figure{margin:.6rem 0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.axis{stroke:var(--line);stroke-width:1}
.curve{fill:none;stroke:var(--running);stroke-width:1.5;vector-effect:non-scaling-stroke}
.band{fill:var(--band)}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;margin:.3rem 0}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19rem,100%),1fr));gap:.4rem 1.2rem}
@media(max-width:40rem){dl{grid-template-columns:1fr}dd{margin-bottom:.3rem}th,td{padding-right:.4rem}}
@media print{body{max-width:none;padding:0;font-size:11px}h2{break-after:avoid}
details::details-content{content-visibility:visible;height:auto}
figure,tr{break-inside:avoid}a{color:inherit}}
"""
