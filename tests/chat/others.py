"""Families that no reader was made with: the check that readers are general. And TRL's other templates."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tests.chat.family import Family, trl_names
from tests.chat.formats import COHERE, GLM_47, HERMES, LISTED, Calls, compact, gemma_macro, say
from tests.chat.known import KNOWN
from tests.chat.shapes import CHATML, Shape, Thought, but, turns

_THOUGHT = ("<think>\n", "\n</think>\n\n")
_TIGHT = ("<think>", "</think>")
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PLAIN = Family("", "", "qwen2", "<|im_end|>", calls=HERMES, special=_IM, after_text="\n")
_ROLES = Shape(**turns("<|ROLE|>\n", "<|end|>\n"))  # type: ignore[arg-type]
_BARE = replace(CHATML, results=("", ""), tool=("<|im_start|>tool\n", "<|im_end|>\n"))


def _of(name: str, calls: Calls, shape: Shape = _BARE, family: Family = _PLAIN, **more: Any) -> Family:
    """A family whose template writes calls as the model does."""
    marks = re.findall(
        r"</?[a-z_]+>", "".join((calls.first, calls.each, calls.last, *more.get("thought", ())))
    )
    after = {"after_text": shape.after_text, "added": tuple(dict.fromkeys(marks)), **more}
    return replace(family, name=name, calls=calls, template=but(shape, calls=calls), **after)


_XLAM = Calls(LISTED, "[", "]", ", ")
_HUNYUAN = Calls(
    "<tool_call>$NAME\n```json\n$ARGS\n```\n</tool_call>", "<tool_calls>\n", "\n</tool_calls>", "\n"
)
_OLMO_3 = Calls(
    "$NAME($ARGS)",
    "<function_calls>\n",
    "\n</function_calls>",
    "\n",
    argument="$KEY=$VALUE",
    between_arguments=", ",
    values="json",
)
_FUNCTION_GEMMA = Calls(
    "<start_function_call>call:$NAME{$ARGS}<end_function_call>",
    argument="$KEY:$VALUE",
    between_arguments=",",
    values="escape",
)
_LONGCAT = Calls(
    "<longcat_tool_call>$NAME\n$ARGS</longcat_tool_call>",
    between="\n",
    argument="<longcat_arg_key>$KEY</longcat_arg_key>\n<longcat_arg_value>$VALUE</longcat_arg_value>\n",
)
_STEP = Calls(
    "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>",
    between="\n",
    argument="<parameter=$KEY>\n$VALUE\n</parameter>\n",
    values="str",
)
_MINIMAX_M3 = Calls(
    '<invoke name="$NAME">\n$ARGS</invoke>\n',
    "<tool_call>\n",
    "</tool_call>",
    argument="<$KEY>$VALUE</$KEY>\n",
)
_HY3 = Calls(
    "<tool_call>$NAME<tool_sep>\n$ARGS</tool_call>\n",
    "<tool_calls>\n",
    "</tool_calls>",
    argument="<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n",
)
_MINICPM = Calls(
    '<function name="$NAME">$ARGS</function>', argument='<param name="$KEY">$VALUE</param>', between="\n"
)
_APERTUS = Calls('{"$NAME": $ARGS}', "<|tools_prefix|>[", "]<|tools_suffix|>", ", ")
_INTERN = Calls('<|action_start|><|plugin|>{"name": "$NAME", "parameters": $ARGS}<|action_end|>')

OTHERS = [
    # -------------------------------------------------------------- formats of their own
    _of("xLAM-2", _XLAM, after_text="", said_with_calls=None, added=()),
    _of(
        "Hunyuan-A13B",
        _HUNYUAN,
        replace(_BARE, thought=Thought("<think>\n", "\n</think>\n")),
        thought=("<think>\n", "\n</think>\n"),
    ),
    _of("OLMo-3", _OLMO_3),
    _of(
        "FunctionGemma",
        _FUNCTION_GEMMA,
        Shape(
            **turns("<start_of_turn>ROLE\n", "<end_of_turn>\n", {"assistant": "model"}),  # type: ignore[arg-type]
            begin=gemma_macro("<escape>") + "{{- bos_token -}}",
        ),
        end="<end_of_turn>",
        special=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<escape>"),
        bos="<bos>",
        stops=("<end_of_turn>",),
        remark="the published template is refused; read with an example",
    ),
    _of(
        "ERNIE-4.5",
        replace(HERMES, first="\n", last="\n"),
        replace(_BARE, after_text="", thought=Thought(*_THOUGHT)),
        thought=_THOUGHT,
    ),
    _of("LongCat-Flash", _LONGCAT),
    _of("Jamba-1.6", Calls(LISTED, "<tool_calls>[\n", "\n]</tool_calls>", ",\n")),
    _of("MiniMax-M3", _MINIMAX_M3, remark="the published template writes other calls, and is refused"),
    _of("Phi-4-multimodal", Calls(LISTED, "<|tool_call|>[", "]<|/tool_call|>", ", "), _ROLES, end="<|end|>"),
    _of(
        "Step-3.5-Flash",
        _STEP,
        replace(CHATML, thought=Thought(*_THOUGHT), ask=say("<|im_start|>assistant\n<think>\n")),
        thought=_THOUGHT,
    ),
    _of("Hy3", _HY3, replace(_ROLES, thought=Thought(*_TIGHT)), thought=_TIGHT, end="<|end|>"),
    _of("MiniCPM5", _MINICPM, replace(CHATML, thought=Thought(*_THOUGHT)), thought=_THOUGHT),
    _of(
        "Apertus-8B",
        _APERTUS,
        _ROLES,
        end="<|end|>",
        calls_end="<|end|>",
        special=("<|tools_prefix|>", "<|tools_suffix|>"),
    ),
    _of(
        "InternLM2",
        _INTERN,
        end="<|im_end|>",
        special=(*_IM, "<|action_start|>", "<|action_end|>", "<|plugin|>"),
    ),
    _of("Functionary-3.1", Calls("<function=$NAME>$ARGS</function>"), added=()),
    _of("Apriel-1.5", Calls(LISTED, "<tool_calls>[", "]</tool_calls>", ", ")),
    _of(
        "GigaChat3",
        Calls("function call<|role_sep|>\n" + LISTED),
        _ROLES,
        end="<|end|>",
        parallel=False,
        special=("<|role_sep|>",),
        said_with_calls=None,
        remark="the published template is refused; read with an example",
    ),
    _of("Devstral-Small", Calls("[TOOL_CALLS]$NAME[ARGS]$ARGS"), special=(*_IM, "[TOOL_CALLS]", "[ARGS]")),
    _of("Laguna-XS", GLM_47, replace(_ROLES, thought=Thought(*_TIGHT)), thought=_TIGHT, end="<|end|>"),
    _of(
        "Solar-Open",
        Calls("<|tool_call:begin|>$NAME<|tool_call:args|>$ARGS<|tool_call:end|>"),
        _ROLES,
        end="<|end|>",
    ),
    _of(
        "Exaone-4",
        replace(HERMES, each='<tool_call>{"name": "$NAME", "arguments": $ARGS}</tool_call>'),
        replace(_ROLES, thought=Thought(*_THOUGHT)),
        thought=_THOUGHT,
        end="<|end|>",
    ),
    _of(
        "Reka-Edge",
        replace(HERMES, each='<tool_call>\n{"name": "$NAME", "arguments": $ARGS}\n</tool_call>'),
        replace(_BARE, thought=Thought("<reasoning>", "</reasoning>")),
        thought=("<reasoning>", "</reasoning>"),
    ),
    _of("MiMo-VL", HERMES, replace(CHATML, thought=Thought(*_THOUGHT, "all")), thought=_THOUGHT),
    replace(
        _PLAIN,
        name="Granite-3.3",
        template=but(_BARE, calls=None),
        calls=Calls(LISTED, "<|tool_call|>[", "]", ", "),
        unwritten=True,
        special=(*_IM, "<|tool_call|>"),
        after_text="",
    ),
    _of(
        "Command-A",
        COHERE,
        replace(_BARE, said=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
        said=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        said_with_calls=None,
        special=(*_IM, "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_ACTION|>", "<|END_ACTION|>"),
    ),
]
OTHERS = [replace(f, known=False) for f in OTHERS]


# ------------------------------------------------------------------ TRL's other templates


def _trl(like: str, *names: str, **changes: object) -> list[Family]:
    family = next(f for f in KNOWN if f.name == like)
    return [
        replace(family, name=f"{name} (TRL)", template=f"TRL: {name}", **changes)  # type: ignore[arg-type]
        for name in names
    ]


def _muse(calls: object) -> str:
    """Each call is a message of its own to its tool; the first one's beginning is in the prompt."""
    return "<|eom|><|start|>assistant".join(
        f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'
        + "".join(
            f'<atem:parameter name="{k}">{v if isinstance(v, str) else compact(v)}</atem:parameter>\n'
            for k, v in arguments.items()
        )
        + "</atem:invoke>\n</atem:function_calls>"
        for name, arguments in calls  # type: ignore[attr-defined]
    )


_MUSE = Family(
    "",
    "",
    "muse_glimmer",
    "<|eot|>",
    calls=Calls("", as_text=_muse),
    special=("<|begin_of_text|>", "<|start|>", "<|message|>", "<|eot|>", "<|eom|>", "<|patch|>", "<|video|>"),
    bos="<|begin_of_text|>",
    thought=(" to=self<|message|>", "<|eom|><|start|>assistant"),
    said=(" to=user<|message|>", ""),
    said_with_calls=None,
)
_LLAVA = Family("", "", "llava_next", "</s>", special=("<s>", "</s>"), bos="<s>", in_parts=True)
OF_TRL = [
    *_trl("Qwen3.6", "qwen3_8", model_type="qwen3_5"),
    *_trl("Nemotron-3-Nano", "nemotron_3_super"),
    *_trl("Nemotron-3-Ultra", "nemotron_3_5_lightning"),
    *_trl("Gemma-4-31B", "diffusion_gemma"),
    *_trl("LFM2", "lfm2_2_5", "lfm2_2_5_vl", unwritten=False, thought=("<think>", "</think>")),
    replace(_MUSE, name="muse_glimmer (TRL)", template="TRL: muse_glimmer"),
    *_trl("Phi-3.5-mini", "phi3"),
    *_trl("Cohere2 (TRL)", "cohere", calls=None, said=("", "")),
    replace(_LLAVA, name="llava_next (TRL)", template="TRL: llava_next", model_type="llava_next"),
    replace(
        _LLAVA,
        name="idefics3 (TRL)",
        template="TRL: idefics3",
        model_type="idefics3",
        end="<end_of_utterance>",
        special=("<|begin_of_text|>", "<end_of_utterance>"),
        bos="<|begin_of_text|>",
    ),
]


def _training() -> list[Family]:
    """TRL's ``_training`` variants, each like the family whose template it is a variant of."""
    originals = {f.template: f for f in [*KNOWN, *OF_TRL]}
    return [
        replace(
            originals["TRL: " + name.removesuffix("_training")],
            name=f"{name} (TRL)",
            template=f"TRL: {name}",
        )
        for name in trl_names()
        if name.endswith("_training") and "TRL: " + name.removesuffix("_training") in originals
    ]


OF_TRL += _training()
