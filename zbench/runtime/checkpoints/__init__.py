"""A checkpoint's folder, as seen without torch."""
