"""What in a job excludes each other, or is more than its backbone can do: checked before anything expensive starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities
from ajet.interfaces.base import Settings
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.judge import Judge
from ajet.job.config import JobConfig, TargetSettings
from ajet.job.job import Backbone, TargetPlan
from ajet.learning.demonstrations import read_demonstrations
from ajet.learning.fork_plans import check_judge
from ajet.learning.settings import TrainSettings
from ajet.learning.steering import KEY, check_steering
from ajet.rollout.settings import ForkSettings
from ajet.types import ConfigError, Need
from ajet.utils.suggest import nearest


def check_job(
    config: JobConfig, backbone: Backbone, judge: Judge, algorithm: Algorithm, targets: Sequence[TargetPlan]
) -> None:
    """Raise ConfigError for what the job's parts cannot do together."""
    _check_capabilities(config, backbone, targets, algorithm)
    _check_forks(config.rollout.fork, config.train, judge, algorithm)
    if config.rollout.steer:
        _check_steering(judge, algorithm)
        if file := config.rollout.steer.demonstrations:
            read_demonstrations(file)
    _check_reference(config.train, algorithm)


def target_plans(
    targets: Mapping[str, TargetSettings], named: Sequence[str] | None, frozen: Mapping[str, ChatModelPlugin]
) -> list[TargetPlan]:
    """The targets of a job, of which only those ``named`` in ``train.targets`` are trained; ``frozen`` are the models of those that
    have one. Raises ConfigError."""
    if not targets:
        if named not in (None, ("policy",)):
            raise ConfigError(
                "train.targets",
                f"unknown target {named[0]!r}; the job has only the default one, 'policy'.",
            )
        return [TargetPlan("policy", ("*",), None, True)]
    for name in named or ():
        if name not in targets:
            raise ConfigError(
                "train.targets",
                f"unknown target {name!r}{nearest(name, targets)}. Known: {', '.join(targets)}.",
            )
    plans = [_plan(name, target, named, frozen.get(name)) for name, target in targets.items()]
    if not any(plan.trained for plan in plans):
        raise ConfigError(
            "targets", "none is trained; leave at least one without a frozen_model and train: false."
        )
    own = [plan for plan in plans if plan.model is None and not plan.side]
    whole = [plan.name for plan in own if not plan.lora]
    if whole and len(own) > 1:
        raise ConfigError(
            f"targets.{whole[0]}",
            "trains all weights, on which the adapters of the other targets stand. Give it a lora of its "
            "own, or a frozen_model, or let one target have all agents.",
        )
    return plans


def _plan(
    name: str, target: TargetSettings, named: Sequence[str] | None, model: ChatModelPlugin | None
) -> TargetPlan:
    key, asked = f"targets.{name}", name in (named or ())
    side = not target.train and model is None
    trained = target.train and model is None and (named is None or asked)
    if model is not None and asked:
        raise ConfigError(
            "train.targets", f"{name!r} has a frozen_model, so it cannot be trained. Remove one of the two."
        )
    if model is not None and target.lora:
        raise ConfigError(key, "a frozen_model answers it, so its lora has no effect. Remove one of the two.")
    if side and asked:
        raise ConfigError("train.targets", f"{name!r} has train: false. Remove one of the two.")
    if side and target.lora:
        raise ConfigError(key, "has train: false, so its lora would never be trained. Remove one of the two.")
    if target.lora and not re.fullmatch(r"[\w-]+", name):
        raise ConfigError(
            key, "its lora is a folder of the checkpoint; use only letters, digits, _ and - in its name."
        )
    if model is None and not (trained or target.lora or side):
        raise ConfigError(
            key,
            f"is neither trained nor has a frozen_model. Add it to train.targets, or give it {key}.frozen_model or train: false.",
        )
    return TargetPlan(name, target.agents, model, trained, target.lora, target.models, side)


def _check_reference(train: TrainSettings, algorithm: Algorithm) -> None:
    """ConfigError if ``train.reference`` is missing or has no effect."""
    if train.reference is None:
        if algorithm.teacher:
            raise ConfigError(
                "train.reference",
                f"the algorithm {algorithm.name!r} needs a teacher; name a model of the same tokenizer.",
            )
    elif not train.kl and not algorithm.needs & {"reference", "teacher"}:
        raise ConfigError(
            "train.reference", f"the algorithm {algorithm.name!r} does not use it; remove it or set train.kl."
        )


_MEANING: Mapping[Need, str] = {
    "before": "the logprobs before an update",
    "reference": "a reference model",
    "entropy": "the entropy of each token",
    "pairs": "both episodes of a pair in one pass of the model",
    "values": "a critic",
    "teacher": "the model itself as a teacher that reads feedback",
}
"""What an algorithm needs, in words."""


def check_needs(algorithm: Algorithm, backbone: Backbone, where: str) -> None:
    """Raise ConfigError if the backbone does not have what the algorithm needs, which is named at ``where``."""
    for need in sorted(algorithm.needs - backbone.capabilities.needs):
        raise ConfigError(
            where,
            f"{algorithm.name!r} needs {_MEANING[need]}, which the backbone {backbone.name!r} does not have. Name another "
            "algorithm, or another backbone, such as local.",
        )


def learns_nothing(group_size: int, algorithm: Algorithm) -> str:
    """Why groups of this size teach nothing, and the remedy; "" if they do."""
    if group_size > 1 or any(
        algorithm.advantages(np.array([reward])).any() for reward in (-1e6, 0.0, 1.0, 1e6)
    ):
        return ""
    return (
        f"the algorithm {algorithm.name!r} compares the episodes of a task, so it learns nothing from a group of 1. Set it "
        "to 2 or more, such as 8, or name an algorithm without groups: ppo, or {type: reinforce++, group_baseline: false}."
    )


def _check_capabilities(
    config: JobConfig, backbone: Backbone, targets: Sequence[TargetPlan], algorithm: Algorithm
) -> None:
    can: Capabilities = backbone.capabilities
    if not can.trains:
        return  # it accepts everything and says what it skipped
    trained = [t.name for t in targets if t.trained]
    if len(trained) > 1 and not can.several_targets:
        raise ConfigError(
            "targets",
            f"the backbone {backbone.name!r} trains one target, but {', '.join(trained)} are trained. Give all but one "
            "a frozen_model, or let them share one target.",
        )
    for target in targets:
        if target.lora and not can.lora:
            raise ConfigError(
                f"targets.{target.name}.lora",
                f"the backbone {backbone.name!r} cannot honour it; remove the key.",
            )
    sampling = config.rollout.sampling
    if sampling.truncating and not can.truncated_sampling and (sampling.exact or sampling.min_p):
        raise ConfigError(
            "rollout.sampling",
            f"{sampling.truncating}: the backbone {backbone.name!r} does not learn among which tokens its engine has drawn, so "
            "probabilities would be wrong for training; remove it, use the backbone local, or accept that for top_p and top_k with "
            "rollout.sampling.allow_truncated: true.",
        )
    if config.run.deterministic and not can.deterministic:
        raise ConfigError(
            "run.deterministic",
            f"the backbone {backbone.name!r} cannot repeat runs bit for bit; remove the key.",
        )
    if config.run.restarts and not can.restarts:
        raise ConfigError(
            "run.restarts",
            f"the backbone {backbone.name!r} ends together with the process or machine that fails; remove the key, and "
            "continue with `ajet run --resume RUN_DIR`.",
        )
    check_needs(algorithm, backbone, "train.algorithm")
    if config.train.steps and (why := learns_nothing(config.rollout.group_size, algorithm)):
        raise ConfigError("rollout.group_size", why)
    for key in sorted(OPTIONAL_KEYS - can.keys):
        section, _, name = key.partition(".")
        settings: Settings = getattr(config, section)
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ConfigError(key, f"the backbone {backbone.name!r} cannot honour it; remove the key.")
    clocked = {
        "rollout.oversample": (config.rollout.oversample > 1, "which groups are complete first"),
        "train.asynchronous": (config.train.asynchronous, "which weights sample a token"),
    }
    for key, (asked, what) in clocked.items():
        if config.run.deterministic and asked:
            raise ConfigError(
                key,
                f"{what} depends on the clock, so a run cannot be repeated bit for bit; remove it or run.deterministic.",
            )


def _check_steering(judge: Judge, algorithm: Algorithm) -> None:
    check_steering(judge)
    if algorithm.relative and algorithm.advantages(np.ones(2)).any():
        raise ConfigError(
            KEY,
            f"the algorithm {algorithm.name!r} compares all episodes of a batch, also those that begin elsewhere. Set "
            "group_baseline: true, or name another algorithm, such as grpo.",
        )


def _check_forks(fork: ForkSettings | None, train: TrainSettings, judge: Judge, algorithm: Algorithm) -> None:
    for key, asked in {
        "train.credit": train.credit == "tree",
        "train.call_discount": train.call_discount != 1,
    }.items():
        if asked and not algorithm.relative:
            raise ConfigError(
                key,
                f"the algorithm {algorithm.name!r} has no advantages of single calls; remove the key, or name another algorithm, "
                "such as grpo.",
            )
    if fork is None:
        if train.credit == "tree":
            raise ConfigError("train.credit", "tree has no effect without forks; set rollout.fork: {} too.")
        return
    if algorithm.needs & {"pairs", "values"}:
        raise ConfigError(
            "rollout.fork",
            f"the algorithm {algorithm.name!r} cannot learn from tokens that several episodes share; remove the key, or name another "
            "algorithm, such as grpo.",
        )
    check_judge(judge)
    if fork.where != "uniform" and train.credit != "tree":
        raise ConfigError(
            "rollout.fork.where",
            f"{fork.where} decides by what the model has sampled where it forks, so a group's mean reward is not the model's own, and "
            "train.credit: episode compares with that mean. Set train.credit: tree, or where: uniform.",
        )
