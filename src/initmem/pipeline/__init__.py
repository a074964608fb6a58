"""Training code of users: `Init`, `Tracker`, versions of code, adapters for other frameworks."""
