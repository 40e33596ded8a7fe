"""LoRA adapters (Hu et al., arXiv:2106.09685) over one base model, one for each target, by peft.

peft replaces linear layers of the model by its own, in place: these add the active adapter's output to that of
the base layer. The base weights are frozen and shared by all adapters; with no adapter active, the model is the
base model. A checkpoint contains only the adapters, in peft's layout, one folder each.

peft imports whatever it finds, bitsandbytes with torch's compiler among it, which takes seconds: only functions that need an
adapter import it.
"""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from ajet import AjetError, ConfigError
from ajet_lora.folders import CONFIG, WEIGHTS, saved_adapters

if TYPE_CHECKING:
    from peft import LoraConfig

    from ajet.learning.settings import LoraSettings


class Adapters:
    """The adapters of ``model``, a Hugging Face causal model that they change in place; at first none is active.

    Their weights are float32, or have the model's type if that is more precise. Adding the first one freezes the
    model's own weights.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.active: str | None = None
        self._peft: Any = None

    @property
    def peft(self) -> Any:
        """peft's model, which contains ``model``; None without adapters."""
        return self._peft

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were added."""
        return tuple(map(_target, self._peft.peft_config)) if self._peft else ()

    def add(self, name: str, settings: LoraSettings, seed: int) -> None:
        """Add a new adapter, which does not change the model's output yet; its weights are a function of seed and name.
        Raises ConfigError if the model has no layers of the names in ``settings.modules``, or peft does not adapt them."""
        key, linear = f"targets.{name}.lora.modules", self._linear_layers()
        known = ", ".join(sorted({layer.rpartition(".")[2] for layer in linear}))
        for suffix in settings.modules or ():
            if not any(has_suffix(layer, [suffix]) for layer in linear):
                raise ConfigError(key, f"the model has no linear layer named {suffix!r}; it has {known}.")
        from peft import LoraConfig

        config = LoraConfig(
            r=settings.rank,
            lora_alpha=_alpha(settings),
            target_modules=list(settings.modules) if settings.modules else "all-linear",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big"))
            try:
                self._put(name, config)
            except AjetError as error:
                raise ConfigError(key, f"{error} Name others of the model's layers: {known}.") from error

    def load(self, name: str, folder: Path) -> None:
        """Add an adapter from a folder in peft's layout. Raises AjetError if it does not fit this model."""
        self._put(name, _config(folder))
        self.restore(name, folder)

    def check_modules(self, name: str, settings: LoraSettings) -> None:
        """Raise ConfigError if an adapter covers other layers than ``settings`` name."""
        layers = {n: m for n, m in self.model.named_modules() if _is_adapted(m)}
        adapted = {n for n, layer in layers.items() if _inner(name) in layer.lora_A}
        if adapted != {n for n in self._linear_layers() if has_suffix(n, settings.modules)}:
            suffixes = ", ".join(sorted({n.rpartition(".")[2] for n in adapted}))
            raise ConfigError(
                f"targets.{name}.lora.modules",
                f"the existing adapter covers other layers: {suffixes}. Set it to these.",
            )

    def restore(self, name: str, folder: Path) -> None:
        """Give an adapter the weights that `save` wrote, bit for bit. Raises AjetError if they do not fit."""
        if not (folder / WEIGHTS).is_file():
            raise AjetError(f"adapter {folder}: no {WEIGHTS}. Give a folder in peft's layout.")
        weights = load_file(folder / WEIGHTS)
        own = self.weights(name)
        if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in own.items()}:
            raise AjetError(
                f"adapter {folder}: its weights do not fit the model. Use the model that it was trained on."
            )
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(self._peft, weights, adapter_name=_inner(name))

    def save(self, name: str, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write an adapter in peft's layout; `peft.PeftModel.from_pretrained` reads it. ``weights`` replace its own."""
        folder.mkdir(parents=True, exist_ok=True)
        config = copy.copy(self._peft.peft_config[_inner(name)])
        config.inference_mode = True
        if not isinstance(config.target_modules, str):
            config.target_modules = sorted(config.target_modules)  # the order of a set varies
        config.save_pretrained(str(folder))
        tensors = {key: value.contiguous().cpu() for key, value in (weights or self.weights(name)).items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    def activate(self, name: str | None) -> None:
        """Make the model compute with an adapter, or without one. Raises ValueError for an unknown name."""
        self.check(name)
        if name == self.active or self._peft is None:
            return
        # peft's own method would also change which weights are trained; `train` decides that, for several at once.
        for layer in self.model.modules():
            if _is_adapted(layer):
                layer._disable_adapters = name is None
                layer._active_adapter = [] if name is None else [_inner(name)]
        self.active = name

    def check(self, name: str | None) -> None:
        """Raise ValueError if there is no adapter of this name."""
        if name is not None and name not in self.names:
            raise ValueError(f"the model has no adapter {name!r}")

    def train(self, names: Collection[str]) -> None:
        """Let gradients flow into these adapters and nowhere else."""
        self.model.requires_grad_(False)
        for name in names:
            for parameter in self.parameters(name):
                parameter.requires_grad_(True)

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """The weights of an adapter."""
        part = f".{_inner(name)}."
        return [p for key, p in self.model.named_parameters() if part in key]

    def config(self, name: str) -> dict[str, Any]:
        """What another program must know to compute an adapter, under peft's names."""
        config = self._peft.peft_config[_inner(name)]
        modules = config.target_modules
        return {
            "r": config.r,
            "lora_alpha": config.lora_alpha,
            "target_modules": modules if isinstance(modules, str) else sorted(modules),
            "bias": "none",
        }

    def by_token(self) -> ByToken:
        """Make the model compute with all adapters at once, each on its own tokens."""
        names = self.names
        self._peft.base_model.set_adapter([_inner(name) for name in names])
        self._peft.base_model.enable_adapter_layers()
        layers = [module for module in self.model.modules() if _is_adapted(module)]
        return ByToken(
            [[layer.lora_B[_inner(n)] for layer in layers if _inner(n) in layer.lora_B] for n in names]
        )

    def twin(self) -> Adapters:
        """A second model that shares the base weights and has copies of the adapters and its own active adapter, so
        that one thread can sample from it while another trains the first."""
        copied = {id(p) for name in self.names for p in self.parameters(name)}
        shared = {id(p): p for p in self.model.parameters() if id(p) not in copied}
        return copy.deepcopy(self, shared)

    def merge(self, name: str) -> Any:
        """The plain model with an adapter merged into its weights. Do not use this object afterwards."""
        self.activate(name)
        return self._peft.merge_and_unload(adapter_names=[_inner(name)])

    def _put(self, name: str, config: LoraConfig) -> None:
        from peft import get_peft_model

        config.base_model_name_or_path = self.model.name_or_path or None
        try:
            if self._peft is not None:
                self._peft.add_adapter(_inner(name), config)
            else:
                with warnings.catch_warnings():  # peft uses a name that transformers has deprecated
                    warnings.simplefilter("ignore", FutureWarning)
                    self._peft = get_peft_model(self.model, config, adapter_name=_inner(name))
        except ValueError as error:
            raise AjetError(f"the adapter {name!r} does not fit the model: {error}") from error
        self.model.eval()  # new layers are in training mode
        self.active = name  # peft activated it; now none shall be active
        self.activate(None)
        self.train(())

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        """The weights of an adapter, under peft's names."""
        from peft import get_peft_model_state_dict

        return get_peft_model_state_dict(self._peft, adapter_name=_inner(name), save_embedding_layers=False)

    def _linear_layers(self) -> set[str]:
        head = self.model.get_output_embeddings()
        return {
            name
            for name, module in self.model.named_modules()
            if (isinstance(module, torch.nn.Linear) or _is_adapted(module))
            and module is not head
            and not re.search(r"\.(lora_|base_layer$)", name)
        }


class ByToken:
    """Which tokens each adapter computes; at first none. ``outputs`` are the adapters' last layers, adapter by adapter.

    All adapters take part in each pass, so that ranks that share their weights (FSDP) do the same whatever they compute.
    """

    def __init__(self, outputs: Sequence[Sequence[torch.nn.Module]]) -> None:
        self._tokens: torch.Tensor | None = None
        for number, layers in enumerate(outputs):
            for layer in layers:
                layer.register_forward_hook(partial(self._own, number))

    def choose(self, numbers: torch.Tensor) -> None:
        """Set the adapter of each token of the next passes: ``numbers`` is int64[B, N], or [B, 1] for whole rows, of indices
        of ``outputs``."""
        self._tokens = numbers[..., None]

    def _own(self, number: int, _layer: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * (self._tokens is not None and self._tokens == number)


def prepare(
    model: Any,
    saved: Mapping[str, Path],
    wanted: Mapping[str, LoraSettings] | None,
    seed: int,
) -> Adapters | None:
    """The adapters of a job: each of ``wanted`` is loaded from ``saved`` or, if it is not there, created.

    ``wanted=None`` means all saved ones. Returns None if there are neither. Raises ConfigError if the settings differ
    from those of a saved adapter.
    """
    if not saved and not wanted:
        return None
    adapters = Adapters(model)
    for name in saved if wanted is None else wanted:
        if name in saved:
            if wanted is not None:
                _check_settings(name, wanted[name], saved[name])
            adapters.load(name, saved[name])
            if wanted is not None:
                adapters.check_modules(name, wanted[name])
        else:
            assert wanted is not None
            adapters.add(name, wanted[name], seed)
    return adapters


def base_of(adapter: Path) -> str:
    """The base model of an adapter. Raises AjetError if the adapter names none, or a folder that does not exist."""
    base = _config(adapter).base_model_name_or_path
    if not base:
        raise AjetError(
            f"adapter {adapter}: does not name its base model. Set base_model_name_or_path in {CONFIG}."
        )
    if Path(base).is_absolute() and not Path(base).is_dir():
        raise AjetError(
            f"adapter {adapter}: its base model {base} does not exist. Restore it, or set base_model_name_or_path in "
            f"its {CONFIG} to its new path."
        )
    return str(base)


def base_model(source: str | Path) -> str | Path:
    """The base model of a checkpoint of adapters; any other source unchanged. Raises AjetError as `base_of`."""
    saved = saved_adapters(source)
    return base_of(next(iter(saved.values()))) if saved else source


def load_merged(
    source: str | Path, target: str | None, load: Callable[[str], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Model and tokenizer of a checkpoint of adapters, one of which is merged into the weights: ``target``, or the only one.
    ``load`` returns both for a base model. Raises ConfigError if ``target`` is unknown, or missing where there are several."""
    saved = saved_adapters(source)
    if target is None and len(saved) > 1:
        raise ConfigError(
            f"{source} contains the adapters of {', '.join(saved)}. Choose one (--target NAME), or name {source}/adapters/NAME."
        )
    name = target or next(iter(saved))
    if name not in saved:
        raise ConfigError(f"{source} has no adapter {name!r}; it has {', '.join(saved)}.")
    model, tokenizer = load(base_of(saved[name]))
    adapters = Adapters(model)
    adapters.load(name, saved[name])
    return adapters.merge(name), tokenizer


def has_suffix(name: str, suffixes: Collection[str] | None) -> bool:
    """Whether a module's dotted name ends with one of ``suffixes``; None matches every name."""
    return suffixes is None or any(name == suffix or name.endswith(f".{suffix}") for suffix in suffixes)


def _is_adapted(module: torch.nn.Module) -> bool:
    """Whether peft has put a layer with adapters in a layer's place."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return isinstance(module, BaseTunerLayer)


def _config(folder: Path) -> LoraConfig:
    from peft import LoraConfig, PeftConfig

    config = PeftConfig.from_pretrained(str(folder))
    if not isinstance(config, LoraConfig):
        raise AjetError(f"adapter {folder}: its type is {config.peft_type}, but only LoRA is supported.")
    return config


def _check_settings(name: str, settings: LoraSettings, folder: Path) -> None:
    config = _config(folder)
    # Engines that sample with the adapter learn rank, alpha and layers alone.
    for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save"):
        if value := getattr(config, key):
            raise ConfigError(
                f"targets.{name}.lora",
                f"the adapter in {folder} has {key}={value}, with which none is trained here. `ajet export {folder} DIR` merges it "
                "into a model to train.",
            )
    for key, asked, saved in (
        ("rank", settings.rank, config.r),
        ("alpha", _alpha(settings), config.lora_alpha),
    ):
        if asked != saved:
            raise ConfigError(
                f"targets.{name}.lora.{key}",
                f"is {asked:g}, but the adapter in {folder} has {saved:g}. Set it to that.",
            )


def _alpha(settings: LoraSettings) -> float:
    return 2 * settings.rank if settings.alpha is None else settings.alpha


def _inner(name: str) -> str:
    """peft's name of a target's adapter. It becomes an attribute of a module, so it must not be one of torch's names."""
    return f"target-{name}"


def _target(inner: str) -> str:
    return inner.removeprefix("target-")
