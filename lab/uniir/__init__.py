"""UniIR's CLIP-FF, BLIP-SF and BLIP-FF: the paper's other dense baselines. Importing this module makes `uniir:FILE` read them.

    python -m lab.uniir eval MODEL mbeir:M-BEIR --dense BLIP-FF=uniir:blip_ff_large.pth

is `genius eval` with these encoders; so are all other commands.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from genius.encoders import register
from genius.encoders.base import Encoder
from genius.encoders.checkpoints import clip_tokenizer, fast_tokenizer, find_tokenizer, register_uniir

BERT = "google-bert/bert-base-uncased"

register("clip-ff", "lab.uniir.clip_ff:ClipFfEncoder")
register("blip-sf", "lab.uniir.blip:BlipSfEncoder")
register("blip-ff", "lab.uniir.blip:BlipFfEncoder")


@register_uniir
def read(state: dict[str, Tensor], path: Path) -> Encoder | None:
    """The encoder whose tensors these are; None: another model."""
    from lab.uniir.blip import BlipFfEncoder, BlipSfEncoder
    from lab.uniir.clip_ff import PREFIX, ClipFfEncoder

    if any(name.startswith("visual_encoder.") for name in state):
        family = BlipSfEncoder if "vision_proj.weight" in state else BlipFfEncoder
        return family.from_state(state, bert_tokenizer(path.parent), str(path))
    if any(name.startswith(PREFIX) for name in state):
        return ClipFfEncoder.from_state(state, clip_tokenizer(path.parent), str(path))
    return None


def bert_tokenizer(folder: Path) -> object:
    """BERT's uncased tokenizer: `tokenizer.json` or `vocab.txt`, in the folder or in its `bert` or `tokenizer`."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")}

    def from_words(path: Path) -> object:
        from tokenizers import BertWordPieceTokenizer

        from genius.encoders.transformers_dual import import_transformers

        pieces = BertWordPieceTokenizer(str(path), lowercase=True)
        return import_transformers().PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, **special)

    readers = {"tokenizer.json": fast_tokenizer(special), "vocab.txt": from_words}
    return find_tokenizer(folder, "bert", readers, "[CLS]", BERT)
