"""How to learn: the loop, its optimizers and the other kinds of learner. Knows neither the registry nor the data types."""
