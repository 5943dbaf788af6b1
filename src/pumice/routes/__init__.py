"""Routes: what a local inference takes and gives, and documents that say what ran; data only, no device."""
