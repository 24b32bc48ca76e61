"""Search of settings: a space of recipe keys, trials on Optuna, and the page about them."""
