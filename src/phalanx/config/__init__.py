"""Recipes: YAML text -> nodes that know where they were written (read) -> checked, typed settings (bind, schema)."""
