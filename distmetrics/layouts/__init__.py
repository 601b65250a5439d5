"""What the ranks of a mesh hold along each axis: other samples, the same ones, or nothing."""
