"""SigLIP (and fixed-size SigLIP 2) through `transformers`: `hf-hub:google/siglip2-base-patch16-224`, or a folder."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from genius.encoders.transformers_dual import DualEncoder


class SiglipEncoder(DualEncoder):
    """Attention-pooled picture, last-token text; no projection."""

    family = "siglip"
    model_class = "SiglipModel"

    @property
    def _siglip(self) -> Any:
        return self.model

    def _width(self) -> int:
        return int(self._siglip.config.vision_config.hidden_size)

    def _padding(self) -> str:
        return "max_length"  # it was trained so: padding takes part, and the last position is the one that is read

    def _pool_images(self, pixels: Tensor) -> Tensor:
        return cast(Tensor, self._siglip.vision_model(pixel_values=pixels).pooler_output)

    def _pool_texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        # no attention mask: padding was visible in training
        return cast(Tensor, self._siglip.text_model(input_ids=ids).pooler_output)
