"""The first pass: what each file defines, imports and hands on, and how that hangs together across files."""
