"""SmolLM2-135M-Instruct, a real language model that learns on a CPU: `recipe` fetches it, `tools` teaches it to call tools."""
