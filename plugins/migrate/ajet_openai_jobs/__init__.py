"""Fine-tuning jobs of OpenAI's API become jobs of AgentJet. The graders are the judge `openai_grader`."""
