"""The built-in wires: one file for each HTTP format of LLM requests, behind the protocol of `ajet.interfaces.wire`."""

from ajet.interfaces.wire import Answer as Answer
from ajet.interfaces.wire import ChatRequest as ChatRequest
from ajet.interfaces.wire import Events as Events
from ajet.interfaces.wire import PathWire as PathWire
from ajet.interfaces.wire import Piece as Piece
from ajet.interfaces.wire import Refused as Refused
from ajet.interfaces.wire import TooLong as TooLong
from ajet.interfaces.wire import Wire as Wire
