"""How a model is split over devices: one file a strategy."""
