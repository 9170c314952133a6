"""Service classes: what each is promised, and how long and where its requests wait."""
