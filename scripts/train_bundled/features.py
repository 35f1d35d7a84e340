"""Step 3, optional: feature sets of the whole benchmark from the vectors that training exported, without running a tower.

    python scripts/train_bundled/features.py --data PACKED --vectors FOLDER --out OUT

writes OUT/features-{train,val,test} (`genius.data.features.FeatureSet`): all validation and test questions, 60,000 training
questions, each over the whole pool. Ids are row numbers of the packed benchmark.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from data import KINDS, SPLITS, read_arrays
from genius.data.features import FeatureSet
from genius.features import Features
from genius.packing import unpack
from genius.types import Modality

WORDS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.PAIR: "pair"}
ASKED = {**WORDS, Modality.PAIR: "image+text"}
NAMES = {task: f"{ASKED[query]}->{WORDS[target]}" for task, (query, target) in KINDS.items()}


def vectors(folder: Path, name: str, count: int) -> Tensor:
    """(count, width): all parts of one export."""
    files = sorted(folder.glob(f"{name}-[0-9]*.safetensors"), key=lambda path: int(path.stem.rsplit("-", 1)[1]))
    found = torch.cat([unpack(load_file(path))["vectors"] for path in files])
    assert len(found) >= count, f"{name}: {len(found)} vectors, {count} expected"
    return found[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "vectors", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--trial", action="store_true", help="of a run with --trial")
    args = parser.parse_args()
    arrays, _, _ = read_arrays(args.data, args.trial)
    rows = {name: tensor.long() for name, tensor in load_file(args.vectors / "rows.safetensors").items()}
    drawings = vectors(args.vectors, "drawings", len(arrays["image_concept"]))
    told = vectors(args.vectors, "pool-texts", len(rows["pool-texts"]))
    image, text = arrays["pool_image"], arrays["pool_text"]
    place = torch.searchsorted(rows["pool-texts"], text.clamp(min=0)).clamp(max=len(told) - 1)
    pool = Features(
        drawings[image.clamp(min=0)] * (image >= 0)[:, None], told[place] * (text >= 0)[:, None], image >= 0, text >= 0
    )
    ids = [str(i) for i in range(len(image))]
    for split in SPLITS:
        some = rows[split]
        asked = arrays[f"{split}_image"][some]
        questions = Features(
            drawings[asked.clamp(min=0)] * (asked >= 0)[:, None],
            vectors(args.vectors, split, len(some)),
            asked >= 0,
            torch.ones_like(asked, dtype=torch.bool),
        )
        lists = arrays[f"{split}_answers"][some]
        sizes = arrays["starts"][lists + 1] - arrays["starts"][lists]
        owner = torch.repeat_interleave(torch.arange(len(some)), sizes)
        offset = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
        pairs = torch.stack([owner, arrays["flat"][arrays["starts"][lists][owner] + offset]], 1)
        tasks = arrays[f"{split}_task"][some]
        FeatureSet(questions, pool, pairs, [str(i) for i in some.tolist()], ids, tasks, NAMES).save(
            args.out / f"features-{split}", torch.float16
        )
        print(f"{split}: {len(questions):,} questions, {len(pool):,} candidates, {len(pairs):,} pairs", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
