"""For type checkers: where the names of `ajet.plugin_names` are."""

from ajet_advice.api import Forecast as Forecast
from ajet_advice.api import aforecast as aforecast
from ajet_advice.api import forecast as forecast
