"""Memory of the host backend: buffers, packed weights in tiles, scratch."""
