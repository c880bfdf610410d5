"""The style sheet of the demo's page, for light and for dark screens. Names of tones are those of the series."""

from __future__ import annotations

TONES = {
    "put": ("#2a78d6", "#4b97f0"),
    "copy": ("#12966a", "#2bb98a"),
    "read": ("#d98a00", "#e0a030"),
    "sql": ("#5b4bc4", "#9a8ff0"),
    "export": ("#d6453f", "#ef7a72"),
}
"""Of each series: its colour on a light screen, and on a dark one."""


def _variables(shade: int) -> str:
    return "".join(f"--{name}:{tones[shade]};" for name, tones in TONES.items())


def _tones() -> str:
    return "".join(
        f".dot.{name},.bar.{name}{{background:var(--{name})}}.fill.{name},.area.{name},.under.{name}"
        f"{{fill:var(--{name})}}.line.{name},.way.{name}{{stroke:var(--{name})}}text.end.{name}{{fill:var(--{name})}}"
        for name in TONES
    )


STYLE = (
    ":root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#16181d;--soft:#5d636f;--faint:#8b919c;"
    "--line:#e4e4df;--band:#00000006;--band2:#0000000d;" + _variables(0) + "}"
    "@media(prefers-color-scheme:dark){:root{--page:#111317;--card:#191c22;--ink:#eceef2;--soft:#a7adb9;--faint:#7d8490;"
    "--line:#2b2f38;--band:#ffffff05;--band2:#ffffff0c;" + _variables(1) + "}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",
Inter,Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased}
main{max-width:1180px;margin:0 auto;padding:56px 28px 40px}
.eyebrow{margin:0 0 10px;color:var(--soft);font-size:14px;font-weight:600;letter-spacing:.02em}
h1{margin:0;max-width:22em;font-size:clamp(28px,4vw,44px);line-height:1.12;letter-spacing:-.022em;font-weight:700;
text-wrap:balance}
.lead{max-width:46em;margin:16px 0 0;color:var(--soft);font-size:17px}
h2{margin:56px 0 4px;font-size:20px;letter-spacing:-.01em}
.about{color:var(--soft);font-size:14.5px;min-height:22px}
figure{margin:14px 0 0;padding:22px 24px;background:var(--card);border:1px solid var(--line);border-radius:16px;
overflow-x:auto}
svg{display:block;width:100%;min-width:860px;height:auto;font-family:inherit;overflow:visible}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:1px;margin-top:36px;overflow:hidden;
background:var(--line);border:1px solid var(--line);border-radius:16px}
.tile{padding:16px 18px 17px;background:var(--card);display:grid;grid-template-columns:auto 1fr;align-items:center;
column-gap:8px;align-content:start}
.tile b{font-size:13px;font-weight:600;color:var(--soft)}
.tile strong{grid-column:1/3;margin-top:6px;font-size:25px;line-height:1.2;letter-spacing:-.02em;font-weight:650;
font-variant-numeric:tabular-nums}
.tile span{grid-column:1/3;color:var(--faint);font-size:13px;line-height:1.4;margin-top:2px}
.dot{display:inline-block;width:9px;height:9px;border-radius:3px}
.key{display:inline-flex;align-items:center;gap:7px;margin-right:20px}
text{fill:var(--ink);font-variant-numeric:tabular-nums}
text.name{font-size:16px;font-weight:650;letter-spacing:-.01em}
text.small,text.note{font-size:12.5px;fill:var(--soft)}
text.mid,text.big{text-anchor:middle}
text.big{font-size:14.5px;font-weight:650}
text.tick{font-size:11.5px;fill:var(--faint)}
text.panel{font-size:13px;font-weight:650}
text.end{font-size:12.5px;font-weight:650}
text.number{font-size:11.5px;font-weight:650;text-anchor:middle;fill:var(--soft)}
circle.number{fill:var(--card);stroke:var(--line);stroke-width:1.5}
.card{fill:var(--page);stroke:var(--line);stroke-width:1.5}
.box.absent{opacity:.45}
.way{fill:none;stroke-width:3;stroke-linecap:round}
.way.absent{stroke:var(--line);stroke-dasharray:2 7}
.moving{fill:none;stroke:var(--card);stroke-width:3;stroke-dasharray:3 15;stroke-linecap:butt;opacity:.75}
.band{fill:var(--band)}.band.other{fill:var(--band2)}
.grid{stroke:var(--line);stroke-width:1}
.leader{fill:none;stroke:var(--faint);stroke-width:1;opacity:.7}
.area{opacity:.88}
.under{opacity:.1}
.line{fill:none;stroke-width:2.25;stroke-linejoin:round}
.steps{list-style:none;counter-reset:step;margin:14px 0 0;padding:0;columns:2;column-gap:44px}
.steps li{counter-increment:step;position:relative;padding:0 0 18px 42px;break-inside:avoid}
.steps li:before{content:counter(step);position:absolute;left:0;top:1px;width:25px;height:25px;border-radius:50%;
border:1.5px solid var(--line);background:var(--card);color:var(--soft);font-size:12.5px;font-weight:650;
display:grid;place-items:center}
.steps div{display:flex;justify-content:space-between;gap:12px;border-bottom:1px solid var(--line);padding-bottom:3px}
.steps time{color:var(--faint);font-variant-numeric:tabular-nums;white-space:nowrap}
.steps p{margin:7px 0 0;color:var(--soft);font-size:14.5px;overflow-wrap:anywhere}
.two{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:20px;margin-top:14px;align-items:start}
pre,.scroll{margin:0;background:var(--card);border:1px solid var(--line);border-radius:14px;overflow-x:auto}
section>.scroll{margin-top:14px}
pre{padding:18px 20px;font-size:12px;line-height:1.65;white-space:pre-wrap}
code{font-family:ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,monospace}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:9px 14px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
th{font-size:12.5px;font-weight:600;color:var(--faint)}
.n{text-align:right}
td code{font-size:12.5px;color:var(--soft)}
.barcell{width:18%;min-width:48px;padding-left:0}
.bar{display:block;height:8px;border-radius:0 4px 4px 0;min-width:2px}
.ok{color:var(--copy);font-weight:600}.ok:before{content:"✓ "}
.bad{color:var(--export);font-weight:600}.bad:before{content:"✗ "}
footer{margin-top:56px;padding-top:18px;border-top:1px solid var(--line);color:var(--faint);font-size:13px;
overflow-wrap:anywhere}
@media(prefers-reduced-motion:no-preference){.moving{animation:way 1.6s linear infinite}
@keyframes way{to{stroke-dashoffset:-36}}}
@media(max-width:820px){.steps{columns:1}.two{grid-template-columns:1fr}main{padding:32px 16px}}
""" + _tones()
)
