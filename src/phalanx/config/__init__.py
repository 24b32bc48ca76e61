"""What a user asks for: recipes, from YAML text to checked settings, and shared arguments. Imports system."""
