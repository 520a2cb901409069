"""Takes the screenshots of README with Chromium: `python scripts/screenshots.py REPORT.html` after a `skytrain report`.

Writes docs/images/plan.png, the real output of a command, and docs/images/report.png.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COMMAND = ["plan", "recipe=gpt2-124m-pile", "budget.usd=150", "--rows", "6"]
COLUMNS = 118
LINE_PIXELS = 19.8
FRAME = """<body style="margin:0;background:#12161e"><div style="width:1000px;color:#d7dde6;
font:13.2px/1.5 'DejaVu Sans Mono',monospace"><div style="padding:10px 14px;border-bottom:1px solid #2a313d">
<span style="color:#ff6b60">●</span> <span style="color:#f5bf4f">●</span> <span style="color:#61c554">●</span></div>
<pre style="margin:0;padding:14px 18px;font:inherit"><span style="color:#8b97a7">$</span> {command}
{text}</pre></div></body>"""


def main() -> None:
    program = Path(sys.executable).parent / "skytrain"
    with tempfile.TemporaryDirectory() as folder:
        printed = subprocess.run([program, *COMMAND], cwd=folder, capture_output=True, text=True, check=True).stdout
        # What follows the choice is on the planning page.
        lines = [part for line in printed.partition("\n  quota:")[0].splitlines() for part in _wrapped(line)]
        page = Path(folder) / "plan.html"
        page.write_text(FRAME.format(command=" ".join(["skytrain", *COMMAND]), text="\n".join(map(_coloured, lines))))
        shoot(page, IMAGES / "plan.png", 1000, round(90 + LINE_PIXELS * (len(lines) + 1)))
    for report in sys.argv[1:]:
        shoot(Path(report), IMAGES / "report.png", 1200, 860)


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, COLUMNS, subsequent_indent=indent) if len(line) > COLUMNS else [line]


def _coloured(line: str) -> str:
    colour = {">": "#7ee2a8", "   instance": "#9ecbff"}.get(
        next((s for s in (">", "   instance") if line.startswith(s)), "")
    )
    return f'<b style="color:{colour}">{html.escape(line)}</b>' if colour else html.escape(line)


def shoot(page: Path, image: Path, width: int, height: int) -> None:
    """Write what Chromium shows of a page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("Chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run(
        [chromium, *options, f"--screenshot={image}", page.resolve().as_uri()], check=True, capture_output=True
    )
    print(f"wrote {image.name}: {image.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
