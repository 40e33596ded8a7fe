"""What a vision-language model computes from images: their features, and the positions of the tokens around them.

Stored ids have a number below 0 for each placeholder of an image (`ajet.types.Image.token`). Its embedding is the next feature of
that image. Models with multimodal rotary positions (M-RoPE, Wang et al., arXiv:2409.12191) give the placeholders of an image the
coordinates of its patches, so the positions after it continue from its larger side. Both follow from the ids and the images alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ajet import AjetError
from ajet.chat.images import Images
from ajet.interfaces.engine import Image, Int32
from ajet.interfaces.vision import Vision

Int64 = npt.NDArray[np.int64]
ATTRIBUTE = "ajet_vision"
"""The attribute of a model that holds its `Vision`."""
PROBE_COLOURS = ((200, 30, 60), (20, 120, 220))


@dataclass(frozen=True, slots=True)
class Placed:
    """The placeholders of an image."""

    count: int
    offsets: Int64 | None
    """int64[3, count]: their positions relative to that of the first one; None if positions are counted as in text."""
    advance: int
    """The position after the image, relative to that of its first placeholder."""


@dataclass(frozen=True, slots=True)
class Places:
    """``positions`` are int64[3, T] with M-RoPE, else int64[1, T]; ``rows`` int64[T] is the feature of its image that each
    placeholder stands for, -1 for text."""

    positions: Int64
    rows: Int64


def vision_of_model(model: Any) -> Vision | None:
    """How a model sees images; None if it reads only text."""
    vision: Vision | None = getattr(model, ATTRIBUTE, None)
    return vision


def places(ids: Int32, placed: Mapping[int, Placed], mrope: bool) -> Places:
    """The positions and features of a sequence (int32[T]) from its first token on. Its last image may be cut off. Raises AjetError
    for a placeholder whose image is not in ``placed``."""
    length = len(ids)
    rows = np.full(length, -1, np.int64)
    jumps = np.zeros(length + 1, np.int64)
    starts: list[tuple[int, int]] = []
    for token in dict.fromkeys(ids[ids < 0].tolist()):
        if token not in placed:
            raise AjetError(
                "an image of a recorded episode is missing. Restore the folder `images` of its run."
            )
        image = placed[token]
        index = np.flatnonzero(ids == token)
        rows[index] = np.arange(len(index)) % image.count
        if image.offsets is not None:
            for start in index[rows[index] == 0].tolist():
                starts.append((start, token))
                jumps[min(start + image.count, length)] += image.advance - image.count
    line = np.arange(length) + np.cumsum(jumps)[:length]
    positions = np.tile(line, (3 if mrope else 1, 1))
    for start, token in starts:
        offsets = placed[token].offsets
        assert offsets is not None
        stop = min(start + placed[token].count, length)
        positions[:, start:stop] = line[start] + offsets[:, : stop - start]
    return Places(positions, rows)


def tree_places(ids: Int32, parents: Int32, placed: Mapping[int, Placed], mrope: bool) -> Places:
    """Like `places`, for the tokens of a tree in preorder: each as in the row that leads to it."""
    count = len(ids)
    positions, rows = np.zeros((3 if mrope else 1, count), np.int64), np.full(count, -1, np.int64)
    starts = np.flatnonzero((parents != np.arange(-1, count - 1)) | (parents < 0)).tolist()
    paths: dict[int, Int64] = {}
    """The indices of the row that leads to the first token of a run and goes on to its end."""
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        parent = int(parents[start])
        before = np.zeros(0, np.int64)
        if parent >= 0:
            run = starts[int(np.searchsorted(starts, parent, "right")) - 1]
            before = paths[run][: len(paths[run]) - (int(paths[run][-1]) - parent)]
        path = paths[start] = np.concatenate([before, np.arange(start, stop)])
        at = places(ids[path], placed, mrope)
        positions[:, start:stop] = at.positions[:, len(before) :]
        rows[start:stop] = at.rows[len(before) :]
    return Places(positions, rows)


class Sight:
    """The images of one ``model`` of transformers, through its ``vision``."""

    def __init__(self, model: Any, vision: Vision) -> None:
        self.model = model
        self.vision = vision
        self.mrope = hasattr(model.model, "get_rope_index")
        """Whether positions have three coordinates."""

    @classmethod
    def of(cls, model: Any) -> Sight | None:
        """The sight of a model; None if it reads only text."""
        vision = vision_of_model(model)
        return cls(model, vision) if vision else None

    def placed(self, images: Iterable[Image]) -> dict[int, Placed]:
        """How each image is placed, by its token."""
        return {image.token: self._placed(image) for image in images}

    def _placed(self, image: Image) -> Placed:
        seen = self.vision.see(image)
        if not self.mrope:
            return Placed(seen.count, None, seen.count)
        ids = torch.tensor([[0, *[self.vision.placeholder] * seen.count, 0]])
        kinds = (ids == self.vision.placeholder).int()
        grid = torch.as_tensor(seen.inputs["image_grid_thw"])
        positions = self.model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)[0][
            :, 0
        ]
        offsets = (positions[:, 1:-1] - 1).numpy().astype(np.int64)
        return Placed(seen.count, offsets, int(positions[0, -1]) - 1)

    def features(self, images: Sequence[Image]) -> dict[int, torch.Tensor]:
        """float[count, H] for each image, by its token; gradients flow into the model's vision tower."""
        seen = [self.vision.see(image) for image in images]
        # Arrays of patches can be computed together, those of tiles image by image.
        together = bool(seen) and all(s.inputs["pixel_values"].ndim == 2 for s in seen)
        groups = [list(range(len(seen)))] if together else [[i] for i in range(len(seen))]
        features: dict[int, torch.Tensor] = {}
        for group in groups:
            names = seen[group[0]].inputs
            inputs = {n: self._tensor(np.concatenate([seen[i].inputs[n] for i in group])) for n in names}
            made = self.model.model.get_image_features(**inputs, return_dict=True).pooler_output
            size = self.model.config.get_text_config().hidden_size
            parts = [made] if isinstance(made, torch.Tensor) else list(made)
            flat = torch.cat([part.reshape(-1, size) for part in parts])
            counts = [seen[i].count for i in group]
            if len(flat) != sum(counts):
                raise AjetError(
                    f"the model computes {len(flat)} features for {sum(counts)} placeholders of images"
                )
            features |= {images[i].token: part for i, part in zip(group, flat.split(counts), strict=True)}
        return features

    def embedded(
        self, ids: npt.NDArray[Any], rows: Int64, features: Mapping[int, torch.Tensor]
    ) -> torch.Tensor:
        """The embeddings float[..., H] of tokens int[...], with the features of images in the place of their placeholders."""
        plain = torch.as_tensor(np.where(ids < 0, self.vision.placeholder, ids), device=self.model.device)
        embeds: torch.Tensor = self.model.get_input_embeddings()(plain.long())
        if not (ids < 0).any():
            return embeds
        tokens = list(features)
        ends = np.cumsum([0, *(len(features[token]) for token in tokens)])
        begin = {token: int(end) for token, end in zip(tokens, ends, strict=False)}
        where = np.nonzero(ids < 0)
        index = np.array([begin[token] for token in ids[where].tolist()]) + rows[where]
        table = torch.cat([features[token] for token in tokens])
        chosen = table[torch.as_tensor(index, device=table.device)].to(embeds.dtype)
        return embeds.index_put(tuple(torch.as_tensor(w, device=embeds.device) for w in where), chosen)

    def positions(self, positions: Int64) -> torch.Tensor:
        """Positions int64[3, ...] or int64[1, ...] as the model takes them."""
        return torch.as_tensor(positions if self.mrope else positions[0], device=self.model.device)

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        tensor = torch.as_tensor(array, device=self.model.device)
        return tensor.to(self.model.dtype) if tensor.is_floating_point() else tensor


def images_in(groups: Iterable[Sequence[Image]]) -> list[Image]:
    """Images that occur in several groups, each once. Raises AjetError if two of them have one token, as images of different runs
    may."""
    by_token: dict[int, Image] = {}
    for image in (image for group in groups for image in group):
        if by_token.setdefault(image.token, image).ref != image.ref:
            raise AjetError(
                "two images of different runs have the same token; train these runs in separate jobs"
            )
    return list(by_token.values())


@torch.no_grad()
def check_sight(model: Any) -> None:
    """Check that the model's logits after a picture are those that it computes itself, with its own mask and positions. Raises
    AjetError if they are not: models whose placeholders see each other in both directions, or whose later layers get features,
    cannot be computed token by token from left to right."""
    sight = Sight.of(model)
    if sight is None:
        return
    image = _probe_image()
    seen = sight.vision.see(image)
    text = model.get_input_embeddings().num_embeddings
    around = [i % min(text, 50) for i in (3, 5, 7)]
    ids = np.array([*around, *seen.ids.tolist(), *around], np.int32)
    at = places(ids, sight.placed([image]), sight.mrope)
    embeds = sight.embedded(ids[None], at.rows[None], sight.features([image]))
    ours = model(
        inputs_embeds=embeds, position_ids=sight.positions(at.positions[:, None]), use_cache=False
    ).logits[0, -3:]
    plain = torch.tensor([sight.vision.plain(ids.tolist())], device=model.device)
    kinds = (plain == sight.vision.placeholder).int()
    inputs = {name: sight._tensor(array) for name, array in seen.inputs.items()}
    more = {"mm_token_type_ids": kinds} if sight.mrope else {}
    theirs = model(input_ids=plain, use_cache=False, **inputs, **more).logits[0, -3:]
    tolerance = 100 * torch.finfo(theirs.dtype).eps * theirs.abs().max()
    if (ours - theirs).abs().max() > tolerance:
        raise AjetError(
            f"the local engine cannot compute the images of {model.config.model_type!r}: its tokens after an image depend on more than "
            "the features in place of the placeholders. Use a model such as Qwen2.5-VL, or send text."
        )


def _probe_image() -> Image:
    import io

    from PIL import Image as Pillow

    picture = Pillow.new("RGB", (56, 40), PROBE_COLOURS[0])
    picture.paste(PROBE_COLOURS[1], (8, 8, 40, 24))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return Images().add(out.getvalue(), "the probe")
