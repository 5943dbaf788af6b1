"""An assistant on top of models: tools, skills, an agent loop, memory, MCP, and adapters for other frameworks."""
