"""For type checkers: where the names of `ajet.plugin_names` are."""

from ajet_advice.api import Forecast as Forecast
from ajet_advice.api import aforecast as aforecast
from ajet_advice.api import forecast as forecast
from ajet_rejudge.api import Rejudged as Rejudged
from ajet_rejudge.api import arejudge as arejudge
from ajet_rejudge.api import rejudge as rejudge
