"""Draws the diagrams of the documentation: `python scripts/diagrams.py` writes docs/images/concepts/ and pipeline.svg.

A diagram is shown on light and on dark pages, so boxes are filled and carry white text, and all else is a grey that
can be read on both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "images"
BLUE, GREEN, AMBER, RED, VIOLET, SLATE = "#2f6fb0", "#2e7d5b", "#a4650c", "#b5403f", "#6d55a8", "#5a6572"
GREY = "#7d8896"


@dataclass
class Drawing:
    """An SVG of boxes, arrows and captions."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, text: str, colour: str = BLUE) -> None:
        """A filled box; the lines of its text after the first are small."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{colour}"/>')
        lines = text.split("\n")
        top = y + h / 2 - 8 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            size, weight = (14, 600) if number == 0 else (11.5, 400)
            size = min(size, round((w - 10) / (0.62 * max(1, len(line))), 1))  # a long line becomes smaller
            self.parts.append(
                f'<text x="{x + w / 2}" y="{top + 16 * number}" font-size="{size}" font-weight="{weight}" '
                f'fill="#fff" text-anchor="middle">{escape(line)}</text>'
            )

    def frame(self, x: float, y: float, w: float, h: float, text: str = "") -> None:
        """A dashed outline with a caption inside its upper edge."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="none" stroke="{GREY}" stroke-dasharray="5 4"/>'
        )
        if text:
            self.say(x + 10, y + 18, text)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, text: str = "", dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{GREY}" stroke-width="2"{dash} marker-end="url(#to)"/>'
        )
        if text:
            self.say((x1 + x2) / 2, (y1 + y2) / 2 - 7, text, anchor="middle")

    def say(self, x: float, y: float, text: str, anchor: str = "start", size: float = 12) -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{GREY}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def save(self, name: str) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, sans-serif"><title>{escape(self.title)}</title>'
            '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 8 4 0 8z" fill="{GREY}"/></marker></defs>'
        )
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([head, *self.parts, "</svg>"]) + "\n")


def pipeline() -> None:
    d = Drawing(940, 290, "The pipeline: from text to a served model, in one store")
    stages = [
        ("sources", "hub, WARC,\nparquet, jsonl, txt", SLATE),
        ("corpus", "clean, filter,\nde-duplicate", GREEN),
        ("tokens", "shards and\na manifest", GREEN),
        ("training", "Lightning on\nan N-D mesh", BLUE),
        ("evaluation", "loss, tasks,\nsamples", VIOLET),
        ("export, merge", "Hugging Face,\nllm.c", VIOLET),
        ("serving", "vLLM\n ", AMBER),
    ]
    for number, (name, what, colour) in enumerate(stages):
        x = 10 + 133 * number
        d.box(x, 70, 118, 74, f"{name}\n{what}", colour)
        if number:
            d.arrow(x - 14, 107, x - 1, 107)
    d.box(
        10,
        12,
        916,
        34,
        "plan and tune: memory, hours and dollars before you rent; the learning rate that a budget buys",
        SLATE,
    )
    d.box(
        10,
        196,
        916,
        34,
        "one store, a folder or s3://: data by version, runs, checkpoints that are committed last",
        SLATE,
    )
    for number in (1, 2, 4, 5):
        x = 69 + 133 * number
        d.arrow(x, 147, x, 192)
    d.arrow(452, 147, 452, 192)
    d.arrow(484, 192, 484, 148)
    d.say(496, 174, "resume", size=11)
    for number, name in enumerate(["this machine", "EC2 spot", "SageMaker", "Slurm", "EKS", "EMR (data)"]):
        d.box(10 + 154 * number, 250, 146, 28, name, AMBER if number else BLUE)
    d.save("pipeline.svg")


def run() -> None:
    d = Drawing(
        760, 250, "A run: settings decide its name, attempts train it, checkpoints and metrics collect in its folder"
    )
    d.box(10, 20, 190, 60, "settings\nmodel, data, optimizer, seed", SLATE)
    d.box(10, 150, 190, 60, "machines, mesh\nmay change at any time", SLATE)
    d.arrow(204, 50, 276, 50, "hash")
    d.box(280, 20, 210, 60, "run\ngpt2-124m-pile-3fa91c07")
    d.arrow(204, 180, 276, 180, dashed=True)
    d.box(280, 150, 100, 60, "attempt 0\nsteps 1-340", GREEN)
    d.box(390, 150, 100, 60, "attempt 1\nsteps 301-900", GREEN)
    d.arrow(385, 84, 385, 146)
    d.frame(540, 10, 210, 220, "runs/<run>/ in the store")
    for number, name in enumerate(
        ["run.json", "attempts/0, 1, ...", "checkpoints/step-...", "launches/", "report.html"]
    ):
        d.box(555, 38 + 37 * number, 180, 30, name, VIOLET)
    d.arrow(494, 180, 536, 160)
    d.save("concepts/run.svg")


def attempt() -> None:
    d = Drawing(760, 230, "Attempts: a newer attempt fences off the older one, which can no longer commit")
    d.say(10, 50, "attempt 0")
    d.box(90, 30, 120, 32, "steps 1-100", GREEN)
    d.box(214, 30, 20, 32, "✓", BLUE)
    d.box(238, 30, 120, 32, "101-137", GREEN)
    d.box(362, 30, 90, 32, "cut off", RED)
    d.arrow(456, 46, 560, 46, "tries to commit", dashed=True)
    d.box(564, 30, 180, 32, "refused: superseded", RED)
    d.say(10, 130, "attempt 1")
    d.arrow(224, 66, 300, 106, "", dashed=True)
    d.say(276, 84, "resumes from the commit")
    d.box(300, 110, 130, 32, "101-200", GREEN)
    d.box(434, 110, 20, 32, "✓", BLUE)
    d.box(458, 110, 130, 32, "201-300", GREEN)
    d.box(592, 110, 20, 32, "✓", BLUE)
    d.box(
        90, 170, 654, 38, "checkpoints that count: the newest attempt's, and older ones up to where it resumed", SLATE
    )
    d.save("concepts/attempt.svg")


def generation() -> None:
    d = Drawing(
        760,
        270,
        "Generations: hosts meet through the store, train together, and form the next generation when one is lost",
    )
    for number in range(3):
        d.box(10, 20 + 56 * number, 110, 40, f"host {'ABC'[number]}", SLATE)
    d.box(190, 12, 200, 172, "generation 4\nmembers A, B, C\nnode 0: A, port 29500\ntorchrun", BLUE)
    for number in range(3):
        d.arrow(124, 40 + 56 * number, 186, 60 + 30 * number)
    d.box(420, 60, 110, 50, "C is lost\nspot notice", RED)
    d.arrow(393, 86, 416, 86)
    d.box(560, 12, 190, 172, "generation 5\nmembers A, B, D\nnode 0: B\nresumes from the commit", GREEN)
    d.arrow(533, 86, 556, 86)
    d.box(
        10,
        214,
        740,
        40,
        "store: runs/<run>/meeting/generations/4.json, 4.ended.json, 5.json; each is created once",
        VIOLET,
    )
    d.arrow(290, 187, 290, 211)
    d.arrow(655, 187, 655, 211)
    d.save("concepts/generation.svg")


def launch() -> None:
    d = Drawing(760, 250, "A launch: a plan becomes machines that train, and that give themselves back")
    d.box(10, 30, 120, 56, "plan.json\noffer, kill time", SLATE)
    d.arrow(134, 58, 186, 58, "launch")
    d.box(190, 30, 140, 56, "launch 1\nrecord, bundle, tags", BLUE)
    d.arrow(334, 58, 386, 58)
    d.frame(390, 10, 220, 130, "machines of the target")
    d.box(405, 40, 90, 40, "agent", GREEN)
    d.box(505, 40, 90, 40, "agent", GREEN)
    d.say(500, 108, "prepare, train, tune", anchor="middle")
    d.say(500, 126, "spend is metered", anchor="middle")
    d.arrow(614, 58, 656, 58)
    d.box(660, 30, 90, 56, "end\nterminate", AMBER)
    d.box(
        190,
        180,
        560,
        50,
        "kill time, enforced by AWS\nnothing that was rented outlives the budget, even if your laptop is off",
        RED,
    )
    d.arrow(500, 177, 500, 144)
    d.save("concepts/launch.svg")


def offer() -> None:
    d = Drawing(760, 230, "An offer: machines, market, region and mesh, with hours and dollars as a range")
    d.box(10, 20, 150, 50, "run\nmodel, tokens", SLATE)
    d.box(10, 90, 150, 50, "catalogue\nmachines, prices", SLATE)
    d.box(10, 160, 150, 50, "measurements\nspeeds that were seen", SLATE)
    for y in (45, 115, 185):
        d.arrow(164, y, 226, 115)
    d.box(230, 60, 150, 110, "search\nmeshes that fit\nmemory, step time\ninterruptions", BLUE)
    d.arrow(384, 115, 426, 115)
    rows = [("2 x g5.12xlarge spot   tp 4, shard 2", GREEN), ("1 x p4d on demand   shard 8", SLATE)]
    rows += [("1 x g5.xlarge   over the deadline", RED)]
    for number, (text, colour) in enumerate(rows):
        d.box(
            430,
            40 + 56 * number,
            320,
            44,
            f"{text}\n{['6 to 9 h, $31 to $48', '3 to 4 h, $66 to $92', '71 h'][number]}",
            colour,
        )
    d.say(590, 222, "figures are an illustration", anchor="middle", size=11)
    d.save("concepts/offer.svg")


def rung() -> None:
    d = Drawing(760, 260, "Rungs: small, short runs whose best learning rates lead to the target's")
    for number, (name, what) in enumerate(
        [("rung 1", "30M, 1/16"), ("rung 2", "30M, 1/4"), ("rung 3", "60M, 1/4"), ("target", "124M, all")]
    ):
        x = 20 + 185 * number
        d.box(x, 196 - 8, 160, 44, f"{name}\n{what} of the tokens", BLUE if number < 3 else AMBER)
        low = x + 60 + 8 * (3 - number)
        top = 40 + 12 * number
        d.parts.append(
            f'<path d="M{x + 8} {top} Q {low} {top + 210 - 24 * number} {x + 152} {top}" fill="none" '
            f'stroke="{GREEN if number < 3 else AMBER}" stroke-width="3"{"" if number < 3 else " stroke-dasharray=" + chr(34) + "7 5" + chr(34)}/>'
        )
        if number < 3:
            for at in (0.15, 0.4, 0.62, 0.85):
                px = (1 - at) ** 2 * (x + 8) + 2 * at * (1 - at) * low + at**2 * (x + 152)
                py = (1 - at) ** 2 * top + 2 * at * (1 - at) * (top + 210 - 24 * number) + at**2 * top
                d.parts.append(f'<circle cx="{px:.0f}" cy="{py:.0f}" r="5" fill="{BLUE}"/>')
    d.say(20, 22, "loss over the logarithm of the rate: a U on each rung; trials are dots; the target's U is inferred")
    d.say(20, 250, "")
    d.save("concepts/rung.svg")


def version() -> None:
    d = Drawing(760, 230, "A version: a hash of everything that decides the bytes")
    for number, name in enumerate(["sources and revisions", "rules and their settings", "target size, seed"]):
        d.box(10, 20 + 60 * number, 180, 44, name, SLATE)
        d.arrow(194, 42 + 60 * number, 256, 102)
    d.box(260, 72, 150, 60, "version\n63138a790a0f")
    d.arrow(414, 90, 456, 60)
    d.arrow(414, 112, 456, 142)
    d.box(460, 30, 290, 54, "corpora/pile/63138a790a0f/\nparts, report, manifest written last", GREEN)
    d.box(460, 116, 290, 54, "tokens/pile/63138a790a0f/gpt2/train/\nshards, manifest written last", GREEN)
    d.say(10, 216, "Another rule is another version beside the first. The same settings find the same data again.")
    d.save("concepts/version.svg")


def mesh() -> None:
    d = Drawing(800, 290, "A mesh: each rank has a place along every axis, and talks only along lines of the grid")
    for node in range(2):
        x0 = 30 + 424 * node
        d.frame(x0 - 14, 20, 330, 220, f"machine {node}: pipeline stage {node}")
        for shard in range(2):
            for tensor in range(2):
                rank = 4 * node + 2 * shard + tensor
                d.box(
                    x0 + 10 + 160 * tensor,
                    56 + 90 * shard,
                    110,
                    56,
                    f"rank {rank}\nshard {shard}, tensor {tensor}",
                    (BLUE, GREEN)[node],
                )
            d.arrow(x0 + 124, 84 + 90 * shard, x0 + 166, 84 + 90 * shard)
            d.arrow(x0 + 166, 90 + 90 * shard, x0 + 124, 90 + 90 * shard)
        d.arrow(x0 + 65, 115, x0 + 65, 143)
        d.arrow(x0 + 225, 115, x0 + 225, 143)
    d.arrow(350, 134, 436, 134)
    d.say(393, 124, "activations", anchor="middle")
    d.say(
        380,
        272,
        "tensor: inside a machine, all the time  ·  shard: weights and gradients  ·  pipeline: activations",
        anchor="middle",
    )
    d.save("concepts/mesh.svg")


def main() -> None:
    for draw in (pipeline, run, attempt, generation, launch, offer, rung, version, mesh):
        draw()


if __name__ == "__main__":
    main()
