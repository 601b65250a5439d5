"""The linter's examples of hangs, as programs of two ranks: what the guard says of each."""
