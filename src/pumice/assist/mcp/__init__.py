"""The Model Context Protocol, by the official package: Pumice's models as a server, and other servers' tools for agents."""
