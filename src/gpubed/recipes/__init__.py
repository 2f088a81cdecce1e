"""Recipes: software stacks, pinned by a lock."""
