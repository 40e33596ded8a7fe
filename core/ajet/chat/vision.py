"""A vision-language model's view of images, by its own Hugging Face processor.

The processor says which tokens stand for an image, and gives the arrays that the model computes features from. Both depend
only on the image, so they are made for each image alone and kept for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ajet.chat.images import open_image
from ajet.types import AjetError, Image, Int32

_TEXT_FIELDS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
_KEPT_BYTES = 512 << 20
"""Arrays are kept up to this size, the most recently used ones."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a processor makes of one image."""

    ids: Int32
    """``int32[T]``: the tokens that stand for the image in a prompt. Those below 0 are placeholders, which the model replaces
    by features; models may write others around them."""
    count: int
    """The number of placeholders."""
    inputs: Mapping[str, np.ndarray]
    """The arguments for the model's `get_image_features`, as numpy arrays."""


class Vision:
    """Images through a model's ``processor``. Raises AjetError for a processor whose text for an image could merge with the text
    around it."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.token = str(processor.image_token)
        """The text with which the chat template marks an image."""
        self.placeholder = int(processor.tokenizer.convert_tokens_to_ids(self.token))
        """The id of the model's placeholder token, which stands in the stored ids as `Image.token`."""
        self.images: WeakValueDictionary[str, Image] = WeakValueDictionary()
        """The images that chats refer to, by reference."""
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __deepcopy__(self, memo: Any) -> Vision:
        return self  # copies of a model see alike

    def see(self, image: Image) -> Seen:
        """What the processor makes of an image. Raises AjetError if it refuses the image."""
        with self._lock:
            seen = self._seen.get(image.ref)
            if seen is not None:
                self._seen.move_to_end(image.ref)
                return seen
        seen = self._process(image)
        with self._lock:
            if image.ref not in self._seen:
                self._seen[image.ref] = seen
                self._size += _bytes(seen)
            while self._size > _KEPT_BYTES and len(self._seen) > 1:
                self._size -= _bytes(self._seen.popitem(last=False)[1])
        return seen

    def ids(self, ref: str) -> list[int]:
        """The tokens of an image in a prompt; see `Seen.ids`. Raises AjetError for an image that is not here any more."""
        image = self.images.get(ref)
        if image is None:
            raise AjetError(f"the image {ref} is not in memory; send it again")
        ids: list[int] = self.see(image).ids.tolist()
        return ids

    def unexpanded(self, ids: Sequence[int], images: Iterable[Image]) -> tuple[list[int], list[Image]]:
        """Ids with one placeholder of the tokenizer for each image, for engines that expand images themselves, and the images in
        this order, one entry for each time. Raises AjetError for a part of an image."""
        known = {image.token: image for image in images}
        shortened: list[int] = []
        order: list[Image] = []
        at = 0
        while at < len(ids):
            image = known.get(ids[at])
            if image is None:
                shortened.append(ids[at])
                at += 1
                continue
            written = self.see(image).ids.tolist()
            before = written.index(image.token)
            start = at - before
            if list(ids[start : start + len(written)]) != written:
                raise AjetError(f"the prompt has only a part of the image {image.ref[:15]}")
            shortened[len(shortened) - before :] = [self.placeholder]
            order.append(image)
            at = start + len(written)
        return shortened, order

    def plain(self, ids: list[int]) -> list[int]:
        """Ids as the tokenizer knows them: placeholders of images are all the same token."""
        return [self.placeholder if i < 0 else i for i in ids]

    def _process(self, image: Image) -> Seen:
        try:
            made = self.processor(
                images=[open_image(image)], text=[self.token], add_special_tokens=False, return_tensors="np"
            )
        except Exception as error:  # a processor is foreign code
            reason = " ".join(str(error).split()) or type(error).__name__
            raise AjetError(f"the model's processor refuses the image {image.ref[:15]}: {reason}") from error
        ids = np.array(made["input_ids"], np.int32).reshape(-1)
        added = self.processor.tokenizer.added_tokens_decoder
        if not len(ids) or not {int(ids[0]), int(ids[-1])} <= added.keys():
            raise AjetError(
                f"{type(self.processor).__name__} writes text around an image that could merge with the text beside it; "
                "AgentJet does not support this model's images"
            )
        held = ids == self.placeholder
        inputs = {k: np.asarray(v) for k, v in made.items() if k not in _TEXT_FIELDS}
        return Seen(np.where(held, np.int32(image.token), ids), int(held.sum()), inputs)


def _bytes(seen: Seen) -> int:
    return sum(array.nbytes for array in seen.inputs.values()) + seen.ids.nbytes
