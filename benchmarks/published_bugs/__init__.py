"""Published bugs of metrics on meshes, as programs of our own: see ``docs/published-bugs.md``."""
