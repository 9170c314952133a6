"""Service classes, outside the core: checks of their settings, and the class of each model."""
