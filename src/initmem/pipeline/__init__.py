"""Your own pipeline: initialization of any model, a tracker, `measure`, and adapters to other libraries."""
