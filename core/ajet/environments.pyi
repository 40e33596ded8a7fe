"""For type checkers: the names of `ajet.environments`."""

from ajet_environments.service.client import Environment as Environment
from ajet_environments.service.client import SyncEnvironment as SyncEnvironment
from ajet_environments.service.client import environment as environment
from ajet_environments.service.client import task_ids as task_ids
from ajet_environments.service.protocol import EnvironmentFailed as EnvironmentFailed
from ajet_environments.service.protocol import State as State
from ajet_environments.service.server import ServedEnvironment as ServedEnvironment
from ajet_environments.service.server import serve as serve
from ajet_environments.service.server import serving as serving
