"""CLIP through `transformers`: `hf-hub:openai/clip-vit-large-patch14`, or a folder with the same files."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from genius.encoders.transformers_dual import DualEncoder


class ClipEncoder(DualEncoder):
    """psi_image and psi_text of the paper (4.1): the projected class token and the projected end-of-text token."""

    family = "clip"
    model_class = "CLIPModel"

    @property
    def _clip(self) -> Any:
        return self.model

    def _width(self) -> int:
        return int(self._clip.config.projection_dim)

    def _padding(self) -> bool:
        return True  # attention is causal: what follows the end token cannot be seen

    def _pool_images(self, pixels: Tensor) -> Tensor:
        return cast(Tensor, self._clip.visual_projection(self._clip.vision_model(pixel_values=pixels).pooler_output))

    def _pool_texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        return cast(Tensor, self._clip.text_projection(self._clip.text_model(input_ids=ids, attention_mask=mask).pooler_output))
