"""Leaving, outside the core: announcements of operators, of clouds and of clusters, and what is shown of them."""
