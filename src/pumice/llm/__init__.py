"""Language models at run time: caches, sampling, generation, embeddings."""
