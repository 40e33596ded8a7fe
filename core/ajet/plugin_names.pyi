"""For type checkers: where the names of `ajet.plugin_names` are."""

from importlib.machinery import ModuleSpec

import ajet_atif
from ajet.utils.breakpoints import breakpoint
from ajet_advice.api import Forecast as Forecast
from ajet_advice.api import aforecast as aforecast
from ajet_advice.api import forecast as forecast
from ajet_migrate.earlier.programs import AgentJetJob as AgentJetJob
from ajet_migrate.earlier.programs import AjetTuner as AjetTuner
from ajet_migrate.earlier.programs import BaseJudge as BaseJudge
from ajet_migrate.earlier.programs import Workflow as Workflow
from ajet_migrate.earlier.programs import WorkflowTask as WorkflowTask
from ajet_prompts.api import TunedPrompts as TunedPrompts
from ajet_prompts.api import atune_prompt as atune_prompt
from ajet_prompts.api import tune_prompt as tune_prompt
from ajet_rejudge.api import Bisected as Bisected
from ajet_rejudge.api import Rejudged as Rejudged
from ajet_rejudge.api import abisect as abisect
from ajet_rejudge.api import arejudge as arejudge
from ajet_rejudge.api import bisect as bisect
from ajet_rejudge.api import rejudge as rejudge
from ajet_selection.api import Selection as Selection
from ajet_selection.api import aselect_model as aselect_model
from ajet_selection.api import select_model as select_model

atif = ajet_atif
bp = breakpoint

def find_spec(name: str) -> ModuleSpec | None: ...
