"""From results to what people look at."""
