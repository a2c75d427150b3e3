"""The tasks: what a model is given to learn online, as validated frozen episodes. No model lives here."""
