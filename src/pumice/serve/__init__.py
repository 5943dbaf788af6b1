"""A server of models over HTTP: an API process that speaks other projects' protocols, and a worker process for each model."""
