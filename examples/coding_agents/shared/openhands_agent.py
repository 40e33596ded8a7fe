import os
import sys

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool

llm = LLM(model="openai/any", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
chat = Conversation(agent=Agent(llm=llm, tools=[Tool(name=TerminalTool.name)]), workspace=os.getcwd())
chat.send_message(sys.argv[1])
chat.run()
