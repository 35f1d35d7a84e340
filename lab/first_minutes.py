"""The first minutes of a new user, in an environment into which the wheel was installed: what it costs and prints.

    python -m lab.first_minutes WHEEL --constraints constraints.txt -o lab/results/first_minutes.json

Installs the wheel into two new environments, without and with the extras for a server. Draws 300 pictures, indexes and searches
them, and then does what a review found wrong, point by point (`POINTS`): every step is a real process. Processor seconds and the
largest resident memory are those of the process and its children. With `--demo INDEX`, memory of a server over it is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from lab import current_commit

COLOURS = {
    "red": (214, 40, 40), "blue": (40, 80, 210), "green": (40, 160, 70), "yellow": (235, 200, 40), "purple": (130, 60, 170),
    "orange": (235, 130, 30), "black": (25, 25, 25),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "heart", "arrow")
SIDE = 256
FEW = 42
MANY = 300
SEED = 7


def draw(shape: str, colour: tuple[int, int, int], rng: random.Random) -> Image.Image:
    """One shape on a nearly white ground, in a random place and size."""
    shade = 250 - rng.randrange(12)
    image = Image.new("RGB", (SIDE, SIDE), (shade, shade, shade))
    pen = ImageDraw.Draw(image)
    r = 60 + rng.randrange(40)
    x = 128 + rng.randrange(-20, 20)
    y = 128 + rng.randrange(-20, 20)
    if shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    else:
        pen.polygon([(x + r * dx, y - r * dy) for dx, dy in outline(shape)], fill=colour)
    return image


def outline(shape: str) -> list[tuple[float, float]]:
    """Corners of a shape within -1 to 1."""
    if shape == "triangle":
        return [(0, 1), (-1, -1), (1, -1)]
    if shape == "arrow":
        return [(-1, 0.25), (0, 0.25), (0, 0.7), (1, 0), (0, -0.7), (0, -0.25), (-1, -0.25)]
    if shape == "star":
        lengths = [1 - 0.55 * (k % 2) for k in range(10)]
        return [(length * math.sin(k * math.pi / 5), length * math.cos(k * math.pi / 5)) for k, length in enumerate(lengths)]
    turns = [k * math.pi / 30 for k in range(60)]
    return [
        (math.sin(t) ** 3, (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17) for t in turns
    ]


def draw_pictures(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    rng = random.Random(SEED)
    for number in range(count):
        colour = list(COLOURS)[number % len(COLOURS)]
        shape = SHAPES[number // len(COLOURS) % len(SHAPES)]
        draw(shape, COLOURS[colour], rng).save(folder / f"{colour}-{shape}-{number:03}.png")


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    command: str
    status: int
    processor_s: float
    peak_mb: int
    output: str  # stdout and stderr

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def short(self, most: int = 12) -> dict[str, Any]:
        body = asdict(self)
        body["output"] = self.lines[:most]
        return body


class Shell:
    """Runs commands of the environment in one folder."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.bin = environment.resolve() / "bin"
        self.folder = folder
        self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "COLUMNS": "120"}
        self.env.pop("PYTHONPATH", None)

    def run(self, command: str) -> Ran:
        """A line of bash; processor seconds and memory of all its processes."""
        log = self.folder / ".log"
        with log.open("w") as file:
            child = subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.env, stdout=file, stderr=file)
            _, status, usage = os.wait4(child.pid, 0)
        used = round(usage.ru_utime + usage.ru_stime, 1)
        return Ran(command, os.waitstatus_to_exitcode(status), used, usage.ru_maxrss // 1024, log.read_text(errors="replace"))

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Server:
    """`genius serve` over an index, until the block ends."""

    def __init__(self, shell: Shell, index: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = shell.start(["genius", "serve", index, "--port", str(self.port)])

    def __enter__(self) -> Server:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                    return self
            except OSError:
                time.sleep(0.3)
        raise SystemExit("the server did not start")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def memory_mb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]


# -- the review, point by point --------------------------------------------------------------------------------------


def explain_tells_the_plan(shell: Shell) -> tuple[bool, str]:
    said = shell.run("genius explain my.genius 'a red heart' -k 1")
    return "plan: flat (300 vectors compared)" in said.output, said.lines[0]


def explain_without_a_fit(shell: Shell) -> tuple[bool, str]:
    said = shell.run("genius explain own.genius 'a red heart' -k 1")
    return "nothing fitted yet" in said.lines[0], said.lines[0]


def looks_for_pictures(shell: Shell) -> tuple[bool, str]:
    shell.run("mkdir mixed && cp photos/red-heart-*.png photos/blue-star-*.png mixed/ && echo 'a red heart' > mixed/words.txt")
    shell.run("genius index mixed -o mixed.genius")
    with Server(shell, "mixed.genius") as server:
        hits = server.post("/v1/search", {"text": "a red heart", "k": 5})["hits"]
    modalities = [hit["modality"] for hit in hits]
    return "text" not in modalities, f"HTTP without a target: {modalities}"


def same_folder_names(shell: Shell) -> tuple[bool, str]:
    shell.run("mkdir -p A/DCIM B/DCIM && cp photos/red-heart-028.png A/DCIM/1.png && cp photos/blue-star-022.png B/DCIM/1.png")
    shell.run("genius index A/DCIM -o z.genius; genius index B/DCIM -o z.genius; genius index A/DCIM -o z.genius")
    said = shell.run("genius info z.genius")
    return "2 items" in said.output, said.lines[0]


def one_file_two_ways(shell: Shell) -> tuple[bool, str]:
    shell.run("mkdir -p pics/shapes && cp photos/red-*.png pics/shapes/")
    shell.run("genius index pics/shapes -o y.genius")
    said = shell.run("genius index pics -o y.genius")
    return "0 added" in said.output, said.lines[0]


def no_debris(shell: Shell) -> tuple[bool, str]:
    said = shell.run("genius search my.genius 'a red heart' -k 2; genius info my.genius; genius nonsense")
    return "nanobind" not in said.output and "leaked" not in said.output, f"{len(said.lines)} lines"


def duplicates_by_look(shell: Shell) -> tuple[bool, str]:
    code = (
        "from PIL import Image; im = Image.open('photos/red-star-021.png'); im.resize((128, 128)).save('dup/small.png'); "
        "im.save('dup/caption.png'); open('dup/caption.txt', 'w').write('my favourite')"
    )
    shell.run(f'mkdir dup && cp photos/*-star-0*.png dup/ && python -c "{code}" && cp photos/red-star-021.png dup/copy.png')
    shell.run("genius index dup -o dup.genius")
    groups = json.loads(shell.run("genius duplicates dup.genius --json 2>/dev/null").output)["groups"]
    own: list[str] = next((group["ids"] for group in groups if "dup/copy.png" in group["ids"]), [])
    colours = {item_id.split("/")[1].split("-")[0] for item_id in own} - {"small.png", "caption.png", "copy.png"}
    copies = {"dup/small.png", "dup/caption.png", "dup/copy.png", "dup/red-star-021.png"}
    return copies <= set(own) and colours == {"red"}, ", ".join(own)


def bundled_encoder_warns(shell: Shell) -> tuple[bool, str]:
    said = shell.run("mkdir one && cp photos/red-star-021.png one/ && genius index one -o one.genius --encoder bundled:mini")
    line = next((line for line in said.lines if "knows drawings" in line), "")
    return bool(line), line


def one_bad_cell(shell: Shell) -> tuple[bool, str]:
    rows = "".join(f"{n},thing {n},{n}\n" for n in range(20))
    (shell.folder / "t.csv").write_text("id,text,price\n" + rows + "bad,a thing,x\n")
    first = shell.run("genius index t.csv -o t.genius")
    found = shell.run("genius search t.genius thing --where 'price < 5' --target text -k 9")
    return first.status == 1 and found.status == 0 and len(found.lines) >= 5, " / ".join(first.lines[-2:])


def heic_names_its_extra(shell: Shell) -> tuple[bool, str]:
    shell.run("mkdir heic && cp photos/red-star-021.png heic/ && echo x > heic/a.heic")
    said = shell.run("genius index heic -o heic.genius")
    line = next((line for line in said.lines if "genius-search[heic]" in line), "")
    return bool(line), line.strip()


def an_object_is_an_encoder(shell: Shell) -> tuple[bool, str]:
    code = (
        "import numpy as np\nfrom genius import Genius, Item\n"
        "class Mine:\n    def encode_texts(self, texts):\n"
        "        return np.array([[len(t), t.count('a'), 1.0] for t in texts], np.float32)\n"
        "model = Genius.from_encoder(Mine()).fit([Item(str(i), text='a' * (i + 1)) for i in range(30)])\nprint(model)\n"
    )
    (shell.folder / "mine.py").write_text(code)
    said = shell.run("python mine.py")
    return said.status == 0 and "Traceback" not in said.output, said.lines[-1]


def own_vectors(shell: Shell) -> tuple[bool, str]:
    shell.run("python -c \"import numpy as np; np.save('v.npy', np.random.default_rng(0).normal(size=(100, 16)))\"")
    said = shell.run("genius index v.npy -o v.genius")
    return said.status == 0, said.lines[-1]


def wrong_calls_are_one_line(shell: Shell) -> tuple[bool, str]:
    calls = (
        "genius find my.genius x",
        "genius search my.genius x --nonsense 3",
        "genius search",
        "genius search nowhere.genius x",
    )
    said = [shell.run(call) for call in calls]
    return all(one.status == 2 and len(one.lines) == 1 for one in said), " / ".join(one.output.strip() for one in said)


def renamed_files_are_told(shell: Shell) -> tuple[bool, str]:
    shell.run("cp -r mixed renamed && genius index renamed -o r.genius && mv renamed/words.txt renamed/other.txt")
    said = shell.run("genius index renamed -o r.genius")
    line = next((line for line in said.lines if "--prune" in line), "")
    return "1 item" in line, line.strip()


def deleted_stays_deleted(shell: Shell) -> tuple[bool, str]:
    shell.run("genius delete r.genius renamed/other.txt")
    said = shell.run("genius index renamed -o r.genius")
    line = next((line for line in said.lines if "--undelete" in line), "")
    return "0 added" in said.output and bool(line), line.strip()


def head_ends_quietly(shell: Shell) -> tuple[bool, str]:
    said = shell.run("genius search my.genius 'a red heart' -k 200 2>errors | head -1")
    errors = (shell.folder / "errors").read_text().splitlines()
    return len(said.lines) == 1 and len(errors) <= 1 and "pipe" not in str(errors).lower(), said.output.strip()


def interrupt_is_one_line(shell: Shell) -> tuple[bool, str]:
    seen = []
    for delay in (0.1, 0.5, 2.0):
        log = shell.folder / "interrupt"
        with log.open("w") as file:
            command = ["genius", "index", "photos", "-o", f"c{delay}.genius"]
            child = subprocess.Popen(
                command,
                cwd=shell.folder,
                env=shell.env,
                stderr=file,
                stdout=file,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
            )
            time.sleep(delay)
            child.send_signal(signal.SIGINT)
            child.wait()
        said = log.read_text().splitlines()
        seen.append((child.returncode, said))
    fine = all(code in (130, -signal.SIGINT) and len(said) <= 1 for code, said in seen)
    return fine, f"status and lines after 0.1, 0.5 and 2 s: {seen}"


def hits_print_short(shell: Shell) -> tuple[bool, str]:
    code = (
        "from PIL import Image\nfrom genius import Index, Item\nindex = Index('print.genius', 'bundled:mini')\n"
        "index.add([Item('a', image=Image.new('RGB', (400, 400), 'red'))])\nprint(index.search('red'))\n"
    )
    (shell.folder / "print.py").write_text(code)
    said = shell.run("python print.py")
    return said.status == 0 and len(said.output) < 400 and "JFIF" not in said.output, said.output.strip()[:200]


def large_pictures_are_read(shell: Shell) -> tuple[bool, str]:
    shell.run("mkdir large && python -c \"from PIL import Image; Image.new('RGB', (12000, 10000), 'red').save('large/a.jpg')\"")
    said = shell.run("genius index large -o large.genius")
    return "1 added" in said.output, said.lines[0]


def composed_query(shell: Shell) -> tuple[bool, str]:
    """README's example of an image and a text, among the shapes of the README."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = readme.split("## Python")[1].split("```python\n")[1].split("```")[0]
    (shell.folder / "readme.py").write_text(code)
    said = shell.run("python readme.py")
    return said.status == 0 and said.output.startswith("filled triangle"), said.output.strip()[:120]


POINTS: dict[str, tuple[str, Callable[[Shell], tuple[bool, str]]]] = {
    "S1": ("explain tells the plan that ran", explain_tells_the_plan),
    "S2": ("HTTP without a target finds pictures", looks_for_pictures),
    "S3": ("README's composed query is answered", composed_query),
    "S4": ("folders of one name do not overwrite each other", same_folder_names),
    "S4b": ("a file reached in two ways is one item", one_file_two_ways),
    "S6": ("no debris after commands", no_debris),
    "H2": ("duplicates: copies, and no other colours", duplicates_by_look),
    "H3": ("--encoder bundled:mini says what it knows", bundled_encoder_warns),
    "H4": ("one bad cell is one bad row, exit status 1", one_bad_cell),
    "H5": ("explain without a fit has one story", explain_without_a_fit),
    "H7": ("HEIC names its extra", heic_names_its_extra),
    "H8": ("an object is an encoder", an_object_is_an_encoder),
    "H9": ("vectors of one's own", own_vectors),
    "M wrong calls": ("one line each", wrong_calls_are_one_line),
    "M renamed": ("a file that is gone is told", renamed_files_are_told),
    "M deleted": ("deleted stays deleted", deleted_stays_deleted),
    "M head": ("`| head` ends quietly", head_ends_quietly),
    "M Ctrl-C": ("one line, at any time", interrupt_is_one_line),
    "M print": ("print(hits) is short", hits_print_short),
    "M large": ("120 megapixels are read", large_pictures_are_read),
}


def install(wheel: Path, extras: str, constraints: Path | None, environment: Path) -> dict[str, Any]:
    """A new environment with the wheel: processor seconds of pip, megabytes, packages."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    shell = Shell(environment, environment.parent)
    given = "" if constraints is None else f"-c {constraints.resolve()}"
    ran = shell.run(f"pip install -q --no-cache-dir {given} '{wheel.resolve()}{extras}'")
    if ran.status:
        raise SystemExit(ran.output)
    return {
        "command": f"pip install 'genius_search-{wheel.name.split('-')[1]}.whl{extras}'",
        "processor_s": ran.processor_s,
        "installed_mb": size_mb(environment),
        "packages": len(list(environment.glob("lib/python*/site-packages/*.dist-info"))),
    }


def first_answer(shell: Shell) -> list[dict[str, Any]]:
    """From 300 files to an answer, with the bundled model."""
    if not (shell.folder / "photos").exists():
        draw_pictures(shell.folder / "photos", MANY)
    return [
        shell.run(command).short()
        for command in ("genius index photos -o my.genius", "genius search my.genius 'a red heart' -k 5")
    ]


def size_mb(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) >> 20


def measure(shell: Shell, demo: Path | None) -> dict[str, Any]:
    """Costs of the first commands, and memory."""
    draw_pictures(shell.folder / "few", FEW)
    body: dict[str, Any] = {}
    own = ("genius index photos -o own.genius --encoder bundled:mini", "genius search own.genius 'a red heart' -k 5")
    body["with_an_encoder"] = [shell.run(command).short() for command in own]
    fits = {}
    for name, count in (("few", FEW), ("photos", MANY)):
        for fit in ("", " --fit"):
            ran = shell.run(f"genius index {name} -o {name}{len(fit)}.genius --encoder bundled:mini{fit}")
            fits[f"{count} pictures{fit}"] = {"processor_s": ran.processor_s, "peak_mb": ran.peak_mb, "status": ran.status}
    body["fit"] = fits
    memory: dict[str, Any] = {"search_peak_mb": shell.run("genius search my.genius 'a red heart'").peak_mb}
    served = {"300 pictures": "my.genius"}
    if demo is not None:
        served["the demo"] = str(demo.resolve())
        memory["search_of_the_demo_peak_mb"] = shell.run(f"genius search {served['the demo']} 'a red heart'").peak_mb
    for name, index in served.items():
        with Server(shell, index) as server:
            ready = server.memory_mb()
            for text in ("a red heart", "a star", "an arrow"):
                server.post("/v1/search", {"text": text})
            memory[f"server over {name}"] = {"ready_mb": ready, "after_searches_mb": server.memory_mb()}
    body["memory"] = memory
    return body


def _tried(shell: Shell, name: str) -> dict[str, Any]:
    """One point of `POINTS`; what cannot be tried is open."""
    what, point = POINTS[name]
    try:
        fine, said = point(shell)
    except Exception as error:
        fine, said = False, f"{type(error).__name__}: {error}"
    print(f"{'ok  ' if fine else 'OPEN'} {name}: {what}: {said}", flush=True)
    return {"what": what, "fine": fine, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path, help="The wheel; with --only, an environment that has it.")
    parser.add_argument("--only", help="Only these points, separated by commas; nothing is installed or measured.")
    parser.add_argument("--constraints", type=Path, help="Of pip: which torch, for example.")
    parser.add_argument("--demo", type=Path, help="An index of the demo, for the memory of a server.")
    parser.add_argument("--keep", type=Path, help="Work in this folder, which is kept, instead of a temporary one.")
    parser.add_argument("-o", "--output", type=Path, default=Path("lab/results/first_minutes.json"))
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    body: dict[str, Any] = {
        "command": "python -m lab.first_minutes WHEEL" + (" --demo demo.genius" if given.demo else ""),
        "commit": current_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu",
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "seed": SEED,
        "pictures": MANY,
        "installs": {},
    }
    if given.only:
        shell = Shell(given.wheel, folder)
        body["first_answer"] = first_answer(shell)
        body["installs"] = {"installed_mb": size_mb(given.wheel)}
        body["command"] = f"python -m lab.first_minutes ENVIRONMENT --only '{given.only}'"
        body["points"] = {name: _tried(shell, name) for name in given.only.split(",")}
        given.output.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    for name, extras in (("without torch", ""), ("with torch", "[demo,serve]")):
        work = folder / name.replace(" ", "-")
        work.mkdir()
        about = install(given.wheel, extras, given.constraints, folder / f"{work.name}-environment")
        shell = Shell(folder / f"{work.name}-environment", work)
        body["installs"][name] = {**about, "first_answer": first_answer(shell)}
    body["torch"] = shell.run('python -c "import torch; print(torch.__version__)"').output.strip()
    try:
        body |= measure(shell, given.demo)
        body["points"] = {name: _tried(shell, name) for name in POINTS}
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    given.output.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    done = sum(point["fine"] for point in body["points"].values())
    print(f"{done} of {len(POINTS)} points; {given.output}")
    if done < len(POINTS):
        sys.exit(1)


if __name__ == "__main__":
    main()
