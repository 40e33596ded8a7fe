"""The families that the readers of calls were made with.

Templates come from the installed TRL, or have the shape of the published one (`tests.chat.shapes`). Which tokens are special,
and which stops `generation_config.json` names, is from the published files.
"""

from __future__ import annotations

from dataclasses import replace

from tests import harmony
from tests.chat.family import Family
from tests.chat.formats import (
    CODER,
    COHERE,
    COMMAND_R_PLUS,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    GEMMA_4,
    GLM,
    GLM_47,
    HARMONY,
    HERMES,
    KIMI,
    KIMI_K3,
    LISTED,
    LLAMA,
    MINIMAX,
    MISTRAL,
    MISTRAL_WITH_ID,
    PYTHON,
    SEED,
    Call,
    Calls,
    dsml,
    gemma_macro,
    say,
)
from tests.chat.shapes import CHATML, Shape, Thought, but, turns

# ------------------------------------------------------------------ tokens

_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TOOL_CALL = ("<tool_call>", "</tool_call>")
_THINK = ("<think>", "</think>")
_QWEN3 = (*_TOOL_CALL, "<tool_response>", "</tool_response>", *_THINK)
_LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|eom_id|>", "<|python_tag|>", "<|finetune_right_pad_id|>"),
)
_LLAMA_4 = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>"),
    *("<|python_start|>", "<|python_end|>"),
)
_DS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
_DS_CALLS = tuple(
    f"<｜tool▁{kind}▁{end}｜>" for kind in ("calls", "call", "outputs", "output") for end in ("begin", "end")
)
_DS_ADDED = ("<｜User｜>", "<｜Assistant｜>", "<|EOT|>", *_DS_CALLS, "<｜tool▁sep｜>", *_THINK, "｜DSML｜")
_GLM = (
    *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
)
_GLM_ADDED = (*_QWEN3, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink")
_KIMI = (
    *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("[EOT]", "<|media_start|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"),
)
_KIMI_ADDED = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", *_THINK),
)
_GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>")
_GEMMA_4 = (
    *("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
    *("<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>', "<|image|>"),
)
_SEED = (
    *("<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>"),
    *("</seed:cot_budget_reflect>", "<seed:tool_call>", "</seed:tool_call>"),
)
_MISTRAL = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[IMG]"),
    *("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
)
_COHERE = (
    *("<PAD>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
_PHI = (
    *("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>"),
    *("<|tool_call|>", "<|/tool_call|>", "<|tool_response|>"),
)
_LFM = (
    *("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_list_start|>"),
    *("<|tool_list_end|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>"),
    "<|tool_response_end|>",
)
_GRANITE = ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>")
_NEMOTRON = ("<s>", "<unk>", "<|im_start|>", "<|im_end|>", "</s>")
_MUSE = ("<|begin_of_text|>", "<|start|>", "<|message|>", "<|eot|>", "<|eom|>", "<|patch|>", "<|video|>")

# ------------------------------------------------------------------ what many families share

_THOUGHT = ("<think>\n", "\n</think>\n\n")
_TIGHT = ("<think>", "</think>")
_BOS = "{{- bos_token -}}"
_THINKS = Thought(*_THOUGHT, keep="loop")
_ALWAYS = Thought(*_THOUGHT, keep="loop", without_in_loop="<think>\n\n</think>\n\n")
"""The thoughts' markers stand in each answer after the last user message, also without thoughts."""
_OPENED = say("<|im_start|>assistant\n<think>\n")
_STRICT = "m.content.split('</think>')[-1].lstrip('\\n')"
"""Raises an error for an answer without content."""

_QWEN = Family("", "", "qwen2", "<|im_end|>", calls=HERMES, special=_IM, added=_TOOL_CALL, after_text="\n")
_QWEN_3 = replace(_QWEN, model_type="qwen3", added=_QWEN3, thought=_THOUGHT)
_QWEN_3_5 = replace(_QWEN_3, model_type="qwen3_5", calls=CODER, after_text="\n\n")
_LLAMA_3 = Family(
    "",
    "",
    "llama",
    "<|eot_id|>",
    calls=LLAMA,
    special=_LLAMA,
    bos="<|begin_of_text|>",
    stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    parallel=False,
)
_LLAMA_ALSO: dict[str, tuple[str, list[Call]]] = {
    "with the tool's token": (
        '<|python_tag|>{"name": "ping", "parameters": {}}<|eom_id|>',
        [("ping", {})],
    ),
    "two with a semicolon": (
        '{"name": "write", "parameters": {"text": "a"}}; {"name": "ping", "parameters": {}}<|eot_id|>',
        [("write", {"text": "a"}), ("ping", {})],
    ),
}
_LLAMA_4_ = replace(
    _LLAMA_3,
    model_type="llama4",
    end="<|eot|>",
    special=_LLAMA_4,
    stops=("<|end_of_text|>", "<|eom|>", "<|eot|>"),
)
_LLAMA_SHAPE = Shape(
    **turns(  # type: ignore[arg-type]
        "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", {"tool": "ipython"}
    ),
    begin=_BOS,
    calls=LLAMA,
)
_ONE_CALL = (
    "{%- for m in messages -%}{%- if m.tool_calls and m.tool_calls | length > 1 -%}"
    "{{- raise_exception('This model calls one tool at a time') -}}{%- endif -%}{%- endfor -%}"
)
_LLAMA_4_SHAPE = replace(
    _LLAMA_SHAPE,
    **turns("<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>", {"tool": "ipython"}),  # type: ignore[arg-type]
)
_DEEPSEEK = Family(
    "",
    "",
    "deepseek_v3",
    "<｜end▁of▁sentence｜>",
    calls=DEEPSEEK_V3,
    special=_DS,
    added=_DS_ADDED,
    bos="<｜begin▁of▁sentence｜>",
)
_DS_SHAPE = Shape(
    ("<｜User｜>", ""),
    ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    ("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ("", ""),
    begin=_BOS,
    results=("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    calls=DEEPSEEK_V3,
)
_DS_31_SHAPE = replace(
    _DS_SHAPE,
    tools="hidden",
    calls=DEEPSEEK_V31,
    results=("", ""),
    asks_after_results=False,
    thought=Thought("<think>", "</think>", "none", without="</think>"),
    ask=say("<｜Assistant｜>") + "{{- '<think>' if thinking else '</think>' -}}",
)
_DS_32_SHAPE = replace(
    _DS_SHAPE,
    tool=("<function_results>\n<result>", "</result>\n</function_results>"),
    results=("\n\n", "\n\n"),
    calls=dsml("function_calls"),
    thought=Thought("<think>", "</think>", "loop", without="</think>"),
    ask=say("<｜Assistant｜>") + "{{- '<think>' if thinking else '</think>' -}}",
)
_GLM_FAMILY = Family(
    "",
    "",
    "glm4_moe",
    "<|user|>",
    calls=GLM,
    special=_GLM,
    added=_GLM_ADDED,
    eos="<|endoftext|>",
    stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    thought=("\n<think>", "</think>\n"),
    after_text="\n",
    calls_end="<|observation|>",
)
_GLM_SHAPE = Shape(
    ("<|user|>\n", ""),
    ("<|assistant|>", ""),
    ("\n<tool_response>\n", "\n</tool_response>"),
    ("<|system|>\n", ""),
    begin=say("[gMASK]<sop>"),
    calls=replace(GLM, first="\n"),
    results=("<|observation|>", ""),
    content="m.content ~ ''",  # None becomes a word
    thought=Thought("\n<think>", "</think>", without="\n<think></think>"),
    said=("\n", ""),
)
_GLM_47_SHAPE = replace(
    _GLM_SHAPE,
    **{
        role: (turn[0].rstrip("\n"), turn[1].rstrip("\n"))
        for role, turn in (("user", ("<|user|>", "")), ("system", ("<|system|>", "")))
    },  # type: ignore[arg-type]
    tool=("<tool_response>", "</tool_response>"),
    calls=GLM_47,
    thought=Thought("<think>", "</think>", without="</think>"),
    said=("", ""),
    ask=say("<|assistant|>") + "{{- '</think>' if enable_thinking is false else '<think>' -}}",
)
_GLM_47_FAMILY = replace(_GLM_FAMILY, calls=GLM_47, thought=_TIGHT, after_text="")
_KIMI_FAMILY = Family(
    "",
    "",
    "kimi_k2",
    "<|im_end|>",
    calls=KIMI,
    special=_KIMI,
    added=_KIMI_ADDED,
    bos="[BOS]",
    eos="[EOS]",
)
_KIMI_SHAPE = Shape(
    ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
    ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
    ("<|im_system|>tool<|im_middle|>## Return of a tool\n", "<|im_end|>"),
    ("<|im_system|>system<|im_middle|>", "<|im_end|>"),
    tools="own_turn",
    tools_turn=("<|im_system|>tool_declare<|im_middle|>", "<|im_end|>"),
    calls=replace(KIMI, each=KIMI.each.replace("functions.$NAME:$INDEX", "$ID")),
    example=Calls(""),
)
_QUEUED = (
    "{%- set queue = namespace(ids=[]) -%}{%- for m in messages -%}{%- for call in m.tool_calls or [] -%}"
    "{%- set _ = queue.ids.append(call.id) -%}{%- endfor -%}{%- endfor -%}"
)
"""What the sandbox of transformers refuses as soon as there is a call."""
_GEMMA_FAMILY = Family(
    "",
    "",
    "gemma3",
    "<end_of_turn>",
    special=_GEMMA,
    bos="<bos>",
    eos="<eos>",
    stops=("<eos>", "<end_of_turn>"),
)
_GEMMA_4_FAMILY = Family(
    "",
    "",
    "gemma4",
    "<turn|>",
    calls=GEMMA_4,
    special=_GEMMA_4,
    bos="<bos>",
    eos="<eos>",
    stops=("<eos>", "<turn|>", "<|tool_response>"),
    calls_end="<|tool_response>",
    thought=("<|channel>thought\n", "\n<channel|>"),
)
_GEMMA_4_SHAPE = Shape(
    ("<|turn>user\n", "<turn|>\n"),
    ("<|turn>model\n", "<turn|>\n"),
    ("response:tool{value:", "}<tool_response|>"),
    ("<|turn>system\n", "<turn|>\n"),
    begin=gemma_macro('<|"|>') + _BOS,
    calls=GEMMA_4,
    tools_turn=("<|tool>", "<tool|>"),
    calls_end="<|tool_response>",
    asks_after_results=False,
    thought=Thought("<|channel>thought\n", "\n<channel|>"),
)
_MISTRAL_FAMILY = Family("", "", "mistral", "</s>", calls=MISTRAL, special=_MISTRAL, bos="<s>")
_MISTRAL_SHAPE = Shape(
    ("[INST]", "[/INST]"),
    ("", "</s>"),
    ('[TOOL_RESULTS]{"content": ', "}[/TOOL_RESULTS]"),
    ("", ""),
    begin=_BOS,
    tools="before_last_user",
    tools_turn=("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    calls=MISTRAL_WITH_ID,
    example=Calls(""),
    text_before_calls=False,
    merge_system=True,
    checks=(
        "{%- for m in messages -%}{%- for call in m.tool_calls or [] -%}{%- if call.id | length != 9 -%}"
        "{{- raise_exception('Ids of calls have 9 characters') -}}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    ),
)
_MISTRAL_3_SHAPE = replace(
    _MISTRAL_SHAPE,
    system=("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    tools="own_turn",
    merge_system=False,
    text_before_calls=True,
)
_NEMOTRON_FAMILY = replace(
    _QWEN_3_5,
    model_type="nemotron_h",
    special=_NEMOTRON,
    added=(*_THINK, *_TOOL_CALL),
    bos="<s>",
    stops=("<|im_end|>", "</s>"),
    after_text="\n",
)
_GRANITE_FAMILY = Family(
    "",
    "",
    "granite",
    "<|end_of_text|>",
    calls=HERMES,
    special=_GRANITE,
    added=_TOOL_CALL,
    bos="<|end_of_text|>",
    after_text="\n",
)
_GRANITE_SHAPE = Shape(
    **turns("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n"),  # type: ignore[arg-type]
    calls=HERMES,
    after_text="\n",
)
_COHERE_FAMILY = Family(
    "",
    "",
    "cohere2",
    "<|END_OF_TURN_TOKEN|>",
    calls=COHERE,
    special=_COHERE,
    bos="<BOS_TOKEN>",
    thought=("<|START_THINKING|>", "<|END_THINKING|>"),
    said=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    said_with_calls=None,
)
_COHERE_SHAPE = Shape(
    **{  # type: ignore[arg-type]
        role: (f"<|START_OF_TURN_TOKEN|><|{token}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
        for role, token in (("user", "USER"), ("assistant", "CHATBOT"), ("system", "SYSTEM"))
    },
    tool=('{"content": "', '"}'),
    results=(
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[",
        "]<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>",
    ),
    begin=_BOS,
    calls=COHERE,
    thought=Thought("<|START_THINKING|>", "<|END_THINKING|>"),
    said=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
_NEEDS_TOOLS = "{%- for tool in tools -%}{%- endfor -%}"
"""Raises an error without tools."""
_LFM_FAMILY = Family(
    "",
    "",
    "lfm2",
    "<|im_end|>",
    calls=replace(PYTHON, first="<|tool_call_start|>[", last="]<|tool_call_end|>"),
    special=_LFM,
    added=_THINK,
    bos="<|startoftext|>",
)
_ROLES = Shape(**turns("<|ROLE|>", "<|end|>"))  # type: ignore[arg-type]
_HERMES_SHAPE = replace(
    CHATML,
    tool=("<tool_response>\n", "\n</tool_response>{{END}}"),
    results=("<|im_start|>tool\n", "<|im_end|>"),
)


def _hermes(begin: str = "", checks: str = "") -> str:
    """The last result of a chat lacks a line feed that it has when a message follows."""
    template = replace(_HERMES_SHAPE, begin=begin, checks=checks).template()
    return template.replace("{{END}}", "' ~ ('' if loop.last else '\\n') ~ '")


_R_PLUS_CHECKS = (
    _NEEDS_TOOLS + "{%- for tool in tools -%}{%- for p in tool.function.parameters.properties.values() -%}"
    "{%- if p.type == 'object' and p.additionalProperties.type == 'string' -%}{%- endif -%}"
    "{%- endfor -%}{%- endfor -%}"
)
"""Raises an error for a parameter that is an object of any kind."""
_FUNCTOOLS = Calls(LISTED, "functools[", "]", ", ")


def _listed(begin: str, end: str) -> Calls:
    return Calls(LISTED, f"{begin}[", f"]{end}", ", ")


KNOWN = [
    # -------------------------------------------------------------- Qwen and other ChatML
    replace(_QWEN, name="Qwen2.5", template="TRL: qwen2_5"),
    replace(_QWEN, name="Qwen2.5-7B (llama.cpp)", template=but(CHATML)),
    replace(
        _QWEN_3,
        name="QwQ-32B",
        model_type="qwen2",
        template=but(CHATML, ask=_OPENED, content=_STRICT),
    ),
    replace(_QWEN_3, name="Qwen3", template="TRL: qwen3"),
    replace(
        _QWEN_3,
        name="Qwen3-0.6B (llama.cpp)",
        template=but(CHATML, thought=_ALWAYS, content=_STRICT),
    ),
    replace(_QWEN_3, name="Qwen3-Instruct-2507", template="TRL: qwen3_instruct_2507", thought=None),
    replace(
        _QWEN_3_5,
        name="Qwen3-Coder",
        model_type="qwen3_moe",
        template=but(CHATML, calls=CODER),
        thought=None,
        after_text="\n",
    ),
    replace(_QWEN_3, name="Qwen3-VL", template="TRL: qwen3_vl", model_type="qwen3_vl", thought=None),
    replace(_QWEN, name="Qwen2.5-VL", template="TRL: qwen2_5_vl", model_type="qwen2_5_vl", unwritten=True),
    replace(_QWEN_3_5, name="Qwen3.5 think", template="TRL: qwen3_5_think"),
    replace(_QWEN_3_5, name="Qwen3.5 nothink", template="TRL: qwen3_5_nothink", thought=None),
    replace(_QWEN_3_5, name="Qwen3.6", template="TRL: qwen3_6", model_type="qwen3_5_moe"),
    replace(
        _QWEN,
        name="Hermes-3-Llama-3.1",
        model_type="llama",
        template=_hermes(_BOS, _NEEDS_TOOLS),
        special=(*_LLAMA, "<|im_start|>", "<|im_end|>"),
        bos="<|begin_of_text|>",
    ),
    replace(_QWEN, name="Hermes (vLLM)", model_type="llama", template=_hermes()),
    # -------------------------------------------------------------- Llama
    replace(
        _LLAMA_3,
        name="Llama-3 (TRL)",
        template="TRL: llama3",
        calls=None,
        stops=("<|end_of_text|>", "<|eot_id|>"),
    ),
    replace(_LLAMA_3, name="Llama-3.1", template="TRL: llama3_1", also=_LLAMA_ALSO),
    replace(_LLAMA_3, name="Llama-3.2", template="TRL: llama3_2", also=_LLAMA_ALSO),
    replace(
        _LLAMA_3,
        name="Llama-3.3",
        template=but(_LLAMA_SHAPE, checks=_ONE_CALL, text_before_calls=False),
        also=_LLAMA_ALSO,
    ),
    replace(_LLAMA_3, name="Llama-3.1 json (vLLM)", template=but(_LLAMA_SHAPE, checks=_ONE_CALL)),
    replace(
        _LLAMA_3,
        name="Llama-3.2 json (vLLM)",
        template=but(_LLAMA_SHAPE, checks=_ONE_CALL, tools="before_last_user"),
    ),
    replace(
        _LLAMA_3,
        name="Llama-3.2 pythonic (vLLM)",
        template=but(_LLAMA_SHAPE, calls=replace(PYTHON, values="bare")),
        calls=PYTHON,
        parallel=True,
        said_with_calls=None,
    ),
    replace(_LLAMA_4_, name="Llama-4 json (vLLM)", template=but(_LLAMA_4_SHAPE)),
    replace(
        _LLAMA_4_,
        name="Llama-4 pythonic (vLLM)",
        template=but(_LLAMA_4_SHAPE, calls=replace(PYTHON, values="bare"), calls_end="<|eom|>"),
        calls=PYTHON,
        parallel=True,
        said_with_calls=None,
        calls_end="<|eom|>",
    ),
    replace(
        _LLAMA_4_,
        name="Llama-4 (axolotl)",
        template=but(_LLAMA_4_SHAPE, calls=replace(LLAMA, first="<|python_start|>", last="<|python_end|>")),
        calls=PYTHON,
        parallel=True,
        said_with_calls=None,
        unwritten=True,
    ),
    # -------------------------------------------------------------- DeepSeek
    replace(
        _DEEPSEEK,
        name="Nemotron-Super-49B/DeepSeek-R1-Distill-Llama",
        model_type="llama",
        template=but(
            _DS_SHAPE,
            tools="hidden",
            calls=None,
            content="(m.content or '').split('</think>')[-1]",
            ask=say("<｜Assistant｜><think>\n"),
        ),
        thought=_THOUGHT,
        unwritten=True,
    ),
    replace(
        _DEEPSEEK,
        name="DeepSeek-R1-Distill-Qwen",
        model_type="qwen2",
        template="TRL: deepseek_r1_distill",
        thought=_THOUGHT,
        unwritten=True,  # it asks for a content of null, which transformers takes away
    ),
    replace(
        _DEEPSEEK, name="DeepSeek-V3 (TRL)", template="TRL: deepseekv3", thought=_THOUGHT, unwritten=True
    ),
    replace(
        _DEEPSEEK,
        name="DeepSeek-V3 (vLLM)",
        template=but(_DS_SHAPE, content="m['content'] + ''"),
    ),
    replace(_DEEPSEEK, name="DeepSeek-V3.1", template=but(_DS_31_SHAPE), calls=DEEPSEEK_V31),
    replace(
        _DEEPSEEK,
        name="DeepSeek-V3.1 thinking",
        template=but(_DS_31_SHAPE),
        calls=DEEPSEEK_V31,
        thought=_TIGHT,
        variables={"thinking": True},
    ),
    replace(
        _DEEPSEEK,
        name="DeepSeek-V3.2",
        model_type="deepseek_v32",
        template=but(_DS_32_SHAPE),
        calls=dsml("function_calls"),
    ),
    replace(
        _DEEPSEEK,
        name="DeepSeek-V4",
        model_type="deepseek_v4",
        template=but(_DS_32_SHAPE, calls=dsml("tool_calls")),
        calls=dsml("tool_calls"),
        thought=_TIGHT,
        variables={"thinking": True},
    ),
    # -------------------------------------------------------------- GLM
    replace(_GLM_FAMILY, name="GLM-4.5 (TRL glm4moe)", template="TRL: glm4moe"),
    replace(_GLM_FAMILY, name="GLM-4.6", template=but(_GLM_SHAPE)),
    replace(_GLM_47_FAMILY, name="GLM-4.7-Flash", model_type="glm4_moe_lite", template=but(_GLM_47_SHAPE)),
    replace(_GLM_47_FAMILY, name="GLM-5.2", model_type="glm_moe_dsa", template=but(_GLM_47_SHAPE)),
    # -------------------------------------------------------------- Kimi, MiniMax
    replace(_KIMI_FAMILY, name="Kimi-K2", template=but(_KIMI_SHAPE, checks=_QUEUED), unwritten=True),
    replace(_KIMI_FAMILY, name="Kimi-K2 (moonshotai)", template=but(_KIMI_SHAPE)),
    replace(
        _KIMI_FAMILY,
        name="Kimi-K2-Thinking",
        template=but(
            _KIMI_SHAPE,
            checks=_QUEUED,
            thought=Thought("<think>", "</think>", "after_answer", without="<think></think>"),
        ),
        thought=_TIGHT,
        unwritten=True,
    ),
    Family(
        "Kimi-K3",
        but(
            Shape(
                **turns(  # type: ignore[arg-type]
                    '<|open|>message role="ROLE"<|sep|>', "<|close|>message<|sep|><|end_of_msg|>"
                ),
                tools="own_turn",
                tools_turn=(
                    '<|open|>message role="system" type="tool-declare"<|sep|>',
                    "<|close|>message<|sep|><|end_of_msg|>",
                ),
                calls=KIMI_K3,
                example=Calls(""),
                thought=Thought(
                    *("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
                    keep="all",
                    without="<|open|>think<|sep|><|close|>think<|sep|>",
                ),
                said=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
                said_always=True,
                ask=say('<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'),
            )
        ),
        "kimi_k3",
        "<|close|>message<|sep|><|end_of_msg|>",
        calls=KIMI_K3,
        special=("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"),
        bos="[BOS]",
        eos="[EOS]",
        stops=("<|end_of_msg|>",),
        thought=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        said=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        said_with_calls=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    ),
    Family(
        "MiniMax-M2",
        but(
            Shape(
                ("]~b]user\n", "[e~[\n"),
                ("]~b]ai\n", "[e~[\n"),
                ("\n<response>", "</response>"),
                ("]~!b[]~b]system\n", "[e~[\n"),
                results=("]~b]tool", "[e~[\n"),
                calls=MINIMAX,
                thought=Thought(*_THOUGHT),
                ask=say("]~b]ai\n<think>\n"),
            )
        ),
        "minimax_m2",
        "[e~[",
        calls=MINIMAX,
        special=("]!p~[", "]~!b[", "]~b]", "[e~["),
        added=(*_THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
        bos="]~!b[",
        thought=_THOUGHT,
    ),
    # -------------------------------------------------------------- Gemma
    replace(_GEMMA_FAMILY, name="Gemma-2", model_type="gemma2", template="TRL: gemma", system=False),
    replace(_GEMMA_FAMILY, name="Gemma-3 (TRL)", template="TRL: gemma3"),
    replace(
        _GEMMA_FAMILY,
        name="Gemma-3n (axolotl)",
        model_type="gemma3n",
        template=but(
            Shape(
                **turns("<start_of_turn>ROLE\n", "<end_of_turn>\n", {"assistant": "model"}),  # type: ignore[arg-type]
                begin=_BOS,
                tools="hidden",
                merge_system=True,
                content="m.content | trim",
            )
        ),
    ),
    replace(_GEMMA_4_FAMILY, name="Gemma-4-31B", template="TRL: gemma4", thought=None),
    replace(
        _GEMMA_4_FAMILY,
        name="Gemma-4 interleaved",
        template=but(_GEMMA_4_SHAPE, ask=say("<|turn>model\n<|channel>thought\n<channel|>")),
        thought=None,
    ),
    replace(_GEMMA_4_FAMILY, name="Gemma-4 (axolotl)", template=but(_GEMMA_4_SHAPE)),
    # -------------------------------------------------------------- Seed, Mistral
    Family(
        "Seed-OSS",
        but(
            Shape(
                **turns("<seed:bos>ROLE\n", "<seed:eos>"),  # type: ignore[arg-type]
                calls=SEED,
                thought=Thought("<seed:think>", "</seed:think>", "all"),
            )
        ),
        "seed_oss",
        "<seed:eos>",
        calls=SEED,
        special=_SEED,
        bos="<seed:bos>",
        thought=("<seed:think>", "</seed:think>"),
    ),
    replace(_MISTRAL_FAMILY, name="Mistral-Nemo-2407", template=but(_MISTRAL_SHAPE), said_with_calls=None),
    replace(
        _MISTRAL_FAMILY,
        name="Mistral-Small-3.2",
        model_type="mistral3",
        template=but(
            _MISTRAL_3_SHAPE,
            calls=Calls("[TOOL_CALLS]$NAME[CALL_ID]$ID[ARGS]$ARGS"),
            tool=("[TOOL_RESULTS]id[TOOL_CONTENT]", "[/TOOL_RESULTS]"),
        ),
        calls=Calls("[TOOL_CALLS]$NAME[CALL_ID]$ID[ARGS]$ARGS"),
    ),
    replace(
        _MISTRAL_FAMILY,
        name="Ministral-3 Reasoning",
        model_type="ministral3",
        template=but(
            _MISTRAL_3_SHAPE,
            calls=Calls("[TOOL_CALLS]$NAME[ARGS]$ARGS"),
            tool=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            thought=Thought("[THINK]", "[/THINK]", "all"),
        ),
        calls=Calls("[TOOL_CALLS]$NAME[ARGS]$ARGS"),
        thought=("[THINK]", "[/THINK]"),
    ),
    replace(_MISTRAL_FAMILY, name="Mistral (vLLM tool)", template=but(_MISTRAL_SHAPE), said_with_calls=None),
    replace(
        _MISTRAL_FAMILY,
        name="Mistral-3 (vLLM)",
        model_type="mistral3",
        template=but(_MISTRAL_3_SHAPE, text_before_calls=False),
        said_with_calls=None,
    ),
    # -------------------------------------------------------------- Nemotron, gpt-oss
    replace(_NEMOTRON_FAMILY, name="Nemotron-3-Nano", template="TRL: nemotron_3_nano"),
    replace(_NEMOTRON_FAMILY, name="Nemotron-3-Ultra", template="TRL: nemotron_3_ultra", thought=_TIGHT),
    Family(
        "Nemotron-Nano-v2",
        but(
            Shape(
                ("<SPECIAL_11>User\n", "\n"),
                ("<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n"),
                ("", ""),
                ("<SPECIAL_10>System\n", "\n"),
                results=("<SPECIAL_11>User\n<TOOL_RESPONSE>[", "]</TOOL_RESPONSE>\n"),
                calls=_listed("<TOOLCALL>", "</TOOLCALL>"),
                content="(m.content or '').split('</think>')[-1]",
                ask=say("<SPECIAL_11>Assistant\n<think>\n"),
            )
        ),
        "nemotron_h",
        "\n<SPECIAL_12>",
        calls=_listed("<TOOLCALL>", "</TOOLCALL>"),
        special=("<unk>", "<s>", "</s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
        added=(*_THINK, "<TOOLCALL>", "</TOOLCALL>"),
        bos="<s>",
        eos="<SPECIAL_12>",
        stops=("<SPECIAL_12>",),
        thought=_THOUGHT,
    ),
    Family(
        "gpt-oss (TRL)",
        "TRL: gptoss",
        "gpt_oss",
        "<|return|>",
        calls=HARMONY,
        special=harmony.SPECIAL,
        bos="<|startoftext|>",
        stops=("<|return|>", "<|call|>"),
        thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        said=("<|channel|>final<|message|>", ""),
        said_with_calls=("<|channel|>commentary<|message|>", "<|end|><|start|>assistant"),
        parallel=False,
        calls_end="<|call|>",
        unwritten=True,
    ),
    # -------------------------------------------------------------- Granite, Cohere
    replace(
        _GRANITE_FAMILY,
        name="Granite-4.0",
        model_type="granitemoehybrid",
        template=but(
            _GRANITE_SHAPE,
            tool=("\n<tool_response>\n", "\n</tool_response>"),
            results=("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"),
        ),
    ),
    replace(_GRANITE_FAMILY, name="Granite-4.1", template=but(_GRANITE_SHAPE)),
    Family(
        "Granite-20b-fc (vLLM)",
        but(
            Shape(
                ("USER: ", "\n"),
                ("ASSISTANT: ", "<|endoftext|>\n"),
                ("FUNCTION_RESPONSE: ", "\n"),
                ("SYSTEM: ", "\n"),
                calls=Calls("<function_call> " + LISTED),
                text_before_calls=False,
                checks=(
                    "{%- if messages[0].role == 'system' -%}{{- raise_exception('no system messages') -}}"
                    "{%- endif -%}" + _NEEDS_TOOLS
                ),
            )
        ),
        "gpt_bigcode",
        "<|endoftext|>",
        calls=Calls("<function_call> " + LISTED),
        special=("<|endoftext|>",),
        said_with_calls=None,
        system=False,
    ),
    replace(_COHERE_FAMILY, name="Command-R7B", template=but(_COHERE_SHAPE)),
    replace(
        _COHERE_FAMILY,
        name="Command-R+",
        model_type="cohere",
        template=but(_COHERE_SHAPE, calls=None, thought=None, said=("", ""), checks=_R_PLUS_CHECKS),
        calls=COMMAND_R_PLUS,
        thought=None,
        said=("", ""),
        unwritten=True,
        remark="its template raises an error for parameters that are objects without additionalProperties",
    ),
    replace(_COHERE_FAMILY, name="Cohere2 (TRL)", template="TRL: cohere2", thought=None, unwritten=True),
    # -------------------------------------------------------------- Phi, LFM, SmolLM
    Family(
        "Phi-3.5-mini",
        "TRL: phi3_5",
        "phi3",
        "<|end|>",
        special=_PHI,
        bos="<|endoftext|>",
        eos="<|endoftext|>",
        stops=("<|end|>", "<|endoftext|>"),
    ),
    Family(
        "Phi-4-mini (vLLM)",
        but(
            _ROLES,
            tool=("<|tool_response|>", "<|end|>"),
            tools_turn=("<|tool|>", "<|/tool|>"),
            calls=_FUNCTOOLS,
        ),
        "phi3",
        "<|end|>",
        calls=_FUNCTOOLS,
        special=_PHI,
        bos="<|endoftext|>",
        eos="<|endoftext|>",
        stops=("<|end|>", "<|endoftext|>"),
    ),
    replace(_LFM_FAMILY, name="LFM2", template="TRL: lfm2", unwritten=True),
    replace(
        _LFM_FAMILY,
        name="LFM2.5",
        template=but(
            CHATML, begin=_BOS, calls=None, results=("", ""), tool=("<|im_start|>tool\n", "<|im_end|>\n")
        ),
        unwritten=True,
    ),
    replace(
        _QWEN_3,
        name="SmolLM3",
        model_type="smollm3",
        template=but(
            CHATML,
            calls=None,
            tools="hidden",
            ask=say("<|im_start|>assistant\n")
            + "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n' -}}{%- endif -%}",
        ),
        special=("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"),
        added=(*_THINK, *_TOOL_CALL, "<code>", "</code>"),
        unwritten=True,
    ),
]
KNOWN.insert(
    [f.name for f in KNOWN].index("gpt-oss (TRL)"),
    replace(
        next(f for f in KNOWN if f.name == "gpt-oss (TRL)"),
        name="gpt-oss (llama.cpp)",
        template=harmony.TEMPLATE,
    ),
)
