"""Style sheet of the pages. All pairs of colours for text have a contrast of at least 4.5 (WCAG 2, level AA)."""

from __future__ import annotations

KINDS = (
    *("starting", "pulling", "unpacking", "fetching", "leasing", "waiting", "running", "storing", "releasing"),
    *("failed", "unknown", "busy", "idle"),
)
"""Classes of bars and of the marks in their key, each with a colour of its name."""

_COLOURS = """\
:root{--paper:#fff;--ink:#1b2130;--soft:#566074;--line:#dde1ea;--track:#f0f2f6;--good:#176b35;--bad:#a8201a;
--link:#1b4fa8;--good-paper:#e7f4ec;--bad-paper:#fbeae9;--soft-paper:#edf1f7;
--starting:#8894ab;--pulling:#7d6bc4;--unpacking:#b29be0;--fetching:#2f7fc2;--leasing:#d9a21b;--waiting:#e6c566;
--running:#2a9d5b;--storing:#12808a;--releasing:#aab3c4;--failed:#c3302a;--unknown:#8894ab;--busy:#2a9d5b;
--idle:#e6c566;--band:#2a9d5b33}
@media screen and (prefers-color-scheme:dark){:root{--paper:#12151d;--ink:#e7eaf1;--soft:#a4aec2;--line:#2c3342;
--track:#1b202b;--good:#67d391;--bad:#ff948c;--link:#8ab6ff;--good-paper:#12291c;--bad-paper:#33191a;
--soft-paper:#1d2330;--starting:#7c88a0;--running:#3fae70;--busy:#3fae70;--failed:#ff7b72;--band:#3fae7040}}
"""
_RULES = """\
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums;margin:0 auto;max-width:76rem;
padding:1.2rem 1.2rem 3rem;background:var(--paper);color:var(--ink)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
h1{font-size:1.5rem;line-height:1.3;margin:.1rem 0 .3rem;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:0 0 .6rem;padding-top:1.1rem;border-top:1px solid var(--line)}
h2 small,h3 small{font-weight:400;font-size:.9em;color:var(--soft)}
h2 small{margin-left:.6em}
h3{font-size:.92rem;margin:0;display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 .6em}
section{margin-top:1.7rem}
p{margin:.25rem 0;overflow-wrap:anywhere}
a{color:var(--link)}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;justify-content:space-between;color:var(--soft)}
.soft{color:var(--soft)}
.above{margin-top:1rem;font-size:.87rem}
.good{color:var(--good)}
.bad{color:var(--bad)}
.state{font-size:.9rem;font-weight:600;padding:.15em .65em;border-radius:1em;background:var(--soft-paper);
display:inline-block;vertical-align:.15em;margin-left:.35em}
.state.good{background:var(--good-paper)}
.state.bad{background:var(--bad-paper)}
.note{background:var(--soft-paper);border-radius:.4rem;padding:.45rem .8rem;margin:.5rem 0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;min-width:min(100%,45rem)}
th,td{text-align:left;vertical-align:top;padding:.28rem 1rem .28rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600;white-space:nowrap;color:var(--soft);font-size:.87rem}
td:last-child,th:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
.w{white-space:nowrap}
@media screen{td.t{min-width:8rem}td.t+td.t{min-width:11rem}}
dl{margin:.5rem 0}
dt{color:var(--soft);font-size:.87rem}
dd{margin:0;overflow-wrap:anywhere}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(12.5rem,100%),1fr));gap:.8rem 1.4rem}
.facts small{display:block;color:var(--soft)}
.lines>div{display:grid;grid-template-columns:9rem 1fr;gap:0 1rem;padding:.1rem 0}
pre{font:12.5px/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0;
background:var(--track);border-radius:.4rem;padding:.6rem .8rem}
summary{cursor:pointer;padding:.25rem 0}
ul{padding-left:1.2rem;margin:.3rem 0}
figure{margin:0}
.bar{display:flex;height:.45rem;border-radius:.25rem;overflow:hidden;background:var(--track);margin:.25rem 0;
print-color-adjust:exact}
.bar i{display:block}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;margin:.5rem 0;font-size:.87rem}
.key i{display:inline-block;width:.75em;height:.75em;margin-right:.4em;border-radius:.15em;print-color-adjust:exact}
svg{display:block;width:100%;overflow:visible}
.wide{min-width:40rem;max-width:56rem;margin:.4rem 0 .8rem}
.gantt{display:grid;grid-template-columns:max-content 1fr;gap:0 .8rem;font-size:.8rem;line-height:1}
.names,.times,.plot{position:relative}
.names{color:var(--soft);width:var(--w);max-width:30vw}
.names span{position:absolute;max-width:100%;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;
transform:translateY(-50%);line-height:1.2}
.times{height:1.3rem;grid-column:2;color:var(--soft)}
.times span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.times span:first-child{transform:none}
.times span.last{transform:translateX(-100%)}
.axis{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.track{fill:var(--track)}
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19rem,100%),1fr));gap:1.1rem 1.8rem;
margin:.5rem 0 1rem}
.plot{height:84px;margin:.5rem 0 0 2.7rem}
.plot svg{height:84px}
.plot span{position:absolute;right:calc(100% + .5rem);font-size:.78rem;line-height:1;color:var(--soft);
transform:translateY(-50%)}
.curves .times{margin:.3rem 0 0 2.7rem;font-size:.78rem;line-height:1}
.curve{fill:none;stroke:var(--running);stroke-width:1.5;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.band{fill:var(--band)}
.log{display:flex;flex-direction:column-reverse;overflow:auto;max-height:calc(100vh - 11rem);background:var(--track);
border-radius:.4rem}
footer{margin-top:2rem;font-size:.87rem}
@media(max-width:40rem){body{padding:.8rem .8rem 2rem}.lines>div{grid-template-columns:1fr}th,td{padding-right:.7rem}
.facts{grid-template-columns:repeat(auto-fill,minmax(min(8.5rem,100%),1fr))}}
@media print{html{font-size:12px}body{max-width:none;padding:0;font-size:11px}h2{break-after:avoid}
.scroll,.log{overflow:visible}.wide{min-width:0}
.log{max-height:none}.ends ::details-content{content-visibility:visible;height:auto}
.n,.w{white-space:normal}td{overflow-wrap:anywhere;min-width:4rem}
pre{border:1px solid var(--line);font-size:9.5px}figure,tr{break-inside:avoid}a{color:inherit}nav{display:none}}
"""
STYLE = _COLOURS + _RULES + "".join(f".{one}{{fill:var(--{one});background:var(--{one})}}" for one in KINDS) + "\n"
