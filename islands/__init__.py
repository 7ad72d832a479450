"""The learner: JAX and data, no Ray; of the coordinator it knows the vocabulary only."""
