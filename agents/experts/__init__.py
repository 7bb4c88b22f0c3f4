"""The rule-based experts: pure functions from a role's evidence to its typed answer. No model is asked here."""
