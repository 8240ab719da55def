"""What answers are read with, and how a formula is compared with another: numbers, literals, expressions, logic."""
